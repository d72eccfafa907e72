"""Histories that are written by hand, in few words."""

from collections.abc import Sequence
from dataclasses import replace

from tests.faults.checker import check
from tests.faults.checker_findings import Anomaly
from tests.faults.checker_history import (
    Action,
    Append,
    Attempt,
    Outcome,
    Poll,
    Publish,
    Read,
    View,
)

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
