"""Consumer groups: `client.consumer(…)` and `client.groups` (protocol §3.11).

`tuff.group_member` has the flows of a consumer.
"""

import math
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

from tuff import group_calls, read_calls
from tuff.aio.context import AsyncTransactionContext
from tuff.aio.driver import AsyncDriver, AsyncHeartbeats
from tuff.aio.sql import AsyncSqlTransaction
from tuff.consumer_options import Batch, DeliveryMode
from tuff.consumer_run_loop import ConsumerRun
from tuff.dead_letters import cause_of
from tuff.errors import OutcomeUnknownError, TuffError, WrongStateError
from tuff.group_calls import GroupId, PreferenceChanges
from tuff.group_member import ConsumerFlows
from tuff.participant import AsyncTransactionAware
from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.group_preferences import GroupPreferences
from tuff.protocol.ids import MessageId, PartitionId, TopicLike
from tuff.protocol.requests import Message
from tuff.read_calls import LATEST, Start, offset_before
from tuff.replies import Group
from tuff.requests_and_responses import mapping, maybe_seconds_of

P = TypeVar("P", bound=TopicLike)

# What takes part in transactions, and their contexts. Python has the defaults from 3.13 on.
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    C = TypeVarWithDefault(
        "C", bound=AsyncTransactionContext | AsyncSqlTransaction, default=AsyncTransactionContext
    )
    D = TypeVarWithDefault("D", default=AsyncTransactionAware)
else:
    C, D = TypeVar("C"), TypeVar("D")

# Inside the class, `list` is a method.
Names = list[str]


class _LeftOpenError(Exception):
    """The program has left an iteration over transactions, and its last one is rolled back."""


