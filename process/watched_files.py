"""Files that the server reads again when they change, in a thread."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from kernel.event_loop import InThread
from kernel.log_events import event

log = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[int, int, int]  # of a file: it differs after each change


class WatchedFileError(Exception):
    """A file can't be read, or is not valid; the message is one sentence that names it."""


class WatchedFiles(Generic[T]):
    """The value that was read from some files. Lives on one event loop.

    Files that are not valid change nothing: `failure` says why, until they are valid again. They
    are read again each time: a change of the rights to read a file changes no stamp.
    """

    def __init__(self, files: Sequence[Path], read: Callable[[], T], *, name: str) -> None:
        """Reads the files, and blocks. `name` is for the log.

        Raises:
            WatchedFileError: they are not valid; as `read`.
        """
        self._files = files
        self._read = read
        self._name = name
        self._stamps = self._stamps_now()
        self.value = read()
        self.failure: str | None = None

    async def refresh(self, in_thread: InThread) -> bool:
        """Read the files again if one has changed; returns whether there is a new value."""
        stamps = await in_thread(self._stamps_now)
        if stamps == self._stamps and self.failure is None:
            return False
        self._stamps = stamps
        try:
            self.value = await in_thread(self._read)
        except WatchedFileError as error:
            self.failure = str(error)
            return False
        self.failure = None
        extra = event("file_read_again", file=self._name)
        log.info("read the %s again", self._name, extra=extra)
        return True

    def _stamps_now(self) -> list[Stamp | None]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> Stamp | None:
    """Identifies a version of the file; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
