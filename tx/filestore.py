"""The directory of the transaction room's files. Everything here blocks: it runs in a thread."""

from collections.abc import Sequence
from pathlib import Path

from tuff.disk.files import make_directory, sync_directory, write_again, write_file
from tx.edits import Edit
from tx.files import FileHeader, FileKind, KnownFile, free_path, list_files, stored_id
from tx.log import LogFile, OpenFile, create_log
from tx.recovery import Recovered, StoreMark, recover
from tx.snapshots import pack_snapshot
from tx.state import StateImage


class FileStore:
    """Makes files durably, each there whole or not at all. Every method may raise OSError."""

    def __init__(self, directory: Path, *, open_file: OpenFile) -> None:
        self._directory = directory
        self._open_file = open_file

    def recover(self, mark: StoreMark | None) -> Recovered | None:
        """What the files hold, durably; None for an empty beginning. Raises: DamagedFilesError."""
        make_directory(self._directory)
        # A name whose sync failed, or was cut off, can be read and be gone after a power cut. The
        # next log named it as the one before, and what was built on it was damaged then.
        sync_directory(self._directory)
        recovered = recover(self._directory, mark)
        if recovered is not None:
            _keep(recovered)
        return recovered

    def begin(self, header: FileHeader, image: StateImage) -> None:
        """Make the first snapshot, where there is no file yet."""
        make_directory(self._directory)
        if not list_files(self._directory):
            self.put_snapshot(header, image)

    def stored_id(self) -> str | None:
        """The store id of the files that are there, None where none can be read."""
        return stored_id(self._directory)

    def free_path(self, kind: FileKind, *, now_ms: int) -> Path:
        return free_path(self._directory, kind, now_ms=now_ms)

    def put_log(self, header: FileHeader, edits: Sequence[tuple[int, Edit]]) -> LogFile:
        path = self.free_path(FileKind.LOG, now_ms=header.created_ms)
        return create_log(path, header, edits, open_file=self._open_file)

    def put_snapshot(self, header: FileHeader, image: StateImage) -> tuple[KnownFile, int]:
        """The file, and its size in bytes."""
        path = self.free_path(FileKind.SNAPSHOT, now_ms=header.created_ms)
        data = pack_snapshot(header, image)
        write_file(path, data)
        return KnownFile(path, FileKind.SNAPSHOT, header), len(data)


def _keep(recovered: Recovered) -> None:
    # What no proof vouches for may be in the kernel's memory only, and the next files vouch for it.
    # After a sync that failed the kernel calls it written, so that another sync would do nothing:
    # a power cut between the next log and its snapshot left a log shorter than the next one said.
    for known in recovered.files:
        if known.header.sequence == recovered.log_sequence:
            start, stop = recovered.proven_length, recovered.log_length
            write_again(known.path, known.path.read_bytes()[start:stop], start=start)
