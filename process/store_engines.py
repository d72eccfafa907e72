"""The storage engine that `messaging.store` names (design §5, Engine interface)."""

import logging
from collections.abc import Callable
from pathlib import Path

from messaging.storage.engine import Store
from messaging.storage.leveldb import LevelDbOpener
from messaging.storage.memory import MemoryStore
from messaging.storage.packed_rows import PackedRowStore, first_whole
from process.settings import Settings, SettingsError
from tuff.leveldb.opening import holds_database

log = logging.getLogger(__name__)

Background = Callable[[Callable[[], None]], object]


def engine(
    settings: Settings,
    directory: Path,
    *,
    why_not_begin: Callable[[], str | None],
    now_ms: Callable[[], int],
    elapsed_s: Callable[[], float],
    background: Callable[[str], Background],
) -> Callable[[], Store]:
    """A function that opens the configured store. `why_not_begin` says why an empty store must not
    be created, `elapsed_s` is a monotonic clock, and `background` makes a thread for work that no
    caller waits for.

    Raises:
        SettingsError: its library is not installed; or it is in memory, and there are messages.
    """
    match settings.messaging.store:
        case "leveldb":
            stores = LevelDbOpener(directory, first_whole=first_whole, why_not_begin=why_not_begin)
            return lambda: PackedRowStore(stores())
        case "memory":
            _require_no_messages(directory)
            log.warning("messaging.store is memory: every message is lost when the process ends")
            # Opened again after a failure, it still holds what was written, as a disk would.
            rows: dict[bytes, bytes] = {}
            return lambda: PackedRowStore(MemoryStore(rows))
        case _:
            in_background = background("store-settler")
            return _hbase(settings, now_ms=now_ms, elapsed_s=elapsed_s, in_background=in_background)


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


def _hbase(
    settings: Settings,
    *,
    now_ms: Callable[[], int],
    elapsed_s: Callable[[], float],
    in_background: Background,
) -> Callable[[], Store]:
    try:
        from messaging.storage.hbase.store import HBaseOpener
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"messaging.store=hbase needs {error.name}, which is not installed; "
            "pip install 'tuff-messaging[hbase]'"
        ) from None
    return HBaseOpener(
        settings.hbase,
        rows_live_s=settings.rows_live_s(),
        now_ms=now_ms,
        elapsed_s=elapsed_s,
        in_background=in_background,
    )
