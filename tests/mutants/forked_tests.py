"""The pytest plug-in with which `random_mutants` tries each mutant in a fork.

TUFF_MUTANTS_PLAN names a file with the plan. A plan without mutants runs every test, and records in
the baseline which functions it calls. A plan with mutants tries each, and writes a line of JSON.
"""

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from hypothesis import Phase, settings

# Tests with other processes, whose calls are not recorded.
OVER_HTTP = "tests/http/"
FAR_OF_SERVER = (OVER_HTTP, "tests/admin/", "tests/faults/")
FAR_OF_CLIENT = ("tests/client/test_fork", "tests/table/test_server", "tests/faults/")
# A test hangs if it takes so many times as long as without a mutant, plus the time that a busy
# machine may need.
HANGS_AFTER_TIMES = 10
HANGS_AFTER_S = 10.0
# Limits by the time without a mutant.
IN_PROCESS_S = 30.0  # all tests that call the function
OVER_HTTP_S = 0.2  # each test over HTTP; all of them together take a hundred times as long


def pytest_configure(config: pytest.Config) -> None:
    plan = json.loads(Path(os.environ["TUFF_MUTANTS_PLAN"]).read_text())
    config.pluginmanager.register(Trying(plan) if "mutants" in plan else Noting(plan))


class Noting:
    """Runs everything once, and records which functions each test calls."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._plan = plan
        self._codes: dict[int, CodeType] = {}
        self._noted: dict[str, dict[str, Any]] = {}

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self._codes[id(frame.f_code)] = frame.f_code

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._codes.clear()
        began = time.monotonic()
        note = self._noted[item.nodeid] = {"failed": False}
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type] # as its documents have it
            note["seconds"] = time.monotonic() - began
            note["calls"] = sorted(self._ours())

    def _ours(self) -> set[str]:
        tree = self._plan["tree"] + "/"
        return {
            f"{code.co_filename.removeprefix(tree)}:{code.co_qualname.partition('.<locals>')[0]}"
            for code in list(self._codes.values())
            if code.co_filename.startswith(tree) and not code.co_filename.startswith(tree + "tests")
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._noted[report.nodeid]["failed"] = True

    def pytest_sessionfinish(self) -> None:
        Path(self._plan["baseline"]).write_text(json.dumps(self._noted))


class Trying:
    """Forks for each mutant; in the fork pytest runs the tests that concern it."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._plan = plan
        self._tree, self._home = Path(plan["tree"]), Path(plan["home"])
        self._noted = json.loads(Path(plan["baseline"]).read_text())
        self._told: int | None = None  # in a fork, the pipe to the parent
        self._running = "the start"  # the test that runs in the fork

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        # Failing examples are not shrunk, and no fork may use the examples of another one.
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings.default, database=None, phases=phases)
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        gc.unfreeze()  # gc.get_objects() has no frozen objects
        items = {item.nodeid: item for item in session.items}
        with Path(self._plan["out"]).open("w") as out:
            for number, mutant in enumerate(self._plan["mutants"]):
                began = time.monotonic()
                caught = self._try(session, items, mutant, number)
                if self._told is not None:
                    return None  # a fork: pytest runs what was chosen
                verdict = {**mutant, "caught": caught, "seconds": time.monotonic() - began}
                del verdict["source"]
                out.write(json.dumps(verdict) + "\n")
                out.flush()
        return True

    def _try(
        self, session: pytest.Session, items: Mapping[str, pytest.Item],
        mutant: Mapping[str, Any], number: int,
    ) -> str | None:  # fmt: skip
        """The test that caught it, or None; meaningless in a fork."""
        file = self._tree / mutant["file"]
        whole = file.read_text("utf-8")
        file.write_text(mutant["source"], "utf-8")
        # Python reuses a compiled file if the source has the same time and size.
        os.utime(file, (number + 1_000_000_000,) * 2)
        try:
            for chosen in self._stages(mutant, items):
                caught = self._run(session, chosen, mutant, whole)
                if self._told is not None or caught is not None:
                    return caught
            return None
        finally:
            if self._told is None:
                file.write_text(whole, "utf-8")
                os.utime(file, (900_000_000,) * 2)

    def _stages(
        self, mutant: Mapping[str, Any], items: Mapping[str, pytest.Item]
    ) -> Iterator[list[pytest.Item]]:
        """The stages: tests that call the function, short ones over HTTP, all tests with processes
        of their own, more seeds of the simulation."""
        call = f"{mutant['file']}:{mutant['function']}"
        name = Path(mutant["file"]).stem
        passing = {each: note for each, note in self._noted.items() if not note["failed"]}

        def place(test: str) -> tuple[bool, float]:
            return f"test_{name}" not in test, passing[test]["seconds"]

        calling = sorted((t for t, note in passing.items() if call in note["calls"]), key=place)
        # Tests of power cuts record a real run, which differs from run to run.
        near = [
            each for each in calling if not each.startswith(("tests/faults/", "tests/mutants/"))
        ]
        took = accumulate(passing[each]["seconds"] for each in near)
        yield [items[t] for t, sum_s in zip(near, took, strict=True) if sum_s < IN_PROCESS_S]
        is_of_server = mutant["file"].startswith(("tx/", "messaging/"))
        if is_of_server:
            # Each file in its own order: its tests may share a server.
            over_http = [t for t in passing if t.startswith(OVER_HTTP)]
            short = [t for t in over_http if passing[t]["seconds"] < OVER_HTTP_S]
            yield [items[t] for t in sorted(short, key=lambda t: f"/test_{name}" not in t)]
        if self._plan["quick"]:
            return
        far = FAR_OF_SERVER if is_of_server else FAR_OF_CLIENT
        yield [items[each] for each in passing if each.startswith(far)]
        yield [items[each] for each in calling if "more_seeds" in each]

    def _run(
        self, session: pytest.Session, chosen: list[pytest.Item], mutant: Mapping[str, Any],
        whole: str,
    ) -> str | None:  # fmt: skip
        if not chosen:
            return None
        reading, telling = os.pipe()
        if not (pid := os.fork()):
            os.setsid()
            os.close(reading)
            self._told = telling
            replace_code(str(self._tree / mutant["file"]), mutant["function"], whole,
                         mutant["source"])  # fmt: skip
            session.items[:] = chosen
            return None
        os.close(telling)
        try:
            return self._watch(reading)
        finally:
            os.close(reading)
            _end(pid)
            # A process in a session of its own may still write there.
            shutil.rmtree(self._home / "tmp", ignore_errors=True)
            (self._home / "tmp").mkdir(exist_ok=True)

    def _watch(self, reading: int) -> str | None:
        """The first test that fails or hangs in the fork; None if all pass."""
        running, said, limit_s = "the start", b"", HANGS_AFTER_S
        while select.select([reading], [], [], limit_s)[0]:
            if not (data := os.read(reading, 1 << 16)):
                return f"{running} (the process ended)"
            *lines, said = (said + data).split(b"\n")
            for line in lines:
                word, _, test = line.decode().partition(" ")
                if word == "failed":
                    return test
                if word == "over":
                    return None
                if word != "begins" or test not in self._noted:
                    continue  # a mutant that confuses descriptors wrote it
                running = test
                seconds = self._noted[test]["seconds"]
                limit_s = HANGS_AFTER_S + HANGS_AFTER_TIMES * seconds
        return f"{running} (it hung)"

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running = nodeid
        self._tell(f"begins {nodeid}")

    def pytest_internalerror(self) -> None:
        # pytest parses the source to show where a test failed. In a fork Python 3.11 may fail to do
        # so ("AST constructor recursion depth mismatch"), and the mutant would count as survived.
        self._tell(f"failed {self._running}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell(f"failed {report.nodeid}")

    def pytest_sessionfinish(self) -> None:
        self._tell("over ")

    def _tell(self, line: str) -> None:
        if self._told is not None:
            os.write(self._told, line.encode() + b"\n")


def _end(pid: int) -> None:
    """End a fork and its process group; its servers end with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def replace_code(file: str, function: str, before: str, after: str) -> int:
    """Give every live function of that name, and those within it, the code of `after`; returns how
    many there were."""
    places = {(name, code.co_firstlineno): (name, number)
              for name, number, code in _codes(compile(before, file, "exec"))}  # fmt: skip
    codes = {(name, number): code for name, number, code in _codes(compile(after, file, "exec"))}
    count = 0
    for each in gc.get_objects():
        if not isinstance(each, FunctionType) or each.__code__.co_filename != file:
            continue
        name = each.__code__.co_qualname
        if name != function and not name.startswith(function + ".<locals>"):
            continue
        instead = codes.get(places[name, each.__code__.co_firstlineno])
        if instead is not None:
            if not instead.co_freevars:  # without its `super()` it no longer has `__class__`
                instead = instead.replace(co_freevars=each.__code__.co_freevars)
            each.__code__ = instead
            count += 1
    return count


def _codes(code: CodeType) -> Iterator[tuple[str, int, CodeType]]:
    """Each code object within another, with how many of the same name come before it."""
    counts: dict[str, int] = {}
    pending = [code]
    while pending:
        one = pending.pop()
        number = counts[one.co_qualname] = counts.get(one.co_qualname, -1) + 1
        yield one.co_qualname, number, one
        pending += [each for each in reversed(one.co_consts) if isinstance(each, CodeType)]
