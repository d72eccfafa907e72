"""What the message store knows of the space on its disk. The server process says it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The space below the directory of one store. `reserve_bytes` are kept free, and
    `spare_bytes` is the size of the spare file. None: it is unknown now."""

    name: str
    directory: str
    free_bytes: int | None
    size_bytes: int | None
    reserve_bytes: int | None
    spare_bytes: int | None


@dataclass(frozen=True, slots=True)
class SpaceOnDisk:
    """`lack` returns why the disk should take no more messages, and `lack_of_last` why not even
    writes that make room; each a sentence, or None. `free_bytes` is the free space, None if it is
    unknown. `release_spare` adds the space that is kept for writes that make room.
    `disks` has the space of each disk of the server, for people."""

    lack: Callable[[], str | None] = lambda: None
    lack_of_last: Callable[[], str | None] = lambda: None
    free_bytes: Callable[[], int | None] = lambda: None
    release_spare: Callable[[], Awaitable[None]] = _nothing
    disks: Callable[[], Sequence[DiskSpace]] = tuple
