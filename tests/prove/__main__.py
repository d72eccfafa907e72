"""`python -m tests.prove [--long] [--only NAME]`: run every attack, and print its figure.

Writes the figures to build/prove/figures.json and the output of each program to a file beside it,
and exits with 1 if a program failed. With `--only`, the figures of other programs are kept.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.prove.programs import PROGRAMS, Program, command_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "prove"
LONG_FACTOR = 10  # times `scaled_within_s`; the time limit of a program with its full numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one program. `figure` is the last line that it printed."""

    name: str
    promises: tuple[int, ...]
    figure: str
    seconds: float
    passed: bool


def run(program: Program, *, is_long: bool) -> Result:
    """Run it until it ends or its time is over, with its output in a file of its name."""
    command = command_of(program.full if is_long else program.scaled)
    within_s = program.scaled_within_s * (LONG_FACTOR if is_long else 1)
    file = RESULTS / f"{program.name}.txt"
    began = time.monotonic()
    with file.open("wb") as output:
        try:
            code: int | str = subprocess.run(
                command, cwd=ROOT, stdout=output, stderr=output, timeout=within_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"not done within {within_s} s"
    lines = file.read_text("utf-8", "replace").strip().splitlines() or ["no output"]
    return Result(
        name=program.name,
        promises=program.promises,
        figure=lines[-1].strip("= ") if code == 0 else f"exit {code}: {lines[-1].strip('= ')}",
        seconds=round(time.monotonic() - began, 1),
        passed=code == 0,
    )


def machine() -> dict[str, object]:
    """The machine of the figures."""
    cores = len(os.sched_getaffinity(0))
    return {"python": platform.python_version(), "system": platform.platform(), "cores": cores}


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("--long", action="store_true", help="with the full numbers: hours")
    parser.add_argument(
        "--only", action="append", default=[], choices=[each.name for each in PROGRAMS]
    )
    options = parser.parse_args(arguments)
    RESULTS.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    began_s = time.monotonic()
    programs = [each for each in PROGRAMS if not options.only or each.name in options.only]
    results = run_all(programs, lambda program: run_and_print(program, is_long=options.long))
    write_figures(results, began=began, is_long=options.long, keeps_others=bool(options.only))
    print_table(results, seconds=time.monotonic() - began_s)
    return 0 if all(each.passed for each in results) else 1


def run_all(programs: Sequence[Program], run_one: Callable[[Program], Result]) -> list[Result]:
    """First the programs that share the cores, two at a time, then the others one by one.

    The results are in the order of the programs.
    """
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(run_one, [each for each in programs if each.shares_cores]))
    found += [run_one(each) for each in programs if not each.shares_cores]
    by_name = {result.name: result for result in found}
    return [by_name[program.name] for program in programs]


def run_and_print(program: Program, *, is_long: bool) -> Result:
    """Run a program; print a line at its start and its figure at its end."""
    print(f"{program.name:14} {program.attack} …", flush=True)
    result = run(program, is_long=is_long)
    verdict = "ok" if result.passed else f"FAILED, see {RESULTS / result.name}.txt"
    print(f"{result.name:14} {result.figure} · {result.seconds} s · {verdict}", flush=True)
    return result


def write_figures(
    results: Sequence[Result], *, began: str, is_long: bool, keeps_others: bool
) -> None:
    """Write build/prove/figures.json, the source of the figures in docs/reliability.md."""
    file = RESULTS / "figures.json"
    known = json.loads(file.read_text("utf-8")) if keeps_others and file.exists() else {}
    new = {
        each.name: {
            "promises": each.promises,
            "figure": each.figure,
            "seconds": each.seconds,
            "passed": each.passed,
            "began": began,
            "long": is_long,
        }
        for each in results
    }
    figures = {"machine": machine(), "programs": {**known.get("programs", {}), **new}}
    file.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", "utf-8")


def print_table(results: Sequence[Result], *, seconds: float) -> None:
    """Print a line for each program, and the time of all of them."""
    print("\nprogram        promises             seconds  verdict  figure")
    for each in results:
        promises = " ".join(map(str, each.promises))
        verdict = "ok" if each.passed else "FAILED"
        print(f"{each.name:14} {promises:20} {each.seconds:7.1f}  {verdict:7}  {each.figure}")
    failed_count = sum(not each.passed for each in results)
    print(f"{len(results)} programs, {failed_count} failed, {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
