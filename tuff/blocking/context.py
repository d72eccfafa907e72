# Generated from tuff/aio/context.py by `make blocking`; change that one.
"""The transaction context; `tuff.commit_protocol` has its commit protocol."""

from collections.abc import Iterable
from datetime import datetime

from tuff.commit_protocol import Block, CommitProtocol
from tuff.flows_and_repeated_calls import Driver
from tuff.participant import TransactionAware
from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.ids import MessageId, TopicLike
from tuff.protocol.transaction import Transaction
from tuff.publish_calls import Headers, Publishable, addition_of
from tuff.read_calls import PollQuestion, Start, Undecided
from tuff.replies import Poll, Published


class TransactionContext:
    """One transaction over its participants: `with client.transaction(rows) as tx: …`.

    At the end of the block it commits (`tuff.TransactionAware` has the hooks). An error in the
    block or before the commit rolls all participants back, and is raised; errors of the roll-back
    are notes on it. The context belongs to one thread at a time, and can be used again after its
    block.
    """

    def __init__(self, protocol: CommitProtocol, driver: Driver) -> None:
        self._protocol = protocol
        self._driver = driver

    @property
    def transaction(self) -> Transaction:
        """The current transaction. Raises: WrongStateError: there is none."""
        return self._protocol.transaction

    @property
    def published(self) -> list[Published]:
        """What each `publish` of the block has written, in their order, after the commit.

            with client.transaction() as tx:
                tx.publish("shop:orders", "sold one apple")
            print(tx.published[0].ids[0])

        `ids` is empty for a call whose messages did not all fit into the 1 MiB that waits in
        memory, and if the reply to the commit was lost.

        Raises: WrongStateError: the block has not committed.
        """
        return self._protocol.published

    def __enter__(self) -> "TransactionContext":
        begin_block(self._protocol, self._driver)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        end_block(self._protocol, self._driver, error)

    def end_chain(self) -> None:
        """In the last block of a context with `chain`: let its commit start no other transaction.
        After the block: end the one that its commit has started. Without either, the close of
        the client ends that one, or it times out and is on the list of invalid transactions."""
        self._driver.run(self._protocol.end_chain())

    def add(self, participant: TransactionAware) -> None:
        """Let a participant join; inside a transaction its `start_tx` runs at once, and if that
        raises it has not joined. Nothing happens if it has joined already."""
        self._driver.run(self._protocol.add(participant))

    def remove(self, participant: TransactionAware) -> bool:
        """Returns whether it had joined. Raises: WrongStateError: inside a transaction."""
        return self._protocol.remove(participant)

    def checkpoint(self) -> None:
        """Give all participants a new write pointer in the same transaction, so that each can
        distinguish earlier writes from later ones. Earlier writes stay."""
        self._driver.run(self._protocol.checkpoint())

    def add_changes(self, *keys: bytes) -> None:
        """Let the transaction change these keys, beside those of its participants: of two that
        change one key, and are in progress at once, only the first one commits.

        A program that has its state in topics needs no participant for this, and without any the
        keys are checked by the commit alone, which saves a call. It sends nothing, so it is no
        coroutine function in either client.

        Raises:
            TypeError: one of them is not bytes.
            WrongStateError: outside of the block, or in a long transaction, which is never checked.
        """
        self._protocol.add_changes(keys)

    def publish(
        self,
        topic: TopicLike,
        *payloads: Publishable,
        key: str | bytes | None = None,
        tags: Iterable[str] = (),
        headers: Headers = (),
        ttl: Duration | None = None,
        delay: Duration | None = None,
        at: datetime | int | None = None,
    ) -> Published:
        """Publish these with the commit: they become visible with the rows, or never. The result
        has what is known now: the `delayed_ids` of messages with a delay, and of others nothing;
        `published` has their ids after the commit.

        The parameters are those of `Client.publish`. The messages of one topic keep their order. Up
        to 1 MiB of messages waits in memory; later ones are stored on the server at once. `ttl`
        counts from the commit on. With `delay` or `at` they are sent at once, and enter the topic
        at that time if this transaction commits.

        Raises:
            EmptyPublishError: there are no messages.
            TuffError: storing failed. Let it end the block: this transaction can't commit.
        """
        addition = addition_of(
            topic, payloads, key=key, tags=tags, headers=headers, ttl=ttl, delay=delay, at=at
        )
        return self._driver.run(self._protocol.publish(addition))

    def poll(
        self,
        topic: TopicLike,
        start: Start | None = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        undecided: Undecided = "hold",
        wait: Duration = 0,
        through: MessageId | str | None = None,
        tags: str | None = None,
    ) -> Poll:
        """Read in the transaction's snapshot; the parameters are those of `tuff.Client.poll`.

        The messages that this transaction publishes are sent with its commit, so it does not read
        them.
        """
        question = PollQuestion(
            start=start,
            inclusive=inclusive,
            limit=limit,
            transaction=self.transaction.transaction_id,
            undecided=undecided,
            wait_s=seconds_of(wait, what="wait"),
            through=through,
            tags=tags,
        )
        return self._driver.run(self._protocol.poll(topic, question))

    def abort(self) -> None:
        """Roll back and end the transaction without an error; leave the block afterwards."""
        self._driver.run(self._protocol.abort())


def begin_block(protocol: Block, driver: Driver) -> None:
    """Begin a transaction for a block, or nothing if that raises."""
    entry = object()
    try:
        driver.run(protocol.begin(entry))
    except GeneratorExit:
        raise
    except BaseException as error:
        driver.run(protocol.withdraw(entry, error))
        raise


def end_block(protocol: Block, driver: Driver, error: BaseException | None) -> None:
    """Commit at the end of a block, or roll back if it has raised this error."""
    driver.run(protocol.finish() if error is None else protocol.undo(error))
