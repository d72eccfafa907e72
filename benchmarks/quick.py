"""`make bench-quick`: the server beside the bare handler and the floor, against regressions.

    python -m benchmarks.quick [--tree DIR] [--rounds N] [--only NAME ...] [--json FILE]

Prints calls per second, latencies and the server's processor time per call, also as a multiple of
the bare handler's, and of the floor's for the same call. The best rounds of ours and of theirs are
compared, since what else runs on the machine makes either only worse. Prints the targets, and exits
1 when a ratio to the bare handler misses its target (`QUICK` in targets.py).
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.generator import Run, build, measure, number, sink
from benchmarks.processes import ROOT, bare, floor, tuff
from benchmarks.results import Results
from benchmarks.tables import print_targets
from benchmarks.targets import QUICK, QUICK_FLOOR, judged

SECONDS = 1.2  # of each measured run
_FAST = ("-warm", "0.3")

# In this order: the polls read messages that publish-100 has published.
RUNS = {
    "publish": Run(scenario="publish", seconds=SECONDS, flags=_FAST),
    "publish-128": Run(scenario="publish", connections=128, seconds=SECONDS, flags=_FAST),
    "publish-100": Run(
        scenario="publish",
        seconds=SECONDS,
        flags=(*_FAST, "-topic", "hundreds", "-messages", "100"),
    ),
    "poll-cold": Run(
        scenario="poll", connections=1, seconds=SECONDS, flags=(*_FAST, "-topic", "hundreds")
    ),
    "poll-tail": Run(
        scenario="poll",
        connections=1,
        seconds=SECONDS,
        flags=(*_FAST, "-topic", "hundreds", "-window", "1000"),
    ),
    "commit": Run(scenario="commit", seconds=SECONDS, flags=_FAST),
    "transaction": Run(scenario="transaction", seconds=SECONDS, flags=_FAST),
    "run": Run(scenario="run", seconds=SECONDS, flags=_FAST),
    "start": Run(scenario="start", seconds=SECONDS, flags=_FAST),
    **{
        name: Run(scenario=scenario, connections=count, seconds=SECONDS, flags=_FAST)
        for name, scenario, count in (
            ("session-publish", "session-publish", 256),
            ("session-commit", "session-commit", 64),
            ("session-transaction-32", "session-transaction", 32),
            ("session-transaction", "session-transaction", 64),
            ("session-transaction-128", "session-transaction", 128),
            ("session-run", "session-run", 64),
            ("session-start", "session-start", 64),
        )
    },
}
# What the floor answers, too.
ON_THE_FLOOR = [name for name in RUNS if name.startswith("session-") and name != "session-run"]
BARE = Run(scenario="post", seconds=SECONDS, flags=_FAST)

Round = dict[str, dict[str, object]]


def one_round(directory: Path, tree: Path, names: list[str]) -> Round:
    """The bare handler, and then each run, behind the same run on the floor; with new servers for
    each round."""
    found: Round = {}
    with sink(directory) as nothing:
        found["sink"] = measure(BARE, nothing)
    with bare(directory) as handler:
        found["bare"] = measure(BARE, handler)
    with tuff(directory / "data", tree=tree) as server, floor(directory) as lowest:
        for name in names:
            if name in ON_THE_FLOOR:
                found[f"floor {name}"] = measure(RUNS[name], lowest)
            found[name] = measure(RUNS[name], server)
    return found


def lines(found: Round) -> Iterator[str]:
    yield (
        f"{'':29} {'calls/s':>9} {'msgs/s':>9} {'p50 ms':>8} {'p99 ms':>8} "
        f"{'cpu us/call':>12} {'x bare':>7} {'x floor':>7} {'us/msg':>7} {'errors':>6}"
    )
    bare_cpu = number(found["bare"], "server_cpu_us_per_call")
    for name, report in found.items():
        cpu = number(report, "server_cpu_us_per_call")
        lowest = found.get(f"floor {name}")
        multiple = f"{cpu / number(lowest, 'server_cpu_us_per_call'):.2f}" if lowest else ""
        yield (
            f"{name:29} {number(report, 'per_s'):9.0f} {number(report, 'messages_per_s'):9.0f} "
            f"{number(report, 'p50_us') / 1e3:8.2f} {number(report, 'p99_us') / 1e3:8.2f} "
            f"{cpu:12.1f} {cpu / bare_cpu:7.2f} {multiple:>7} "
            f"{number(report, 'server_cpu_us_per_message'):7.2f} {report['errors']!s:>6}"
        )
        if report["errors"]:
            yield f"{'':29} first error: {report['first_error']}"


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    build()
    names = options.only or list(RUNS)
    if {"poll-cold", "poll-tail"} & set(names) and "publish-100" not in names:
        names = ["publish-100", *names]
    rounds: list[Round] = []
    for round_number in range(1, options.rounds + 1):
        with tempfile.TemporaryDirectory(prefix="tuff-bench-", dir=options.dir) as directory:
            rounds.append(one_round(Path(directory), options.tree, names))
        header = f"round {round_number} of {options.rounds}"
        print(header, *lines(rounds[-1]), sep="\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1))
    results = Results(machine={}, missing={}, rounds=rounds)
    print_targets([each for each in (*QUICK, *QUICK_FLOOR) if each.row in names], results)
    regressions = list(missed(results))
    for sentence in regressions:
        print(f"bench-quick: {sentence}", file=sys.stderr)
    return 1 if regressions else 0


def missed(results: Results) -> Iterator[str]:
    """A sentence for each target that even the best rounds miss."""
    for one in judged(QUICK, results):
        if one.verdict == "not met":
            yield (
                f"{one.target.what} is {one.best:.3g} (the best of {len(results.rounds)} rounds "
                f"each), and should be {one.target.limit}"
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tree", type=Path, default=ROOT, help="work tree whose server is run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(RUNS), help="some of the runs")
    parser.add_argument("--json", type=Path, help="where to write every report")
    parser.add_argument("--dir", type=Path, help="on which disk; default: the temporary directory")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
