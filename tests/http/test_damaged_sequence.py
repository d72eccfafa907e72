"""A flipped bit in what LevelDB itself keeps beside a key is told as well (promise 8)."""

from collections.abc import Iterator
from pathlib import Path

import plyvel
import pytest

from tests.faults.damage_judge import read_past_damage
from tests.http.calls import Topic, begin
from tests.http.client import Client, ok
from tests.http.process import serve

BLOCK_BYTES = 4096
BEFORE_VALUE = 3  # bytes; there is a high byte of the number that LevelDB gave the row


def flip_sequence(messages: Path, needle: bytes) -> None:
    """Let the row with these bytes be newer than any snapshot of LevelDB."""
    # What was in a log is in a table then, as it is.
    database = plyvel.DB(str(messages), compression=None)
    [value] = [value for _, value in database if needle in value]
    database.close()
    [table] = [path for path in messages.glob("*.ldb") if value in path.read_bytes()]
    data = bytearray(table.read_bytes())
    data[data.index(value) - BEFORE_VALUE] ^= 1
    table.write_bytes(data)


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Client]:
    """Of three plain messages the second one, and of three stored ones the second one."""
    first = serve(tmp_path)
    client = first.client()
    plain, group = Topic(client, "default", "plain"), Topic(client, "default", "group")
    last = Topic(client, "default", "z")
    for topic in (plain, group, last):
        ok(topic.create())
    for payload in ("a", "damaged-plain", "c"):
        ok(plain.publish(payload))
    tx = begin(client)
    for payload in ("x", "damaged-stored", "z"):
        ok(group.store(payload, tx=tx.id))
    # The rows of topics themselves are in another block of LevelDB's.
    ok(last.store("large" * BLOCK_BYTES, tx=tx.id))
    ok(group.publish(tx=tx.id))
    ok(group.publish("behind", tx=tx.id))
    ok(tx.commit())
    first.end()
    for needle in (b"damaged-plain", b"damaged-stored"):
        flip_sequence(first.data / "messages", needle)
    second = serve(first.home)
    yield second.client()
    second.end()


def test_a_row_that_leveldb_leaves_out_is_not_passed_over(damaged: Client) -> None:
    reading = read_past_damage(Topic(damaged, "default", "plain"))

    assert [payload for _, payload in reading.found] == ["a", "c"]
    assert len(reading.gaps) == 1


def test_of_a_group_that_lacks_a_row_the_rest_is_handed_to_who_goes_on(damaged: Client) -> None:
    reading = read_past_damage(Topic(damaged, "default", "group"))

    assert [payload for _, payload in reading.found] == ["x", "z", "behind"]
    # The group, which is handed out whole or not at all; and, to who goes on in it, the message.
    assert len(reading.gaps) == 2
