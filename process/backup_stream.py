"""`GET /v1/backup`: both stores as they were at one moment, while the server goes on (protocol §7).

One step of the event loop takes the view of the rows and the image of the transactions, so that
no transaction ends and no batch is answered in between. Otherwise a restored backup would hold half
of a transaction that committed in between (rows taken first), or rows of a transaction that its
transaction files do not know (transactions taken first).
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Moment:
    """Both stores at one moment; `snapshot` is that of the transactions, None if there are none."""

    rows: RowView
    snapshot: tuple[FileHeader, StateImage] | None


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

    @contextmanager
    def moment(self) -> Iterator[Moment]:
        """Both stores as they are now; held for as long as the block lasts.

        Raises:
            OverloadedError: another backup is under way.
            StorageUnavailableError, TransactionsUnavailableError: one of the stores is down.
        """
        if self._is_busy:
            raise OverloadedError("another backup is under way; try again when it is done")
        # Messages that belong to transaction files are no backup without these files.
        facts = self._messaging.recorded_metadata()
        is_alone = not self._has_transactions and (facts is None or not facts.highest_pointer)
        with self._messaging.store.view(FIRST_KEY, KEYS_STOP) as rows:
            moment = Moment(rows, None if is_alone else self._snapshot())
            self._is_busy = True
            try:
                yield moment
            finally:
                self._is_busy = False

    def _snapshot(self) -> tuple[FileHeader, StateImage]:
        durable = self._transactions.durable
        image, store_id = durable.decided.image(), durable.store_id
        header = FileHeader(sequence=1, store_id=store_id, created_ms=self._now_ms(), lsn=image.lsn)
        return header, image

    async def parts(self, moment: Moment) -> AsyncIterator[bytes]:
        """The archive, piece by piece. Raises: TuffError, ArchiveError: the rest can't be had."""
        yield pack_head()
        count = 0
        if moment.snapshot is not None:
            file = await self._in_thread(partial(pack_snapshot, *moment.snapshot))
            for part in transaction_parts(file):
                yield part
                count += 1
        rows: bytes | None
        while (rows := await moment.rows.read(next_rows_part)) is not None:
            if self._is_stopping:
                raise ShuttingDownError("the server is stopping; take the backup when it is back")
            yield rows
            count += 1
        yield pack_end(count)

    async def require_durable(self, moment: Moment) -> None:
        """Wait until no crash can undo an edit in the backup.

        Raises:
            TransactionsUnavailableError: it can't be made durable.
        """
        if moment.snapshot is not None:
            _, image = moment.snapshot
            await self._transactions.durable.synced(image.lsn)


def routes(backups: Backups) -> list[StreamRoute]:
    async def take(request: Request, stream: ReplyStream) -> None:
        read_query(request.query, parameters=())
        kind = best_type(request.accept, default=BACKUP_TYPES[0], offered=BACKUP_TYPES)
        with backups.moment() as moment:
            await backups.require_durable(moment)
            try:
                await stream.start(kind, within_s=PART_S_MAX)
                await _send(backups, moment, stream)
            except TimeoutError:
                log.warning(
                    "a backup was given up: its client read nothing for %s s",
                    PART_S_MAX,
                    extra=event("backup_failed"),
                )
                raise ConnectionResetError("the client does not read the backup") from None

    return [StreamRoute(operations.TAKE_BACKUP, take)]


async def _send(backups: Backups, moment: Moment, stream: ReplyStream) -> None:
    try:
        async for part in backups.parts(moment):
            await stream.write(part, within_s=PART_S_MAX)
        backups.damage = None
    except (TuffError, ArchiveError) as error:
        if isinstance(error, ArchiveError):
            backups.damage = str(error)
            backups.damaged_count += 1
        log.warning("a backup was given up: %s", error, extra=event("backup_failed"))
        # The status line is sent already, so the last part says that the backup is incomplete.
        advice = f"; {REPAIR}" if isinstance(error, ArchiveError) else ""
        await stream.write(pack_failure(f"{error}{advice}"), within_s=PART_S_MAX)
    await stream.end(within_s=PART_S_MAX)
