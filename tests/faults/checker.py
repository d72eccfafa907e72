"""Checks a history for snapshot isolation over durable, ordered topics.

    python -m tests.faults.checker HISTORY.jsonl     check a saved history
    python -m tests.faults.checker --measure 100000  time a synthetic one of so many attempts

It builds Adya's dependency graph from what was read: a row's list has its versions, and a value
identifies its writer. `checker_rows` and `checker_topics` find anomalies of one row or topic,
the cycles of `checker_graph` those of several.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.checker_anomalies import Anomaly, Finding, Findings, Writers, report
from tests.faults.checker_graph import Adjacency, Dependencies, components, path
from tests.faults.checker_rows import check_rows, row_edges, rows_of
from tests.faults.checker_topics import check_topics, topic_edges, topics_of
from tests.faults.history import History, load

EDGES_TRIED_MAX = 1_000  # rw edges of one component; enough to name its anomaly


def check(history: History) -> list[Finding]:
    """All anomalies, permitted write skew included."""
    writers = Writers(history)
    rows, topics = rows_of(history, writers), topics_of(history)
    edges = Dependencies(len(history))
    findings = [
        Finding(Anomaly.INVENTED, f"{value} was written twice: no history to check", ())
        for value in writers.written_twice
    ]
    findings += check_rows(history, rows, writers)
    for row in rows:
        row_edges(row, writers, edges)
    findings += check_topics(history, topics, writers)
    for topic in topics:
        topic_edges(topic, history, writers, edges)
    lost_updates = [set(one.attempts) for one in findings if one.anomaly is Anomaly.LOST_UPDATE]
    findings += [
        one for one in _cycles(edges)
        # The two transactions of a lost update also form a cycle, which says nothing more.
        if not any(set(one.attempts) <= found for found in lost_updates)
    ]  # fmt: skip
    return findings


def violations(history: History) -> list[Finding]:
    """The anomalies that snapshot isolation does not permit."""
    return [one for one in check(history) if not one.anomaly.is_permitted]


def _cycles(edges: Dependencies) -> Findings:
    depends = [[*ww, *wr] for ww, wr in zip(edges.ww, edges.wr, strict=True)]
    for component in components(edges.ww):
        yield _found(Anomaly.DIRTY_WRITE, edges, _through(edges.ww, edges.ww, component))
    circular: set[int] = set()
    for component in components(depends):
        circular.update(component)
        cycle = _through(edges.wr, depends, component)
        if cycle:
            yield _found(Anomaly.CIRCULAR_FLOW, edges, cycle)
    forbidden: set[int] = set()
    for component in components(edges.layered()):
        members = {node // 2 for node in component if node < 2 * edges.count}
        forbidden |= members
        if not members & circular:
            yield _forbidden(edges, depends, component, members)
    whole = edges.whole()
    for component in components(whole):
        members = {node for node in component if node < edges.count}
        if len(members) > 1 and not members & forbidden:
            yield _skewed(edges, whole, component, members)


def _forbidden(
    edges: Dependencies, depends: Adjacency, component: list[int], members: set[int]
) -> Finding:
    missed = [
        (reader, writer) for reader in members for writer in edges.missed_by(reader)
        if writer in members
    ]  # fmt: skip
    for reader, writer in missed[:EDGES_TRIED_MAX]:
        cycle = path(depends, writer, reader, within=members)
        if cycle:
            return _found(Anomaly.READ_SKEW, edges, [reader, *cycle])
    cycle = path(edges.layered(), component[0], component[0], within=set(component)) or []
    collapsed = [node // 2 for node in cycle if node < 2 * edges.count]
    return _found(Anomaly.LONG_FORK, edges, collapsed)


def _through(first: Adjacency, rest: Adjacency, component: list[int]) -> list[int]:
    """A cycle that begins with an edge of `first`; empty if there is none."""
    members = set(component)
    for start in component:
        for successor in first[start]:
            if successor in members:
                cycle = path(rest, successor, start, within=members)
                if cycle:
                    return [start, *cycle]
    return []


def _skewed(
    edges: Dependencies, whole: Adjacency, component: list[int], members: set[int]
) -> Finding:
    for reader in members:
        for writer in edges.missed_by(reader):
            if writer in members:
                cycle = path(whole, writer, reader, within=set(component)) or []
                return _found(
                    Anomaly.WRITE_SKEW, edges, [reader, *(n for n in cycle if n < edges.count)]
                )
    raise AssertionError("a cycle without rw edges was found before")


def _found(anomaly: Anomaly, edges: Dependencies, cycle: Sequence[int]) -> Finding:
    """A finding with its cycle, as `1 -wr-> 2 -rw-> 1`."""
    steps = [
        cycle[0],
        *(after for before, after in itertools.pairwise(cycle) if before != after),
    ]
    shown = str(steps[0])
    for before, after in itertools.pairwise(steps):
        kinds = {"ww": edges.ww[before], "wr": edges.wr[before]}
        kind = next((name for name, targets in kinds.items() if after in targets), "rw")
        shown += f" -{kind}-> {after}"
    return Finding(anomaly, shown, tuple(dict.fromkeys(steps)))


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="checker", description=__doc__)
    parser.add_argument("history", type=Path, nargs="?", help="a file of attempts, one per line")
    parser.add_argument("--measure", type=int, metavar="COUNT", help="make a history, and time it")
    options = parser.parse_args(arguments)
    if options.measure:
        from tests.faults.synthetic_histories import (
            synthetic_history,  # a measurement alone needs it
        )

        history: History = synthetic_history(seed=1, count=options.measure, clients=32)
    else:
        history = load(options.history)
    started_s = time.perf_counter()
    findings = check(history)
    seconds = time.perf_counter() - started_s
    wrong = [one for one in findings if not one.anomaly.is_permitted]
    print(report(findings))
    print(f"checked {len(history)} attempts in {seconds:.1f} s: {len(wrong)} violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
