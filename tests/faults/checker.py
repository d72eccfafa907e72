"""Is this history one of snapshot isolation over durable, ordered topics? Finds what says no.

    python -m tests.faults.checker HISTORY.jsonl     what a program kept of a run
    python -m tests.faults.checker --measure 100000  how long a made one of so many takes

The method is that of Adya's dependency graphs, made from what readers were shown: a row's list
tells its versions, and a value tells its writer. What one place alone can tell is in
`checker_rows` and `checker_topics`; what takes several, in the cycles of `checker_graph`.
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

EDGES_TRIED_MAX = 1_000  # rw edges of one knot of transactions; by then it is told what it is


def check(history: History) -> list[Finding]:
    """Everything that is wrong, and the write skew that isn't."""
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
        # Two that replaced one state are in a cycle of their own, which says nothing more.
        if not any(set(one.attempts) <= found for found in lost_updates)
    ]  # fmt: skip
    return findings


def violations(history: History) -> list[Finding]:
    """What snapshot isolation does not permit."""
    return [one for one in check(history) if not one.anomaly.is_permitted]


def _cycles(edges: Dependencies) -> Findings:
    depends = [[*ww, *wr] for ww, wr in zip(edges.ww, edges.wr, strict=True)]
    for knot in components(edges.ww):
        yield _found(Anomaly.DIRTY_WRITE, edges, _through(edges.ww, edges.ww, knot))
    circular: set[int] = set()
    for knot in components(depends):
        circular.update(knot)
        way = _through(edges.wr, depends, knot)
        if way:
            yield _found(Anomaly.CIRCULAR_FLOW, edges, way)
    forbidden: set[int] = set()
    for knot in components(edges.layered()):
        members = {node // 2 for node in knot if node < 2 * edges.count}
        forbidden |= members
        if not members & circular:
            yield _forbidden(edges, depends, knot, members)
    whole = edges.whole()
    for knot in components(whole):
        members = {node for node in knot if node < edges.count}
        if len(members) > 1 and not members & forbidden:
            yield _skewed(edges, whole, knot, members)


def _forbidden(
    edges: Dependencies, depends: Adjacency, knot: list[int], members: set[int]
) -> Finding:
    missed = [
        (reader, writer) for reader in members for writer in edges.missed_by(reader)
        if writer in members
    ]  # fmt: skip
    for reader, writer in missed[:EDGES_TRIED_MAX]:
        way = path(depends, writer, reader, within=members)
        if way:
            return _found(Anomaly.READ_SKEW, edges, [reader, *way])
    way = path(edges.layered(), knot[0], knot[0], within=set(knot)) or []
    collapsed = [node // 2 for node in way if node < 2 * edges.count]
    return _found(Anomaly.LONG_FORK, edges, collapsed)


def _through(first: Adjacency, rest: Adjacency, knot: list[int]) -> list[int]:
    """A cycle that begins with an edge of `first`; empty when there is none."""
    members = set(knot)
    for start in knot:
        for successor in first[start]:
            if successor in members:
                way = path(rest, successor, start, within=members)
                if way:
                    return [start, *way]
    return []


def _skewed(edges: Dependencies, whole: Adjacency, knot: list[int], members: set[int]) -> Finding:
    for reader in members:
        for writer in edges.missed_by(reader):
            if writer in members:
                way = path(whole, writer, reader, within=set(knot)) or []
                return _found(
                    Anomaly.WRITE_SKEW, edges, [reader, *(n for n in way if n < edges.count)]
                )
    raise AssertionError("a cycle without rw edges was found before")


def _found(anomaly: Anomaly, edges: Dependencies, way: Sequence[int]) -> Finding:
    """A finding that tells its cycle, as `1 -wr-> 2 -rw-> 1`."""
    steps = [
        way[0],
        *(after for before, after in itertools.pairwise(way) if before != after),
    ]
    told = str(steps[0])
    for before, after in itertools.pairwise(steps):
        kinds = {"ww": edges.ww[before], "wr": edges.wr[before]}
        kind = next((name for name, targets in kinds.items() if after in targets), "rw")
        told += f" -{kind}-> {after}"
    return Finding(anomaly, told, tuple(dict.fromkeys(steps)))


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="checker", description=__doc__)
    parser.add_argument("history", type=Path, nargs="?", help="a file of attempts, one per line")
    parser.add_argument("--measure", type=int, metavar="COUNT", help="make a history, and time it")
    options = parser.parse_args(arguments)
    if options.measure:
        from tests.faults.synthetic_histories import made_history  # a measurement alone needs it

        history: History = made_history(seed=1, count=options.measure, clients=32)
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
