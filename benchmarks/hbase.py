"""`python -m benchmarks.hbase`: the store in HBase beside a bare happybase loop, on one gateway.

    python -m benchmarks.hbase [--only publish|poll|topics ...] [--rounds N] [--seconds S]

Both write and read the same rows in turn, round by round, and a ratio is of one round: other load
of the machine slows both. Starts an HBase in one JVM (`make test-hbase-one` installs it).
Writes hbase.json and hbase.md; rows that are left out are kept.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from itertools import chain, count
from pathlib import Path

import happybase

from benchmarks.machine import describe
from benchmarks.processes import tuff
from benchmarks.results import RESULTS
from messaging.engines.hbase.engine import HBaseStore
from messaging.engines.hbase.layout import Layout, cells_of
from messaging.model.row_format import (
    MESSAGES,
    METADATA,
    MessageRow,
    message_key,
    prefix_of,
    prefix_stop,
)
from tests.hbase.deployments import SALTS, deploy, settings_of, stores_of
from tests.hbase.local_hbase import LocalHBase, why_missing
from tuff.protocol.ids import Offset, TopicId

PAYLOAD = bytes(100)
BATCHES = (1, 100, 1_000)  # rows
PAGES = (100, 1_000, 10_000)  # rows of one read
TOPICS = (1, 4, 16, 64)
REQUEST_MESSAGES = 100  # messages of a request, in the curve over topics
PARTS = ("publish", "poll", "topics")
RATIO_MIN = 0.8  # to the bare loop
FIRST_MS = 1_480_000_000_000

Row = Mapping[str, float]
Step = Callable[[], int]  # does some work; returns the number of rows


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side of a round")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args(arguments)
    if reason := why_missing():
        sys.stderr.write(f"{reason}\n")
        return 2
    with tempfile.TemporaryDirectory() as home:
        hbase = LocalHBase(Path(home) / "hbase")
        try:
            bench = Bench(hbase, rounds=options.rounds, seconds=options.seconds)
            rows = _kept(options.out / "hbase.json")
            if "publish" in options.only:
                rows |= bench.publish()
            if "poll" in options.only:
                rows |= bench.poll()
            if "topics" in options.only:
                rows |= bench.topics(Path(home))
        finally:
            hbase.stop()
    machine = describe(None)
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine, "rows": rows}, indent=1)
    (options.out / "hbase.json").write_text(text + "\n")
    (options.out / "hbase.md").write_text(page(machine, rows))
    return 0


def _kept(path: Path) -> dict[str, Row]:
    """The rows of the last run; none before the first."""
    return dict(json.loads(path.read_text("utf-8"))["rows"]) if path.exists() else {}


def _nothing() -> None:
    """No work is left."""


class Bench:
    """The measurements on one HBase."""

    def __init__(self, hbase: LocalHBase, *, rounds: int, seconds: float) -> None:
        self._hbase = hbase
        self._rounds = rounds
        self._seconds = seconds

    def publish(self) -> dict[str, Row]:
        """Batches of messages with the high-water mark, as a publish writes them."""
        found = {}
        for size in BATCHES:
            place = deploy(settings_of(self._hbase.ports))
            bare = deploy(settings_of(self._hbase.ports)).prefix
            with closing(stores_of(place)()) as store, self._table(bare) as table:
                sides = (partial(_write, store, _rows(size)), partial(_put, table, _rows(size)))
                found[f"publish {size}"] = self._measure(*sides, finish=store.wait_until_shared)
        return found

    def poll(self) -> dict[str, Row]:
        """Reads of several sizes from the beginning of a topic."""
        found = {}
        place = deploy(settings_of(self._hbase.ports))
        with closing(stores_of(place)()) as store:
            for batch in _take(_rows(1_000), PAGES[-1] // 1_000):
                store.write(batch)
        with closing(stores_of(place)()) as store, self._table(place.prefix) as table:
            for size in PAGES:
                sides = (partial(_read, store, size), partial(_scan, table, size))
                found[f"poll {size}"] = self._measure(*sides)
        return found

    def topics(self, home: Path) -> dict[str, Row]:
        """Requests of 100 messages to a server, with one connection for each topic, and as many
        happybase connections."""
        found = {}
        bare = deploy(settings_of(self._hbase.ports)).prefix
        for topic_count in TOPICS:
            place = deploy(settings_of(self._hbase.ports))
            settings = (
                "messaging.store=hbase",
                "server.max_request_bytes=8388608",
                f"hbase.gateways={list(place.gateways)}",
                f"hbase.prefix={place.prefix}",
            )
            with tuff(home / f"server-{topic_count}", settings=settings) as server:
                ours = [_publisher(server.addr, number) for number in range(topic_count)]
                tables = [self._open(bare) for _ in range(topic_count)]
                theirs = [
                    partial(_put, table, _rows(REQUEST_MESSAGES, number))
                    for number, table in enumerate(tables)
                ]
                found[f"topics {topic_count}"] = self._measure(
                    partial(_together, ours, self._seconds),
                    partial(_together, theirs, self._seconds),
                )
                for table in tables:
                    table.connection.close()
        return found

    def _measure(self, ours: Step, theirs: Step, finish: Callable[[], None] = _nothing) -> Row:
        """Both sides in turn; the rates of the rounds, and their ratios. `finish`: work that our
        steps leave, and that counts for their time."""
        for side in (ours, theirs):
            side()
        rates: list[tuple[float, float]] = []
        for number in range(self._rounds):
            order = (ours, theirs) if number % 2 else (theirs, ours)
            found = {
                side: _rate(side, self._seconds, finish if side is ours else _nothing)
                for side in order
            }
            rates.append((found[ours], found[theirs]))
        ratios = [mine / bare for mine, bare in rates]
        return {
            "rows_per_s": statistics.median(mine for mine, _ in rates),
            "bare_rows_per_s": statistics.median(bare for _, bare in rates),
            "ratio": statistics.median(ratios),
            "ratio_lowest": min(ratios),
            "ratio_highest": max(ratios),
        }

    @contextmanager
    def _table(self, prefix: str) -> Iterator[happybase.Table]:
        table = self._open(prefix)
        with closing(table.connection):
            yield table

    def _open(self, prefix: str) -> happybase.Table:
        port = self._hbase.ports.thrift
        connection = happybase.Connection("127.0.0.1", port, timeout=60_000)
        return connection.table(f"{prefix}message")


def page(machine: Mapping[str, object], rows: Mapping[str, Row]) -> str:
    """The results as Markdown."""
    lines = [
        "# The last run on HBase",
        "",
        "Written by `python -m benchmarks.hbase`; [hbase.md](../../docs/hbase.md) says what the",
        "figures are of. Medians over the rounds; a ratio is of the two sides of one round.",
        "",
        *(f"- {name}: {value}" for name, value in machine.items() if name != "versions"),
        "",
        "| | rows/s | bare loop, rows/s | ratio | lowest | highest | wanted |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        ratio, lowest, highest = (row[key] for key in ("ratio", "ratio_lowest", "ratio_highest"))
        wanted = ">= 0.8 " + ("met" if ratio >= RATIO_MIN else "not met")
        lines.append(
            f"| {name} | {row['rows_per_s']:,.0f} | {row['bare_rows_per_s']:,.0f} | {ratio:.2f} | "
            f"{lowest:.2f} | {highest:.2f} | {'' if name.startswith('topics') else wanted} |"
        )
    return "\n".join(lines) + "\n"


Batch = list[tuple[bytes, bytes | None]]

_MARK = METADATA + b"mark"
_LAYOUT = Layout(SALTS)


def _prefix(topic: int) -> bytes:
    return prefix_of(TopicId("default", f"t{topic}"), 1)


def _rows(size: int, topic: int = 0) -> Iterator[Batch]:
    """Batch after batch of messages of one topic, each with a mark."""
    for number in count():
        places = (Offset(FIRST_MS + number, index) for index in range(size))
        keys = (message_key(_prefix(topic), place) for place in places)
        rows: Batch = [(key, MessageRow(payload=PAYLOAD).to_bytes(key)) for key in keys]
        yield [*rows, (_MARK, b"%020d" % number)]


def _take(batches: Iterator[Batch], number: int) -> list[Batch]:
    return [next(batches) for _ in range(number)]


def _write(store: HBaseStore, batches: Iterator[Batch]) -> int:
    batch = next(batches)
    store.write(batch)
    return len(batch) - 1


def _put(table: happybase.Table, batches: Iterator[Batch]) -> int:
    """The messages without the mark, with the row keys of the store."""
    *messages, _ = next(batches)
    with table.batch() as batch:
        for key, value in messages:
            name, row = _LAYOUT.place(key)
            assert value is not None
            batch.put(row, cells_of(name, value))
    return len(messages)


def _read(store: HBaseStore, size: int) -> int:
    start = MESSAGES + _prefix(0)
    with closing(store.scan(start, prefix_stop(start))) as chunks:
        rows = chain.from_iterable(chunks)
        return sum(1 for _ in zip(range(size), rows, strict=False))


def _scan(table: happybase.Table, size: int) -> int:
    start = _LAYOUT.place(MESSAGES + _prefix(0))[1]
    rows = table.scan(row_prefix=start, limit=size, batch_size=min(size, 1_000))
    return sum(1 for _ in rows)


def _publisher(addr: str, number: int) -> Step:
    connection = HTTPConnection(addr, timeout=60)
    path = f"/v1/namespaces/default/topics/t{number}"
    _ask(connection, "PUT", path, b"{}")
    body = json.dumps({"messages": ["x" * len(PAYLOAD)] * REQUEST_MESSAGES}).encode()

    def publish() -> int:
        _ask(connection, "POST", f"{path}/publish", body)
        return REQUEST_MESSAGES

    return publish


def _ask(connection: HTTPConnection, method: str, path: str, body: bytes) -> None:
    connection.request(method, path, body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    assert reply.status in {200, 201}, text


def _together(steps: Sequence[Step], seconds: float) -> int:
    """Repeat all steps concurrently, each in a thread of its own; returns the number of rows."""
    counts = [0] * len(steps)
    stop_s = time.perf_counter() + seconds

    def work(index: int) -> None:
        while time.perf_counter() < stop_s:
            counts[index] += steps[index]()

    threads = [threading.Thread(target=work, args=[index]) for index in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def _rate(step: Step, seconds: float, finish: Callable[[], None]) -> float:
    """Rows per second, measured for this many seconds."""
    began_s = time.perf_counter()
    rows = 0
    while time.perf_counter() - began_s < seconds:
        rows += step()
    finish()
    return rows / (time.perf_counter() - began_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
