"""Every breakpoint is passed, and a fault there breaks no promise."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.breakpoints import BreakpointProgram, BreakpointServer, asked
from tests.faults.breakpoints_table import BY_NAME, POINTS, Fault, Operation, Point
from tests.http.calls import TRANSACTIONS, Topic, begin, entry
from tests.http.client import ok

# One of each operation; `python -m tests.faults.breakpoints` runs all of them.
PAGE = Path(__file__).resolve().parents[2] / "docs/reliability.md"
PROOF_S = 0.5  # seconds, in which a log that is idle writes a proof
CHOSEN = ("batch durable", "rows durable", "rows not rolled back yet", "log made")


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


def outcomes_of_kills() -> dict[str, str]:
    """The table of docs/reliability.md: how a commit ends by the place at which it was killed."""
    _, _, table = PAGE.read_text("utf-8").partition("| Killed at |")
    rows = table.partition("\n\n")[0]
    return dict(re.findall(r"^\| `([^`]+)` \|.* \| ([a-z ]+) \|$", rows, re.MULTILINE))


def test_the_page_says_what_a_kill_at_each_place_of_a_commit_leaves() -> None:
    places = [point.name for point in POINTS if point.operation is Operation.COMMIT]

    assert list(outcomes_of_kills()) == places


@pytest.mark.slow
def test_a_commit_that_is_killed_ends_as_the_page_says(broken: BreakpointServer) -> None:
    found = {}
    for place in outcomes_of_kills():
        client = broken.server.client()
        topic, tx = Topic(client, "faults", "t0"), begin(client)
        ok(tx.checkpoint())  # so that its start is in the log
        time.sleep(PROOF_S)
        broken.arm(BY_NAME[place], Fault.KILL)
        asked(lambda tx=tx, topic=topic: tx.commit(publish=[entry(topic, "a")]))
        broken.restart()
        state = ok(broken.server.client().get(f"{TRANSACTIONS}/{tx.id}")).json["state"]
        found[place] = str(state).replace("_", " ")

    assert found == outcomes_of_kills()