class AsyncConsumer(Generic[C, D]):
    """`client.consumer(…)`: a member of a consumer group, which reads the partitions that the group
    assigns to it. Belongs to one task, except `stop`; heartbeats are sent beside it.

    Use it in an `async with` block, or close it. It joins with its first poll. With a database, a
    transaction of a batch is an `AsyncSqlTransaction`, and its one participant is your connection.
    """

    def __init__(self, flows: ConsumerFlows[C], driver: AsyncDriver) -> None:
        if not driver.runs_coroutines:
            flows.refuse_coroutines()
        self._flows = flows
        self._driver = driver
        self._heartbeats = AsyncHeartbeats(driver, what="consumer")
        # No heartbeats for what nobody polls.
        weakref.finalize(self, self._heartbeats.use.forget, flows.close).atexit = False
        # What `transactions` has handed out last.
        self._open: tuple[Batch, C] | None = None

    @property
    def assignment(self) -> list[PartitionId]:
        """The partitions that this member has, as of the last poll, in order."""
        return self._flows.assignment

    async def poll(self, wait: Duration = 30.0) -> Batch | None:
        """The next messages, of one partition; None if none came within `wait` seconds, or while
        the member has no partition.

        Rebalances happen in here, with their callbacks. So poll again within the server's
        `groups.rebalance_timeout` (300 seconds). With `at_least_once` it first commits the batch
        that it returned before. With `exactly_once` it returns the same messages again if their
        `transaction` was rolled back, after those of other partitions.

        Raises:
            ConnectionLostError, UnavailableError, OverloadedError: the server is away, so it is not
                known whether there are messages. It is raised after the client's `retries`, and
                with `on_outage="wait"` not before the end of `wait`. Another poll tries again.
            TooManyMembersError: the group has as many members as it can have.
            TooManyGroupsError: the group is new, and its namespace has as many as it can have.
            DamagedRecordError: the next message of a partition fails its checksum.
            WrongStateError: the consumer is closed or was made before a fork; or with
                `exactly_once` the batch before had no `transaction`, or it has not ended.
        """
        return await self._poll(seconds_of(wait, what="wait"))

    async def _poll(self, wait_s: float) -> Batch | None:
        await self._heartbeats.begin(self._flows.heartbeats)
        return await self._driver.run(self._flows.poll(wait_s))

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Message after message, until `stop`; it waits while the server is away.

            async with client.consumer("shop:orders", group="billing") as consumer:
                async for message in consumer:
                    print(message.payload)

        A message counts as processed when the next one is asked for, or when the block ends without
        an error. What counts is committed with the next batch, and at the end of the block.

        Raises:
            WrongStateError: the mode is `exactly_once`; use `transactions`.
            Exception: what `poll` and its callbacks raise; it ends the iteration.
        """
        if self._flows.mode is DeliveryMode.EXACTLY_ONCE:
            raise WrongStateError("with exactly_once, iterate over consumer.transactions()")
        async for batch in self.batches():
            for index in range(len(batch)):
                yield self._flows.hand_out_one(batch, index)
                if self._flows.is_stopping:
                    break

    async def batches(self) -> AsyncIterator[Batch]:
        """Batch after batch, until `stop`; it waits while the server is away. With `at_least_once`
        a batch is committed when the next one is asked for, or when the block ends without an
        error."""
        while not self._flows.is_stopping:
            batch = await self._poll(math.inf)
            if batch is not None:
                yield batch
        await self._driver.run(self._flows.end_run())

    async def transactions(
        self,
        *participants: D,
        timeout: Duration | None = None,  # noqa: ASYNC109 - of the transactions
    ) -> AsyncIterator[tuple[Batch, C]]:
        """With `exactly_once`: batch after batch, each within a transaction that commits its
        offset, until `stop`; it waits while the server is away.

            async for batch, tx in consumer.transactions(stock):
                stock.put(b"last", batch[-1].payload)
                await tx.publish("shop:mails", *(each.payload for each in batch))

        The transaction commits when the next batch is asked for, or when the block of the consumer
        ends without an error; an error that leaves that block rolls it back. If it conflicts, or
        the partition is lost meanwhile, this or another member reads the batch again.
        `participants` are those of `Client.transaction`; with a database, of
        `Client.sql_transaction`: `consumer.transactions(connection)`. `timeout`: seconds that a
        batch may take (default: any time; its transaction is renewed while the consumer is open).

        Raises: what `poll`, and the end of such a transaction, raise.
        """
        self._flows.use(participants)
        await self._end_transaction(_LeftOpenError())  # of an iteration before
        async for batch in self.batches():
            context = self.transaction(batch, *participants, timeout=timeout)
            await context.__aenter__()
            self._open = batch, context
            yield batch, context
            await self._end_transaction(None)

    async def _end_transaction(self, error: BaseException | None) -> None:
        """Commit the transaction that `transactions` has begun last, or roll it back."""
        if self._open is None:
            return
        (batch, context), self._open = self._open, None
        try:
            await context.__aexit__(None if error is None else type(error), error, None)
        except OutcomeUnknownError:
            raise
        except TuffError as refusal:
            if not self._flows.is_unrelated(refusal):
                raise
            await self._driver.run(self._flows.read_again(batch, refusal))

    def partition(self, message: Message) -> PartitionId:
        """The partition of a message of the newest batch; of one that is tried again, the one that
        it came from.

        Raises:
            WrongStateError: the message is not of that batch.
        """
        return self._flows.partition(message)

    async def commit(self) -> None:
        """With `at_least_once`: commit what the consumer has handed out so far.

        Raises:
            GroupError: the member was fenced, or has lost a partition: its next owner repeats what
                was not committed. The next poll continues with what this member has.
            WrongStateError: the mode is another one.
        """
        await self._heartbeats.begin(self._flows.heartbeats)
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
            WrongStateError: the consumer is closed, or has no `retry` policy, or one with
                `in_order`; or the message is not of the batch that was polled last; or with
                `exactly_once` there is no transaction of it.
        """
        await self._heartbeats.begin(self._flows.heartbeats)
        delay_s = maybe_seconds_of(delay, what="delay")
        await self._driver.run(self._flows.nack(message, cause=cause_of(error), delay_s=delay_s))

    def transaction(
        self,
        batch: Batch,
        *participants: D,
        timeout: Duration | None = None,
    ) -> C:
        """With `exactly_once`: a transaction whose commit includes the offset of the batch.

            async for batch in consumer.batches():
                async with consumer.transaction(batch) as tx:
                    await tx.publish(copies, *(message.payload for message in batch))

        All of it counts, or nothing. `participants` are those of `Client.transaction`, and
        `timeout` is that of `transactions`. `batch` is the one that `poll` returned last.

        Raises: WrongStateError: `batch` is another one; or a transaction has committed it, or may
            have (`OutcomeUnknownError`). Poll again: the consumer continues behind what committed.

        Raises, when its block ends, beside what `Client.transaction` raises:
            GroupError: the member was fenced, or has lost the partition. All is rolled back, and
                another member processes the batch. Poll again.
        """
        timeout_s = maybe_seconds_of(timeout, what="timeout")
        self._flows.use(participants)
        return self._flows.open_for(batch, participants, timeout_s).context

    async def run(
        self,
        process: Callable[..., object],
        *participants: D,
        timeout: Duration | None = None,  # noqa: ASYNC109 - of the transactions
    ) -> None:
        """Process batches by `process(batch)`, or by `process(batch, tx)` with `exactly_once`,
        until `stop`; it waits while the server is away. At the end an `at_least_once` consumer
        commits.

        A batch whose transaction conflicts, or whose partition is lost meanwhile, is read again, by
        this or another member. With a `retry` policy, a batch whose `process` raises is processed
        again message by message, and each one that fails goes its way by the policy.

        Raises:
            Exception: what `process` raises, without a `retry` policy. Its batch is not committed,
                and the next `run` reads it again.
            TransactionTimedOutError: a batch took longer than `timeout`; with a `retry` policy it
                is tried again, message by message, and no attempt is counted.
            OutcomeUnknownError: whether the last batch was committed can't be learned now. Call
                `run` again: it continues behind what was committed.
        """
        await self._heartbeats.begin(self._flows.heartbeats)
        timeout_s = maybe_seconds_of(timeout, what="timeout")
        self._flows.use(participants)
        await self._driver.run(ConsumerRun(self._flows, process, participants, timeout_s).run())

    def stop(self) -> None:
        """Let `run` return after its batch, or an iteration end after its step, and at once while
        it waits. Any thread or signal handler may call it. If none is in progress, it ends the next
        one."""
        self._flows.stop()

    async def close(self) -> None:
        """Leave the group, so that others get the partitions at once; those of a static member are
        kept for a session. It commits nothing. Calling it again is harmless."""
        if not self._heartbeats.use.end():
            return
        await self._end_transaction(_LeftOpenError())
        self._flows.close()
        await self._heartbeats.join()
        await self._driver.run(self._flows.leave())

    async def __aenter__(self) -> "AsyncConsumer[C, D]":
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._end_transaction(error)
            commits = self._flows.mode is DeliveryMode.AT_LEAST_ONCE
            if error is None and commits and self._heartbeats.use.is_possible:
                await self._driver.run(self._flows.commit_quietly())
        finally:
            await self.close()


