"""Leadership over transaction files in a directory that several servers share (decision 0042).

The log is fenced by reading after the sync: what was synced counts as durable once the leader has
found that it still leads. A new leader is elected first, and reads the files second. So it reads
everything whose check succeeded, and what it does not read was never acknowledged.

This needs of the directory that a process which opens a file, or lists the directory, gets what
other processes synced before.
"""

from typing import Protocol

from tx.file_headers import EPOCH_MAX
from tx.wal import AppendFile, OpenFile


class NotLeaderError(OSError):
    """Another server leads transactions, so nothing that this process still writes counts. Its
    text is the reason, in one sentence, and has no error number."""


class Leadership(Protocol):
    """The proof that this process was elected to lead transactions. Any thread may use it."""

    @property
    def epoch(self) -> int:
        """1 to EPOCH_MAX, above that of every earlier leader, and never given twice."""

    def require(self) -> None:
        """Return if this process leads at some moment between call and return, whichever server was
        elected last. Blocks, for a bounded time.

        Raises:
            NotLeaderError: another server was elected, or none leads.
            OSError: it can't be found out.
        """


class Tenure:
    """The leadership as the files use it: without one, the server has its directory alone, and
    every check succeeds. It ends once: after the first refusal no check succeeds any more.

    `ended` is the reason then, None before.
    """

    ended: str | None = None

    def __init__(self, leadership: Leadership | None) -> None:
        self._leadership = leadership
        self.is_shared = leadership is not None
        self.epoch = 0 if leadership is None else leadership.epoch
        if leadership is not None and not 1 <= self.epoch <= EPOCH_MAX:
            raise ValueError(f"an epoch is 1 to {EPOCH_MAX}, and not {self.epoch}")

    def require(self) -> None:
        """Raises: NotLeaderError: this process leads no more; OSError: that can't be found out."""
        if self._leadership is None:
            return
        if self.ended is not None:
            raise NotLeaderError(self.ended)
        try:
            self._leadership.require()
        except NotLeaderError as error:
            self.ended = str(error)
            raise

    def fenced(self, open_file: OpenFile) -> OpenFile:
        """A function that opens files whose content only counts if it is the leader's: it
        requires the leadership after the opening. A log is opened once it is made, before anything
        relies on it."""
        return (lambda path: FencedFile(open_file(path), self)) if self.is_shared else open_file


class FencedFile:
    """An AppendFile whose bytes are durable only if the process led after their sync."""

    def __init__(self, file: AppendFile, tenure: Tenure) -> None:
        """Raises: NotLeaderError, OSError: as `Tenure.require`; the file is closed."""
        self._file = file
        self._tenure = tenure
        try:
            tenure.require()
        except OSError:
            file.close()
            raise

    def append(self, data: bytes, *, sync: bool) -> None:
        self._file.append(data, sync=sync)
        # Behind the sync: a leader that was elected before it may have read the file before it.
        # Bytes without a sync need no check, since the next sync covers them.
        if sync:
            self._tenure.require()

    def close(self) -> None:
        self._file.close()
