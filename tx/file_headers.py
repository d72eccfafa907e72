"""The transaction files: their names, their headers, and which of them a directory holds.

    snapshot.<ms>, txlog.<ms>; of a leader of epoch e, snapshot.<ms>.<e>, txlog.<ms>.<e>
    file   := magic(8) version(2) frame*        big-endian; frames as in tuff_storage.disk.records
    header := the first frame, a MessagePack map: sequence, store_id, created_ms, lsn,
              previous_sequence, previous_length

The order of files is that of their sequence numbers, never that of their names: a clock may go
back. The numbers of a leader begin at its epoch x 2^32, so that no two leaders use one number, and
files of later leaders have higher ones; a server that has its directory alone is in epoch 0 (design
§4). Files of other names are left alone.
"""

import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tuff_storage.disk.records import Damage, pack_frame, read_frame
from tx.log_records import COUNT, TEXT, TIME_MS, MalformedError, NewerError, from_bytes, to_bytes

HEADER_BYTES_MAX = 4096  # bytes that are read of a file to get its header

EPOCH_BITS = 32  # of a sequence number are below the epoch: more files than any leader makes
EPOCH_MAX = (1 << 31) - 1  # so that sequence numbers stay below 2^63

_NAME = re.compile(r"(snapshot|txlog)\.([0-9]{1,15})(?:\.[1-9][0-9]{0,9})?")
_STORE_ID = re.compile(r"[0-9a-f]{32}")
_VERSION = struct.Struct(">H")
_MAGIC_SIZE = 8
HEAD_SIZE = _MAGIC_SIZE + _VERSION.size
assert HEAD_SIZE == 10


class FileKind(Enum):
    """The two kinds of file; the value is what their names start with."""

    SNAPSHOT = "snapshot"
    LOG = "txlog"


FORMAT_VERSION = 1  # of both kinds
PREPARED_VERSION = 2  # of a snapshot that holds prepared transactions
OWNERS_VERSION = 3  # of a snapshot that holds principals of transactions
REQUESTS_VERSION = 4  # of one with request ids of starts, or transactions of messages only
DOUBT_VERSION = 5  # of one with commits in doubt
_NEWEST_VERSION = {FileKind.SNAPSHOT: DOUBT_VERSION, FileKind.LOG: FORMAT_VERSION}
_MAGIC = {FileKind.SNAPSHOT: b"TUFFTXSN", FileKind.LOG: b"TUFFTXLG"}
assert all(len(magic) == _MAGIC_SIZE for magic in _MAGIC.values())


def kind_of(name: str, head: bytes) -> FileKind | None:
    """The kind of a transaction file, by its first bytes or else by its name; None for any other
    file. A damaged transaction file still has one of the two."""
    begins = (kind for kind, magic in _MAGIC.items() if head.startswith(magic))
    matched = _NAME.fullmatch(name)
    return next(begins, FileKind(matched[1]) if matched else None)


class DamagedFilesError(Exception):
    """Files are damaged, missing or of another store; the message names the file, the byte and the
    tool."""


class ContradictionError(DamagedFilesError):
    """Files are whole, but an edit contradicts the edits before it."""


class NewerFilesError(DamagedFilesError):
    """A file is whole, and holds something that only a newer version knows. It is left as it is."""


NEWER = "use the version of tuff that wrote it, or a later one"
REPAIR = (
    "read what is whole with `tuff salvage`, or restore the file, then start the transaction "
    "service again"
)


def damaged(name: str, offset: int, reason: str) -> DamagedFilesError:
    return DamagedFilesError(f"{name} is damaged at byte {offset}: {reason}; {REPAIR}")


def contradicting(
    name: str, offset: int, lsn: int, edit: object, reason: str
) -> ContradictionError:
    kind = type(edit).__name__
    return ContradictionError(
        f"{name} is damaged at byte {offset}: edit {lsn} ({kind}) contradicts the edits before it: "
        f"{reason}; {REPAIR}"
    )


