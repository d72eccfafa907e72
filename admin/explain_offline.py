"""`tuff explain --data DIR`: explains what a reader would receive, from the files of a stopped
server.

The server's own explainer reads a store and a state of transactions that were recovered from the
files, as a start would, and written nowhere.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TypeVar

from admin.data_directory import DataDirectory
from admin.transaction_files import TransactionFiles
from messaging.engines.leveldb import LevelDbStore
from messaging.log.delayed_due_times import NOTHING_DUE
from messaging.log.loading import load
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.read.explanation_facts import Explainer
from messaging.read.lost_messages import LostMessages
from messaging.read.poll import Poll
from messaging.settings import MessagingSettings
from tuff.protocol.errors import TransactionsUnavailableError
from tuff.protocol.ids import TopicId
from tx.claims_and_waits import UnderWay
from tx.durable_state import ServiceState, ServiceStatus
from tx.file_headers import KnownFile
from tx.mixed_backups import RecordedFiles
from tx.state import TransactionState
from tx.write_permits import WritePermits

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
            stopped = _Stopped(_recovered(data, state))
            state.transactions = WritePermits(stopped, UnderWay(lambda: None))
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


class _Stopped:
    """The state of a stopped server, or why it can't be recovered. Nothing is written under it."""

    newest_snapshot: KnownFile  # which only retention asks for
    status = ServiceStatus(ServiceState.STOPPED, "the server is stopped")

    def __init__(self, recovered: TransactionState | str) -> None:
        self._recovered = recovered

    @property
    def state(self) -> TransactionState:
        if isinstance(self._recovered, str):
            raise TransactionsUnavailableError(
                f"the transaction files can't be used: {self._recovered}"
            )
        return self._recovered

    def sync_soon(self, lsn: int) -> None:
        """All that was recovered is durable."""
