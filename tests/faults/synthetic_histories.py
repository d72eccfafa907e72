"""Histories to test the checker with: those of a model database, and some written by hand.

The model is snapshot isolated, and the checker must pass it. Given a flaw it does one thing wrong,
which the checker must find. One thread plays many clients in turns, so that their transactions
overlap; rows and topics are left for new ones after a while, so that no list grows without bound.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from tests.faults.checker import check
from tests.faults.checker_anomalies import Anomaly
from tests.faults.history import (
    BEGINNING,
    Action,
    Append,
    Attempt,
    Outcome,
    Poll,
    Publish,
    Read,
    View,
)

PLACES = 8  # rows, and topics, in use at a time
ATTEMPTS_PER_PLACE = 25  # attempts after which all of them are left for new ones
MESSAGE_COUNT_MAX = 3  # messages of one publish
LIMITS = (2, 5, 1_000)  # messages of one poll


class Flaw(Enum):
    """One thing that the database does wrong."""

    FORGETS_CONFLICTS = "two writers of one row both commit"
    READS_LATEST = "a transaction reads what committed after it started"
    READS_UNDECIDED = "a snapshot shows what has not ended"
    STARTS_LATE = "a snapshot lacks what was acknowledged before it"
    COMMITS_IN_PART = "a commit forgets the rows after the first"
    HIDES_OWN = "a snapshot lacks what its own transaction published"
    HIDES_PLAIN = "a snapshot lacks what was published since, without a transaction"
    GOES_ON = "a snapshot that is to be held goes on without what is undecided"


@dataclass(slots=True)
class _Message:
    message_id: str
    value: str
    writer: "_Client"
    work: int


@dataclass(slots=True)
class _Client:
    """One client, and the transaction that it is in; `snapshot` None between two."""

    name: str
    work: int = 0
    snapshot: int | None = None
    invoked: int = 0
    actions: list[Action] = field(default_factory=list)
    appended: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


class MadeDatabase:
    """Plays `count` attempts; `history` has those that ended, in the order in which they did."""

    def __init__(self, *, seed: int, clients: int, flaw: Flaw | None = None) -> None:
        self.history: list[Attempt] = []
        self._flaw = flaw
        self._chance = random.Random(seed)
        self._clients = [_Client(f"c{number}") for number in range(clients)]
        self._now = 0
        self._commits = 0
        self._values = 0
        self._rows: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._topics: dict[str, list[_Message]] = defaultdict(list)
        self._committed: dict[tuple[str, int], int] = {}
        self._ended: set[tuple[str, int]] = set()

    def play(self, count: int) -> None:
        while len(self.history) < count:
            client = self._chance.choice(self._clients)
            if client.snapshot is None:
                begin = self._begin if self._chance.random() < 0.8 else self._publish_plain
                begin(client)
            elif len(client.actions) >= 4 or self._chance.random() < 0.2:
                self._end(client)
            else:
                self._act(client)
        for client in self._clients:
            if client.snapshot is not None:
                self._end(client)
        self._read_all()

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _place(self, kind: str) -> str:
        era = len(self.history) // (PLACES * ATTEMPTS_PER_PLACE)
        return f"{kind}{era}.{self._chance.randrange(PLACES)}"

    def _value(self) -> str:
        self._values += 1
        return f"v{self._values}"

    def _begin(self, client: _Client) -> None:
        client.work += 1
        client.invoked = self._tick()
        client.snapshot = self._commits - (2 if self._flaw is Flaw.STARTS_LATE else 0)
        client.actions, client.appended = [], defaultdict(list)

    def _publish_plain(self, client: _Client) -> None:
        """A call without a transaction: there for everybody, whatever its client is told."""
        client.work += 1
        client.invoked, client.actions = self._tick(), []
        work = (client.name, client.work)
        self._ended.add(work)
        self._committed[work] = self._commits if self._flaw is Flaw.HIDES_PLAIN else 0
        self._publish(client, self._place("t"))
        outcome = Outcome.UNKNOWN if self._chance.random() < 0.2 else Outcome.OK
        self._note(client, outcome, is_transaction=False)

    def _act(self, client: _Client) -> None:
        kind = self._chance.randrange(4)
        if kind == 0:
            self._read(client, self._place("r"))
        elif kind == 1:
            row, value = self._place("r"), self._value()
            self._read(client, row)
            client.appended[row].append(value)
            client.actions.append(Append(row, value))
        elif kind == 2:
            self._publish(client, self._place("t"))
        else:
            view, topic = self._chance.choice(list(View)), self._place("t")
            places = [message.message_id for message in self._topics[topic]]
            after = self._chance.choice([BEGINNING, BEGINNING, *places[-9:]])
            limit = self._chance.choice(LIMITS)
            self._poll(client, topic, view, after=after, limit=limit)

    def _read(self, client: _Client, row: str) -> None:
        assert client.snapshot is not None
        up_to = self._commits if self._flaw is Flaw.READS_LATEST else client.snapshot
        values = [value for commit, value in self._rows[row] if commit <= up_to]
        client.actions.append(Read(row, (*values, *client.appended.get(row, ()))))

    def _publish(self, client: _Client, topic: str) -> None:
        invoked = self._tick()
        values = tuple(self._value() for _ in range(self._chance.randint(1, MESSAGE_COUNT_MAX)))
        ids = [f"{self._tick():040x}" for _ in values]
        self._topics[topic] += [
            _Message(message_id, value, client, client.work)
            for message_id, value in zip(ids, values, strict=True)
        ]
        client.actions.append(
            Publish(
                topic=topic,
                values=values,
                invoked=invoked,
                completed=self._tick(),
                ids=(ids[0], ids[-1]),
            )
        )

    def _poll(
        self, client: _Client, topic: str, view: View, *, after: str = BEGINNING, limit: int = 1_000
    ) -> None:
        found: list[tuple[str, str]] = []
        until, at_end = after, True
        for message in self._topics[topic]:
            if message.message_id <= after:
                continue
            work = (message.writer.name, message.work)
            is_shown = self._is_shown(client, view, work)
            if len(found) == limit or (not is_shown and self._is_held(view, work)):
                at_end = False
                break
            until = message.message_id
            if is_shown:
                found.append((message.message_id, message.value))
        client.actions.append(
            Poll(
                topic=topic, view=view, found=tuple(found), after=after, until=until, at_end=at_end
            )
        )

    def _is_shown(self, client: _Client, view: View, work: tuple[str, int]) -> bool:
        commit = self._committed.get(work)
        if view is View.ALL:
            return True
        if view is View.COMMITTED:
            return commit is not None
        assert client.snapshot is not None
        if self._flaw is Flaw.READS_UNDECIDED and work not in self._ended:
            return True
        if work == (client.name, client.work):
            return self._flaw is not Flaw.HIDES_OWN
        return commit is not None and commit <= client.snapshot

    def _is_held(self, view: View, work: tuple[str, int]) -> bool:
        """Whether a reader stops at a message that it is not shown."""
        if view is View.HELD and self._flaw is not Flaw.GOES_ON:
            return work not in self._ended or work in self._committed
        return view is View.COMMITTED and work not in self._ended

    def _end(self, client: _Client) -> None:
        assert client.snapshot is not None
        conflicts = any(
            self._rows[row] and self._rows[row][-1][0] > client.snapshot for row in client.appended
        )
        conflicts = conflicts and self._flaw is not Flaw.FORGETS_CONFLICTS
        outcome = Outcome.FAIL if conflicts or self._chance.random() < 0.1 else Outcome.OK
        work = (client.name, client.work)
        self._ended.add(work)
        if outcome is Outcome.OK:
            self._commits += 1
            self._committed[work] = self._commits
            rows = list(client.appended.items())
            for row, values in rows[:1] if self._flaw is Flaw.COMMITS_IN_PART else rows:
                self._rows[row] += [(self._commits, value) for value in values]
        if self._chance.random() < 0.05:
            outcome = Outcome.UNKNOWN
        self._note(client, outcome)
        client.snapshot = None

    def _read_all(self) -> None:
        """Who comes last is shown everything."""
        last = _Client("last")
        for row in list(self._rows):
            self._begin(last)
            self._read(last, row)
            self._note(last, Outcome.OK)
        for topic in list(self._topics):
            for view in View:
                self._begin(last)
                self._poll(last, topic, view)
                self._note(last, Outcome.OK)

    def _note(self, client: _Client, outcome: Outcome, *, is_transaction: bool = True) -> None:
        self.history.append(
            Attempt(
                client=client.name,
                invoked=client.invoked,
                completed=self._tick(),
                outcome=outcome,
                actions=tuple(client.actions),
                is_transaction=is_transaction,
            )
        )


def made_history(*, seed: int, count: int, clients: int, flaw: Flaw | None = None) -> list[Attempt]:
    """So many attempts of these clients, and the reads of everything at the end."""
    database = MadeDatabase(seed=seed, clients=clients, flaw=flaw)
    database.play(count)
    return database.history


# By hand, in few words.

OK, FAIL, UNKNOWN = Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN


def at(start: int, stop: int | None, *actions: Action, outcome: Outcome = OK) -> Attempt:
    """What somebody did from one time to another."""
    return Attempt(client="c", invoked=start, completed=stop, outcome=outcome, actions=actions)


def plain(start: int, stop: int, *actions: Action, outcome: Outcome = OK) -> Attempt:
    """What somebody did without a transaction."""
    return replace(at(start, stop, *actions, outcome=outcome), is_transaction=False)


def overlapping(*each: Sequence[Action]) -> list[Attempt]:
    """Transactions that were all open at the same time."""
    return [at(0, 100, *actions) for actions in each]


def serial(*each: Sequence[Action]) -> list[Attempt]:
    """Transactions one after the other."""
    return [at(10 * n, 10 * n + 9, *actions) for n, actions in enumerate(each)]


def read(row: str, values: str = "") -> Read:
    return Read(row, tuple(values))


def add(row: str, value: str, base: str = "") -> tuple[Action, ...]:
    """Read the row, and put it back with one more value."""
    return (read(row, base), Append(row, value))


def pub(
    values: str, *, topic: str = "t", ids: tuple[int, int] | None = None, start: int = 0,
    stop: int = 1,
) -> Publish:  # fmt: skip
    told = None if ids is None else (f"{ids[0]:040x}", f"{ids[1]:040x}")
    return Publish(topic=topic, values=tuple(values), invoked=start, completed=stop, ids=told)


def poll(
    found: str, places: Sequence[int] = (), *, view: View = View.SNAPSHOT, topic: str = "t",
    after: int = 0, until: int = 99, at_end: bool = True,
) -> Poll:  # fmt: skip
    """Messages by their values, at these places or at 1, 2, 3 …"""
    ids = [f"{place:040x}" for place in places or range(1, len(found) + 1)]
    return Poll(
        topic=topic, view=view, found=tuple(zip(ids, found, strict=True)),
        after=f"{after:040x}", until=f"{until:040x}", at_end=at_end,
    )  # fmt: skip


def found_in(history: list[Attempt]) -> set[Anomaly]:
    return {one.anomaly for one in check(history)}
