"""Whom the ledger tells what."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tx.edits import Edit
from tx.state import TransactionState
from tx.view import ViewChange


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEvents:
    """`opening` makes the edits with which a recovered state goes on: it is asked for the next one
    when the last was applied. `opened` and `failed` frame the time in which edits are taken;
    `status_changed` is told whenever the service is up, stopped or down for another reason.
    `durable` is told up to which edit the log is, and then `ended` of the endings among these, in
    log order, before anybody who waits is answered.
    """

    opening: Callable[[TransactionState], Iterator[Edit]]
    opened: Callable[[TransactionState], None]
    failed: Callable[[], None]
    status_changed: Callable[[], None]
    durable: Callable[[int], None]
    ended: Callable[[list[ViewChange]], None]
    observe: Callable[[str, float], None]
