"""Crashes, clean stops and failing disks, over a real directory."""

import asyncio
from pathlib import Path

import pytest

from tests.tx.service import NOW_MS, STORE_ID, TOPIC, NewService, Service, entry, turns
from tuff.protocol.errors import (
    TransactionConflictError,
    TransactionInvalidatedError,
    TransactionsUnavailableError,
)
from tuff.protocol.transaction import TransactionType
from tx.durable_state import ServiceState, unusable
from tx.log_records import BlockReturned
from tx.mixed_backups import RecordedFiles
from tx.settings import BLOCK_COUNT_MIN, RETRY_INTERVAL_MS, TransactionSettings


async def test_what_was_acknowledged_survives_a_crash(service: Service) -> None:
    committed, aborted, invalid, opened = [await service.begin() for _ in range(4)]
    await service.runner.commit(committed.transaction_id, changes=[b"k"], publish=[entry(b"a")])
    await service.runner.abort(aborted.transaction_id)
    await service.runner.invalidate(invalid.transaction_id)

    again = await service.crash()

    assert await again.state_of(committed.transaction_id) == ("committed", None)
    assert await again.state_of(aborted.transaction_id) == ("aborted", None)
    assert await again.state_of(invalid.transaction_id) == ("invalid", "invalidated")
    assert await again.state_of(opened.transaction_id) == ("in_progress", None)
    with pytest.raises(TransactionConflictError):
        await again.runner.can_commit(opened.transaction_id, [b"k"])


async def test_a_clean_restart_after_a_crash_keeps_in_mind_that_there_was_one(
    service: Service,
) -> None:
    tx, other = await service.begin(), await service.begin()
    await service.runner.commit(other.transaction_id, changes=[])  # with both starts on the disk
    service.disk.hold()
    # No caller waits for the first can-commit of a transaction: the crash takes it.
    await service.runner.can_commit(tx.transaction_id, [b"k"])

    crashed = await service.crash()
    restarted = await crashed.restart()

    # Its changes are lost, so that they can't be checked.
    with pytest.raises(TransactionInvalidatedError):
        await restarted.runner.commit(tx.transaction_id)
    assert await restarted.state_of(tx.transaction_id) == ("invalid", "lost_in_crash")


async def test_a_start_that_did_not_reach_the_log_is_lost_and_never_unknown(
    service: Service,
) -> None:
    service.disk.hold()
    tx = await service.begin()
    service.rows.carried[tx.transaction_id] = "ns:t"

    again = await service.crash()
    await turns()

    assert await again.state_of(tx.transaction_id) == ("invalid", "lost_in_crash")
    assert len((await again.write_permits.snapshot()).invalids) == BLOCK_COUNT_MIN
    assert again.rows.marked == [tx.transaction_id]
    assert (await again.runner.abort(tx.transaction_id)).state.value == "invalid"
    with pytest.raises(TransactionInvalidatedError):
        await again.write_permits.enter(tx.transaction_id, TOPIC)
    assert (await again.begin()).transaction_id > tx.transaction_id


async def test_a_clean_stop_loses_no_pointer(service: Service) -> None:
    tx = await service.begin()

    again = await service.restart()

    assert list((await again.write_permits.snapshot()).invalids) == []
    assert again.durable.notes == []
    assert (await again.begin()).transaction_id > tx.transaction_id
    await again.runner.commit(tx.transaction_id)


async def test_a_commit_with_rows_and_without_a_record_is_invalid_after_a_crash(
    service: Service,
) -> None:
    tx = await service.begin()
    await service.runner.checkpoint(tx.transaction_id)
    service.disk.hold()
    service.spawn(_ignored(service, tx.transaction_id))
    await turns()
    assert service.rows.finals == {tx.transaction_id + 1}

    again = await service.crash()
    await turns()

    assert await again.state_of(tx.transaction_id) == ("invalid", "lost_in_crash")
    assert again.rows.carried == {}
    with pytest.raises(TransactionInvalidatedError):
        await again.runner.commit(tx.transaction_id, publish=[entry(b"a")])


async def _ignored(service: Service, pointer: int) -> None:
    await service.runner.commit(pointer, publish=[entry(b"a")])


