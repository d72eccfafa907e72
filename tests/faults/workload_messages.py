"""Workload: clients over raw HTTP of a server that may be killed at any time.

They publish with and without transactions, and record each attempt with its reply. Afterwards
unknown outcomes are resolved: by asking for the outcome, or by repeating the request.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPException

from tests.faults.checker import violations
from tests.faults.checker_anomalies import report
from tests.faults.history import (
    BEGINNING,
    Attempt,
    Outcome,
    Poll,
    Publish,
    Recorder,
    Requests,
    View,
    payloads,
    recorded,
)
from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, entry
from tests.http.client import Client, Reply, ok, problem_of
from tuff.protocol.ids import MessageId

TOPICS = ("t0", "t1", "t2")
VIEWS = (View.COMMITTED, View.ALL)  # of readers outside of transactions
LOST = (OSError, HTTPException)  # the errors of a client whose server dies
OK, FAIL, UNKNOWN = Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN


@dataclass(slots=True)
class Shared:
    """What the threads of one program share. Lists are only appended to; `port` is replaced.

    `attempts` are those of the workers, some of them UNKNOWN; `history` is for the checker.
    """

    port: int
    attempts: list[Attempt] = field(default_factory=list)
    pointers: list[int] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    history: list[Attempt] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def raise_failures(self) -> None:
        """Raises: the first exception of a thread, if there was one."""
        if self.failures:
            raise self.failures[0]


def topic_of(client: Client, name: str) -> Topic:
    return Topic(client, "faults", name)


def create_topics(client: Client) -> None:
    for name in TOPICS:
        ok(topic_of(client, name).create())


def entries_of(client: Client, requests: Requests) -> list[dict[str, object]]:
    """The `publish` member of a commit or of a run."""
    return [entry(topic_of(client, name), *sent) for name, sent in requests]


class Worker:
    """One client: works until its server dies, and records each attempt."""

    def __init__(
        self, shared: Shared, *, number: int, first_unit: int, first_places: Mapping[str, str]
    ) -> None:
        self._shared = shared
        self._client = Client(shared.port, is_checked=False)
        self._id = number
        self._unit = first_unit
        works = (self._plain, self._published, self._with_commit, self._run, self._in_snapshot)
        self._work = works[number % len(works)]
        here = number // len(works) % len(TOPICS)
        self._here, self._there = TOPICS[here], TOPICS[(here + 1) % len(TOPICS)]
        self._next = dict(first_places)

    def work(self) -> None:
        try:
            while not self._shared.over.is_set():
                self._work()
                self._unit += 1
        except LOST:
            pass  # the attempt is recorded as UNKNOWN
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._shared.failures.append(error)
        finally:
            self._client.close()

    def _values(self, request: int, count: int) -> tuple[str, ...]:
        return payloads(self._id, self._unit, request, count)

    def _begin(self) -> Tx:
        tx = begin(self._client, client=f"worker {self._id}")
        self._shared.pointers.append(int(tx.id))
        return tx

    def _entries(self) -> tuple[Requests, list[dict[str, object]]]:
        requests = ((self._here, self._values(0, 2)), (self._there, self._values(1, 1)))
        return requests, entries_of(self._client, requests)

    def _plain(self) -> None:
        values = self._values(0, 1 + self._unit % 3)
        with recorded(
            self._shared.attempts.append, Recorder(self._id), OK, ((self._here, values),)
        ):
            ok(topic_of(self._client, self._here).publish(*values))

    def _published(self) -> None:
        """Publish messages and a reference under a transaction, which then ends in some way."""
        recorder, tx = Recorder(self._id), self._begin()
        inline, stored = self._values(0, 2), self._values(1, 2)
        here, there = topic_of(self._client, self._here), topic_of(self._client, self._there)
        requests = ((self._here, inline), (self._there, stored))
        end, outcome = {3: (tx.abort, FAIL), 4: (tx.invalidate, FAIL)}.get(
            self._unit % 5, (tx.commit, OK)
        )
        with recorded(self._shared.attempts.append, recorder, outcome, requests, pointer=tx.id):
            ok(here.publish(*inline, tx=tx.id))
            ok(there.store(*stored, tx=tx.id))
            ok(there.publish(tx=tx.id))
            ok(end())

    def _with_commit(self) -> None:
        recorder, tx = Recorder(self._id), self._begin()
        requests, publish = self._entries()
        body = {"publish": publish, "changes": [f"key {self._id}.{self._unit}"]}
        add = self._shared.attempts.append
        with recorded(add, recorder, OK, requests, pointer=tx.id, body=body):
            ok(tx.commit(**body))

    def _run(self) -> None:
        recorder = Recorder(self._id)
        requests, publish = self._entries()
        body = {"publish": publish, "requestId": f"{self._id}.{self._unit}"}
        try:
            reply = ok(self._client.post(f"{TRANSACTIONS}/run", body))
        except LOST:
            self._shared.attempts.append(recorder.ended(UNKNOWN, requests, body=body))
            raise
        pointer = reply.json["published"][0]["transactionWritePointer"]
        self._shared.pointers.append(int(pointer))
        self._shared.attempts.append(recorder.ended(OK, requests, pointer=pointer))

    def _in_snapshot(self) -> None:
        """Read two topics in one snapshot, one of them twice, and publish with the commit."""
        recorder, tx = Recorder(self._id), self._begin()
        requests, publish = self._entries()
        body = {"publish": publish}
        add, reached = self._shared.attempts.append, dict[str, str]()
        with recorded(add, recorder, OK, requests, pointer=tx.id, body=body):
            for name in (self._here, self._there, self._here):
                poll = self._poll(name, tx)
                recorder.add(poll)
                reached[name] = poll.until
            ok(tx.commit(**body))
        self._next |= reached

    def _poll(self, name: str, tx: Tx) -> Poll:
        after = self._next[name]
        body = {"startFrom": after, "inclusive": False}
        undecided, view = ("hold", View.HELD) if self._unit % 2 else ("skip", View.SNAPSHOT)
        # Every third poll names no transaction, but sends the snapshot of its start.
        if self._unit % 3:
            query = {"tx": tx.id, "undecided": undecided}
        else:
            body["transaction"] = tx.object["encoded"]
            query = {"undecided": undecided}
        reply = ok(topic_of(self._client, name).poll(body, **query))
        return poll_of(name, view, after, reply)


class Follower:
    """A reader that continues after every crash where it was, and records what it reads."""

    def __init__(self, shared: Shared, view: View) -> None:
        self._shared = shared
        self._view = view
        self._next = dict.fromkeys(TOPICS, BEGINNING)
        self.caught_up = threading.Event()

    def follow(self) -> None:
        try:
            while not self._shared.over.is_set():
                self._session(Client(self._shared.port, is_checked=False))
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._shared.failures.append(error)

    def _session(self, client: Client) -> None:
        try:
            while not self._shared.over.is_set():
                at_end = [self._read(topic_of(client, name)) for name in TOPICS]
                if all(at_end):
                    self.caught_up.set()
        except LOST:
            self._shared.over.wait(0.05)  # until a server runs again
        finally:
            client.close()

    def _read(self, topic: Topic) -> bool:
        body = {"startFrom": self._next[topic.name], "inclusive": False, "limit": 500}
        recorder = Recorder(f"reader of {self._view.value}")
        reply = topic.poll(body, isolation=self._view.value, wait=0.02)
        if reply.status == 503:
            raise ConnectionError(problem_of(reply)["detail"])
        poll = poll_of(topic.name, self._view, self._next[topic.name], ok(reply))
        if poll.found or poll.until != poll.after:
            recorder.add(poll)
            self._shared.history.append(recorder.ended(OK))
        self._next[topic.name] = poll.until
        return poll.at_end


def poll_of(topic: str, view: View, after: str, *replies: Reply) -> Poll:
    """A poll of the history, from one reply or from several consecutive ones."""
    return Poll(
        topic=topic,
        view=view,
        found=tuple((each["id"], each["payload"]) for reply in replies for each in reply.json),
        after=after,
        until=str(replies[-1].header("Tuff-Next")),
        at_end=replies[-1].header("Tuff-Caught-Up") == "true",
    )


def read_all(client: Client, view: View, *, after: Mapping[str, str] | None = None) -> Attempt:
    """A reader of all topics, from these offsets or from the beginning, to the end.

    Raises: AssertionError: a transaction blocks it, though all are resolved.
    """
    recorder = Recorder(f"last reader of {view.value}")
    for name in TOPICS:
        start = BEGINNING if after is None else after[name]
        recorder.add(read_topic(topic_of(client, name), view, after=start))
    return recorder.ended(OK)


def read_topic(topic: Topic, view: View, *, after: str = BEGINNING) -> Poll:
    """All messages after an offset, in as many polls as it takes.

    Raises: AssertionError: a transaction blocks it.
    """
    replies: list[Reply] = []
    while not replies or replies[-1].header("Tuff-Caught-Up") != "true":
        place = replies[-1].header("Tuff-Next") if replies else after
        body = {"startFrom": place, "inclusive": False}
        replies.append(ok(topic.poll(body, isolation=view.value)))
        blocked = replies[-1].header("Tuff-Blocked-By")
        assert blocked is None, f"{topic.name} is blocked by {blocked} though all is resolved"
    return poll_of(topic.name, view, after, *replies)


def resolved(client: Client, attempt: Attempt) -> Attempt:
    """The attempt with its outcome, after asking for it or repeating it (promise 9).

    Only a publish without a transaction stays UNKNOWN.
    """
    if attempt.outcome is not UNKNOWN or not attempt.is_transaction:
        return attempt
    if attempt.pointer is None:
        published = ok(client.post(f"{TRANSACTIONS}/run", attempt.body)).json["published"]
        ids = tuple(map(_ids, published))
        found = attempt.ended(OK, completed=time.monotonic_ns(), ids=ids)
        return replace(found, pointer=published[0]["transactionWritePointer"])
    tx = Tx(client, {"transactionId": attempt.pointer})
    if tx.state() in {"in_progress", "committing"}:
        _end(tx, attempt.body)
    state = tx.state()
    assert state in {"committed", "aborted", "invalid"}, f"{attempt} is {state}"
    outcome = OK if state == "committed" else FAIL
    return attempt.ended(outcome, completed=time.monotonic_ns())


def _ids(published: Mapping[str, int]) -> tuple[str, str]:
    first = MessageId(published["startTimestamp"], published["startSequenceId"])
    last = MessageId(published["endTimestamp"], published["endSequenceId"])
    return first.hex(), last.hex()


def _end(tx: Tx, body: Mapping[str, object] | None) -> None:
    """Repeat the commit whose reply was lost, or abort; both are correct."""
    if body is None:
        ok(tx.abort())
    else:
        reply = tx.commit(**body)
        assert reply.status in {200, 409}, reply


def check_outcomes(client: Client, attempts: Sequence[Attempt]) -> None:
    """The outcome of every transaction is known, and is that of the reply to its client."""
    states = {OK: {"committed"}, FAIL: {"aborted", "invalid"}}
    for attempt in attempts:
        if attempt.pointer is not None:
            state = Tx(client, {"transactionId": attempt.pointer}).state()
            assert state in states[attempt.outcome], f"{attempt} is {state}"


class Accounts:
    """Accounts for the attempts of clients on a server that may have been killed under them.

    `places` are the offsets after which a reader of each view continues, by topic.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.places = {view: dict.fromkeys(TOPICS, BEGINNING) for view in VIEWS}

    def add(self, client: Client, attempts: Sequence[Attempt]) -> None:
        """Resolve the attempts, read everything that was written since the last call, and add both
        to the history."""
        known = [resolved(client, attempt) for attempt in attempts]
        check_outcomes(client, known)
        self._shared.history += known
        for view, places in self.places.items():
            found = read_all(client, view, after=places)
            self._shared.history.append(found)
            polls = (action for action in found.actions if isinstance(action, Poll))
            places |= {poll.topic: poll.until for poll in polls}


