"""How far a message store was written, recorded outside of it (decision 0063).

    messages-end := frame    beside the transaction files; its body is a JSON object: store_id,
                             batch_number, last (milliseconds, number)

A store whose last writes are cut off opens without an error, and nothing in it says that it once
was longer. The record is a lower bound: a store that ends before it has lost acknowledged writes.
"""

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from kernel.log_events import event
from messaging.engines.engine_interface import StoreError
from messaging.model.row_format import LastBatch
from tuff.protocol.ids import MessageId, Offset
from tuff_storage.disk.files import write_file
from tuff_storage.disk.records import Damage, pack_frame, read_frame

log = logging.getLogger(__name__)

FILE_NAME = "messages-end"


class MessagesLostError(StoreError):
    """The store ends before a batch that was acknowledged."""


class DamagedEndError(Exception):
    """The record can't be read; the message says why."""


def loss_name(store_id: str, batch_number: int) -> str:
    """What `server.accept_lost_messages` names: one loss of one store. After it is accepted the
    store continues behind that number, so no later loss has the same name."""
    return f"{store_id}:{batch_number}"


def loss_advice(name: str) -> str:
    """How an operator ends the state of a store that has lost messages."""
    return (
        "put the messages back, or restore a backup; if they are lost, start with "
        f"server.accept_lost_messages={name}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEnd:
    """The store, the number of its last durable batch, and the highest offset that it assigned."""

    store_id: str
    batch_number: int
    last: Offset

    @property
    def loss_name(self) -> str:
        """The name of the loss of a store that ends before this."""
        return loss_name(self.store_id, self.batch_number)

    def loss(self, found: LastBatch, store_id: str | None) -> str | None:
        """What a store has lost that ends with this batch, in a sentence; None if it ends here or
        later, or is another store. An empty store has no id."""
        if store_id not in (None, self.store_id) or found.batch_number >= self.batch_number:
            return None
        return (
            f"the message store ends with batch {found.batch_number}, and batch "
            f"{self.batch_number} was written, up to message {MessageId(*self.last).hex()}: "
            "acknowledged messages are missing"
        )

    def to_bytes(self) -> bytes:
        """The content of the file."""
        body = {"store_id": self.store_id, "batch_number": self.batch_number, "last": self.last}
        return pack_frame(json.dumps(body, separators=(",", ":")).encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> "StoreEnd":
        """Raises: DamagedEndError."""
        frame = read_frame(data, 0)
        if isinstance(frame, Damage):
            raise DamagedEndError(frame.reason)
        try:
            body = json.loads(frame.body)
        except (ValueError, RecursionError) as error:
            raise DamagedEndError(f"the record is not JSON: {error}") from None
        match body:
            case {"store_id": str(store_id), "batch_number": int(number), "last": [int(a), int(b)]}:
                return cls(store_id=store_id, batch_number=number, last=Offset(a, b))
            case _:
                raise DamagedEndError("the record has other members")


def read_end(snapshots: Path) -> StoreEnd | None:
    """The record beside transaction files; None without one. Raises: DamagedEndError, OSError."""
    path = snapshots / FILE_NAME
    return StoreEnd.from_bytes(path.read_bytes()) if path.is_file() else None


class StoreEndFile:
    """The record of one server. `accepted` is the name of the loss that an operator accepts, empty
    for none. Its calls block."""

    def __init__(self, snapshots: Path, *, accepted: str) -> None:
        self._snapshots = snapshots
        self._accepted = accepted

    def continued(self, found: LastBatch, store_id: str | None) -> LastBatch:
        """The batch behind which a store continues that ends with `found`: with accepted losses the
        recorded one, so that batch numbers and message ids rise further.

        Raises: MessagesLostError: the store has lost batches, and that is not accepted.
        """
        end = self._read()
        loss = None if end is None else end.loss(found, store_id)
        if end is None or loss is None:
            return found
        if self._accepted != end.loss_name:
            raise MessagesLostError(f"{loss}; {loss_advice(end.loss_name)}")
        log.warning("the loss is accepted: %s", loss, extra=event("loss_accepted", loss=loss))
        # Commits that the lost batches had seen are accepted as lost with them.
        return replace(
            found, batch_number=end.batch_number, last=max(found.last, end.last), seen_lsn=None
        )

    def write(self, end: StoreEnd) -> None:
        """Record it durably. A failure is logged: the record before it stays, and is still true."""
        try:
            write_file(self._snapshots / FILE_NAME, end.to_bytes())
        except OSError as error:
            extra = event("store_end_not_written")
            log.warning("how far messages were written is not recorded: %s", error, extra=extra)

    def _read(self) -> StoreEnd | None:
        try:
            return read_end(self._snapshots)
        except (DamagedEndError, OSError) as error:
            # Messages do not wait for a file that is only a proof.
            path = self._snapshots / FILE_NAME
            extra = event("damage_found", file=path)
            log.warning(
                "%s can't be read, so lost messages go unnoticed: %s", path, error, extra=extra
            )
            return None
