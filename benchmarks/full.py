"""`make bench`: the server, its limits and its peers on one disk, in rounds; about ten minutes.

    python -m benchmarks.full [--rounds N] [--only SUBJECT ...] [--out DIR] [--dir DIR]

Each round visits every subject in turn, alone on the machine as far as these programs go, and when
the disk has taken what the one before it wrote. A peer that can't be had, or fails, is named in the
results with its reason. Writes full.json, full.md and the plots below benchmarks/results/, profiles
the server, and prints every bar. Exits 0 whatever the bars say: these are figures of one machine on
one day, and bench-quick is what guards.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bars import FULL, judged
from benchmarks.flame import record
from benchmarks.generator import LoadError
from benchmarks.limits import measure_limits
from benchmarks.machine import come_to_rest, describe
from benchmarks.own import measure_tuff
from benchmarks.peers.jvm import measure_cdap, measure_kafka, measure_tephra
from benchmarks.peers.nats import measure_nats
from benchmarks.peers.postgres import measure_postgres
from benchmarks.peers.redis import measure_redis
from benchmarks.plots import plot_full
from benchmarks.processes import ROOT, StartError
from benchmarks.results import Results, lean
from benchmarks.subject import MissingError, Pace, Report, Subject
from benchmarks.tables import bars_table, full_page

RESULTS = ROOT / "benchmarks" / "results"

# The server stands between the two halves of the peers, so that no half is always the warmer one.
SUBJECTS = (
    Subject("limits", measure_limits),
    Subject("redis", measure_redis),
    Subject("nats", measure_nats),
    Subject("postgres", measure_postgres),
    Subject("tuff", measure_tuff),
    Subject("cdap", measure_cdap),
    Subject("tephra", measure_tephra),
    Subject("kafka", measure_kafka),
)


def one_round(
    directory: Path, pace: Pace, subjects: list[Subject]
) -> tuple[dict[str, Report], dict[str, str]]:
    """The rows, and why a subject has none or not all of its own."""
    found: dict[str, Report] = {}
    missing: dict[str, str] = {}
    for subject in subjects:
        rested_s = come_to_rest()
        began = time.perf_counter()
        try:
            found.update(subject.measure(directory, pace))
        except MissingError as error:
            missing[subject.name] = str(error)
        except (LoadError, StartError, OSError, subprocess.SubprocessError) as error:
            missing[subject.name] = f"failed: {_in_one_line(error, directory)}"
        took_s = time.perf_counter() - began
        print(f"  {subject.name}: {took_s:.0f} s, after {rested_s:.1f} s of rest", flush=True)
    return found, missing


def _in_one_line(error: Exception, directory: Path) -> str:
    """A reason that can be published: without places of this machine, and not too long."""
    said = str(error).replace(str(directory), "DIR").replace(f"{ROOT}/", "")
    return " ".join(said.split())[:300]


def all_rounds(options: argparse.Namespace, subjects: list[Subject]) -> Results:
    machine, began = describe(options.dir), time.perf_counter()
    missing: dict[str, str] = {}
    rounds: list[dict[str, Report]] = []
    for number in range(1, options.rounds + 1):
        so_far_s = time.perf_counter() - began
        if rounds and so_far_s * number / len(rounds) > options.minutes * 60:
            print(f"round {number} would take it past {options.minutes:g} minutes", flush=True)
            break
        print(f"round {number} of {options.rounds}", flush=True)
        with tempfile.TemporaryDirectory(prefix="tuff-bench-", dir=options.dir) as directory:
            Path(directory).chmod(0o755)  # PostgreSQL runs as a user of its own
            found, lost = one_round(Path(directory), Pace(seconds=options.seconds), subjects)
        rounds.append(found)
        missing |= {f"{name}, round {number}": reason for name, reason in lost.items()}
    return Results(machine=machine, missing=missing, rounds=lean(rounds))


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    subjects = [one for one in SUBJECTS if not options.only or one.name in options.only]
    results = all_rounds(options, subjects)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "full.json").write_text(json.dumps(results.as_json(), indent=1) + "\n")
    (options.out / "full.md").write_text(full_page(results))
    plot_full(results, options.out)
    try:
        if measure_tuff in [one.measure for one in subjects]:
            record(options.out)
    except (MissingError, LoadError, subprocess.SubprocessError) as error:
        print(f"no profile: {error}", file=sys.stderr)
    print(*bars_table(judged(FULL, results)), sep="\n")
    for name, reason in results.missing.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.full", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--minutes", type=float, default=11.3, help="begin no round that ends later"
    )
    parser.add_argument("--seconds", type=float, default=Pace().seconds, help="of each run")
    parser.add_argument("--only", nargs="*", choices=[one.name for one in SUBJECTS])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are written")
    parser.add_argument("--dir", type=Path, help="on which disk; default: the temporary directory")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
