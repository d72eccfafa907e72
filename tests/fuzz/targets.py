"""Every decoder of external bytes, the errors that it may raise, and valid initial inputs.

A decoder returns a value or raises its own error: anything else is a bug. A checksum would reject
nearly every mutated input, so it is corrected before the decoder gets the bytes: another program
may have written them.
"""

import json
import re
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from admin.inspect_tables import decoded
from kernel import request_bodies
from kernel.requests_and_replies import Request, read_object
from messaging.engines.hbase import journal
from messaging.engines.leveldb import LevelDbStore
from messaging.engines.leveldb_corruption import CorruptRange, corrupt_ranges_in
from messaging.engines.sstable import read_changes, read_entries, read_layout, read_ranges
from messaging.groups import group_log_records as group_records
from messaging.log.region_observers import RegionRecord, UnreadableRecordError
from messaging.log.rows_by_transaction import IndexedRange
from messaging.log.store_end import DamagedEndError, StoreEnd
from messaging.log.topics import TopicRecord
from messaging.model import avro_bodies
from messaging.model.attributes import decode_attributes
from messaging.model.packed_rows import (
    open_packed,
    require_packed,
    rows_in,
    whole_rows,
)
from messaging.model.producer_rows import GapRow, ProducerRow, unpack_entry
from messaging.model.row_format import (
    DamagedRowError,
    Hold,
    LastBatch,
    MessageRow,
    Position,
    StoreMetadata,
    frame,
    is_whole,
    split_undecided,
)
from process.backup_format import unpack_rows
from process.request_parser import read_target
from process.session_requests import call_of, request_of
from tuff import read_calls, transaction_calls
from tuff.flows_and_repeated_calls import Call
from tuff.protocol import avro, json_bodies
from tuff.protocol.attributes import TagFilter
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.json_bodies import parse_json
from tuff.protocol.session_frames import FrameReader, Kind, greeting_of, reply_of
from tuff.protocol.session_frames import frame as session_frame
from tuff.protocol.transaction import Transaction
from tuff.read_calls import PollQuestion
from tuff.requests_and_responses import Response
from tuff.tables.compaction import Compacted
from tuff.tables.hbase_row_format import Cell, read_cell
from tuff.tables.row_format import (
    MalformedKeyError,
    Version,
    check_format,
    pack_metadata,
    read_undo,
    read_undo_key,
    read_value,
    read_version,
)
from tuff_storage.checksum import crc32
from tuff_storage.disk.backup_archive import ArchiveError, read_parts
from tuff_storage.disk.records import pack_frame
from tuff_storage.leveldb.log import MalformedError as MalformedLevelDbError
from tuff_storage.leveldb.log import Record, read_batch, read_records
from tx.file_headers import HEAD_SIZE, DamagedFilesError, FileKind, read_header
from tx.log_records import MalformedError, decode_edit
from tx.snapshot_file import read_snapshot
from tx.wal import read_log

ROOT = Path(__file__).resolve().parents[2]
TOPIC = TopicId("default", "t1")

Decode = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Target:
    """`decode` takes any bytes, and raises nothing but `errors`; `seeds` are valid inputs."""

    name: str
    decode: Decode
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[bytes]]

    def __str__(self) -> str:
        return self.name

    def run(self, data: bytes) -> None:
        """Raises: an exception that the decoder must not raise."""
        with suppress(*self.errors):
            self.decode(data)


# Mutated inputs with corrected checksums


def resealed(start: int) -> Callable[[bytes], bytes]:
    """A function that corrects the checksums of all frames after `start`."""

    def reseal(data: bytes) -> bytes:
        pieces, at = [data[:start]], start
        while at + 8 <= len(data):
            (length,) = struct.unpack_from(">I", data, at)
            if length > len(data) - at - 8:
                break
            pieces.append(pack_frame(data[at + 8 : at + 8 + length]))
            at += 8 + length
        return b"".join((*pieces, data[at:]))

    return reseal


def split(data: bytes) -> tuple[bytes, int, bytes]:
    """A key, flags and a body: the first byte is the length of the key, the second the flags."""
    size, flags = (*data[:2], 0, 0)[:2]
    return data[2 : 2 + size], flags, data[2 + size :]


