"""Which engine a setting names, and how it is opened (design §5, Storage seam)."""

import logging
from collections.abc import Callable
from pathlib import Path

from messaging.run_table import RunTable
from messaging.runs import first_whole
from messaging.storage.leveldb import LevelDbStores
from messaging.storage.memory import MemoryTable
from messaging.storage.seam import Store
from process.settings import Settings, SettingsError
from tuff.disk.leveldb_start import holds_database

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
    """What opens the store that is set; `why_not_begin` says why none may be begun where none is,
    `elapsed_s` is a clock that only goes forward, `background` makes a thread for what nobody waits
    for.

    Raises:
        SettingsError: its library is not installed; or it is in memory, and there are messages.
    """
    match settings.messaging.store:
        case "leveldb":
            stores = LevelDbStores(directory, first_whole=first_whole, why_not_begin=why_not_begin)
            return lambda: RunTable(stores())
        case "memory":
            _require_no_messages(directory)
            log.warning("messaging.store is memory: every message is lost when the process ends")
            # Opened again after a failure, it still holds what was written, as a disk would.
            rows: dict[bytes, bytes] = {}
            return lambda: RunTable(MemoryTable(rows))
        case _:
            in_background = background("store-settler")
            return _hbase(settings, now_ms=now_ms, elapsed_s=elapsed_s, in_background=in_background)


def _require_no_messages(directory: Path) -> None:
    """What commits in memory stands in the transaction files, and not in the messages there."""
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
        from messaging.storage.hbase import HBaseStores
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"messaging.store=hbase needs {error.name}, which is not installed; "
            "pip install 'tuff-messaging[hbase]'"
        ) from None
    return HBaseStores(
        settings.hbase,
        rows_live_s=settings.rows_live_s(),
        now_ms=now_ms,
        elapsed_s=elapsed_s,
        in_background=in_background,
    )