class AsyncGroups:
    """The consumer groups of one server. Safe to share between the tasks of one event loop."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._send = driver.ask

    async def list(self, namespace: str) -> Names:
        """The names of a namespace's groups, in byte order."""
        return await self._send(group_calls.list_groups(namespace))

    async def get(self, namespace: str, name: str) -> Group:
        """Members, assignment and lag of a group. Raises: GroupNotFoundError."""
        return await self._send(group_calls.get_group(GroupId(namespace=namespace, name=name)))

    async def reset(
        self,
        namespace: str,
        name: str,
        starts: Mapping[P, Start | None],
        *,
        inclusive: bool = True,
    ) -> dict[P, MessageId | None]:
        """Set the offsets of partitions that no member has: the group continues at these starts,
        as those of `Client.poll`; with `inclusive=False` behind ids, such as those of an offset.
        None forgets an offset, so that a consumer begins at its `start`. Returns the new offsets.
        Of a group with `database`, delete its rows of `tuff_positions`, too: they count.

            await client.groups.reset("shop", "billing", {"shop:orders/0": None})

        Raises:
            GroupNotFoundError: the group was never joined, or it was deleted.
            GroupNotEmptyError: a member has one of the partitions.
        """
        group = GroupId(namespace=namespace, name=name)
        offsets: dict[P, MessageId | None] = {}
        for partition, start in mapping(starts, "starts").items():
            end = None
            if start == LATEST:
                end = (await self._send(read_calls.offsets(partition, isolation="committed"))).end
            offsets[partition] = (
                None if start is None else offset_before(start, inclusive=inclusive, end=end)
            )
        await self._send(group_calls.reset_offsets(group, offsets))
        return offsets

    async def preferences(self, namespace: str, name: str) -> GroupPreferences:
        """How the members of a group consume. Raises: GroupNotFoundError."""
        group = GroupId(namespace=namespace, name=name)
        return await self._send(group_calls.get_preferences(group))

    async def set_preferences(
        self, namespace: str, name: str, preferences: GroupPreferences
    ) -> GroupPreferences:
        """Replace all preferences, and create the group if there is none. Members follow within a
        heartbeat.

        Raises: TooManyGroupsError: the namespace has as many groups as it can have.
        """
        group = GroupId(namespace=namespace, name=name)
        return await self._send(group_calls.set_preferences(group, preferences))

    async def update_preferences(
        self, namespace: str, name: str, **changes: Unpack[PreferenceChanges]
    ) -> GroupPreferences:
        """Change the preferences that are named, and no others; None unsets one.

            client.groups.update_preferences("shop", "billing", tags="urgent", retry=None)

        Raises: as `set_preferences`.
        """
        group = GroupId(namespace=namespace, name=name)
        return await self._send(group_calls.update_preferences(group, changes))

    async def delete(self, namespace: str, name: str) -> None:
        """Delete a group without members, with its offsets.

        Raises:
            GroupNotFoundError: the group was never joined, or it was deleted.
            GroupNotEmptyError: it has members.
        """
        await self._send(group_calls.delete_group(GroupId(namespace=namespace, name=name)))
