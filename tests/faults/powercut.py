"""Power cuts at every moment of a recorded run: `python -m tests.faults.powercut --states N`.

Each state that a power cut may leave is written to a disk, checked by fsck, recovered by the
server's own code, and compared with the replies that clients had by then (promises 1, 2, 4, 8, 9).
"""

import argparse
import asyncio
import hashlib
import logging
import random
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.disk import build
from tests.faults.powercut_disk import Disk, TracedCall, Tree, read_trace, read_tree, write_tree
from tests.faults.powercut_run import Recording, TracedRun
from tests.faults.powercut_state import Judge

LIVES = 4
UNITS = 12  # of each client in a life
MEMORY = Path("/dev/shm")  # where there is one, thousands of small directories cost no disk


@dataclass(frozen=True, slots=True)
class Cut:
    """A state that a power cut may leave at one position of the trace."""

    position: int
    tree: Tree
    after: TracedCall

    def fingerprint(self) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        _feed(digest, self.tree)
        return digest.digest()

    def __str__(self) -> str:
        return f"{self.after.call.name} {self.after.path} at byte {self.position} of the trace"


def _feed(digest: "hashlib.blake2b", tree: Tree) -> None:
    for name, node in sorted(tree.items()):
        digest.update(f"{name} {len(node)} {isinstance(node, dict)}\n".encode())
        if isinstance(node, bytes):
            digest.update(node)
        else:
            _feed(digest, node)


def cuts(recording: Recording, chance: random.Random, *, count: int) -> Iterator[Cut]:
    """So many states, spread over the whole run. No two have the same content and the same replies
    before them. Some have only what was synced, the others a random part of the rest."""
    calls = list(read_trace(recording.trace))
    odds = count / len(calls)
    disk = Disk(recording.root, engines=recording.engines)
    seen: set[tuple[bytes, int]] = set()
    made = 0.0
    for number, done in enumerate(calls, 1):
        if not disk.follow(done):
            continue
        wanted = number * odds
        tries = 0
        while made < wanted and tries < 3 + 3 * odds:
            tree = disk.least() if not tries and chance.random() < 0.2 else disk.some(chance)
            tries += 1
            cut = Cut(done.stop, tree, done)
            key = (cut.fingerprint(), recording.count_at(done.stop))
            if key not in seen:
                seen.add(key)
                made += 1
                yield cut
    assert same(disk.now(), read_tree(recording.root)), "the trace does not match the disk"


def same(traced: Tree, found: Tree) -> bool:
    """Whether everything that the trace leads to is there, unchanged."""
    return all(
        same(node, found[name]) if isinstance(node, dict) and isinstance(found[name], dict)
        else node == found[name]
        for name, node in traced.items()
    )  # fmt: skip


@dataclass(slots=True)
class PowerCutProgram:
    """Judges states one after the other, and keeps the sentences about wrong ones."""

    scratch: Path
    state_count: int = 0
    wrong: list[str] = field(default_factory=list)

    def run(self, recording: Recording, *, states: int, seed: int, now_ms: int) -> None:
        self.judge(recording, cuts(recording, random.Random(seed), count=states), now_ms=now_ms)

    def judge(self, recording: Recording, found: Iterable[Cut], *, now_ms: int) -> None:
        asyncio.run(self._judge(recording, found, now_ms=now_ms))

    async def _judge(self, recording: Recording, found: Iterable[Cut], *, now_ms: int) -> None:
        judge = Judge(recording)
        for cut in found:
            home = self.scratch / "state"
            write_tree(cut.tree, home)
            # A table keeps its transaction in the context, so each state gets a task of its own.
            judged = judge.judge(home, position=cut.position, now_ms=now_ms)
            try:
                await asyncio.create_task(judged)
            except Exception as error:  # noqa: BLE001 - any error means that this state is not recovered
                self.wrong.append(f"after {cut}: {type(error).__name__}: {error}")
            self.state_count += 1
            shutil.rmtree(home)


def record(home: Path, *, lives: int, units: int, copies: bool) -> Recording:
    """Record a run in this directory."""
    run = TracedRun(build(home), home / "root", home / "control")
    return run.record(lives=lives, units=units, copies=copies)


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="powercut", description=__doc__)
    parser.add_argument("--states", type=int, default=5_000, help="how many to judge")
    parser.add_argument("--seed", type=int, default=1, help="of what is left and what is lost")
    parser.add_argument("--lives", type=int, default=LIVES, help="of the server, in the run")
    parser.add_argument("--units", type=int, default=UNITS, help="of each client in a life")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # each recovery logs the tail that it cut
    place = MEMORY if MEMORY.is_dir() else None
    with TemporaryDirectory(dir=place) as directory:
        home = Path(directory)
        recording = record(home, lives=options.lives, units=options.units, copies=True)
        program = PowerCutProgram(home)
        now_ms = newest_ms(recording)
        program.run(recording, states=options.states, seed=options.seed, now_ms=now_ms)
        for sentence in program.wrong[:10]:
            print(sentence)
        acknowledged = sum(bool(each.completed and each.publishes) for each in recording.history)
        print(
            f"power cut: {program.state_count} states of a run with {acknowledged} acknowledged "
            f"units, {len(program.wrong)} wrong"
        )
    return 1 if program.wrong else 0


def newest_ms(recording: Recording) -> int:
    """A time after the run, in ms since the epoch: that of the last write to the trace."""
    return recording.trace.stat().st_mtime_ns // 1_000_000 + 1_000


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
