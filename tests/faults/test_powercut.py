"""No power cut loses acknowledged writes, shows undecided ones, or needs a repair."""

import asyncio
import random
import re
import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.faults.history import Append, Outcome
from tests.faults.powercut import Cut, PowerCutProgram, cuts, newest_ms, record
from tests.faults.powercut_disk import (
    Call,
    Disk,
    TracedCall,
    read_trace,
    read_tree,
    write_tree,
)
from tests.faults.powercut_run import Recording
from tests.faults.powercut_state import Judge
from tests.faults.workload_powercut import TICKS
from tests.http.client import ok
from tests.http.process import serve
from tests.programs import needs

ANOMALIES = re.compile(r"\b[0-9]+ x ([A-Z_]+)")  # in the sentence about a state

pytestmark = [needs("cc"), pytest.mark.usefixtures("quiet")]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A run in which the table has committed rows, and has undone others."""
    made = record(tmp_path_factory.mktemp("recorded"), lives=1, units=3, copies=False)
    outcomes = {
        attempt.outcome
        for attempt in made.history
        if any(isinstance(action, Append) for action in attempt.actions)
    }
    assert {Outcome.OK, Outcome.FAIL} <= outcomes
    return made


def test_some_power_cuts_lose_nothing(recording: Recording, tmp_path: Path) -> None:
    program = PowerCutProgram(tmp_path)

    program.run(recording, states=40, seed=1, now_ms=newest_ms(recording))

    assert program.state_count >= 35
    assert program.wrong == []


def test_a_missing_table_is_found(recording: Recording, tmp_path: Path) -> None:
    left = read_tree(recording.root)
    write_tree(left, tmp_path / "whole")
    del left["table"]
    write_tree(left, tmp_path / "spoilt")

    def judge(name: str) -> None:
        position, now_ms = recording.trace.stat().st_size, newest_ms(recording)
        judged = Judge(recording).judge(tmp_path / name, position=position, now_ms=now_ms)
        asyncio.run(judged)

    judge("whole")
    with pytest.raises(AssertionError, match="LOST"):
        judge("spoilt")


def test_a_table_that_does_not_sync_its_undo_is_found(recording: Recording, tmp_path: Path) -> None:
    calls = list(read_trace(recording.trace))
    unsynced = list(_without_syncs_of_undone_rows(calls))
    right, wrong = PowerCutProgram(tmp_path), PowerCutProgram(tmp_path)

    right.judge(recording, _cuts_after_failures(recording, calls), now_ms=newest_ms(recording))
    wrong.judge(recording, _cuts_after_failures(recording, unsynced), now_ms=newest_ms(recording))

    assert right.wrong == []
    assert wrong.wrong
    # The batch of an undo is lost as a whole, and no other row with it. Each row is written once.
    for sentence in wrong.wrong:
        assert ANOMALIES.findall(sentence) == ["ABORTED_READ"], sentence


def _without_syncs_of_undone_rows(calls: Iterable[TracedCall]) -> Iterator[TracedCall]:
    """The calls of a table that does not sync what it undoes. Its next sync makes that durable."""
    undone = 0
    for done in calls:
        if done.path.parent.name == "table" and done.call is Call.WRITE:
            # The rows of an undo are written without values.
            undone = done.inode if b"/0" in done.rest and b"|xxxx" not in done.rest else 0
        if done.call is not Call.SYNC or done.inode != undone:
            yield done


def _cuts_after_failures(recording: Recording, calls: Iterable[TracedCall]) -> Iterator[Cut]:
    """What was synced when the client knew that its transaction with a table had failed. Its abort
    is durable by then, and the table has not written again."""
    ends = {
        attempt.completed // TICKS
        for attempt in recording.history
        if attempt.outcome is Outcome.FAIL
        and attempt.completed is not None
        and any(isinstance(action, Append) for action in attempt.actions)
    }
    disk = Disk(recording.root, engines=recording.engines)
    rest = deque(calls)
    for end in sorted(ends):
        while rest and rest[0].stop <= end:
            last = rest.popleft()
            disk.follow(last)
        yield Cut(end, disk.least(), last)


@pytest.mark.slow
def test_many_power_cuts_lose_nothing_and_leave_copies_whole(tmp_path: Path) -> None:
    recording = record(tmp_path, lives=4, units=8, copies=True)
    program = PowerCutProgram(tmp_path)

    program.run(recording, states=600, seed=2, now_ms=newest_ms(recording))

    assert program.wrong == []


@pytest.mark.slow
def test_a_server_starts_after_a_power_cut_and_is_ready(tmp_path: Path) -> None:
    recording = record(tmp_path, lives=2, units=6, copies=False)

    for cut in cuts(recording, random.Random(3), count=12):
        home = tmp_path / "state"
        write_tree(cut.tree, home)
        server = serve(home)
        reply = ok(server.client().get("/health/ready"))
        server.end()
        shutil.rmtree(home)

        assert reply.json["checks"]["storage"]["status"] == "ok", cut
        assert reply.json["checks"]["transactions"]["status"] == "ok", cut
