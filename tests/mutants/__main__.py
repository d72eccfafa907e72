"""`python -m tests.mutants [--only WORDS]`: plant each known bug in a copy of the tree.

First all named tests must pass in an unchanged copy. Then each bug is planted in a copy, and each
test that is named for it must fail. The program fails if a bug survives, if a text to replace is not
exactly once in its file, or if a test fails without a bug. The tree itself is never changed.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.mutants.planted import MUTANTS as GENERAL_MUTANTS
from tests.mutants.planted import Mutant
from tests.mutants.planted_access import ACCESS_MUTANTS
from tests.mutants.planted_damage import DAMAGE_MUTANTS
from tests.mutants.planted_jobs import JOB_MUTANTS
from tests.mutants.planted_messages import MESSAGE_MUTANTS
from tests.mutants.planted_sql import SQL_MUTANTS

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = (
    *GENERAL_MUTANTS, *MESSAGE_MUTANTS, *JOB_MUTANTS, *DAMAGE_MUTANTS, *ACCESS_MUTANTS,
    *SQL_MUTANTS,
)  # fmt: skip
COPY_COUNT = 2  # bugs at a time
# A test that hangs has failed as well: one that takes ten times as long as without a bug, plus the
# time that pytest may need to start on a busy machine.
HANGS_AFTER_TIMES = 10
BEGINS_WITHIN_S = 15
BASELINE_WITHIN_S = 900
IGNORED = shutil.ignore_patterns(
    ".git", ".venv", "build", "data", "__pycache__", ".*_cache", ".hypothesis"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one bug. It is caught if each of its tests failed; `output` is pytest's output
    of the last test that ran."""

    mutant: Mutant
    caught: bool
    seconds: float
    output: str


def run_tests(
    copy: Path, tests: Sequence[str], *, within_s: float, report: Path | None = None
) -> tuple[int, str]:
    """pytest's exit code and output in that copy; `report` gets the time of each test."""
    # Without Python's cache, which would keep the old code of a file of the same size and second.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    command += [] if report is None else [f"--junitxml={report}"]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, errors="replace",
            timeout=within_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, f"it hung for {within_s:.0f} s"
    return done.returncode, done.stdout


def misplaced(mutant: Mutant) -> bool:
    """Whether the text to replace is not exactly once in its file."""
    return (ROOT / mutant.file).read_text("utf-8").count(mutant.text) != 1


def seconds_of(report: Path) -> dict[str, float]:
    """The time of each test in a report of pytest, in seconds, by its name."""
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/")
        test = f"{file}.py::{case.attrib['name'].partition('[')[0]}"
        seconds[test] = seconds.get(test, 0.0) + float(case.attrib["time"])
    return seconds


def seconds_in(test: str, seconds: Mapping[str, float]) -> float:
    """The time of a test, or of all tests of a file."""
    name = test.partition("[")[0]
    return sum(
        took for each, took in seconds.items() if each == name or each.startswith(f"{name}::")
    )


def try_out(mutant: Mutant, copy: Path, seconds: Mapping[str, float]) -> Verdict:
    """Plant a bug, run its tests one by one, and remove it again."""
    file, began = copy / mutant.file, time.monotonic()
    whole = file.read_text("utf-8")
    file.write_text(whole.replace(mutant.text, mutant.instead), "utf-8")
    code, output = 1, ""
    try:
        for test in mutant.tests:
            within_s = BEGINS_WITHIN_S + HANGS_AFTER_TIMES * seconds_in(test, seconds)
            code, output = run_tests(copy, [test], within_s=within_s)
            # pytest exits with 1 if a test failed; other codes mean that the test did not run.
            if code != 1:
                break
    finally:
        file.write_text(whole, "utf-8")
    return Verdict(mutant, code == 1, time.monotonic() - began, output)


def try_all(
    mutants: Sequence[Mutant], copies: Sequence[Path], seconds: Mapping[str, float]
) -> list[Verdict]:
    """Try every bug, as many at a time as there are copies."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> Verdict:
        copy = free.get()
        try:
            verdict = try_out(mutant, copy, seconds)
        finally:
            free.put(copy)
        mark = "caught" if verdict.caught else "SURVIVED"
        print(f"{mark:9} {verdict.seconds:6.1f} s  {mutant.bug}", flush=True)
        return verdict

    with ThreadPoolExecutor(len(copies)) as threads:
        return list(threads.map(one, mutants))


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="bugs whose name has these")
    options = parser.parse_args(arguments)
    mutants = [each for each in MUTANTS if options.only in each.bug]
    for mutant in (lost := list(filter(misplaced, mutants))):
        print(f"the text of {mutant.bug!r} is not exactly once in {mutant.file}")
    if lost or not mutants:
        return 1
    with tempfile.TemporaryDirectory(prefix="tuff-mutants-") as home:
        copies = [Path(home) / str(number) for number in range(COPY_COUNT)]
        for copy in copies:
            shutil.copytree(ROOT, copy, ignore=IGNORED)
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        report = Path(home) / "report.xml"
        code, output = run_tests(copies[0], tests, within_s=BASELINE_WITHIN_S, report=report)
        if code != 0:
            print(output[-3000:])
            print("a named test fails without any bug")
            return 1
        verdicts = try_all(mutants, copies, seconds_of(report))
    survived = [each for each in verdicts if not each.caught]
    for each in survived:
        print(f"\n{each.mutant.bug} ({each.mutant.file})\n{each.output[-1500:]}")
    print(
        f"{len(verdicts)} bugs planted, {len(verdicts) - len(survived)} caught by the named tests"
    )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
