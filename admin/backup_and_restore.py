"""Copy both stores of a stopped server as one set, and restore copies: `tuff backup`, `restore`.

Only data without corruption is copied. A copy is checked before it gets its name, and is complete
or does not exist; the same holds for a restored directory. The two stores are copied together,
since each refers to the other (design §6). A running server's backup is an archive
(process/backup_format.py).
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from admin.data_directory import DataDirectory, new_directory
from admin.findings import CorruptDataError, Finding, RefusedError
from admin.fsck import check
from admin.readable_rows import SALVAGE_ADVICE
from admin.transaction_files import write_transaction_files
from messaging.engines.engine_interface import Engine
from messaging.engines.leveldb import LevelDbStore
from messaging.log import store_end
from process.backup_format import FIRST_KEY, KEYS_STOP, ROWS, TRANSACTIONS, Row, unpack_rows
from tuff.protocol.sentences import counted
from tuff_storage.disk.backup_archive import (
    ArchiveError,
    NewerArchiveError,
    read_parts,
    read_whole_parts,
)
from tuff_storage.disk.files import make_directory, write_file
from tuff_storage.disk.locks import LOCK_FILE
from tx.file_headers import NEWER, DamagedFilesError, NewerFilesError, list_files, without_advice
from tx.snapshot_file import read_snapshot

BATCH_BYTES = 4 << 20  # bytes of rows in one synced write of a restore; few syncs, little memory


def copy(data: DataDirectory, target: Path, *, now_ms: int) -> tuple[int, int]:
    """Copy both stores to a new directory, and check the copy; how many files and bytes it has.
    Blocks.

    Raises:
        CorruptDataError: the data, or the copy, is corrupt.
        RefusedError: the new directory is not empty, or a newer version wrote some of the data.
        OSError: something can't be read or written.
    """
    _require_intact(data, now_ms=now_ms)
    with new_directory(target) as part:
        count, size_bytes = 0, 0
        for source, relative in _files(data):
            copied = part / relative
            make_directory(copied.parent)
            content = source.read_bytes()
            write_file(copied, content)
            count, size_bytes = count + 1, size_bytes + len(content)
        _require_intact(DataDirectory.of(part), now_ms=now_ms)
    return count, size_bytes


def restore_archive(archive: Path, target: Path, *, now_ms: int) -> int:
    """Make a new data directory of a running server's backup, and check it; the number of rows, as
    the check counts them. Blocks.

    Raises:
        CorruptDataError: the archive is incomplete, or its content is corrupt.
        RefusedError: the new directory is not empty, or a newer version made the archive.
        OSError, StoreError: something can't be read or written.
    """
    snapshot_file = bytearray()
    with new_directory(target) as part, archive.open("rb") as file:
        data = DataDirectory.of(part)
        try:
            rows = _rows(read_parts(file), snapshot_file)
            _write_stores(rows, snapshot_file, data, now_ms=now_ms)
        except (NewerArchiveError, NewerFilesError) as error:
            reason = without_advice(error)
            raise RefusedError(f"{archive} can't be restored here: {reason}; {NEWER}") from None
        except (ArchiveError, DamagedFilesError) as error:
            raise CorruptDataError(
                f"{archive} is not a complete backup: {without_advice(error)}; restore another "
                f"one, or keep what is whole with `tuff salvage {archive} NEW`"
            ) from None
        return _require_intact(data, now_ms=now_ms)


def unpack_damaged(archive: Path, data: DataDirectory, *, now_ms: int) -> list[Finding]:
    """Write what can be read of a backup as a data directory, which `tuff salvage` makes complete;
    what can't be read. Blocks.

    Raises:
        RefusedError: it is no backup, or a newer version made it.
        OSError, StoreError: something can't be read or written.
    """
    damages: list[str] = []
    snapshot_file = bytearray()
    try:
        with archive.open("rb") as file:
            rows = _readable_rows(read_whole_parts(file, damages), snapshot_file, damages)
            _write_stores(rows, snapshot_file, data, now_ms=now_ms)
    except ArchiveError as error:
        raise RefusedError(f"{archive} is no backup that can be read here: {error}") from None
    except NewerFilesError as error:
        raise RefusedError(f"{archive}: {without_advice(error)}; {NEWER}") from None
    except DamagedFilesError as error:
        damages.append(without_advice(error))
    return [Finding(archive.name, each, SALVAGE_ADVICE) for each in damages]


def _readable_rows(
    parts: Iterable[tuple[int, bytes]], snapshot_file: bytearray, damages: list[str]
) -> Iterator[Row]:
    for kind, content in parts:
        if kind == TRANSACTIONS:
            snapshot_file += content
        elif kind == ROWS:
            try:
                yield from unpack_rows(content)
            except ArchiveError as error:
                damages.append(str(error))


def _files(data: DataDirectory) -> Iterator[tuple[Path, Path]]:
    for path in sorted(data.messages.iterdir()) if data.has_messages else ():
        if path.is_file() and path.name != LOCK_FILE:
            yield path, Path("messages") / path.name
    for path, _ in list_files(data.snapshots):
        yield path, Path("snapshots") / path.name
    if (end := data.snapshots / store_end.FILE_NAME).is_file():
        yield end, Path("snapshots") / end.name


def _require_intact(data: DataDirectory, *, now_ms: int) -> int:
    """Check it all; the number of rows. Raises: CorruptDataError, RefusedError."""
    report = check(data, now_ms=now_ms)
    corruptions = report.corruptions
    for finding in corruptions:
        if finding.advice == NEWER:
            # Reported first: for the newer version the rest may not be corrupt.
            raise RefusedError(
                f"{data.path} can't be copied here: {finding.location}: {finding.reason}; {NEWER}"
            )
    if corruptions:
        first = corruptions[0]
        raise CorruptDataError(
            f"{data.path} is corrupt in {counted(len(corruptions), 'location')}, the first is "
            f"{first.location} ({first.reason}); list them with `tuff fsck`, and copy what can be "
            "read with `tuff salvage`"
        )
    return report.row_count


def _write_stores(
    rows: Iterable[Row], snapshot_file: bytearray, data: DataDirectory, *, now_ms: int
) -> None:
    """Write the rows, and the state of the snapshot file, which the iteration over them completes.

    Raises: ArchiveError, DamagedFilesError (their kinds), OSError, StoreError.
    """
    with closing(LevelDbStore(data.messages)) as store:
        _put(store, rows)
    if snapshot_file:
        header, image = read_snapshot("its snapshot of transactions", bytes(snapshot_file))
        write_transaction_files(data.snapshots, image, store_id=header.store_id, now_ms=now_ms)


def _rows(parts: Iterable[tuple[int, bytes]], snapshot_file: bytearray) -> Iterator[Row]:
    """The rows of an archive; the pieces of the snapshot file, which precede them, are appended."""
    last = b""
    for kind, content in parts:
        if kind == TRANSACTIONS and not last:
            snapshot_file += content
        elif kind == ROWS:
            for key, value in unpack_rows(content):
                if not (last < key and FIRST_KEY <= key < KEYS_STOP):
                    raise ArchiveError(f"the row {key.hex()} is out of order after {last.hex()}")
                last = key
                yield key, value
        else:
            raise ArchiveError(f"a part of kind {kind} is out of order")


def _put(store: Engine, rows: Iterable[Row]) -> None:
    size_bytes = 0
    batch: list[Row] = []
    for key, value in rows:
        batch.append((key, value))
        size_bytes += len(key) + len(value)
        if size_bytes >= BATCH_BYTES:
            store.write(batch)
            batch, size_bytes = [], 0
    store.write(batch)
