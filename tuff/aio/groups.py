"""Consumer groups: `client.consumer(…)` and `client.groups` (protocol §3.11).

`tuff.consumer_flows` has the flows of a consumer.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType

from tuff import calls, group_calls
from tuff.aio.context import AsyncTransactionContext
from tuff.aio.driver import AsyncDriver
from tuff.aio.heartbeats import AsyncHeartbeats
from tuff.aio.topics import AsyncSend
from tuff.batching import require_own_process
from tuff.calls import Duration
from tuff.client_errors import WrongStateError
from tuff.commit_protocol import Opened
from tuff.consumer_flows import ConsumerFlows
from tuff.consumer_plan import Batch
from tuff.consumer_run import ConsumerRun
from tuff.dead_letters import reason_of
from tuff.group_calls import GroupId
from tuff.participant import AsyncTransactionAware
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message
from tuff.replies import Group

# Inside the class, `list` is a method.
Names = list[str]


class AsyncConsumer:
    """`client.consumer(…)`: a member of a consumer group, which reads the partitions that the group
    assigns to it. Belongs to one task, except `stop`; heartbeats are sent beside it.

    Use it in an `async with` block, or close it. It joins with its first poll.
    """

    def __init__(self, flows: ConsumerFlows[AsyncTransactionContext], driver: AsyncDriver) -> None:
        if not driver.runs_coroutines:
            flows.refuse_coroutines()
        self._flows = flows
        self._driver = driver
        self._heartbeats = AsyncHeartbeats(driver)
        self._process_id = os.getpid()
        self._is_closed = False

    @property
    def assignment(self) -> list[TopicId]:
        """The partitions that this member has, as of the last poll, in order."""
        return self._flows.assignment

    async def poll(self, wait: Duration = 30.0) -> Batch | None:
        """The next messages, of one partition; None if none came within `wait` seconds.

        Rebalances happen in here, with their callbacks. So poll again within the server's
        `groups.rebalance_timeout` (300 seconds). With `at_least_once` it first commits the batch
        that it returned before. With `exactly_once` it returns the same messages again unless
        their `transaction` has committed. It waits while the server can't be reached.

        Raises:
            TooManyMembersError: the group has as many members as it can have.
            TooManyGroupsError: the group is new, and its namespace has as many as it can have.
            DamagedRecordError: the next message of a partition fails its checksum.
            WrongStateError: the consumer is closed or was made before a fork, or the transaction
                of a batch has not ended.
        """
        await self._require_open()
        return await self._driver.run(self._flows.poll(calls.seconds_of(wait, what="wait")))

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Batch after batch; it never ends. With `at_least_once` a batch is committed when the
        next one is asked for."""
        while True:
            batch = await self.poll()
            if batch is not None:
                yield batch

    async def commit(self) -> None:
        """With `at_least_once`: commit what `poll` has returned so far.

        Raises:
            GroupError: the member was fenced, or has lost a partition: its next owner repeats what
                was not committed. The next poll continues with what this member has.
            WrongStateError: the mode is another one.
        """
        await self._require_open()
        await self._driver.run(self._flows.commit())

    async def nack(
        self,
        message: Message,
        error: BaseException | str = "",
        *,
        delay: Duration | None = None,
    ) -> None:
        """Give a message of the newest batch back: it could not be processed. It is tried again
        after `delay` seconds (default: as the `retry` policy says), or becomes a dead letter after
        the last attempt, in the transaction that commits the offset of its batch. The rest of the
        batch counts as processed. `error` becomes the reason in the dead letter.

        Raises:
            WrongStateError: the consumer has no `retry` policy, or one with `in_order`; or the
                message is not of the batch that was polled last; or with `exactly_once` there is
                no transaction of it.
        """
        delay_s = calls.maybe_seconds_of(delay, what="delay")
        reason = reason_of(error) if isinstance(error, BaseException) else error
        await self._driver.run(self._flows.nack(message, reason=reason, delay_s=delay_s))

    def transaction(
        self,
        batch: Batch,
        *participants: AsyncTransactionAware,
        timeout: Duration | None = None,
    ) -> AsyncTransactionContext:
        """With `exactly_once`: a transaction whose commit includes the offset of the batch.

            async for batch in consumer:
                async with consumer.transaction(batch) as tx:
                    await tx.publish(copies, *(message.payload for message in batch))

        All of it counts, or nothing. `participants` and `timeout` are those of
        `Client.transaction`. `batch` is the one that `poll` returned last.

        Raises, when its block ends, beside what `Client.transaction` raises:
            GroupError: the member was fenced, or has lost the partition. All is rolled back, and
                another member processes the batch. Poll again.
        """
        timeout_s = calls.maybe_seconds_of(timeout, what="timeout")
        return self._flows.opened(
            self._flows.open_one(participants, self._flows.offsets_of(batch), timeout_s)
        )

    async def run(
        self,
        process: Callable[..., object],
        *participants: AsyncTransactionAware,
        wait: Duration = 30.0,
        timeout: Duration | None = None,  # noqa: ASYNC109 - of the transactions
    ) -> None:
        """Process batches by `process(batch)`, or by `process(batch, tx)` with `exactly_once`,
        until `stop`. Then an `at_least_once` consumer commits.

        A batch whose transaction conflicts, or whose partition is lost meanwhile, is read again, by
        this or another member. With a `retry` policy, a batch whose `process` raises is processed
        again message by message, and each one that fails goes its way by the policy.

        Raises:
            Exception: what `process` raises, without a `retry` policy. Its batch is not committed,
                and the next `run` reads it again.
            TransactionTimedOutError: a batch took longer than `timeout`.
            OutcomeUnknownError: whether the last batch was committed can't be learned now. Call
                `run` again: it continues behind what was committed.
        """
        await self._require_open()
        timeout_s = calls.maybe_seconds_of(timeout, what="timeout")

        def open_one(batch: Batch) -> Opened[AsyncTransactionContext]:
            opened = self._flows.open_one(participants, self._flows.offsets_of(batch), timeout_s)
            self._flows.opened(opened)
            return opened

        wait_s = calls.seconds_of(wait, what="wait")
        await self._driver.run(ConsumerRun(self._flows, process, open_one).run(wait_s))

    def stop(self) -> None:
        """Let `run` return after its batch, and at once while it waits. Any thread or signal
        handler may call it. If no run is in progress, it ends the next one."""
        self._flows.stop()

    async def close(self) -> None:
        """Leave the group, so that others get the partitions at once; those of a static member are
        kept for a session. It commits nothing. Calling it again is harmless."""
        if self._is_closed or os.getpid() != self._process_id:
            return
        self._is_closed = True
        self._flows.close()
        await self._heartbeats.join()
        await self._driver.run(self._flows.leave())

    async def __aenter__(self) -> "AsyncConsumer":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _require_open(self) -> None:
        if self._is_closed:
            raise WrongStateError("the consumer is closed; make another one")
        require_own_process(self._process_id, what="consumer")
        await self._heartbeats.begin(self._flows.heartbeats)


