"""The floor, a limit: what the answers of transactions over sessions cost in CPython.

    python -m benchmarks.floor DIRECTORY [FEATURE ...]

A server of one file that speaks just enough of docs/session.md for the load generator: start,
commit with change keys and messages, and publish. Its answers are durable: one LevelDB batch with
one sync by a writer thread. The first committer of a key wins. The calls of one read are one batch,
and a call creates nothing that a loop over columns does not need.

Each feature of the real server that is named is added (`FEATURES`, and `benchmarks.climb`, which
measures them). Without any there are no rights, time-outs, checks of topics, index rows, tail
cache, outcomes, metrics and claims: the floor is a limit, and not an equal.
"""

import asyncio
import os
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import google_crc32c
import msgpack
import uvloop

from tuff_storage.leveldb.engine import plyvel

# In the order in which `benchmarks.climb` adds them.
FEATURES = (
    "checks", "rights", "timeouts", "topics", "index", "tail", "outcomes", "view", "claims",
    "metrics", "log",
)  # fmt: skip
CALL, REPLY, GREETING = 1, 2, 0
PUBLISH, START, COMMIT = 1, 16, 18
TAIL_COUNT_MAX = 10_000  # rows of the newest messages that are kept in memory
OUTCOME_COUNT_MAX = 200_000
REMEMBERED_COMMITS_MAX = 5_000
KEYS_MAX, KEY_BYTES_MAX = 100_000, 4_096
CLIENT_LENGTH_MAX = 200
TIMEOUT_S_MAX = 86_400
PAYLOAD_BYTES_MAX = 10 << 20
SPAN_BITS = 8  # deadlines of 256 ms are kept together

_SIZE = struct.Struct(">I")
_RECORD_HEAD = struct.Struct(">II")
_OFFSET = struct.Struct(">QH")
_POINTER = struct.Struct(">Q")
_TOPIC = "bench"
_PREFIX = b"mdefault\0bench\0\0\0\0\1"
_ID = "0" * 40

Call = list[Any]
Row = tuple[bytes, bytes]


class Batch:
    """What the calls of one batch make durable, and what follows once it is."""

    __slots__ = ("claimed", "deletes", "ended", "log", "puts", "replies", "rows", "started_s")

    def __init__(self) -> None:
        self.puts: list[Row] = []
        self.deletes: list[bytes] = []
        self.log: list[bytes] = []
        self.rows: list[Row] = []  # of messages, for the tail cache
        self.ended: list[int] = []  # pointers that snapshots include once this is durable
        self.claimed: list[bytes] = []
        self.replies: list[tuple[asyncio.Transport, list[bytes]]] = []
        self.started_s = 0.0