RowKind = type[
    MessageRow | TopicRecord | IndexedRange | LastBatch | StoreMetadata | Hold | Position | GapRow
]


def _row(kind: RowKind) -> Decode:
    def decode(data: bytes) -> object:
        key, flags, body = split(data)
        return kind.from_bytes(key, frame(key, flags, body))

    return decode


def _undecided_row(data: bytes) -> object:
    key, flags, body = split(data)
    return split_undecided(key, frame(key, flags, body))


def _producer_row(data: bytes) -> object:
    key, flags, body = split(data)
    row = ProducerRow.from_bytes(key, frame(key, flags, body))
    return [unpack_entry(entry) for entry in row.entries.values()]


def _packed_rows(data: bytes) -> object:
    key, flags, body = split(data)
    # Salvage also splits bytes without a valid frame.
    for value in (frame(key, flags, body), bytes((flags,)) + body):
        assert all(is_whole(*row) for row in whole_rows(key, value))
        assert sum(len(row) for _, row in rows_in(key, value)) <= len(value) + 5 * len(body)
    require_packed(key, frame(key, flags, body))
    return open_packed(key, frame(key, flags, body))


def _inspected(data: bytes) -> object:
    key, flags, body = split(data)
    return decoded(key, frame(key, flags, body))


def _region_record(data: bytes) -> object:
    body = data[14:]
    return RegionRecord.from_bytes(data[:10] + struct.pack(">I", crc32(body)) + body)


def _commit(data: bytes) -> object:
    """A cell alone, or, by the flags, a cell and the chunk that it rests on."""
    cell, flags, rest = split(data)
    cell, chunks = (cell, [rest]) if flags else (cell + rest, [])
    crc = struct.pack(">I", crc32(b"".join(chunks), crc32(cell[5:])))
    return journal.unpack(cell[:1] + crc + cell[5:], chunks)


def _answer(call: Call[object]) -> Decode:
    headers = {"tuff-next": "0" * 40, "tuff-caught-up": "true"}
    if call.request.accept is not None:
        headers["content-type"] = call.request.accept

    def decode(data: bytes) -> object:
        status = 400 if data[:1] == b"!" else 200
        return call.answer(Response(status, headers, data.removeprefix(b"!")))

    return decode


def _version(data: bytes) -> object:
    key, flags, body = split(data)
    found = read_version(key)
    return found, read_value(key, frame(key, flags, body))


def _cell(data: bytes) -> object:
    key, flags, body = split(data)
    return read_cell(key, Cell(5, frame(Version(key, 5).stored_key, flags, body)))


def _undo(data: bytes) -> object:
    key, _, body = split(data)
    return read_undo_key(key), list(read_undo(key, pack_metadata(key, body)))


def _archive(data: bytes) -> object:
    return [
        list(unpack_rows(content)) if kind == 2 else content
        for kind, content in read_parts(BytesIO(resealed(10)(data)))
    ]


def _leveldb_log(data: bytes) -> object:
    found = list(read_records(data))
    return [read_batch(record) for record in found if isinstance(record, Record)]


def _leveldb_table(data: bytes) -> object:
    return [list(read_changes(data, block)) for block in read_layout(data).blocks]


def _corrupt_ranges(data: bytes) -> object:
    whole = CorruptRange(b"", b"\xff", "damaged")
    return [
        corrupt_ranges_in(read_entries(data, block), whole, 1 << 20)
        for _, block in read_ranges(data)
    ]


# Initial inputs


