"""The trace that the shim writes, as it is read: whole records, and one that was cut short."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.disk import Shim
from tests.faults.powercut_disk import (
    Call,
    Disk,
    TornRecordError,
    TracedCall,
    read_trace,
    read_tree,
)
from tests.http.client import until

SOME_CALLS = """
import os, sys
os.chdir(sys.argv[1])
file = os.open("f.tmp", os.O_CREAT | os.O_WRONLY)
os.write(file, b"n" * 300)
os.fsync(file)
os.rename("f.tmp", "f")
os.write(file, b"more")
os.ftruncate(file, 302)
"""

ENDLESS_WRITES = """
import itertools, os, sys
file = os.open(sys.argv[1] + "/f", os.O_CREAT | os.O_WRONLY)
for number in itertools.count():
    os.pwrite(file, bytes([number % 256]) * (1 << 20), 0)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def traced(shim: Shim, root: Path) -> list[TracedCall]:
    """The calls of a program that ran to its end."""
    command = [sys.executable, "-S", "-c", SOME_CALLS, str(root)]
    subprocess.run(command, env=shim.environment(traced=True), check=True)
    return list(read_trace(shim.trace))


def test_a_trace_has_all_calls_in_order(traced: list[TracedCall], root: Path) -> None:
    inode = (root / "f").stat().st_ino
    found = [(each.call, each.inode, each.offset, each.path.name, each.rest) for each in traced]

    assert found == [
        (Call.CREATE, inode, 0, "f.tmp", b""),
        (Call.WRITE, inode, 0, "f.tmp", b"n" * 300),
        (Call.SYNC, inode, 0, "f.tmp", b""),
        (Call.RENAME, 0, 0, "f.tmp", str(root / "f").encode()),
        (Call.WRITE, inode, 300, "f", b"more"),
        (Call.TRUNCATE, inode, 302, "f", b""),
    ]


def test_a_trace_that_was_cut_anywhere_has_the_calls_whose_records_are_whole(
    traced: list[TracedCall], shim: Shim, tmp_path: Path
) -> None:
    trace, cut = shim.trace.read_bytes(), tmp_path / "cut"

    for size in range(len(trace) + 1):
        cut.write_bytes(trace[:size])
        assert list(read_trace(cut)) == [each for each in traced if each.stop <= size], size


def test_a_torn_record_before_others_is_an_error(
    traced: list[TracedCall], shim: Shim, tmp_path: Path
) -> None:
    trace, torn = shim.trace.read_bytes(), tmp_path / "torn"
    starts = [0, *(each.stop for each in traced)]

    for start, done in zip(starts, traced[:-1], strict=False):
        for size in range(start + 1, done.stop):
            torn.write_bytes(trace[:size] + trace[done.stop :])
            with pytest.raises(TornRecordError, match=f"the record at byte {start} of"):
                list(read_trace(torn))


def test_a_program_that_is_killed_between_two_calls_leaves_whole_records_of_all_its_calls(
    shim: Shim, root: Path
) -> None:
    command = [sys.executable, "-S", "-c", ENDLESS_WRITES, str(root)]
    shim.trace.touch()

    for _ in range(5):
        before = shim.position()
        with subprocess.Popen(command, env=shim.environment(traced=True)) as program:
            until(lambda before=before: shim.position() > before + (1 << 20))
            with shim.between_calls():
                program.kill()
                program.wait()

    disk = Disk(root, engines=())
    for done in read_trace(shim.trace):
        disk.follow(done)
    assert list(read_trace(shim.trace))[-1].stop == shim.position()
    assert disk.now() == read_tree(root)
