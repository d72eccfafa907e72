"""Correct histories, manipulated in one place: the checker must find each manipulation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.faults.checker import violations
from tests.faults.checker_anomalies import Anomaly
from tests.faults.history import Action, Append, Attempt, Outcome, Poll, Publish, Read, View
from tests.faults.synthetic_histories import synthetic_history

KINDS = ("drop", "drop_own", "stale", "swap", "repeat", "move")


@dataclass(frozen=True, slots=True)
class Spot:
    """An action of a history: of which attempt, and which of its actions."""

    attempt: int
    action: int


def spots(history: list[Attempt]) -> dict[str, list[Spot]]:
    """The actions that can be manipulated so that the checker must find it, by kind."""
    found: dict[str, list[Spot]] = {kind: [] for kind in KINDS}
    uncertain, plain = _uncertain(history), _plain(history)
    for number, attempt in enumerate(history):
        own = {value for action in attempt.actions for value in _written(action)}
        for index, action in enumerate(attempt.actions):
            for kind in _kinds(attempt, action, uncertain, required=own | plain):
                found[kind].append(Spot(number, index))
    return found


def _kinds(
    attempt: Attempt, action: Action, uncertain: set[str], *, required: set[str]
) -> Iterator[str]:
    values = _shown(action)
    if not values:
        return
    yield "move"
    is_last_read = isinstance(action, Read) and attempt.client == "last"
    if not is_last_read and not isinstance(action, Poll):
        return
    yield "repeat"
    if len(values) > 1:
        yield "swap"
    # A value that may have been rolled back may be in one read only.
    if uncertain.isdisjoint(values):
        yield from _lacks(action, required)


def _lacks(action: Action, required: set[str]) -> Iterator[str]:
    if isinstance(action, Read):
        yield "stale"
    elif isinstance(action, Poll) and action.view is not View.SNAPSHOT:
        yield "drop"
    # A read that skips undecided rows must have its own messages, and those without a transaction.
    elif required.issuperset(_shown(action)):
        yield "drop_own"


def _shown(action: Action) -> tuple[str, ...]:
    if isinstance(action, Read):
        return action.values
    return tuple(value for _, value in action.found) if isinstance(action, Poll) else ()


def _uncertain(history: list[Attempt]) -> set[str]:
    return {
        value
        for attempt in history
        if attempt.outcome is not Outcome.OK
        for action in attempt.actions
        for value in _written(action)
    }


def _plain(history: list[Attempt]) -> set[str]:
    return {
        value
        for attempt in history
        if not attempt.is_transaction
        for action in attempt.actions
        for value in _written(action)
    }


def _written(action: Action) -> tuple[str, ...]:
    if isinstance(action, Publish):
        return action.values
    return (action.value,) if isinstance(action, Append) else ()


def manipulated(kind: str, action: Action, *, at_index: int) -> Action:
    if kind == "move":
        place = "row" if isinstance(action, Read) else "topic"
        return replace(action, **{place: "elsewhere"})  # type: ignore[arg-type]  # it is a name
    values: tuple[object, ...] = action.values if isinstance(action, Read) else action.found  # type: ignore[union-attr]  # only reads and polls are manipulated
    where = at_index % len(values)
    if kind in {"drop", "drop_own", "stale"}:
        values = (*values[:where], *values[where + 1 :])
    elif kind == "repeat":
        values = (*values[: where + 1], *values[where:])
    else:
        where = where % (len(values) - 1)
        values = (*values[:where], values[where + 1], values[where], *values[where + 2 :])
    name = "values" if isinstance(action, Read) else "found"
    return replace(action, **{name: values})  # type: ignore[arg-type]  # the field's own type


@settings(max_examples=40)
@given(seed=st.integers(0, 50), kind=st.sampled_from(KINDS),
       where=st.integers(0, 10**6), at_index=st.integers(0, 10**6))  # fmt: skip
def test_a_manipulated_read_is_found(seed: int, kind: str, where: int, at_index: int) -> None:
    history = synthetic_history(seed=seed, count=60, clients=6)
    chosen = spots(history)[kind]
    assume(chosen)
    spot = chosen[where % len(chosen)]
    attempt = history[spot.attempt]
    actions = list(attempt.actions)
    actions[spot.action] = manipulated(kind, actions[spot.action], at_index=at_index)
    history[spot.attempt] = replace(attempt, actions=tuple(actions))

    assert violations(history) != []


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), where=st.integers(0, 10**6))
def test_a_read_of_a_commit_that_is_recorded_as_failed_is_found(seed: int, where: int) -> None:
    history = synthetic_history(seed=seed, count=60, clients=4)
    wrote = [
        number for number, attempt in enumerate(history)
        if attempt.outcome is Outcome.OK and any(isinstance(one, Append) for one in attempt.actions)
    ]  # fmt: skip
    number = wrote[where % len(wrote)]
    history[number] = replace(history[number], outcome=Outcome.FAIL)

    assert Anomaly.ABORTED_READ in {one.anomaly for one in violations(history)}
