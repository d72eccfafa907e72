"""Archiving: files hold each message once, and only archived messages are truncated."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tuff
from kernel.archive_manifest import Archive, ArchiveError, Entry, Hour, files_in
from pipeline.archive import HOLD_NAME, truncate_archived
from pipeline.compact import compact_topic
from pipeline.frames import archived, check
from tests.pipeline.conftest import DiedError, Place, die

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def truncate(spark: "SparkSession", place: Place, root: Path | None = None) -> int | None:
    """Truncate by the archive of the place, or by another one."""
    by = place.archive if root is None else Archive(root)
    return truncate_archived(spark, place.client, by, place.topic, place.options)


def values(spark: "SparkSession", place: Place, row: Entry) -> list[bytes]:
    frame = archived(spark, place.archive, row).orderBy("id")
    return [bytes(each.value) for each in frame.select("value").collect()]


@pytest.mark.slow
def test_closed_hours_are_archived_once_and_then_truncated(
    spark: "SparkSession", place: Place
) -> None:
    place.publish_hours(["1", "2", "3"], ["4"])

    rows = place.archive_hours(spark)
    again = place.archive_hours(spark)
    reached_ms = truncate(spark, place)

    assert [values(spark, place, row) for row in rows] == [[b"1", b"2", b"3"], [b"4"]]
    assert [row.summary.count for row in rows] == [3, 1]
    assert (again, place.archive.entries(place.topic)) == ([], rows)
    assert reached_ms == rows[-1].hour.stop_ms
    assert place.read(place.topic) == [b"open"]
    assert place.client.holds.list(place.topic) == []


def test_a_topic_without_closed_hours_is_not_changed(place: Place) -> None:
    nothing = (place.archive_hours(None), truncate(None, place))
    place.client.publish(place.topic, "open")

    assert nothing == ([], None)
    assert truncate(None, place) is None
    assert (place.read(place.topic), place.client.holds.list(place.topic)) == ([b"open"], [])


@pytest.mark.slow
def test_rows_of_version_0_1_0_get_the_checksums_of_their_files(
    spark: "SparkSession", place: Place
) -> None:
    place.publish_hours(["1"], ["2"])
    rows = place.archive_hours(spark)
    for row in rows:
        place.archive.record(place.topic, [replace(row, files=())])

    again = place.archive_hours(spark)

    assert (again, place.archive.entries(place.topic)) == ([], rows)
    assert [row.files for row in rows] == [files_in(place.archive.root / row.path) for row in rows]


@pytest.mark.slow
def test_partition_directories_have_names_that_other_programs_read(
    spark: "SparkSession", place: Place
) -> None:
    place.publish_hours(["1"])
    (row,) = place.archive_hours(spark)

    found = spark.read.parquet(str(place.archive.root / "hours")).first()

    assert (found.topic, str(found.dt), found.hour) == (
        str(place.topic), row.hour.day, int(row.hour.of_day),
    )  # fmt: skip


@pytest.mark.slow
def test_nothing_is_truncated_while_a_consumer_holds_the_topic(
    spark: "SparkSession", place: Place
) -> None:
    place.publish_hours(["1"])
    place.archive_hours(spark)
    place.client.holds.set(place.topic, "slow", 0, max_age=60)

    with pytest.raises(tuff.TuffError, match="slow"):
        truncate(spark, place)

    assert place.read(place.topic) == [b"1", b"open"]


def emptied(root: Path, row: Entry) -> None:
    for file in (root / row.path).glob("*.parquet"):
        file.unlink()


def cut(root: Path, row: Entry) -> None:
    for file in (root / row.path).glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-20])


def flipped(root: Path, row: Entry) -> None:
    (file,) = (root / row.path).glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[20] ^= 255
    file.write_bytes(data)
    (file.parent / f".{file.name}.crc").unlink()


def swapped(root: Path, row: Entry) -> None:
    """The hour's files are those of the next hour."""
    other = Hour(row.hour.number + 1)
    shutil.rmtree(root / row.path)
    shutil.copytree((root / row.path).parent / f"hour={other.of_day}", root / row.path)


