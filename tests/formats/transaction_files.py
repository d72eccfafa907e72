"""An independent reader of the transaction files, written from docs/formats.md alone.

It and its neighbours, `rows` for the message store and `account` for what it all means, share no
code with the server, so that the page can't be right only by agreement with itself. Values come out
as plain dictionaries and lists, under the names of the page. The § are those of that page.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import msgpack

Value = dict[str, Any]
Take = Callable[[Any], Any]

FRAME_BYTES_MAX = 1 << 30
MAGICS = {b"TUFFTXLG": "txlog", b"TUFFTXSN": "snapshot"}
VERSION = 1
PREPARED_VERSION = 2  # of a snapshot with prepared transactions
PRINCIPALS_VERSION = 3  # of a snapshot with principals
REQUESTS_VERSION = 4  # of a snapshot with request ids, or transactions of messages only
DOUBT_VERSION = 5  # of a snapshot with commits in doubt
HEADER_MEMBERS = {
    "sequence", "store_id", "created_ms", "lsn", "previous_sequence", "previous_length",
}  # fmt: skip
MARK = b"TUFFMARK"
PROOF_SIZE = 40


class DamagedError(Exception):
    """Bytes that this page does not allow where they stand."""


# §2 The lock, §3 frames


def read_lock(data: bytes) -> Value:
    """§2"""
    return {"pid": int(data.decode("ascii"))}


def read_frame(data: bytes, at: int) -> tuple[bytes, int] | None:
    """The body of the frame that begins there, and where it stops; None if it is not whole."""
    if at < 0 or at + 8 > len(data):
        return None
    length, crc = struct.unpack_from(">II", data, at)
    stop = at + 8 + length
    if length > FRAME_BYTES_MAX or stop > len(data):
        return None
    body = data[at + 8 : stop]
    return (body, stop) if crc32(data[at : at + 4] + body) == crc else None


# §1 MessagePack records


def _exactly(kind: type) -> Take:
    def take(data: Any) -> Any:
        if type(data) is not kind:
            raise DamagedError(f"{data!r} is no {kind.__name__}")
        return data

    return take


number, text, blob, flag = _exactly(int), _exactly(str), _exactly(bytes), _exactly(bool)


def maybe(take: Take) -> Take:
    return lambda data: None if data is None else take(data)


def many(take: Take) -> Take:
    return lambda data: [take(item) for item in _exactly(list)(data)]


def word(*words: str) -> Take:
    def take(data: Any) -> Any:
        if data not in words:
            raise DamagedError(f"{data!r} is none of {words}")
        return data

    return take


def record(fields: Mapping[str, Take]) -> Take:
    def take(data: Any) -> Value:
        if len(_exactly(list)(data)) != len(fields):
            raise DamagedError(f"{data!r} has not the fields {list(fields)}")
        return {name: each(item) for (name, each), item in zip(fields.items(), data, strict=True)}

    return take


def pair(data: Any) -> Any:
    if len(many(number)(data)) != 2:
        raise DamagedError(f"{data!r} are not two numbers")
    return data


def unpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise DamagedError(f"no MessagePack: {error}") from None


KIND = word("short", "long")
STATE = word("committed", "aborted", "invalid")
REASON = word("timed_out", "invalidated", "blocked_readers", "abort_of_long", "lost_in_crash",
              "lease_expired")  # fmt: skip
CONFLICT = record(
    {"key": blob, "committer": number, "committer_client": text, "committer_lsn": number}
)
DETAIL = record({"pointer": number, "first": pair, "last": pair})

# §5.1 Edits

_OF = {"at_ms": number, "transaction_id": number}
_STARTED = {"at_ms": number, "pointer": number, "type": KIND, "timeout_ms": number,
            "expires_at_ms": number, "client": text, "seen": number,
            "lease_ms": maybe(number)}  # fmt: skip
EDITS: Mapping[int, tuple[str, Mapping[str, Take]]] = {
    1: ("block_reserved", {"at_ms": number, "block": pair}),
    2: ("block_returned", {"at_ms": number}),
    3: ("started", _STARTED),
    4: ("checkpointed", {**_OF, "pointer": number}),
    5: ("committing", {**_OF, "changes": many(blob)}),
    6: ("refused", {**_OF, "conflict": CONFLICT}),
    7: ("committed", {**_OF, "changes": many(blob), "is_read_only": flag,
                      "published": many(DETAIL), "topics": many(text),
                      "request_id": maybe(text)}),
    8: ("aborted", {**_OF, "topics": many(text)}),
    9: ("invalidated", {**_OF, "reason": REASON, "topics": many(text)}),
    10: ("truncated", {"at_ms": number, "pointers": many(number)}),
    11: ("restarted", {"at_ms": number, "is_after_crash": flag, "lost": many(pair)}),
    12: ("epoch_begun", {**{name: take for name, take in _STARTED.items() if name != "type"},
                         "sink": text, "epoch": number, "run_id": text}),
    13: ("sink_forgotten", {"at_ms": number, "sink": text}),
    14: ("block_kept", {"at_ms": number, "block": pair}),
    15: ("prepared", {**_OF, "changes": many(blob), "database": text,
                      "published": many(DETAIL)}),
}  # fmt: skip
EDITS = {
    **EDITS,
    16: ("started", {**EDITS[3][1], "principal": text}),
    17: ("epoch_begun", {**EDITS[12][1], "principal": text}),
    18: (
        "started",
        {
            **EDITS[3][1],
            "principal": maybe(text),
            "request_id": maybe(text),
            "is_messages_only": flag,
        },
    ),
    19: ("store_joined", _OF),
    20: (
        "in_doubt",
        {
            **_OF,
            "changes": many(blob),
            "published": many(DETAIL),
            "topics": many(text),
            "request_id": maybe(text),
        },
    ),
    21: ("confirmed", _OF),
}


def read_edit(body: bytes) -> Value:
    """§5.1"""
    lsn, tag, *values = unpack(body)
    if tag not in EDITS:
        raise DamagedError(f"an edit with the unknown tag {tag}")
    name, fields = EDITS[tag]
    return {"lsn": number(lsn), "edit": name, **record(fields)(values)}


# §4 How a transaction file begins


def read_beginning(data: bytes) -> tuple[Value, int]:
    """Kind, version and header of a file, and where its first frame behind them begins."""
    if len(data) < 10 or data[:8] not in MAGICS:
        raise DamagedError("no transaction file")
    version = int.from_bytes(data[8:10], "big")
    frame = read_frame(data, 10)
    of_snapshots = (
        VERSION, PREPARED_VERSION, PRINCIPALS_VERSION, REQUESTS_VERSION, DOUBT_VERSION,
    )  # fmt: skip
    versions = of_snapshots if MAGICS[data[:8]] == "snapshot" else (VERSION,)
    if version not in versions or frame is None:
        raise DamagedError(f"version {version}, or a damaged header")
    header = unpack(frame[0])
    if not isinstance(header, dict) or header.keys() != HEADER_MEMBERS:
        raise DamagedError(f"{header!r} is no header")
    return {"kind": MAGICS[data[:8]], "version": version, "header": header}, frame[1]


# §5 The transaction log


def read_proof(body: bytes) -> Value:
    """§5.2"""
    if len(body) != PROOF_SIZE or body[:8] != MARK:
        raise DamagedError("no proof")
    offset, length = struct.unpack_from(">QQ", body, 24)
    return {"store_id": body[8:24].hex(), "offset": offset, "length": length}


def read_log(data: bytes, *, previous_length: int | None = None) -> Value:
    """§5.3: all edits. `previous_length` is what the log behind says of this one, None for the
    newest, which may have a torn tail."""
    if previous_length is not None:
        if len(data) < previous_length:
            raise DamagedError(f"it ended at {previous_length} once")
        data = data[:previous_length]
    log, at = read_beginning(data)
    proven = at if previous_length is None else previous_length
    edits: list[Value] = []
    while (frame := read_frame(data, at)) is not None:
        body, stop = frame
        if body.startswith(MARK):
            proven = max(proven, _proven(body, at, log["header"]["store_id"]))
        else:
            edits.append(read_edit(body))
            if edits[-1]["lsn"] != log["header"]["lsn"] + len(edits) - 1:
                raise DamagedError(f"a gap before edit {edits[-1]['lsn']}")
        at = stop
    proven = max([proven, *_proofs_behind(data, at, log["header"]["store_id"])])
    if at < proven:
        raise DamagedError(f"damaged at byte {at}, though durable up to {proven}")
    return {**log, "edits": edits, "length": at, "torn_bytes": len(data) - at}


def _proven(body: bytes, at: int, store_id: str) -> int:
    proof = read_proof(body)
    if (proof["store_id"], proof["offset"]) != (store_id, at) or proof["length"] > at:
        raise DamagedError(f"the proof at {at} was written for another place")
    return int(proof["length"])


def _proofs_behind(data: bytes, damage: int, store_id: str) -> list[int]:
    found: list[int] = []
    at = data.find(MARK, damage)
    while at >= 0:
        frame = read_frame(data, at - 8)
        if frame is not None:
            with suppress(DamagedError):
                found.append(_proven(frame[0], at - 8, store_id))
        at = data.find(MARK, at + 1)
    return found


# §6 The snapshot

NUMBERS = record({"lsn": number, "seen": number, "last_pointer": number,
                  "highest_reserved": number, "blocks": many(pair),
                  "is_clean": flag})  # fmt: skip
OPENED = record({"transaction_id": number, "read_pointer": number,
                 "first_short_in_progress": number, "type": KIND, "checkpoints": many(number),
                 "seen": number, "client": text, "timeout_ms": number, "started_at_ms": number,
                 "expires_at_ms": number, "changes": maybe(many(blob)),
                 "conflict": maybe(CONFLICT), "survived_crash": flag,
                 "lease_ms": maybe(number)})  # fmt: skip
CHANGE = record({"transaction_id": number, "state": maybe(STATE), "ended": many(number),
                 "invalidated": many(number), "cleared": many(number),
                 "read_pointer": number})  # fmt: skip
OUTCOME = record({"transaction_id": number, "state": STATE, "reason": maybe(REASON), "type": KIND,
                  "client": text, "started_at_ms": number, "expires_at_ms": number,
                  "ended_at_ms": number, "checkpoints": many(number), "published": many(DETAIL),
                  "topics": many(text), "request_id": maybe(text), "lsn": number})  # fmt: skip
COMMIT = record({"lsn": number, "transaction_id": number, "client": text, "changes": many(blob)})
SINK = record({"name": text, "epoch": number, "run_id": text, "transaction_id": number,
               "state": maybe(STATE), "reason": maybe(REASON), "updated_ms": number,
               "lsn": number, "fenced": many(text)})  # fmt: skip
PREPARED = record({"lsn": number, "at_ms": number, "database": text,
                   "published": many(DETAIL)})  # fmt: skip
PRINCIPAL = record({"transaction_id": number, "principal": text})
REQUEST = record({"transaction_id": number, "request_id": text})
LISTS = record({"started": many(number), "ended": many(number), "added": many(number),
                "cleared": many(number)})  # fmt: skip


@dataclass
class _Snapshot:
    """What the frames of a snapshot have contained so far."""

    value: Value
    frame_count: int = 0
    lists: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))

    def take(self, tag: int, items: Sequence[Any]) -> None:
        readers: Mapping[int, Callable[[Sequence[Any]], None]] = {
            1: lambda given: self.value.update(numbers=NUMBERS(given[0])),
            2: lambda given: self.value["open"].extend(map(self._open, given)),
            3: self._view,
            4: lambda given: self.value["pending"].extend(map(self._pending, given)),
            5: lambda given: self.value["outcomes"].extend(map(OUTCOME, given)),
            6: lambda given: self.value["commits"].extend(map(COMMIT, given)),
            7: lambda given: self.value.setdefault("sinks", []).extend(map(SINK, given)),
            8: self._prepared,
            9: lambda given: self.value.setdefault("principals", []).extend(map(PRINCIPAL, given)),
            10: lambda given: self.value.setdefault("requests", []).extend(map(REQUEST, given)),
            11: lambda given: self.value.setdefault("messages_only", []).extend(map(number, given)),
            12: self._doubts,
        }
        if tag not in readers:
            raise DamagedError(f"a frame with the unknown tag {tag}")
        readers[tag](items)
        self.frame_count += 1

    def _next_lists(self, data: Any) -> Value:
        lists = LISTS(data)
        in_progress, invalid = self.lists
        in_progress = in_progress - set(lists["ended"]) | set(lists["started"])
        invalid = invalid - set(lists["cleared"]) | set(lists["added"])
        self.lists = in_progress, invalid
        return {"in_progress": sorted(in_progress), "invalid": sorted(invalid)}

    def _open(self, data: Any) -> Value:
        opened, lists = data
        return {**OPENED(opened), **self._next_lists(lists)}

    def _prepared(self, items: Sequence[Any]) -> None:
        by_id = {opened["transaction_id"]: opened for opened in self.value["open"]}
        for transaction_id, prepared in items:
            by_id[transaction_id]["prepared"] = PREPARED(prepared)

    def _doubts(self, items: Sequence[Any]) -> None:
        by_id = {opened["transaction_id"]: opened for opened in self.value["open"]}
        for doubt in map(record(EDITS[20][1]), items):
            by_id[doubt["transaction_id"]]["doubt"] = doubt

    def _view(self, items: Sequence[Any]) -> None:
        read_pointer, lists, shorts = items
        self.value["view"] = {
            "read_pointer": number(read_pointer),
            "short_in_progress": many(number)(shorts),
            **self._next_lists(lists),
        }

    def _pending(self, data: Any) -> Value:
        lsn, change = data
        return {"lsn": number(lsn), **CHANGE(change)}


def read_snapshot(data: bytes) -> Value:
    """§6"""
    beginning, at = read_beginning(data)
    empty: Value = {"open": [], "pending": [], "outcomes": [], "commits": []}
    snapshot = _Snapshot({**beginning, **empty})
    while (frame := read_frame(data, at)) is not None:
        tag, *items = unpack(frame[0])
        at = frame[1]
        if tag == 0:
            if items != [snapshot.frame_count] or at != len(data):
                raise DamagedError("the end is not where it should be")
            return snapshot.value
        snapshot.take(tag, items)
    raise DamagedError(f"not whole from byte {at} on")


# §12 Backups


def read_archive(data: bytes) -> Value:
    """A whole backup: its snapshot file, and its rows keys and values as hexadecimal digits."""
    if data[:10] != b"TUFFBKUP" + struct.pack(">H", VERSION):
        raise DamagedError("it does not begin as a backup does")
    at, parts = 10, list[tuple[int, bytes]]()
    while True:
        found = read_frame(data, at)
        if found is None or not found[0]:
            raise DamagedError(f"it ends at byte {at}, without its end")
        body, at = found
        if body[0] == 0:
            break
        parts.append((body[0], body[1:]))
    if body[1:] != struct.pack(">Q", len(parts)) or at != len(data):
        raise DamagedError(f"{len(parts)} parts are not what it began as")
    if [kind for kind, _ in parts] != sorted(kind for kind, _ in parts) or {1, 2} < {*dict(parts)}:
        raise DamagedError("a part has no place where it stands")
    snapshot = b"".join(content for kind, content in parts if kind == 1)
    rows = [row for kind, content in parts if kind == 2 for row in _archived(content)]
    return {"parts": len(parts), "snapshot": snapshot, "rows": rows}


def _archived(content: bytes) -> list[list[str]]:
    at, found = 0, []
    while at < len(content):
        key_length, value_length = struct.unpack_from(">II", content, at)
        key, value = at + 8, at + 8 + key_length
        at = value + value_length
        found.append([content[key:value].hex(), content[value:at].hex()])
    return found
