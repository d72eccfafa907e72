# Generated from tuff/aio/share_groups.py by `make blocking`; change that one.
"""Share groups: `client.share_consumer(…)` and `client.share_groups` (protocol §3.12).

`tuff.share_consumer` has the flows of a worker.
"""

import math
import weakref
from collections.abc import Callable, Iterator

from tuff import share_calls
from tuff.blocking.context import TransactionContext
from tuff.consumer_options import DeliveryMode
from tuff.dead_letters import cause_of
from tuff.errors import WrongStateError
from tuff.flows_and_repeated_calls import Driver, Heartbeats
from tuff.participant import TransactionAware
from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.ids import PartitionId, TopicLike, topic_of
from tuff.protocol.requests import Message
from tuff.read_calls import Start
from tuff.replies import ShareGroup
from tuff.requests_and_responses import maybe_seconds_of
from tuff.share_calls import ShareGroupId, ShareOrder
from tuff.share_consumer import ShareConsumerFlows

Batch = tuple[Message, ...]
Names = list[str]  # inside the class, `list` is a method


class ShareConsumer:
    """`client.share_consumer(…)`: a worker of a share group. Belongs to one thread, except `stop`;
    leases are renewed beside it.

    Use it in a `with` block, or close it.
    """

    def __init__(self, flows: ShareConsumerFlows[TransactionContext], driver: Driver) -> None:
        self._flows = flows
        self._driver = driver
        self._renewals = Heartbeats(driver, what="consumer")
        # No renewals for what nobody polls.
        weakref.finalize(self, self._renewals.use.forget, flows.close).atexit = False
        self._batch: Batch = ()  # the newest one of `batches`

    def poll(self, wait: Duration = 30.0) -> Batch:
        """The next messages, of one partition, the oldest first; none if none came within `wait`
        seconds. Leases take the partitions of a topic in turn.

        With `at_least_once` it first accepts those that it returned before, except the ones that
        were given back by `nack`. With `exactly_once` it releases those whose transaction has not
        committed.

        Raises:
            ConnectionLostError, UnavailableError, OverloadedError: the server is away, so it is not
                known whether there are messages. It is raised after the client's `retries`, and
                with `on_outage="wait"` not before the end of `wait`. Another poll tries again.
            GroupExistsError: the group has another order, or other tags.
            TooManyGroupsError: the group is new, and the topic has as many as it can have.
            WrongStateError: the consumer is closed or was made before a fork; or with
                `exactly_once` no message of the batch before had a `transaction` or a `nack`, or
                such a transaction has not ended.
        """
        return self._poll(seconds_of(wait, what="wait"))

    def _poll(self, wait_s: float) -> Batch:
        self._renewals.begin(self._flows.renewals)
        return self._driver.run(self._flows.poll(wait_s))

    def __iter__(self) -> Iterator[Message]:
        """With `at_least_once`: message after message, until `stop`; it waits while the server is
        away. A message counts as processed when the next one is asked for, or when the block ends
        without an error.

        Raises: WrongStateError: the mode is `exactly_once`; use `batches` and `transaction`.
        """
        if self._flows.plan.mode == DeliveryMode.EXACTLY_ONCE:
            raise WrongStateError("with exactly_once, iterate over consumer.batches()")
        while not self._flows.is_stopping:
            for message in self._poll(math.inf):
                self._flows.begin(message)
                yield message
                if self._flows.is_stopping:
                    break
        self._driver.run(self._flows.end_iteration(()))

    def batches(self) -> Iterator[Batch]:
        """Batch after batch, until `stop`; it waits while the server is away. With `at_least_once`
        a batch is accepted when the next one is asked for, or when the block ends without an
        error."""
        while not self._flows.is_stopping:
            batch = self._poll(math.inf)
            if batch:
                self._batch = batch
                yield batch
        self._driver.run(self._flows.end_iteration(self._batch))

    def attempt(self, message: Message) -> int:
        """Which attempt of a message of the newest batch this is: 1 for one that no worker has
        begun before. A message that was leased and given back unbegun was not attempted.

        Raises:
            WrongStateError: the message is not of that batch, or was acknowledged already.
        """
        return self._flows.attempt(message)

    def partition(self, message: Message) -> PartitionId:
        """The partition of a message of the newest batch.

        Raises:
            WrongStateError: as `attempt`.
        """
        return self._flows.partition(message)

    def ack(self, *messages: Message) -> bool:
        """With `at_least_once`: accept messages of the newest batch now. False: another worker has
        got one of them meanwhile, and processes it, too.

        Raises:
            WrongStateError: a message is not of that batch, or was acknowledged already; or the
                mode is another one.
        """
        self._renewals.begin(self._flows.renewals)
        return self._driver.run(self._flows.accept(messages))

    def nack(
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
        self._renewals.begin(self._flows.renewals)
        delay_s = maybe_seconds_of(delay, what="delay")
        self._driver.run(self._flows.nack(message, cause=cause_of(error), delay_s=delay_s))

    def transaction(
        self,
        *messages: Message,
        participants: tuple[TransactionAware, ...] = (),
        timeout: Duration | None = None,
    ) -> TransactionContext:
        """With `exactly_once`: a transaction whose commit includes the acceptance of messages of
        the newest batch.

            for batch in consumer.batches():
                for message in batch:
                    with consumer.transaction(message) as tx:
                        tx.publish(copies, message.payload)

        All of it counts, or nothing. `participants` are those of `Client.transaction`. `timeout`:
        seconds that the block may take (default: any time; its transaction is renewed while the
        consumer is open).

        Raises, when its block ends, beside what `Client.transaction` raises:
            LeaseLostError: another worker has got one of the messages. All is rolled back.
        """
        timeout_s = maybe_seconds_of(timeout, what="timeout")
        return self._flows.open_for(messages, participants, timeout_s).context

    def run(
        self,
        process: Callable[..., object],
        *participants: TransactionAware,
        timeout: Duration | None = None,
    ) -> None:
        """Process messages by `process(message)`, or by `process(message, tx)` with `exactly_once`,
        until `stop`; it waits while the server is away.

        A message whose transaction conflicts, or whose lease is lost, is given out again. With a
        `retry` policy, so is one whose `process` raises, after the delay of the policy; after the
        last attempt it becomes a dead letter.

        Raises:
            Exception: what `process` raises, without a `retry` policy. That message and those that
                were not processed are released.
            TransactionTimedOutError: a message took longer than `timeout`; with a `retry` policy it
                is tried again, and no attempt is counted.
            OutcomeUnknownError: whether the last transaction was committed can't be learned now.
        """
        self._renewals.begin(self._flows.renewals)
        timeout_s = maybe_seconds_of(timeout, what="timeout")
        self._driver.run(self._flows.run(process, participants, timeout_s=timeout_s))

    def stop(self) -> None:
        """Let `run` return after its message, or an iteration end after its step, and at once while
        it waits. Any thread or signal handler may call it. If none is in progress, it ends the next
        one."""
        self._flows.stop()

    def close(self) -> None:
        """Release what was not acknowledged, so that other workers get it at once. It is no attempt
        of these messages, unless `run` had begun them. Calling it again is harmless."""
        self._close(has_failed=False)

    def _close(self, *, has_failed: bool) -> None:
        if not self._renewals.use.end():
            return
        self._flows.close()
        self._renewals.join()
        self._driver.run(self._flows.leave(has_failed=has_failed))

    def __enter__(self) -> "ShareConsumer":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self._renewals.use.is_possible:
            self._driver.run(self._flows.accept_handed_out(self._batch))
        self._close(has_failed=isinstance(error, Exception))


class ShareGroups:
    """The share groups of one server. Safe to share between threads."""

    def __init__(self, driver: Driver) -> None:
        self._send = driver.ask

    def list(self, topic: TopicLike) -> Names:
        """The names of the share groups of a topic or partition, in byte order. Raises:
        TopicNotFoundError."""
        return self._send(share_calls.list_share_groups(topic))

    def get(self, topic: TopicLike, name: str) -> ShareGroup:
        """Properties, counts and lag of a share group, in a partition or in all of a topic. Raises:
        GroupNotFoundError."""
        return self._send(share_calls.get_share_group(ShareGroupId(topic_of(topic), name)))

    def create(
        self,
        topic: TopicLike,
        name: str,
        *,
        start: Start = "latest",
        order: ShareOrder = "none",
        tags: str | None = None,
        lease: Duration = 30.0,
    ) -> None:
        """Create a share group of a topic or partition. `start`: a message id, a publish time in
        ms, `earliest` or `latest`; `tags`: which messages it has, as in `poll`; `lease`: for how
        many seconds a worker has a message that names no other time. The same again changes
        nothing.

        Raises:
            GroupExistsError: it exists with other properties.
            TooManyGroupsError: the topic has as many groups as it can have.
        """
        group, lease_s = ShareGroupId(topic_of(topic), name), seconds_of(lease, what="lease")
        call = share_calls.create_share_group(
            group, start=start, order=order, tags=tags, lease_s=lease_s
        )
        self._send(call)

    def delete(self, topic: TopicLike, name: str) -> None:
        """Delete a share group, with what it has acknowledged. Raises: GroupNotFoundError."""
        self._send(share_calls.delete_share_group(ShareGroupId(topic_of(topic), name)))
