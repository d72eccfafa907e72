"""Writes of the message store that fail in a row: what health says, and when one is tried again.

A single failed write may be a passing fault of the disk. LevelDB that meets a corrupt block in a
compaction fails each write from then on, also after it was opened again, while reads go on.
"""

import logging
from collections.abc import Callable

from kernel.log_events import event
from messaging.engines.engine_interface import StoreDamagedError
from tuff.protocol.sentences import counted

log = logging.getLogger(__name__)

FAILED_COUNT = 2  # batches in a row that failed, from which on writes are said to fail
TRY_AGAIN_FIRST_S, TRY_AGAIN_S_MAX = 0.5, 5.0  # seconds from a failed write to the next try
# Seconds of successful writes after damage was met. LevelDB writes for a moment when it was opened
# again, until it begins that compaction again.
CALM_S = 60.0


class FailedWrites:
    """Counts batches that failed in a row. Lives on the event loop."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self.count = 0  # batches that failed in a row
        self._damage = False
        self._failed_at_s = 0.0
        self._try_at_s = 0.0
        # What is wrong and what to do, in a sentence; None unless writes fail in a row.
        self.reason: str | None = None

    @property
    def refusal(self) -> str | None:
        """Why a write is not even tried now; None if it is."""
        return None if self._elapsed_s() >= self._try_at_s else self.reason

    def failed(self, error: Exception) -> bool:
        """A batch failed; whether that is news to be logged."""
        now_s = self._elapsed_s()
        self.count += 1
        self._failed_at_s = now_s
        self._damage |= isinstance(error, StoreDamagedError)
        if not self._damage and self.count < FAILED_COUNT:
            return True
        was_known = self.reason is not None
        self.reason = _reason(error, self.count, is_damage=self._damage)
        wait_s = TRY_AGAIN_FIRST_S * 2 ** min(self.count - 1, 10)
        self._try_at_s = now_s + min(wait_s, TRY_AGAIN_S_MAX)
        return not was_known

    def succeeded(self) -> None:
        """A batch is durable after some that failed."""
        if self._damage and self._elapsed_s() - self._failed_at_s < CALM_S:
            return
        if self.reason is not None:
            log.warning(
                "the message store takes writes again, after %s",
                counted(self.count, "failed write"),
                extra=event("store_writes_again", failed=self.count),
            )
        self.count, self._damage, self._try_at_s, self.reason = 0, False, 0.0, None


def _reason(error: Exception, count: int, *, is_damage: bool) -> str:
    if is_damage:
        return (
            f"no message can be written, as a file is damaged: {error}; they can still be read. "
            "Stop the server; `tuff fsck` names the file; then restore a backup, or keep what is "
            "whole with `tuff salvage`"
        )
    return f"the last {count} writes failed: {error}; check the disk. Writes are tried again"