@cache
def _examples() -> dict[str, bytes]:
    """The worked examples of docs/formats.md: all bytes, or the value after the key."""
    page = (ROOT / "docs" / "formats.md").read_text("utf-8")
    found = {}
    for name, lines in re.findall(r"^example (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        hexadecimal = lines.partition("means")[0]
        parts = re.findall(r"^(\w+)((?: +[0-9a-f]+\n?)+)", hexadecimal, re.MULTILINE)
        values = {label: bytes.fromhex(digits) for label, digits in parts}
        if "value" in values:
            key, value = values["key"], values["value"]
            found[name] = bytes((len(key), value[0])) + key + value[5:]
        else:
            found[name] = next(iter(values.values()))
    return found


def _like(pattern: str) -> Callable[[], list[bytes]]:
    def seeds() -> list[bytes]:
        return [data for name, data in _examples().items() if re.fullmatch(pattern, name)]

    return seeds


def _of(*values: object) -> Callable[[], list[bytes]]:
    return lambda: [
        each if isinstance(each, bytes) else json.dumps(each).encode() for each in values
    ]


def _hex(*digits: str) -> Callable[[], list[bytes]]:
    return lambda: [bytes.fromhex(each) for each in digits]


def _group_records() -> list[bytes]:
    return [
        group_records.CONSUMER_RECORDS.to_bytes(each)
        for each in (
            group_records.MemberLeftRecord(member_id="m1"),
            group_records.OffsetRecord(
                member_id="m1", partition="t:0", after=MessageId(7, 1), at_ms=8, pointer=9
            ),
        )
    ]


def _share_records() -> list[bytes]:
    return [
        group_records.SHARE_RECORDS.to_bytes(each)
        for each in (
            group_records.ReadRecord(read_to=bytes(20)),
            group_records.WindowRecord(ids=(bytes(20),), key=b"a", behind=bytes(20), further=3),
            group_records.RejectedRecord(ids=(bytes(20),), pointer=9),
        )
    ]


def _commits() -> list[bytes]:
    """A commit in one cell, and one whose rows stand in a chunk."""
    rows = {b"ma": b"value", b"mb": None}
    commit = journal.Commit(token=bytes(16), timestamp_ms=7, first=1, holder="here", rows=rows)
    whole, claim = journal.pack(commit)[0], journal.pack(replace(commit, rows={}))[0]
    body = whole[len(claim) :]
    chunked = claim[:40] + b"\x01" + claim[41:]  # the number of its chunks
    return [
        bytes((len(claim), 0)) + claim + body,
        bytes((len(chunked), 1)) + chunked + body,
    ]


def _transaction() -> Transaction:
    return Transaction(transaction_id=5, read_pointer=4, write_pointer=5)


_DETAIL = {
    "transactionWritePointer": "5", "startTimestamp": 7, "startSequenceId": 0,
    "endTimestamp": 7, "endSequenceId": 2,
}  # fmt: skip
_MESSAGE = {
    "payload": {"base64": "AP8="}, "ttl": 5,
    "key": "k", "tags": ["eu", "paid"], "headers": {"n": ["1", {"base64": "/w=="}], "m": ""},
}  # fmt: skip
_OBJECT = request_bodies.transaction_to_json(_transaction(), lists=True)


def _json(read: Callable[[object], object]) -> Decode:
    return lambda data: read(parse_json(data))


# What a request is made of, beside the call itself.
_CALL: Any = SimpleNamespace(callee=SimpleNamespace(names=("ns", "t")), size=0)
_HEAD = Request({}, (), None, None, b"")


def _session(data: bytes) -> None:
    """The calls of a session, as the server reads them."""
    frames, error = FrameReader(frame_bytes_max=1 << 20).feed(data)
    for _, elements in frames:
        if elements[0] == Kind.CALL:
            _, said = call_of(elements)
            request_of(said, _CALL, _HEAD)
        elif elements[0] == Kind.GREETING:
            greeting_of(elements)
        elif elements[0] == Kind.REPLY:
            reply_of(elements)
    if error is not None:
        raise error


def _target(name: str, decode: Decode, error: type[Exception], seeds: object) -> Target:
    assert callable(seeds)
    return Target(name, decode, (error,), seeds)


TARGETS: Sequence[Target] = (
    _target(
        "avro-publish", avro_bodies.decode_publish_request, TuffError,
        _hex("0204026104626300", "000200", "000a03080261026200"),
    ),
    _target(
        "avro-publish-2", avro_bodies.decode_publish_request_2, TuffError,
        _hex("0202026102026b020465750002026e023100027800", "0002010c026100000000" "00"),
    ),
    _target(
        "avro-messages-2", avro.decode_messages_2, TuffError,
        _hex("00", "0228" + "11" * 20 + "0261" "02026b" "0204657500" "02026e0231" "00" "00"),
    ),
    _target(
        "tag-filter", lambda data: TagFilter.parse(data.decode("latin-1")), TuffError,
        lambda: [b"a", b"a,b|c"],
    ),
    _target(
        "stored-attributes", decode_attributes, TuffError,
        _hex("93c4026b3192a26575a4706169649192a16ec40131", "93c09090"),
    ),
    _target(
        "avro-rollback", avro_bodies.decode_rollback_detail, TuffError,
        _hex("000280c0feed92560a80c0feed92560c"),
    ),
    _target(
        "avro-consume",
        avro_bodies.decode_consume_request,
        TuffError,
        _hex("0401001402", "020e010202"),
    ),
    _target(
        "json-publish", _json(request_bodies.publish_request_from_json), TuffError,
        _of({"transactionWritePointer": "5", "messages": ["a", _MESSAGE]}),
    ),
    _target(
        "json-entries", _json(request_bodies.publish_entries_from_json), TuffError,
        _of([{"namespace": "n", "topic": "t", "messages": ["a", _MESSAGE], "pointer": 5}]),
    ),
    _target("json-rollback", _json(json_bodies.rollback_detail_from_json), TuffError, _of(_DETAIL)),
    _target(
        "json-consume", _json(request_bodies.consume_request_from_json), TuffError,
        _of({"startFrom": "00" * 20, "inclusive": True, "limit": 7, "transaction": _OBJECT}, {}),
    ),
    _target("json-transaction", _json(json_bodies.transaction_from_json), TuffError, _of(_OBJECT)),
    _target(
        "json-body",
        lambda data: read_object(data, "application/json", members=("a", "b"), what="the body"),
        TuffError, _of({"a": 1, "b": None}, b""),
    ),
    _target("ttransaction", Transaction.from_bytes, TuffError, _of(_transaction().to_bytes())),
    _target(
        "session-frames", _session, TuffError,
        _of(session_frame(1, 7, 1, ["n", "t"], {"ttl": 5}, {"messages": [b"a", "b"]}),
            session_frame(2, 7, 200, {"Tuff-Next": "00"}, b"x") + session_frame(6, None)),
    ),
    _target("message-id", MessageId.from_bytes, TuffError, _of(bytes(range(20)))),
    _target(
        "reply-poll", _answer(read_calls.poll(TOPIC, PollQuestion())), TuffError,
        _of(bytes.fromhex("0228" + "11" * 20 + "0261" + "00000000"), b'!{"code":"not_found"}'),
    ),
    _target(
        "reply-offsets", _answer(read_calls.offsets(TOPIC, isolation="all")), TuffError,
        _of({"generation": 1, "earliest": "00" * 20, "end": None, "blockedBy": "5"}),
    ),
    _target(
        "reply-outcome", _answer(transaction_calls.outcome(5)), TuffError,
        _of({
            "transactionId": "5", "state": "invalid", "reason": "timed_out", "client": "c",
            "type": "short", "startedAt": 7, "expiresAt": 9, "topics": ["a:b"],
        }),
    ),
    _target(
        "reply-overview", _answer(transaction_calls.OVERVIEW), TuffError,
        _of({
            "readPointer": "4", "writePointer": "5", "visibilityUpperBound": "4",
            "invalidCount": 0, "committingCount": 0, "oldestInProgress": None, "inProgress": [],
        }),
    ),
    _target("edit", decode_edit, MalformedError, _like("edit-.*")),
    _target(
        "file-header", lambda data: read_header("txlog.1", FileKind.LOG, resealed(HEAD_SIZE)(data)),
        DamagedFilesError, _like("file-header"),
    ),
    _target(
        "log", lambda data: read_log("txlog.1", resealed(HEAD_SIZE)(data)), DamagedFilesError,
        _like("log"),
    ),
    _target(
        "snapshot", lambda data: read_snapshot("snapshot.1", resealed(HEAD_SIZE)(data)),
        DamagedFilesError, _like("snapshot"),
    ),
    _target("messages-end", StoreEnd.from_bytes, DamagedEndError, _like("messages-end")),
    _target("message-row", _row(MessageRow), DamagedRowError, _like("message-row.*")),
    _target("payload-row", _row(MessageRow), DamagedRowError, _like("payload-.*")),
    _target("packed-rows", _packed_rows, DamagedRowError, _like("packed-rows")),
    _target("topic-row", _row(TopicRecord), DamagedRowError, _like("topic-.*")),
    _target("index-row", _row(IndexedRange), DamagedRowError, _like("index-.*")),
    _target("mark-row", _row(LastBatch), DamagedRowError, _like("mark-.*")),
    _target("facts-row", _row(StoreMetadata), DamagedRowError, _like("facts-.*")),
    _target("undecided-row", _undecided_row, DamagedRowError, _like("undecided-.*")),
    _target(
        "group-record", group_records.CONSUMER_RECORDS.from_bytes,
        group_records.DamagedRecordOfGroupError, _group_records,
    ),
    _target(
        "share-record", group_records.SHARE_RECORDS.from_bytes,
        group_records.DamagedRecordOfGroupError, _share_records,
    ),
    _target("hold-row", _row(Hold), DamagedRowError, _like("hold-row")),
    _target("position-row", _row(Position), DamagedRowError, _like("position-row")),
    _target("producer-row", _producer_row, DamagedRowError, _like("producer-row")),
    _target("gap-row", _row(GapRow), DamagedRowError, _like("gap-row")),
    Target("inspected-row", _inspected, (), _like(".*-row.*")),
    _target("region-record", _region_record, UnreadableRecordError, _like("region-record")),
    Target("journal-commit", _commit, (journal.DamagedJournalError,), _commits),
    Target(
        "journal-layout", journal.StoredLayout.from_bytes, (journal.DamagedJournalError,),
        lambda: [
            journal.StoredLayout(16).to_bytes(), journal.StoredLayout(2, "c1").to_bytes()
        ],
    ),
    Target("table-version", _version, (TuffError, MalformedKeyError), _hex(
        "100072" "6170706c6500006b75fbd7646bfff8" "41",
    )),
    _target("table-undo", _undo, TuffError, _hex(
        "0d00" "75148a04289b94000700000000" "148a04289b940007000000056170706c65",
    )),
    _target("table-cell", _cell, TuffError, _hex("05006170706c6541", "05016170706c65", "050261")),
    _target("table-compacted", Compacted.from_bytes, TuffError, lambda: [
        Compacted(bound=4, started=9, open=(5, 6)).to_bytes(), Compacted().to_bytes(),
    ]),
    _target("table-format", check_format, TuffError, _hex("0001")),
    _target("request-target", read_target, BadRequestError, lambda: [
        b"/v1/a%2Fb?limit=5&from=%C3%A9#f", b"*", b"http://me@host:80/v1/topics?a=b", b"http://[::1]/",
    ]),
    _target("archive", _archive, ArchiveError, _like("archive")),
    _target("leveldb-log", _leveldb_log, MalformedLevelDbError, lambda: _leveldb()[0]),
    _target("leveldb-table", _leveldb_table, MalformedLevelDbError, lambda: _leveldb()[1]),
    _target("corrupt-ranges", _corrupt_ranges, MalformedLevelDbError, lambda: _leveldb()[1]),
)  # fmt: skip


@cache
def _leveldb() -> tuple[list[bytes], list[bytes]]:
    """The log and the table of a small LevelDB."""
    with TemporaryDirectory() as directory:
        store = LevelDbStore(Path(directory))
        store.write([(bytes((97, number)), bytes(3)) for number in range(5)])
        store.write([(b"b", None)])
        logs = [path.read_bytes() for path in Path(directory).glob("*.log")]
        store.close()
        LevelDbStore(Path(directory)).close()
        return logs, [path.read_bytes() for path in Path(directory).glob("*.ldb")]
