"""Archiving: what is written is what was there, once, and only that leaves the topic."""

from typing import TYPE_CHECKING

import pytest

import tuff
from pipeline.archive import HOLD_NAME, archive_topic, truncate_archived
from pipeline.compact import compact_topic
from pipeline.frames import archived, check
from pipeline.manifest import ArchiveError, Row
from tests.pipeline.conftest import DiedError, Place, die

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive(spark: "SparkSession", place: Place) -> list[Row]:
    return archive_topic(
        spark, place.client, place.archive, place.topic, place.options, tell=lambda *_: None
    )


def values(spark: "SparkSession", place: Place, row: Row) -> list[bytes]:
    frame = archived(spark, place.archive, row).orderBy("id")
    return [bytes(each.value) for each in frame.select("value").collect()]


@pytest.mark.slow
def test_closed_hours_are_archived_once_and_then_leave_the_topic(
    spark: "SparkSession", place: Place
) -> None:
    place.publish_hours(["1", "2", "3"], ["4"])

    rows = archive(spark, place)
    again = archive(spark, place)
    reached_ms = truncate_archived(place.client, place.archive, place.topic)

    assert [values(spark, place, row) for row in rows] == [[b"1", b"2", b"3"], [b"4"]]
    assert [row.summary.count for row in rows] == [3, 1]
    assert (again, place.archive.rows(place.topic)) == ([], rows)
    assert reached_ms == rows[-1].hour.stop_ms
    assert place.read(place.topic) == [b"open"]
    assert place.client.topics.holds(place.topic) == []


def test_a_topic_without_closed_hours_is_left_as_it_is(place: Place) -> None:
    nothing = (
        archive_topic(
            None, place.client, place.archive, place.topic, place.options, tell=lambda *_: None
        ),
        truncate_archived(place.client, place.archive, place.topic),
    )
    place.client.publish(place.topic, "open")

    assert nothing == ([], None)
    assert truncate_archived(place.client, place.archive, place.topic) is None
    assert (place.read(place.topic), place.client.topics.holds(place.topic)) == ([b"open"], [])


@pytest.mark.slow
def test_partitions_are_named_as_others_read_them(spark: "SparkSession", place: Place) -> None:
    place.publish_hours(["1"])
    (row,) = archive(spark, place)

    found = spark.read.parquet(str(place.archive.root / "hours")).first()

    assert (found.topic, str(found.dt), found.hour) == (
        str(place.topic), row.hour.day, int(row.hour.of_day),
    )  # fmt: skip


@pytest.mark.slow
def test_what_a_job_left_that_died_is_replaced(spark: "SparkSession", place: Place) -> None:
    place.publish_hours(["1", "2"])
    (row,) = archive(spark, place)
    # As if it had died before the manifest was written, with half a file in its place.
    for file in place.archive.root.glob("_manifest/*/*"):
        file.unlink()
    for file in (place.archive.root / row.path).glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:50])

    assert archive(spark, place) == [row]
    assert values(spark, place, row) == [b"1", b"2"]


@pytest.mark.slow
def test_nothing_is_truncated_when_files_are_gone_or_somebody_holds(
    spark: "SparkSession", place: Place
) -> None:
    place.publish_hours(["1"])
    (row,) = archive(spark, place)
    place.client.topics.hold(place.topic, "slow", 0, max_age=60)
    with pytest.raises(tuff.TuffError, match="slow"):
        truncate_archived(place.client, place.archive, place.topic)
    place.client.topics.release(place.topic, "slow")
    (place.archive.root / row.path).rename(place.home / "away")

    with pytest.raises(ArchiveError, match="nothing is truncated"):
        truncate_archived(place.client, place.archive, place.topic)

    assert place.read(place.topic) == [b"1", b"open"]


