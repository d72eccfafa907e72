"""Workload: a process with clients of a traced server, and with a table in the same trace.

Each client works until it has made enough attempts or its server is gone, and records each attempt
with its reply. The clock of the history is the length of the trace.
"""

import json
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import count
from pathlib import Path

import tuff
from tests.faults.history import (
    BEGINNING,
    Append,
    Attempt,
    Outcome,
    Poll,
    Recorder,
    Requests,
    View,
    line_of,
    payloads,
    recorded,
)
from tests.http.calls import TRANSACTIONS, Topic, Tx, entry
from tests.http.client import Client, Reply, ok
from tuff.protocol.transaction import TransactionState

NAMESPACE = "cut"
TOPICS = ("p0", "p1")
REFUSED_S = 0.01  # between two units of which the first was refused
TICKS = 1 << 20  # times while the trace does not grow; no run makes so many calls
LARGE_BYTES = 9_000  # bytes; some pages of a file
LOST = (OSError, HTTPException)  # what a client meets when its server dies under it


def last_time_at(position: int) -> int:
    """A time after everything that had happened when the trace was so long."""
    return (position + 1) * TICKS - 1


class RefusedError(Exception):
    """The server refused a request that may succeed later."""


@dataclass(slots=True)
class Shared:
    """What the threads share; the lock guards the file, and the ticks."""

    port: int
    trace: Path
    history: Path
    stop: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    ticks: Iterator[int] = field(default_factory=count)
    is_over: bool = False

    def position(self) -> int:
        return self.trace.stat().st_size

    def time(self) -> int:
        """A new time at each call, ordered by the length of the trace."""
        with self.lock:
            return self.position() * TICKS + next(self.ticks)

    def enter(self, attempt: Attempt) -> None:
        with self.lock, self.history.open("a") as file:
            file.write(line_of(attempt))


def padded(payload: str, size: int) -> str:
    """The payload, a bar, and so many more characters."""
    return f"{payload}|{'x' * size}"


def row_value(key: str, value: str) -> str:
    """The value of a row in the history, where every value is unique."""
    return f"{key}={value}"


class Worker:
    """One thread's client; its number selects its kind of work."""

    def __init__(self, shared: Shared, *, number: int, first_unit: int) -> None:
        self._shared, self._id, self._unit = shared, number, first_unit
        self._client = Client(shared.port)
        self._work = (self._plain, self._published, self._with_commit, self._run)[number % 4]

    def work(self) -> None:
        try:
            while not self._shared.is_over and self._unit % 10_000 < self._shared.stop:
                self._unit += 1
                try:
                    self._work()
                except RefusedError:
                    continue
                except LOST:
                    return
        finally:
            self._client.close()

    def _topic(self, number: int) -> Topic:
        return Topic(self._client, NAMESPACE, TOPICS[number % 2])

    def _sent(self, request: int, count: int) -> tuple[str, ...]:
        return payloads(self._id, self._unit, request, count)

    def _large(self, sent: tuple[str, ...]) -> list[str]:
        size = LARGE_BYTES if self._unit % 5 == 0 else 3
        return [padded(payload, size) for payload in sent]

    def _ok(self, reply: Reply) -> Reply:
        """Raises: RefusedError: the server can't do it for now."""
        if reply.status in {409, 429, 503}:
            raise RefusedError
        return ok(reply)

    def _recorder(self) -> Recorder:
        return Recorder(self._id, self._shared.time)

    def _begin(self) -> tuple[Tx, Recorder]:
        """A transaction, and a recorder that begins when its client has the pointer."""
        reply = self._ok(self._client.post(TRANSACTIONS, {"client": f"worker {self._id}"}))
        return Tx(self._client, reply.json), self._recorder()

    def _plain(self) -> None:
        topic, sent = self._topic(self._unit), self._sent(0, 1 + self._unit % 3)
        requests = ((topic.name, sent),)
        with recorded(self._shared.enter, self._recorder(), Outcome.OK, requests):
            self._ok(topic.publish(*self._large(sent)))
        self._read_last(topic)

    def _read_last(self, topic: Topic) -> None:
        """Read all rows, and record the last message."""
        recorder = self._recorder()
        last = self._ok(topic.poll({"limit": 500})).json[-1]
        message = (last["id"], last["payload"].partition("|")[0])
        before = f"{int(last['id'], 16) - 1:0{len(BEGINNING)}x}"
        poll = Poll(
            topic=topic.name, view=View.ALL, found=(message,), after=before, until=last["id"],
            at_end=False,
        )  # fmt: skip
        recorder.add(poll)
        self._shared.enter(recorder.ended(Outcome.OK))

    def _published(self) -> None:
        tx, recorder = self._begin()
        here, there = self._topic(self._unit), self._topic(self._unit + 1)
        inline, stored = self._sent(0, 2), self._sent(1, 2)
        end, outcome = {
            3: (tx.abort, Outcome.FAIL),
            4: (tx.invalidate, Outcome.FAIL),
        }.get(self._unit % 5, (tx.commit, Outcome.OK))  # fmt: skip
        requests = ((here.name, inline), (there.name, stored))
        with recorded(self._shared.enter, recorder, outcome, requests, pointer=tx.id):
            self._ok(here.publish(*self._large(inline), tx=tx.id))
            self._ok(there.store(*stored, tx=tx.id))
            self._ok(there.publish(tx=tx.id))
            self._ok(end())
        if self._unit % 7 == 0:
            self._ok(self._client.post(f"{TRANSACTIONS}/snapshot"))

    def _entries(self) -> tuple[Requests, list[dict[str, object]]]:
        requests = ((TOPICS[0], self._sent(0, 2)), (TOPICS[1], self._sent(1, 1)))
        topics = [Topic(self._client, NAMESPACE, name) for name in TOPICS]
        entries = [
            entry(topic, *self._large(sent))
            for topic, (_, sent) in zip(topics, requests, strict=True)
        ]
        return requests, entries

    def _with_commit(self) -> None:
        tx, recorder = self._begin()
        requests, entries = self._entries()
        body = {"publish": entries, "changes": [f"key {self._id}.{self._unit}"]}
        with recorded(self._shared.enter, recorder, Outcome.OK, requests, pointer=tx.id):
            self._ok(tx.commit(**body))

    def _run(self) -> None:
        requests, entries = self._entries()
        body = {"publish": entries, "requestId": f"{self._id}.{self._unit}"}
        with recorded(self._shared.enter, self._recorder(), Outcome.OK, requests, body={}):
            self._ok(self._client.post(f"{TRANSACTIONS}/run", body))


