"""The write-ahead log: group commit, its files, and what is proven durable (design §4)."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.tx.service import NewService, Service, turns
from tx.log_records import Committed
from tx.wal import DiskFile, read_log


async def test_a_batch_that_no_caller_waits_for_is_not_synced(service: Service) -> None:
    tx = await service.begin()
    await service.runner.commit(tx.transaction_id, read_only=True)
    await service.later(0)
    assert service.disk.write_count > 0
    assert service.disk.sync_count == 0

    await service.runner.outcome(tx.transaction_id)

    assert service.disk.sync_count == 1


async def test_what_is_durable_is_proven_once(service: Service) -> None:
    tx = await service.begin()
    await service.runner.commit(tx.transaction_id)
    await service.later(0)
    proven = service.disk.write_count

    await service.later(0)

    assert service.disk.write_count == proven


async def test_no_waiter_is_kept_after_its_sync(service: Service) -> None:
    for _ in range(3):
        tx = await service.begin()
        await service.runner.commit(tx.transaction_id)

    log = service.durable._log
    assert log is not None
    assert log._waiters == []


async def test_a_sync_is_observed_and_a_write_without_one_is_not(service: Service) -> None:
    service.disk.sync_s = 0.000_25
    tx = await service.begin()
    await turns()
    await service.later(0)
    unsynced = list(service.observed)
    await service.runner.commit(tx.transaction_id)

    assert service.disk.write_count == 2
    assert unsynced == [("log_batch_edits", 1)]
    assert service.observed[1:] == [("log_batch_edits", 1), ("log_fsync_seconds", 0.000_25)]


async def test_starts_wait_for_a_commit(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tx.wal.UNWANTED_S_MAX", 60)  # so long may the next lines take
    started = [await service.begin() for _ in range(2)]
    await turns()
    assert service.disk.write_count == 0

    await service.runner.commit(started[0].transaction_id)

    assert service.disk.write_count == 1


async def test_many_commits_share_a_sync(service: Service) -> None:
    started = [await service.begin() for _ in range(20)]
    await turns()
    syncs = service.disk.sync_count

    await asyncio.gather(*(service.runner.commit(tx.transaction_id) for tx in started))

    assert service.disk.sync_count - syncs <= 2


async def test_a_commit_writes_no_change_twice(service: Service) -> None:
    tx = await service.begin()
    await service.runner.can_commit(tx.transaction_id, [b"a"])

    await service.runner.commit(tx.transaction_id, changes=[b"a", b"b"])

    (path,) = service.directory.glob("txlog.*")
    _, edit = read_log(path.name, path.read_bytes()).edits[-1]
    assert isinstance(edit, Committed)
    assert edit.changes == {b"b"}


async def test_edits_that_no_caller_waits_for_are_written_soon(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tx.wal.UNWANTED_S_MAX", 0.001)
    before, started = service.disk.sync_count, []
    for _ in range(2):
        write_count = service.disk.write_count
        started.append(await service.begin())
        async with asyncio.timeout(5):
            while service.disk.write_count == write_count:
                await turns(1)

    assert service.disk.sync_count == before
    again = await service.crash()
    for tx in started:
        assert await again.state_of(tx.transaction_id) == ("in_progress", None)


async def test_no_log_but_the_newest_is_open_and_none_after_a_stop(service: Service) -> None:
    await service.begin()
    await service.manager.take_snapshot()

    assert len(service.disk.open_files) == 1
    await service.manager.close()
    assert service.disk.open_files == set()


async def test_a_log_that_was_never_written_to_is_closed(new_service: NewService) -> None:
    service = new_service()
    await service.manager.open(None)
    assert len(service.disk.open_files) == 1

    await service.durable.close()

    assert service.disk.open_files == set()


def test_a_log_file_that_is_closed_is_not_open_any_more(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    file = DiskFile(path)
    assert path in open_files()

    file.close()

    assert path not in open_files()


def open_files() -> set[Path]:
    """The files that this process has open."""
    return {link.resolve() for link in Path("/proc/self/fd").iterdir()}


def test_a_file_is_synced_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fdatasync", synced.append)
    path = tmp_path / "log"
    path.touch()
    file = DiskFile(path)

    file.append(b"a", sync=False)
    before = len(synced)
    file.append(b"b", sync=True)

    file.close()
    assert (before, len(synced)) == (0, 1)


def test_a_short_write_is_continued_until_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_really = os.write
    monkeypatch.setattr("os.write", lambda where, data: write_really(where, data[:3]))
    path = tmp_path / "log"
    path.touch()
    file = DiskFile(path)

    file.append(b"more than three", sync=True)

    file.close()
    assert path.read_bytes() == b"more than three"
