"""The data directories of a server, and their locks (protocol §8)."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from errno import EACCES
from pathlib import Path

from tuff_storage.disk.files import make_directory
from tuff_storage.disk.locks import DirectoryLock


class DirectoryNameError(Exception):
    """A directory whose name can't be used; the sentence says why."""


def require_utf8(directory: Path) -> None:
    """LevelDB opens only names in UTF-8, and only these fit a reply. Raises: DirectoryNameError."""
    try:
        str(directory).encode("utf-8")
    except UnicodeEncodeError:
        raise DirectoryNameError(
            f"the name {str(directory)!a} is not UTF-8; give another directory"
        ) from None


@dataclass(frozen=True, slots=True)
class DataDirectories:
    """The directories of the message store and of the snapshot and log files, and the directories
    that are locked against a second server. A server with `--data` and one without may share only
    the snapshots."""

    messages: Path
    snapshots: Path
    locked: tuple[Path, ...]

    @classmethod
    def below(cls, data: Path | None) -> "DataDirectories":
        """`DIR/messages` and `DIR/snapshots`; without DIR `data/` and `snapshots/` here.

        Raises:
            DirectoryNameError: DIR has a name that can't be used.
        """
        if data is None:
            here, snapshots = Path("data"), Path("snapshots")
            return cls(here / "messages", snapshots, (here, snapshots))
        require_utf8(data)
        return cls(data / "messages", data / "snapshots", (data, data / "snapshots"))

    def sharing(self, snapshots: Path) -> "DataDirectories":
        """The directories, with the snapshots in a directory that the servers of a cluster share.
        So it is not locked. Raises: DirectoryNameError."""
        require_utf8(snapshots)
        locked = tuple(each for each in self.locked if each != self.snapshots)
        return DataDirectories(self.messages, snapshots, locked)

    def lock(self, locks: ExitStack) -> None:
        """Hold the directories until `locks` is closed.

        Raises:
            DirectoryLockedError: another process, or this one, has one of them.
            OSError: one can't be made, or can't be written to.
        """
        for directory in self.locked:
            make_directory(directory)
            locks.callback(DirectoryLock(directory).close)
            # The lock file may exist in a directory where no file can be created.
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(EACCES, os.strerror(EACCES), str(directory))
