"""The directory of the transaction room's files. Everything here blocks: it runs in a thread."""

from collections.abc import Sequence
from pathlib import Path

from tuff.disk.files import make_directory, write_file
from tx.edits import Edit
from tx.files import FileHeader, FileKind, KnownFile, free_path
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
        """What the files hold; None for an empty beginning. Raises: DamagedFilesError."""
        make_directory(self._directory)
        return recover(self._directory, mark)

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
