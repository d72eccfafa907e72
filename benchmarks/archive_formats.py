"""`python -m benchmarks.archive_formats`: an archive with its own manifest, beside Delta Lake.

    python -m benchmarks.archive_formats [--commits N] [--messages N] [--dir DIR]

Both get the same messages: `--commits` hours with `--messages` each, of 100 random-looking bytes,
in Parquet with zstd. The archive gets them as `pipeline/archive.py` writes them, except that
pyarrow and not Spark writes the files; the Delta table through `deltalake` (the library of
delta-rs), one transaction for each hour, with the application's `txn` identifier. Figures are the
best of seven where a step can be repeated, and ratios are own / Delta.

Needs `pip install 'tuff-messaging[bench]'`.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import distribution, requires
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import DeltaError

from kernel.archive_manifest import (
    Archive,
    ArchiveError,
    Entry,
    Hour,
    StoredFile,
    Summary,
    files_in,
)
from tuff.protocol.ids import TopicId
from tuff_storage.disk.files import sync_directory

TOPIC = TopicId("bench", "orders")
FIRST_HOUR = Hour(493_000)
VALUE_BYTES = 100
APPLICATION = "archive/bench:orders"  # as the name of a sink, or the application of a `txn` action
ROUNDS = 7
ZSTD_LEVEL = 3  # that of Spark's writer
RANGE_HOURS = 6  # a reader looks for the files of so many hours
Results: TypeAlias = "multiprocessing.Queue[str]"  # of sentences, one from each writer
SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
    ]
)
WRITER = WriterProperties(compression="ZSTD", compression_level=ZSTD_LEVEL)


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of both."""

    what: str
    unit: str
    own: float
    delta: float

    def line(self) -> str:
        ratio = f"{self.own / self.delta:.2f}" if self.delta else "-"
        return (
            f"| {self.what} | {self.own:.4g} {self.unit} | {self.delta:.4g} {self.unit} | {ratio} |"
        )


