"""Write everything readable of both stores to a new data directory: `tuff salvage` (promise 8).

The transaction files are read first, since the proven outcome of a transaction decides whether its
rows stay visible. Then the rows are copied. The new transaction files are written last: rows can
prove outcomes that the old files lost.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from admin.backup_and_restore import unpack_damaged
from admin.data_directory import DataDirectory, new_directory
from admin.findings import SalvageDecision
from admin.fsck import check, check_message_store, lost_commits, recorded_files
from admin.readable_rows import ReadableRows
from admin.salvage_messages import MessageSalvage, SalvageReport
from admin.salvage_transactions import ProvenState, complete_state, prove_state
from admin.transaction_files import write_transaction_files
from messaging.engines.leveldb import LevelDbStore
from tuff_storage.disk.files import make_directory


def salvage(
    data: DataDirectory, target: Path, *, now_ms: int, new_store_id: Callable[[], str]
) -> SalvageReport:
    """Write what can be read to a new directory, which is complete or does not exist. Blocks.

    Raises:
        RefusedError: the new directory is not empty.
        NewerFilesError: a newer version wrote some of it. (For a row of one, a StoreError.)
        OSError, StoreError: something can't be read or written.
    """
    with new_directory(target) as part:
        return _write(data, part, now_ms=now_ms, new_store_id=new_store_id)


def salvage_archive(
    archive: Path, target: Path, *, now_ms: int, new_store_id: Callable[[], str]
) -> SalvageReport:
    """Write what can be read of a running server's backup to a new directory, likewise. What is
    unpacked on the way is beside the target, and as large. Blocks.

    Raises: as `salvage`; RefusedError: the file is no backup.
    """
    make_directory(target.absolute().parent)
    with TemporaryDirectory(dir=target.absolute().parent, prefix=f"{target.name}.") as unpacked:
        data = DataDirectory.of(Path(unpacked))
        lost = unpack_damaged(archive, data, now_ms=now_ms)
        report = salvage(data, target, now_ms=now_ms, new_store_id=new_store_id)
    return replace(report, lost=[*lost, *report.lost])


def _write(
    data: DataDirectory, part: Path, *, now_ms: int, new_store_id: Callable[[], str]
) -> SalvageReport:
    readable = ReadableRows(data.messages)
    store = check_message_store(readable, now_ms=now_ms)
    proven = prove_state(data.snapshots, recorded_files(store))
    with closing(LevelDbStore(part / "messages")) as new:
        messages = MessageSalvage(
            readable,
            new,
            outcome=cache(proven.outcome_of),
            remembers_commit=proven.remembers_commit,
        )
        rows = messages.copy_rows()
        store_id, highest = _write_transactions(
            part, proven, rows, now_ms=now_ms, new_store_id=new_store_id
        )
        metadata = replace(rows.metadata, store_id=store_id, highest_pointer=highest)
        messages.write_metadata(metadata, proven.last_published)
    findings = check(DataDirectory.of(part), now_ms=now_ms).findings
    assert not findings, f"salvage wrote a corrupt directory: {findings}"
    missing = () if data.has_messages else lost_commits(store, proven.state)
    reason = "its commit is not proven: its rows are hidden from readers with a snapshot"
    hidden = [SalvageDecision(f"transaction {each}", reason) for each in sorted(rows.hidden)]
    return replace(
        rows,
        lost=[*proven.lost, *rows.lost, *missing],
        decided=[*proven.decided, *rows.decided, *hidden],
    )


def _write_transactions(
    part: Path,
    proven: ProvenState,
    rows: SalvageReport,
    *,
    now_ms: int,
    new_store_id: Callable[[], str],
) -> tuple[str | None, int]:
    """Write the transaction files; their store id, and the highest pointer they reserve."""
    highest = max(rows.highest_pointer, rows.metadata.highest_pointer)
    store_id = proven.store_id or rows.metadata.store_id
    if store_id is None and not highest:
        return None, 0  # there never was a transaction
    image = complete_state(
        proven,
        now_ms=now_ms,
        committed=rows.committed,
        hidden=rows.hidden,
        highest_pointer=highest,
    )
    store_id = store_id or new_store_id()
    write_transaction_files(part / "snapshots", image, store_id=store_id, now_ms=now_ms)
    return store_id, image.highest_reserved
