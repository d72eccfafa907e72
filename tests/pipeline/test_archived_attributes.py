"""Attributes and partitions go through the archive, a truncation and a replay unchanged."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tuff
from kernel.archive_manifest import Entry, files_in
from messaging.model.partition_of_key import partition_index
from pipeline.command import run
from pipeline.frames import archived, check, in_files
from tests.faults.disk import Shim
from tests.http.process import serve
from tests.pipeline.clock import Clock
from tests.pipeline.conftest import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITION_COUNT = 3
SENT = [
    tuff.NewMessage("full", key=b"\xff", tags=["eu", "paid"], headers=[("a", b"\x00"), ("a", b"")]),
    tuff.NewMessage("empty key", key=b""),
    tuff.NewMessage("tags", key="k1", tags=["eu"]),
    tuff.NewMessage("headers", key="k2", headers={"traceparent": "00-01"}),
]

Content = tuple[bytes, bytes | None, tuple[str, ...], tuple[tuple[str, bytes], ...]]


@pytest.fixture
def archiving(shim_library: Path, tmp_path: Path) -> Iterator[Place]:
    """A place whose server reads its archive."""
    shim = Shim(shim_library, root=tmp_path / "home", control=tmp_path / "control")
    clock = Clock(shim)
    (tmp_path / "archive" / "_manifest").mkdir(parents=True)
    setting = f"messaging.archive_directory={tmp_path / 'archive'}"
    environment = shim.environment()
    with (
        serve(tmp_path / "home", setting, environment=environment) as server,
        tuff.Client(server.url) as client,
    ):
        yield Place(client, clock, tmp_path)


def content(messages: Sequence[tuff.Message]) -> list[Content]:
    return [(each.payload, each.key, each.tags, each.headers) for each in messages]


def job(place: Place, *words: str) -> None:
    assert run(["--url", place.client.url, *words]) == 0


@pytest.mark.slow
def test_archived_messages_of_all_partitions_are_read_and_replayed_with_their_attributes(
    spark: "SparkSession", archiving: Place
) -> None:
    place, topic, root = archiving, archiving.topic, str(archiving.archive.root)
    place.client.topics.update(topic, partitions=PARTITION_COUNT)
    place.clock.begin_day()
    place.client.publish(topic, *SENT)
    partitions = [topic.partition(number) for number in range(PARTITION_COUNT)]
    for partition in partitions:
        place.client.publish(partition, f"in {partition.number}")
    place.clock.begin_day()
    for partition in partitions:
        place.client.publish(partition, "of the next day")
    before = [list(place.client.poll(each)) for each in partitions]
    place.clock.pass_hours()
    for partition in partitions:
        place.client.publish(partition, "open")

    job(place, "archive", str(topic), "--root", root, "--truncate")
    job(place, "compact", str(topic), "--root", root)
    target = place.other("-again")
    place.client.topics.update(target, partitions=PARTITION_COUNT)
    for _ in range(2):
        job(place, "replay", str(topic), "--root", root, "--to", str(target))

    left = [content(place.client.poll(each)) for each in partitions]
    assert left == [[(b"open", None, (), ())]] * PARTITION_COUNT
    for number, partition in enumerate(partitions):
        poll = place.client.poll(partition, 0)
        assert poll.archived
        assert list(poll) == before[number]
        path = place.archive.entries(partition)[0].path
        assert path.startswith("days/")
    again = [content(place.client.poll(target.partition(n))) for n in range(PARTITION_COUNT)]
    found = [each for messages in again for each in messages]
    sent = [each for messages in before for each in content(messages)]
    assert sorted(found, key=repr) == sorted(sent, key=repr)
    for number, messages in enumerate(again):
        keys = [key for _, key, _, _ in messages if key is not None]
        assert all(partition_index(key, PARTITION_COUNT) == number for key in keys)


def as_in_0_1_0(spark: "SparkSession", place: Place, row: Entry) -> Entry:
    """The row of the same hour in files without attributes."""
    directory = place.archive.root / row.path
    frame = in_files(spark, directory).drop("key", "tags", "headers")
    frame.coalesce(1).write.parquet(str(place.home / "old"))
    for file in directory.iterdir():
        file.unlink()
    for file in (place.home / "old").glob("*.parquet"):
        file.rename(directory / file.name)
    return replace(row, files=files_in(directory))


@pytest.mark.slow
def test_an_archive_of_version_0_1_0_is_compacted_with_newer_hours(
    spark: "SparkSession", archiving: Place
) -> None:
    """Its checksums are those that a message without attributes has today."""
    place, topic = archiving, archiving.topic
    place.clock.begin_day()
    place.client.publish(topic, "old")
    place.clock.pass_hours()
    place.client.publish(topic, *SENT)
    place.clock.begin_day()
    place.client.publish(topic, "of the next day")
    before = list(place.client.poll(topic))
    place.clock.pass_hours()
    place.client.publish(topic, "open")
    old, _, _ = place.archive_hours(spark)

    place.archive.record(topic, [as_in_0_1_0(spark, place, old)])
    job(place, "compact", str(topic), "--root", str(place.archive.root))
    place.client.topics.truncate(topic, place.client.offsets(topic).end)

    rows = place.archive.entries(topic)
    assert len({row.path for row in rows}) == 2
    for row in rows:
        check(archived(spark, place.archive, row), row, what=str(row.hour))
    assert list(place.client.poll(topic, 0)) == before