class Floor:
    """The state, and its one writer. Lives on one event loop."""

    def __init__(self, directory: Path, features: Iterable[str]) -> None:
        chosen = set(features)
        self.has = {name: name in chosen for name in FEATURES}
        self.database = plyvel.DB(str(directory / "rows"), create_if_missing=True)
        self.log_file = os.open(directory / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.open: dict[int, tuple[Any, ...]] = {}
        self.committers: dict[bytes, int] = {}
        self.remembered: deque[tuple[int, Sequence[bytes]]] = deque()
        self.pointer = self.read_pointer = time.time_ns()
        self.undurable: list[int] = []
        self.commit_number = self.seen = 0
        self.edit_number = 0
        self.offset_ms = self.offset_number = 0
        self.deadlines: dict[int, set[int]] = {}
        self.claimed: dict[bytes, int] = {}
        self.tail: deque[Row] = deque(maxlen=TAIL_COUNT_MAX)
        self.outcomes: dict[int, bytes] = {}
        self.settled: list[bytes] = []
        self.topics = {("default", _TOPIC): (_PREFIX, [0, 0])}
        self.allowed = {("tester", kind) for kind in (PUBLISH, START, COMMIT)}
        self.counts: dict[int, int] = {}
        self.latencies = [0] * 20  # batches by the binary logarithm of their microseconds
        self.waiting = Batch()
        self.is_writing = False
        self.jobs: SimpleQueue[Batch] = SimpleQueue()
        self.loop = asyncio.get_running_loop()
        threading.Thread(target=self.write_batches, daemon=True).start()

    def take(self, calls: list[Call], transport: asyncio.Transport) -> None:
        """Decide the calls of one read. Neighbours of one operation are decided together."""
        now_ms = time.time_ns() // 1_000_000
        start = 0
        while start < len(calls):
            kind = calls[start][2]
            stop = start + 1
            while stop < len(calls) and calls[stop][2] == kind:
                stop += 1
            if self.has["rights"] and ("tester", kind) not in self.allowed:
                raise PermissionError(kind)
            frames = _DECISIONS[kind](self, calls[start:stop], now_ms)
            if self.has["metrics"]:
                self.counts[kind] = self.counts.get(kind, 0) + stop - start
            if kind == START:
                transport.write(b"".join(frames))
            else:
                self.waiting.replies.append((transport, frames))
            start = stop
        if self.waiting.replies:
            self.loop.call_soon(self.write_next)

    def start(self, calls: list[Call], now_ms: int) -> list[bytes]:
        """Start transactions, which waits for no disk."""
        has, opened, pointer, read_pointer = self.has, self.open, self.pointer, self.read_pointer
        excluded = tuple(self.undurable)
        edits, bodies = [], []
        for call in calls:
            body = call[5]
            timeout_s = body.get("timeout", 30)
            client = body.get("client", "unknown")
            type_ = body.get("type", "short")
            if has["checks"]:
                _check_start(body, timeout_s, client, type_)
            pointer += 1
            expires_ms = now_ms + timeout_s * 1000
            opened[pointer] = (self.seen, expires_ms, client, read_pointer, excluded)
            if has["timeouts"]:
                self.deadlines.setdefault(expires_ms >> SPAN_BITS, set()).add(pointer)
            if has["log"]:
                self.edit_number += 1
                edits.append(
                    (self.edit_number, 1, now_ms, pointer, 0, timeout_s * 1000, expires_ms, client,
                     self.seen, None, None)
                )  # fmt: skip
            text = str(pointer)
            bodies.append(
                {"transactionId": text, "writePointer": text, "readPointer": str(read_pointer),
                 "type": type_, "state": "in_progress", "client": client, "timeout": timeout_s,
                 "startedAt": now_ms, "expiresAt": expires_ms, "visibility": "SNAPSHOT"}
            )  # fmt: skip
        self.pointer = pointer
        self.waiting.log += map(msgpack.packb, edits)
        return _frames(calls, bodies, [200] * len(calls))

    def commit(self, calls: list[Call], now_ms: int) -> list[bytes]:  # noqa: C901, PLR0915 - one pass is what is measured
        """Commit transactions with keys and messages, as rows and records of the next batch."""
        has, opened, committers = self.has, self.open, self.committers
        pointers: list[int] = []  # 0 for a call that is refused
        changes: list[Sequence[bytes]] = []
        messages: list[list[bytes]] = []
        for call in calls:
            body, pointer = call[5], int(call[3][0])
            keys: list[bytes] = body["changes"]
            entries = body.get("publish", ())
            if has["checks"]:
                _check_commit(body, keys)
            if has["topics"]:
                for entry in entries:
                    self.check_entry(entry)
            transaction = opened.get(pointer)
            if transaction is None or (has["timeouts"] and transaction[1] <= now_ms):
                pointer = 0
            elif not committers.keys().isdisjoint(keys):
                seen = transaction[0]
                if any(committers.get(key, 0) > seen for key in keys):
                    pointer = 0
            pointers.append(pointer)
            changes.append(keys)
            messages.append([payload for entry in entries for payload in entry["messages"]])
            if pointer == 0 or transaction is None:
                continue
            if has["claims"]:
                self.claim(keys, pointer)
            self.commit_number += 1
            committers.update(dict.fromkeys(keys, self.commit_number))
            self.remembered.append((self.commit_number, keys))
            del opened[pointer]
            if has["timeouts"]:
                self.deadlines[transaction[1] >> SPAN_BITS].discard(pointer)
        if not has["view"]:
            self.seen = self.commit_number
        self.put_commits(pointers, changes, messages, now_ms)
        self.forget_commits()
        return self.commit_replies(calls, pointers, messages, now_ms)

    def check_entry(self, entry: dict[str, Any]) -> None:
        _, stats = self.topics[entry["namespace"], entry["topic"]]
        payloads = entry["messages"]
        if set(map(type, payloads)) != {bytes} or max(map(len, payloads)) > PAYLOAD_BYTES_MAX:
            raise ValueError(payloads)
        if not entry.keys() <= {"namespace", "topic", "messages", "ttl", "key"}:
            raise ValueError(entry)
        stats[0] += len(payloads)
        stats[1] += sum(map(len, payloads))

    def claim(self, keys: Sequence[bytes], pointer: int) -> None:
        if not self.claimed.keys().isdisjoint(keys):
            raise NotImplementedError("the real server parks the call")
        self.claimed.update(dict.fromkeys(keys, pointer))
        self.waiting.claimed += keys

    def put_commits(
        self,
        pointers: list[int],
        changes: list[Sequence[bytes]],
        messages: list[list[bytes]],
        now_ms: int,
    ) -> None:
        """Rows, index rows and records of the commits of one batch."""
        has, batch = self.has, self.waiting
        first_of_batch = self.offset_number if now_ms <= self.offset_ms else 0
        owners = [
            pointer
            for pointer, payloads in zip(pointers, messages, strict=True)
            for _ in (payloads if pointer else ())
        ]
        payloads = [
            payload
            for pointer, each in zip(pointers, messages, strict=True)
            if pointer
            for payload in each
        ]
        self.put_rows(owners, payloads, now_ms)
        number, edits, outcomes = first_of_batch, [], self.outcomes
        for pointer, keys, each in zip(pointers, changes, messages, strict=True):
            if not pointer:
                continue
            first = _OFFSET.pack(self.offset_ms, number)
            number += len(each)
            if has["index"] and each:
                row = b"i" + _POINTER.pack(pointer) + _PREFIX
                batch.puts.append((row, first + _OFFSET.pack(self.offset_ms, number - 1)))
                self.settled.append(row)
            self.edit_number += 1
            edits.append(
                (self.edit_number, 5, now_ms, pointer, keys, False,
                 [("default:bench", first, len(each))], None)
            )  # fmt: skip
        packed = list(map(msgpack.packb, edits))
        batch.log += packed
        ended = [pointer for pointer in pointers if pointer]
        if has["view"]:
            self.undurable += ended
            batch.ended += ended
        if has["outcomes"]:
            outcomes.update(zip(ended, packed, strict=True))
            while len(outcomes) > OUTCOME_COUNT_MAX:
                del outcomes[next(iter(outcomes))]

    def put_rows(self, pointers: list[int], payloads: list[bytes], now_ms: int) -> None:
        if now_ms > self.offset_ms:
            self.offset_ms, self.offset_number = now_ms, 0
        first = self.offset_number
        self.offset_number = stop = first + len(payloads)
        at, pack, checksum = _OFFSET.pack, _POINTER.pack, google_crc32c.value
        keys = [_PREFIX + at(self.offset_ms, number) for number in range(first, stop)]
        rows = []
        for key, pointer, payload in zip(keys, pointers, payloads, strict=True):
            value = b"\2" + pack(pointer) + payload
            rows.append((key, _SIZE.pack(checksum(key + value)) + value))
        self.waiting.puts += rows
        if self.has["tail"]:
            self.waiting.rows += rows

    def commit_replies(
        self, calls: list[Call], pointers: list[int], messages: list[list[bytes]], now_ms: int
    ) -> list[bytes]:
        bodies: list[dict[str, Any]] = [
            {"transactionId": str(pointer), "state": "committed", "committedAt": now_ms,
             "published": [{"namespace": "default", "topic": _TOPIC, "count": len(each),
                            "first": _ID, "last": _ID}]}
            if pointer else {"code": "transaction_conflict", "status": 409}
            for pointer, each in zip(pointers, messages, strict=True)
        ]  # fmt: skip
        return _frames(calls, bodies, [200 if pointer else 409 for pointer in pointers])

    def forget_commits(self) -> None:
        remembered, committers = self.remembered, self.committers
        while len(remembered) > REMEMBERED_COMMITS_MAX:
            number, keys = remembered.popleft()
            for key in keys:
                if committers.get(key) == number:
                    del committers[key]

    def publish(self, calls: list[Call], now_ms: int) -> list[bytes]:
        """Publish messages without a transaction."""
        payloads = [payload for call in calls for payload in call[5]["messages"]]
        self.put_rows([0] * len(payloads), payloads, now_ms)
        bodies = [{"first": _ID, "last": _ID, "count": 1}] * len(calls)
        return _frames(calls, bodies, [200] * len(calls))

    def write_next(self) -> None:
        if self.is_writing or not self.waiting.replies:
            return
        batch, self.waiting, self.is_writing = self.waiting, Batch(), True
        if self.has["index"]:
            batch.deletes, self.settled = self.settled, []
        batch.started_s = time.perf_counter()
        self.jobs.put(batch)

    def write_batches(self) -> None:
        has_log = self.has["log"]
        while True:
            batch = self.jobs.get()
            with self.database.write_batch(transaction=True, sync=True) as rows:
                put, delete = rows.put, rows.delete
                for key, value in batch.puts:
                    put(key, value)
                for key in batch.deletes:
                    delete(key)
                if not has_log:
                    put(b"e" + _POINTER.pack(self.edit_number), b"".join(batch.log))
            if has_log:
                os.write(self.log_file, b"".join(_records(batch.log)))
                os.fdatasync(self.log_file)
            self.loop.call_soon_threadsafe(self.apply_durable, batch)

    def apply_durable(self, batch: Batch) -> None:
        """The effects of a durable batch: memory first, then the replies."""
        for key in batch.claimed:
            self.claimed.pop(key, None)
        if batch.ended:
            ended = set(batch.ended)
            self.undurable = [pointer for pointer in self.undurable if pointer not in ended]
            self.read_pointer = max(self.read_pointer, *batch.ended)
            self.seen = self.commit_number
        self.tail.extend(batch.rows)
        for transport, frames in batch.replies:
            transport.write(b"".join(frames))
        if self.has["metrics"]:
            took_us = int((time.perf_counter() - batch.started_s) * 1e6)
            self.latencies[min(len(self.latencies) - 1, took_us.bit_length())] += 1
        self.is_writing = False
        self.write_next()


_DECISIONS: dict[int, Callable[[Floor, list[Call], int], list[bytes]]] = {
    START: Floor.start,
    COMMIT: Floor.commit,
    PUBLISH: Floor.publish,
}


def _check_start(body: dict[str, Any], timeout_s: object, client: object, type_: object) -> None:
    if type(timeout_s) is not int or not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise ValueError(timeout_s)
    if type(client) is not str or len(client) > CLIENT_LENGTH_MAX:
        raise ValueError(client)
    if type_ not in ("short", "long"):
        raise ValueError(type_)
    if not body.keys() <= {"timeout", "client", "type", "lists", "requestId"}:
        raise ValueError(body)


def _check_commit(body: dict[str, Any], keys: object) -> None:
    if type(keys) is not list or len(keys) > KEYS_MAX:
        raise ValueError(keys)
    if set(map(type, keys)) - {bytes} or max(map(len, keys), default=0) > KEY_BYTES_MAX:
        raise ValueError(keys)
    if not body.keys() <= {"changes", "publish", "readOnly", "requestId"}:
        raise ValueError(body)


def _records(bodies: Sequence[bytes]) -> list[bytes]:
    records = []
    for body in bodies:
        records.append(_RECORD_HEAD.pack(len(body), google_crc32c.value(body)))
        records.append(body)
    return records


def _frames(calls: list[Call], bodies: Sequence[object], statuses: list[int]) -> list[bytes]:
    frames = []
    for call, body, status in zip(calls, bodies, statuses, strict=True):
        data = msgpack.packb((REPLY, call[1], status, {}, body))
        frames.append(_SIZE.pack(len(data)))
        frames.append(data)
    return frames


class Connection(asyncio.Protocol):
    """A session. A request before it is answered with 200."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._data = b""
        self._is_session = False

    def connection_made(self, transport: Any) -> None:  # one of uvloop is no asyncio.Transport
        self._transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        if not self._is_session:
            head, end, rest = data.partition(b"\r\n\r\n")
            self._data = b"" if end else data
            if not end:
                return
            data = rest
            if b"Upgrade: tuff-session" not in head:
                self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                return
            self._begin_session()
        start, calls = 0, []
        while len(data) - start >= _SIZE.size:
            stop = start + 4 + int.from_bytes(data[start : start + 4], "big")
            if stop > len(data):
                break
            calls.append(msgpack.unpackb(data[start + 4 : stop]))
            start = stop
        self._data = data[start:]
        if calls:
            self._floor.take(calls, self._transport)

    def _begin_session(self) -> None:
        self._is_session = True
        # The load generator makes a topic first, over a connection of its own.
        limits = {"version": "0", "calls": 1_024, "polls": 64, "frameBytes": 1 << 24, "idle": 60}
        greeting = msgpack.packb((GREETING, limits))
        self._transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
            b"Upgrade: tuff-session/1\r\n\r\n" + _SIZE.pack(len(greeting)) + greeting
        )


async def _serve(directory: Path, features: Sequence[str]) -> None:
    floor = Floor(directory, features)
    server = await floor.loop.create_server(lambda: Connection(floor), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"ready on http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # as the server sets it
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2:]))
