"""A damaged record is reported with its location, never returned, never skipped silently
(protocol §3.4, promise 8)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.damage_judge import read_past_damage
from tests.http.calls import Topic, begin, created, payloads
from tests.http.client import Client, ok, refused
from tests.http.process import ServerProcess, serve
from tuff_storage.leveldb.engine import plyvel

BLOCK_BYTES = 4096
BEFORE_VALUE = 3  # bytes; there is a high byte of the number that LevelDB gave the row


def damage(messages: Path, needle: bytes) -> int:
    """Flip one bit of each stored value that holds these bytes; how many there were."""
    database = plyvel.DB(str(messages))
    found = [(key, value) for key, value in database if needle in value]
    for key, value in found:
        at = value.index(needle)
        database.put(key, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :])
    database.close()
    return len(found)


def swap(messages: Path, one: bytes, other: bytes) -> None:
    """Put each of two whole values under the other's key."""
    database = plyvel.DB(str(messages))
    [(key_a, value_a)] = [(key, value) for key, value in database if one in value]
    [(key_b, value_b)] = [(key, value) for key, value in database if other in value]
    database.put(key_a, value_b)
    database.put(key_b, value_a)
    database.close()


@pytest.fixture(scope="module")
def damaged_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on a store in which three topics have records with a flipped bit."""
    running = serve(tmp_path_factory.mktemp("damaged"))
    client = running.client()
    for name in ("plain", "group", "swapped", "whole"):
        ok(Topic(client, "default", name).create())
    plain, group = Topic(client, "default", "plain"), Topic(client, "default", "group")
    for payload in ("a", "b", "damaged-plain", "c", "d"):
        ok(plain.publish(payload))
    tx = begin(client)
    ok(group.store("x", "damaged-stored", "y", tx=tx.id))
    ok(group.publish(tx=tx.id))
    ok(group.publish("z", tx=tx.id))
    ok(tx.commit())
    for payload in ("first-of-two", "other-of-two"):
        ok(Topic(client, "default", "swapped").publish(payload))
    ok(Topic(client, "default", "whole").publish("whole"))
    running.end()
    assert damage(running.data / "messages", b"damaged-plain") == 1
    assert damage(running.data / "messages", b"damaged-stored") == 1
    swap(running.data / "messages", b"first-of-two", b"other-of-two")
    second = serve(running.home)
    yield second
    second.end()


@pytest.fixture
def damaged(damaged_server: ServerProcess) -> Client:
    return damaged_server.client()


def test_a_damaged_record_ends_a_reply_and_is_an_error_where_a_read_begins(damaged: Client) -> None:
    cases = (("plain", ["a", "b"], ["c", "d"]), ("group", ["x"], ["y", "z"]))
    for name, before, behind in cases:
        topic = Topic(damaged, "default", name)
        for query in ({}, {"isolation": "committed"}, {"wait": 1}):
            reply = ok(topic.poll(None, **query))
            assert payloads(reply) == before
            assert reply.header("Tuff-Caught-Up") == "false"

            start = {"startFrom": reply.header("Tuff-Next"), "inclusive": False}
            problem = refused(topic.poll(start, **query), 500, "damaged_record")
            assert len(bytes.fromhex(problem["id"])) == 20
            assert problem["id"] > reply.json[-1]["id"]

            on = {"startFrom": problem["next"], "inclusive": False}
            assert topic.read(on, **query) == behind
        assert payloads(topic.browse()) == before


def test_a_value_under_another_key_is_reported_as_damaged(damaged: Client) -> None:
    topic = Topic(damaged, "default", "swapped")

    problem = refused(topic.poll(), 500, "damaged_record")
    again = refused(topic.poll({"startFrom": problem["next"], "inclusive": False}), 500,
                    "damaged_record")  # fmt: skip

    assert again["id"] > problem["id"]
    assert topic.read({"startFrom": again["next"], "inclusive": False}) == []


def test_health_is_degraded_once_a_reader_or_a_backup_has_met_damage(damaged: Client) -> None:
    problem = refused(Topic(damaged, "default", "swapped").poll(), 500, "damaged_record")
    backup = damaged.get("/v1/backup").body

    storage = ok(damaged.get("/health/ready")).json["checks"]["storage"]
    assert storage["status"] == "degraded"
    assert (
        f"met a damaged record, the last in default:swapped at {problem['id']};"
        in (storage["detail"])
    )
    assert "no backup can be taken: the row " in storage["detail"]
    assert "`tuff fsck` names what is damaged; then restore a backup" in storage["detail"]
    assert b"of the message store is damaged; stop the server; `tuff fsck`" in backup


def test_other_records_and_topics_are_served_beside_a_damaged_record(damaged: Client) -> None:
    topic = Topic(damaged, "default", "plain")

    ok(topic.publish("later"))

    assert Topic(damaged, "default", "whole").read() == ["whole"]
    assert ok(damaged.get("/health/live")).status == 200
    start = {"startFrom": refused_next(topic), "inclusive": False}
    assert topic.read(start) == ["c", "d", "later"]
    assert ok(begin(damaged).commit(changes=["k"])).json["state"] == "committed"


def test_a_missing_leveldb_log_keeps_the_message_store_down(tmp_path: Path) -> None:
    """What it held was lost without a word, and `tuff fsck` found nothing any more afterwards."""
    running = serve(tmp_path)
    topic = created(running.client(), "default", "lost")
    ok(topic.publish("acknowledged"))
    running.end()
    [log] = (running.data / "messages").glob("*.log")
    log.unlink()

    with serve(tmp_path) as again:
        ready = again.client().get("/health/ready")
        refused(Topic(again.client(), "default", "lost").poll(), 503, "storage_unavailable")

    assert ready.status == 503
    told = f"{log.name} is missing, which the manifest names; use `tuff salvage`, or a backup"
    assert told in ready.json["checks"]["storage"]["detail"]


def test_a_damaged_block_that_stops_all_writes_is_shown_by_health_and_reads_go_on(
    tmp_path: Path,
) -> None:
    """Three flipped bytes in a table: once LevelDB compacted it, each publish failed with "try
    again", for as long as it ran, and readiness was 200."""
    running = serve(tmp_path)
    topic = created(running.client(), "default", "kept")
    for _ in range(20):
        ok(topic.publish(*["x" * 1_000] * 100))
    running.end()
    serve(tmp_path).end()  # its start wrote the log as a table
    table = max((running.data / "messages").glob("*.ldb"), key=lambda path: path.stat().st_size)
    damaged = bytearray(table.read_bytes())
    for at in range(len(damaged) // 2, len(damaged) // 2 + 3):
        damaged[at] ^= 0xFF
    table.write_bytes(damaged)

    for _ in range(12):
        again = serve(tmp_path)
        again.may_log_traces = True
        topic = Topic(again.client(), "default", "kept")
        if not all(topic.publish("later").status == 200 for _ in range(5)):
            break
        again.end()
    else:
        pytest.fail("LevelDB never compacted the damaged table")

    with again:
        ready = again.client().get("/health/ready")
        detail = ready.json["checks"]["storage"]["detail"]
        assert (ready.status, "`tuff fsck`" in detail) == (503, True), ready.json
        assert detail.startswith("no message can be written, as a file is damaged: Corruption")
        problem = refused(topic.publish("refused"), 503, "storage_unavailable")
        assert "try again" not in problem["detail"]
        assert ok(topic.poll({"limit": 3})).json
        assert again.stderr().count("store_write_failed") == 1


def refused_next(topic: Topic) -> str:
    start = {"startFrom": ok(topic.poll()).header("Tuff-Next"), "inclusive": False}
    return str(refused(topic.poll(start), 500, "damaged_record")["next"])


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
def damaged_sequences(tmp_path: Path) -> Iterator[Client]:
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


def test_a_row_that_leveldb_leaves_out_is_reported(damaged_sequences: Client) -> None:
    reading = read_past_damage(Topic(damaged_sequences, "default", "plain"))

    assert [payload for _, payload in reading.found] == ["a", "c"]
    assert len(reading.gaps) == 1


def test_a_reader_that_goes_on_gets_the_rest_of_a_group_that_lacks_a_row(
    damaged_sequences: Client,
) -> None:
    reading = read_past_damage(Topic(damaged_sequences, "default", "group"))

    assert [payload for _, payload in reading.found] == ["x", "z", "behind"]
    # One error for the group, which is returned whole or not at all, one for the damaged message to
    # a reader that goes on within the group.
    assert len(reading.gaps) == 2