@pytest.mark.slow
def test_files_that_are_not_what_was_read_are_no_archive(
    spark: "SparkSession", place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline import archive as module

    write = module.write_files
    # Spark drops a row on its way to the disk.
    monkeypatch.setattr(module, "write_files", lambda frame, to: write(frame.limit(1), to))
    place.publish_hours(["1", "2"])

    with pytest.raises(ArchiveError, match="as written"):
        archive(spark, place)

    assert place.archive.rows(place.topic) == []
    assert [hold.name for hold in place.client.topics.holds(place.topic)] == [HOLD_NAME]


@pytest.mark.slow
def test_a_topic_that_was_created_again_is_archived_further(
    spark: "SparkSession", place: Place
) -> None:
    place.clock.begin_day()
    place.client.publish(place.topic, "1")
    place.clock.pass_hours()
    place.client.publish(place.topic, "2")
    (row,) = archive(spark, place)
    place.client.topics.delete(place.topic)
    place.client.topics.create(place.topic)
    place.publish_hours(["3"])

    (new,) = archive(spark, place)

    assert (row.generation, new.generation) == (1, 2)
    assert [values(spark, place, each) for each in (row, new)] == [[b"1"], [b"3"]]


@pytest.mark.slow
def test_a_day_becomes_one_file_and_the_rows_stay(spark: "SparkSession", place: Place) -> None:
    place.clock.begin_day()
    place.publish_hours(["1", "2"], ["3"])
    early = archive(spark, place)
    before = compact_topic(spark, place.archive, place.topic, tell=lambda *_: None)
    place.clock.begin_day()
    place.publish_hours(["4"])
    rows = early + archive(spark, place)

    days = compact_topic(spark, place.archive, place.topic, tell=lambda *_: None)
    left = place.archive.root / rows[0].path  # as by a job that died before it removed the hours
    left.mkdir()
    again = compact_topic(spark, place.archive, place.topic, tell=lambda *_: None)

    compacted = place.archive.rows(place.topic)
    assert (before, days, again) == ([], [rows[0].hour.day], [])
    assert [row.summary for row in compacted] == [row.summary for row in rows]
    assert len({row.path for row in compacted[:3]}) == 1
    for row in compacted:
        check(archived(spark, place.archive, row), row, what=str(row.hour))
    files = list((place.archive.root / "hours").rglob("*.parquet"))
    assert len(list((place.archive.root / compacted[0].path).glob("*.parquet"))) == 1
    assert (len(files), left.exists()) == (1, False)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["write_files", "check", "move", "Archive.record"])
def test_an_archive_job_that_dies_before_any_step_is_done_by_the_next(
    spark: "SparkSession", place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    place.publish_hours(["1", "2"], ["3"])
    with monkeypatch.context() as patched:
        patched.setattr(f"pipeline.archive.{step}", die)
        with pytest.raises(DiedError):
            archive(spark, place)
        assert truncate_archived(place.client, place.archive, place.topic) is None

    rows = archive(spark, place)

    assert [values(spark, place, row) for row in rows] == [[b"1", b"2"], [b"3"]]
    assert place.client.topics.holds(place.topic) == []


@pytest.mark.slow
@pytest.mark.parametrize("step", ["write_files", "check", "move", "Archive.record", "sweep_day"])
def test_a_compaction_that_dies_before_any_step_is_done_by_the_next(
    spark: "SparkSession", place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    place.clock.begin_day()
    place.publish_hours(["1", "2"], ["3"])
    place.clock.begin_day()
    place.publish_hours(["of another day"])
    rows = archive(spark, place)
    with monkeypatch.context() as patched:
        patched.setattr(f"pipeline.compact.{step}", die)
        with pytest.raises(DiedError):
            compact_topic(spark, place.archive, place.topic, tell=lambda *_: None)
    for row in place.archive.rows(place.topic):
        check(archived(spark, place.archive, row), row, what=str(row.hour))

    compact_topic(spark, place.archive, place.topic, tell=lambda *_: None)

    *compacted, last = place.archive.rows(place.topic)
    (path,) = {row.path for row in compacted}
    assert (len(rows), last) == (4, rows[-1])
    found = {file.parent for file in place.archive.root.rglob("*.parquet")}
    assert found == {place.archive.root / path, place.archive.root / last.path}
