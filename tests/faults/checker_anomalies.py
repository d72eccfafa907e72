"""The anomalies of a history, and what all checks share."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from tests.faults.history import (
    Append,
    Attempt,
    History,
    Outcome,
    Poll,
    Publish,
    Read,
    View,
)

EXAMPLES_MAX = 5  # findings of one kind that are printed; the rest is counted


class Anomaly(Enum):
    """Anomalies, named as by Adya and by Berenson et al. where they have a name."""

    DIRTY_WRITE = "G0: two transactions wrote over each other's writes"
    ABORTED_READ = "G1a: a value was read that never committed"
    INTERMEDIATE_READ = "G1b: a state was read that its writer then changed"
    CIRCULAR_FLOW = "G1c: two transactions saw each other's writes"
    LOST_UPDATE = "two transactions replaced the same state"
    READ_SKEW = "G-single: a transaction saw one effect of another and missed an earlier one"
    LONG_FORK = "G-nonadjacent: two readers saw two writers in different orders"
    WRITE_SKEW = "G2-item: each of several transactions missed what the next one wrote"
    TORN = "one part of a publish, or of a transaction, is there without the other"
    LOST = "a later reader does not get an acknowledged value"
    DUPLICATED = "one value is there twice"
    REORDERED = "the order of values contradicts an earlier reply"
    PREFIX_CHANGED = "a value appeared before a place that had been read"
    INVENTED = "a value was read that was never written there"

    @property
    def is_permitted(self) -> bool:
        """Whether snapshot isolation allows it."""
        return self is Anomaly.WRITE_SKEW


@dataclass(frozen=True, slots=True)
class Finding:
    """One anomaly: a sentence, and the numbers of the attempts in the history."""

    anomaly: Anomaly
    what: str
    attempts: tuple[int, ...]


Findings = Iterator[Finding]


class Writers:
    """The writer of each value, and the time from which each commit is known."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._of: dict[str, int] = {}
        self.written_twice: list[str] = []
        for number, attempt in enumerate(history):
            for value in _written(attempt):
                if value in self._of:
                    self.written_twice.append(value)
                self._of[value] = number
        self._plain = {
            number
            for number, attempt in enumerate(history)
            if not attempt.is_transaction and attempt.outcome is not Outcome.FAIL
        }
        self._committed_at = self._completions()

    def of(self, value: str) -> int | None:
        """The number of the attempt that wrote it, or None."""
        return self._of.get(value)

    def is_failed(self, value: str) -> bool:
        writer = self.of(value)
        return writer is not None and self.history[writer].outcome is Outcome.FAIL

    def is_committed(self, number: int) -> bool:
        """Whether it committed by its reply or by a read of its values."""
        return number in self._committed_at

    def committed_at(self, number: int) -> int | None:
        """When its client or a reader first knew of the commit; None if it is not committed."""
        return self._committed_at.get(number)

    def is_decided_for_all(self, value: str) -> bool:
        """Whether it was written without a transaction, so that no snapshot hides it."""
        return self.of(value) in self._plain

    def _completions(self) -> dict[int, int]:
        known = {
            number: attempt.completed
            for number, attempt in enumerate(self.history)
            if attempt.outcome is Outcome.OK and attempt.completed is not None
        }
        for number, reader in enumerate(self.history):
            if reader.completed is None:
                continue
            writers = {self._of.get(value) for value in _shown_as_committed(reader)}
            writers |= self._plain.intersection(map(self._of.get, _shown_to_all(reader)))
            # A read proves the commit, often before the reply to its client.
            for writer in writers - {None, number}:
                if self.history[writer].outcome is not Outcome.FAIL:
                    known[writer] = min(known.get(writer, reader.completed), reader.completed)
        return known


def _written(attempt: Attempt) -> Iterator[str]:
    for action in attempt.actions:
        if isinstance(action, Append):
            yield action.value
        elif isinstance(action, Publish):
            yield from action.values


def _shown_as_committed(attempt: Attempt) -> Iterator[str]:
    for action in attempt.actions:
        if isinstance(action, Read):
            yield from action.values
        elif isinstance(action, Poll) and action.view is not View.ALL:
            yield from (value for _, value in action.found)


def _shown_to_all(attempt: Attempt) -> Iterator[str]:
    for action in attempt.actions:
        if isinstance(action, Poll) and action.view is View.ALL:
            yield from (value for _, value in action.found)


class KnownBy:
    """The highest value that was known by a given time."""

    def __init__(self, known: Iterable[tuple[int, str]]) -> None:
        ordered = sorted(known)
        self._times = [time for time, _ in ordered]
        self._highest = list(accumulate((value for _, value in ordered), max))

    def before(self, time: int) -> str:
        """The highest value known before that time; empty if there was none."""
        index = bisect_left(self._times, time)
        return self._highest[index - 1] if index else ""


def repeated(values: Sequence[str]) -> list[str]:
    """The values that occur more than once."""
    if len(set(values)) == len(values):
        return []
    return [value for value, count in Counter(values).items() if count > 1]


def report(findings: Sequence[Finding]) -> str:
    """The findings by kind, with examples."""
    lines: list[str] = []
    for anomaly in Anomaly:
        found = [one for one in findings if one.anomaly is anomaly]
        if found:
            permitted = " (permitted)" if anomaly.is_permitted else ""
            lines.append(f"{len(found)} x {anomaly.name}{permitted}, {anomaly.value}")
            lines += [f"    {one.what}" for one in found[:EXAMPLES_MAX]]
    return "\n".join(lines)
