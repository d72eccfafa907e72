"""Backups of both stores as one set, made and restored: `tuff backup`, `tuff restore`.

A copy of a stopped server's data is made only of what is whole, is read again before it gets its
name, and is there whole or not at all; so is what is restored. The two stores are copied together,
since they only mean something together (design §6).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from process.backup_form import write_data
from process.checks import Data, check
from process.new_directory import new_directory
from tuff.disk.archive import ArchiveError, NewerArchiveError
from tuff.disk.files import make_directory, write_file
from tuff.disk.findings import NEWER
from tuff.disk.lock import LOCK_FILE
from tx.files import list_files


class NewerDataError(Exception):
    """A newer version wrote what should be copied; the sentence says so, and what to do."""


class DamagedDataError(Exception):
    """What should be copied is damaged; the sentence says how much, and what to do."""


@dataclass(frozen=True, slots=True)
class Copied:
    """How much was copied."""

    file_count: int
    size_bytes: int


def copy(data: Data, target: Path, *, now_ms: int) -> Copied:
    """Copy both stores to a new directory, and read the copy. Blocks.

    Raises:
        DamagedDataError: the data, or the copy, is damaged.
        NewerDataError: a newer version wrote some of it.
        NotNewError: the new directory holds something.
        OSError: something can't be read or written.
    """
    _require_whole(data, now_ms=now_ms)
    with new_directory(target) as part:
        count, size_bytes = 0, 0
        for source, place in _files(data):
            copied = part / place
            make_directory(copied.parent)
            content = source.read_bytes()
            write_file(copied, content)
            count, size_bytes = count + 1, size_bytes + len(content)
        _require_whole(Data.below(part, None), now_ms=now_ms)
    return Copied(count, size_bytes)


def unpack(archive: Path, target: Path, *, now_ms: int) -> int:
    """Make a new data directory of what a running server gave, and read it; how many rows. Blocks.

    Raises:
        DamagedDataError: the archive is not whole, or what is in it does not fit together.
        NewerDataError: a newer version made it.
        NotNewError: the new directory holds something.
        OSError, StoreError: something can't be read or written.
    """
    with new_directory(target) as part, archive.open("rb") as file:
        data = Data.below(part, None)
        try:
            row_count = write_data(file, data.messages, data.snapshots, now_ms=now_ms)
        except NewerArchiveError as error:
            raise NewerDataError(f"{archive} can't be restored here: {error}; {NEWER}") from None
        except ArchiveError as error:
            raise DamagedDataError(
                f"{archive} is no whole backup: {error}; restore another one"
            ) from None
        _require_whole(data, now_ms=now_ms)
    return row_count


def _files(data: Data) -> Iterator[tuple[Path, Path]]:
    for path in sorted(data.messages.iterdir()) if data.has_messages else ():
        if path.is_file() and path.name != LOCK_FILE:
            yield path, Path("messages") / path.name
    for path, _ in list_files(data.snapshots) if data.snapshots.is_dir() else ():
        yield path, Path("snapshots") / path.name


def _require_whole(data: Data, *, now_ms: int) -> None:
    _, findings = check(data, now_ms=now_ms)
    damages = [finding for finding in findings if finding.is_damage]
    for finding in damages:
        if finding.advice == NEWER:
            # As told by one place: with a newer version none of the others may be damage.
            raise NewerDataError(
                f"{data.messages.parent} can't be copied here: {finding.place}: {finding.reason}; "
                f"{NEWER}"
            )
    if damages:
        first = damages[0]
        raise DamagedDataError(
            f"{data.messages.parent} is damaged in {len(damages)} places, first {first.place} "
            f"({first.reason}); show them with `tuff fsck`, and copy what is whole with "
            "`tuff salvage`"
        )
