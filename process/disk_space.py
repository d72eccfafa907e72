"""Free space on the disks of both stores: queried in threads, judged on the event loop.

A query to a file system that hangs does not return. So each disk has a thread of its own and one
query at a time, and the last answer counts.

A spare file keeps a part of the messages' disk for what makes room on it (decision 0053). LevelDB's
compactions write before they delete, and nothing tells them to stop. They, and other programs, can
fill a disk to its last byte; then LevelDB can't be opened again, not even to read. None of them can
take the space of this file. It is removed when the store has to be opened, or messages deleted, on
a disk that is full, and made again once there is room.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernel.event_loop import InThread, Spawn
from kernel.log_events import event
from messaging.engines.space_on_disk import DiskSpace, SpaceOnDisk
from process.health import Check, Status, worst_of
from process.metrics import Metric

# Bytes of free space below which no more messages are accepted. LevelDB's log has up to two write
# buffers of 16 MiB each, and needs as much again while they become tables. The rest is for requests
# that were accepted before, the transaction log, a snapshot, and deletions.
RESERVE_BYTES_MAX = 64 << 20
# Bytes of free space below which nothing is written that can be refused: what makes room may fill a
# write buffer, which becomes a table.
LAST_RESERVE_BYTES_MAX = 16 << 20
WARNING_BYTES_MAX = 256 << 20  # below that a day's messages may not fit
SPARE_FILE = "spare-space"
# Bytes. To open a store, LevelDB writes its log of up to two buffers of 16 MiB as tables.
SPARE_BYTES_MAX = 32 << 20
# Bytes of free space above which no file is needed: a disk with so much is not full in a second.
ROOM_BYTES = 1 << 30
ANSWER_S_MAX = 5.0  # seconds; a disk that is merely busy answers sooner
FIRST_ANSWER_S_MAX = 1.0  # seconds that a start waits for it

log = logging.getLogger(__name__)

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Space:
    """Free space and size of a file system, and the size of the spare file on it."""

    free_bytes: int
    size_bytes: int
    spare_bytes: int = 0

    @property
    def reserve_bytes(self) -> int:
        """The space to keep free. Half of a small file system is enough: the log takes at most the
        other half, and its tables no more than the log."""
        return min(RESERVE_BYTES_MAX, self.size_bytes // 2)

    @property
    def last_reserve_bytes(self) -> int:
        """The part of the reserve that is kept from deletions, too."""
        return min(LAST_RESERVE_BYTES_MAX, self.reserve_bytes // 4)

    @property
    def needed_spare_bytes(self) -> int:
        """The size for a spare file: a quarter of a small file system."""
        return min(SPARE_BYTES_MAX, self.size_bytes // 4)

    @property
    def warning_bytes(self) -> int:
        """The free space below which to warn: a quarter of the usable space, or less."""
        fillable_bytes = self.size_bytes - self.reserve_bytes
        return min(WARNING_BYTES_MAX, self.reserve_bytes + fillable_bytes // 4)


class Disk:
    """The disk below one directory. Lives on the event loop.

    `full` is the status when less than the reserve is free, and `then` names the consequence.
    `has_spare`: a spare file is kept there. `in_thread` runs on a thread of
    this disk alone; `elapsed_s` is a monotonic clock.
    """

    def __init__(
        self,
        directory: Path,
        *,
        full: Status,
        then: str,
        has_spare: bool = False,
        in_thread: InThread,
        elapsed_s: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._full = full
        self._then = then
        self._has_spare = has_spare
        self._in_thread = in_thread
        self._elapsed_s = elapsed_s
        self._query_began_s: float | None = None  # None while no query is under way
        self._unknown = "it was not queried yet"  # why there is no answer
        self.space: Space | None = None  # by the last answer; None where there is none
        self.answered = asyncio.Event()  # at least once

    @property
    def is_queried(self) -> bool:
        """Whether a query is under way."""
        return self._query_began_s is not None

    @property
    def unanswered_s(self) -> float:
        """For how long the query under way has no answer, in seconds; 0 when there is none."""
        return 0.0 if self._query_began_s is None else self._elapsed_s() - self._query_began_s

    async def query(self) -> None:
        """Query the free space. Not while a query is under way."""
        assert self._query_began_s is None
        self._query_began_s = self._elapsed_s()
        try:
            look = _space_with_spare_file if self._has_spare else _space_of
            self.space = await self._in_thread(partial(look, self._directory))
        except OSError as error:
            self.space, self._unknown = None, error.strerror or str(error)
        finally:
            self._query_began_s = None
            self.answered.set()

    def lack(self) -> str | None:
        """Why nothing more should be written, in a sentence; None if there is space."""
        space = self.space
        if space is None or space.free_bytes >= space.reserve_bytes:
            return None
        return f"only {space.free_bytes // _MIB} MiB are free at {self._directory}; {self._then}"

    def lack_of_last(self) -> str | None:
        """Why not even what makes room should be written, in a sentence; None if it should."""
        space = self.space
        if space is None or space.free_bytes >= space.last_reserve_bytes:
            return None
        return (
            f"only {space.free_bytes // _MIB} MiB are free at {self._directory}, too little even "
            "to delete messages; free some space outside of it, or enlarge the disk"
        )

    def free_bytes(self) -> int | None:
        """The free space by the last answer; None if it is unknown."""
        return None if self.space is None else self.space.free_bytes

    async def release_spare(self) -> None:
        """Remove the spare file, if there is one and the space is needed, and look again."""
        if self.lack_of_last() is None:
            return
        with suppress(OSError):
            if await self._in_thread(partial(release_spare_file, self._directory)):
                self.space = await self._in_thread(partial(_space_of, self._directory))
                log.warning(
                    "the spare file of %s was removed, as the disk is full",
                    self._directory,
                    extra=event("spare_space_released"),
                )

    def shown(self, name: str) -> DiskSpace:
        """The space by the last answer, under this name."""
        space = self.space
        return DiskSpace(
            name=name,
            directory=str(self._directory),
            free_bytes=self.free_bytes(),
            size_bytes=None if space is None else space.size_bytes,
            reserve_bytes=None if space is None else space.reserve_bytes,
            spare_bytes=None if space is None else space.spare_bytes,
        )

    def check(self) -> Check:
        """The health by the last answer, and by whether the disk still answers."""
        check = self._check_space()
        unanswered_s = self.unanswered_s
        if unanswered_s < ANSWER_S_MAX:
            return check
        late = f"the disk at {self._directory} has not answered for {unanswered_s:.0f} s"
        status = worst_of(check.status, Status.DEGRADED)
        detail = f"{late}; before that, {check.detail}"
        return Check(status, detail, f"hangs {self._directory}")

    def _check_space(self) -> Check:
        space, lack = self.space, self.lack()
        if space is None:
            unknown = f"the free space of {self._directory} is unknown: {self._unknown}"
            return Check(Status.DEGRADED, unknown)
        if lack is not None:
            return Check(self._full, lack, f"full {self._directory}")
        mib = space.free_bytes // _MIB
        if space.free_bytes < space.warning_bytes:
            only = (
                f"only {mib} MiB are free at {self._directory}; free some space soon, or enlarge "
                "the disk"
            )
            return Check(Status.DEGRADED, only, f"low {self._directory}")
        return Check(Status.OK, f"{mib} MiB are free", "free")


class DiskMonitor:
    """The disks of both stores, which may be one; `messages` is None where the messages are not on
    a disk of this machine. Without space for transactions, messages continue. `spawn` starts
    background work."""

    def __init__(
        self,
        messages: Path | None,
        snapshots: Path,
        *,
        threads: Callable[[str], InThread],
        elapsed_s: Callable[[], float],
        spawn: Spawn,
    ) -> None:
        self._spawn = spawn
        self.by_store: dict[str, Disk] = {}
        if messages is not None:
            self.by_store["messages"] = Disk(
                messages,
                full=Status.DOWN,
                then=(
                    "no messages are taken; delete topics, truncate them or shorten their time to "
                    "live, or enlarge the disk"
                ),
                has_spare=True,
                in_thread=threads("messages-space"),
                elapsed_s=elapsed_s,
            )
        self.by_store["transactions"] = Disk(
            snapshots,
            full=Status.DEGRADED,
            then="transactions may stop; free some space, or enlarge the disk",
            in_thread=threads("transactions-space"),
            elapsed_s=elapsed_s,
        )

    def query(self) -> None:
        """Query each disk that has no query under way; waits for none."""
        for disk in self.by_store.values():
            if not disk.is_queried:
                self._spawn(disk.query())

    async def query_first(self) -> None:
        """Query, and wait a moment for the answers: opening the stores depends on a full disk."""
        self.query()
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER_S_MAX):
                for disk in self.by_store.values():
                    await disk.answered.wait()

    def for_messages(self) -> SpaceOnDisk:
        """What the message store knows of its disk, and of all disks."""
        disk = self.by_store.get("messages")
        if disk is None:
            return SpaceOnDisk(disks=self._shown)
        return SpaceOnDisk(
            lack=disk.lack,
            lack_of_last=disk.lack_of_last,
            free_bytes=disk.free_bytes,
            release_spare=disk.release_spare,
            disks=self._shown,
        )

    def _shown(self) -> list[DiskSpace]:
        return [disk.shown(name) for name, disk in self.by_store.items()]

    def metrics(self) -> Iterator[Metric]:
        """The metrics of the disk of each store."""
        known = [
            ((name,), disk.space) for name, disk in self.by_store.items() if disk.space is not None
        ]
        yield Metric(
            "disk_free_bytes",
            "Free space on the disk of a store; no sample while that is unknown.",
            [(store, space.free_bytes) for store, space in known],
            ("store",),
        )
        yield Metric(
            "disk_size_bytes",
            "Size of the file system of a store; no sample while that is unknown.",
            [(store, space.size_bytes) for store, space in known],
            ("store",),
        )
        yield Metric(
            "disk_reserve_bytes",
            "Space that is kept free on the disk of a store; with less, no messages are taken.",
            [(store, space.reserve_bytes) for store, space in known],
            ("store",),
        )
        yield Metric(
            "disk_unanswered_seconds",
            "For how long a query of the free space has no answer; 0 when there is none.",
            [((name,), disk.unanswered_s) for name, disk in self.by_store.items()],
            ("store",),
        )

    def check(self) -> Check:
        """The health of the worse disk."""
        found = [disk.check() for disk in self.by_store.values()]
        worst = worst_of(*(check.status for check in found))
        return next(check for check in found if check.status is worst)


def _space_with_spare_file(directory: Path) -> Space:
    space = _space_of(directory)
    with suppress(OSError):  # of a disk that fails; its space is known all the same
        if keep_spare_file(directory, space):
            return _space_of(directory)
    return space


def _space_of(directory: Path) -> Space:
    try:
        usage = shutil.disk_usage(directory)
    except FileNotFoundError:  # the store creates it, if there is space
        usage = shutil.disk_usage(directory.parent)
    return Space(usage.free, usage.total, _spare_file_bytes(directory))


def keep_spare_file(directory: Path, space: Space) -> bool:
    """Make the file where the disk is filling up, and remove it where there is room. Whether the
    disk has changed by that. Blocks.

    Raises: OSError.
    """
    path, needed_bytes = directory / SPARE_FILE, space.needed_spare_bytes
    if path.exists():
        if space.free_bytes < ROOM_BYTES:
            return False
        path.unlink()
        return True
    # Above the reserve after it, too: it must not be what ends the publishes.
    is_filling_up = space.reserve_bytes + needed_bytes <= space.free_bytes < ROOM_BYTES
    if not is_filling_up or not needed_bytes:
        return False
    return _allocate(path, needed_bytes)


def release_spare_file(directory: Path) -> bool:
    """Remove the file; whether there was one. Blocks. Raises: OSError."""
    try:
        (directory / SPARE_FILE).unlink()
    except FileNotFoundError:
        return False
    return True


def _spare_file_bytes(directory: Path) -> int:
    """The size of the file, 0 without one. Blocks. Raises: OSError."""
    try:
        return (directory / SPARE_FILE).stat().st_size
    except FileNotFoundError:
        return 0


def _allocate(path: Path, size_bytes: int) -> bool:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the store has not created its directory yet
        return False
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError:
        with suppress(OSError):
            path.unlink()
        return False
    finally:
        os.close(descriptor)
    return True
