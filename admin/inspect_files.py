"""Decode snapshots and logs of transactions: `tuff snapshot show`, `tuff log show`.

Corruption is shown as an object of the kind `damage`, with `offset` or `place`, and `reason`, after
everything readable (design §4). Pointers are decimal strings, since `jq` rounds larger numbers.
"""

from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path

from admin.findings import RefusedError
from tuff.protocol.json_bodies import payload_to_json, pointer_to_json
from tuff.protocol.pointer_list import PointerList
from tuff_storage.disk.records import Damage, read_frames
from tx.file_headers import (
    DamagedFilesError,
    FileKind,
    file_infos,
    kind_of,
    read_header,
)
from tx.log_records import MalformedError, decode_edit
from tx.outcomes import OpenTransaction
from tx.snapshot_file import read_snapshot
from tx.wal import is_proof

Line = dict[str, object]

# The members, in objects of any kind, whose integers are write pointers.
POINTER_MEMBERS = frozenset(
    {
        "checkpoint_write_pointers", "checkpoints", "cleared", "committer", "ended",
        "first_short_in_progress", "highest_reserved", "in_progress", "invalid", "invalidated",
        "last_pointer", "pointer", "pointers", "read_pointer", "start", "stop", "transaction_id",
        "write_pointer",
    }
)  # fmt: skip
# Ten thousand open transactions hold nearly the same two lists of ten thousand pointers each.
LISTS = frozenset({"invalids", "in_progress"})


_COMMANDS = {
    FileKind.SNAPSHOT: ("snapshot", "tuff snapshot show"),
    FileKind.LOG: ("transaction log", "tuff log show"),
}


def directory_lines(directory: Path) -> Iterator[Line]:
    """A row for each transaction file in a directory, by sequence number, corrupt ones last."""
    found = file_infos(directory)
    for each in sorted(found, key=lambda each: (each.header is None, each.sequence)):
        name, size_bytes, header = each.path.name, each.size_bytes, each.header
        if header is None:
            reason = str(each.damage)
            yield {"kind": "damage", "place": name, "reason": reason, "bytes": size_bytes}
        else:
            yield {
                "kind": each.kind.value,
                "name": name,
                "bytes": size_bytes,
                "sequence": header.sequence,
                "lsn": header.lsn,
                "created_ms": header.created_ms,
            }


def log_lines(path: Path) -> Iterator[Line]:
    """The header, every edit and any corruption of a log, in their order.

    Raises: RefusedError: the file is not a log.
    """
    data = _read(path, FileKind.LOG)
    try:
        header, start = read_header(path.name, FileKind.LOG, data)
    except DamagedFilesError as error:
        yield {"kind": "damage", "offset": 0, "reason": str(error)}
        return
    yield {"kind": "header", **asdict(header)}
    for found in read_frames(data, start):
        if isinstance(found, Damage):
            rest = len(data) - found.offset
            yield {
                "kind": "damage", "offset": found.offset, "reason": found.reason, "rest_bytes": rest
            }  # fmt: skip
        elif not is_proof(found, header.store_id):
            yield _edit_row(found.start, found.body)


def _read(path: Path, kind: FileKind) -> bytes:
    data = path.read_bytes()
    found = kind_of(path.name, data)
    if found is kind:
        return data
    wanted, _ = _COMMANDS[kind]
    if found is None:
        raise RefusedError(
            f"{path} is not a {wanted}: it does not begin like one; list those of a server with "
            "`tuff snapshot ls DIRECTORY`"
        )
    other, command = _COMMANDS[found]
    raise RefusedError(f"{path} is a {other}, not a {wanted}; show it with `{command} {path}`")


def _edit_row(offset: int, body: bytes) -> Line:
    try:
        lsn, edit = decode_edit(body)
    except MalformedError as error:
        return {"kind": "damage", "offset": offset, "reason": str(error)}
    return {"kind": type(edit).__name__, "lsn": lsn, "offset": offset, **_members(edit)}


def snapshot_lines(path: Path) -> Iterator[Line]:
    """The header, the numbers, and every transaction of a snapshot; or its corruption.

    Raises: RefusedError: the file is not a snapshot.
    """
    data = _read(path, FileKind.SNAPSHOT)
    try:
        header, image = read_snapshot(path.name, data)
    except DamagedFilesError as error:
        # A snapshot is read completely or not at all: its last frame has the count of all frames.
        yield {"kind": "damage", "offset": 0, "reason": str(error)}
        return
    yield {"kind": "header", **asdict(header)}
    numbers = {
        "lsn": image.lsn,
        "durable_lsn": image.seen,
        "read_pointer": image.view.read_pointer,
        "last_pointer": image.last_pointer,
        "highest_reserved": image.highest_reserved,
        "blocks": image.blocks,
        "is_clean": image.is_clean,
        "in_progress": image.view.in_progress,
        "invalid": image.view.invalid,
    }
    yield {"kind": "numbers", **{name: _plain(name, value) for name, value in numbers.items()}}
    for lsn, change in image.pending:
        yield {"kind": "pending", "lsn": lsn, "change": _plain("change", change)}
    for opened in image.open:
        yield {"kind": "open", **_open_members(opened)}
    for outcome in image.outcomes:
        yield {"kind": "ended", **_members(outcome)}
    for commit in image.commits:
        yield {"kind": "committed", **_members(commit)}
    for sink in image.sinks:
        yield {"kind": "sink", **_members(sink)}


def _open_members(opened: OpenTransaction) -> Line:
    return {
        **_members(opened.transaction, without=LISTS),
        "state": opened.state,
        **_members(opened, without=frozenset({"transaction"})),
    }


def _members(value: object, *, without: frozenset[str] = frozenset()) -> Line:
    assert is_dataclass(value), "rows are made of values"
    assert not isinstance(value, type), "rows are made of values"
    names = (field.name for field in fields(value) if field.name not in without)
    return {name: _plain(name, getattr(value, name)) for name in names}


def _plain(name: str, value: object) -> object:
    """The JSON of a value, by the name of the member that holds it."""
    match value:
        case bytes():
            return payload_to_json(value)
        case Enum():
            return value.value
        case int() if name in POINTER_MEMBERS:
            return pointer_to_json(value)
        case frozenset() | tuple() | list() | PointerList():
            items = sorted(value) if isinstance(value, frozenset) else value
            return [_plain(name, item) for item in items]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _members(value)
        case _:
            return value