def lessened(root: Path, row: Entry) -> None:
    """The manifest and the files agree, and both lack messages."""
    archive = Archive(root)
    (name,) = archive.topics()
    topic = tuff.TopicId(*name.split(":"))
    _, less = archive.entries(topic)
    archive.record(topic, [replace(less, hour=row.hour, after_ms=row.after_ms)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (emptied, "has lost hours/.*, so nothing is truncated"),
        (cut, "can't be read"),
        (flipped, "can't be read|but the manifest says Summary"),
        (swapped, "has no messages"),
        (lessened, "lacks 2 messages of the topic, the first with id"),
    ],
)
def test_nothing_is_truncated_if_a_file_or_a_row_differs_from_the_topic(
    spark: "SparkSession", place: Place, damage: Callable[[Path, Entry], None], told: str
) -> None:
    place.clock.begin_day()
    place.publish_hours(["1", "2"], ["3"])
    damage(place.archive.root, place.archive_hours(spark)[0])

    with pytest.raises(ArchiveError, match=told) as refused:
        truncate(spark, place)

    assert "\n" not in refused.value.detail
    assert "\tat " not in refused.value.detail
    assert place.read(place.topic) == [b"1", b"2", b"3", b"open"]
    assert place.client.positions.list(place.topic) == []


@pytest.mark.slow
def test_an_archive_of_another_topic_of_the_same_name_truncates_nothing(
    spark: "SparkSession", place: Place
) -> None:
    place.clock.begin_day()
    place.publish_hours(["of another installation"])
    place.archive_hours(spark)
    # In the other installation the topic of this name has the same hour and generation.
    manifest = next(place.archive.root.glob("_manifest/*/dt=*.json"))
    place.client.topics.delete(place.topic)
    place.client.topics.create(place.topic)
    place.clock.begin_day()
    place.publish_hours(["1"])
    body = json.loads(manifest.read_bytes())
    generation = place.client.topics.get(place.topic).generation
    hour = Hour.at(place.client.poll(place.topic)[0].id.publish_timestamp_ms)
    body["hours"][0] |= {"generation": generation, "hour": hour.number}
    manifest.write_text(json.dumps(body))

    with pytest.raises(ArchiveError, match=f"not of {generation}: the topic was created again"):
        truncate(spark, place)

    assert place.read(place.topic) == [b"1", b"open"]


@pytest.mark.slow
def test_another_archive_truncates_nothing_once_a_topic_has_one(
    spark: "SparkSession", place: Place
) -> None:
    place.clock.begin_day()
    place.publish_hours(["1"])
    place.archive_hours(spark)
    truncate(spark, place)
    (claim,) = place.client.positions.list(place.topic)
    mounted, place.archive = place.archive, Archive(place.home / "mountpoint")  # and nothing on it
    place.clock.pass_hours()
    place.client.publish(place.topic, "2")
    place.archive_hours(spark)

    with pytest.raises(ArchiveError, match="mount the earlier one, or give its --root") as refused:
        truncate(spark, place)

    assert place.read(place.topic) == [b"open", b"2"]
    assert f"tuff positions rm {place.topic} {claim.name}" in refused.value.detail
    assert mounted.id() in refused.value.detail
    place.archive = mounted
    place.archive_hours(spark)
    assert truncate(spark, place) is not None
    assert place.read(place.topic) == [b"2"]


@pytest.mark.slow
def test_expired_messages_do_not_prevent_a_truncation(spark: "SparkSession", place: Place) -> None:
    place.clock.begin_day()
    place.publish_hours(["1", "2"])
    place.archive_hours(spark)
    second = place.client.poll(place.topic)[1].id
    place.client.topics.truncate(place.topic, second)  # as the time to live would

    assert truncate(spark, place) is not None
    assert place.read(place.topic) == [b"open"]