class AsyncGroups:
    """The consumer groups of one server. Safe to share between the tasks of one event loop."""

    def __init__(self, send: AsyncSend) -> None:
        self._send = send

    async def list(self, namespace: str) -> Names:
        """The names of a namespace's groups, in byte order."""
        return await self._send(group_calls.list_groups(namespace))

    async def show(self, namespace: str, name: str) -> Group:
        """Members, assignment and lag of a group. Raises: GroupNotFoundError."""
        return await self._send(group_calls.get_group(GroupId(namespace=namespace, name=name)))

    async def reset(
        self, namespace: str, name: str, offsets: Mapping[TopicId, MessageId | str | None]
    ) -> None:
        """Set the offsets of partitions that no member has: the group continues behind these ids.
        None forgets an offset, so that a consumer begins at its `start`.

            await client.groups.reset("shop", "billing", {orders.partition(0): None})

        Raises:
            GroupNotFoundError: the group was never joined, or it was deleted.
            GroupNotEmptyError: a member has one of the partitions.
        """
        group = GroupId(namespace=namespace, name=name)
        await self._send(group_calls.reset_offsets(group, offsets))

    async def delete(self, namespace: str, name: str) -> None:
        """Delete a group without members, with its offsets.

        Raises:
            GroupNotFoundError: the group was never joined, or it was deleted.
            GroupNotEmptyError: it has members.
        """
        await self._send(group_calls.delete_group(GroupId(namespace=namespace, name=name)))
