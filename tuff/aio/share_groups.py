"""Share groups: `client.share_consumer(…)` and `client.share_groups` (protocol §3.12).

`tuff.share_consumer` has the flows of a worker.
"""

import os
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from tuff import calls, share_calls
from tuff.aio.context import AsyncTransactionContext
from tuff.aio.driver import AsyncDriver
from tuff.aio.heartbeats import AsyncHeartbeats
from tuff.aio.topics import AsyncSend
from tuff.batching import require_own_process
from tuff.calls import Duration
from tuff.client_errors import WrongStateError
from tuff.dead_letters import reason_of
from tuff.participant import AsyncTransactionAware
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Message
from tuff.replies import ShareGroup
from tuff.share_calls import ShareGroupId, ShareOrder, ShareStart
from tuff.share_consumer import ShareConsumerFlows

Batch = tuple[Message, ...]
Names = list[str]  # inside the class, `list` is a method


class AsyncShareConsumer:
    """`client.share_consumer(…)`: a worker of a share group. Belongs to one task, except `stop`;
    leases are renewed beside it.

    Use it in an `async with` block, or close it.
    """

    def __init__(
        self, flows: ShareConsumerFlows[AsyncTransactionContext], driver: AsyncDriver
    ) -> None:
        self._flows = flows
        self._driver = driver
        self._renewals = AsyncHeartbeats(driver)
        self._process_id = os.getpid()
        self._is_closed = False

    async def poll(self, wait: Duration = 30.0) -> Batch:
        """The next messages, the oldest first; none if none came within `wait` seconds.

        With `at_least_once` it first accepts those that it returned before, except the ones that
        were given back by `nack`. With `exactly_once` it releases those whose transaction has not
        committed. It waits while the server can't be reached.

        Raises:
            GroupExistsError: the group has another order.
            TooManyGroupsError: the group is new, and the topic has as many as it can have.
            PartitionRequiredError: the topic has several partitions.
            WrongStateError: the consumer is closed or was made before a fork, or a transaction of
                a message has not ended.
        """
        await self._require_open()
        return await self._driver.run(self._flows.poll(calls.seconds_of(wait, what="wait")))

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Batch after batch; it never ends. With `at_least_once` a batch is accepted when the next
        one is asked for."""
        while True:
            batch = await self.poll()
            if batch:
                yield batch

    def attempt(self, message: Message) -> int:
        """How often a message of the newest batch was given out: 1 for one that has not failed
        before. The server counts in memory, so after its restart it is 1 again.

        Raises:
            WrongStateError: the message is not of that batch, or was acknowledged already.
        """
        return self._flows.attempt(message)

    async def ack(self, *messages: Message) -> bool:
        """With `at_least_once`: accept messages of the newest batch now. False: another worker has
        got one of them meanwhile, and processes it, too.

        Raises:
            WrongStateError: a message is not of that batch, or was acknowledged already; or the
                mode is another one.
        """
        await self._require_open()
        return await self._driver.run(self._flows.accept(messages))

    async def nack(
        self,
        message: Message,
        error: BaseException | str = "",
        *,
        delay: Duration | None = None,
    ) -> None:
        """Give a message of the newest batch back: it could not be processed. It is given out again
        after `delay` seconds, 12 hours at most (default: as the `retry` policy says, or at once
        without one). After the last attempt of the policy it becomes a dead letter instead, with
        `error` as its reason.

        Raises:
            WrongStateError: the message is not of that batch, or was acknowledged already.
        """
        await self._require_open()
        delay_s = calls.maybe_seconds_of(delay, what="delay")
        reason = reason_of(error) if isinstance(error, BaseException) else error
        await self._driver.run(self._flows.nack(message, reason=reason, delay_s=delay_s))

    def transaction(
        self,
        *messages: Message,
        participants: tuple[AsyncTransactionAware, ...] = (),
        timeout: Duration | None = None,
    ) -> AsyncTransactionContext:
        """With `exactly_once`: a transaction whose commit includes the acceptance of messages of
        the newest batch.

            async for batch in consumer:
                for message in batch:
                    async with consumer.transaction(message) as tx:
                        await tx.publish(copies, message.payload)

        All of it counts, or nothing. `participants` and `timeout` are those of
        `Client.transaction`.

        Raises, when its block ends, beside what `Client.transaction` raises:
            LeaseLostError: another worker has got one of the messages. All is rolled back.
        """
        timeout_s = calls.maybe_seconds_of(timeout, what="timeout")
        return self._flows.open_for(messages, participants, timeout_s).context

    async def run(
        self,
        process: Callable[..., object],
        *participants: AsyncTransactionAware,
        wait: Duration = 30.0,
        timeout: Duration | None = None,  # noqa: ASYNC109 - of the transactions
    ) -> None:
        """Process messages by `process(message)`, or by `process(message, tx)` with `exactly_once`,
        until `stop`.

        A message whose transaction conflicts, or whose lease is lost, is given out again. With a
        `retry` policy, so is one whose `process` raises, after the delay of the policy; after the
        last attempt it becomes a dead letter.

        Raises:
            Exception: what `process` raises, without a `retry` policy. That message and those that
                were not processed are released.
            OutcomeUnknownError: whether the last transaction was committed can't be learned now.
        """
        await self._require_open()
        timeout_s = calls.maybe_seconds_of(timeout, what="timeout")
        wait_s = calls.seconds_of(wait, what="wait")
        await self._driver.run(
            self._flows.run(process, participants, wait_s=wait_s, timeout_s=timeout_s)
        )

    def stop(self) -> None:
        """Let `run` return after its message, and at once while it waits. Any thread or signal
        handler may call it. If no run is in progress, it ends the next one."""
        self._flows.stop()

    async def close(self) -> None:
        """Release what was not acknowledged, so that other workers get it at once. Calling it again
        is harmless."""
        if self._is_closed or os.getpid() != self._process_id:
            return
        self._is_closed = True
        self._flows.close()
        await self._renewals.join()
        await self._driver.run(self._flows.leave())

    async def __aenter__(self) -> "AsyncShareConsumer":
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
        await self._renewals.begin(self._flows.renewals)


class AsyncShareGroups:
    """The share groups of one server. Safe to share between the tasks of one event loop."""

    def __init__(self, send: AsyncSend) -> None:
        self._send = send

    async def list(self, topic: TopicId) -> Names:
        """The names of a topic's share groups, in byte order.

        Raises:
            TopicNotFoundError: there is no such topic.
            PartitionRequiredError: the topic has several partitions, and `topic` names none.
        """
        return await self._send(share_calls.list_share_groups(topic))

    async def show(self, topic: TopicId, name: str) -> ShareGroup:
        """Properties, counts and lag of a share group. Raises: GroupNotFoundError."""
        return await self._send(share_calls.get_share_group(ShareGroupId(topic=topic, name=name)))

    async def create(
        self,
        topic: TopicId,
        name: str,
        *,
        start: ShareStart = "latest",
        order: ShareOrder = "none",
        lease: Duration = 30.0,
    ) -> None:
        """Create a share group. `start`: a message id, a publish time in ms, `earliest` or
        `latest`; `lease`: for how many seconds a worker has a message that names no other time. The
        same again changes nothing.

        Raises:
            GroupExistsError: it exists with other properties.
            TooManyGroupsError: the topic has as many groups as it can have.
            PartitionRequiredError: the topic has several partitions, and `topic` names none.
        """
        group = ShareGroupId(topic=topic, name=name)
        lease_s = calls.seconds_of(lease, what="lease")
        call = share_calls.create_share_group(group, start=start, order=order, lease_s=lease_s)
        await self._send(call)

    async def delete(self, topic: TopicId, name: str) -> None:
        """Delete a share group, with what it has acknowledged. Raises: GroupNotFoundError."""
        await self._send(share_calls.delete_share_group(ShareGroupId(topic=topic, name=name)))
