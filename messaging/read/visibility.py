"""Visibility: the verdict of a reader's snapshot on a row (protocol §6). Pure."""

from enum import Enum
from typing import NamedTuple

from tuff.protocol.ids import Offset
from tuff.protocol.pointers import holds
from tuff.protocol.transaction import Transaction


class Verdict(Enum):
    """What a reader does with a row."""

    ACCEPT = "accept"
    SKIP = "skip"
    HOLD = "hold"


class HeldRow(NamedTuple):
    """A row that holds a reader back: whose it is, and by what it expires."""

    pointer: int
    offset: Offset
    ttl_s: int | None  # of its own


def verdict(tx_pointer: int | None, snapshot: Transaction | None) -> Verdict:
    """What a reader with this snapshot, or with none, does with a row of this pointer.

    The pointer is negative once the row was rolled back, and None for a row that was published
    without a transaction.
    """
    if tx_pointer is None or snapshot is None:
        return Verdict.ACCEPT
    if tx_pointer < 0 or holds(snapshot.invalids, tx_pointer):
        return Verdict.SKIP
    if snapshot.is_visible(tx_pointer):
        return Verdict.ACCEPT
    # What a transaction keeps from itself is decided: no ending would ever bring it to this reader.
    return Verdict.SKIP if snapshot.is_own(tx_pointer) else Verdict.HOLD
