"""Workload: Python clients of a server and of a table, with transactions over rows and topics."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import tuff
from tests.faults.history import (
    BEGINNING,
    Append,
    Attempt,
    Outcome,
    Poll,
    Publish,
    Read,
    Recorder,
    View,
)
from tuff.address import TransportName
from tuff.connectors import PublishEntry
from tuff.protocol.requests import RollbackDetail
from tuff.tables.versioned_table import VersionedTable

NAMESPACE = "mixed"
PLACES = 6  # rows, and topics, in use at a time
ATTEMPTS_PER_ERA = 240  # attempts after which all of them are left for new ones: lists stay short
STEP_COUNT_MAX = 4  # steps of one transaction
MESSAGE_COUNT_MAX = 3  # messages of one publish

UNDECIDED = {View.SNAPSHOT: "skip", View.HELD: "hold", View.COMMITTED: "hold", View.ALL: "hold"}

# The errors of a transaction that never commits. A suspended server lets transactions time out.
REFUSED = (tuff.TransactionConflictError, tuff.errors.TransactionNotInProgressError)


def topic_id(name: str) -> tuff.TopicId:
    return tuff.TopicId(NAMESPACE, name)


@dataclass(slots=True)
class Shared:
    """What all clients share. The lists are only appended to."""

    url: str
    table: VersionedTable
    history: list[Attempt] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    numbers: "count[int]" = field(default_factory=count)

    @property
    def era(self) -> int:
        return len(self.history) // ATTEMPTS_PER_ERA


class MixedClient:
    """One thread's client: plain publishes, transactions over rows and topics, and runs."""

    def __init__(self, shared: Shared, *, number: int, seed: int) -> None:
        self._shared = shared
        self._name = f"client {number}"
        self._chance = random.Random(f"{seed}/{number}")
        transport: TransportName = "http" if number % 2 else "auto"
        self._client = tuff.Client(shared.url, client_id=self._name, transport=transport)
        self._table = shared.table

    def work(self, attempt_count: int) -> None:
        """Make attempts until all clients together have made so many."""
        kinds = (self._plain, self._rows, self._rows, self._pointer, self._run)
        try:
            while len(self._shared.history) < attempt_count and not self._shared.failures:
                self._chance.choice(kinds)()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._shared.failures.append(error)
        finally:
            self._client.close()

    def _place(self, kind: str) -> str:
        return f"{kind}{self._shared.era}.{self._chance.randrange(PLACES)}"

    def _values(self) -> tuple[str, ...]:
        size = self._chance.randint(1, MESSAGE_COUNT_MAX)
        return tuple(f"v{next(self._shared.numbers)}" for _ in range(size))

    def _recorder(self, *, is_transaction: bool = True) -> Recorder:
        return Recorder(self._name, is_transaction=is_transaction)

    def _enter(self, recorder: Recorder, outcome: Outcome) -> None:
        self._shared.history.append(recorder.ended(outcome))

    def _plain(self) -> None:
        recorder = self._recorder(is_transaction=False)
        topic, values = self._place("t"), self._values()
        publish(recorder, topic, values, lambda: self._client.publish(topic_id(topic), *values))
        self._enter(recorder, Outcome.OK)

    def _rows(self) -> None:
        """A transaction of the client's own protocol: rows, reads of topics, messages last."""
        recorder, started = self._recorder(), None
        try:
            with self._client.transaction(self._table) as tx:
                started = tx.transaction
                for _ in range(self._chance.randint(1, STEP_COUNT_MAX)):
                    self._step(tx, recorder)
                is_withdrawn = self._chance.random() < 0.1
                recorder.publishes_from_now()
                if is_withdrawn:
                    tx.abort()
        except REFUSED:
            self._enter(recorder, Outcome.FAIL)
        except tuff.errors.TransactionsUnavailableError:
            self._enter(recorder, Outcome.FAIL if started is None else self._resolved(started))
        else:
            self._enter(recorder, Outcome.FAIL if is_withdrawn else Outcome.OK)

    def _resolved(self, started: tuff.Transaction) -> Outcome:
        """The outcome of a transaction whose commit got `transactions_unavailable`."""
        try:
            self._client.transactions.abort(started)
        except tuff.errors.TransactionCommittedError:
            return Outcome.OK
        return Outcome.FAIL

    def _step(self, tx: tuff.TransactionContext, recorder: Recorder) -> None:
        kind = self._chance.randrange(4)
        if kind == 0:
            read_row(self._table, self._place("r"), recorder)
        elif kind == 1:
            append(self._table, self._place("r"), self._values()[0], recorder)
        elif kind == 2:
            topic, values = self._place("t"), self._values()
            tx.publish(topic_id(topic), *values)
            recorder.will_publish(topic, values)
        else:
            topic, view = self._place("t"), self._chance.choice((View.SNAPSHOT, View.HELD))
            poll_all(
                lambda start: tx.poll(
                    topic_id(topic), start, inclusive=False, undecided=UNDECIDED[view]
                ),
                topic,
                view,
                recorder,
            )

    def _pointer(self) -> None:
        """Publish and store under a transaction before its end, so that others read around the
        rows."""
        recorder, ending = self._recorder(), self._chance.random()
        tx = self._client.transactions.start()
        try:
            self._publish_under(tx, recorder)
            if ending < 0.15:
                self._client.transactions.abort(tx)
            elif ending < 0.3:
                self._client.transactions.invalidate(tx)
            else:
                self._client.transactions.commit(tx)
        except REFUSED:
            self._enter(recorder, Outcome.FAIL)
        except tuff.errors.TransactionsUnavailableError:
            self._enter(recorder, self._resolved(tx))
        else:
            self._enter(recorder, Outcome.FAIL if ending < 0.3 else Outcome.OK)

    def _publish_under(self, tx: tuff.Transaction, recorder: Recorder) -> None:
        here, there = self._place("t"), self._place("t")
        inline, stored = self._values(), self._values()
        publish(
            recorder,
            here,
            inline,
            lambda: self._client.publish(topic_id(here), *inline, transaction=tx),
        )
        self._client.store(topic_id(there), *stored, transaction=tx)
        view = self._chance.choice((View.SNAPSHOT, View.HELD))
        read_topic(self._client, here, view, recorder, transaction=tx)
        publish(
            recorder,
            there,
            stored,
            lambda: self._client.publish_stored(topic_id(there), transaction=tx),
        )

    def _run(self) -> None:
        recorder = self._recorder()
        both = [(self._place("t"), self._values()), (self._place("t"), self._values())]
        for topic, values in both:
            recorder.will_publish(topic, values)
        recorder.publishes_from_now()
        entries = [
            PublishEntry(topic=topic_id(topic), payloads=[value.encode() for value in values])
            for topic, values in both
        ]
        try:
            self._client.transactions.run(entries)
        except REFUSED:
            self._enter(recorder, Outcome.FAIL)
        else:
            self._enter(recorder, Outcome.OK)


