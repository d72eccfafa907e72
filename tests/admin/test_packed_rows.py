"""A flipped bit in a hundred packed rows costs at most one message (promise 8)."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from messaging.model.packed_rows import is_packed
from messaging.model.row_format import MESSAGES
from tests.admin.files import flipped, found_in
from tests.admin.test_salvage import assert_nothing_new, salvaged
from tests.http.calls import Topic, created, payloads
from tests.http.client import ok
from tests.http.process import ServerProcess, serve
from tests.messaging.packed_stores import without_flags, without_sizes
from tuff_storage.leveldb.engine import plyvel

PAYLOADS = [f"message {number:03} of a run".encode() for number in range(100)]
HEAD_BYTES = (
    1 + 4 + 2 + 8 * len(PAYLOADS)
)  # flags, checksum, count, sizes, checksums (formats §8.8)


def left_with_packed_rows(home: Path) -> ServerProcess:
    """A stopped server; all messages of its topic are in one stored value."""
    server = serve(home)
    with closing(server.client()) as client:
        topic = created(client, "default", "t")
        ok(topic.publish(*[payload.decode() for payload in PAYLOADS]))
    server.end()
    return server


@pytest.fixture(params=["in the log", "in a table"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The data of a server that took a hundred messages in one publish."""
    server = left_with_packed_rows(tmp_path)
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


def test_no_flipped_bit_in_packed_rows_costs_more_than_a_message(
    stored: Path, tmp_path: Path
) -> None:
    """It is reported, the others are read, and salvage keeps them."""
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


def change_packed_rows(data: Path, damage: Callable[[bytes], bytes]) -> None:
    """Replace the packed rows by another value, which the engine takes for intact; it has no older
    version."""
    table = str(data / "messages")
    with closing(plyvel.DB(table)) as database:
        rows = list(database)
    plyvel.destroy_db(table)
    with closing(plyvel.DB(table, create_if_missing=True)) as database:
        for key, value in rows:
            is_the_run = key[:1] == MESSAGES and is_packed(value)
            database.put(key, damage(value) if is_the_run else value)


def polled(topic: Topic, **query: object) -> tuple[list[str], list[str]]:
    """What a reader receives that goes on after each corruption, and the errors that it gets."""
    body: dict[str, object] = {}
    handed, told = [], []
    for _ in range(9):
        reply = topic.poll(body, **query)
        if reply.status == 500:
            assert reply.json["code"] == "damaged_record"
            told.append(reply.json["detail"])
            body = {"startFrom": reply.json["next"], "inclusive": False}
            continue
        handed += payloads(reply)
        if reply.headers["tuff-caught-up"] == "true":
            return handed, told
        body = {"startFrom": reply.headers["tuff-next"], "inclusive": False}
    raise AssertionError("the read comes to no end")


def test_a_reader_gets_an_error_for_packed_rows_that_can_not_be_separated(tmp_path: Path) -> None:
    """A reader `through` one of the first messages got the answer that it was caught up."""
    server = serve(tmp_path)
    with closing(server.client()) as client:
        topic = created(client, "default", "t")
        ok(topic.publish(*[payload.decode() for payload in PAYLOADS]))
        ids = [message["id"] for message in ok(topic.poll()).json]
        ok(topic.publish("behind it"))
    server.end()
    change_packed_rows(server.data, without_sizes)
    assert any("may have been up to" in finding.reason for finding in found_in(server.data))

    server = serve(tmp_path)
    with closing(server.client()) as client:
        topic = Topic(client, "default", "t")
        for through in (ids[0], ids[50], ids[99]):
            handed, (told,) = polled(topic, through=through)
            assert handed == []
            assert ids[99] in told
            assert "up to 100 messages, of which this was the last" in told
        assert polled(topic)[0] == ["behind it"]
    server.end()


def test_packed_rows_without_their_flags_are_read_and_salvaged(tmp_path: Path) -> None:
    """A single flipped bit cost all messages."""
    server = left_with_packed_rows(tmp_path / "old")
    change_packed_rows(server.data, without_flags)

    _, seen = salvaged(server.data, tmp_path / "new")
    assert sorted(seen.payloads.values()) == PAYLOADS
    server = serve(tmp_path / "old")
    with closing(server.client()) as client:
        handed = polled(Topic(client, "default", "t"))
    server.end()

    assert handed == ([payload.decode() for payload in PAYLOADS], [])


def test_salvage_reports_that_it_took_an_older_version_of_packed_rows(tmp_path: Path) -> None:
    """`tuff fsck` reported only the rows of the version before it."""
    server = left_with_packed_rows(tmp_path / "old")
    with closing(plyvel.DB(str(server.data / "messages"))) as database:
        ((key, run),) = [row for row in database if row[0][:1] == MESSAGES and is_packed(row[1])]
        database.put(key, without_sizes(run))

    (finding,) = found_in(server.data)
    account, seen = salvaged(server.data, tmp_path / "new")

    assert key[1:].hex() in finding.location
    assert len(account.decided) == 1
    assert sorted(seen.payloads.values()) == PAYLOADS