async def test_a_can_commit_lost_in_a_crash_can_not_skip_its_check(service: Service) -> None:
    named, unnamed, reader = [await service.begin() for _ in range(3)]
    long = await service.begin(TransactionType.LONG)
    await service.later(0)
    service.disk.hold()
    await service.runner.can_commit(named.transaction_id, [b"k"])
    await service.runner.can_commit(unnamed.transaction_id, [b"k"])

    again = await service.crash()

    await again.runner.commit(named.transaction_id, changes=[])
    await again.runner.commit(long.transaction_id)
    await again.runner.commit(reader.transaction_id, read_only=True)
    with pytest.raises(TransactionInvalidatedError):
        await again.runner.commit(unnamed.transaction_id)
    assert await again.state_of(unnamed.transaction_id) == ("invalid", "lost_in_crash")


async def test_a_can_commit_that_reached_the_log_needs_no_changes_after_a_crash(
    service: Service,
) -> None:
    tx = await service.begin()
    await service.runner.can_commit(tx.transaction_id, [b"k"])
    await service.later(0)

    again = await service.crash()

    assert await again.state_of(tx.transaction_id) == ("committing", None)
    await again.runner.commit(tx.transaction_id)


async def test_a_further_can_commit_is_answered_once_no_crash_can_split_it_from_the_first(
    service: Service,
) -> None:
    tx, rival = await service.begin(), await service.begin()
    await service.runner.can_commit(tx.transaction_id, [b"a"])
    await service.runner.commit(rival.transaction_id, changes=[b"c"])
    service.disk.hold()

    further = asyncio.create_task(service.runner.can_commit(tx.transaction_id, [b"b"]))
    await turns()
    assert not further.done()
    await service.runner.can_commit(tx.transaction_id, [b"a"])
    service.disk.release()
    await further

    again = await service.crash()

    late = await again.begin()
    await again.runner.commit(tx.transaction_id)
    with pytest.raises(TransactionConflictError):
        await again.runner.can_commit(late.transaction_id, [b"b"])


async def test_a_restart_tells_rows_what_a_crash_kept_from_them(service: Service) -> None:
    committed, invalid = await service.begin(), await service.begin()
    await service.runner.commit(committed.transaction_id, publish=[entry(b"a")])
    service.rows.marking_fails = True
    service.rows.carried[invalid.transaction_id] = "ns:t"
    await service.runner.invalidate(invalid.transaction_id)
    service.rows.carried[committed.transaction_id] = "ns:t"
    service.rows.marking_fails = False
    service.rows.woken.clear()

    again = await service.crash()
    await turns()

    assert again.rows.carried == {}
    assert {committed.transaction_id, invalid.transaction_id} <= set(again.rows.woken)
    assert again.rows.settled.count(committed.transaction_id) == 2
    assert again.rows.marked == [invalid.transaction_id]


async def test_a_log_that_can_not_be_written_takes_the_service_down_and_up_again(
    service: Service,
) -> None:
    before, doubtful = await service.begin(), await service.begin()
    await service.runner.commit(before.transaction_id)
    service.disk.fails = True

    with pytest.raises(TransactionsUnavailableError):
        await service.runner.commit(doubtful.transaction_id, changes=[])

    assert service.manager.status.state is ServiceState.DOWN
    assert "No space left" in service.manager.status.reason
    with pytest.raises(TransactionsUnavailableError):
        await service.begin()
    assert (await service.write_permits.visibility_state()) is None
    service.disk.fails = False
    await service.later(1000)
    assert service.manager.status.state is ServiceState.RUNNING
    assert await service.state_of(before.transaction_id) == ("committed", None)
    assert await service.state_of(doubtful.transaction_id) == ("in_progress", None)
    await service.runner.commit(doubtful.transaction_id, changes=[])


async def test_a_recovery_begins_once_the_file_of_the_failed_log_is_closed(
    service: Service,
) -> None:
    service.disk.hangs_after_failure = True
    await service.break_log(await service.begin())
    ticking = asyncio.create_task(service.later(1000))
    await turns()

    assert service.manager.status.state is ServiceState.DOWN
    service.disk.release()
    await ticking
    assert service.manager.status.state is ServiceState.RUNNING
    assert len(service.disk.open_files) == 1


async def test_a_commit_whose_rows_are_written_while_the_log_fails_is_decided_by_recovery(
    service: Service,
) -> None:
    tx, other = await service.begin(), await service.begin()
    await turns()
    publishing = await service.commit_at_its_rows(tx)
    await service.break_log(other)
    await service.later(1000)
    assert await service.state_of(tx.transaction_id) == ("invalid", "lost_in_crash")

    service.rows.writing.set()

    with pytest.raises(TransactionsUnavailableError):
        await publishing
    await turns()
    assert service.rows.carried == {}


