"""Replay: the same payloads in the same order, each once, and none of damaged files."""

from typing import TYPE_CHECKING

import pytest

import tuff
from kernel.archive_manifest import ArchiveError, Entry
from pipeline.replay_archive import replay_topic
from tests.pipeline.conftest import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY = [str(number) for number in range(50)]


def replay(spark: "SparkSession", place: Place, target: tuff.TopicId) -> list[Entry]:
    return replay_topic(
        spark, place.client, place.archive, place.topic, target, place.options,
        sink=f"replay/{place.topic}/{target}",
    )  # fmt: skip


@pytest.mark.slow
def test_an_archive_is_replayed_in_order_and_once(spark: "SparkSession", place: Place) -> None:
    target = place.other("-again")
    place.publish_hours(MANY, ["a", "b"])
    place.archive_hours(spark)

    first = replay(spark, place, target)
    second = replay(spark, place, target)
    place.clock.pass_hours()
    place.client.publish(place.topic, "end")
    place.archive_hours(spark)
    third = replay(spark, place, target)

    expected = [*(word.encode() for word in MANY), b"a", b"b", b"open"]
    assert (len(first), len(second), len(third)) == (2, 0, 1)
    assert place.read(target) == expected


@pytest.mark.slow
def test_a_damaged_hour_and_later_ones_are_not_replayed(
    spark: "SparkSession", place: Place
) -> None:
    target = place.other("-again")
    place.publish_hours(["1"], ["2", "3"], ["4"])
    rows = place.archive_hours(spark)
    # The files are those of another hour.
    (wrong,) = (place.archive.root / rows[2].path).glob("*.parquet")
    (right,) = (place.archive.root / rows[1].path).glob("*.parquet")
    right.write_bytes(wrong.read_bytes())
    (right.parent / f".{right.name}.crc").unlink()

    with pytest.raises(ArchiveError, match="has no messages"):
        replay(spark, place, target)

    assert place.read(target) == [b"1"]
