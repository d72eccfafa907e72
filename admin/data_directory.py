"""The data directory that a tool reads, and the new directory that a tool writes.

A new directory is complete or does not exist. It is written beside its path, with the suffix
`.part`, and renamed at the end. A marker file in it says that a tool made it: the next command with
the same target removes the files of a killed tool.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from admin.findings import RefusedError, StoreMissingError
from process.directory_locks import require_utf8
from tuff_storage.disk.files import make_directory, remove_file, sync_directory
from tuff_storage.disk.locks import LOCK_FILE, DirectoryLock, kept_from_owners
from tuff_storage.leveldb.opening import holds_database
from tx.file_headers import has_files

PART_SUFFIX = ".part"  # of a directory that is still being written
MARKER = "tuff.unfinished"  # a file in it: a tool made the directory, and may empty it


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """The paths of a server's two stores."""

    messages: Path
    snapshots: Path

    @classmethod
    def of(cls, directory: Path, snapshots: Path | None = None) -> "DataDirectory":
        """The layout of a server that was started with `--data`; `snapshots` names another path."""
        return cls(directory / "messages", snapshots or directory / "snapshots")

    @classmethod
    def locate(cls, directory: Path, snapshots: Path | None) -> "DataDirectory":
        """Find the stores in the layout of `of`. A server that was started without `--data` keeps
        its snapshots in `snapshots/` beside the data directory, and they are looked for there
        too."""
        beside = directory.absolute().parent / "snapshots"
        is_data = (directory / "messages").is_dir() and not (directory / "snapshots").exists()
        if snapshots is None and is_data and has_files(beside):
            return cls.of(directory, beside)
        return cls.of(directory, snapshots)

    @property
    def path(self) -> Path:
        """The data directory itself."""
        return self.messages.parent

    @property
    def has_snapshots_elsewhere(self) -> bool:
        """Whether the snapshots are outside of the data directory."""
        return self.snapshots.parent != self.path

    @property
    def has_messages(self) -> bool:
        return holds_database(self.messages)

    def require_stores(self, *, with_messages: bool) -> None:
        """Check that this is a data directory; `with_messages`: that it has a message store.

        Raises:
            RefusedError: it is not.
            StoreMissingError: one of its stores is missing.
        """
        if holds_database(self.path):
            raise RefusedError(
                f"{self.path} is a message store; name the data directory that contains it"
            )
        if has_files(self.path):
            raise RefusedError(
                f"{self.path} contains transaction files; name the data directory they belong to"
            )
        if not self.has_messages and not has_files(self.snapshots):
            raise StoreMissingError(
                f"{self.path} contains no data: neither messages/ nor snapshot files",
                option="snapshots",
                advice="if they are in another directory, name it with --snapshots",
            )
        if with_messages and not self.has_messages:
            raise StoreMissingError(
                f"there is no message store in {self.messages}; if a volume belongs there, mount "
                "it",
                option="without_messages",
                advice="if the messages are in HBase, were in memory, or are lost, add "
                "--without-messages",
            )

    def lock_out_servers(self, locks: ExitStack) -> None:
        """Keep servers from opening it until `locks` is closed. Raises: DirectoryLockedError."""
        for directory in (self.path, self.messages, self.snapshots):
            locks.enter_context(kept_from_owners(directory))


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yields the path at which to write the content; `target` appears when the block ends.

    Raises:
        RefusedError: the target holds something already, or nothing can be renamed to it.
        DirectoryNameError: its name can't be used.
        DirectoryLockedError: another process is writing it.
    """
    target = Path(os.path.realpath(target))
    require_utf8(target)
    _require_new(target)
    part = target.with_name(target.name + PART_SUFFIX)
    _require_ours(part)
    make_directory(part)
    lock = DirectoryLock(part)
    try:
        _clear(part)
        yield part
        _rename(part, target)
    except BaseException:
        shutil.rmtree(part)
        raise
    finally:
        lock.close()
    sync_directory(target.parent)


def _require_new(target: Path) -> None:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise RefusedError(f"{target} is not empty; name a new directory")
    if target.is_mount():
        raise RefusedError(
            f"{target} is a mount point, and no directory can be renamed to it; name a new "
            "directory in it"
        )
    if target == Path.cwd():
        raise RefusedError(f"{target} is the current directory; name a new directory")


def _require_ours(part: Path) -> None:
    if not os.path.lexists(part):
        return
    is_directory = part.is_dir() and not part.is_symlink()
    names = {path.name for path in part.iterdir()} - {LOCK_FILE} if is_directory else {part.name}
    if names and MARKER not in names:
        raise RefusedError(
            f"{part} is not empty, and the new directory is written there before it is renamed; "
            "remove it, or name another directory"
        )


def _clear(part: Path) -> None:
    for path in part.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in (LOCK_FILE, MARKER):
            path.unlink()
    (part / MARKER).touch()


def _rename(part: Path, target: Path) -> None:
    # LevelDB does not sync the directory entries of its files; before the rename they must be
    # durable, or a power cut leaves a directory that lacks some.
    for directory, _, _ in os.walk(part):
        sync_directory(Path(directory))
    remove_file(part / MARKER)
    part.replace(target)
