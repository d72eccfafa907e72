"""Snapshot and log files as plain rows, for people who print and compare them (design §4).

Damage is a row among the others: what is whole is shown, and where it stops being so is said. For
`server.py inspect`; nothing here changes a file.
"""

from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path

from tuff.disk.records import Damage, read_frames
from tuff.protocol.forms import payload_to_json
from tuff.protocol.pointers import PointerList
from tx.edits import Edit, decode_edit
from tx.files import DamagedFilesError, FileKind, known_file, list_files, read_header
from tx.logfile import is_proof
from tx.packing import MalformedError
from tx.replies import outcome_object, transaction_object
from tx.snapshots import read_snapshot

Row = dict[str, object]


def directory_rows(directory: Path) -> Iterator[Row]:
    """A row for each file of the room in a directory, by sequence number, damaged ones last."""
    unreadable: list[Row] = []
    readable: list[tuple[int, Row]] = []
    for path, kind in list_files(directory):
        row: Row = {"name": path.name, "bytes": path.stat().st_size}
        try:
            header = known_file(path, kind).header
        except DamagedFilesError as error:
            unreadable.append({"kind": "damage", **row, "reason": str(error)})
        else:
            row |= {"sequence": header.sequence, "lsn": header.lsn, "created_ms": header.created_ms}
            readable.append((header.sequence, {"kind": kind.value, **row}))
    yield from (row for _, row in sorted(readable, key=lambda entry: entry[0]))
    yield from unreadable


def log_rows(path: Path) -> Iterator[Row]:
    """The header, every edit, and any damage of a log, in their order."""
    data = path.read_bytes()
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


def _edit_row(offset: int, body: bytes) -> Row:
    try:
        lsn, edit = decode_edit(body)
    except MalformedError as error:
        return {"kind": "damage", "offset": offset, "reason": str(error)}
    return {"kind": _name(edit), "lsn": lsn, "offset": offset, **_members(edit)}


def _name(edit: Edit) -> str:
    return type(edit).__name__


def _members(edit: Edit) -> Row:
    return {field.name: _plain(getattr(edit, field.name)) for field in fields(edit)}


def _plain(value: object) -> object:
    match value:
        case bytes():
            return payload_to_json(value)
        case Enum():
            return value.value
        case frozenset():
            return [_plain(item) for item in sorted(value)]
        case tuple() | list() | PointerList():
            return [_plain(item) for item in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def snapshot_rows(path: Path) -> Iterator[Row]:
    """The header, the numbers, and every transaction of a snapshot; or its damage."""
    try:
        header, image = read_snapshot(path.name, path.read_bytes())
    except DamagedFilesError as error:
        yield {"kind": "damage", "reason": str(error)}
        return
    yield {"kind": "header", **asdict(header)}
    yield {
        "kind": "numbers",
        "lsn": image.lsn,
        "durable_lsn": image.seen,
        "read_pointer": image.view.read_pointer,
        "last_pointer": image.last_pointer,
        "highest_reserved": image.highest_reserved,
        "blocks": _plain(image.blocks),
        "is_clean": image.is_clean,
        "in_progress": _plain(image.view.in_progress),
        "invalid": _plain(image.view.invalid),
    }
    for lsn, change in image.pending:
        yield {"kind": "pending", "lsn": lsn, "change": _plain(change)}
    for opened in image.open:
        changes = _plain(opened.changes)
        yield {"kind": "open", **transaction_object(opened, lists=False), "changes": changes}
    for outcome in image.outcomes:
        yield {"kind": "ended", **outcome_object(outcome, list(outcome.topics))}
    for commit in image.commits:
        yield {
            "kind": "committed", "lsn": commit.lsn, "transactionId": str(commit.transaction_id),
            "client": commit.client, "changes": _plain(commit.changes),
        }  # fmt: skip
