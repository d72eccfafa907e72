"""The programs that attack the promises; docs/reliability.md describes them.

Each prints its figure in its last line, and exits with 0 exactly if no promise was broken.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One attack. `promises` are the numbers of docs/architecture.md §2.

    `scaled` and `full` are a module and its arguments: all scaled commands together take twenty
    minutes on two cores, the full ones hours. A program that `shares_cores` needs one core and
    measures no time, so two such programs may run at once.
    """

    name: str
    promises: tuple[int, ...]
    attack: str
    scaled: str
    full: str
    shares_cores: bool = False
    scaled_within_s: int = 1_200


def command_of(module_and_arguments: str) -> tuple[str, ...]:
    """What to run for `scaled` or `full`."""
    return (sys.executable, "-m", *module_and_arguments.split())


EVERY = (1, 2, 3, 4, 5, 6, 7, 8, 9)
# A test that is skipped because a tool is missing attacks nothing, so it counts as a failure.
PYTEST = "pytest -q --no-skips"
DISK_TESTS = "tests/faults/test_fsync.py tests/faults/test_disk_space.py"

PROGRAMS: Sequence[Program] = (
    Program(
        name="simulation", promises=EVERY, shares_cores=True,
        attack="random histories of both components on a virtual clock and disk, by seed",
        scaled="tests.simulation --seeds 3000",
        full="tests.simulation --hours 3",
    ),
    Program(
        name="cluster", promises=(1, 2, 3, 5, 9), shares_cores=True,
        attack="random histories of two or three servers of a cluster, by seed",
        scaled="tests.simulation --cluster --seeds 500",
        full="tests.simulation --cluster --hours 1",
    ),
    Program(
        name="kill", promises=(1, 2, 3, 4, 5, 9),
        attack="SIGKILL of a server under 64 clients, and exact accounting of all replies",
        scaled="tests.faults.kill --kills 12 --keep build/prove/kill.jsonl",
        full="tests.faults.kill --kills 1000 --keep build/prove/kill.jsonl"
        " --tally build/prove/kills.jsonl",
    ),
    Program(
        name="mixed", promises=(3, 4, 5),
        attack="clients of topics and a table; their history has no cycle that SI forbids",
        scaled="tests.faults.mixed --attempts 2000 --keep build/prove/mixed.jsonl",
        full="tests.faults.mixed --attempts 50000 --keep build/prove/mixed.jsonl",
    ),
    Program(
        name="skew", promises=(5,),
        attack="write skew, which is allowed, is found where clients provoke it",
        scaled="tests.faults.mixed --skew 20 --keep build/prove/skew.jsonl",
        full="tests.faults.mixed --skew 200 --keep build/prove/skew.jsonl",
    ),
    Program(
        name="breakpoints", promises=(1, 2, 4, 5, 9),
        attack="a kill, an error and a pause at each named step of publish and commit",
        scaled=f"{PYTEST} tests/faults/test_breakpoints.py",
        full="tests.faults.breakpoints",
    ),
    Program(
        name="pauses", promises=(4, 5, 6, 9),
        attack="clients and the server suspended and resumed in the middle of their work",
        scaled="tests.faults.pauses --pauses 2 --keep build/prove/pauses.jsonl",
        full="tests.faults.pauses --pauses 50 --keep build/prove/pauses.jsonl",
    ),
    Program(
        name="vanishing", promises=(6,),
        attack="clients that begin, publish and vanish, while readers measure how long they wait",
        scaled="tests.faults.vanishing --clients 2000",
        full="tests.faults.vanishing --clients 10000",
    ),
    Program(
        name="independence", promises=(7,),
        attack="publishing while transactions are stopped, hung, crashed and damaged",
        scaled="tests.faults.independence --rounds 10",
        full="tests.faults.independence --rounds 40",
    ),
    Program(
        name="bank", promises=(4, 5, 9), scaled_within_s=300,
        attack="transfers in a table and their messages, with both processes killed",
        scaled="tests.faults.bank --kills 3",
        full="tests.faults.bank --kills 50 --seconds 1800",
    ),
    Program(
        name="groups", promises=(4, 9),
        attack="members of a consumer group killed and suspended while they process messages",
        scaled="tests.faults.groups --kills 3 --pauses 2",
        full="tests.faults.groups --kills 50 --pauses 20",
    ),
    Program(
        name="share_groups", promises=(4, 9),
        attack="workers of a share group and their server killed while they process messages",
        scaled="tests.faults.share_groups --kills 3 --pauses 2 --restarts 2",
        full="tests.faults.share_groups --kills 50 --pauses 20 --restarts 20",
    ),
    Program(
        name="sql", promises=(1, 2, 4, 9),
        attack="SIGKILL of programs, server and PostgreSQL, whose rows and messages agree",
        scaled="tests.faults.sql --kills 60 --transactions 100000",
        full="tests.faults.sql --kills 1000 --transactions 100000",
    ),
    Program(
        name="sql_groups", promises=(4, 9),
        attack="members of a group killed and suspended whose positions are in PostgreSQL",
        scaled="tests.faults.sql_groups --faults 24",
        full="tests.faults.sql_groups --faults 300 --messages 30000",
    ),
    Program(
        name="mariadb", promises=(4, 9), shares_cores=True,
        attack="the question whether MariaDB committed, at each isolation level",
        scaled=f"{PYTEST} tests/sql/test_mariadb.py",
        full=f"{PYTEST} tests/sql/test_mariadb.py",
    ),
    Program(
        name="powercut", promises=(1, 2, 4, 8, 9), shares_cores=True,
        attack="states that a power cut may leave of a recorded run, each of them opened",
        scaled="tests.faults.powercut --states 300",
        full="tests.faults.powercut --states 50000",
    ),
    Program(
        name="damage", promises=(8,), shares_cores=True,
        attack="flipped and cut bytes of logs, snapshots and LevelDB's files",
        scaled="tests.faults.damage --bytes 2048 --engine 40 --servers 6",
        full="tests.faults.damage",
    ),
    Program(
        name="disk", promises=(1, 7, 8),
        attack="full disks, syncs and writes that fail, under real servers",
        scaled=f"{PYTEST} {DISK_TESTS}",
        full=f"{PYTEST} {DISK_TESTS} tests/faults/test_full_disk.py",
    ),
    Program(
        name="clocks", promises=(1, 2, 9),
        attack="clocks that step and stand still, under a running server and between two starts",
        scaled="tests.faults.clocks",
        full="tests.faults.clocks",
    ),
    Program(
        name="backups", promises=(1, 2, 3, 4, 5, 9),
        attack="backups of a loaded server, each restored and compared with all replies to clients",
        scaled="tests.faults.backups --backups 5",
        full="tests.faults.backups --backups 100 --ballast 200",
    ),
    Program(
        name="spark-torn", promises=(4, 5),
        attack="Spark reads two topics while transactions publish to both; no pair is torn",
        scaled="tests.spark.torn --pairs 20000",
        full="tests.spark.torn --pairs 1000000",
    ),
    Program(
        name="spark-replays", promises=(4, 9),
        attack="every epoch of a Spark sink run again, as after a crash, and by zombies",
        scaled="tests.spark.replays --epochs 150",
        full="tests.spark.replays --epochs 20000",
    ),
    Program(
        name="spark-kill", promises=(1, 4, 9),
        attack="SIGKILL of a Spark driver at each point of a stream's batch, then a new driver",
        scaled="tests.spark.kill --kills 3",
        full="tests.spark.kill --kills 200",
    ),
    Program(
        name="spark-kill-parts", promises=(1, 4, 9),
        attack="the same with four partitions in each topic; each key keeps its order",
        scaled="tests.spark.kill --kills 3 --partitions 4",
        full="tests.spark.kill --kills 100 --partitions 4",
    ),
    Program(
        name="spark-spec", promises=(4,),
        attack="two workers of Spark run one task at once, executors die; its rows are there once",
        scaled="tests.spark.speculation",
        full="tests.spark.speculation",
    ),
    Program(
        name="jobs-kill", promises=(1, 3, 4, 9),
        attack="SIGKILL of archive, compact, replay, audit and retry, which then run again",
        scaled="tests.pipeline.kill --kills 5",
        full="tests.pipeline.kill --kills 300",
    ),
    Program(
        name="fuzz", promises=(8,),
        attack="any bytes into every decoder, guided by coverage",
        scaled="tests.fuzz --seconds 90",
        full="tests.fuzz --seconds 7200",
    ),
    Program(
        name="api", promises=(9,),
        attack="requests that follow the OpenAPI document, and requests that do not",
        scaled="tests.fuzz.api --examples 5",
        full="tests.fuzz.api --examples 500",
    ),
    Program(
        name="mutants", promises=EVERY,
        attack="bugs planted in copies of the tree, each caught by the test that is named for it",
        scaled="tests.mutants",
        full="tests.mutants",
    ),
)  # fmt: skip
