"""Limits of the components that a simulation makes smaller, so that short histories reach them.

A history of a few dozen operations never reaches a limit of ten thousand rows. The rows that a
sweep, a batch or a scan leaves for later are those that a crash can lose.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest.mock import patch

import messaging.log.rows_by_transaction
import messaging.log.scan
import messaging.log.tail_cache
import messaging.model.packed_rows
import messaging.retention.cleaner
import messaging.write.transaction_rows
import messaging.write.write_batch
import messaging.write.write_queue
import tx.outcomes
import tx.pointer_reservation
import tx.service
import tx.state
import tx.wal

Limits = tuple[tuple[ModuleType, str, int], ...]

# Blocks grow with the rate of starts, and time advances only between operations.
ALWAYS: Limits = (
    (tx.pointer_reservation, "BLOCK_COUNT_MIN", 2),
    (tx.pointer_reservation, "BLOCK_COUNT_MAX", 16),
)
# For half of the seeds. None is part of a promise: no reply may depend on them.
SMALL: Limits = (
    (tx.outcomes, "NEWEST_COUNT_MAX", 2),
    (tx.outcomes, "LOOKED_AT_COUNT_MAX", 2),
    (tx.wal, "BATCH_COUNT_MAX", 3),
    (tx.service, "LOGGED_COUNT_MAX", 10),
    (tx.state, "ONE_BY_ONE_COUNT_MAX", 1),
    (messaging.write.write_queue, "BATCH_COUNT_MAX", 3),
    (messaging.write.transaction_rows, "ROLLBACK_RANGES_MAX", 2),
    (messaging.write.write_batch, "ROLLBACK_ROWS_MAX", 2),
    (messaging.write.write_queue, "ENDED_PER_BATCH_MAX", 2),
    (messaging.log.rows_by_transaction, "ENDED_COUNT_MAX", 2),
    (messaging.model.packed_rows, "PACKED_COUNT_MAX", 2),
    (messaging.log.scan, "SCAN_ROWS_MAX", 3),
    (messaging.retention.cleaner, "CHUNK_ROWS_MAX", 3),
    (messaging.retention.cleaner, "PATROL_ROWS_MAX", 6),
    (messaging.log.tail_cache, "DECIDED_COUNT_MAX", 2),
    (messaging.log.tail_cache, "FRESH_FLAGGED_COUNT_MAX", 4),
    (messaging.log.tail_cache, "CHANGED_COUNT_MAX", 5),
)


@contextmanager
def limited(*, small: bool) -> Iterator[None]:
    """Use these limits, in this process only."""
    with ExitStack() as stack:
        for module, name, value in (*ALWAYS, *SMALL) if small else ALWAYS:
            stack.enter_context(patch.object(module, name, value))
        yield
