"""The transaction service of the leader, for the other servers of the cluster: joins, snapshots and
reports (decision 0042, Transactions across owners)."""

import logging
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

from cluster.calls import CallHandler
from cluster.peers import PeerUnansweredError
from cluster.transaction_rows_client import OwningServer, TransactionRowsClient
from cluster.transaction_rows_service import TransactionRowsService
from kernel.event_loop import Spawn
from metadata.json_values import Fields
from metadata.store_interface import MetadataError
from tuff.protocol.errors import (
    TransactionNotInProgressError,
    TransactionsUnavailableError,
    TuffError,
)
from tuff.protocol.transaction import Transaction
from tx.service import TransactionManager
from tx.write_permits import Permit

log = logging.getLogger(__name__)


class TransactionsService:
    """Answers the servers of the cluster while this one leads, itself included. Lives on the event
    loop."""

    def __init__(
        self,
        manager: TransactionManager,
        rows: TransactionRowsClient,
        here: TransactionRowsService,
        *,
        spawn: Spawn,
    ) -> None:
        self._manager = manager
        self._permits = manager.write_permits
        self._rows = rows
        self._here = here
        self._spawn = spawn
        self._joins: dict[tuple[OwningServer, int], Permit] = {}
        self._to_close: dict[OwningServer, list[int]] = {}
        self._snapshot: Transaction | None = None
        self._snapshot_number = 0  # of the newest snapshot that differs from the one before

    def handlers(self) -> Mapping[str, CallHandler]:
        """The calls of the servers, by name."""
        return {
            "join": self._join,
            "snapshot": self._new_snapshot,
            "snapshot-of": self._snapshot_of,
            "visibility": self._visibility,
            "status": self._status,
            "report": self._report,
        }

    async def tick(self) -> None:
        """The periodic work, of a server that leads and of others: report the rows here to the
        leader; and as the leader, accept new members. Call it every few seconds."""
        if self._rows.epoch:
            try:
                await self._rows.acknowledge_new()
            except (MetadataError, TuffError, PeerUnansweredError) as error:
                log.warning("a new member has not acknowledged the leader yet: %s", error)
        try:
            await self._here.report()
        except TransactionsUnavailableError as error:
            log.info("the rows of transactions are reported later: %s", error.detail)

    async def _join(self, body: Fields) -> dict[str, object]:
        server, number = await self._server(body), body.integer("number")
        pointer, topic = body.integer("pointer"), body.topic("topic")
        permit = self._joins.get((server, number))
        if permit is None:
            recall = partial(self._recall, server, number)
            if body.flag("isRollback"):
                permit = self._permits.join_rollback(pointer, recall=recall)
            else:
                permit = self._permits.join(pointer, recall=recall)
        if permit is None:
            return {}
        # Nothing is waited for in between: the topic is known before the transaction can end.
        self._joins[server, number] = permit
        self._rows.note_topic(pointer, topic)
        principal = self._permits.principal_of(pointer)
        return {
            "transactionId": permit.transaction_id,
            **({} if principal is None else {"owner": principal}),
        }

    async def _new_snapshot(self, body: Fields) -> dict[str, object]:
        await self._server(body)
        snapshot = await self._permits.snapshot()
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._snapshot_number += 1
        if body.integer("known") == self._snapshot_number:
            return {}
        return {"number": self._snapshot_number, "snapshot": _shown(snapshot)}

    async def _snapshot_of(self, body: Fields) -> dict[str, object]:
        server, pointer = await self._server(body), body.integer("pointer")
        snapshot = await self._permits.snapshot_of(pointer)
        self._rows.note_reader(pointer, server)
        return {"snapshot": _shown(snapshot)}

    async def _visibility(self, body: Fields) -> dict[str, object]:
        await self._server(body)
        state = await self._permits.visibility_state()
        if state is None:
            return {}
        return {
            "readPointer": state.read_pointer,
            "writePointer": state.write_pointer,
            "inProgress": list(state.in_progress),
            "invalid": list(state.invalid),
            "source": state.source,
        }

    async def _status(self, body: Fields) -> dict[str, object]:
        await self._server(body)
        found = await self._permits.status(body.integer("pointer"))
        return {} if found is None else asdict(found)

    async def _report(self, body: Fields) -> dict[str, object]:
        server = await self._server(body)
        self._manager.durable.require_running()
        self._manager.rows_found(self._rows.note_report(body))
        ended = []
        for pointer in body.integers("reading"):
            if await self._has_ended(pointer):
                ended.append(pointer)
            else:
                self._rows.note_reader(pointer, server)
        return {"ended": ended}

    async def _has_ended(self, pointer: int) -> bool:
        try:
            await self._permits.snapshot_of(pointer)
        except TransactionNotInProgressError:
            return True
        except TransactionsUnavailableError:
            pass  # its end is on its way to the disk
        return False

    async def _server(self, body: Fields) -> OwningServer:
        """The server that asks. Raises: TransactionsUnavailableError: it obeys another leader."""
        # A server that has not begun to lead has the epoch 0, as has one that knows of no leader.
        if not self._rows.epoch or body.integer("epoch") != self._rows.epoch:
            raise TransactionsUnavailableError(
                f"this server leads transactions in epoch {self._rows.epoch}, and was asked as the "
                f"leader of epoch {body.integer('epoch')}; try again"
            )
        return await self._rows.server(body.text("server"), body.integer("incarnation"))

    def _recall(self, server: OwningServer, number: int) -> None:
        waiting = self._to_close.get(server)
        if waiting is not None:
            waiting.append(number)
            return
        self._to_close[server] = [number]
        self._spawn(self._close(server))

    async def _close(self, server: OwningServer) -> None:
        numbers = self._to_close.pop(server)
        await self._rows.close(server, joins=numbers)
        for number in numbers:
            self._joins.pop((server, number)).leave()


def _shown(snapshot: Transaction) -> str:
    return b64encode(snapshot.to_bytes()).decode("ascii")
