"""The accounting of killed jobs finds lost, duplicated and moved messages."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from kernel.archive_manifest import HOUR_MS, Archive, Entry, Hour, Summary
from tests.pipeline.kill import Moment, Step, kills
from tests.pipeline.kill_accounts import (
    Message,
    check_archive,
    check_audit,
    check_files,
    check_replayed,
    event,
    rows_of_files,
)
from tests.pipeline.kill_job import STEPS
from tests.spark.kill import Point
from tuff.protocol.ids import MessageId, TopicId

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TOPIC = TopicId("jobs", "source")
NOON = Hour(480_012)


def message(number: int) -> Message:
    """The messages, three of each hour."""
    time_ms = NOON.start_ms + number // 3 * HOUR_MS
    return Message(MessageId(time_ms, number).to_bytes(), event(number).encode())


PUBLISHED = [message(number) for number in range(8)]  # the last two are of an open hour
CLOSED, OPEN = PUBLISHED[:6], PUBLISHED[6:]
FILES = {NOON.number: CLOSED[:3], NOON.number + 1: CLOSED[3:]}


def rows() -> list[Entry]:
    return [
        Entry(
            hour=Hour(hour),
            generation=1,
            after_ms=0,
            summary=Summary(
                count=len(of_hour), first=of_hour[0].id.hex(), last=of_hour[-1].id.hex(), checksum=0
            ),
            path="days/x",
        )
        for hour, of_hour in FILES.items()
    ]


def write(file: Path, columns: dict[str, list[object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)


def test_a_reader_by_the_manifest_finds_each_hour_in_the_file_of_a_day(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    file = tmp_path / "days" / "x" / "part.parquet"
    write(file, {"id": [m.id for m in CLOSED], "value": [m.payload for m in CLOSED]})

    assert rows_of_files(archive, rows()) == FILES
    check_files(archive, TOPIC, rows())
    write(tmp_path / "hours" / "left" / "part.parquet", {"id": [b""]})
    with pytest.raises(AssertionError, match="1 directories are named by no row"):
        check_files(archive, TOPIC, rows())


Spoilt = tuple[dict[int, list[Message]], list[Message]]


@pytest.mark.parametrize(
    ("spoilt", "found"),
    [
        (lambda: (FILES | {NOON.number: CLOSED[:2]}, OPEN), "holds 2 messages"),
        (lambda: (FILES | {NOON.number: [CLOSED[0], *CLOSED[:3]]}, OPEN), "3 of them distinct"),
        (lambda: (FILES | {NOON.number: [*CLOSED[1::-1], CLOSED[2]]}, OPEN), "holds 3 messages"),
        (
            lambda: (FILES | {NOON.number: [*CLOSED[:2], replace(CLOSED[2], payload=b"")]}, OPEN),
            "holds 3 messages",
        ),
        (lambda: (FILES, OPEN[1:]), "neither archived nor in the topic"),
        (lambda: (FILES, OPEN[:1]), "not its newest"),
        (lambda: (FILES, [*OPEN, OPEN[1]]), "not its newest"),
    ],
)
def test_lost_duplicated_and_changed_messages_are_found(
    spoilt: Callable[[], Spoilt], found: str
) -> None:
    files, left = spoilt()

    assert check_archive(rows(), FILES, OPEN, PUBLISHED) == CLOSED
    assert check_archive(rows(), FILES, PUBLISHED, PUBLISHED) == CLOSED
    assert check_archive(rows()[:1], FILES, PUBLISHED, PUBLISHED) == CLOSED[:3]
    with pytest.raises(AssertionError, match=found):
        check_archive(rows(), files, left, PUBLISHED)


def test_an_hour_that_is_truncated_and_not_archived_is_found() -> None:
    with pytest.raises(AssertionError, match="3 messages are neither"):
        check_archive(rows()[:1], FILES, OPEN, PUBLISHED)


def test_a_replayed_topic_has_whole_hours_in_order() -> None:
    payloads = [each.payload for each in CLOSED]
    check_replayed([], CLOSED, is_whole=False)
    check_replayed(payloads[:3], CLOSED, is_whole=False)
    check_replayed(payloads, CLOSED, is_whole=True)

    for copy, is_whole in (
        (payloads[:2], False),
        (payloads[:3], True),
        (payloads[:3] * 2, False),
        (payloads[::-1], True),
    ):
        with pytest.raises(AssertionError, match="the copy"):
            check_replayed(copy, CLOSED, is_whole=is_whole)


def test_an_audit_is_compared_by_hour_and_by_dead_letter(tmp_path: Path) -> None:
    counted: dict[int, list[tuple[object, ...]]] = {
        NOON.number: [("job-1", "stop", 1), ("job-2", "run", 1)],
        NOON.number + 1: [("job-0", "stop", 1), ("job-1", "run", 1)],
    }
    for hour, each in counted.items():
        directory = f"dt={Hour(hour).day}/hour={Hour(hour).of_day}"
        entities, kinds, counts = map(list, zip(*each, strict=True))
        columns = {"entity": entities, "kind": kinds, "count": counts}
        write(tmp_path / "counts" / directory / "part.parquet", columns)
    edge = {"program": ["report"], "dataset": ["table-1"], "access": ["read"], "count": [1]}
    later = Hour(NOON.number + 1)
    edges = tmp_path / "edges" / f"dt={later.day}" / f"hour={later.of_day}" / "part.parquet"
    write(edges, edge)
    dead = [json.dumps({"id": CLOSED[n].id.hex()}).encode() for n in (0, 5)]

    check_audit(tmp_path, dead, CLOSED)
    for letters in (dead[:1], dead * 2, dead[::-1]):
        with pytest.raises(AssertionError, match="dead letters for 2 messages"):
            check_audit(tmp_path, letters, CLOSED)
    write(edges, edge | {"count": [2]})
    with pytest.raises(AssertionError, match="edges"):
        check_audit(tmp_path, dead, CLOSED)
    write(edges, edge)
    edges.parent.rename(tmp_path / "edges" / f"dt={later.day}" / "hour=00")
    with pytest.raises(AssertionError, match="edges"):
        check_audit(tmp_path, dead, CLOSED)


def test_the_first_kills_are_of_every_kind() -> None:
    first = list(islice(kills(seed=0), 8))

    steps = {kill.job for kill in first if isinstance(kill, Step)}
    calls = {kill.call.split()[0] for kill in first if isinstance(kill, Point)}
    assert steps == set(STEPS)
    assert calls == {"archive", "replay", "audit"}
    assert sum(isinstance(kill, Moment) for kill in first) == 1
