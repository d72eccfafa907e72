"""`make bench-quick`: the server beside the bare handler in a minute, against regressions.

    python -m benchmarks.quick [--tree DIR] [--rounds N] [--only NAME ...] [--json FILE]

Prints calls per second, latencies and the server's processor time per call. The best
rounds of ours and of the bare handler's are compared, since what else runs on the machine makes
either only worse. Exits 1 when a ratio misses its target (`QUICK` in targets.py).
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.generator import Run, build, measure, number, sink
from benchmarks.processes import ROOT, bare, tuff
from benchmarks.results import Results
from benchmarks.targets import QUICK, judged

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
        name: Run(scenario=name, connections=count, seconds=SECONDS, flags=_FAST)
        for name, count in {
            "session-publish": 256,
            "session-commit": 64,
            "session-transaction": 64,
            "session-run": 64,
            "session-start": 64,
        }.items()
    },
}
BARE = Run(scenario="post", seconds=SECONDS, flags=_FAST)

Round = dict[str, dict[str, object]]


def one_round(directory: Path, tree: Path, names: list[str]) -> Round:
    """The bare handler, and then each run, with new servers for each round."""
    found: Round = {}
    with sink(directory) as nothing:
        found["sink"] = measure(BARE, nothing)
    with bare(directory) as handler:
        found["bare"] = measure(BARE, handler)
    with tuff(directory / "data", tree=tree) as server:
        for name in names:
            found[name] = measure(RUNS[name], server)
    return found


def lines(found: Round) -> Iterator[str]:
    yield (
        f"{'':19} {'calls/s':>9} {'msgs/s':>9} {'p50 ms':>8} {'p99 ms':>8} "
        f"{'cpu us/call':>12} {'x bare':>7} {'us/msg':>7} {'errors':>6}"
    )
    bare_cpu = number(found["bare"], "server_cpu_us_per_call")
    for name, report in found.items():
        cpu = number(report, "server_cpu_us_per_call")
        yield (
            f"{name:19} {number(report, 'per_s'):9.0f} {number(report, 'messages_per_s'):9.0f} "
            f"{number(report, 'p50_us') / 1e3:8.2f} {number(report, 'p99_us') / 1e3:8.2f} "
            f"{cpu:12.1f} {cpu / bare_cpu:7.2f} "
            f"{number(report, 'server_cpu_us_per_message'):7.2f} {report['errors']!s:>6}"
        )
        if report["errors"]:
            yield f"{'':19} first error: {report['first_error']}"


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
    regressions = list(missed(Results(machine={}, missing={}, rounds=rounds)))
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