@pytest.mark.slow
def test_files_that_differ_from_the_messages_are_not_recorded(
    spark: "SparkSession", place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline import archive as module

    write = module.write_files
    # Spark drops a row on its way to the disk.
    monkeypatch.setattr(module, "write_files", lambda frame, to: write(frame.limit(1), to))
    place.publish_hours(["1", "2"])

    with pytest.raises(ArchiveError, match="as written"):
        place.archive_hours(spark)

    assert place.archive.entries(place.topic) == []
    assert [hold.name for hold in place.client.holds.list(place.topic)] == [HOLD_NAME]


@pytest.mark.slow
def test_archiving_continues_after_a_topic_was_created_again(
    spark: "SparkSession", place: Place
) -> None:
    place.clock.begin_day()
    place.client.publish(place.topic, "1")
    place.clock.pass_hours()
    place.client.publish(place.topic, "2")
    (row,) = place.archive_hours(spark)
    place.client.topics.delete(place.topic)
    place.client.topics.create(place.topic)
    place.publish_hours(["3"])

    (new,) = place.archive_hours(spark)

    assert (row.generation, new.generation) == (1, 2)
    assert [values(spark, place, each) for each in (row, new)] == [[b"1"], [b"3"]]


@pytest.mark.slow
def test_a_day_becomes_one_file_and_the_rows_stay(spark: "SparkSession", place: Place) -> None:
    place.clock.begin_day()
    place.publish_hours(["1", "2"], ["3"])
    early = place.archive_hours(spark)
    before = compact_topic(spark, place.archive, place.topic)
    place.clock.begin_day()
    place.publish_hours(["4"])
    rows = early + place.archive_hours(spark)

    days = compact_topic(spark, place.archive, place.topic)
    left = place.archive.root / rows[0].path  # as by a job that died before it removed the hours
    left.mkdir()
    again = compact_topic(spark, place.archive, place.topic)

    compacted = place.archive.entries(place.topic)
    assert (before, days, again) == ([], [rows[0].hour.day], [])
    assert [row.summary for row in compacted] == [row.summary for row in rows]
    assert len({row.path for row in compacted[:3]}) == 1
    assert compacted[0].files == files_in(place.archive.root / compacted[0].path)
    for row in compacted:
        check(archived(spark, place.archive, row), row, what=str(row.hour))
    files = list((place.archive.root / "hours").rglob("*.parquet"))
    assert len(list((place.archive.root / compacted[0].path).glob("*.parquet"))) == 1
    assert (len(files), left.exists()) == (1, False)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["write_files", "check", "move", "Archive.record"])
def test_an_archive_job_that_dies_before_any_step_is_completed_by_the_next(
    spark: "SparkSession", place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    place.publish_hours(["1", "2"], ["3"])
    with monkeypatch.context() as patched:
        patched.setattr(f"pipeline.archive.{step}", die)
        with pytest.raises(DiedError):
            place.archive_hours(spark)
        assert truncate(spark, place) is None

    rows = place.archive_hours(spark)

    assert [values(spark, place, row) for row in rows] == [[b"1", b"2"], [b"3"]]
    assert place.client.holds.list(place.topic) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", ["write_files", "check", "move", "Archive.record", "remove_unnamed_files"]
)
def test_a_compaction_that_dies_before_any_step_is_completed_by_the_next(
    spark: "SparkSession", place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    place.clock.begin_day()
    place.publish_hours(["1", "2"], ["3"])
    place.clock.begin_day()
    place.publish_hours(["of another day"])
    rows = place.archive_hours(spark)
    with monkeypatch.context() as patched:
        patched.setattr(f"pipeline.compact.{step}", die)
        with pytest.raises(DiedError):
            compact_topic(spark, place.archive, place.topic)
    for row in place.archive.entries(place.topic):
        check(archived(spark, place.archive, row), row, what=str(row.hour))

    compact_topic(spark, place.archive, place.topic)

    *compacted, last = place.archive.entries(place.topic)
    (path,) = {row.path for row in compacted}
    assert (len(rows), last) == (4, rows[-1])
    found = {file.parent for file in place.archive.root.rglob("*.parquet")}
    assert found == {place.archive.root / path, place.archive.root / last.path}
