"""Retention in HBase's flushes and compactions, with the jar of the observer (design §5)."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from messaging.engines.hbase.engine import HBaseStore
from messaging.engines.hbase.layout import key_of, value_of
from messaging.log.region_observers import RegionRecord
from messaging.model.row_format import (
    MessageRow,
    message_key,
    pointer_prefix,
    prefix_of,
    prefix_stop,
)
from messaging.service import MessagingService
from messaging.settings import MessagingSettings
from tests.hbase.deployments import deploy, server_settings, settings_of, stores_of
from tests.hbase.local_hbase import ROOT, LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.http.calls import TRANSACTIONS, Topic, begin
from tests.http.client import ok, until
from tests.http.process import serve
from tests.messaging.world import AUDIT, World, polled, publish, request
from tuff.protocol.ids import Offset, TopicId
from tuff_cli import main

JAR = ROOT / "build" / "observer" / "tuff-observer-1.jar"
GONE = TopicId("default", "gone")
REFRESH_WITHIN_S = 60.0  # seconds; the observer looks every 0.2 s

pytestmark = [
    *NEEDS_HBASE,
    pytest.mark.skipif(not JAR.exists(), reason="the observer is not built: make observer"),
]


class Cell(NamedTuple):
    """A cell or delete marker, in a file or in memory."""

    row: str
    column: str
    timestamp_ms: int
    kind: str
    value: bytes


class Observed:
    """Tables with region observers, and a message store on them."""

    def __init__(self, hbase: LocalHBase, directory: Path) -> None:
        self.hbase = hbase
        self.directory = directory
        self.settings = settings_of(
            hbase.ports, observer_jar=JAR.as_uri(), observer_directory=directory.as_uri()
        )
        deploy(self.settings, b",tuff.refresh_ms=200")
        self._open_store = stores_of(self.settings)
        self._store: HBaseStore | None = None
        self.world = World(self._open)
        self.world.settings = MessagingSettings(store="hbase", observer_directory=str(directory))
        # Region servers use no state that is an hour older or newer than their own clock.
        self.world.clock.now_ms = time.time_ns() // 1_000_000
        self._pointer = 100

    def _open(self) -> HBaseStore:
        self._store = self._open_store()
        return self._store

    def command(self, word: str, table: str = "message") -> list[str]:
        """Execute a command of the launcher once all rows are in the tables."""
        if self._store is not None:
            self._store.wait_until_shared()
        return self.hbase.command(word, self.settings.prefix + table)

    def cells(self, table: str = "message") -> list[Cell]:
        found = []
        for line in self.command("raw", table):
            row, column, timestamp, kind, value = line.split(" ")
            content = bytes.fromhex(value.rstrip("."))
            name = bytes.fromhex(column.rstrip(".")).decode()
            found.append(Cell(row, name, int(timestamp), kind, content))
        return found

    def rows(self, table: str = "message") -> dict[bytes, bytes]:
        """Key and value of every stored row."""
        found: dict[bytes, dict[bytes, bytes]] = {}
        for cell in self.cells(table):
            assert cell.kind == "Put"
            key = key_of(table, bytes.fromhex(cell.row))
            found.setdefault(key, {})[f"d:{cell.column}".encode()] = cell.value
        return {key: value_of(cells) for key, cells in found.items()}

    async def hand_over(self, service: MessagingService) -> None:
        """Run a retention pass, and wait until the region servers have read its state."""
        self._pointer += 1
        self.world.clock.now_ms += 1  # states differ by their time
        transactions = self.world.transactions
        transactions.end(transactions.start(self._pointer), transactions.invalid)
        await service.cleaner.run_pass()
        assert service.last_sweep is not None
        deadline_s = time.monotonic() + REFRESH_WITHIN_S
        while self._newest_ms() < service.last_sweep[0]:
            assert time.monotonic() < deadline_s, "no region has read the state"
            self.command("flush", "payload")  # takes a moment, and changes nothing

    def _newest_ms(self) -> int:
        # Empty regions record a state at once if its invalid pointers have changed. On a local file
        # system Hadoop replaces a record in two steps, and between them it is absent.
        newest_ms = 0
        for path in (self.directory / "regions").glob("*.major"):
            with suppress(FileNotFoundError):
                newest_ms = max(newest_ms, RegionRecord.from_bytes(path.read_bytes()).state_ms)
        return newest_ms


@pytest.fixture
def observed(hbase: LocalHBase, tmp_path: Path) -> Observed:
    return Observed(hbase, tmp_path / "observers")


@pytest.fixture
async def service(observed: Observed) -> AsyncIterator[MessagingService]:
    async with observed.world.running() as running:
        await running.topics.create(AUDIT, {"ttl": "100"})
        yield running


def put(service: MessagingService, place: Offset, row: MessageRow, topic: TopicId = AUDIT) -> bytes:
    """Write a row without an index row. Returns its key."""
    key = message_key(prefix_of(topic, 1), place)
    service.store.require_up().write([(key, row.to_bytes(key))])
    return key


async def test_a_flush_drops_expired_rows_and_keeps_all_others(
    observed: Observed, service: MessagingService
) -> None:
    clock, started_ms = observed.world.clock, observed.world.clock.now_ms
    await service.topics.create(GONE, {"ttl": "9000"})
    await publish(service, b"expired")
    await service.publisher.publish(GONE, request(b"older generation"))
    await service.topics.delete(GONE)
    await service.topics.create(GONE, {"ttl": "9000"})
    clock.now_ms += 60_000
    await publish(service, b"expired by its own ttl", ttl_s=10)
    clock.now_ms += 50_000
    observed.world.transactions.end(
        observed.world.transactions.start(66), observed.world.transactions.invalid
    )
    dead = set(observed.rows())
    await publish(service, b"live")
    await service.publisher.publish(GONE, request(b"of this generation"))
    invalid = MessageRow(tx_pointer=66, ttl_s=99, payload=b"invalid")
    inverted = put(service, Offset(clock.now_ms - 1, 7), invalid)
    put(service, Offset(started_ms, 7), MessageRow(payload=b"x"), TopicId("default", "unknown"))
    damaged = message_key(prefix_of(AUDIT, 1), Offset(started_ms, 8))
    service.store.require_up().write([(damaged, b"\x00crc!damaged")])
    before = observed.rows()
    cells = {(cell.row, cell.column): cell for cell in observed.cells()}

    await observed.hand_over(service)
    observed.command("flush")

    assert len(dead) == 3
    after = observed.rows()
    assert after.keys() == before.keys() - dead
    assert after.pop(inverted) == MessageRow(tx_pointer=-66, ttl_s=99, payload=b"invalid").to_bytes(
        inverted
    )
    assert after == {key: value for key, value in before.items() if key in after}
    for cell in observed.cells():
        was = cells[cell.row, cell.column]
        assert cell._replace(value=b"") == was._replace(value=b"")
    assert await polled(service) == [b"live"]


async def test_a_major_compaction_drops_and_inverts_rows_in_files(
    observed: Observed, service: MessagingService
) -> None:
    clock = observed.world.clock
    await publish(service, b"expires later")
    key = put(service, Offset(clock.now_ms + 60_000, 7), MessageRow(tx_pointer=67, payload=b"x"))
    await observed.hand_over(service)
    observed.command("flush")
    clock.now_ms += 110_000
    await publish(service, b"live")
    before = observed.rows()
    assert len(before) == 3
    observed.world.transactions.end(
        observed.world.transactions.start(67), observed.world.transactions.invalid
    )
    await observed.hand_over(service)
    observed.command("flush")

    observed.command("major")

    after = observed.rows()
    assert after.pop(key) == MessageRow(tx_pointer=-67, payload=b"x").to_bytes(key)
    assert list(after.values()) == [list(before.values())[-1]]


async def test_payloads_are_kept_for_a_late_publish(
    observed: Observed, service: MessagingService
) -> None:
    world = observed.world
    for pointer in (7, 8):
        world.transactions.start(pointer)
        await service.publisher.store(AUDIT, request(b"stored", pointer=pointer))
    world.transactions.end(7, world.transactions.committed)
    service.rows.end_committed([7])
    await service.tick()
    world.clock.now_ms += 199_998
    await observed.hand_over(service)
    observed.command("flush", "payload")
    assert len(observed.rows("payload")) == 2
    await observed.hand_over(service)

    observed.command("major", "payload")

    (left,) = observed.rows("payload")
    in_progress = pointer_prefix(prefix_of(AUDIT, 1), 8)
    assert in_progress <= left < prefix_stop(in_progress)


async def test_a_flush_and_then_a_compaction_of_every_region_clear_a_pointer(
    observed: Observed, service: MessagingService
) -> None:
    world = observed.world
    put(service, Offset(world.clock.now_ms, 7), MessageRow(tx_pointer=66, payload=b"x"))
    observed.command("flush")
    put(service, Offset(world.clock.now_ms, 8), MessageRow(tx_pointer=66, payload=b"x"))
    world.transactions.end(world.transactions.start(66), world.transactions.invalid)
    await observed.hand_over(service)
    await service.cleaner.run_pass()
    assert not service.rows.is_cleared(66)
    observed.command("major")  # with the second row in memory still
    await observed.hand_over(service)
    assert not service.rows.is_cleared(66)
    observed.command("flush")
    await observed.hand_over(service)
    assert not service.rows.is_cleared(66)

    observed.command("major")
    await observed.hand_over(service)
    # The record of another region may come first.
    async with asyncio.timeout(REFRESH_WITHIN_S):
        while not service.rows.is_cleared(66):
            await service.cleaner.run_pass()

    world.transactions.end(world.transactions.start(99), world.transactions.invalid)
    await observed.hand_over(service)
    await service.cleaner.run_pass()
    assert not service.rows.is_cleared(99)


async def test_without_a_state_all_rows_are_kept(
    observed: Observed, service: MessagingService
) -> None:
    await publish(service, b"expired")
    observed.world.clock.now_ms += 500_000
    observed.command("flush")
    await publish(service, b"live")
    rows = observed.rows()

    observed.command("flush")
    observed.command("major")

    assert len(rows) == 2
    assert observed.rows() == rows


def test_with_wrong_arguments_all_rows_are_kept(hbase: LocalHBase) -> None:
    settings = settings_of(hbase.ports, observer_jar=JAR.as_uri(), observer_directory="nowhere:%zz")
    deploy(settings, b",tuff.refresh_ms=soon")
    store = stores_of(settings)()
    key = message_key(prefix_of(AUDIT, 1), Offset(1, 1))
    store.write([(key, MessageRow(payload=b"x").to_bytes(key))])
    store.wait_until_shared()

    hbase.command("flush", settings.prefix + "message")
    hbase.command("major", settings.prefix + "message")

    assert store.get(key) == MessageRow(payload=b"x").to_bytes(key)
    store.close()


def test_a_server_prunes_its_invalid_list_when_all_regions_have_cleared_a_pointer(
    hbase: LocalHBase, tmp_path: Path
) -> None:
    observers = tmp_path / "observers"
    place = settings_of(
        hbase.ports, observer_jar=JAR.as_uri(), observer_directory=observers.as_uri()
    )
    deploy(place, b",tuff.refresh_ms=200")
    server = serve(
        tmp_path / "server",
        *server_settings(place),
        f"messaging.observer_directory={observers}",
        "messaging.cleanup_interval=0.2",
        "tx.prune_invalid=true",
    )
    with server, closing(server.client()) as client:
        topic = Topic(client, "default", "t")
        ok(topic.create())
        tx = begin(client)
        ok(topic.publish("a", tx=tx.id))
        ok(tx.invalidate())

        def listed() -> dict[str, Any]:
            return dict(ok(client.get(f"{TRANSACTIONS}/invalid")).json)

        # The row reaches the table after its commit, and so does the marked row.
        marked = (-int(tx.id)).to_bytes(8, "big", signed=True).hex()
        until(
            lambda: any(marked in cell for cell in hbase.command("raw", place.prefix + "message")),
            within_s=REFRESH_WITHIN_S,
            what="the row is in the table",
        )
        hbase.command("flush", place.prefix + "message")
        since = begin(client).object["startedAt"] + 2_000
        until(lambda: int(listed()["sweptAt"] or 0) > since, within_s=REFRESH_WITHIN_S)
        assert tx.id in begin(client).object["invalids"]
        assert tx.id not in listed()["prunable"]

        hbase.command("major", place.prefix + "message")

        until(
            lambda: tx.id not in begin(client).object["invalids"],
            within_s=REFRESH_WITHIN_S,
            what="the pointer is pruned",
        )
        assert topic.committed() == []


def test_the_compact_command_removes_rows_that_are_expired_now(
    hbase: LocalHBase, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Region servers read states periodically: before they did, the command removed nothing and
    reported success. The second call has nothing to compact."""
    observers = tmp_path / "observers"
    place = settings_of(
        hbase.ports, observer_jar=JAR.as_uri(), observer_directory=observers.as_uri()
    )
    deploy(place)
    settings = (
        *server_settings(place),
        f"messaging.observer_directory={observers}",
        "messaging.cleanup_interval=0.5",
    )
    jar = (f"hbase.observer_jar={JAR.as_uri()}", f"hbase.observer_directory={observers.as_uri()}")
    flags = [word for each in (*settings, *jar) for word in ("--set", each)]
    with serve(tmp_path / "server", *settings) as server, closing(server.client()) as client:
        topic = Topic(client, "default", "t")
        ok(topic.create({"ttl": "1"}))
        ok(topic.publish("expires"))
        until(lambda: topic.read() == [], within_s=REFRESH_WITHIN_S, what="the message expires")
        until(
            lambda: hbase.command("raw", place.prefix + "message"),
            within_s=REFRESH_WITHIN_S,
            what="the row is in the table",
        )

        first = compacted(flags, capfd)
        left = hbase.command("raw", place.prefix + "message")
        again = compacted(flags, capfd)

    assert left == []
    assert (first["dropped"], again["dropped"]) == (1, 0)
    for told in (first, again):
        assert told["regions that kept all for lack of a state"] == 0


def compacted(flags: Sequence[str], capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The last row that `tuff hbase compact` prints."""
    with pytest.raises(SystemExit) as ended:
        main(["hbase", "compact", "--json", *flags, "message"])
    printed = capfd.readouterr()
    assert not ended.value.code, printed.err
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert rows[-1]["kind"] == "removed"
    return dict(rows[-1])
