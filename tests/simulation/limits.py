"""Limits of the rooms that a simulation makes smaller, so that its short histories come to them.

What lies behind a limit of ten thousand rows is never met by a history of a few dozen; and the rows
that a sweep, a batch or a scan leaves for later are where crashes hurt.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest.mock import patch

import messaging.endings
import messaging.index
import messaging.live
import messaging.reader
import messaging.runs
import messaging.sweep
import messaging.tail
import messaging.writer
import tx.blocks
import tx.log
import tx.outcomes
import tx.upkeep
import tx.view

Limits = tuple[tuple[ModuleType, str, int], ...]

# In a time that stands still every rate of starts is a high one.
ALWAYS: Limits = (
    (tx.blocks, "BLOCK_COUNT_MIN", 2),
    (tx.blocks, "BLOCK_COUNT_MAX", 16),
)
# Of half of the seeds. None is part of a promise: what a client is told must not hang on them.
SMALL: Limits = (
    (tx.outcomes, "NEWEST_COUNT_MAX", 2),
    (tx.outcomes, "LOOKED_AT_COUNT_MAX", 2),
    (tx.log, "BATCH_COUNT_MAX", 3),
    (tx.upkeep, "LOGGED_COUNT_MAX", 10),
    (tx.view, "ONE_BY_ONE_COUNT_MAX", 1),
    (messaging.writer, "BATCH_COUNT_MAX", 3),
    (messaging.endings, "MARK_ROWS_MAX", 2),
    (messaging.live, "SETTLED_PER_BATCH_MAX", 2),
    (messaging.index, "ENDED_COUNT_MAX", 2),
    (messaging.runs, "RUN_COUNT_MAX", 2),
    (messaging.reader, "SCAN_ROWS_MAX", 3),
    (messaging.sweep, "CHUNK_ROWS_MAX", 3),
    (messaging.sweep, "PATROL_ROWS_MAX", 6),
    (messaging.tail, "DECIDED_COUNT_MAX", 2),
    (messaging.tail, "FRESH_ODD_COUNT_MAX", 4),
    (messaging.tail, "CHANGED_COUNT_MAX", 5),
)


@contextmanager
def limited(*, small: bool) -> Iterator[None]:
    """The rooms go by these limits; this process only."""
    with ExitStack() as stack:
        for module, name, value in (*ALWAYS, *SMALL) if small else ALWAYS:
            stack.enter_context(patch.object(module, name, value))
        yield
