"""Histories: what clients did, with the replies that they got.

Every workload records one, the checker judges it, and a file has one attempt per line.

A *row* holds a list. A client appends by reading it, adding a value and writing it back, so two
writers conflict. Publishes to a *topic* never conflict. Each value is written once in a history, so
a read of a value identifies its writer.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

BEGINNING = "0" * 40  # a message id before all others


class Outcome(Enum):
    """The outcome of an attempt. UNKNOWN: no reply came, and the outcome can't be asked for."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class View(Enum):
    """How a topic was read.

    SNAPSHOT skips rows that are undecided in the transaction's snapshot, HELD stops at the first of
    them. COMMITTED uses a fresh snapshot and stops likewise. ALL has every row.
    """

    SNAPSHOT = "snapshot"
    HELD = "held"
    COMMITTED = "committed"
    ALL = "all"

    @property
    def is_fixed(self) -> bool:
        """Whether it is the snapshot of the reading transaction, with its own messages."""
        return self in {View.SNAPSHOT, View.HELD}


@dataclass(frozen=True, slots=True)
class Append:
    """A value appended to a row's list."""

    row: str
    value: str


@dataclass(frozen=True, slots=True)
class Read:
    """A row's list, as a transaction read it."""

    row: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Values that one call published. `completed` is None without a reply; `ids` are those of its
    first and last row, if a reply had them."""

    topic: str
    values: tuple[str, ...]
    invoked: int
    completed: int | None = None
    ids: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """Everything after `after` up to `until` (Tuff-Next), as (message id, value). `at_end`: nothing
    was after `until` (Tuff-Caught-Up)."""

    topic: str
    view: View
    found: tuple[tuple[str, str], ...]
    after: str = BEGINNING
    until: str
    at_end: bool


Action = Append | Read | Publish | Poll


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One transaction, or one call without a transaction, with its actions in order.

    All times are of one clock, in any unit; a snapshot is not older than `invoked`. Messages of a
    call without a transaction are visible in every snapshot at once (protocol §6).

    An UNKNOWN outcome is asked for by `pointer`, the write pointer as text. A run without a pointer
    is repeated with its `body`.
    """

    client: str
    invoked: int
    completed: int | None
    outcome: Outcome
    actions: tuple[Action, ...]
    is_transaction: bool = True
    pointer: str | None = None
    body: Mapping[str, object] | None = None

    @property
    def publishes(self) -> list[Publish]:
        return [action for action in self.actions if isinstance(action, Publish)]

    def ended(
        self,
        outcome: Outcome,
        *,
        completed: int | None,
        ids: Sequence[tuple[str, str] | None] = (),
    ) -> "Attempt":
        """The attempt with the outcome that was found later, and the `ids` of its publishes."""
        places = iter(ids)
        actions = tuple(
            replace(each, completed=completed, ids=next(places, each.ids))
            if isinstance(each, Publish)
            else each
            for each in self.actions
        )
        return replace(self, outcome=outcome, completed=completed, actions=actions)


# Each publish of an attempt: its topic and its payloads.
Requests = tuple[tuple[str, tuple[str, ...]], ...]


def payloads(client: int, number: int, request: int, count: int) -> tuple[str, ...]:
    """Payloads that name their writer: the client, the attempt, the request in it, and the part."""
    return tuple(f"{client}.{number}.{request}.{part}" for part in range(count))


class Recorder:
    """Records an attempt that begins now, by the history's `clock`.

    `is_transaction` None: it is a transaction if it has a pointer or a body.
    """

    def __init__(
        self,
        client: object,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        is_transaction: bool | None = None,
    ) -> None:
        self._client = str(client)
        self._clock = clock
        self._is_transaction = is_transaction
        self._invoked = self._publishing = clock()
        self._actions: list[Action] = []
        self._requests: list[tuple[str, tuple[str, ...]]] = []

    def add(self, *actions: Action) -> None:
        self._actions += actions

    def will_publish(self, topic: str, values: tuple[str, ...]) -> None:
        """Its commit is going to publish these values."""
        self._requests.append((topic, values))

    def publishes_from_now(self) -> None:
        """The messages of its commit do not exist before now."""
        self._publishing = self._clock()

    def ended(
        self,
        outcome: Outcome,
        requests: Requests = (),
        *,
        pointer: str | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Attempt:
        """The attempt, which ended now, with its actions and a publish for each of the requests."""
        completed = None if outcome is Outcome.UNKNOWN else self._clock()
        publishes = (
            Publish(topic=topic, values=sent, invoked=self._publishing, completed=completed)
            for topic, sent in (*self._requests, *requests)
        )
        is_transaction = self._is_transaction
        if is_transaction is None:
            is_transaction = pointer is not None or body is not None
        return Attempt(
            client=self._client,
            invoked=self._invoked,
            completed=completed,
            outcome=outcome,
            actions=(*self._actions, *publishes),
            is_transaction=is_transaction,
            pointer=pointer,
            body=body,
        )


@contextmanager
def recorded(
    add: Callable[[Attempt], None],
    recorder: Recorder,
    outcome: Outcome,
    requests: Requests = (),
    *,
    pointer: str | None = None,
    body: Mapping[str, object] | None = None,
) -> Iterator[None]:
    """Add the attempt that the block makes: UNKNOWN if an exception ends it."""
    found = Outcome.UNKNOWN
    try:
        yield
        found = outcome
    finally:
        add(recorder.ended(found, requests, pointer=pointer, body=body))


History = Sequence[Attempt]

_KINDS: dict[str, type[Append | Read | Publish | Poll]] = {
    kind.__name__: kind for kind in (Append, Read, Publish, Poll)
}


def save(path: Path, history: Iterable[Attempt]) -> None:
    """Write one attempt per line, as JSON."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(map(line_of, history))


def line_of(attempt: Attempt) -> str:
    """One line of a file."""
    actions = [{"kind": type(one).__name__, **asdict(one)} for one in attempt.actions]
    members = {**asdict(attempt), "outcome": attempt.outcome.value, "actions": actions}
    return json.dumps(members, default=lambda one: one.value) + "\n"


def load(path: Path) -> list[Attempt]:
    """The history that `save` wrote."""
    with path.open(encoding="utf-8") as file:
        return list(_attempts(file))


def _attempts(lines: Iterable[str]) -> Iterator[Attempt]:
    for line in lines:
        body = json.loads(line)
        body["outcome"] = Outcome(body["outcome"])
        body["actions"] = tuple(map(_action, body["actions"]))
        yield Attempt(**body)


def _action(body: dict[str, object]) -> Action:
    kind = _KINDS[str(body.pop("kind"))]
    members = {name: _frozen(value) for name, value in body.items()}
    if "view" in members:
        members["view"] = View(members["view"])
    return kind(**members)  # type: ignore[arg-type]  # a file of our own: what save wrote


def _frozen(value: object) -> object:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
