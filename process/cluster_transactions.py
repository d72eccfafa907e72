"""Transactions of a server in a cluster: the leader's transaction service for its messages, and as
the leader, the messages of all servers for its transaction service (decision 0042)."""

import asyncio
from contextlib import suppress

from cluster.calls import Calls
from cluster.joined_cluster import Joined
from cluster.peers import Peers
from cluster.transaction_rows_client import TransactionRowsClient
from cluster.transaction_rows_service import TransactionRowsService
from cluster.transactions_client import TransactionsClient
from cluster.transactions_service import TransactionsService
from kernel.event_loop import InThread, Spawn
from kernel.requests_and_replies import Route
from messaging.log.loading import load_index
from messaging.service import MessagingService
from tx.service import TransactionManager

TICK_S = 2.0  # seconds between two reports of this server to the leader


class ClusterTransactions:
    """Lives on the event loop."""

    def __init__(
        self,
        joined: Joined,
        peers: Peers,
        messaging: MessagingService,
        *,
        in_thread: InThread,
        spawn: Spawn,
    ) -> None:
        self._joined = joined
        self._spawn = spawn
        self._calls = calls = Calls(peers)
        self._is_closed = asyncio.Event()
        self._prepared: int | None = None  # the epoch in which this server may open transactions
        self._preparing: int | None = None
        self._leading: TransactionsService | None = None

        self.of_leader = TransactionsClient(joined, calls, spawn=spawn)
        self._owned = TransactionRowsService(joined, self.of_leader, messaging.rows, spawn=spawn)
        self.rows = TransactionRowsClient(
            joined,
            calls,
            messaging.rows,
            self._owned,
            shared_index=lambda: messaging.store.read(load_index),
            in_thread=in_thread,
            spawn=spawn,
        )

    def serve(self, transactions: TransactionManager) -> list[Route]:
        """The routes at which the servers of the cluster ask this one."""
        self._leading = TransactionsService(transactions, self.rows, self._owned, spawn=self._spawn)
        self._calls.serve({**self._owned.handlers(), **self._leading.handlers()})
        return self._calls.routes()

    def begin(self) -> None:
        """Obey the leader that was found when this server had joined, and no earlier one."""
        found = self._joined().election.found
        self.of_leader.begin(0 if found is None else found.version)

    def may_open(self, epoch: int) -> bool:
        """Whether this server, which leads in this epoch, may open transactions. The first call
        begins to ask the other servers, which have to acknowledge the epoch before."""
        if self._preparing != epoch:
            self._preparing = epoch
            self._spawn(self._prepare(epoch))
        return self._prepared == epoch

    async def run(self) -> None:
        """Report to the leader, and as the leader accept new members, until `close`."""
        assert self._leading is not None, "it serves already"
        while not self._is_closed.is_set():
            await self._leading.tick()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_closed.wait(), TICK_S)

    def close(self) -> None:
        """End `run`."""
        self._is_closed.set()

    async def _prepare(self, epoch: int) -> None:
        await self.rows.prepare(epoch)
        self._prepared = epoch
