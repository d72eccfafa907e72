"""`format("tuff-table")` on a copy of a server's directory: every row, decoded, in columns."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

import tuff
from pyspark_tuff.errors import OptionError
from pyspark_tuff.table import TABLES, TableReader, columns_of, table_options, table_schema
from tests.http.process import serve
from tests.table.crash_copy import copy_as_crashed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = tuff.TopicId("tables", "orders")


class Written:
    """Messages that a server of its own has stored, and a copy of its directory."""

    def __init__(self, home: Path) -> None:
        self.copy = home / "copy"
        with serve(home) as server, tuff.Client(server.url) as client:
            client.topics.create(TOPIC, ttl=500)
            self.plain = client.publish(TOPIC, b"\xff plain").ids[0]
            undone = client.transactions.start()
            client.publish(TOPIC, "undone", transaction=undone)
            client.transactions.abort(undone)
            self.undone = undone.write_pointer
            storing = client.transactions.start()
            client.store(TOPIC, *(["stored"] * 2), transaction=storing)
            client.transactions.commit(
                storing, publish=[tuff.connectors.PublishEntry(topic=TOPIC, payloads=[])]
            )
            self.stored = storing.write_pointer
            live = home / "data" / "messages"
            copy_as_crashed(live, self.copy)
            self.refusal = refusal(live)


def refusal(path: Path) -> str:
    """Why the rows of a directory can't be read."""
    with pytest.raises(OptionError) as caught:
        TableReader({"path": str(path)}, table_schema())
    return str(caught.value)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("tables"))


def test_every_row_of_a_copy_is_decoded(spark: "SparkSession", written: Written) -> None:
    frame = spark.read.format("tuff-table").load(str(written.copy))

    rows = frame.selectExpr("*", "unix_millis(timestamp) as ms").collect()

    messages = [row for row in rows if row.kind == "message"]
    plain, undone, reference = messages
    assert {row.topic for row in messages} == {str(TOPIC)}
    assert (bytes(plain.payload), plain.tx_pointer) == (b"\xff plain", None)
    assert (plain.ms, plain.seq_id) == (written.plain.publish_timestamp_ms, written.plain.seq_id)
    assert (bytes(undone.payload), undone.tx_pointer) == (b"undone", -written.undone)
    assert (reference.payload, json.loads(reference.details)["brings"]) == (None, 2)
    stored = [row for row in rows if row.kind == "payload"]
    assert [(bytes(row.payload), row.tx_pointer) for row in stored] == [
        (b"stored", written.stored)
    ] * 2
    topic = next(row for row in rows if row.kind == "topic" and row.topic == str(TOPIC))
    assert (topic.generation, json.loads(topic.details)["properties"]) == (1, {"ttl": "500"})
    assert "damage" not in {row.kind for row in rows}


def test_the_directory_of_a_running_server_is_refused(written: Written) -> None:
    assert "can't be read while it is in use" in written.refusal
    assert "give a copy" in written.refusal


def test_tables_and_columns_can_be_chosen(written: Written) -> None:
    schema = StructType().add("payload", "binary").add("kind", "string")
    reader = TableReader({"path": str(written.copy), "tables": "payload"}, schema)

    (partition,) = reader.partitions()
    rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]

    assert rows == [{"payload": b"stored", "kind": "payload"}] * 2


def test_a_corrupt_row_becomes_a_row_with_the_reason() -> None:
    damage = {"kind": "damage", "table": "message", "place": "00ff", "reason": "its checksum …"}

    made = columns_of(damage)

    assert made["kind"] == "damage"
    assert json.loads(str(made["details"])) == {
        "table": "message",
        "place": "00ff",
        "reason": "its checksum …",
    }
    assert {name for name, value in made.items() if value is not None} == {"kind", "details"}


def test_a_time_beyond_the_calendar_is_null_and_other_times_are_exact() -> None:
    row = {"kind": "message", "timestamp_ms": 1_480_000_000_001}

    assert columns_of(row)["timestamp"] == datetime(2016, 11, 24, 15, 6, 40, 1_000, tzinfo=UTC)
    assert columns_of({**row, "timestamp_ms": 2**63})["timestamp"] is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "give either path .* or gateways"),
        ({"path": "a", "gateways": "h:1"}, "give either path .* or gateways"),
        ({"path": "a", "prefix": "p_"}, "not to a path"),
        ({"gateways": "h:1", "tables": "message,topics"}, "not 'topics'"),
        ({"gateway": "h:1"}, "did you mean gateways?"),
    ],
)
def test_options_are_strict(given: Mapping[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        table_options(given)


def test_options_have_defaults() -> None:
    options = table_options({"GATEWAYS": "h:1, i:2"})

    assert (options.path, options.gateways, options.prefix, options.tables) == (
        None,
        ("h:1", "i:2"),
        "tuff_",
        TABLES,
    )


def test_a_path_without_leveldb_and_an_unknown_column_are_refused(tmp_path: Path) -> None:
    assert "is not a LevelDB directory" in refusal(tmp_path)
    with pytest.raises(OptionError, match="no column value; a read has kind, key"):
        TableReader({"gateways": "h:1"}, table_schema().add("value", "string"))
