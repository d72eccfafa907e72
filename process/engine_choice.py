"""Chooses the engine of the message store by the settings, and refuses what would lose messages."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from kernel.log_events import event
from messaging.engines.engine_interface import Engine
from messaging.engines.leveldb import LevelDbOpener
from messaging.engines.memory import MemoryStore
from messaging.log.store_end import DamagedEndError, StoreEndFile, loss_name, read_end
from process.directory_locks import DataDirectories
from process.runtime import Runtime
from process.settings import Settings, SettingsError, needs_extra
from tuff_storage.leveldb.opening import holds_database
from tx.file_headers import has_files, stored_id

log = logging.getLogger(__name__)

UNKNOWN_STORE_ID = "0" * 32  # of transaction files whose headers can't be read


def store_opener(
    settings: Settings,
    directories: DataDirectories,
    *,
    runtime: Runtime,
) -> Callable[[], Engine]:
    """A function that opens the configured store.

    Raises:
        SettingsError: its library is not installed; or it is in memory, and there are messages.
    """
    match settings.messaging.store:
        case "leveldb":
            return LevelDbOpener(
                directories.messages,
                new_store_refusal=partial(new_store_refusal, settings, directories),
            )
        case "memory":
            _require_no_messages(directories.messages)
            log.warning("messaging.store is memory: every message is lost when the process ends")
            # Opened again after a failure, it still holds what was written, as a disk would.
            rows: dict[bytes, bytes] = {}
            return lambda: MemoryStore(rows)
        case _:
            with needs_extra("messaging.store=hbase", "hbase"):
                from messaging.engines.hbase.engine import HBaseOpener
            return HBaseOpener(
                settings.hbase,
                rows_live_s=settings.rows_live_s(),
                now_ms=runtime.clock.now_ms,
                elapsed_s=runtime.elapsed_s,
                in_background=runtime.background("store-flusher"),
            )


def new_store_refusal(settings: Settings, directories: DataDirectories) -> str | None:
    """Why no empty message store may be created, in a sentence; None if it may. Blocks."""
    snapshots = directories.snapshots
    if settings.messaging.store == "memory":
        return None
    try:
        if not has_files(snapshots):
            return None
        name = _loss_name(snapshots)
    except OSError as error:
        return f"whether there were messages is not known: {snapshots} can't be read: {error}"
    is_here = settings.messaging.store == "leveldb"
    where = str(directories.messages) if is_here else f"HBase ({settings.hbase.prefix}*)"
    reason = (
        f"{where} holds no message store, and the transaction files in {snapshots} belong to one"
    )
    if settings.server.accept_lost_messages == name:
        extra = event("loss_accepted", loss=reason)
        log.warning("the loss is accepted, and an empty store begins: %s", reason, extra=extra)
        return None
    return (
        f"{reason}: put it back (is its volume mounted?), and the server continues; if it is lost, "
        f"start with server.accept_lost_messages={name}"
    )


def store_end_file(settings: Settings, directories: DataDirectories) -> StoreEndFile | None:
    """Where the end of the message store is recorded; None for a store in memory, and in a
    cluster, whose servers each write a part."""
    if settings.messaging.store == "memory" or settings.cluster.is_member:
        return None
    return StoreEndFile(directories.snapshots, accepted=settings.server.accept_lost_messages)


def _loss_name(snapshots: Path) -> str:
    """The name of the loss of the store to which these files belong. Raises: OSError."""
    with suppress(DamagedEndError):
        if (end := read_end(snapshots)) is not None:
            return end.loss_name
    return loss_name(stored_id(snapshots) or UNKNOWN_STORE_ID, 0)


def _require_no_messages(directory: Path) -> None:
    """A commit with messages in memory would be in the transaction files, and not in that store."""
    try:
        has_messages = holds_database(directory)
    except OSError as error:
        raise SettingsError(f"{directory} can't be read: {error.strerror}") from None
    if has_messages:
        raise SettingsError(
            f"messaging.store is memory, and {directory} holds messages: name another --data, or "
            "set messaging.store=leveldb"
        )
