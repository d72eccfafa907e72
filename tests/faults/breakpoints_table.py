"""The breakpoints of a server: each step of a publish, a commit, an abort and a snapshot.

A breakpoint is the beginning or the end of one function of the server. They are in the order in
which an operation passes them.
"""

from dataclasses import dataclass
from enum import Enum

AT_DISK = {
    "messaging.log.state_in_memory:OpenStore.write",
    "messaging.write.write_queue:write_batch", "tx.wal:DiskFile.append",
    "tx.wal:create_log", "tx.durable_state:write_snapshot", "tuff_storage.disk.files:write_file",
    "tuff_storage.disk.files:sync_directory",
}  # fmt: skip


class Operation(Enum):
    """The client's request that passes a breakpoint."""

    PUBLISH = "publish"
    COMMIT = "commit with publish"
    ABORT = "abort"
    SNAPSHOT = "snapshot"


class Fault(Enum):
    """The injected fault."""

    KILL = "kill"
    EXCEPTION = "exception"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Point:
    """A breakpoint. `function` is a module and a name in it; `edit` limits it to one class of edit,
    if the function takes edits."""

    name: str
    operation: Operation
    function: str
    is_end: bool
    edit: str = ""

    @property
    def is_at_disk(self) -> bool:
        """Whether a disk could fail here, after which the server has to recover by itself."""
        return self.function in AT_DISK


def _around(
    before: str, after: str, operation: Operation, function: str, edit: str = ""
) -> tuple[Point, Point]:
    return (
        Point(before, operation, function, is_end=False, edit=edit),
        Point(after, operation, function, is_end=True, edit=edit),
    )


PUBLISH, COMMIT, ABORT, SNAPSHOT = Operation

_TAKEN = (
    Point("publish taken", PUBLISH, "messaging.write.publish:_PublishRoutes.publish", is_end=False),
    Point("publish answered", PUBLISH, "messaging.write.publish:_answer", is_end=True),
)
_HANDED = _around(
    "rows built", "batch known", PUBLISH, "messaging.log.state_in_memory:OpenStore.write"
)
_BATCH = _around(
    "batch handed over", "batch durable", PUBLISH, "messaging.write.write_queue:write_batch"
)
_MARK = _around(
    "mark not raised yet",
    "mark raised",
    PUBLISH,
    "messaging.write.write_queue:apply_durable",
)

_COMMIT = (
    Point("commit taken", COMMIT, "tx.state_machine:Machine._commit", is_end=False),
    Point("commit answered", COMMIT, "tx.state_machine:Machine._confirm", is_end=True),
)
_CHECK = _around(
    "commit begun", "entries checked", COMMIT, "messaging.write.publish:Publisher.check_now"
)
_CLAIM = _around(
    "nothing claimed yet", "claimed", COMMIT, "tx.claims_and_waits:UnderWay.begin_commit"
)
_HANDED_OVER = _around(
    "rows not handed over yet",
    "rows reported",
    COMMIT,
    "messaging.write.publish:Publisher.publish_final",
)
_ROWS = _around(
    "rows handed over", "rows durable", COMMIT, "messaging.write.write_queue:write_batch"
)
# The record goes to the log while the rows are written. In the 0.3 s before a fault the other one
# becomes durable.
_DOUBT = _around(
    "doubt decided", "doubt appended", COMMIT, "tx.durable_state:DurableState.record", "InDoubt"
)
_LOG = _around("doubt handed over", "doubt durable", COMMIT, "tx.wal:DiskFile.append")
_CONFIRMED = _around(
    "commit decided", "commit appended", COMMIT, "tx.durable_state:DurableState.record", "Confirmed"
)
_END = _around(
    "rows not ended yet",
    "rows ended",
    COMMIT,
    "messaging.write.transaction_rows:TransactionRows.end_committed",
)

_ENDED = _around(
    "abort decided", "abort appended", ABORT, "tx.durable_state:DurableState.record", "Invalidated"
)
_ROLLBACK = _around(
    "rows not rolled back yet",
    "rows rolled back",
    ABORT,
    "messaging.write.transaction_rows:TransactionRows.roll_back",
)
_ABORTED = _around(
    "abort not finished yet",
    "abort finished",
    ABORT,
    "tx.durable_state:DurableState.record",
    "Aborted",
)

_ROLL = _around("log not made yet", "log made", SNAPSHOT, "tx.wal:create_log")
_IMAGE = _around(
    "snapshot not made yet", "snapshot made", SNAPSHOT, "tx.durable_state:write_snapshot"
)
_FILE = _around(
    "file not written yet", "file written", SNAPSHOT, "tuff_storage.disk.files:write_file"
)
_NAME = _around("file renamed", "name durable", SNAPSHOT, "tuff_storage.disk.files:sync_directory")

POINTS = (
    _TAKEN[0], _HANDED[0], _BATCH[0], _BATCH[1], _HANDED[1], *_MARK, _TAKEN[1],
    _COMMIT[0], *_CHECK, *_CLAIM, _HANDED_OVER[0], *_DOUBT, *_LOG, *_ROWS, _HANDED_OVER[1],
    *_CONFIRMED, _COMMIT[1], *_END,
    *_ENDED, *_ROLLBACK, *_ABORTED,
    _ROLL[0], _FILE[0], *_NAME, _FILE[1], _ROLL[1], *_IMAGE,
)  # fmt: skip
BY_NAME = {point.name: point for point in POINTS}