def require_no_violation(history: Sequence[Attempt]) -> None:
    """Raises: AssertionError: the checker finds a violation."""
    found = violations(without_lost_copies(history))
    assert not found, report(found)


def without_lost_copies(history: Sequence[Attempt]) -> list[Attempt]:
    """The history with unique values.

    After a crash during a run, a reader of all rows gets its rows twice: those of the transaction
    that the crash made invalid, and those of the repeated run. The first ones are renamed.
    """
    ids_of = {
        (publish.topic, value): publish.ids
        for attempt in history if attempt.body is not None and "requestId" in attempt.body
        for publish in attempt.publishes if publish.ids is not None
        for value in publish.values
    }  # fmt: skip
    lost: dict[str, list[str]] = {}

    def renamed(topic: str, message_id: str, value: str) -> tuple[str, str]:
        first, last = ids_of.get((topic, value), ("", "~"))
        if first <= message_id <= last:
            return message_id, value
        copy = f"{value} of an interrupted run"
        if copy not in lost.setdefault(topic, []):
            lost[topic].append(copy)
        return message_id, copy

    def cleaned(attempt: Attempt) -> Attempt:
        polls = tuple(
            replace(one, found=tuple(renamed(one.topic, *each) for each in one.found))
            if isinstance(one, Poll) and one.view is View.ALL
            else one
            for one in attempt.actions
        )
        return replace(attempt, actions=polls)

    whole = [cleaned(attempt) for attempt in history]
    return [
        *whole,
        *(_interrupted(topic, copy) for topic, copies in lost.items() for copy in copies),
    ]


def _interrupted(topic: str, copy: str) -> Attempt:
    return Attempt(
        client="interrupted",
        invoked=0,
        completed=None,
        outcome=FAIL,
        actions=(Publish(topic=topic, values=(copy,), invoked=0),),
    )