async def test_a_roll_that_fails_leaves_no_log_behind_that_would_cut_the_old_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx, other = await service.begin(), await service.begin()
    opening = service.disk.open_file

    def refuse(path: Path) -> object:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(service.durable._whole_log, "_open_file", refuse)
    with pytest.raises(TransactionsUnavailableError, match="Too many open files"):
        await service.manager.take_snapshot()
    monkeypatch.setattr(service.durable._whole_log, "_open_file", opening)
    await service.runner.commit(tx.transaction_id)

    again = await service.crash()

    assert await again.state_of(tx.transaction_id) == ("committed", None)
    assert await again.state_of(other.transaction_id) == ("in_progress", None)


async def test_a_stopped_service_refuses_everything_and_goes_on_where_it_was(
    service: Service,
) -> None:
    tx, late = await service.begin(), await service.begin(timeout_s=1)
    await service.manager.stop_service()
    await service.manager.stop_service()

    for call in (
        lambda: service.begin(),
        lambda: service.runner.commit(tx.transaction_id),
        lambda: service.runner.outcome(tx.transaction_id),
        lambda: service.monitoring.overview(),
        lambda: service.manager.take_snapshot(),
        lambda: service.invalid_list.truncate(pointers=[]),
    ):
        with pytest.raises(TransactionsUnavailableError):
            await call()
    with pytest.raises(TransactionsUnavailableError):
        await service.write_permits.enter(tx.transaction_id, TOPIC)
    assert service.write_permits.open_transaction_id(tx.transaction_id) is None
    await service.later(2000)

    await service.manager.start_service()

    await turns()
    assert await service.state_of(late.transaction_id) == ("invalid", "timed_out")
    await service.runner.commit(tx.transaction_id)


async def test_a_service_that_is_down_can_not_be_stopped(new_service: NewService) -> None:
    service = new_service()

    with pytest.raises(TransactionsUnavailableError, match="not been recovered yet"):
        await service.manager.stop_service()


async def test_while_it_closes_a_service_starts_no_transaction(service: Service) -> None:
    service.files.hold()
    closing = asyncio.ensure_future(service.manager.close())
    await turns()

    with pytest.raises(TransactionsUnavailableError, match="the server is stopping"):
        await service.begin()

    service.files.release()
    await closing


async def test_a_service_that_was_stopped_once_comes_up_again_after_a_failure(
    service: Service,
) -> None:
    await service.manager.stop_service()
    await service.manager.start_service()
    tx = await service.begin()
    await service.break_log(tx)

    await service.later(1000)

    assert service.manager.status.state is ServiceState.RUNNING


async def test_a_service_start_recovers_nothing_before_the_message_store_is_read(
    new_service: NewService,
    tmp_path: Path,
) -> None:
    service = new_service(directory=tmp_path / "tx")

    with pytest.raises(TransactionsUnavailableError, match="not been recovered yet"):
        await service.manager.start_service()

    assert not (tmp_path / "tx").exists()
    await service.open()
    assert service.manager.status.state is ServiceState.RUNNING


async def test_a_service_that_is_switched_off_stays_down(
    new_service: NewService, tmp_path: Path
) -> None:
    service = await new_service(TransactionSettings(enabled=False), tmp_path / "off").open()

    assert "tx.enabled" in service.manager.status.reason
    with pytest.raises(TransactionsUnavailableError):
        await service.manager.start_service()
    await service.manager.tick()
    assert not (tmp_path / "off").exists()
    await service.manager.close()


