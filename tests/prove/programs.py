"""What is run to attack the promises, one program after the other; docs/reliability.md tells why.

A program says its figure in the last line it prints, and its verdict with its exit code.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One attack. `promises` are the numbers of docs/architecture.md §2; `scaled` is what twenty
    minutes on two cores allow for, all programs together, and `full` the whole of it. Who
    `shares_cores` needs one, measures no time, and may run beside another such program."""

    name: str
    promises: tuple[int, ...]
    attack: str
    scaled: Command
    full: Command
    shares_cores: bool = False
    within_s: int = 1_200  # of the scaled one; ten times that for the whole


def _python(module: str, *arguments: str) -> Command:
    return (sys.executable, "-m", module, *arguments)


def _tests(*arguments: str) -> Command:
    # What was left out for want of a tool attacked nothing.
    return _python("pytest", "-q", "--no-skips", *arguments)


def _spark(name: str, *arguments: str) -> Command:
    return _python(f"tests.spark.{name}", *arguments)


def _pipeline(name: str, *arguments: str) -> Command:
    return _python(f"tests.pipeline.{name}", *arguments)


def _fault(name: str, *arguments: str) -> Command:
    return _python(f"tests.faults.{name}", *arguments)


EVERY = (1, 2, 3, 4, 5, 6, 7, 8, 9)

