# Generated from tuff/aio/context.py by `make blocking`; change that one.
"""A transaction as a program holds it; `tuff.commit` does the work."""

from types import TracebackType

from tuff import calls
from tuff.blocking.driver import Driver
from tuff.calls import Duration, Payload, PollQuestion, Start, Undecided
from tuff.commit import CommitProtocol
from tuff.participant import TransactionAware
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.transaction import Transaction
from tuff.replies import Poll


class TransactionContext:
    """One transaction over its participants: `with client.transaction(rows) as tx: …`.

    The block's end commits: tx_changes of all, can-commit, commit_tx of all in the order they
    joined, commit together with the messages, post_commit of all. An error in the block or before
    the commit rolls all of them back, and is raised; what fails on the way is a note on it. It can
    be used again after it ended, and belongs to one thread at a time.
    """

    def __init__(self, protocol: CommitProtocol, driver: Driver) -> None:
        self._protocol = protocol
        self._driver = driver

    @property
    def transaction(self) -> Transaction:
        """The current transaction. Raises: WrongStateError: there is none."""
        return self._protocol.transaction

    def __enter__(self) -> "TransactionContext":
        entry = object()
        try:
            self._driver.run(self._protocol.begin(entry))
        except GeneratorExit:
            raise
        except BaseException as error:
            self._driver.run(self._protocol.withdraw(entry, error))
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        protocol = self._protocol
        self._driver.run(protocol.finish() if error is None else protocol.undo(error))

    def add(self, participant: TransactionAware) -> None:
        """Let a participant join; inside a transaction its `start_tx` runs at once.

        What that raises is passed on, and then it has not joined. For one that is there already
        nothing happens.
        """
        self._driver.run(self._protocol.add(participant))

    def remove(self, participant: TransactionAware) -> bool:
        """Whether the participant was there. Raises: WrongStateError: inside a transaction."""
        return self._protocol.remove(participant)

    def checkpoint(self) -> None:
        """Give all participants a new write pointer in the same transaction, so that each can tell
        what was written before from what comes after. Nothing that was written is lost."""
        self._driver.run(self._protocol.checkpoint())

    def publish(self, topic: TopicId, *messages: Payload, ttl: Duration | None = None) -> None:
        """Have the commit publish these: they become visible with the rows, or never.

        The messages of one topic keep their order. Up to 1 MiB of them waits in memory; what comes
        after it is stored at the server as it comes. `ttl` is in whole seconds from the commit on
        (default: the topic's).

        Raises:
            EmptyPublishError: there are none.
            TuffError: storing failed. Let it end the block: this transaction can't commit.
        """
        self._driver.run(self._protocol.publish(topic, messages, ttl_s=calls.ttl_of(ttl)))

    def poll(
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
        return self._driver.run(self._protocol.poll(topic, question))

    def abort(self) -> None:
        """Roll back and end the transaction, which is no error; leave the block after it."""
        self._driver.run(self._protocol.abort())
