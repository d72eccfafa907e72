"""The offline commands of server.py for the access file: `access token`, `check`, `may`, `grant`,
`revoke`.

Each prints JSON, one object per line, for the `tuff` command.
"""

import argparse
import json
import os
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from access.changes import granted, revoked
from access.principals import EVERY, AccessFileError, Principals, Rights, hash_of
from process.access_guard import read_access_file
from process.option_parser import OptionParser
from process.watched_files import WatchedFileError
from tuff.protocol.errors import InvalidNameError
from tuff.protocol.ids import check_name
from tuff.protocol.operations import Right
from tuff_storage.disk.files import write_file

EXIT_USAGE = 2
_NO_RIGHTS = Rights("", (), frozenset())


def main(arguments: list[str], *, new_token: Callable[[], str]) -> int:
    """Run one command; returns the exit code. `new_token` makes a token of 256 random bits."""
    options = _parser().parse_args(arguments)
    try:
        match options.command:
            case "token":
                _print(_token(options.name, new_token()))
            case "check":
                for row in _rows(read_access_file(options.file)):
                    _print(row)
            case "may":
                _print(_may(read_access_file(options.file), options))
            case _:
                _print(_changed(options.file, options))
    except (AccessFileError, InvalidNameError, WatchedFileError) as error:
        print(f"tuff: {error}", file=sys.stderr)
        return EXIT_USAGE
    return 0


def _token(name: str, token: str) -> Mapping[str, object]:
    check_name(name, what="principal")
    hashed = f"sha256:{hash_of(token)}"
    return {
        "token": token,
        "hash": hashed,
        "lines": f'[principals."{name}"]\ntokens = ["{hashed}"]',
    }


def _rows(principals: Principals) -> list[Mapping[str, object]]:
    return [
        {
            "principal": principal.name,
            "namespace": rights.namespace,
            "topics": " ".join(rights.topics),
            "allow": " ".join(right for right in Right if right in rights.allow),
            "quotas": {k: v for k, v in asdict(principal.quota).items() if v is not None},
            "tenant": principal.tenant,
        }
        for principal in principals.by_name.values()
        for rights in principal.rights or [_NO_RIGHTS]
    ]


def _may(principals: Principals, options: argparse.Namespace) -> Mapping[str, object]:
    principal = principals.by_name.get(options.principal)
    if principal is None:
        raise AccessFileError(
            f"{options.file} has no principal {options.principal!r}; it has "
            f"{', '.join(principals.by_name)}"
        )
    namespace, topic = options.namespace, options.topic
    right = Right(options.right)
    may = principal.may(right, namespace, topic)
    if right is Right.TRANSACT:
        may = principal.may_somewhere(right, EVERY)  # it has no topic
    return {"principal": principal.name, "right": right, "may": may}


def _changed(file: Path, options: argparse.Namespace) -> Mapping[str, object]:
    read_access_file(file)  # its errors name the file
    change = granted if options.command == "grant" else revoked
    before = file.read_text("utf-8")
    try:
        after = change(
            before, options.principal, Right(options.right), options.namespace, options.topic
        )
    except AccessFileError as error:
        raise AccessFileError(f"{file}: {error}") from None
    if after != before:
        place, found = file.resolve(), file.stat()
        write_file(place, after.encode("utf-8"))
        # The server can still read it when root has changed it. Others can't give files away.
        with suppress(PermissionError):
            os.chown(place, found.st_uid, found.st_gid)
        place.chmod(stat.S_IMODE(found.st_mode))
    return {"principal": options.principal, "right": options.right, "changed": after != before}


def _parser() -> OptionParser:
    parser = OptionParser(prog="server.py access")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("token").add_argument("name")
    commands.add_parser("check").add_argument("file", type=Path)
    for name in ("may", "grant", "revoke"):
        about_right = commands.add_parser(name)
        about_right.add_argument("file", type=Path)
        about_right.add_argument("principal")
        about_right.add_argument("right", choices=[right.value for right in Right])
        about_right.add_argument("namespace")
        about_right.add_argument("topic")
    return parser


def _print(row: Mapping[str, object]) -> None:
    print(json.dumps(row), flush=True)