def newer(name: str, offset: int, reason: str) -> NewerFilesError:
    return NewerFilesError(
        f"{name} can't be read by this version at byte {offset}: {reason}; {NEWER}"
    )


def unreadable(name: str, offset: int, error: MalformedError) -> DamagedFilesError:
    """The error of a whole frame whose content can't be decoded."""
    tell = newer if isinstance(error, NewerError) else damaged
    return tell(name, offset, str(error))


def without_advice(error: Exception) -> str:
    """The message without its advice, for callers that give their own."""
    return str(error).removesuffix(f"; {REPAIR}").removesuffix(f"; {NEWER}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """The header of a file.

    `lsn` is the last edit a snapshot holds, or the first one of a log. A log names the log before
    it, and how long that one was, durably, when this one was made; 0 and 0 for the first.
    """

    sequence: int
    store_id: str
    created_ms: int
    lsn: int
    previous_sequence: int = 0
    previous_length: int = 0

    @property
    def epoch(self) -> int:
        """The epoch of the leader that made the file."""
        return epoch_of(self.sequence)


_HEADER_MEMBERS = frozenset(field.name for field in fields(FileHeader))


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file whose header could be read."""

    path: Path
    kind: FileKind
    header: FileHeader


def pack_header(kind: FileKind, header: FileHeader, *, version: int = FORMAT_VERSION) -> bytes:
    """The first bytes of a file."""
    return _MAGIC[kind] + _VERSION.pack(version) + pack_frame(to_bytes(asdict(header)))


def read_header(name: str, kind: FileKind, data: bytes) -> tuple[FileHeader, int]:
    """The header, and the offset behind it.

    Raises:
        DamagedFilesError: it can't be read.
        NewerFilesError: it is of a format that a newer version writes.
    """
    if len(data) < HEAD_SIZE or data[:_MAGIC_SIZE] != _MAGIC[kind]:
        raise damaged(name, 0, f"it does not start as a {kind.value} file")
    version, newest = format_of(data), _NEWEST_VERSION[kind]
    if not FORMAT_VERSION <= version <= newest:
        tell = newer if version > newest else damaged
        reason = f"it has format {version}, and this server reads {newest}"
        raise tell(name, _MAGIC_SIZE, reason)
    frame = read_frame(data, HEAD_SIZE)
    if isinstance(frame, Damage):
        raise damaged(name, frame.offset, frame.reason)
    try:
        return _unpack_header(from_bytes(frame.body)), frame.stop
    except MalformedError as error:
        raise unreadable(name, HEAD_SIZE, error) from None


def format_of(data: bytes) -> int:
    """The format of a file whose header could be read. No checksum protects it."""
    (version,) = _VERSION.unpack_from(data, _MAGIC_SIZE)
    return int(version)


def _unpack_header(data: object) -> FileHeader:
    if not isinstance(data, dict) or data.keys() != _HEADER_MEMBERS:
        raise MalformedError("the header has other members than a header has")
    store_id = TEXT.unpack(data["store_id"])
    if _STORE_ID.fullmatch(store_id) is None:
        raise MalformedError(f"{store_id!r} is no id of a store")
    return FileHeader(
        sequence=COUNT.unpack(data["sequence"]),
        store_id=store_id,
        created_ms=TIME_MS.unpack(data["created_ms"]),
        lsn=COUNT.unpack(data["lsn"]),
        previous_sequence=COUNT.unpack(data["previous_sequence"]),
        previous_length=COUNT.unpack(data["previous_length"]),
    )


def list_files(directory: Path) -> list[tuple[Path, FileKind]]:
    """Every file with the name of a transaction file, ordered by name; none if there is no such
    directory. Raises: OSError."""
    found = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        matched = _NAME.fullmatch(path.name)
        if matched is not None and path.is_file():
            found.append((path, FileKind(matched[1])))
    return found


class FileInfo(NamedTuple):
    """A transaction file in a directory; `damage` is why its header can't be read."""

    path: Path
    kind: FileKind
    size_bytes: int
    header: FileHeader | None
    damage: DamagedFilesError | None

    @property
    def sequence(self) -> int:
        """The sequence number; that of a file that can't be read is below all others."""
        return -1 if self.header is None else self.header.sequence


def file_infos(directory: Path) -> list[FileInfo]:
    """The files of a directory, ordered by name. Raises: OSError."""
    found = []
    for path, kind in list_files(directory):
        with suppress(FileNotFoundError):  # a newer snapshot has made it superfluous
            size_bytes = path.stat().st_size
            try:
                header, damage = known_file(path, kind).header, None
            except DamagedFilesError as error:
                header, damage = None, error
            found.append(FileInfo(path, kind, size_bytes, header, damage))
    return found


def has_files(directory: Path) -> bool:
    """Whether there are transaction files, whatever is in them. Raises: OSError."""
    return bool(list_files(directory))


def stored_id(directory: Path) -> str | None:
    """The store id that the files of a directory name, None where none can be read. Raises:
    OSError."""
    for path, kind in list_files(directory):
        with suppress(DamagedFilesError):
            return known_file(path, kind).header.store_id
    return None


def known_file(path: Path, kind: FileKind) -> KnownFile:
    """Raises: DamagedFilesError: the header can't be read."""
    with path.open("rb") as file:
        header, _ = read_header(path.name, kind, file.read(HEADER_BYTES_MAX))
    return KnownFile(path, kind, header)


def epoch_of(sequence: int) -> int:
    """The epoch to which a sequence number belongs."""
    return sequence >> EPOCH_BITS


def first_sequence(epoch: int) -> int:
    """The lowest sequence number of an epoch."""
    return max(1, epoch << EPOCH_BITS)


def free_path(directory: Path, kind: FileKind, *, now_ms: int, epoch: int) -> Path:
    """A path of that kind that is not taken: of this millisecond, or of the next free one.

    The epoch is in the name because two leaders may look for a free one at the same time, and the
    file of the second would replace that of the first.
    """
    suffix = f".{epoch}" if epoch else ""
    while (path := directory / f"{kind.value}.{now_ms}{suffix}").exists():
        now_ms += 1
    return path


def leftovers(files: Iterable[KnownFile]) -> list[KnownFile]:
    """The files that a replaced leader made too late: a new leader did not find them when it read
    the directory, and nothing in them was acknowledged.

    The first log of an epoch names the log before it. Whatever earlier epochs have behind that one
    is a leftover, except for its snapshot. Within an epoch one process makes the files, and there
    are no leftovers.
    """
    found = []
    # From the newest file on, since the log of a leader that was late itself says nothing.
    begins, previous = 0, 0
    for known in sorted(files, key=lambda known: known.header.sequence, reverse=True):
        header = known.header
        if previous < header.sequence < begins and not _is_snapshot_of(known, previous):
            found.append(known)
        elif known.kind is FileKind.LOG or header.sequence == first_sequence(header.epoch):
            # Where a leader finds no log, it begins with a snapshot, and names no log either.
            begins, previous = header.epoch << EPOCH_BITS, header.previous_sequence
    return found


def _is_snapshot_of(known: KnownFile, log_sequence: int) -> bool:
    # It holds the state at which that log begins, so it is right even if it was written when
    # another server led already. That number can be the next log's too: the first snapshot of all
    # is made before its log.
    return (
        log_sequence > 0
        and known.kind is FileKind.SNAPSHOT
        and known.header.sequence == log_sequence + 1
    )


def superfluous(files: Iterable[KnownFile], *, retain: int) -> list[KnownFile]:
    """The snapshots older than the newest `retain`, and the logs that those kept don't need."""
    by_age = sorted(files, key=lambda known: known.header.sequence)
    snapshots = [known for known in by_age if known.kind is FileKind.SNAPSHOT]
    logs = [known for known in by_age if known.kind is FileKind.LOG]
    old, kept = snapshots[:-retain], snapshots[-retain:]
    if not kept:
        return []
    needed_from = min(known.header.lsn for known in kept) + 1
    # A log reaches to where the next one starts; the newest is always needed.
    return old + [log for log, successor in pairwise(logs) if successor.header.lsn <= needed_from]