async def test_a_service_that_is_switched_off_stays_down_where_it_can_make_no_file(
    new_service: NewService,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    service = new_service(TransactionSettings(enabled=False), tmp_path / "file" / "tx")

    await service.open(RecordedFiles(STORE_ID))

    assert service.manager.status.state is ServiceState.DOWN
    assert "tx.enabled" in service.manager.status.reason
    await service.manager.close()


async def test_a_disk_that_is_full_at_a_stop_does_not_keep_it_from_stopping(
    new_service: NewService,
) -> None:
    service = await new_service().open()
    await service.begin()
    service.disk.fails = True

    await service.manager.close()

    assert service.manager.status.state is ServiceState.DOWN


async def test_a_wait_for_a_sync_of_a_closed_log_is_refused(
    service: Service,
) -> None:
    """The edit is written and not synced, so that its outcome is not known."""
    await service.begin()
    image = service.durable.decided.image()
    await service.durable.close()

    with pytest.raises(TransactionsUnavailableError, match="the server is stopping"):
        await service.durable.synced(image.lsn)


async def test_a_wait_for_an_edit_after_the_log_failed_is_refused(service: Service) -> None:
    tx = await service.begin()
    service.disk.fails = True
    with pytest.raises(TransactionsUnavailableError):
        await service.runner.commit(tx.transaction_id, changes=[])

    with pytest.raises(TransactionsUnavailableError, match="can't be written"):
        await service.durable.synced(10**6)
    log = service.durable._log
    assert log is not None
    with pytest.raises(TransactionsUnavailableError, match="can't be written"):
        log.append(BlockReturned(NOW_MS))


async def test_the_state_of_a_service_that_is_down_is_not_given_out(service: Service) -> None:
    service.durable.disable("for this test")

    for read in (lambda: service.durable.decided, lambda: service.durable.logged_count):
        with pytest.raises(TransactionsUnavailableError, match="for this test"):
            read()


async def test_files_that_can_not_be_opened_are_tried_again(
    new_service: NewService, tmp_path: Path
) -> None:
    (tmp_path / "tx").write_text("a file in place of the directory")
    service = await new_service(directory=tmp_path / "tx").open()
    assert service.manager.status.state is ServiceState.DOWN
    (tmp_path / "tx").unlink()

    await service.later(RETRY_INTERVAL_MS)

    assert service.manager.status.state is ServiceState.RUNNING


async def test_once_it_was_up_a_recovery_is_tried_again_as_soon_as_the_first_time(
    new_service: NewService,
    tmp_path: Path,
) -> None:
    (tmp_path / "tx").write_text("a file in place of the directory")
    service = await new_service(directory=tmp_path / "tx").open()
    await service.later(RETRY_INTERVAL_MS)
    (tmp_path / "tx").unlink()
    await service.later(2 * RETRY_INTERVAL_MS)
    assert service.manager.status.state is ServiceState.RUNNING
    service.disk.fails = True
    opened = await service.begin()
    with pytest.raises(TransactionsUnavailableError):
        await service.runner.abort(opened.transaction_id)
    service.disk.fails = False

    await service.later(RETRY_INTERVAL_MS)

    assert service.manager.status.state is ServiceState.RUNNING


async def test_a_stopped_service_stays_stopped_after_its_log_failed(service: Service) -> None:
    await service.begin()
    await service.manager.stop_service()
    service.disk.fails = True
    service.durable.sync_soon(service.durable.decided.lsn)
    await turns()
    assert service.manager.status.state is ServiceState.DOWN
    service.disk.fails = False

    await service.later(1000)

    assert service.manager.status.state is ServiceState.STOPPED
    await service.manager.start_service()
    await service.begin()


async def test_a_service_that_is_down_makes_no_file_when_it_is_closed(
    new_service: NewService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = await new_service(directory=tmp_path / "tx").open()
    service.durable.disable("damaged")
    before = sorted(service.directory.iterdir())

    await service.manager.close()

    assert sorted(service.directory.iterdir()) == before
    assert "no snapshot" not in caplog.text


async def test_a_log_that_may_have_been_made_in_vain_ends_the_one_before(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the new file is there after all, what the old one got later would be cut."""
    tx = await service.begin()
    await service.runner.commit(tx.transaction_id)
    with monkeypatch.context() as patched:
        for name in ("create_log", "remove_file"):
            patched.setattr(f"tx.wal.{name}", _full_disk)
        with pytest.raises(TransactionsUnavailableError, match="No space left"):
            await service.manager.take_snapshot()

        assert service.manager.status.state is ServiceState.DOWN
    await service.later(1000)
    assert await service.state_of(tx.transaction_id) == ("committed", None)


def test_a_file_of_another_user_says_what_to_do() -> None:
    assert unusable(PermissionError(13, "Permission denied", "data/txlog.1")) == (
        "data/txlog.1: Permission denied; give the whole data directory to the user of the server "
        "(`chown -R`), as after a start or a restore by root"
    )
    assert unusable(OSError(5, "I/O error", "data/txlog.1")) == "data/txlog.1: I/O error"
    assert unusable(OSError("no name")) == "no name"


def _full_disk(*_arguments: object, **_more: object) -> None:
    raise OSError(28, "No space left on device")
