"""No power cut loses what was acknowledged, shows what was not decided, or needs a repair."""

import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disk import has_compiler
from tests.faults.powercut import Program, cuts, newest_ms, record
from tests.faults.powercut_disk import put
from tests.http.client import ok
from tests.http.process import serve

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs cc, to see what a server does")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Each of thousands of recoveries says what it cut off."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


def test_some_power_cuts_lose_nothing(tmp_path: Path) -> None:
    recording = record(tmp_path, lives=1, units=3, copies=False)
    program = Program(tmp_path)

    program.run(recording, states=40, seed=1, now_ms=newest_ms(recording))

    assert program.state_count >= 35
    assert program.wrong == []


@pytest.mark.slow
def test_many_power_cuts_lose_nothing_and_leave_copies_whole(tmp_path: Path) -> None:
    recording = record(tmp_path, lives=4, units=8, copies=True)
    program = Program(tmp_path)

    program.run(recording, states=600, seed=2, now_ms=newest_ms(recording))

    assert program.wrong == []


@pytest.mark.slow
def test_a_server_starts_on_what_is_left_and_is_ready(tmp_path: Path) -> None:
    recording = record(tmp_path, lives=2, units=6, copies=False)

    for cut in cuts(recording, random.Random(3), count=12):
        home = tmp_path / "state"
        put(cut.tree, home)
        server = serve(home)
        reply = ok(server.client().get("/health/ready"))
        server.end()
        shutil.rmtree(home)

        assert reply.json["checks"]["storage"]["status"] == "ok", cut
        assert reply.json["checks"]["transactions"]["status"] == "ok", cut