def messages(hour: Hour, count: int) -> pa.Table:
    """The messages of an hour, in order; the same at each call."""
    chance = random.Random(hour.number)
    times = [hour.start_ms + index * 3_600_000 // count for index in range(count)]
    ids = [struct.pack(">QHQH", at, index % 65_536, 0, 0) for index, at in enumerate(times)]
    # Half of each value repeats, as members of JSON objects do.
    begin = b'{"type":"placed","entity":"order-","amount":"'.ljust(VALUE_BYTES // 2, b"x")
    values = [begin + chance.randbytes(VALUE_BYTES // 4).hex().encode() for _ in range(count)]
    in_us = [at * 1000 for at in times]
    return pa.table([ids, values, in_us, [1] * count], schema=SCHEMA)


class Own:
    """The archive, with its manifest."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.archive = Archive(root)

    def add(self, hour: Hour, table: pa.Table) -> None:
        path = self.archive.hour_path(TOPIC, hour)
        files = self._write(path, table)
        ids = table.column("id")
        first, last = ids[0].as_py().hex(), ids[-1].as_py().hex()
        summary = Summary(count=len(table), first=first, last=last, checksum=0)
        row = Entry(
            hour=hour, generation=1, after_ms=hour.start_ms, kept_from_ms=0, summary=summary,
            path=path, files=files,
        )  # fmt: skip
        self.archive.record(TOPIC, [row])

    def _write(self, path: str, table: pa.Table) -> tuple[StoredFile, ...]:
        file = self.root / path / "part-0.zstd.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(table, file, compression="zstd", compression_level=ZSTD_LEVEL)
        with file.open("rb") as written:
            os.fsync(written.fileno())
        sync_directory(file.parent)
        return files_in(file.parent)

    def open(self) -> list[Entry]:
        return Archive(self.root).entries(TOPIC)

    def files(self, start_ms: int, stop_ms: int) -> list[str]:
        rows = self.open()
        return list({
            row.path: None
            for row in rows
            if start_ms < row.hour.stop_ms and row.hour.start_ms < stop_ms
        })  # fmt: skip

    def read(self) -> int:
        found = [file for row in self.open() for file in (self.root / row.path).glob("*.parquet")]
        return sum(len(pq.read_table(file, partitioning=None)) for file in dict.fromkeys(found))

    def compact(self) -> None:
        """One file for each day, as `pipeline/compact.py`."""
        rows = self.open()
        for day in dict.fromkeys(row.hour.day for row in rows):
            of_day = [row for row in rows if row.hour.day == day]
            paths = dict.fromkeys(row.path for row in of_day)
            path = self.archive.day_path(TOPIC, day, hour_count=len(of_day))
            if path in paths:
                continue
            tables = [pq.read_table(self.root / each, partitioning=None) for each in paths]
            files = self._write(path, pa.concat_tables(tables).sort_by("id"))
            self.archive.record(TOPIC, [replace(row, path=path, files=files) for row in of_day])
            for old in paths:
                shutil.rmtree(self.root / old)


class Delta:
    """The archive as a Delta table."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, hour: Hour, table: pa.Table) -> None:
        transaction = Transaction(APPLICATION, hour.number)
        with_day = table.append_column("dt", pa.array([hour.day] * len(table)))
        write_deltalake(
            self.root, with_day, mode="append", partition_by=["dt"],
            writer_properties=WRITER,
            commit_properties=CommitProperties(app_transactions=[transaction]),
        )  # fmt: skip

    def open(self) -> DeltaTable:
        return DeltaTable(self.root)

    def files(self, start_ms: int, stop_ms: int) -> list[str]:
        # Delta keeps no minimum and maximum of a binary column, so the id can't be the condition.
        actions = pa.table(self.open().get_add_actions(flatten=True))
        first, last = actions.column("min.timestamp"), actions.column("max.timestamp")
        start, stop = (pa.scalar(at * 1000, first.type) for at in (start_ms, stop_ms))
        found = actions.filter(pc.and_(pc.greater_equal(last, start), pc.less(first, stop)))
        return list(found.column("path").to_pylist())

    def read(self) -> int:
        return sum(len(pq.read_table(file, partitioning=None)) for file in self.open().file_uris())

    def compact(self) -> None:
        self.open().optimize.compact(writer_properties=WRITER)
        self.open().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The shortest time of one call, in seconds."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def size_bytes(root: Path, pattern: str = "**/*") -> int:
    return sum(each.stat().st_size for each in root.glob(pattern) if each.is_file())


def figures(own: Own, delta: Delta, commits: int, count: int) -> Iterator[Pair]:
    """All steps, in order: written, opened, searched, read, compacted."""
    hours = [Hour(FIRST_HOUR.number + index) for index in range(commits)]
    own_s = delta_s = 0.0
    for hour in hours:
        table = messages(hour, count)
        own_s += seconds(partial(own.add, hour, table), 1)
        delta_s += seconds(partial(delta.add, hour, table), 1)
    yield Pair("write, one commit", "ms", own_s * 1e3 / commits, delta_s * 1e3 / commits)
    yield from _state("as written", own, delta, hours)
    compact = seconds(own.compact, 1), seconds(delta.compact, 1)
    yield Pair("compact, and remove old files", "s", *compact)
    yield from _state("compacted", own, delta, hours)


def _state(what: str, own: Own, delta: Delta, hours: list[Hour]) -> Iterator[Pair]:
    start, stop = hours[len(hours) // 2], hours[len(hours) // 2 + RANGE_HOURS]
    bounds = start.start_ms, stop.start_ms
    manifest = size_bytes(own.root / "_manifest"), size_bytes(delta.root / "_delta_log")
    yield Pair(f"{what}: size", "MB", size_bytes(own.root) / 1e6, size_bytes(delta.root) / 1e6)
    yield Pair(f"{what}: of it metadata", "kB", manifest[0] / 1e3, manifest[1] / 1e3)
    yield Pair(f"{what}: open", "ms", seconds(own.open) * 1e3, seconds(delta.open) * 1e3)
    listing = seconds(lambda: own.files(*bounds)), seconds(lambda: delta.files(*bounds))
    yield Pair(f"{what}: open, and list files of 6 h", "ms", *(each * 1e3 for each in listing))
    yield Pair(
        f"{what}: files of 6 h",
        "files",
        *(float(len(each.files(*bounds))) for each in (own, delta)),
    )
    yield Pair(f"{what}: read all", "s", seconds(own.read), seconds(delta.read))


def _writer_own(root: Path, hour: Hour, begin: Barrier, results: Results) -> None:
    archive = Own(root)
    begin.wait()
    try:
        with archive.archive.locked():
            if hour in {row.hour for row in archive.open()}:
                results.put("found the hour in the manifest")
                return
            archive.add(hour, messages(hour, 1000))
            time.sleep(0.5)  # the others come while this one works
        results.put("wrote")
    except ArchiveError as error:
        results.put(f"refused: {type(error).__name__}")


def _writer_delta(root: Path, hour: Hour, begin: Barrier, results: Results) -> None:
    table = DeltaTable(root)
    done = table.transaction_version(APPLICATION)
    begin.wait()
    if done is not None and done >= hour.number:
        results.put("found the version of its application")
        return
    rows = messages(hour, 1000).append_column("dt", pa.array([hour.day] * 1000))
    properties = CommitProperties(app_transactions=[Transaction(APPLICATION, hour.number)])
    try:
        write_deltalake(table, rows, mode="append", commit_properties=properties)
        results.put("wrote")
    except DeltaError as error:
        results.put(f"refused: {type(error).__name__}: {str(error)[:120]}")


def race(writer: Callable[..., None], root: Path, hour: Hour) -> list[str]:
    """What two processes say that write the same hour at the same time."""
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    begin = context.Barrier(2)
    processes = [
        context.Process(target=writer, args=(root, hour, begin, results)) for _ in range(2)
    ]
    for each in processes:
        each.start()
    said = sorted(results.get() for _ in processes)
    for each in processes:
        each.join()
    return said


def facts(own: Own, delta: Delta, commits: int, total: int) -> Iterator[str]:
    """What can't be a ratio: two writers, repeated epochs, readers during a compaction."""
    late = Hour(FIRST_HOUR.number + commits)
    said = race(_writer_own, own.root, late)
    yield f"two writers of one hour of 1000, own: {said}, {own.read() - total} more"
    said = race(_writer_delta, delta.root, late)
    yield f"two writers of one hour of 1000, Delta: {said}, {delta.read() - total} more"
    before = delta.read()
    delta.add(late, messages(late, 1000))
    yield f"the same version of `txn` once more, Delta: {delta.read() - before} messages more"
    yield f"files in the order of ids after a compaction, Delta: {_sorted_count(delta.open())}"
    held = [Path(each) for each in delta.open().file_uris()]
    delta.compact()
    yield f"files of an open reader after compact and vacuum, Delta: {_left(held)}"
    listed = [file for row in own.open() for file in (own.root / row.path).glob("*.parquet")]
    own.compact()
    yield f"files of an open reader after compact, own: {_left(list(dict.fromkeys(listed)))}"


def _sorted_count(table: DeltaTable) -> str:
    found = [pq.read_table(file, columns=["id"], partitioning=None) for file in table.file_uris()]
    in_order = [each.column("id").to_pylist() for each in found]
    return f"{sum(ids == sorted(ids) for ids in in_order)} of {len(in_order)}"


def _left(files: list[Path]) -> str:
    found = [each.exists() for each in files]
    return f"{sum(found)} of {len(found)} are there"


def dependencies() -> Iterator[str]:
    """What each library brings."""
    for name in ("deltalake", "pyarrow"):
        found = distribution(name)
        size_mb = sum(file.size or 0 for file in found.files or []) / 1e6
        needs = [each for each in requires(name) or [] if "extra" not in each]
        yield f"{name} {found.version}: {size_mb:.0f} MB installed, needs {needs or 'nothing'}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.archive_formats")
    parser.add_argument("--commits", type=int, default=200, help="hours (200)")
    parser.add_argument("--messages", type=int, default=5_000, help="of an hour (5000)")
    parser.add_argument("--dir", type=Path, help="where the data goes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as home:
        own, delta = Own(Path(home) / "own"), Delta(Path(home) / "delta")
        print("| | own | Delta | own / Delta |\n|---|---|---|---|")
        for figure in figures(own, delta, given.commits, given.messages):
            print(figure.line(), flush=True)
        print()
        for fact in facts(own, delta, given.commits, given.commits * given.messages):
            print(f"- {fact}", flush=True)
        for line in dependencies():
            print(f"- {line}")


if __name__ == "__main__":
    main()
