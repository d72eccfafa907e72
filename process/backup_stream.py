"""`GET /v1/backup`: both stores as they were at one moment, while the server goes on (protocol §7).

One step of the event loop takes the view of the rows and the image of the transactions, so that
no transaction ends and no batch is answered in between. Otherwise a restored backup would hold half
of a transaction that committed in between (rows taken first), or rows of a transaction that its
transaction files do not know (transactions taken first).
"""

import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

from kernel.event_loop import InThread
from kernel.log_events import event
from kernel.requests_and_replies import Request, best_type, read_query
from messaging.log.state_in_memory import RowView
from messaging.service import MessagingService
from process.backup_format import FIRST_KEY, KEYS_STOP, next_rows_part, transaction_parts
from process.health import REPAIR
from process.streamed_replies import ReplyStream, StreamRoute
from tuff.protocol import operations
from tuff.protocol.errors import (
    OverloadedError,
    ShuttingDownError,
    TuffError,
)
from tuff.protocol.operations import BACKUP_TYPES
from tuff_storage.disk.backup_archive import ArchiveError, pack_end, pack_failure, pack_head
from tx.file_headers import FileHeader
from tx.service import TransactionManager
from tx.snapshot_file import pack_snapshot
from tx.state import StateImage

log = logging.getLogger(__name__)

# Seconds a client may take for one part. LevelDB keeps what is overwritten for as long as a backup
# reads, so a backup whose client has stopped reading must end.
PART_S_MAX = 60.0

Snapshot = tuple[FileHeader, StateImage]  # of the transactions


class Backups:
    """Makes one backup at a time. Lives on the event loop."""

    def __init__(
        self,
        messaging: MessagingService,
        transactions: TransactionManager,
        *,
        has_transactions: bool,
        now_ms: Callable[[], int],
        in_thread: InThread,
    ) -> None:
        self._messaging = messaging
        self._transactions = transactions
        self._has_transactions = has_transactions
        self._now_ms = now_ms
        self._in_thread = in_thread
        self._is_busy = False
        self._is_stopping = False
        self.damage: str | None = None  # for which the newest backup was given up
        self.damaged_count = 0  # backups that were given up for damage, since the start

    def stop(self) -> None:
        """End the backup that is under way."""
        self._is_stopping = True

    async def send(self, stream: ReplyStream, content_type: str) -> None:
        """Send both stores as they are now.

        Raises:
            OverloadedError: another backup is under way.
            StorageUnavailableError, TransactionsUnavailableError: one of the stores is down.
            ConnectionError: the client has disconnected, or has stopped reading.
        """
        if self._is_busy:
            raise OverloadedError("another backup is under way; try again when it is done")
        with self._messaging.store.view(FIRST_KEY, KEYS_STOP) as rows:
            snapshot = self._snapshot()
            self._is_busy = True
            try:
                if snapshot is not None:
                    # No crash can undo an edit in the backup.
                    await self._transactions.durable.synced(snapshot[1].lsn)
                await self._send_in_time(stream, content_type, rows, snapshot)
            finally:
                self._is_busy = False

    def _snapshot(self) -> Snapshot | None:
        # Messages that belong to transaction files are no backup without these files.
        facts = self._messaging.recorded_metadata()
        if not self._has_transactions and (facts is None or not facts.highest_pointer):
            return None
        durable = self._transactions.durable
        image, store_id = durable.decided.image(), durable.store_id
        header = FileHeader(sequence=1, store_id=store_id, created_ms=self._now_ms(), lsn=image.lsn)
        return header, image

    async def _send_in_time(
        self, stream: ReplyStream, content_type: str, rows: RowView, snapshot: Snapshot | None
    ) -> None:
        try:
            await stream.start(content_type, within_s=PART_S_MAX)
            try:
                async for part in self._parts(rows, snapshot):
                    await stream.write(part, within_s=PART_S_MAX)
                self.damage = None
            except (TuffError, ArchiveError) as error:
                # The status line is sent, so the last part says that the backup is incomplete.
                await stream.write(pack_failure(self._noted(error)), within_s=PART_S_MAX)
            await stream.end(within_s=PART_S_MAX)
        except TimeoutError:
            log.warning(
                "a backup was given up: its client read nothing for %s s",
                PART_S_MAX,
                extra=event("backup_failed"),
            )
            raise ConnectionResetError("the client does not read the backup") from None

    def _noted(self, error: TuffError | ArchiveError) -> str:
        """The sentence about an error that ends a backup, which is logged."""
        log.warning("a backup was given up: %s", error, extra=event("backup_failed"))
        if isinstance(error, TuffError):
            return str(error)
        self.damage = str(error)
        self.damaged_count += 1
        return f"{error}; {REPAIR}"

    async def _parts(self, rows: RowView, snapshot: Snapshot | None) -> AsyncIterator[bytes]:
        """The archive, piece by piece. Raises: TuffError, ArchiveError: the rest can't be had."""
        yield pack_head()
        count = 0
        if snapshot is not None:
            file = await self._in_thread(partial(pack_snapshot, *snapshot))
            for part in transaction_parts(file):
                yield part
                count += 1
        while (part_of_rows := await rows.read(next_rows_part)) is not None:
            if self._is_stopping:
                raise ShuttingDownError("the server is stopping; take the backup when it is back")
            yield part_of_rows
            count += 1
        yield pack_end(count)


def routes(backups: Backups) -> list[StreamRoute]:
    async def take(request: Request, stream: ReplyStream) -> None:
        read_query(request.query, parameters=())
        kind = best_type(request.accept, default=BACKUP_TYPES[0], offered=BACKUP_TYPES)
        await backups.send(stream, kind)

    return [StreamRoute(operations.TAKE_BACKUP, take)]
