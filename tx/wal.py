"""The write-ahead log of transactions: the bytes of a log file, and the open log with its group
commit (design §4).

    log   := header (edit | proof)*             each a frame, as in tuff_storage.disk.records
    edit  := as in tx.log_records
    proof := "TUFFMARK" store_id(16) offset(8) length(8)

A proof states its own offset, and the length up to which the file was durable before it was
written. Each batch starts with one. So an incomplete end is a torn tail only behind the last proven
length. Before that length it is corruption: the edits there were acknowledged.

Edits that arrive during a sync go out with the next one. A batch that no caller waits for is
written without a sync. When a write fails, the tail of the file is unknown: every caller that waits
gets an error, and the log takes no more edits. Recovery into new files decides which edits stand.
"""

import asyncio
import contextlib
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from kernel.event_loop import Arrivals, BatchLoop, InThread
from tuff.protocol.errors import TransactionsUnavailableError
from tuff_storage.disk.files import remove_file, write_file
from tuff_storage.disk.records import (
    Damage,
    Frame,
    pack_frame,
    pack_frames,
    read_frame,
    read_frames,
)
from tx.file_headers import (
    FileHeader,
    FileKind,
    KnownFile,
    damaged,
    pack_header,
    read_header,
    unreadable,
)
from tx.log_records import Edit, MalformedError, decode_edit, encode_edits
from tx.settings import BATCH_COUNT_MAX, UNWANTED_S_MAX

log = logging.getLogger(__name__)


class AppendFile(Protocol):
    """A file that grows at its end. Its methods block, and run in a thread."""

    def append(self, data: bytes, *, sync: bool) -> None:
        """Write all of it; with `sync` everything written so far is durable then. Raises: OSError:
        the content behind the last durable byte is unknown."""

    def close(self) -> None: ...


