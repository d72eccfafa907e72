"""`make bench`: the server, its limits and its peers on one disk, in rounds; about ten minutes.

    python -m benchmarks.full [--rounds N] [--only SUBJECT ...] [--out DIR] [--dir DIR]

Each round visits every subject in turn, when the machine is idle and the disk has taken what the
subject before it wrote. A peer that is not installed, or fails, is named in the results with the
reason. Writes full.json, full.md and the plots below benchmarks/results/, profiles
the server, and prints every target. Exits 0 even if targets are missed: these are figures of one
machine on one day. `make bench-quick` detects regressions.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.flame import record
from benchmarks.generator import LoadError, MissingError, Pace, Report, Rows
from benchmarks.limits import measure_limits
from benchmarks.machine import describe, wait_until_idle
from benchmarks.own import measure_tuff
from benchmarks.peers.jvm import measure_cdap, measure_kafka, measure_tephra
from benchmarks.peers.nats import measure_nats
from benchmarks.peers.postgres import measure_postgres
from benchmarks.peers.redis import measure_redis
from benchmarks.plots import plot_full
from benchmarks.processes import ROOT, StartError
from benchmarks.results import Results, lean, parser_of, write_results
from benchmarks.tables import full_page, print_targets
from benchmarks.targets import FULL

# A subject starts what it needs, yields its rows, and ends what it started. Tuff stands in the
# middle, so that neither half of the peers always runs on a warmer machine.
SUBJECTS: dict[str, Callable[[Path, Pace], Rows]] = {
    "limits": measure_limits,
    "redis": measure_redis,
    "nats": measure_nats,
    "postgres": measure_postgres,
    "tuff": measure_tuff,
    "cdap": measure_cdap,
    "tephra": measure_tephra,
    "kafka": measure_kafka,
}


def one_round(
    directory: Path, pace: Pace, subjects: Sequence[str]
) -> tuple[dict[str, Report], dict[str, str]]:
    """The rows, and for each subject without all its rows the reason."""
    found: dict[str, Report] = {}
    missing: dict[str, str] = {}
    for subject in subjects:
        idle_after_s = wait_until_idle()
        began = time.perf_counter()
        try:
            found.update(SUBJECTS[subject](directory, pace))
        except MissingError as error:
            missing[subject] = str(error)
        except (LoadError, StartError, OSError, subprocess.SubprocessError) as error:
            missing[subject] = f"failed: {_in_one_line(error, directory)}"
        took_s = time.perf_counter() - began
        print(
            f"  {subject}: {took_s:.0f} s, after {idle_after_s:.1f} s until the machine was idle",
            flush=True,
        )
    return found, missing


def _in_one_line(error: Exception, directory: Path) -> str:
    """A short reason without directories of this machine."""
    said = str(error).replace(str(directory), "DIR").replace(f"{ROOT}/", "")
    return " ".join(said.split())[:300]


def all_rounds(options: argparse.Namespace, subjects: Sequence[str]) -> Results:
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
    parser = parser_of("full", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--minutes", type=float, default=11.3, help="begin no round that ends later"
    )
    parser.add_argument("--seconds", type=float, default=Pace().seconds, help="of each run")
    parser.add_argument("--only", nargs="*", choices=list(SUBJECTS))
    options = parser.parse_args(arguments)
    subjects = options.only or list(SUBJECTS)
    results = all_rounds(options, subjects)
    write_results(options.out / "full.json", results)
    (options.out / "full.md").write_text(full_page(results))
    plot_full(results, options.out)
    try:
        if "tuff" in subjects:
            record(options.out)
    except (MissingError, LoadError, subprocess.SubprocessError) as error:
        print(f"no profile: {error}", file=sys.stderr)
    print_targets(FULL, results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
