"""Every breakpoint is passed, and a fault there breaks no promise."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.breakpoints import BreakpointProgram, BreakpointServer
from tests.faults.breakpoints_table import BY_NAME, POINTS, Fault, Point
from tests.http.calls import TRANSACTIONS, Topic, begin, entry
from tests.http.client import ok

# One of each operation; `python -m tests.faults.breakpoints` runs all of them.
CHOSEN = ("batch durable", "rows durable", "rows not marked yet", "log made")


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[BreakpointServer]:
    made = BreakpointServer(tmp_path / "server")
    yield made
    made.end()


def test_every_breakpoint_is_passed(broken: BreakpointServer) -> None:
    """A breakpoint that is no longer passed would attack nothing."""
    client = broken.server.client()
    topic = Topic(client, "faults", "t0")

    ok(topic.publish("plain"))
    tx = begin(client)
    ok(tx.commit(publish=[entry(topic, "with the commit")]))
    tx = begin(client)
    ok(topic.publish("to be taken back", tx=tx.id))
    ok(tx.abort())
    ok(client.post(f"{TRANSACTIONS}/snapshot"))

    assert set(BY_NAME) - broken.reached("passed") == set()
    assert len(BY_NAME) == len(POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("point", [BY_NAME[name] for name in CHOSEN], ids=CHOSEN)
def test_a_server_with_a_fault_at_a_breakpoint_keeps_its_promises(
    broken: BreakpointServer, point: Point
) -> None:
    breaking = BreakpointProgram(broken)

    try:
        told = [breaking.at(point, fault) for fault in Fault]
    finally:
        breaking.end()

    assert told[0] == "nothing"
    assert told[-1] == "done"