class DiskFile:
    """An AppendFile on the disk."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def append(self, data: bytes, *, sync: bool) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        if sync:
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


OpenFile = Callable[[Path], AppendFile]


@dataclass(frozen=True, slots=True)
class LogFile:
    """A new log file, durable up to `length`."""

    known: KnownFile
    file: AppendFile
    length: int


def create_log(
    path: Path, header: FileHeader, edits: Iterable[tuple[int, Edit]], *, open_file: OpenFile
) -> LogFile:
    """Make a log that starts with these edits, durably and atomically."""
    data = pack_header(FileKind.LOG, header) + pack_edits(edits)
    data += pack_proof(header.store_id, offset=len(data), length=len(data))
    write_file(path, data)
    return LogFile(KnownFile(path, FileKind.LOG, header), open_file(path), len(data))


class _Roll:
    """An item of the queue: the edits behind it go into a new file."""

    def __init__(self, path: Path, header: FileHeader) -> None:
        self.path = path
        self.header = header
        self.done: asyncio.Future[KnownFile] = asyncio.get_running_loop().create_future()


class _Touch:
    """An item of the queue: sync the edits that are written, or write a proof."""


_TOUCH = _Touch()
_Numbered = tuple[int, Edit]  # with its LSN
_Item = _Numbered | _Roll | _Touch


class WriteAheadLog:
    """One log, over as many files as its snapshots make; a failed one is never used again.

    Lives on one event loop. `on_durable` gets the LSN up to which edits are durable, before any
    caller that waits is answered; `on_failed` the reason why the log can't continue; `observe` the
    edits of each batch and the seconds of each sync, by `elapsed_s`, which only goes forward. With
    `is_shared` other processes may read the files at any time.
    """

    def __init__(
        self,
        start: LogFile,
        *,
        last_lsn: int,
        in_thread: InThread,
        open_file: OpenFile,
        is_shared: bool,
        on_durable: Callable[[int], None],
        on_failed: Callable[[str], None],
        observe: Callable[[str, float], None],
        elapsed_s: Callable[[], float],
        arrivals: Arrivals,
    ) -> None:
        self._at = start
        self._length = self._durable_length = self._proven_length = start.length
        self._last_lsn = self._taken_lsn = self.durable_lsn = last_lsn
        self._wanted_lsn = last_lsn
        self._in_thread = in_thread
        self._open_file = open_file
        self._is_shared = is_shared
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._observe = observe
        self._elapsed_s = elapsed_s
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._failure: str | None = None
        self._writer: BatchLoop[_Item] = BatchLoop(
            self._write_batch, batch_count_max=BATCH_COUNT_MAX, arrivals=arrivals
        )
        self._alarm: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        self._is_running = False

    @property
    def pending_count(self) -> int:
        """Edits that wait to be written."""
        return self._last_lsn - self._taken_lsn

    def append(self, edit: Edit) -> int:
        """Queue the edit; its LSN. Raises: TransactionsUnavailableError: the log failed."""
        if self._failure is not None:
            self._require_whole()
        lsn = self._last_lsn = self._last_lsn + 1
        self._writer.put_aside((lsn, edit))
        if self._alarm is None:
            # Nearly always a caller waits for the edit, or for one behind it, much sooner. A write
            # for each start would cost as much as a sync.
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(UNWANTED_S_MAX, self._writer.wake)
        return lsn

    async def synced(self, lsn: int) -> None:
        """Wait until this edit, and all before it, are on stable storage.

        Raises:
            TransactionsUnavailableError: the log failed; whether the edit will stand is decided by
                recovery.
        """
        if lsn > self.durable_lsn:
            await self.waiter(lsn)

    def waiter(self, lsn: int) -> asyncio.Future[None]:
        """A future that is done once this edit is durable, for an edit that is not durable yet."""
        self._require_whole()
        self.sync_soon(lsn)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((lsn, waiter))
        return waiter

    def sync_soon(self, lsn: int) -> None:
        """Sync this edit with the next batch, without waiting for it."""
        if lsn <= self._wanted_lsn or self._failure is not None:
            return
        self._wanted_lsn = lsn
        if lsn <= self._taken_lsn:
            self._writer.put(_TOUCH)
        else:
            self._writer.wake()

    async def roll(self, path: Path, header: FileHeader) -> KnownFile:
        """Put every edit from now on into a new file, once those before are durable. The log adds
        the sequence number and the durable length of the file before to the header.

        Raises:
            OSError: the new file can't be made; the log continues in the old one.
            TransactionsUnavailableError: the log failed.
        """
        self._require_whole()
        roll = _Roll(path, header)
        self._writer.put(roll)
        return await roll.done

    def prove(self) -> None:
        """Write the edits that wait, and a proof if the file has none of its durable length.

        Without that proof the last batch before a pause, if it is damaged, would look like a torn
        tail, and acknowledged edits would be cut.
        """
        if self._failure is None and self._durable_length > self._proven_length:
            self._writer.put(_TOUCH)
        elif self.pending_count:
            self._writer.wake()

    async def run(self) -> None:
        """Write batch after batch, until the log is closed or fails."""
        self._is_running = True
        await self._writer.run()
        await self._in_thread(partial(_close, self._at.file))
        self._closed.set()

    async def close(self) -> None:
        """Write the edits that wait, and close the file. `run` is running, or was never started."""
        if self._failure is None:
            self._writer.close()
        if self._is_running:
            await self._closed.wait()
        else:
            await self._in_thread(partial(_close, self._at.file))

    def _require_whole(self) -> None:
        if self._failure is not None:
            raise TransactionsUnavailableError(self._failure)

    async def _write_batch(self, items: list[_Item]) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        edits: list[_Numbered] = []
        for item in items:
            if isinstance(item, tuple):
                edits.append(item)
            elif isinstance(item, _Roll):
                await self._write(edits, must_sync=True)
                edits = []
                await self._begin_file(item)
        await self._write(edits, must_sync=False)

    async def _write(self, edits: list[_Numbered], *, must_sync: bool) -> None:
        if self._failure is not None:
            return
        if edits:
            self._taken_lsn = edits[-1][0]
        sync = (must_sync or self._wanted_lsn > self.durable_lsn) and (
            self._length > self._durable_length or bool(edits)
        )
        if not edits and not sync and self._durable_length == self._proven_length:
            return
        proven, file = self._durable_length, self._at.file
        # Packed here: the thread that writes would take the interpreter from the loop for it.
        store_id = self._at.known.header.store_id
        data = pack_proof(store_id, offset=self._length, length=proven) + pack_edits(edits)

        def write() -> float:
            began_s = self._elapsed_s()
            file.append(data, sync=sync)
            return self._elapsed_s() - began_s

        try:
            seconds = await self._in_thread(write)
        except OSError as error:
            self._fail(f"the transaction log {self._at.known.path.name} can't be written: {error}")
            return
        self._length += len(data)
        self._proven_length = proven
        if edits:
            self._observe("log_batch_edits", len(edits))
        if sync:
            self._observe("log_fsync_seconds", seconds)
            self._durable_length = self._length
            self._reach(self._taken_lsn)

    def _reach(self, lsn: int) -> None:
        self.durable_lsn = lsn
        self._on_durable(lsn)
        if not self._waiters:
            return
        reached = [entry for entry in self._waiters if entry[0] <= lsn]
        self._waiters = [entry for entry in self._waiters if entry[0] > lsn]
        for _, waiter in sorted(reached, key=lambda entry: entry[0]):
            if not waiter.done():
                waiter.set_result(None)

    async def _begin_file(self, roll: _Roll) -> None:
        if self._failure is not None:
            roll.done.set_exception(TransactionsUnavailableError(self._failure))
            return
        header = replace(
            roll.header,
            previous_sequence=self._at.known.header.sequence,
            previous_length=self._durable_length,
        )
        create = partial(create_log, roll.path, header, (), open_file=self._open_file)
        try:
            made = await self._in_thread(create)
        except OSError as error:
            await self._give_up_file(roll, error)
            return
        await self._in_thread(partial(_close, self._at.file))
        self._at = made
        self._length = self._durable_length = self._proven_length = made.length
        if not roll.done.done():
            roll.done.set_result(made.known)

    async def _give_up_file(self, roll: _Roll, error: OSError) -> None:
        # If the new file is there after all, it says that the old one ends here, and a recovery
        # would cut off what is acknowledged from now on. So it must be proven to be gone. In a
        # shared directory it must stay: a new leader may have read it, and continue behind it.
        if self._is_shared or not await self._is_removed(roll.path):
            self._fail(f"the transaction log {roll.path.name} can't be made: {error}")
        if not roll.done.done():
            roll.done.set_exception(error)

    async def _is_removed(self, path: Path) -> bool:
        try:
            await self._in_thread(partial(remove_file, path))
        except OSError:
            return False
        return True

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._writer.close()
        self._on_failed(reason)
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(TransactionsUnavailableError(reason))


def _close(file: AppendFile) -> None:
    # What had to be durable was synced before; a close can add nothing, and undo nothing.
    with contextlib.suppress(OSError):
        file.close()


_PROOF_TAG = b"TUFFMARK"
_PROOF = struct.Struct(">8s16sQQ")
_FRAME_HEAD_SIZE = 8
assert _PROOF.size == 40


@dataclass(frozen=True, slots=True)
class LogContents:
    """The content of a log up to `length`; up to `proven_length` it is known to be durable. A torn
    tail of `cut_bytes` follows. `offsets` says where each edit starts."""

    header: FileHeader
    edits: list[tuple[int, Edit]]
    offsets: list[int]
    length: int
    cut_bytes: int
    proven_length: int


def pack_proof(store_id: str, *, offset: int, length: int) -> bytes:
    """The frame at `offset` that says up to which length the file is durable."""
    return pack_frame(_PROOF.pack(_PROOF_TAG, bytes.fromhex(store_id), offset, length))


def pack_edits(edits: Iterable[tuple[int, Edit]]) -> bytes:
    return pack_frames(encode_edits(edits))


def read_log(name: str, data: bytes, *, proven_length: int | None = None) -> LogContents:
    """The edits of a log. `proven_length` is its length according to the next log: the rest is
    ignored. None for the newest log, which may have a torn tail.

    Raises:
        DamagedFilesError: something that was durable can't be read.
        NewerFilesError: it was written by a newer version.
    """
    if proven_length is not None:
        if len(data) < proven_length:
            raise damaged(
                name, len(data), f"it ends before byte {proven_length}, where it once did"
            )
        data = data[:proven_length]
    header, start = read_header(name, FileKind.LOG, data)
    edits: list[tuple[int, Edit]] = []
    offsets: list[int] = []
    length, proven = start, proven_length or start
    for found in read_frames(data, start):
        if isinstance(found, Damage):
            proven = max(proven, _proven_behind(data, found.offset, header.store_id))
            if found.offset < proven:
                raise damaged(name, found.offset, found.reason)
            break
        proof = _proof(found, header.store_id)
        if proof is None:
            edits.append(_edit(name, found, expected=header.lsn + len(edits)))
            offsets.append(found.start)
        else:
            proven = max(proven, proof)
        length = found.stop
    assert length >= proven
    return LogContents(header, edits, offsets, length, len(data) - length, proven)


def is_proof(frame: Frame, store_id: str) -> bool:
    """Whether a frame is a proof that names its own offset."""
    return _proof(frame, store_id) is not None


def _edit(name: str, frame: Frame, *, expected: int) -> tuple[int, Edit]:
    try:
        lsn, edit = decode_edit(frame.body)
    except MalformedError as error:
        raise unreadable(name, frame.start, error) from None
    if lsn != expected:
        raise damaged(name, frame.start, f"edit {lsn} stands where edit {expected} should")
    return lsn, edit


def _proof(frame: Frame, store_id: str) -> int | None:
    """The durable length that a proof states; None for a frame that is no proof, or of another
    offset."""
    if len(frame.body) != _PROOF.size or not frame.body.startswith(_PROOF_TAG):
        return None
    _, stored_id, offset, length = _PROOF.unpack(frame.body)
    if stored_id.hex() != store_id or offset != frame.start or length > offset:
        return None
    return int(length)


def proofs_behind(data: bytes, damage: int) -> Iterator[Frame]:
    """Every proof behind a corruption that names its own offset: frames continue there, however
    much the corruption hides."""
    at = data.find(_PROOF_TAG, damage)
    while at >= 0:
        frame = read_frame(data, at - _FRAME_HEAD_SIZE) if at >= _FRAME_HEAD_SIZE else None
        if isinstance(frame, Frame) and len(frame.body) == _PROOF.size:
            _, _, offset, _ = _PROOF.unpack(frame.body)
            if offset == frame.start:
                yield frame
        at = data.find(_PROOF_TAG, at + 1)


def _proven_behind(data: bytes, damage: int, store_id: str) -> int:
    """The durable length that proofs behind a corruption state, 0 without any."""
    return max((_proof(frame, store_id) or 0 for frame in proofs_behind(data, damage)), default=0)
