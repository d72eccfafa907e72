"""Torn, damaged, missing and foreign files: the service comes up, or stays down with a reason."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from admin.transaction_files import TransactionFiles
from tests.tx.service import NOW_MS, STORE_ID, NewService, Service, entry, turns
from tuff.protocol.errors import (
    TransactionsUnavailableError,
)
from tuff.protocol.ids import Offset
from tx.durable_state import ServiceState
from tx.file_headers import FileHeader, FileKind, known_file, list_files, pack_header, read_header
from tx.log_records import BlockReturned
from tx.mixed_backups import RecordedFiles
from tx.settings import TransactionSettings
from tx.wal import pack_edits


def newest(directory: Path, kind: str) -> Path:
    return max(directory.glob(f"{kind}.*"), key=lambda path: int(path.suffix[1:]))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


def header_of(path: Path, kind: FileKind) -> FileHeader:
    return read_header(path.name, kind, path.read_bytes())[0]


def put_header(path: Path, kind: FileKind, header: FileHeader) -> None:
    """Let a file begin with this header; what follows stays."""
    data = path.read_bytes()
    _, stop = read_header(path.name, kind, data)
    path.write_bytes(pack_header(kind, header) + data[stop:])


async def test_a_log_torn_at_any_byte_of_its_last_batch_comes_up(
    new_service: NewService, tmp_path: Path
) -> None:
    service = await new_service(directory=tmp_path / "live").open()
    first, last = await service.begin(), await service.begin()
    await service.runner.commit(first.transaction_id)
    proven = newest(service.directory, "txlog").stat().st_size
    await service.runner.commit(last.transaction_id)
    await service.kill()
    files = {path.name: path.read_bytes() for path in service.directory.iterdir()}
    log_name = newest(service.directory, "txlog").name
    told_count = 0

    for size in range(proven, len(files[log_name])):
        directory = tmp_path / str(size)
        directory.mkdir()
        for name, data in files.items():
            (directory / name).write_bytes(data[:size] if name == log_name else data)
        again = await Service(directory).open()
        assert again.manager.status.state is ServiceState.RUNNING
        assert await again.state_of(first.transaction_id) == ("committed", None)
        torn_at = again.durable.notes[0].rsplit("at byte ", 1)[1] if again.durable.notes else ""
        assert int(torn_at.split(";")[0] or size) <= size
        told_count += bool(again.durable.notes)
        await again.kill()

    # All but what ends between two records, of which nothing is torn.
    assert told_count > (len(files[log_name]) - proven) * 3 // 4


async def test_damage_in_an_idle_log_keeps_the_service_down_until_it_is_repaired(
    service: Service,
) -> None:
    tx = await service.begin()
    await service.runner.commit(tx.transaction_id)
    log = newest(service.directory, "txlog")
    last_batch_stop = log.stat().st_size
    await service.later(200)
    await service.kill()
    whole = log.read_bytes()
    flip(log, last_batch_stop - 1)

    again = await service.next_life().open()

    assert again.manager.status.state is ServiceState.DOWN
    assert log.name in again.manager.status.reason
    assert "tuff salvage" in again.manager.status.reason
    await again.later(60_000)
    with pytest.raises(TransactionsUnavailableError, match=log.name):
        await again.manager.start_service()
    log.write_bytes(whole)
    await again.manager.start_service()
    assert await again.state_of(tx.transaction_id) == ("committed", None)


@pytest.mark.parametrize("at", [20, 200])  # in its header, and behind it
async def test_a_damaged_newest_snapshot_falls_back_to_the_one_before(
    service: Service, at: int
) -> None:
    first, second, third = [await service.begin() for _ in range(3)]
    await service.runner.commit(first.transaction_id)
    await service.manager.take_snapshot()
    await service.runner.commit(second.transaction_id)
    name, _ = await service.manager.take_snapshot()
    await service.runner.commit(third.transaction_id)
    await service.kill()
    flip(service.directory / name, at)

    again = await service.next_life().open()

    assert again.manager.status.state is ServiceState.RUNNING
    (note,) = again.durable.notes
    assert name in note
    assert "nothing is lost: transactions go on from another snapshot" in note
    assert "salvage" not in note
    for tx in (first, second, third):
        assert await again.state_of(tx.transaction_id) == ("committed", None)
    await again.manager.take_snapshot()
    assert again.durable.notes == []


async def test_an_image_of_the_state_waits_until_all_of_it_is_durable(service: Service) -> None:
    tx = await service.begin()
    service.disk.hold()
    committing = asyncio.create_task(service.runner.commit(tx.transaction_id))
    await turns()
    showing = asyncio.create_task(service.durable.durable_image())
    await turns()
    assert not showing.done()

    service.disk.release()
    await committing

    assert (await showing).pending == ()


async def test_a_fallback_over_a_restart_gives_the_same_state(service: Service) -> None:
    opened = await service.begin()
    await service.later(0)
    again = await service.crash()
    committed = await again.begin()
    await again.runner.commit(committed.transaction_id, changes=[b"k"])
    expected = await again.durable.durable_image()
    await again.kill()
    flip(newest(service.directory, "snapshot"), 200)

    last = await again.next_life().open()

    assert last.manager.status.state is ServiceState.RUNNING
    found = await last.durable.durable_image()
    assert set(expected.view.invalid) < set(found.view.invalid)
    assert await last.state_of(committed.transaction_id) == ("committed", None)
    assert await last.state_of(opened.transaction_id) == ("in_progress", None)


@pytest.mark.parametrize("kind", ["snapshot", "txlog", "*"])
async def test_missing_files_are_damage_and_never_an_empty_beginning(
    service: Service, kind: str
) -> None:
    tx = await service.begin()
    await service.runner.commit(tx.transaction_id)
    await service.kill()
    for path in service.directory.glob(f"{kind}.*"):
        path.unlink()

    again = await service.next_life().open(RecordedFiles(STORE_ID, service.rows.reserved))

    assert again.manager.status.state is ServiceState.DOWN


async def test_a_snapshot_without_the_log_that_goes_on_from_it_is_damage(
    service: Service,
) -> None:
    await service.begin()
    await service.manager.take_snapshot()
    await service.kill()
    for path in service.directory.glob("txlog.*"):
        path.unlink()

    again = await service.next_life().open()

    assert again.manager.status.state is ServiceState.DOWN
    assert "is missing" in again.manager.status.reason


async def test_a_log_that_begins_behind_a_missing_edit_is_damage(service: Service) -> None:
    await service.begin()
    name, _ = await service.manager.take_snapshot()
    await service.kill()
    flip(service.directory / name, 200)
    log = newest(service.directory, "txlog")
    header = header_of(log, FileKind.LOG)
    put_header(log, FileKind.LOG, replace(header, lsn=header.lsn + 1))

    again = await service.next_life().open()

    assert again.manager.status.state is ServiceState.DOWN
    assert f"it starts with another edit than {header.lsn}" in again.manager.status.reason


async def test_a_file_of_another_store_is_refused_though_nothing_is_read_from_it(
    service: Service,
) -> None:
    await service.begin()
    await service.manager.take_snapshot()
    await service.kill()
    oldest = min(service.directory.glob("snapshot.*"))
    header = header_of(oldest, FileKind.SNAPSHOT)
    put_header(oldest, FileKind.SNAPSHOT, replace(header, store_id="ff" * 16))

    again = await service.next_life().open()

    assert again.manager.status.state is ServiceState.DOWN
    assert f"it belongs to another store than {STORE_ID}" in again.manager.status.reason


async def test_a_message_store_without_the_messages_of_a_commit_is_refused(
    service: Service,
) -> None:
    tx = await service.begin()
    committed = await service.runner.commit(tx.transaction_id, publish=[entry(b"a")])
    await service.later(1)
    await service.kill()
    older = RecordedFiles(STORE_ID, seen_lsn=0, last=Offset(NOW_MS, 1), carried=frozenset[int]())

    refused = await service.next_life().open(older)
    await refused.kill()
    carried = frozenset(committed.pointers)
    taken = await service.next_life().open(replace(older, carried=carried))
    await taken.kill()
    # Rows of the commit are there, and not all of them.
    cut = await service.next_life().open(replace(older, carried=carried, last=Offset(NOW_MS, 0)))
    await cut.kill()

    assert refused.manager.status.state is ServiceState.DOWN
    assert cut.manager.status.state is ServiceState.DOWN
    for each in (refused, cut):
        assert f"transaction {tx.transaction_id} committed messages" in each.manager.status.reason
    assert taken.manager.status.state is ServiceState.RUNNING


async def test_files_beside_a_message_store_that_knows_more_are_refused(
    new_service: NewService, tmp_path: Path
) -> None:
    service = await new_service().open()
    reserved = service.rows.reserved
    assert service.durable.store_id == STORE_ID
    assert reserved == service.durable.decided.image().highest_reserved
    await service.restart()

    for mark, words in (
        (RecordedFiles("ff" * 16, reserved), "belongs to store"),
        (RecordedFiles(STORE_ID, reserved + 10_000), "older"),
        (
            RecordedFiles(STORE_ID, reserved, seen_lsn=10**6),
            "has seen 1000000: the transaction files",
        ),
    ):
        again = await service.next_life().open(mark)
        assert again.manager.status.state is ServiceState.DOWN
        assert words in again.manager.status.reason
        await again.kill()

    for highest in (reserved, 1):
        empty = await new_service(directory=tmp_path / "empty").open(
            RecordedFiles(STORE_ID, highest)
        )
        assert empty.manager.status.state is ServiceState.DOWN
        assert list((tmp_path / "empty").iterdir()) == []
        await empty.kill()


async def test_files_say_of_which_store_they_are_before_they_are_recovered(
    new_service: NewService, tmp_path: Path
) -> None:
    service = new_service(directory=tmp_path / "tx")
    before = await service.durable.stored_id()
    await service.open()
    await service.kill()

    found = await service.next_life().durable.stored_id()

    assert (before, found) == (None, STORE_ID)


async def test_files_that_can_not_be_read_say_of_no_store(tmp_path: Path) -> None:
    name_too_long = tmp_path / ("x" * 300)

    assert await Service(name_too_long).durable.stored_id() is None


async def test_unknown_files_are_left_alone(service: Service) -> None:
    for name in ("README.md", "snapshot.tmp", "txlog.1.tmp", "snapshot.x", "txlog.99.bak"):
        (service.directory / name).write_text("mine")

    again = await service.restart()

    assert again.manager.status.state is ServiceState.RUNNING
    assert (service.directory / "txlog.99.bak").read_text() == "mine"


async def test_old_files_are_removed_and_those_that_stay_are_enough(
    new_service: NewService, tmp_path: Path
) -> None:
    service = await new_service(TransactionSettings(snapshot_retain=2)).open()
    tx = await service.begin()
    for _ in range(5):
        service.now_ms += 1
        await service.manager.take_snapshot()
    await service.runner.commit(tx.transaction_id)
    await service.kill()

    assert len(list(tmp_path.glob("snapshot.*"))) == 2
    assert len(list(tmp_path.glob("txlog.*"))) == 1
    flip(newest(tmp_path, "snapshot"), 200)
    again = await service.next_life().open()
    assert await again.state_of(tx.transaction_id) == ("committed", None)


async def test_a_snapshot_is_taken_though_an_old_file_can_not_be_removed(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("tx.durable_state.remove_file", refuse)
    service = await new_service(TransactionSettings(snapshot_retain=1)).open()
    first = newest(service.directory, "snapshot")

    name, _ = await service.manager.take_snapshot()

    assert first.exists()
    assert (service.directory / name).exists()


async def test_order_is_by_sequence_when_the_clock_went_back(service: Service) -> None:
    first = await service.begin()
    await service.runner.commit(first.transaction_id)
    service.now_ms = NOW_MS - 3_600_000
    again = await service.restart()
    second = await again.begin()
    await again.runner.commit(second.transaction_id)

    last = await again.crash()

    assert second.transaction_id > first.transaction_id
    for tx in (first, second):
        assert await last.state_of(tx.transaction_id) == ("committed", None)


async def test_reading_a_log_that_a_crash_left_writes_nothing(new_service: NewService) -> None:
    service = await new_service().open()
    tx = await service.begin()
    await service.runner.commit(tx.transaction_id)
    await service.kill()
    log = newest(service.directory, "txlog")
    before = log.stat().st_mtime_ns

    assert TransactionFiles(service.directory).check(None).findings == []

    assert log.stat().st_mtime_ns == before
    await new_service(directory=service.directory).open()
    assert log.stat().st_mtime_ns > before


async def test_the_files_of_a_new_directory_are_numbered_from_one(service: Service) -> None:
    """As the log before it, the first log names 0, which therefore is no file's number."""
    snapshot, log = (newest(service.directory, kind) for kind in ("snapshot", "txlog"))

    assert header_of(snapshot, FileKind.SNAPSHOT).sequence == 1
    assert header_of(log, FileKind.LOG).sequence == 2


