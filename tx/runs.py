"""Runs: a transaction of its own in one call (protocol §5.2, `run`)."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from tuff.protocol.errors import EmptyPublishError, TuffError
from tuff.protocol.requests import PublishEntry
from tx import decisions
from tx.endings import CommitRequest, Endings
from tx.ledger import Ledger
from tx.records import OpenTransaction, Outcome

Start = Callable[[str], Awaitable[OpenTransaction]]


class Runs:
    """Runs under way, by request id. Lives on one event loop."""

    def __init__(self, ledger: Ledger, endings: Endings, *, start: Start) -> None:
        self._ledger = ledger
        self._endings = endings
        self._start = start
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def run(
        self, publish: Sequence[PublishEntry], *, client: str, request_id: str | None
    ) -> Outcome:
        """See `TransactionManager.run_once`."""
        if request_id is not None:
            decisions.check_request_id(request_id)
        if not publish:
            raise EmptyPublishError("a run publishes something; name at least one entry")
        return await self._endings.bounded(self._run_for(publish, client, request_id))

    async def _run_for(
        self, publish: Sequence[PublishEntry], client: str, request_id: str | None
    ) -> Outcome:
        if request_id is None:
            return await self._run(publish, client, None)
        self._ledger.require_running()
        while True:
            outcome = self._ledger.decided.outcomes.of_request(request_id)
            if outcome is not None:
                await self._ledger.durable(outcome.lsn)
                return outcome
            other = self._under_way.get(request_id)
            if other is None:
                break
            # When that one commits its answer is ours too, and else the id is free again.
            await asyncio.shield(other)
        self._under_way[request_id] = asyncio.get_running_loop().create_future()
        try:
            return await self._run(publish, client, request_id)
        finally:
            self._under_way.pop(request_id).set_result(None)

    async def _run(
        self, publish: Sequence[PublishEntry], client: str, request_id: str | None
    ) -> Outcome:
        opened = await self._start(client)
        request = CommitRequest(publish=publish, request_id=request_id)
        try:
            return await self._endings.commit_unbounded(opened.transaction_id, request)
        except TuffError:
            # While the service is down, recovery ends it; the first error tells the client more.
            with contextlib.suppress(TuffError):
                await self._endings.abort_unbounded(opened.transaction_id)
            raise
