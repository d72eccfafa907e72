"""Archives for tests, in the files and the schema that `pipeline/archive.py` writes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kernel.archive_manifest import Archive, Entry, Hour, Summary, files_in
from messaging.read.archive import ArchiveReader
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, in_thread
from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes
from tuff.protocol.ids import MessageId, TopicId

SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field(
            "headers",
            pa.list_(
                pa.field("element", pa.struct([("name", pa.string()), ("value", pa.binary())]))
            ),
        ),
    ]
)
OLD_COLUMNS = SCHEMA.names[:4]  # of version 0.1.0
NO_CHECKSUM = 0  # of rows in tests; only the jobs of Spark compare it
HOLD_MS = 86_400_000

Message = tuple[MessageId, bytes]


class ArchiveJob:
    """Writes an archive as the jobs do, without Spark."""

    def __init__(self, root: Path, topic: TopicId = AUDIT) -> None:
        self.archive = Archive(root)
        self.topic = topic

    def reader(self) -> ArchiveReader:
        return ArchiveReader(self.archive.root, in_thread)

    def add_hour(
        self,
        messages: Sequence[Message],
        *,
        generation: int = 1,
        after_ms: int = 0,
        kept_from_ms: int | None = 0,
        group_count: int = 2,
        attributes: Sequence[Attributes] | None = None,
    ) -> Entry:
        """Archive messages of one hour, in row groups of `group_count`; without `attributes` in
        files of version 0.1.0."""
        hour = hour_of(messages[0])
        row = Entry(
            hour=hour,
            generation=generation,
            after_ms=after_ms,
            kept_from_ms=kept_from_ms,
            summary=Summary(
                count=len(messages),
                first=messages[0][0].hex(),
                last=messages[-1][0].hex(),
                checksum=NO_CHECKSUM,
            ),
            path=self.archive.hour_path(self.topic, hour),
        )
        table = table_of(messages, attributes or [], generation=generation)
        if attributes is None:
            table = table.select(OLD_COLUMNS)
        directory = self.archive.root / row.path
        write(table, directory, group_count=group_count)
        row = replace(row, files=files_in(directory))
        self.archive.record(self.topic, [row])
        return row

    def compact(self) -> None:
        """Merge the hours of each day, and remove their files."""
        for day, found in groupby(self.archive.entries(self.topic), key=lambda row: row.hour.day):
            rows = list(found)
            path = self.archive.day_path(self.topic, day, hour_count=len(rows))
            old = {row.path for row in rows}
            if old == {path}:
                continue
            files = [file for each in sorted(old) for file in self.files(each)]
            tables = [pq.ParquetFile(file).read() for file in files]
            write(pa.concat_tables(tables).sort_by("id"), self.archive.root / path, group_count=3)
            merged = files_in(self.archive.root / path)
            self.archive.record(self.topic, [replace(row, path=path, files=merged) for row in rows])
            for file in files:
                file.unlink()

    def files(self, path: str) -> list[Path]:
        return sorted((self.archive.root / path).glob("*.parquet"))

    async def run(self, service: MessagingService, messages: Sequence[Message]) -> None:
        """Archive the closed hours that are not yet archived, as `archive_topic` does; `messages`
        are those of the log that are live."""
        holds = service.holds_and_positions
        hold = await holds.hold(self.topic, "job", 0, max_age_ms=HOLD_MS)
        known = {row.hour for row in self.archive.entries(self.topic)}
        after_ms = 0
        open_hour = hour_of(messages[-1]) if messages else Hour(0)
        for hour, found in groupby(
            messages, key=lambda each: Hour.at(each[0].publish_timestamp_ms)
        ):
            if hour < open_hour and hour not in known:
                kept_from_ms = hold.first.publish_timestamp_ms
                self.add_hour(list(found), after_ms=after_ms, kept_from_ms=kept_from_ms)
            after_ms = hour.stop_ms
        await holds.release(self.topic, "job")


def hour_of(message: Message) -> Hour:
    return Hour.at(message[0].publish_timestamp_ms)


def table_of(
    messages: Sequence[Message], attributes: Sequence[Attributes], *, generation: int
) -> pa.Table:
    given = [*attributes, *[NO_ATTRIBUTES] * (len(messages) - len(attributes))]
    headers = [[{"name": name, "value": value} for name, value in each.headers] for each in given]
    return pa.table(
        [
            [message_id.to_bytes() for message_id, _ in messages],
            [value for _, value in messages],
            [message_id.publish_timestamp_ms * 1000 for message_id, _ in messages],
            [generation] * len(messages),
            [each.key for each in given],
            [each.tags or None for each in given],
            [each or None for each in headers],
        ],
        schema=SCHEMA,
    )


def write(table: pa.Table, directory: Path, *, group_count: int) -> None:
    """Two files, as Spark writes more than one where there are many messages."""
    directory.mkdir(parents=True)
    half = (len(table) + 1) // 2
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        if len(part):
            file = directory / f"part-00000-0000-c{number:03}.zstd.parquet"
            pq.write_table(
                part, file, compression="zstd", row_group_size=group_count,
                write_page_checksum=True,
            )  # fmt: skip
