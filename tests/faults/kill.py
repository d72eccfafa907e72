"""`kill -9` of a real server under load: sixteen clients, two readers that never stop, a ledger.

Each round loads the server, kills it without warning, starts one on what it left, resolves every
doubt by asking, and compares what readers find with what clients were told (promises 1 to 5, 9).
"""

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path

from tests.faults.ledger import Fate, Requests, Unit, View, check_committed, check_prefix, payloads
from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, entry
from tests.http.client import Client, Reply, ok, refused, until
from tests.http.process import ServerProcess, serve

TOPICS = ("t0", "t1", "t2")
CLIENT_COUNT = 16
LOAD_WITHIN_S = 60.0
LOST = (OSError, HTTPException)  # what a client meets when its server dies under it


@dataclass(slots=True)
class Shared:
    """What the threads of one program share. Lists are only appended to; `port` is replaced."""

    port: int
    units: list[Unit] = field(default_factory=list)
    pointers: list[int] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


def topic_of(client: Client, name: str) -> Topic:
    return Topic(client, "faults", name)


class Worker:
    """One client: works until its server dies, and enters what it was told in the ledger."""

    def __init__(self, shared: Shared, *, number: int, first_unit: int) -> None:
        self._shared = shared
        self._client = Client(shared.port)
        self._id = number
        self._unit = first_unit
        self._work = (self._plain, self._published, self._with_commit, self._run)[number % 4]
        self._here = TOPICS[number // 4 % 3]
        self._there = TOPICS[(number // 4 + 1) % 3]

    def work(self) -> None:
        try:
            while not self._shared.over.is_set() and self._work():
                self._unit += 1
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._shared.failures.append(error)
        finally:
            self._client.close()

    def _enter(
        self,
        fate: Fate,
        requests: Requests,
        *,
        pointer: str | None = None,
        body: Mapping[str, object] | None = None,
    ) -> bool:
        """Whether the client still has a server to talk to."""
        unit = Unit(
            client=self._id,
            number=self._unit,
            fate=fate,
            requests=requests,
            pointer=pointer,
            body=body,
        )
        self._shared.units.append(unit)
        return fate in {Fate.SEEN, Fate.HIDDEN}

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
                self._session(Client(self._shared.port))
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
        reply = topic.poll(body, isolation=self._isolation, wait=0.02)
        if reply.status == 503:
            raise ConnectionError(refused(reply, 503, "shutting_down")["detail"])
        ok(reply)
        seen = self.seen[topic.name]
        for message in reply.json:
            assert not seen or message["id"] > seen[-1][0], f"{message} after {seen[-1]}"
            seen.append((message["id"], message["payload"]))
        self._next[topic.name] = str(reply.header("Tuff-Next"))
        return reply.header("Tuff-Caught-Up") == "true"


def read_all(client: Client, *, isolation: str) -> View:
    """All messages of all topics, from the beginning."""
    view: dict[str, list[tuple[str, str]]] = {}
    for name in TOPICS:
        found: list[tuple[str, str]] = []
        start, caught_up = "0" * 40, False
        while not caught_up:
            body = {"startFrom": start, "inclusive": False}
            reply = ok(topic_of(client, name).poll(body, isolation=isolation))
            found += [(message["id"], message["payload"]) for message in reply.json]
            blocked = reply.header("Tuff-Blocked-By")
            assert blocked is None, f"{name} is blocked by {blocked} though all is resolved"
            start, caught_up = (
                str(reply.header("Tuff-Next")),
                (reply.header("Tuff-Caught-Up") == "true"),
            )
        view[name] = found
    return view


def resolved(client: Client, unit: Unit) -> Unit:
    """The unit with its fate, found out by asking or by repeating (promise 9)."""
    if unit.fate is Fate.REPEAT:
        ok(client.post(f"{TRANSACTIONS}/run", unit.body))
        return replace(unit, fate=Fate.SEEN)
    if unit.fate is not Fate.ASK:
        return unit
    assert unit.pointer is not None
    tx = Tx(client, {"transactionId": unit.pointer})
    if tx.state() in {"in_progress", "committing"}:
        _end(tx, unit.body)
    state = tx.state()
    assert state in {"committed", "aborted", "invalid"}, f"{unit} is {state}"
    return replace(unit, fate=Fate.SEEN if state == "committed" else Fate.HIDDEN)


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


class KillProgram:
    """Rounds of load and SIGKILL on one data directory."""

    def __init__(self, home: Path, *, seed: int) -> None:
        self._home = home
        self._random = random.Random(seed)
        self._server = serve(home)
        self._shared = Shared(port=self._server.port)
        self._followers = [Follower(self._shared, isolation=name) for name in ("committed", "all")]
        self._threads = [threading.Thread(target=one.follow) for one in self._followers]
        self._views: dict[str, View] = {"committed": {}, "all": {}}
        self._units: list[Unit] = []
        client = self._server.client()
        for name in TOPICS:
            ok(topic_of(client, name).create())
        client.close()

    def run(self, rounds: int) -> int:
        """How many units of work were accounted for."""
        for thread in self._threads:
            thread.start()
        try:
            for number in range(rounds):
                self._load(number)
                self._restart(ServerProcess.kill)
                self._account()
            self._restart(_terminate)
            self._account()
            self._compare_followers()
        finally:
            self._shared.over.set()
            for thread in self._threads:
                thread.join()
            self._server.end()
        self._raise_failures()
        return len(self._units)

    def _load(self, number: int) -> None:
        """All clients at work until so many units are done, then SIGKILL in the middle of it."""
        first_unit = 1_000_000 * number
        workers = [
            Worker(self._shared, number=each, first_unit=first_unit) for each in range(CLIENT_COUNT)
        ]
        threads = [threading.Thread(target=one.work) for one in workers]
        enough = len(self._shared.units) + self._random.randint(150, 500)
        for thread in threads:
            thread.start()
        until(
            lambda: len(self._shared.units) >= enough or self._shared.failures,
            within_s=LOAD_WITHIN_S,
            what="the load to get going",
        )
        self._server.kill()
        for thread in threads:
            thread.join()
        self._raise_failures()

    def _restart(self, end: Callable[[ServerProcess], object]) -> None:
        end(self._server)
        assert "Traceback" not in self._server.stderr(), self._server.stderr()
        self._server = serve(self._home)
        self._shared.port = self._server.port

    def _account(self) -> None:
        client = self._server.client()
        new = [resolved(client, unit) for unit in self._shared.units]
        self._shared.units.clear()
        self._units += new
        check_outcomes(client, new)
        self._check_pointers(client)
        for isolation, before in self._views.items():
            view = read_all(client, isolation=isolation)
            check_prefix(before, view)
            self._views[isolation] = view
        check_committed(self._units, self._views["committed"])
        client.close()

    def _check_pointers(self, client: Client) -> None:
        pointers = self._shared.pointers
        assert len(set(pointers)) == len(pointers), "a pointer was given out twice"
        tx = begin(client)
        assert int(tx.id) > max(pointers, default=0), "a pointer went back"
        pointers.append(int(tx.id))
        ok(tx.abort())

    def _compare_followers(self) -> None:
        for follower in self._followers:
            follower.caught_up.clear()
        for follower in self._followers:
            assert follower.caught_up.wait(30) or self._shared.failures, "a reader got stuck"
        self._raise_failures()
        for follower, isolation in zip(self._followers, ("committed", "all"), strict=True):
            check_prefix(follower.seen, self._views[isolation])
            check_prefix(self._views[isolation], follower.seen)

    def _raise_failures(self) -> None:
        if self._shared.failures:
            raise self._shared.failures[0]


def _terminate(server: ServerProcess) -> None:
    assert server.terminate() == 0
