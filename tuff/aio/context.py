"""A transaction as a program holds it; `tuff.commit` does the work."""

from types import TracebackType

from tuff import calls
from tuff.aio.driver import AsyncDriver
from tuff.calls import Duration, Payload, PollQuestion, Start, Undecided
from tuff.commit import CommitProtocol
from tuff.participant import AsyncTransactionAware
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.transaction import Transaction
from tuff.replies import Poll


class AsyncTransactionContext:
    """One transaction over its participants: `async with client.transaction(rows) as tx: …`.

    The block's end commits: tx_changes of all, can-commit, commit_tx of all in the order they
    joined, commit together with the messages, post_commit of all. An error in the block or before
    the commit rolls all of them back, and is raised; what fails on the way is a note on it. It can
    be used again after it ended, and belongs to one task at a time.
    """

    def __init__(self, protocol: CommitProtocol, driver: AsyncDriver) -> None:
        self._protocol = protocol
        self._driver = driver

    @property
    def transaction(self) -> Transaction:
        """The current transaction. Raises: WrongStateError: there is none."""
        return self._protocol.transaction

    async def __aenter__(self) -> "AsyncTransactionContext":
        entry = object()
        try:
            await self._driver.run(self._protocol.begin(entry))
        except GeneratorExit:
            raise
        except BaseException as error:
            await self._driver.run(self._protocol.withdraw(entry, error))
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        protocol = self._protocol
        await self._driver.run(protocol.finish() if error is None else protocol.undo(error))

    async def add(self, participant: AsyncTransactionAware) -> None:
        """Let a participant join; inside a transaction its `start_tx` runs at once.

        What that raises is passed on, and then it has not joined. For one that is there already
        nothing happens.
        """
        await self._driver.run(self._protocol.add(participant))

    def remove(self, participant: AsyncTransactionAware) -> bool:
        """Whether the participant was there. Raises: WrongStateError: inside a transaction."""
        return self._protocol.remove(participant)

    async def checkpoint(self) -> None:
        """Give all participants a new write pointer in the same transaction, so that each can tell
        what was written before from what comes after. Nothing that was written is lost."""
        await self._driver.run(self._protocol.checkpoint())

    async def publish(
        self, topic: TopicId, *messages: Payload, ttl: Duration | None = None
    ) -> None:
        """Have the commit publish these: they become visible with the rows, or never.

        The messages of one topic keep their order. Up to 1 MiB of them waits in memory; what comes
        after it is stored at the server as it comes. `ttl` is in whole seconds from the commit on
        (default: the topic's).

        Raises:
            EmptyPublishError: there are none.
            TuffError: storing failed. Let it end the block: this transaction can't commit.
        """
        await self._driver.run(self._protocol.publish(topic, messages, ttl_s=calls.ttl_of(ttl)))

    async def poll(
        self,
        topic: TopicId,
        start: Start | None = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        undecided: Undecided = "hold",
        wait: Duration = 0,
        through: MessageId | str | None = None,
    ) -> Poll:
        """Read in the transaction's snapshot; the rest is as `tuff.Client.poll` has it.

        What this transaction publishes goes out with its commit, so it is not among it.
        """
        question = PollQuestion(
            start=start,
            inclusive=inclusive,
            limit=limit,
            transaction=self.transaction.transaction_id,
            undecided=undecided,
            wait_s=calls.seconds_of(wait, what="wait"),
            through=through,
        )
        return await self._driver.run(self._protocol.poll(topic, question))

    async def abort(self) -> None:
        """Roll back and end the transaction, which is no error; leave the block after it."""
        await self._driver.run(self._protocol.abort())
