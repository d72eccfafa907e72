"""`python -m tests.mutants.random_mutants --seed N`: a random sample of mutants of the core.

Each mutant changes one expression or statement of one function (`operators.py`). It is caught if a
test fails or hangs that passes without it. Lines are drawn at random from all modules of `CORE`, so
that a module counts by its size, with one change for each line. Equivalent mutants, which no test can
catch, are listed with the reason in `equivalent.py`.

pytest loads all tests once. A first run records which test calls which function. Then each mutant runs
in a fork, in place of the function's code, with the tests that call the function; tests named like
the module run first. If a mutant of the server survives, short tests over HTTP follow, whose servers
load a copy of the tree with the mutant. `--quick` ends here; otherwise all tests with processes of
their own and more seeds of the simulation follow. The tree itself is never changed.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.mutants.__main__ import IGNORED
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.operators import Change, mutate, sites

ROOT = Path(__file__).resolve().parents[2]
CORE = (
    *(f"tx/{name}.py" for name in (
        "claims_and_waits", "conflicts", "consistency", "deadlines_and_leases", "durable_state",
        "invalid_list", "mixed_backups", "pointer_reservation", "recovery",
        "rows_of_ended_transactions", "service", "state", "state_machine",
        "state_machine_runner", "transaction_decisions", "wal",
    )),
    *(f"messaging/{name}.py" for name in (
        "log/read_result", "log/rows_by_transaction", "log/scan", "log/sequencer", "log/state_in_memory",
        "log/tail_cache", "model/expiry", "model/visibility", "retention/cleaner",
        "write/write_queue", "write/publish", "write/write_batch",
    )),
    *(f"tuff/{name}.py" for name in (
        "aio/context", "publisher_batches", "commit_protocol", "exactly_once_subscriber",
    )),
    "tuff_storage/leveldb/database.py",
    *(f"tuff/tables/{name}.py" for name in (
        "compaction", "leveldb_database", "leveldb_table", "row_format",
        "open_transactions", "versioned_table",
    )),
)  # fmt: skip
TESTS = (
    "tests/tx", "tests/messaging", "tests/client", "tests/table", "tests/process", "tests/http",
    "tests/admin", "tests/simulation", "tests/protocol", "tests/disk", "tests/leveldb",
    "tests/mutants/more_seeds.py",
    "tests/faults/test_powercut.py", "tests/faults/test_fsync.py",
)  # fmt: skip
GOAL = 0.9  # of the mutants that are not equivalent


def sample(root: Path, seed: int, count: int, only: str) -> list[Change]:
    """So many mutants by seed, at most one of each line."""
    chance = random.Random(seed)
    lines: dict[tuple[str, str, int], list[Any]] = {}
    sources = {file: (root / file).read_text("utf-8") for file in CORE if only in file}
    for file, source in sources.items():
        for site in sites(source):
            lines.setdefault((file, site.function, site.line), []).append(site)
    drawn = list(lines)
    chance.shuffle(drawn)
    found: list[Change] = []
    for file, function, line in drawn:
        if len(found) == count:
            break
        choices = lines[file, function, line]
        chance.shuffle(choices)
        changes = (mutate(file, sources[file], site) for site in choices)
        found += [each for each in changes if each is not None][:1]
    return found


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    changes = sample(ROOT, options.seed, options.count, options.only)
    equivalent = [each for each in changes if each.key in EQUIVALENT]
    changes = [each for each in changes if each.key not in EQUIVALENT]
    with tempfile.TemporaryDirectory(prefix="tuff-random-") as home:
        baseline = options.baseline or Path(home) / "baseline.json"
        if not baseline.exists():
            _worker(Path(home) / "first", {"baseline": str(baseline)}).wait()
        verdicts = _try_all(changes, Path(home), baseline, options)
        if len(verdicts) < len(changes):
            _report_ended_workers(Path(home), len(changes) - len(verdicts))
    _report(verdicts, len(equivalent), options.seed, time.monotonic() - began)
    caught = sum(each["caught"] is not None for each in verdicts)
    return int(caught < GOAL * len(changes) or len(verdicts) < len(changes))


def _try_all(
    changes: Sequence[Change], home: Path, baseline: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    workers = []
    for number in range(options.jobs):
        mine = [
            {"file": each.file, "function": each.function, "line": each.line,
             "operator": each.operator, "before": each.before, "after": each.after,
             "source": each.source}
            for each in changes[number :: options.jobs]
        ]  # fmt: skip
        out = home / f"verdicts-{number}"
        plan = {"baseline": str(baseline), "mutants": mine, "out": str(out), "quick": options.quick}
        workers.append((out, _worker(home / str(number), plan)))
    verdicts = []
    for each in _verdicts(workers):
        _show(each)
        verdicts.append(each)
    return verdicts


def _verdicts(
    workers: Sequence[tuple[Path, "subprocess.Popen[bytes]"]],
) -> Iterator[dict[str, Any]]:
    """The verdicts of the workers, as they come, until all have ended."""
    places = dict.fromkeys((out for out, _ in workers), 0)
    is_over = False
    while not is_over:
        is_over = all(process.poll() is not None for _, process in workers)
        for out, place in places.items():
            text = out.read_bytes()[place:] if out.exists() else b""
            whole = text[: text.rfind(b"\n") + 1]
            places[out] += len(whole)
            yield from (json.loads(line) for line in whole.splitlines())
        with suppress(subprocess.TimeoutExpired):
            workers[-1][1].wait(0.2)


def _worker(home: Path, plan: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
    """pytest on its own copy of the tree, with the plug-in `forked_tests` and a plan."""
    copy = home / "tree"
    shutil.copytree(ROOT, copy, ignore=IGNORED)
    (home / "tmp").mkdir()
    place = home / "plan.json"
    place.write_text(json.dumps({**plan, "tree": str(copy), "home": str(home)}))
    environment = {
        **os.environ, "PYTHONPATH": str(copy), "TMPDIR": str(home / "tmp"),
        "TUFF_MUTANTS_PLAN": str(place),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-s", "-m", "not slow", "-p", "no:cacheprovider",
        "-p", "no:xdist", "-p", "tests.mutants.forked_tests",
    ]  # fmt: skip
    if "mutants" not in plan:
        command.remove("-x")
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, *TESTS], cwd=copy, env=environment, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip


def _report_ended_workers(home: Path, missing_count: int) -> None:
    print(f"{missing_count} mutants were not tried, since a worker ended early; its last lines:")
    for log in sorted(home.glob("[0-9]*/log")):
        print("\n".join(log.read_text("utf-8", "replace").splitlines()[-15:]))


def _show(verdict: Mapping[str, Any]) -> None:
    mark = "SURVIVED" if verdict["caught"] is None else "caught"
    where = f"{verdict['file']}:{verdict['line']} {verdict['function']}"
    print(f"{mark:8} {verdict['seconds']:5.1f} s  {where}: {verdict['operator']}", flush=True)
    if verdict["caught"] is None:
        for sign, text in (("-", verdict["before"]), ("+", verdict["after"])):
            print("\n".join(f"    {sign} {line}" for line in text.splitlines()), flush=True)
    else:
        print(f"           by {verdict['caught']}", flush=True)


def _report(
    verdicts: Sequence[Mapping[str, Any]], equivalent_count: int, seed: int, seconds: float
) -> None:
    tried = Counter(each["file"] for each in verdicts)
    caught = Counter(each["file"] for each in verdicts if each["caught"] is not None)
    for file in sorted(tried):
        print(f"{file:32} {caught[file]:3} of {tried[file]:3} caught")
    share = caught.total() / max(1, tried.total())
    print(
        f"seed {seed}: {tried.total() + equivalent_count} mutants, {equivalent_count} equivalent, "
        f"{caught.total()} of {tried.total()} others caught ({share:.1%}), {seconds:.0f} s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.random_mutants")
    parser.add_argument("--seed", type=int, required=True, help="of the sample")
    parser.add_argument("--count", type=int, default=300, help="how many mutants")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--only", default="", metavar="TEXT", help="modules whose path has it")
    parser.add_argument("--quick", action="store_true", help="without other processes, more seeds")
    parser.add_argument(
        "--baseline", type=Path, help="file that keeps which test calls which function"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
