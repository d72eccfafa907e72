# Generated from tuff/aio/sql.py by `make blocking`; change that one.
"""The contexts of `client.sql_transaction` and `sql_resolver`; `tuff.sql` has their flows."""

from collections.abc import Iterable
from datetime import datetime

from tuff.blocking.context import begin_block, end_block
from tuff.flows_and_repeated_calls import Driver, Heartbeats
from tuff.protocol.durations import Duration
from tuff.protocol.ids import TopicLike
from tuff.protocol.transaction import Transaction
from tuff.publish_calls import Headers, Publishable, addition_of
from tuff.replies import Published
from tuff.sql.resolver import ResolverFlows, SqlSettled
from tuff.sql.rows_and_messages import SqlProtocol


class SqlTransaction:
    """A transaction of a database with messages: `with client.sql_transaction(…) as tx: …`.

    At the end of the block the database commits, and with it the messages; an error rolls both
    back. The context belongs to one thread at a time, and can be used again after its block.
    """

    def __init__(self, protocol: SqlProtocol, driver: Driver) -> None:
        self._protocol = protocol
        self._driver = driver

    @property
    def transaction(self) -> Transaction | None:
        """The transaction of the messages; None before the first one is published."""
        return self._protocol.transaction

    def __enter__(self) -> "SqlTransaction":
        begin_block(self._protocol, self._driver)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        end_block(self._protocol, self._driver, error)

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
        """Publish these with the commit of the database; as `TransactionContext.publish`. There is
        no `published`: messages that the server had to set aside get other ids.

        Raises:
            EmptyPublishError: there are no messages.
            WrongStateError: the block has ended.
            TuffError: storing failed. Let it end the block: this transaction can't commit.
        """
        addition = addition_of(
            topic, payloads, key=key, tags=tags, headers=headers, ttl=ttl, delay=delay, at=at
        )
        return self._driver.run(self._protocol.publish(addition))


class SqlResolver:
    """Settles what programs that died left prepared. Any process of the application may run one.

        with client.sql_resolver(shop):
            …  # it works in the background until the block ends

    It outlasts outages of the database and the server, and logs them.
    """

    def __init__(self, flows: ResolverFlows, driver: Driver) -> None:
        self._flows = flows
        self._driver = driver
        self._background = Heartbeats(driver, what="resolver")

    def once(self) -> SqlSettled:
        """Settle everything that is prepared now; returns what became of it.

        Raises:
            WrongStateError: this resolver works in the background, so call that of another one; or
                the database is not the one that programs use under this name.
            Exception: the database or the server is away.
        """
        return self._driver.run(self._flows.once())

    def run(self) -> None:
        """Settle until `stop`, in this task."""
        self._driver.run(self._flows.run())

    def stop(self) -> None:
        """Let it end after its round. Any thread or signal handler may call it."""
        self._flows.stop()

    def __enter__(self) -> "SqlResolver":
        self._background.begin(self._flows.run)
        return self

    def __exit__(self, *error: object) -> None:
        self._flows.stop()
        self._background.join()