async def test_no_two_files_have_the_same_number(service: Service) -> None:
    """Files are ordered by their number: two logs with the same could be replayed in any order."""

    def numbers() -> list[int]:
        files = [known_file(path, kind) for path, kind in list_files(service.directory)]
        return [file.header.sequence for file in files]

    for _ in range(2):
        await service.manager.take_snapshot()
        assert len(numbers()) == len(set(numbers())) >= 2
    for _ in range(2):
        service = await service.crash()
        assert len(numbers()) == len(set(numbers())) >= 2


async def test_messages_of_a_transaction_that_the_files_do_not_know_are_refused(
    service: Service,
) -> None:
    tx = await service.begin()
    await service.kill()
    pointer = tx.transaction_id
    known = RecordedFiles(
        STORE_ID, carried=frozenset({pointer, pointer + 1})
    )  # the second is reserved

    taken = await service.next_life().open(known)
    await taken.kill()
    refused = await service.next_life().open(replace(known, carried={pointer, pointer + 10_000}))
    await refused.kill()

    assert taken.manager.status.state is ServiceState.RUNNING
    assert refused.manager.status.state is ServiceState.DOWN
    assert f"undecided rows of transaction {pointer + 10_000}" in refused.manager.status.reason


async def test_what_a_log_has_behind_the_length_that_the_next_one_states_is_not_read(
    service: Service,
) -> None:
    """A write that failed may have left whole edits there, which recovery gave other numbers."""
    await service.begin()
    name, _ = await service.manager.take_snapshot()
    tx = await service.begin()
    await service.runner.commit(tx.transaction_id)
    await service.kill()
    flip(service.directory / name, 200)
    first, *_ = sorted(service.directory.glob("txlog.*"), key=lambda path: int(path.suffix[1:]))
    lsn = header_of(newest(service.directory, "txlog"), FileKind.LOG).lsn
    with first.open("ab") as log:
        log.write(pack_edits([(lsn, BlockReturned(NOW_MS))]))

    again = await service.next_life().open()

    assert again.manager.status.state is ServiceState.RUNNING
    assert await again.state_of(tx.transaction_id) == ("committed", None)


async def test_a_log_that_is_missing_between_two_others_is_named(service: Service) -> None:
    names = []
    for _ in range(2):
        await service.begin()
        service.now_ms += 1
        names.append((await service.manager.take_snapshot())[0])
    await service.kill()
    for name in names:
        flip(service.directory / name, 200)
    logs = sorted(service.directory.glob("txlog.*"), key=lambda path: int(path.suffix[1:]))
    logs[1].unlink()

    again = await service.next_life().open()

    assert again.manager.status.state is ServiceState.DOWN
    assert f"the log before it is missing; it is not {logs[0].name}" in again.manager.status.reason


async def test_the_first_log_names_none_before_it(new_service: NewService, tmp_path: Path) -> None:
    """Beside it is the snapshot file that a server without transactions made."""
    unused = await new_service(TransactionSettings(enabled=False)).open(RecordedFiles(STORE_ID))
    await unused.kill()
    service = await new_service().open()
    await service.kill()

    header = header_of(newest(tmp_path, "txlog"), FileKind.LOG)
    assert (header.previous_sequence, header.previous_length) == (0, 0)
