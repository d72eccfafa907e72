"""Checks of rows: each holds a list, and the longest list that was read has all its versions."""

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from tests.faults.checker_anomalies import Anomaly, Finding, Findings, KnownBy, Writers, repeated
from tests.faults.checker_graph import Dependencies
from tests.faults.history import Append, History, Read


@dataclass(slots=True)
class Row:
    """One row: its appends and reads as (attempt, …), in order of the history."""

    name: str
    appends: list[tuple[int, str]] = field(default_factory=list)
    reads: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    versions: tuple[str, ...] = ()


def rows_of(history: History, writers: Writers) -> list[Row]:
    """All rows. The values that a transaction read of itself are removed from its lists, since they
    say nothing of others; `check_rows` compares them with its appends."""
    rows: dict[str, Row] = defaultdict(lambda: Row(""))
    for number, attempt in enumerate(history):
        own = {(one.row, one.value) for one in attempt.actions if isinstance(one, Append)}
        for action in attempt.actions:
            if isinstance(action, Append):
                rows[action.row].appends.append((number, action.value))
            elif isinstance(action, Read):
                others = tuple(each for each in action.values if (action.row, each) not in own)
                rows[action.row].reads.append((number, others))
                # Its own value is a version only if it committed.
                is_version = writers.is_committed(number)
                shown = action.values if is_version else others
                row = rows[action.row]
                row.versions = max(row.versions, shown, key=len)
    for name, row in rows.items():
        row.name = name
    return list(rows.values())


def check_rows(history: History, rows: list[Row], writers: Writers) -> Findings:
    """All anomalies of single rows."""
    yield from _own_writes(history)
    for row in rows:
        place = {value: index for index, value in enumerate(row.versions)}
        appended = {value for _, value in row.appends}
        for number, values in row.reads:
            yield from _read(row, number, values, appended, writers)
            yield from _order(row, number, values, place, writers)
        yield from _lost(row, place, history, writers)
        yield from _lost_updates(row, writers)


def row_edges(row: Row, writers: Writers, edges: Dependencies) -> None:
    """The dependencies that one row shows. Writers are transactions that committed; every reader
    had one snapshot, whatever its outcome."""
    order = [writers.of(value) for value in row.versions]
    versions = [one for one in order if one is not None and writers.is_committed(one)]
    place = {value: index for index, value in enumerate(row.versions)}
    for before, after in itertools.pairwise(versions):
        edges.wrote_next(before, after)
    # Committed, and in no list: they come after every version that was read.
    unread = [
        number for number, value in row.appends
        if value not in place and writers.is_committed(number)
    ]  # fmt: skip
    for number in unread if versions else []:
        edges.wrote_next(versions[-1], number)
    for reader, values in row.reads:
        last = writers.of(values[-1]) if values else None
        if last is not None:
            edges.was_read(last, reader)
        index = place.get(values[-1], len(versions)) + 1 if values else 0
        for writer in versions[index : index + 1] or unread:
            edges.was_missed(reader, writer)


def _own_writes(history: History) -> Findings:
    for number, attempt in enumerate(history):
        own: dict[str, list[str]] = defaultdict(list)
        for action in attempt.actions:
            if isinstance(action, Append):
                own[action.row].append(action.value)
            elif isinstance(action, Read) and own[action.row]:
                wanted = own[action.row]
                if list(action.values[-len(wanted) :]) != wanted:
                    what = f"{number} does not see its own {wanted} on {action.row}"
                    yield Finding(Anomaly.LOST, what, (number,))


def _read(
    row: Row, number: int, values: tuple[str, ...], appended: set[str], writers: Writers
) -> Findings:
    for value in repeated(values):
        yield Finding(Anomaly.DUPLICATED, f"{value} is twice on {row.name}", (number,))
    for value in values:
        writer = writers.of(value)
        if writer is None or value not in appended:
            yield Finding(Anomaly.INVENTED, f"{number} read {value} on {row.name}", (number,))
        elif writers.is_failed(value):
            what = f"{number} read {value} on {row.name}, which {writer} never committed"
            yield Finding(Anomaly.ABORTED_READ, what, (writer, number))
    if values:
        writer = writers.of(values[-1])
        later = [value for other, value in row.appends if other == writer]
        if writer is not None and later and later[-1] != values[-1]:
            what = f"{number} read {row.name} up to {values[-1]}, before {later[-1]} of {writer}"
            yield Finding(Anomaly.INTERMEDIATE_READ, what, (writer, number))


def _order(
    row: Row, number: int, values: tuple[str, ...], place: dict[str, int], writers: Writers
) -> Findings:
    if values == row.versions[: len(values)] or repeated(values):
        return
    if any(value not in place for value in values) or _descends([place[each] for each in values]):
        what = f"{number} read {row.name} as {values}, and others as {row.versions}"
        yield Finding(Anomaly.REORDERED, what, (number,))
        return
    shown = {writers.of(value) for value in values}
    for value in row.versions[: place[values[-1]]]:
        writer = writers.of(value)
        if value not in values and writer != number:
            anomaly = Anomaly.TORN if writer in shown else Anomaly.PREFIX_CHANGED
            what = f"{number} read {row.name} up to {values[-1]} without {value}"
            yield Finding(anomaly, what, (number,))
            return


def _descends(places: list[int]) -> bool:
    return any(left >= right for left, right in itertools.pairwise(places))


def _lost(row: Row, place: dict[str, int], history: History, writers: Writers) -> Findings:
    latest = max((history[number].invoked for number, _ in row.reads), default=-1)
    known: list[tuple[int, str]] = []
    for number, value in row.appends:
        committed_at = writers.committed_at(number)
        if committed_at is None:
            continue
        if value in place:
            known.append((committed_at, f"{place[value]:09}"))
        elif committed_at < latest:
            # An unknown commit counts as committed only if another value of it was read.
            is_part = any(writers.of(shown) == number for shown in row.versions)
            what = f"no read has {value} of {number} on {row.name}"
            yield Finding(Anomaly.TORN if is_part else Anomaly.LOST, what, (number,))
    required = KnownBy(known)
    for number, values in row.reads:
        highest = required.before(history[number].invoked)
        if highest and (not values or place.get(values[-1], len(place)) < int(highest)):
            missed = row.versions[int(highest)]
            if writers.of(missed) != number:
                what = f"{number} came later and did not read {missed} on {row.name}"
                yield Finding(Anomaly.LOST, what, (number,))


def _lost_updates(row: Row, writers: Writers) -> Findings:
    appended = {number for number, _ in row.appends if writers.is_committed(number)}
    bases: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for number, values in row.reads:
        if number in appended:
            bases[values[-1:]].add(number)
    for base, numbers in bases.items():
        if len(numbers) > 1:
            what = (
                f"{sorted(numbers)} all appended to {row.name} as it was up to {base or 'nothing'}"
            )
            yield Finding(Anomaly.LOST_UPDATE, what, tuple(sorted(numbers)))
