"""The clients of a server that is killed: what they do, what they enter in the ledger and in the
history, and how they find out afterwards what they were not told."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException

from tests.faults.checker_history import BEGINNING, Attempt, Outcome, Poll, View
from tests.faults.kill_history import noted
from tests.faults.ledger import Fate, Requests, Unit, payloads
from tests.faults.ledger import View as Messages
from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, entry
from tests.http.client import Client, Reply, ok, problem_of
from tuff.protocol.ids import MessageId

TOPICS = ("t0", "t1", "t2")
LOST = (OSError, HTTPException)  # what a client meets when its server dies under it


@dataclass(slots=True)
class Shared:
    """What the threads of one program share. Lists are only appended to; `port` is replaced."""

    port: int
    units: list[Unit] = field(default_factory=list)
    pointers: list[int] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    history: list[Attempt] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


def topic_of(client: Client, name: str) -> Topic:
    return Topic(client, "faults", name)


class Worker:
    """One client: works until its server dies, and enters what it was told in the ledger."""

    def __init__(
        self, shared: Shared, *, number: int, first_unit: int, first_places: Mapping[str, str]
    ) -> None:
        self._shared = shared
        self._client = Client(shared.port, is_checked=False)
        self._id = number
        self._unit = first_unit
        works = (self._plain, self._published, self._with_commit, self._run, self._in_snapshot)
        self._work = works[number % len(works)]
        self._here = TOPICS[number // len(works) % 3]
        self._there = TOPICS[(number // len(works) + 1) % 3]
        self._next = dict(first_places)
        self._began = 0

    def work(self) -> None:
        try:
            while not self._shared.over.is_set() and self._work_once():
                self._unit += 1
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._shared.failures.append(error)
        finally:
            self._client.close()

    def _work_once(self) -> bool:
        self._began = time.monotonic_ns()
        return self._work()

    def _enter(
        self,
        fate: Fate,
        requests: Requests,
        *,
        pointer: str | None = None,
        body: Mapping[str, object] | None = None,
        polls: tuple[Poll, ...] = (),
    ) -> bool:
        """Whether the client still has a server to talk to."""
        is_known = fate in {Fate.SEEN, Fate.HIDDEN}
        unit = Unit(
            client=self._id,
            number=self._unit,
            fate=fate,
            requests=requests,
            pointer=pointer,
            body=body,
            invoked=self._began,
            completed=time.monotonic_ns() if is_known else None,
            polls=polls,
        )
        self._shared.units.append(unit)
        return is_known

    def _sent(self, request: int, count: int) -> tuple[str, ...]:
        return payloads(self._id, self._unit, request, count)

    def _asked(self, call: Callable[[], Reply]) -> Reply | None:
        """The reply, which must be a success; None when the server died first."""
        try:
            reply = call()
        except LOST:
            return None
        return ok(reply)

    def _plain(self) -> bool:
        sent = self._sent(0, 1 + self._unit % 3)
        requests = ((self._here, sent),)
        done = self._asked(lambda: topic_of(self._client, self._here).publish(*sent))
        return self._enter(Fate.MAYBE if done is None else Fate.SEEN, requests)

    def _begin(self) -> Tx | None:
        try:
            tx = begin(self._client, client=f"worker {self._id}")
        except LOST:
            return None
        self._shared.pointers.append(int(tx.id))
        return tx

    def _published(self) -> bool:
        """Publish inline and by reference under a transaction, then end it one way or another."""
        tx = self._begin()
        if tx is None:
            return False
        inline, stored = self._sent(0, 2), self._sent(1, 2)
        here, there = topic_of(self._client, self._here), topic_of(self._client, self._there)
        requests = ((self._here, inline), (self._there, stored))
        ending, fate = (
            (tx.abort, Fate.HIDDEN) if self._unit % 5 == 3
            else (tx.invalidate, Fate.HIDDEN) if self._unit % 5 == 4
            else (tx.commit, Fate.SEEN)
        )  # fmt: skip
        steps: tuple[Callable[[], Reply], ...] = (
            lambda: here.publish(*inline, tx=tx.id),
            lambda: there.store(*stored, tx=tx.id),
            lambda: there.publish(tx=tx.id),
            ending,
        )
        alive = all(self._asked(step) is not None for step in steps)
        # Rows are entered even where not all steps came through: such a transaction never commits.
        return self._enter(fate if alive else Fate.ASK, requests, pointer=tx.id)

    def _entries(self) -> tuple[Requests, list[dict[str, object]]]:
        requests = ((self._here, self._sent(0, 2)), (self._there, self._sent(1, 1)))
        return requests, [entry(topic_of(self._client, name), *sent) for name, sent in requests]

    def _with_commit(self) -> bool:
        tx = self._begin()
        if tx is None:
            return False
        requests, publish = self._entries()
        body = {"publish": publish, "changes": [f"key {self._id}.{self._unit}"]}
        done = self._asked(lambda: tx.commit(**body))
        fate = Fate.ASK if done is None else Fate.SEEN
        return self._enter(fate, requests, pointer=tx.id, body=body)

    def _run(self) -> bool:
        requests, publish = self._entries()
        body = {"publish": publish, "requestId": f"{self._id}.{self._unit}"}
        done = self._asked(lambda: self._client.post(f"{TRANSACTIONS}/run", body))
        if done is None:
            return self._enter(Fate.REPEAT, requests, body=body)
        pointer = done.json["published"][0]["transactionWritePointer"]
        self._shared.pointers.append(int(pointer))
        return self._enter(Fate.SEEN, requests, pointer=pointer)

    def _in_snapshot(self) -> bool:
        """Read two topics twice in one snapshot, held or skipping what is undecided in it, and
        publish with the commit."""
        tx = self._begin()
        if tx is None:
            return False
        body = {"publish": self._entries()[1]}
        polls: list[Poll] = []
        for name in (self._here, self._there, self._here):
            polled = self._polled(name, tx)
            if polled is None:
                return self._enter(Fate.ASK, self._entries()[0], pointer=tx.id, body=body)
            polls.append(polled)
        self._next |= {poll.topic: poll.until for poll in polls}
        done = self._asked(lambda: tx.commit(**body))
        fate = Fate.ASK if done is None else Fate.SEEN
        requests, _ = self._entries()
        return self._enter(fate, requests, pointer=tx.id, body=body, polls=tuple(polls))

    def _polled(self, name: str, tx: Tx) -> Poll | None:
        after = self._next[name]
        body = {"startFrom": after, "inclusive": False}
        undecided, view = ("hold", View.HELD) if self._unit % 2 else ("skip", View.SNAPSHOT)
        # Every third brings its snapshot along, as it was when the transaction started.
        if self._unit % 3:
            query = {"tx": tx.id, "undecided": undecided}
        else:
            body["transaction"] = tx.object["encoded"]
            query = {"undecided": undecided}
        reply = self._asked(lambda: topic_of(self._client, name).poll(body, **query))
        return None if reply is None else noted(name, view, after, reply)


class Follower:
    """A reader that goes on through every crash, from where it was; never handed a smaller id."""

    def __init__(self, shared: Shared, *, isolation: str) -> None:
        self._shared = shared
        self._isolation = isolation
        self._next = dict.fromkeys(TOPICS, "0" * 40)
        self.seen: dict[str, list[tuple[str, str]]] = {name: [] for name in TOPICS}
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
            self._shared.over.wait(0.05)  # until somebody serves again
        finally:
            client.close()

    def _read(self, topic: Topic) -> bool:
        body = {"startFrom": self._next[topic.name], "inclusive": False, "limit": 500}
        invoked = time.monotonic_ns()
        reply = topic.poll(body, isolation=self._isolation, wait=0.02)
        if reply.status == 503:
            raise ConnectionError(problem_of(reply)["detail"])
        ok(reply)
        self._note(topic.name, invoked, reply)
        seen = self.seen[topic.name]
        for message in reply.json:
            assert not seen or message["id"] > seen[-1][0], f"{message} after {seen[-1]}"
            seen.append((message["id"], message["payload"]))
        self._next[topic.name] = str(reply.header("Tuff-Next"))
        return reply.header("Tuff-Caught-Up") == "true"

    def _note(self, name: str, invoked: int, reply: Reply) -> None:
        if reply.json or str(reply.header("Tuff-Next")) != self._next[name]:
            poll = noted(name, View(self._isolation), self._next[name], reply)
            self._shared.history.append(
                Attempt(
                    client=f"reader of {self._isolation}",
                    invoked=invoked,
                    completed=time.monotonic_ns(),
                    outcome=Outcome.OK,
                    actions=(poll,),
                )
            )


def read_all(client: Client, *, isolation: str) -> Messages:
    """All messages of all topics, from the beginning."""
    return read_on(client, isolation=isolation, after=dict.fromkeys(TOPICS, BEGINNING))[0]


def read_on(
    client: Client, *, isolation: str, after: Mapping[str, str]
) -> tuple[dict[str, list[tuple[str, str]]], dict[str, str]]:
    """All messages behind these places, and the places behind them."""
    view: dict[str, list[tuple[str, str]]] = {}
    places = dict(after)
    for name in TOPICS:
        view[name], caught_up = [], False
        while not caught_up:
            body = {"startFrom": places[name], "inclusive": False}
            reply = ok(topic_of(client, name).poll(body, isolation=isolation))
            view[name] += [(message["id"], message["payload"]) for message in reply.json]
            blocked = reply.header("Tuff-Blocked-By")
            assert blocked is None, f"{name} is blocked by {blocked} though all is resolved"
            places[name] = str(reply.header("Tuff-Next"))
            caught_up = reply.header("Tuff-Caught-Up") == "true"
    return view, places


def resolved(client: Client, unit: Unit) -> Unit:
    """The unit with its fate, found out by asking or by repeating (promise 9)."""
    if unit.fate is Fate.REPEAT:
        published = ok(client.post(f"{TRANSACTIONS}/run", unit.body)).json["published"]
        return replace(
            unit,
            fate=Fate.SEEN,
            pointer=published[0]["transactionWritePointer"],
            completed=time.monotonic_ns(),
            ids=tuple(map(_ids, published)),
        )
    if unit.fate is not Fate.ASK:
        return unit
    assert unit.pointer is not None
    tx = Tx(client, {"transactionId": unit.pointer})
    if tx.state() in {"in_progress", "committing"}:
        _end(tx, unit.body)
    state = tx.state()
    assert state in {"committed", "aborted", "invalid"}, f"{unit} is {state}"
    fate = Fate.SEEN if state == "committed" else Fate.HIDDEN
    return replace(unit, fate=fate, completed=time.monotonic_ns())


def _ids(published: Mapping[str, int]) -> tuple[str, str]:
    first = MessageId(published["startTimestamp"], published["startSequenceId"])
    last = MessageId(published["endTimestamp"], published["endSequenceId"])
    return first.hex(), last.hex()


def _end(tx: Tx, body: Mapping[str, object] | None) -> None:
    """Go on with what the lost call may have been; nobody can tell, so either is right."""
    if body is None:
        ok(tx.abort())
    else:
        reply = tx.commit(**body)
        assert reply.status in {200, 409}, reply


def check_outcomes(client: Client, units: list[Unit]) -> None:
    """The outcome of every transaction can be asked, and is what its client was told."""
    states = {Fate.SEEN: {"committed"}, Fate.HIDDEN: {"aborted", "invalid"}}
    for unit in units:
        if unit.pointer is not None:
            state = Tx(client, {"transactionId": unit.pointer}).state()
            assert state in states[unit.fate], f"{unit} is {state}"
