"""The audit: events are counted, edges found, and what is no event becomes a letter, once."""

import json
from typing import TYPE_CHECKING

import pytest

import tuff
from pipeline.archive import archive_topic
from pipeline.audit import Members, audit_topic, parsed
from pipeline.manifest import Row
from tests.pipeline.conftest import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def event(kind: str, entity: str, **members: str) -> str:
    return json.dumps({"type": kind, "entity": entity, **members})


def audit(spark: "SparkSession", place: Place) -> list[Row]:
    return audit_topic(
        spark, place.client, place.archive, place.topic, place.home / "audit", Members(),
        place.options, tell=lambda _: None,
    )  # fmt: skip


@pytest.mark.slow
def test_events_are_counted_edges_found_and_the_rest_is_dead_once(
    spark: "SparkSession", place: Place
) -> None:
    read = {"program": "report", "dataset": "sales", "access": "read"}
    place.publish_hours(
        [event("run", "a"), event("run", "a"), "no event", event("stop", "b", **read)],
        [event("run", "a", **read), event("run", "a", **read)],
    )
    archive_topic(
        spark, place.client, place.archive, place.topic, place.options, tell=lambda _: None
    )

    first, second = audit(spark, place), audit(spark, place)

    counts = spark.read.parquet(str(place.home / "audit" / "counts"))
    edges = spark.read.parquet(str(place.home / "audit" / "edges"))
    found = counts.orderBy("dt", "hour", "kind").select("entity", "kind", "count").collect()
    assert (len(first), len(second)) == (2, 0)
    assert [tuple(row) for row in found] == [("a", "run", 2), ("b", "stop", 1), ("a", "run", 2)]
    summed = edges.groupBy("program", "dataset", "access").sum("count").collect()
    assert [tuple(row) for row in summed] == [("report", "sales", "read", 3)]
    dead = tuff.TopicId(place.topic.namespace, f"{place.topic.name}.dlq")
    (letter,) = map(json.loads, place.read(dead))
    assert (letter["topic"], letter["payload"]) == (str(place.topic), "no event")
    original = place.client.poll(place.topic)[2]
    assert (letter["id"], letter["timestamp"]) == (original.id.hex(), original.timestamp)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b'{"type":"run"}', "run"),
        (b'{"type":{"deep":1}}', '{"deep":1}'),
        (b'{"type":null}', None),
        (b'{"kind":"run"}', None),
        (b'["type"]', None),
        (b'{"type":"run"', None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_an_event_is_a_whole_object_with_a_kind(
    spark: "SparkSession", payload: bytes, kind: str | None
) -> None:
    frame = spark.sql(f"select X'{payload.hex()}' as value")

    assert parsed(frame, Members()).first()["kind"] == kind
