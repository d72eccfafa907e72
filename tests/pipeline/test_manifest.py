"""Hours, and the manifest: its rows, gaps between them, and files that are not a manifest."""

import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from kernel.archive_manifest import (
    Archive,
    ArchiveError,
    Entry,
    Hour,
    StoredFile,
    Summary,
    files_in,
    watermark_ms,
)
from tuff.protocol.ids import TopicId

TOPIC = TopicId("shop", "orders")
SUMMARY = Summary(count=2, first="00" * 20, last="01" * 20, checksum=-5)
NOON = Hour(24 * 20_000 + 12)


def row(hour: Hour, *, after: Hour | None = None, generation: int = 1) -> Entry:
    """A row of that hour; the topic has no messages between the end of `after` and that hour."""
    after_ms = 0 if after is None else after.stop_ms
    return Entry(hour=hour, generation=generation, after_ms=after_ms, summary=SUMMARY, path="x")


def later(count: int) -> Hour:
    return Hour(NOON.number + count)


def test_an_hour_has_a_day_and_a_number_in_utc() -> None:
    hour = Hour.at(1_700_000_000_000)

    assert (hour.day, hour.of_day, str(hour)) == ("2023-11-14", "22", "2023-11-14T22")
    assert (hour.start_ms, hour.stop_ms) == (1_699_999_200_000, 1_700_002_800_000)


@pytest.mark.parametrize(("time_ms", "is_last"), [(86_399_999, True), (86_400_000, False)])
def test_a_day_ends_with_its_last_hour(time_ms: int, is_last: bool) -> None:
    assert Hour.at(time_ms).is_last_of_day is is_last


def test_rows_come_back_in_order_over_days(tmp_path: Path) -> None:
    archive, rows = Archive(tmp_path), [row(NOON), row(later(1)), row(later(20))]
    for each in reversed(rows):
        archive.record(TOPIC, [each])

    assert archive.entries(TOPIC) == rows
    assert archive.entries(TopicId("shop", "returns")) == []
    assert len(list(tmp_path.glob("_manifest/topic=shop%3Aorders/dt=*.json"))) == 2


def test_a_row_replaces_that_of_its_hour(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.record(TOPIC, [row(NOON), row(later(1))])

    archive.record(TOPIC, [replace(row(NOON), path="y")])

    assert [each.path for each in archive.entries(TOPIC)] == ["y", "x"]


def test_a_row_has_the_bytes_of_the_example_whether_or_not_it_has_checksums(
    tmp_path: Path,
) -> None:
    archive = Archive(tmp_path)
    files = (StoredFile("part-0.parquet", 3, 4),)
    rows = [row(NOON), replace(row(later(1)), kept_from_ms=5, files=files)]
    archive.record(TOPIC, rows)
    (file,) = tmp_path.glob("_manifest/*/*.json")

    assert archive.entries(TOPIC) == rows
    old, new = json.loads(file.read_bytes())["hours"]
    assert new == old | {
        "hour": later(1).number,
        "keptFrom": 5,
        "files": [{"name": "part-0.parquet", "size": 3, "crc32": 4}],
    }
    assert old == {
        "hour": NOON.number, "generation": 1, "after": 0, "count": 2, "first": "00" * 20,
        "last": "01" * 20, "checksum": -5, "path": "x",
    }  # fmt: skip


def test_a_stored_file_has_the_checksum_of_all_its_content(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5_000  # more than is read at a time
    (tmp_path / "a.parquet").write_bytes(content)
    (tmp_path / ".a.parquet.crc").write_bytes(b"of Hadoop")

    assert files_in(tmp_path) == (StoredFile("a.parquet", len(content), zlib.crc32(content)),)


def test_the_watermark_ends_at_a_gap() -> None:
    rows = [row(NOON), row(later(1), after=NOON), row(later(5), after=later(3))]

    assert watermark_ms(rows, generation=1) == later(1).stop_ms
    assert watermark_ms(rows[:1], generation=1) == NOON.stop_ms
    assert watermark_ms([], generation=1) == 0


def test_the_watermark_is_of_one_generation() -> None:
    rows = [row(NOON), row(later(1), generation=2)]

    assert watermark_ms(rows, generation=1) == NOON.stop_ms
    assert watermark_ms(rows, generation=2) == later(1).stop_ms
    assert watermark_ms(rows, generation=3) == 0


@pytest.mark.parametrize("text", ["", "[]", '{"version":1}', '{"version":1,"hours":[{"hour":1}]}'])
def test_a_file_that_is_not_a_manifest_is_refused(tmp_path: Path, text: str) -> None:
    archive = Archive(tmp_path)
    archive.record(TOPIC, [row(NOON)])
    (file,) = tmp_path.glob("_manifest/*/*.json")
    file.write_text(text)

    with pytest.raises(ArchiveError, match="is not a manifest"):
        archive.entries(TOPIC)


def test_a_later_version_is_not_reported_as_corruption(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.record(TOPIC, [row(NOON)])
    (file,) = tmp_path.glob("_manifest/*/*.json")
    file.write_text('{"version":2}')

    with pytest.raises(ArchiveError, match="use a later program"):
        archive.entries(TOPIC)


def test_one_job_at_a_time_changes_an_archive(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "new")

    with archive.locked(), pytest.raises(ArchiveError, match="already open"), archive.locked():
        pass
    with archive.locked():
        pass
