"""Autocommit: start, publish and commit in one call (protocol §5.2, `run`)."""

import asyncio
import contextlib
from collections.abc import Sequence

from kernel.exchange import Caller
from tuff.protocol.errors import EmptyPublishError, TuffError
from tuff.protocol.requests import PublishEntry
from tx.calls import StartRequest
from tx.durable_state import DurableState
from tx.machine_runner import MachineRunner
from tx.outcomes import Outcome


class Autocommit:
    """Runs transactions in one call, each request id at most once. Lives on one event loop."""

    def __init__(self, durable: DurableState, runner: MachineRunner) -> None:
        self._durable = durable
        self._runner = runner
        self._under_way: dict[str, asyncio.Future[None]] = {}  # by request id

    async def run(
        self,
        publish: Sequence[PublishEntry],
        *,
        client: str,
        request_id: str | None,
        caller: Caller | None = None,
    ) -> Outcome:
        """Start, publish and commit. If a transaction with this request id has committed, its
        outcome is returned instead. A transaction that fails is aborted.

        Raises:
            EmptyPublishError: there is nothing to publish.
            As `MachineRunner.commit`.
        """
        self._durable.require_running()
        if not publish:
            raise EmptyPublishError("a run publishes something; name at least one entry")
        if request_id is None:
            return await self._durable.within_time(self._run(publish, client, None, caller))
        return await self._durable.within_time(self._run_once(publish, client, request_id, caller))

    async def _run_once(
        self, publish: Sequence[PublishEntry], client: str, request_id: str, caller: Caller | None
    ) -> Outcome:
        while True:
            outcome = self._durable.decided.outcomes.of_request(request_id)
            if outcome is not None:
                await self._durable.synced(outcome.lsn)
                return outcome
            other = self._under_way.get(request_id)
            if other is None:
                break
            # If the other call commits, this one returns its outcome. If not, the id is free again.
            await asyncio.shield(other)
        self._under_way[request_id] = asyncio.get_running_loop().create_future()
        try:
            return await self._run(publish, client, request_id, caller)
        finally:
            self._under_way.pop(request_id).set_result(None)

    async def _run(
        self,
        publish: Sequence[PublishEntry],
        client: str,
        request_id: str | None,
        caller: Caller | None,
    ) -> Outcome:
        opened = await self._runner.start(
            StartRequest(client=client, is_messages_only=True, caller=caller)
        )
        transaction_id = opened.transaction_id
        try:
            return await self._runner.commit(
                transaction_id,
                publish=publish,
                request_id=request_id,
                is_limited=False,
            )
        except TuffError:
            # While the service is down, recovery ends the transaction. The first error says more.
            with contextlib.suppress(TuffError):
                await self._runner.abort(transaction_id, is_limited=False)
            raise