class Follower:
    """A reader that follows the topics in use, in one view."""

    def __init__(self, shared: Shared, *, view: View) -> None:
        self._shared = shared
        self._view = view
        self._client = tuff.Client(shared.url, client_id=f"reader of {view.value}")
        self._next: dict[str, str] = {}

    def follow(self, attempt_count: int) -> None:
        try:
            while len(self._shared.history) < attempt_count and not self._shared.failures:
                era = self._shared.era
                for number in range(PLACES):
                    self._read(f"t{era}.{number}")
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._shared.failures.append(error)
        finally:
            self._client.close()

    def _read(self, topic: str) -> None:
        recorder = Recorder(f"reader of {self._view.value}")
        after = self._next.get(topic, BEGINNING)
        found = self._client.poll(
            topic_id(topic),
            after,
            inclusive=False,
            limit=20,
            isolation=self._view.value,
            wait=0.02,
        )
        self._next[topic] = found.next_id.hex()
        if found or found.caught_up or self._next[topic] != after:
            recorder.add(poll_of(topic, self._view, after, [found]))
            self._shared.history.append(recorder.ended(Outcome.OK))


def publish(
    recorder: Recorder,
    topic: str,
    values: tuple[str, ...],
    call: Callable[[], tuff.Published | RollbackDetail],
) -> None:
    """Make the call, and record it with its times and ids."""
    invoked = time.monotonic_ns()
    answered = call()
    completed = time.monotonic_ns()
    if isinstance(answered, RollbackDetail):
        first, last = tuff.MessageId(*answered.first), tuff.MessageId(*answered.last)
    else:
        first, last = answered.ids[0], answered.ids[-1]
    recorder.add(
        Publish(
            topic=topic,
            values=values,
            invoked=invoked,
            completed=completed,
            ids=(first.hex(), last.hex()),
        )
    )


def read_row(table: VersionedTable, row: str, recorder: Recorder) -> tuple[str, ...]:
    """The list of a row, in the current transaction."""
    value = table.get(row.encode())
    values = () if value is None else tuple(value.decode().split(","))
    recorder.add(Read(row, values))
    return values


def append(table: VersionedTable, row: str, value: str, recorder: Recorder) -> None:
    """Read the list of a row, and put it back with one value more."""
    values = read_row(table, row, recorder)
    table.put(row.encode(), ",".join((*values, value)).encode())
    recorder.add(Append(row, value))


def poll_all(poll: Callable[[str], tuff.Poll], topic: str, view: View, recorder: Recorder) -> None:
    """A whole topic, in as many polls as it takes, or up to an undecided row."""
    found = [poll(BEGINNING)]
    while not found[-1].caught_up and found[-1].blocked_by is None:
        found.append(poll(found[-1].next_id.hex()))
        # A row that was undecided at the snapshot holds this reader for good.
        if view is View.HELD and not found[-1]:
            break
    recorder.add(poll_of(topic, view, BEGINNING, found))


def read_topic(
    client: tuff.Client,
    topic: str,
    view: View,
    recorder: Recorder,
    *,
    transaction: tuff.Transaction | None = None,
) -> None:
    """A whole topic as the view shows it; `transaction` is for a snapshot."""
    isolation = None if transaction is not None else view.value
    poll_all(
        lambda start: client.poll(
            topic_id(topic),
            start,
            inclusive=False,
            transaction=transaction,
            isolation=isolation,
            undecided=UNDECIDED[view],
        ),
        topic,
        view,
        recorder,
    )


def poll_of(topic: str, view: View, after: str, found: Sequence[tuff.Poll]) -> Poll:
    """A poll of the history, from one poll or from several consecutive ones."""
    return Poll(
        topic=topic,
        view=view,
        found=tuple(
            (message.id.hex(), message.payload.decode()) for each in found for message in each
        ),
        after=after,
        until=found[-1].next_id.hex(),
        at_end=found[-1].caught_up,
    )
