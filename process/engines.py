"""Which engine a setting names, and how it is opened (design §5, Storage seam)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from messaging.rows import is_whole
from messaging.storage.leveldb import LevelDbTable
from messaging.storage.memory import MemoryTable
from messaging.storage.seam import Store
from process.settings import SettingsError


def engine(name: str, directory: Path) -> Callable[[], Store]:
    """What opens the store of that name.

    Raises:
        SettingsError: the engine is not built yet.
    """
    match name:
        case "leveldb":
            return partial(LevelDbTable, directory, is_whole=is_whole)
        case "memory":
            # Opened again after a failure, it still holds what was written, as a disk would.
            rows: dict[bytes, bytes] = {}
            return lambda: MemoryTable(rows)
        case _:
            raise SettingsError(
                f"messaging.store={name} is not built yet; leveldb is durable, memory is for tests"
            )
