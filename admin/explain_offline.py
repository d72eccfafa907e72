"""`tuff explain --data DIR`: explains what a reader would receive, from the files of a stopped
server.

The server's own explainer reads a store and a state of transactions that were recovered from the
files, as a start would, and written nowhere.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import NoReturn, TypeVar

from admin.data_directory import DataDirectory
from admin.transaction_files import TransactionFiles
from kernel.requests_and_replies import Caller
from messaging.engines.leveldb import LevelDbStore
from messaging.log.delayed_due_times import NOTHING_DUE
from messaging.log.loading import load
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.read.explanation_facts import Explainer
from messaging.read.lost_messages import LostMessages
from messaging.read.poll import Poll
from messaging.settings import MessagingSettings
from messaging.transactions_interface import WritePermit
from tuff.protocol.errors import TransactionsUnavailableError
from tuff.protocol.ids import TopicId
from tuff.protocol.pointer_list import VisibilityState
from tuff.protocol.transaction import Transaction, TransactionStatus
from tx.mixed_backups import RecordedFiles
from tx.outcomes import OpenTransaction, ended_error, status_of
from tx.state import TransactionState

T = TypeVar("T")


def explained(
    data: DataDirectory, topic: TopicId, id: str, reader: Poll, *, now_ms: int
) -> Mapping[str, object]:
    """The explanation of one message, as the server would answer it. Blocks.

    Raises:
        StoreError: the message store can't be opened.
        TuffError: the id is not valid, or transactions can't be recovered and the reader needs
            them.
    """

    async def run() -> Mapping[str, object]:
        opening = OpenStore(
            lambda: LevelDbStore(data.messages),
            in_thread_write=_at_once,
            in_thread_read=_at_once,
        )
        state = StoreState(
            now_ms=lambda: now_ms,
            may_delete=bool,
            due=lambda: NOTHING_DUE,
            settings=MessagingSettings(),
            longest_transaction_s=0.0,
        )
        state.load(await opening.open(load))
        with closing(opening.require_up()):
            state.transactions = _Recovered(_recovered(data, state))
            explainer = Explainer(opening, state, LostMessages(opening, state))
            return await explainer.explain(topic, id, reader, may_read=lambda _: True)

    return asyncio.run(run())


async def _at_once(work: Callable[[], T]) -> T:
    return work()


def _recovered(data: DataDirectory, state: StoreState) -> TransactionState | str:
    """The state of the transactions, or why it can't be recovered."""
    metadata = state.durable_metadata
    recorded = None
    if metadata is not None and metadata.store_id is not None:
        recorded = RecordedFiles(metadata.store_id, metadata.highest_pointer, state.seen_lsn)
    report = TransactionFiles(data.snapshots).check(recorded)
    if report.state is None:
        reasons = [each.reason for each in report.findings]
        return reasons[0] if reasons else "there are no transaction files"
    report.state.advance_view(report.state.lsn)
    return report.state


class _Recovered:
    """The transactions of a stopped server, for readers."""

    def __init__(self, state: TransactionState | str) -> None:
        self._maybe_state = state

    @property
    def _state(self) -> TransactionState:
        if isinstance(self._maybe_state, str):
            raise TransactionsUnavailableError(
                f"the transaction files can't be used: {self._maybe_state}"
            )
        return self._maybe_state

    async def snapshot(self) -> Transaction:
        return self._state.view.reader()

    async def snapshot_of(self, pointer: int) -> Transaction:
        found = self._state.find(pointer)
        if isinstance(found, OpenTransaction):
            return found.transaction
        raise ended_error(found)

    async def status(self, pointer: int, /) -> TransactionStatus | None:
        found = self._state.maybe_find(pointer)
        return None if found is None else status_of(found)

    def open_transaction_id(self, pointer: int) -> int | None:
        return pointer if pointer in self._state.view.in_progress else None

    def preparation(self, transaction_id: int) -> tuple[str, int] | None:
        opened = self._state.open.get(transaction_id)
        prepared = None if opened is None else opened.prepared
        return None if prepared is None else (prepared.database, prepared.at_ms)

    async def visibility_state(self) -> VisibilityState | None:
        return None

    async def enter(
        self, _pointer: int, _topic: TopicId, _caller: Caller | None = None, /
    ) -> WritePermit:
        self._refuse()

    async def enter_rollback(
        self, _pointer: int, _topic: TopicId, _caller: Caller | None = None, /
    ) -> WritePermit | None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TransactionsUnavailableError("nothing is written to the files of a stopped server")
