"""Where the data lies, and which directories the process holds (protocol §8)."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from errno import EACCES
from pathlib import Path

from tuff.disk.files import make_directory
from tuff.disk.lock import DirectoryLock


class DirectoryNameError(Exception):
    """A directory whose name can't be used; the sentence says why."""


def require_utf8(directory: Path) -> None:
    """LevelDB opens no other name, and no reply could tell of it. Raises: DirectoryNameError."""
    try:
        str(directory).encode("utf-8")
    except UnicodeEncodeError:
        raise DirectoryNameError(
            f"the name {str(directory)!a} is not UTF-8; give another directory"
        ) from None


@dataclass(frozen=True, slots=True)
class Places:
    """The message store, the snapshot and log files, and what is locked against a second server:
    one that was started with `--data` and one without may differ in all but the snapshots."""

    messages: Path
    snapshots: Path
    locked: tuple[Path, ...]

    @classmethod
    def below(cls, data: Path | None) -> "Places":
        """`DIR/messages` and `DIR/snapshots`; without DIR `data/` and `snapshots/` here.

        Raises:
            DirectoryNameError: DIR has a name that can't be used.
        """
        if data is None:
            here, snapshots = Path("data"), Path("snapshots")
            return cls(here / "messages", snapshots, (here, snapshots))
        require_utf8(data)
        return cls(data / "messages", data / "snapshots", (data, data / "snapshots"))

    def lock(self, held: ExitStack) -> None:
        """Hold the directories until `held` is closed.

        Raises:
            DirectoryLockedError: another process, or this one, has one of them.
            OSError: one can't be made, or can't be written to.
        """
        for directory in self.locked:
            make_directory(directory)
            held.callback(DirectoryLock(directory).close)
            # A lock that is there already says nothing of files that are to be made.
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(EACCES, os.strerror(EACCES), str(directory))
