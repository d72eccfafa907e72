"""Snapshot files: when they are written, and what happens beside them."""

import asyncio
from pathlib import Path

import pytest

from tests.tx.service import NOW_MS, STORE_ID, Service, turns
from tuff.protocol.errors import TransactionsUnavailableError
from tx.durable_state import ServiceState
from tx.file_headers import FileHeader


def names(directory: Path, kind: str) -> set[str]:
    return {path.name for path in directory.glob(f"{kind}.*")}


async def snapshot_under_way(service: Service) -> "asyncio.Task[tuple[str, int]]":
    """A snapshot whose new log is begun, and whose file the disk does not take yet."""
    before = names(service.directory, "txlog")
    service.disk.hold()
    taken = asyncio.create_task(service.manager.take_snapshot())
    await turns()
    service.files.hold()
    service.disk.release()
    await turns()
    assert names(service.directory, "txlog") > before
    assert not taken.done()
    return taken


async def test_a_commit_does_not_wait_for_a_snapshot(service: Service) -> None:
    before, after = await service.begin(), await service.begin()
    await service.runner.commit(before.transaction_id)
    taken = await snapshot_under_way(service)

    await asyncio.wait_for(service.runner.commit(after.transaction_id), 10)

    assert not taken.done()
    service.files.release()
    name, _ = await taken
    assert name in names(service.directory, "snapshot")
    again = await service.crash()
    for tx in (before, after):
        assert await again.state_of(tx.transaction_id) == ("committed", None)


async def test_a_snapshot_behind_no_edit_writes_nothing_to_the_log(service: Service) -> None:
    await service.manager.take_snapshot()

    assert service.disk.write_count == 0


async def test_a_log_that_fails_during_a_snapshot_is_recovered_behind_it(service: Service) -> None:
    """A recovery in the middle of it would make files with the numbers that the snapshot took."""
    tx = await service.begin()
    taken = await snapshot_under_way(service)
    await service.break_log(tx)
    retried = asyncio.create_task(service.later(60_000))
    await turns()
    assert service.manager.status.state is ServiceState.DOWN

    service.files.release()
    name, _ = await taken
    await retried

    assert service.manager.status.state is ServiceState.RUNNING
    assert name in names(service.directory, "snapshot")
    again = await service.begin()
    await service.runner.commit(again.transaction_id)
    last = await service.crash()
    assert await last.state_of(again.transaction_id) == ("committed", None)


async def test_a_stop_waits_for_a_snapshot_though_the_log_has_failed(service: Service) -> None:
    """The next process finds all the files there will ever be: it takes the next number."""
    tx = await service.begin()
    taken = await snapshot_under_way(service)
    service.disk.fails = True
    with pytest.raises(TransactionsUnavailableError):
        await service.runner.commit(tx.transaction_id)
    stopped = asyncio.create_task(service.manager.close())
    await turns()
    assert not stopped.done()

    service.files.release()
    await stopped

    assert (await taken)[0] in names(service.directory, "snapshot")
    service.disk.fails = False
    again = await service.next_life().open()
    assert again.manager.status.state is ServiceState.RUNNING


async def test_a_service_that_closes_during_a_recovery_stays_down_after_it(
    service: Service,
) -> None:
    tx = await service.begin()
    await service.break_log(tx)
    service.files.hold()
    recovered = asyncio.create_task(service.later(60_000))
    await turns()
    stopped = asyncio.create_task(service.manager.close())
    await turns()
    assert not stopped.done()

    service.files.release()
    await asyncio.gather(recovered, stopped)

    assert service.manager.status.state is ServiceState.DOWN
    with pytest.raises(TransactionsUnavailableError, match="the server is stopping"):
        await service.begin()


async def test_a_log_that_has_failed_begins_no_file(service: Service, tmp_path: Path) -> None:
    await service.begin()
    service.disk.fails = True
    with pytest.raises(TransactionsUnavailableError):
        await service.manager.take_snapshot()
    log = service.durable._log
    assert log is not None

    header = FileHeader(sequence=9, store_id=STORE_ID, created_ms=NOW_MS, lsn=9)
    with pytest.raises(TransactionsUnavailableError, match="No space left"):
        await log.roll(tmp_path / "next", header)
    assert not (tmp_path / "next").exists()


async def test_a_snapshot_behind_edits_that_can_not_be_written_begins_no_log(
    service: Service,
) -> None:
    """Recovery would take its header for the end of the log before, and what follows for whole."""
    await service.begin()
    before = names(service.directory, "txlog")
    service.disk.fails = True

    with pytest.raises(TransactionsUnavailableError):
        await service.manager.take_snapshot()

    assert names(service.directory, "txlog") == before


async def test_a_clean_stop_leaves_a_snapshot_of_everything(service: Service) -> None:
    count = len(list(service.directory.glob("snapshot.*")))
    await service.begin()

    await service.manager.close()

    assert len(list(service.directory.glob("snapshot.*"))) == count + 1


async def test_a_snapshot_is_taken_when_it_is_due_and_something_happened(
    service: Service,
) -> None:
    await service.later(300_000)
    count = len(list(service.directory.glob("snapshot.*")))
    await service.later(300_000)
    assert len(list(service.directory.glob("snapshot.*"))) == count

    await service.begin()
    await service.later(300_000)

    assert len(list(service.directory.glob("snapshot.*"))) == count + 1


async def test_a_snapshot_is_taken_early_when_a_start_would_have_much_to_replay(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tx.service.LOGGED_COUNT_MAX", 4)
    await service.later(300_000)
    count = len(list(service.directory.glob("snapshot.*")))
    for _ in range(3):
        await service.begin()
    await service.later(10_000)
    assert len(list(service.directory.glob("snapshot.*"))) == count

    for _ in range(3):
        await service.begin()
    await service.later(10_000)
    await service.later(10_000)

    assert len(list(service.directory.glob("snapshot.*"))) == count + 1


async def test_a_snapshot_that_failed_is_tried_again_after_the_interval_and_not_at_each_tick(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt begins a new log."""

    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    await service.begin()
    with monkeypatch.context() as patched:
        patched.setattr("tx.durable_state.write_snapshot", fail)
        await service.later(300_000)
        logs = names(service.directory, "txlog")
        await service.later(1_000)
        assert names(service.directory, "txlog") == logs
    before = names(service.directory, "snapshot")

    await service.later(300_000)

    assert names(service.directory, "snapshot") > before
