"""The audit: counts events, finds lineage edges, and writes other messages to the dead letters."""

import json
from typing import TYPE_CHECKING

import pytest

import tuff
from kernel.archive_manifest import Entry
from pipeline.audit import Members, audit_topic, parsed
from tests.pipeline.conftest import DiedError, Place, die

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def event(kind: str, entity: str, **members: str) -> str:
    return json.dumps({"type": kind, "entity": entity, **members})


def audit(spark: "SparkSession", place: Place) -> list[Entry]:
    return audit_topic(
        spark, place.client, place.archive, place.topic, place.home / "audit", Members(),
        place.options, sink=f"audit/{place.topic}",
    )  # fmt: skip


@pytest.mark.slow
def test_events_are_counted_edges_found_and_other_messages_dead_lettered_once(
    spark: "SparkSession", place: Place
) -> None:
    read = {"program": "report", "dataset": "sales", "access": "read"}
    place.publish_hours(
        [event("run", "a"), event("run", "a"), "no event", event("stop", "b", **read)],
        [event("run", "a", **read), event("run", "a", **read)],
    )
    place.archive_hours(spark)

    first, second = audit(spark, place), audit(spark, place)

    counts = spark.read.parquet(str(place.home / "audit" / "counts"))
    edges = spark.read.parquet(str(place.home / "audit" / "edges"))
    found = counts.orderBy("dt", "hour", "kind").select("entity", "kind", "count").collect()
    assert (len(first), len(second)) == (2, 0)
    assert [tuple(row) for row in found] == [("a", "run", 2), ("b", "stop", 1), ("a", "run", 2)]
    summed = edges.groupBy("program", "dataset", "access").sum("count").collect()
    assert [tuple(row) for row in summed] == [("report", "sales", "read", 3)]
    (letter,) = map(json.loads, place.dead_letters)
    assert (letter["topic"], letter["payload"]) == (str(place.topic), "no event")
    original = place.client.poll(place.topic)[2]
    assert (letter["id"], letter["timestamp"]) == (original.id.hex(), original.timestamp_ms)


def results(spark: "SparkSession", place: Place) -> dict[str, list[tuple[object, ...]]]:
    """The whole result of an audit."""
    out = place.home / "audit"
    found = {
        kind: sorted(map(tuple, spark.read.parquet(str(out / kind)).collect()), key=str)
        for kind in ("counts", "edges")
    }
    return {**found, "letters": [(json.loads(letter)["id"],) for letter in place.dead_letters]}


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["before its letters are stored", "before they are committed"])
def test_an_audit_that_dies_between_its_files_and_its_letters_is_repeated_equally(
    spark: "SparkSession", place: Place, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    read = {"program": "report", "dataset": "sales", "access": "read"}
    place.publish_hours(
        [event("run", "a", **read), "no event", event("stop", "b")], ["nor this", event("run", "a")]
    )
    rows = place.archive_hours(spark)
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.audit.not_events", die)
        with pytest.raises(DiedError):
            audit(spark, place)
    files = {
        kind: list((place.home / "audit" / kind).rglob("*.parquet")) for kind in ("counts", "edges")
    }
    if dies == "before they are committed":
        dead = tuff.TopicId(place.topic.namespace, f"{place.topic.name}.dlq")
        begun = place.client.sinks.begin(
            f"audit/{place.topic}", rows[0].hour.number, "dead", lease=600
        )
        place.client.store(dead, "lost", transaction=begun.transaction)

    done = audit(spark, place)
    found = results(spark, place)

    assert [len(each) for each in files.values()] == [1, 1], "it died behind the files"
    assert done == rows
    assert [(row[0], row[1], row[2]) for row in found["counts"]] == [
        ("a", "run", 1), ("a", "run", 1), ("b", "stop", 1),
    ]  # fmt: skip
    assert [row[:3] + row[5:6] for row in found["edges"]] == [("report", "sales", "read", 1)]
    bad = [m.id.hex() for m in place.client.poll(place.topic) if not m.payload.startswith(b"{")]
    assert found["letters"] == [(id,) for id in bad if id <= rows[-1].summary.last]


KINDS: dict[bytes, str | None] = {
    b'{"type":"run"}': "run",
    b'{"type":{"deep":1}}': '{"deep":1}',
    b'{"type":null}': None,
    b'{"kind":"run"}': None,
    b' {"type":"run"}\n': "run",
    b'["type"]': None,
    b'[{"type":"run"}]': None,
    b'{"type":"run"}{"type":"stop"}': None,
    b'{"type":"run"},{"type":"stop"}': None,
    b'{"type":"run"},"type":"stop"': None,
    b'{"type":"run"} and half of another': None,
    b'{"type":"run"}}': None,
    b'{"type":"run"}]': None,
    b'{"type":"run"': None,
    b"": None,
    b"\xff": None,
}


def test_an_event_is_a_whole_object_with_a_kind(spark: "SparkSession") -> None:
    """Of two events in one message the second was dropped."""
    frame = spark.createDataFrame([(payload,) for payload in KINDS], "value binary")

    found = parsed(frame, Members()).select("value", "kind").collect()

    assert {bytes(row.value): row.kind for row in found} == KINDS
