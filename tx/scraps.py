"""Every edit that can still be read in damaged logs, also behind the damage (promise 8).

A damaged length hides where the next frame starts. Each write begins with a proof, though, which
says where it stands itself; reading goes on at the next one that tells the truth.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tuff.disk.records import Damage, Frame, read_frame
from tx.edits import Edit, decode_edit
from tx.files import (
    HEAD_SIZE,
    DamagedFilesError,
    FileHeader,
    FileKind,
    NewerFilesError,
    list_files,
    newer,
    read_header,
)
from tx.logfile import proofs_behind
from tx.packing import MalformedError, NewerError
from tx.snapshots import read_snapshot
from tx.state import StateImage


@dataclass
class Scraps:
    """What the files of a directory still hold. `edits` are by LSN; `images` whole snapshots."""

    headers: list[FileHeader] = field(default_factory=list)
    images: list[StateImage] = field(default_factory=list)
    edits: dict[int, Edit] = field(default_factory=dict)

    @property
    def store_id(self) -> str | None:
        """What most of the files say; None where none can be read."""
        ids = [header.store_id for header in self.headers]
        return max(ids, key=ids.count, default=None)


@dataclass
class _Log:
    name: str
    header: FileHeader | None
    data: bytes
    edits: list[tuple[int, Edit]] = field(default_factory=list)


def gather(directory: Path) -> Scraps:
    """Read every transaction file as far as it can be. Changes nothing.

    Raises:
        NewerFilesError: a newer version wrote some of it; left out, it would be lost to that.
        OSError: a file can't be read.
    """
    scraps = Scraps()
    logs: list[_Log] = []
    for path, kind in list_files(directory) if directory.is_dir() else []:
        data = path.read_bytes()
        header = _header(path.name, kind, data)
        if header is not None:
            scraps.headers.append(header)
        if kind is FileKind.LOG:
            logs.append(_Log(path.name, header, data))
        elif header is not None:
            scraps.images += _images(path.name, data)
    for log in logs:
        log.edits = list(_edits(log.name, _vouched(log, scraps.headers)))
    for log in sorted((log for log in logs if log.edits), key=_first_lsn):
        # What an older log holds from here on was cut off when this one was made.
        for lsn in [lsn for lsn in scraps.edits if lsn >= _first_lsn(log)]:
            del scraps.edits[lsn]
        scraps.edits |= log.edits
    return scraps


def _first_lsn(log: _Log) -> int:
    return log.header.lsn if log.header is not None else log.edits[0][0]


def _header(name: str, kind: FileKind, data: bytes) -> FileHeader | None:
    try:
        return read_header(name, kind, data)[0]
    except NewerFilesError:
        raise
    except DamagedFilesError:
        return None


def _images(name: str, data: bytes) -> list[StateImage]:
    try:
        return [read_snapshot(name, data)[1]]
    except NewerFilesError:
        raise
    except DamagedFilesError:
        return []


def _vouched(log: _Log, headers: list[FileHeader]) -> bytes:
    for header in headers:
        if log.header is not None and header.previous_sequence == log.header.sequence:
            return log.data[: header.previous_length]
    return log.data


def _edits(name: str, data: bytes) -> Iterator[tuple[int, Edit]]:
    at = HEAD_SIZE
    while at < len(data):
        found = read_frame(data, at)
        if isinstance(found, Damage):
            at = _next_frame(data, at)
            continue
        at = found.stop
        try:
            yield decode_edit(found.body)
        except NewerError as error:
            raise newer(name, found.start, str(error)) from None
        except MalformedError:
            continue  # the header, or a proof


def _next_frame(data: bytes, damage: int) -> int:
    """The first frame behind a damaged one that can be told for one; the end if none can."""
    stop = damage + 8 + int.from_bytes(data[damage : damage + 4], "big")
    # The length may be right, and the body or the checksum wrong.
    if isinstance(read_frame(data, stop), Frame):
        return stop
    return next((proof.start for proof in proofs_behind(data, damage + 1)), len(data))
