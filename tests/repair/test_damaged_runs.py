"""A flipped bit in a value of a hundred messages costs no more than one of them (promise 8)."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.http.calls import Topic
from tests.http.client import ok
from tests.http.process import serve
from tests.repair.files import flipped, found_in
from tests.repair.test_salvage import assert_nothing_new, salvaged

PAYLOADS = [f"message {number:03} of a run".encode() for number in range(100)]
HEAD_BYTES = (
    1 + 4 + 2 + 8 * len(PAYLOADS)
)  # flags, checksum, count, sizes, checksums (formats §8.8)


@pytest.fixture(params=["in the log", "in a table"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What a server leaves that took a hundred messages in one publish."""
    server = serve(tmp_path)
    with closing(server.client()) as client:
        topic = Topic(client, "default", "t")
        ok(topic.create())
        ok(topic.publish(*[payload.decode() for payload in PAYLOADS]))
    server.end()
    if request.param == "in a table":
        serve(tmp_path).end()  # what was in the log is put into a table by the next start
    return server.data


def places(data: Path) -> Iterator[tuple[Path, int, int]]:
    """A file, a byte of it, and how many messages a flipped bit there may cost."""
    for path in (data / "messages").iterdir():
        at = path.read_bytes().find(PAYLOADS[0])
        if at < 0:
            continue
        start = at - HEAD_BYTES
        yield path, start, 1  # the flags
        yield path, start + 3, 0  # the checksum of all
        yield path, start + 6, 1  # the count
        yield path, start + 7 + 4 * 40 + 3, 1  # a size
        yield path, start + 7 + 4 * 140, 1  # a checksum
        yield path, at + len(PAYLOADS[0]) * 57 + 9, 1  # a payload


def test_no_bit_of_a_run_costs_more_than_a_message(stored: Path, tmp_path: Path) -> None:
    """It is told, the others are read, and salvage keeps them."""
    _, truth = salvaged(stored, tmp_path / "whole")
    assert sorted(truth.payloads.values()) == PAYLOADS
    tried = 0
    for path, at, cost in places(stored):
        with flipped(path, at):
            tried += 1
            assert found_in(stored) != [], at
            account, seen = salvaged(stored, tmp_path / f"new-{tried}")
        assert account.lost != []
        assert_nothing_new(truth, seen)
        assert len(truth.payloads) - len(seen.payloads) <= cost, at
    assert tried >= 6