PROGRAMS: Sequence[Program] = (
    Program(
        name="simulation",
        promises=EVERY,
        attack="random histories of both rooms on a virtual clock and disk, by seed",
        scaled=_python("tests.simulation", "--seeds", "3000"),
        full=_python("tests.simulation", "--hours", "3"),
        shares_cores=True,
    ),
    Program(
        name="kill",
        promises=(1, 2, 3, 4, 5, 9),
        attack="SIGKILL of a server under 64 clients, and exact accounting of what they were told",
        scaled=_fault("kill", "--kills", "12", "--keep", "build/prove/kill.jsonl"),
        full=_fault(
            "kill",
            "--kills",
            "1000",
            "--keep",
            "build/prove/kill.jsonl",
            "--tally",
            "build/prove/kills.jsonl",
        ),
    ),
    Program(
        name="mixed",
        promises=(3, 4, 5),
        attack="mixed clients of topics and a table; their history has no cycle that SI forbids",
        scaled=_fault("mixed", "--attempts", "2000", "--keep", "build/prove/mixed.jsonl"),
        full=_fault("mixed", "--attempts", "50000", "--keep", "build/prove/mixed.jsonl"),
    ),
    Program(
        name="skew",
        promises=(5,),
        attack="write skew, which is allowed, is found where clients make it",
        scaled=_fault("mixed", "--skew", "20", "--keep", "build/prove/skew.jsonl"),
        full=_fault("mixed", "--skew", "200", "--keep", "build/prove/skew.jsonl"),
    ),
    Program(
        name="breakpoints",
        promises=(1, 2, 4, 5, 9),
        attack="a kill, an error and a pause at each named step of publish and commit",
        scaled=_tests("tests/faults/test_breakpoints.py"),
        full=_fault("breakpoints"),
    ),
    Program(
        name="pauses",
        promises=(4, 5, 6, 9),
        attack="clients and the server stopped and let go on in the middle of their work",
        scaled=_fault("pauses", "--pauses", "2", "--keep", "build/prove/pauses.jsonl"),
        full=_fault("pauses", "--pauses", "50", "--keep", "build/prove/pauses.jsonl"),
    ),
    Program(
        name="vanishing",
        promises=(6,),
        attack="clients that begin, publish and vanish, while readers measure how long they wait",
        scaled=_fault("vanishing", "--clients", "2000"),
        full=_fault("vanishing", "--clients", "10000"),
    ),
    Program(
        name="independence",
        promises=(7,),
        attack="publishing while transactions are stopped, hung, crashed and damaged",
        scaled=_fault("independence", "--rounds", "10"),
        full=_fault("independence", "--rounds", "40"),
    ),
    Program(
        name="bank",
        promises=(4, 5, 9),
        attack="transfers in a table and their messages, with both processes killed",
        scaled=_fault("bank", "--kills", "3"),
        full=_fault("bank", "--kills", "50", "--seconds", "1800"),
        within_s=300,
    ),
    Program(
        name="powercut",
        promises=(1, 2, 4, 8, 9),
        attack="states that a power cut may leave of a recorded run, each of them opened",
        scaled=_fault("powercut", "--states", "300"),
        full=_fault("powercut", "--states", "50000"),
        shares_cores=True,
    ),
    Program(
        name="damage",
        promises=(8,),
        attack="flipped and cut bytes of logs, snapshots and LevelDB's files",
        scaled=_fault("damage", "--bytes", "2048", "--engine", "40", "--servers", "6"),
        full=_fault("damage"),
        shares_cores=True,
    ),
    Program(
        name="disk",
        promises=(1, 7, 8),
        attack="full disks, syncs and writes that fail, under real servers",
        scaled=_tests("tests/faults/test_fsync.py", "tests/faults/test_disk_space.py"),
        full=_tests(
            "tests/faults/test_fsync.py",
            "tests/faults/test_disk_space.py",
            "tests/faults/test_full_disk.py",
        ),
    ),
    Program(
        name="clocks",
        promises=(1, 2, 9),
        attack="clocks that step, stand still and run away, under a real server and between lives",
        scaled=_fault("clocks"),
        full=_fault("clocks"),
    ),
    Program(
        name="backups",
        promises=(1, 2, 3, 4, 5, 9),
        attack="backups of a loaded server, each restored and held against what clients were told",
        scaled=_fault("backups", "--backups", "5"),
        full=_fault("backups", "--backups", "100", "--ballast", "200"),
    ),
    Program(
        name="spark-torn",
        promises=(4, 5),
        attack="Spark reads two topics while transactions publish to both; no pair is torn",
        scaled=_spark("torn", "--pairs", "20000"),
        full=_spark("torn", "--pairs", "1000000"),
    ),
    Program(
        name="spark-replays",
        promises=(4, 9),
        attack="every epoch of a Spark sink run again, as after a crash, and by zombies",
        scaled=_spark("replays", "--epochs", "150"),
        full=_spark("replays", "--epochs", "20000"),
    ),
    Program(
        name="spark-kill",
        promises=(1, 4, 9),
        attack="SIGKILL of a Spark driver at each point of a stream's batch, then a new driver",
        scaled=_spark("kill", "--kills", "3"),
        full=_spark("kill", "--kills", "200"),
    ),
    Program(
        name="spark-spec",
        promises=(4,),
        attack="two workers of Spark run one task at once, executors die; its rows are there once",
        scaled=_spark("speculation"),
        full=_spark("speculation"),
    ),
    Program(
        name="jobs-kill",
        promises=(1, 3, 4, 9),
        attack="SIGKILL of archive, compact, replay, audit and retry, which then run again",
        scaled=_pipeline("kill", "--kills", "5"),
        full=_pipeline("kill", "--kills", "300"),
    ),
    Program(
        name="fuzz",
        promises=(8,),
        attack="any bytes into every decoder, guided by coverage",
        scaled=_python("tests.fuzz", "--seconds", "90"),
        full=_python("tests.fuzz", "--seconds", "7200"),
    ),
    Program(
        name="api",
        promises=(9,),
        attack="requests that follow the OpenAPI document, and that don't",
        scaled=_python("tests.fuzz.api", "--examples", "5"),
        full=_python("tests.fuzz.api", "--examples", "500"),
    ),
    Program(
        name="mutants",
        promises=EVERY,
        attack="bugs planted in copies of the tree, each caught by the test that is named for it",
        scaled=_python("tests.mutants"),
        full=_python("tests.mutants"),
    ),
)