class FailingParticipant(tuff.TransactionAware):
    """A participant after the table, whose commit can fail when the table has stored its rows, so
    that the table has to undo them."""

    name = "unwilling"

    def __init__(self) -> None:
        self.fails_commit = False

    def tx_changes(self, transaction: tuff.Transaction) -> Collection[bytes]:
        return ()

    def commit_tx(self, transaction: tuff.Transaction) -> None:
        if self.fails_commit:
            _fail()

    def rollback_tx(self, transaction: tuff.Transaction) -> None:
        """There is nothing to undo."""


class TableWorker:
    """Puts rows into a table, with a message in the same transaction.

    Some attempts fail while the table has its rows in memory, others when it has stored them. It
    works on until one has committed, and one has aborted after its stored rows were undone: a
    server whose sync failed refuses everything until its recovery, on a busy machine longer than
    all other attempts take. It refuses the abort too, or makes it an invalidation.
    """

    def __init__(self, shared: Shared, *, number: int, first_unit: int, table: Path) -> None:
        self._shared, self._id, self._unit, self._table = shared, number, first_unit, table
        self._failing = FailingParticipant()
        self._has_committed = self._has_undone = False

    def work(self) -> None:
        url = f"http://127.0.0.1:{self._shared.port}"
        with tuff.TransactionalTable(self._table) as table, tuff.Client(url, retries=0) as client:
            while not self._shared.is_over and not self._is_done():
                self._unit += 1
                try:
                    self._put(client, table)
                except tuff.OutcomeUnknownError:
                    continue  # the server may still run
                except tuff.ConnectionLostError:
                    return
                except tuff.TuffError:
                    time.sleep(REFUSED_S)

    def _is_done(self) -> bool:
        is_seen = self._has_committed and self._has_undone
        return is_seen and self._unit % 10_000 >= self._shared.stop

    def _put(self, client: tuff.Client, table: tuff.TransactionalTable) -> None:
        [sent] = payloads(self._id, self._unit, 0, 1)
        rows = [(f"{sent}/{part}", padded(sent, 40 * self._unit % 5000)) for part in range(2)]
        outcome, pointer = Outcome.UNKNOWN, None
        recorder = Recorder(self._id, self._shared.time)
        self._failing.fails_commit = self._unit % 4 == 1
        try:
            with client.transaction(table, self._failing) as tx:
                pointer = str(tx.transaction.transaction_id)
                recorder = Recorder(self._id, self._shared.time)
                for key, value in rows:
                    table.put(key.encode(), value.encode())
                tx.publish(tuff.TopicId(NAMESPACE, TOPICS[0]), sent)
                if self._unit % 4 == 3:
                    _fail()
            outcome = Outcome.OK
            self._has_committed = True
        except ZeroDivisionError:
            outcome = Outcome.FAIL
            if self._failing.fails_commit and pointer is not None:
                state = client.transactions.get(int(pointer)).state
                self._has_undone |= state is TransactionState.ABORTED
        finally:
            if pointer is not None:
                recorder.add(*(Append(key, row_value(key, value)) for key, value in rows))
                requests = ((TOPICS[0], (sent,)),)
                self._shared.enter(recorder.ended(outcome, requests, pointer=pointer))


def _fail() -> None:
    raise ZeroDivisionError


def main(options: Mapping[str, str]) -> None:
    """Work until all units are done or the server is gone."""
    shared = Shared(
        port=int(options["port"]), trace=Path(options["trace"]), history=Path(options["history"]),
        stop=int(options["units"]),
    )  # fmt: skip
    first_unit = 10_000 * int(options["life"])
    workers: list[Worker | TableWorker] = [
        Worker(shared, number=number, first_unit=first_unit) for number in range(4)
    ]
    table = Path(options["table"])
    workers.append(TableWorker(shared, number=4, first_unit=first_unit, table=table))
    threads = [threading.Thread(target=one.work) for one in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
