"""The rows of a topic's partitions: checked against each other, repaired, shown, backed up."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from admin.fsck import check_message_store
from admin.inspect_tables import table_rows
from admin.readable_rows import ReadableRows
from admin.salvage_messages import MessageSalvage
from admin.salvage_transactions import ProvenOutcome
from messaging.engines.leveldb import LevelDbStore
from messaging.engines.memory import MemoryStore
from messaging.log.topics import TTL_S_MAX, TopicRecord
from messaging.model.partitions import ONE_PARTITION, Partitions
from messaging.model.row_format import BEFORE_ALL, TOPICS, split_topic, topic_key
from tests.cli.command import tuff_command
from tests.http.calls import Topic, begin
from tests.http.client import ok
from tests.http.process import serve
from tuff.protocol.ids import TopicId

ORDERS = TopicId("shop", "orders")
TTL = {"ttl": "60"}
TOPIC = TopicRecord(generation=2, properties=TTL, partitions=Partitions((0, 1), (2,), 4))
ACTIVE = TopicRecord(generation=3, properties=TTL)
RETIRED = TopicRecord(generation=1, properties=TTL, is_retired=True)
DELETED = TopicRecord(generation=-4, properties=TTL)
WHOLE = {0: TOPIC, 1: ACTIVE, 2: RETIRED, 3: DELETED}
NAMES = {0: ORDERS} | {number: ORDERS.partition(number) for number in range(1, 6)}


def stored(directory: Path, records: Mapping[int, TopicRecord]) -> ReadableRows:
    store = LevelDbStore(directory)
    keys = {number: topic_key(NAMES[number]) for number in records}
    store.write(
        [(keys[number], record.to_bytes(keys[number])) for number, record in records.items()]
    )
    store.close()
    return ReadableRows(directory)


def salvaged(readable: ReadableRows) -> tuple[dict[int, TopicRecord], list[str]]:
    """The records after a salvage by number, and what it decided."""
    new = MemoryStore()
    salvage = MessageSalvage(
        readable,
        new,
        outcome=lambda _: ProvenOutcome.UNKNOWN,
        remembers_commit=lambda _: False,
    )
    account = salvage.copy_rows()
    salvage.write_metadata(account.metadata, BEFORE_ALL)
    records = {
        split_topic(key[1:]).number or 0: TopicRecord.from_bytes(key, value)
        for key, value in new.rows.items()
        if key.startswith(TOPICS)
    }
    return records, [decision.location for decision in account.decided]


def test_rows_that_fit_are_neither_reported_nor_changed(tmp_path: Path) -> None:
    readable = stored(tmp_path, WHOLE)

    findings = check_message_store(readable, now_ms=0).findings
    assert [each.location for each in findings if each.location.startswith("topic")] == []
    assert salvaged(readable) == (WHOLE, [])


MISFITS = [
    pytest.param(
        {0: TOPIC, 2: RETIRED},
        "it has the partition 1, but its own row is missing",
        {0: TOPIC, 1: TopicRecord(generation=1, properties=TTL), 2: RETIRED},
        id="the row of an active partition is lost",
    ),
    pytest.param(
        {0: TOPIC, 1: ACTIVE},
        "it has the partition 2, but its own row is missing",
        {0: TOPIC, 1: ACTIVE, 2: RETIRED},
        id="the row of a retired partition is lost",
    ),
    pytest.param(
        {0: TopicRecord(generation=2, properties=TTL), 1: ACTIVE, 5: RETIRED},
        "there is a row of the partition 1, but the topic row has not it",
        {
            0: TopicRecord(generation=2, properties=TTL, partitions=Partitions((0, 1), (5,), 6)),
            1: ACTIVE,
            5: RETIRED,
        },
        id="the row of the topic is an older one",
    ),
    pytest.param(
        {0: TOPIC, 1: ACTIVE, 2: TopicRecord(generation=1, properties=TTL)},
        "it has the partition 2, but its own row differs",
        {0: TOPIC, 1: ACTIVE, 2: RETIRED},
        id="the row of a retired partition is an older one",
    ),
    pytest.param(
        {1: ACTIVE, 2: RETIRED},
        "there is a row of the partition 1, but the topic row has not it",
        {
            0: TopicRecord(generation=1, properties=TTL, partitions=Partitions((0, 1), (2,), 3)),
            1: ACTIVE,
            2: RETIRED,
        },
        id="the row of the topic is lost",
    ),
]


@pytest.mark.parametrize(("records", "found", "repaired"), MISFITS)
def test_rows_that_do_not_fit_are_reported_and_repaired(
    tmp_path: Path,
    records: Mapping[int, TopicRecord],
    found: str,
    repaired: Mapping[int, TopicRecord],
) -> None:
    readable = stored(tmp_path, records)

    findings = check_message_store(readable, now_ms=0).findings
    assert ("topic shop:orders", found) in [(each.location, each.reason) for each in findings]
    after, decided = salvaged(readable)
    assert after == repaired
    assert decided


def test_partitions_of_a_deleted_topic_are_left_alone(tmp_path: Path) -> None:
    records = {0: DELETED, 1: ACTIVE}
    readable = stored(tmp_path, records)

    findings = check_message_store(readable, now_ms=0).findings
    assert [each.location for each in findings if each.location.startswith("topic")] == []
    assert salvaged(readable) == (records, [])


def test_a_topic_without_a_row_and_without_partitions_keeps_everything(tmp_path: Path) -> None:
    assert salvaged(stored(tmp_path, {3: DELETED}))[0] == {
        0: TopicRecord(generation=1, properties={"ttl": str(TTL_S_MAX)}, partitions=ONE_PARTITION),
        3: DELETED,
    }


def test_partitions_are_shown_backed_up_restored_and_salvaged(tmp_path: Path) -> None:
    server = serve(tmp_path / "server")
    client = server.client()
    topic = Topic(client, "shop", "orders")
    ok(topic.create({"partitions": 3}))
    messages = [{"payload": key, "key": key} for key in "abcdefgh"]
    ok(topic.publish(*messages))
    tx = begin(client)
    ok(topic.publish(*messages, tx=tx.id))
    ok(topic.store(*messages, tx=tx.id))
    ok(topic.publish(tx=tx.id))
    ok(topic.update({"partitions": 2}))
    contents = [ok(Topic(client, "shop", f"orders:{n}").poll()).body for n in range(3)]
    server.end()

    rows = [row for row in table_rows(server.data / "messages") if row["kind"] == "topic"]
    assert [(row["topic"], row["partitions"], row["is_retired"]) for row in rows] == [
        ("shop:orders", [0, 1], False),
        ("shop:orders:1", [0], False),
        ("shop:orders:2", [0], True),
    ]
    done = tuff_command("fsck", server.data)
    assert (done.returncode, done.stdout) == (0, "")
    commands = (
        ("backup", server.data, tmp_path / "backup"),
        ("restore", tmp_path / "backup", tmp_path / "restored" / "data"),
        ("salvage", server.data, tmp_path / "salvaged" / "data"),
    )
    for command in commands:
        done = tuff_command(*command)
        assert done.returncode == 0, done.stderr
    for copy in ("restored", "salvaged"):
        again = serve(tmp_path / copy)
        client = again.client()
        shown = ok(Topic(client, "shop", "orders").show()).json
        assert (shown["partitions"], shown["retired"]) == ([0, 1], [2])
        assert contents == [ok(Topic(client, "shop", f"orders:{n}").poll()).body for n in range(3)]
        again.end()
