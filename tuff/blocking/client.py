# Generated from tuff/aio/client.py by `make blocking`; change that one.
"""The client: each method is one call or one flow, which the driver runs (design §7)."""

from __future__ import annotations

import os
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from datetime import datetime
from functools import partial
from os import PathLike
from ssl import SSLContext
from time import perf_counter
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary, WeakSet

from tuff import publish_calls, read_calls, topic_calls
from tuff.address import (
    DEFAULT_URL,
    TransportName,
    addresses_of,
    checked_transport,
    client_name,
)
from tuff.blocking.context import TransactionContext
from tuff.blocking.groups import Consumer, Groups
from tuff.blocking.publisher import Publisher
from tuff.blocking.share_groups import ShareConsumer, ShareGroups
from tuff.blocking.sql import SqlResolver, SqlTransaction
from tuff.blocking.subscriber import Subscriber
from tuff.blocking.topics import (
    Cluster,
    Delayed,
    Holds,
    NamedPositions,
    Topics,
)
from tuff.blocking.transactions import Sinks, Transactions
from tuff.blocking.transport import transport_of
from tuff.blocking.typed_topic import TypedTopic
from tuff.commit_protocol import CONFLICT_BACKOFF, CommitProtocol, Opened, end_chains, rerun
from tuff.consumer_options import (
    Assignor,
    Callback,
    ConsumerPlan,
    DeliveryModeLike,
    mode_of,
    new_member_id,
    topics_of,
)
from tuff.exactly_once_subscriber import (
    SubscriberFlows,
    SubscriberPlan,
    check_positions,
)
from tuff.flows_and_repeated_calls import Call, Driver, MakePublish, OnOutage, Retries, Sender
from tuff.group_member import ConsumerFlows
from tuff.participant import Positions, TransactionAware
from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.group_preferences import GroupPreferences, GroupStartLike, RetryPolicy
from tuff.protocol.ids import MessageId, TopicLike, topic_of
from tuff.protocol.requests import (
    Ack,
    AckLike,
    IsolationLike,
    Message,
    RollbackDetail,
)
from tuff.protocol.transaction import Transaction, TransactionTypeLike
from tuff.publish_calls import Headers, Publishable, ack_of, addition_of, warn_in_block
from tuff.publisher_batches import BATCH_BYTES, LINGER_S, Limits
from tuff.read_calls import PollBatch, PollQuestion, Start, Undecided, poll_batch, read
from tuff.replies import (
    DiskUse,
    Explanation,
    Health,
    Offsets,
    Poll,
    Published,
    Reclaimed,
    RowPage,
)
from tuff.requests_and_responses import maybe_seconds_of, number_of, of_type
from tuff.retry_or_dead_letter import Open
from tuff.serializers import Serializer
from tuff.share_calls import ShareGroupId, ShareOrder
from tuff.share_consumer import ShareConsumerFlows, SharePlan
from tuff.sql.database import Decider, SqlDatabase, require_database
from tuff.sql.positions import GroupPositions
from tuff.sql.resolver import EVERY_S, ResolverFlows, checked_every_s
from tuff.sql.rows_and_messages import SqlProtocol
from tuff.subscriptions import MergedSubscription, OnPoll, Starts, TopicSubscription
from tuff.tls import TlsFiles
from tuff.topic_calls import RowOrder
from tuff.transaction_calls import write_pointer_of

D = TypeVar("D")
T = TypeVar("T")


class Client:
    """A client of the server at `url`; it connects with its first call.

        with tuff.Client("http://127.0.0.1:7411") as client:
            client.publish("shop:orders", "hello")

    `url` may have the addresses of several servers of a cluster, separated by commas. The first one
    is used until its connection fails, then the next one. A call that reaches no server at one
    address is sent to the others at once, whatever `retries` says, since nothing was executed.
    Safe to share between threads. `topics`, `holds`, `positions`,
    `delayed`, `transactions`, `sinks`, `groups`, `share_groups` and `cluster` have the calls about
    those.

    `client_id`: the name that others see in conflicts and listings (default: host and process id).
    `timeout`: how long to wait for the whole reply, in addition to the `wait` of a call.
    `connect_timeout`: how long to wait for the connection. Both are seconds or a timedelta, like
    all durations here. `retries`: how often a call is repeated, after pauses that grow from 0.1 to
    2 seconds, if that is safe: reads, calls that the server says it did not execute, and calls
    without a second effect (protocol §1, Idempotence). A publish has an id, by which the server
    recognises its repetition, for 15 minutes.
    `token`: sent as `Authorization: Bearer`; a server with an access file requires it. With
    `https` the certificate of the server is checked against the authorities that this machine
    trusts, or those of `tls_ca_file`, or by `ssl_context`; the environment variable SSL_CERT_FILE
    names another file of authorities. `tls_certificate_file` and `tls_key_file` are the client's
    own certificate, which can stand in place of a token; the key may be in the certificate's file.
    `transport`: "auto" sends frequent calls over one session (docs/session.md) where the server
    offers it, and all others over HTTP. "http" sends all calls over HTTP. Tests may give an object.

    Raises:
        ValueError: `url` or a TLS file is not valid, or a number is out of its range.
        TypeError: an argument is of another type.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        client_id: str | None = None,
        timeout: Duration = 30.0,
        connect_timeout: Duration = 5.0,
        retries: int = 5,
        token: str | None = None,
        ssl_context: SSLContext | None = None,
        tls_ca_file: str | PathLike[str] | None = None,
        tls_certificate_file: str | PathLike[str] | None = None,
        tls_key_file: str | PathLike[str] | None = None,
        transport: Sender | TransportName = "auto",
    ) -> None:
        """The documentation of the class has the parameters and the errors."""
        files = TlsFiles(tls_ca_file, tls_certificate_file, tls_key_file)
        addresses = addresses_of(
            url,
            timeout,
            connect_timeout,
            token=token,
            ssl_context=files.context_or(ssl_context),
            with_sessions=checked_transport(transport) == "auto",
        )
        self._transport: Sender = (
            transport_of(addresses) if isinstance(transport, str) else transport
        )
        self._timeout_s = seconds_of(timeout, what="timeout")
        self._retries = Retries(retries)
        self._driver = Driver(self._transport, self._retries)
        self._send = self._driver.ask
        self.client_id = client_name(client_id)
        self.topics = Topics(self._driver)
        self.holds = Holds(self._driver)
        self.positions = NamedPositions(self._driver)
        self.delayed = Delayed(self._driver)
        self.transactions = Transactions(self._driver, self.client_id)
        self.sinks = Sinks(self._driver, self.client_id)
        self.cluster = Cluster(self._driver)
        self.groups = Groups(self._driver)
        self.share_groups = ShareGroups(self._driver)
        self._deciders: WeakKeyDictionary[Any, Decider[Any]] = WeakKeyDictionary()
        self._chained: WeakSet[CommitProtocol] = WeakSet()
        self._process_id = os.getpid()

    @property
    def url(self) -> str:
        """The address of the server; of several, the one that is used at the moment."""
        return self._transport.url

    def close(self) -> None:
        """Close the connections; calling it again is harmless. Transactions that a chain has
        started, and no block has used, are ended before, if the server answers."""
        try:
            if os.getpid() == self._process_id:  # those of a parent process are its own
                self._driver.run(end_chains(self._chained))
        finally:
            self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

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
        ack: AckLike = Ack.DURABLE,
        transaction: Transaction | int | None = None,
    ) -> Published:
        """Publish messages to a topic, durably, adjacent and in order.

            client.publish("shop:orders", "sold one apple", key="apple", tags=["retail"])

        Each of `payloads` is a str or bytes. The result has an id for each. Without `transaction`
        they are visible to every reader once this returns; in the block of a transaction of this
        client that warns (OutsideTransactionWarning). With one, they become visible when it
        commits, and `rollback` of the result is what `Client.rollback` takes. `key`, `tags` and
        `headers` are those of every payload; a `tuff.NewMessage` in place of a payload has its own.
        A topic with several partitions divides messages by key; `"shop:orders/3"` names one of the
        partitions. `ttl`: their time to live in whole seconds, at most that of the topic. `delay`
        (seconds) or `at` (a time, or ms since the epoch): they enter the topic then, as if they
        were published at that moment, under a transaction if it commits; until then `delayed` lists
        and cancels them. `ack`, without a transaction: return when they are `durable`; when they
        have their ids and are about to be written (`received`); or when the server has accepted
        them (`none`, without ids). A crash may lose messages that were not durable.

        Raises:
            TopicNotFoundError: create it first.
            TypeError, ValueError: a message is neither a str nor bytes, or has no UTF-8; or an
                attribute is beyond its limits.
            EmptyPublishError: there are no messages; see `publish_stored`.
            InvalidTtlError, InvalidDelayError: the ttl or the delay is out of range.
            RequestTooLargeError: more than the server takes at once (16 MiB by default).
            ConnectionLostError: with `outcome_unknown`, they may have been published.
            TransactionNotInProgressError: its class says how the transaction ended.
        """
        pointer, level = None if transaction is None else write_pointer_of(transaction), ack_of(ack)
        added = addition_of(
            topic, payloads, key=key, tags=tags, headers=headers, ttl=ttl, delay=delay, at=at
        )
        if pointer is None:
            warn_in_block(self._retries)
        request = added.request(pointer)
        call = partial(publish_calls.publish, topic, request, ack=level, delay=added.delay)
        return self._publish(call)

    def store(
        self,
        topic: TopicLike,
        *payloads: Publishable,
        key: str | bytes | None = None,
        tags: Iterable[str] = (),
        headers: Headers = (),
        ttl: Duration | None = None,
        transaction: Transaction | int,
    ) -> None:
        """Store messages durably without publishing them; `publish_stored` publishes all of them,
        adjacent (protocol §3.2). The parameters are those of `publish`.

        Raises: as `publish`.
        """
        pointer = write_pointer_of(transaction)
        added = addition_of(topic, payloads, key=key, tags=tags, headers=headers, ttl=ttl)
        self._send(publish_calls.store(topic, added.request(pointer)))

    def publish_stored(self, topic: TopicLike, *, transaction: Transaction | int) -> RollbackDetail:
        """Publish, adjacent, everything that `store` stored in this transaction for the topic since
        the last time (protocol §3.2). It becomes visible when the transaction commits. The result
        is what `Client.rollback` takes.

        Raises:
            TransactionNotInProgressError: its class says how the transaction ended.
        """
        pointer = write_pointer_of(transaction)
        return self._publish(partial(publish_calls.publish_stored, topic, pointer))

    def rollback(self, topic: TopicLike, detail: RollbackDetail) -> None:
        """Hide one publish of a transaction from transactional readers for ever. An abort does that
        by itself. Repeating it is harmless (protocol §3.3).

        Raises:
            TransactionCommittedError: the transaction has committed.
            TopicNotFoundError: the topic was deleted.
        """
        self._send(topic_calls.rollback(topic, detail))

    def poll(
        self,
        topic: TopicLike,
        start: Start | None = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        transaction: Transaction | int | None = None,
        isolation: IsolationLike | None = None,
        undecided: Undecided = "hold",
        wait: Duration = 0,
        through: MessageId | str | None = None,
        tags: str | None = None,
    ) -> Poll:
        """Read messages from a position on. No position is stored, so they can be read again.

            poll = client.poll(orders, limit=100)
            more = client.poll(orders, poll.next_id, inclusive=False)

        `start`: a message id or its hex, a publish time (an aware `datetime`, or ms since the
        epoch), "earliest" (the oldest message, and the default), or "latest" (behind what this
        reader could read when the call is made); `inclusive=False` begins behind an id. `limit`:
        at most so many messages (by default the server's 10,000); a reply also ends at 8 MiB.
        `isolation`: `committed`, the default, reads committed messages, and ends before the first
        undecided one; `all` reads everything that was published, also by transactions that are in
        progress or were rolled back. `transaction`: read in the snapshot of this transaction
        instead: the value itself, or the pointer of one in progress. At a message that is undecided
        for it, `undecided="hold"` stops, and `"skip"` passes over it, so go on behind where this
        began. `wait`: how long to wait if there are none, up to 60 seconds. `through`: the last id
        to deliver. `tags`: those with these, as "retail,new|urgent": (retail and new) or urgent.

        Raises:
            TopicNotFoundError: the topic does not exist.
            ValueError: a parameter is not valid.
            DamagedRecordError: the next message fails its checksum; `members["next"]` is behind it.
            TransactionsUnavailableError: the next message is undecided; `all` can be read.
            TransactionNotInProgressError: the pointer's transaction has ended.
        """
        question = PollQuestion(
            start=start,
            inclusive=inclusive,
            limit=limit,
            transaction=transaction,
            isolation=isolation,
            undecided=undecided,
            wait_s=seconds_of(wait, what="wait"),
            through=through,
            tags=tags,
        )
        return self._driver.run(read(self._retries, read_calls.poll, topic, question))

    def poll_batch(
        self, topic: TopicLike, question: PollQuestion, *, attributes: bool = False
    ) -> PollBatch:
        """One read whose messages come as an Arrow record batch; client and server need pyarrow.
        `question` has the parameters of `poll`. `attributes` adds the columns `key`, `tags` and
        `headers`, each null for a message without.

        Raises: as `poll`; NotAcceptableError: the server has no pyarrow, or no attributes.
        """
        make = partial(poll_batch, attributes=attributes)
        return self._driver.run(read_calls.read(self._retries, make, topic, question))

    def subscribe(
        self,
        topic: TopicLike,
        start: Start | None = None,
        *,
        isolation: IsolationLike = "committed",
        batch: int = 500,
        wait: Duration = 30.0,
        tags: str | None = None,
    ) -> Iterator[Message]:
        """All messages from a position on, and then each new one as it arrives; it never ends.

            for message in client.subscribe(orders):
                print(message.payload)

        A topic with several partitions is read in one order, as by `merged`, also those that are
        added later. Within one iteration no message comes twice, and none is skipped unless it
        expires before it is read; it waits while the server can't be reached. To continue later,
        store `message.id`, or use `subscriber`. `start`, `isolation` and `tags` are those of
        `poll`. Each long poll has up to `batch` messages and waits up to `wait` seconds, at most
        60. An error ends the iteration; begin another one with `start` behind the last message.

        Raises:
            TopicNotFoundError: the topic does not exist, or was deleted.
            DamagedRecordError: as `poll`.
            ClientClosedError: this client is closed.
        """
        question = PollQuestion(
            start=start,
            isolation=isolation,
            limit=number_of(batch, "batch"),
            wait_s=seconds_of(wait, what="wait"),
            tags=tags,
        )
        subscription = TopicSubscription(topic_of(topic), question)
        while True:
            yield from self._driver.run(subscription.poll())

    def merged(
        self,
        topic: TopicLike,
        start: Starts = None,
        *,
        partitions: Collection[int] | None = None,
        isolation: IsolationLike = "committed",
        batch: int = 500,
        tags: str | None = None,
        follow: bool = True,
        on_outage: OnOutage = "wait",
        on_poll: OnPoll | None = None,
    ) -> Iterator[tuple[int, Message]]:
        """All messages of several partitions in one order, each with the number of its partition,
        and then each new one as it arrives, without an end unless `follow` is False.

            positions = {}
            for partition, message in client.merged(orders, positions):
                positions[partition] = message.id

        The order is by message id, and every reader gets the same. A message is delivered when no
        partition can have an earlier one; so an undecided transaction in one partition holds back
        all of them. `start`: as in `subscribe`; or for each partition the id behind which it
        begins, and one that is not named begins with its oldest message. `partitions`: their
        numbers (default: all, retired ones and those that are added later). `batch`: messages of
        each poll, at most; `tags`: as in `poll`. With `follow=False` the iteration ends when all
        messages are read that this reader can read now. While the server is away, it waits
        (`on_outage="wait"`), or makes as many attempts as the client's `retries` (`"raise"`).
        `on_poll` is called with a partition and each of its `tuff.Poll`s, before their messages
        come: these say whether messages have expired, and which transaction blocks the reader.

        Raises: as `subscribe`; ConnectionLostError, UnavailableError: `on_outage` is "raise".
        """
        subscription = MergedSubscription(
            topic_of(topic),
            partitions,
            start,
            PollQuestion(isolation=isolation, limit=number_of(batch, "batch"), tags=tags),
            count_max=self._retries.bound(on_outage),
            on_poll=on_poll,
        )
        more = subscription.poll if follow else subscription.rest
        while found := self._driver.run(more()):
            yield from found

    def topic(self, id: TopicLike, serializer: Serializer[T]) -> TypedTopic[T]:
        """The topic as one of values: those that the serializer converts to payloads and back.

            orders = client.topic("shop:orders", tuff.json_serializer())
            orders.publish({"item": "apple", "count": 3})

        `serializer`: `tuff.BYTES`, `tuff.STR`, `tuff.json_serializer(…)`,
        `tuff.avro_serializer(schema)`, or an object of yours with the methods of
        `tuff.Serializer`.
        """
        return TypedTopic(self, id, serializer)

    def publisher(
        self,
        *,
        linger: Duration = LINGER_S,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int | None = None,
        buffer_messages: int | None = None,
        max_block: Duration | None = None,
        ack: AckLike = Ack.DURABLE,
    ) -> Publisher:
        """Accepts messages for all topics, publishes them in batches, and acknowledges each call.

            with client.publisher() as publisher:
                futures = [publisher.publish("shop:orders", f"{n}") for n in range(10_000)]
            print(futures[0].result())

        For many small messages of one program: one durable publish of a whole batch is many times
        as fast. Each topic has batches of its own. A batch is published when the one before is
        acknowledged, and it has `batch_bytes` (64 bytes per message included; up to 1 MiB) or
        `linger` seconds have passed since its first message was accepted. `ack`: as in `publish`.

        Memory is bounded over all topics: `Publisher.publish` waits while `buffer_bytes`
        (default: eight batches) or `buffer_messages` (default: no bound of their own) wait or are
        in flight, for `max_block` seconds at most (default: without limit).

        Raises:
            ValueError: a number is out of its range.
        """
        limits = Limits(
            batch_bytes=batch_bytes,
            linger_s=seconds_of(linger, what="linger"),
            buffer_bytes=buffer_bytes,
            buffer_count=buffer_messages,
            max_block_s=maybe_seconds_of(max_block, what="max_block"),
            exit_s=self._timeout_s,
        )
        return Publisher(self._driver, self._retries, limits, ack_of(ack))

    def offsets(self, topic: TopicLike, *, isolation: IsolationLike = "committed") -> Offsets:
        """Where the topic begins, and up to where this reader can read it (protocol §3.6).

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        return self._send(read_calls.offsets(topic, isolation=isolation))

    def explain(
        self,
        topic: TopicLike,
        id: MessageId | str,
        *,
        isolation: IsolationLike | None = None,
        transaction: Transaction | int | None = None,
    ) -> Explanation:
        """Why a reader receives this message, or does not (protocol §3.14). The reader is one with
        this isolation (`committed` by default), or reads in `transaction`: the value itself is a
        snapshot, and a pointer is that of a transaction in progress.

        Raises:
            TransactionNotInProgressError: the pointer's transaction has ended.
            TransactionUnknownError: the server knows no transaction of the pointer.
        """
        return self._send(
            topic_calls.explain(topic, id, isolation=isolation, transaction=transaction)
        )

    def rows(
        self,
        topic: TopicLike,
        start: Start | None = None,
        *,
        limit: int = 100,
        order: RowOrder = "ascending",
    ) -> RowPage:
        """The rows that are stored of a topic or partition, in whatever state (protocol §3.13).

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        return self._send(topic_calls.rows(topic, start, limit=limit, order=order))

    def metrics(self) -> str:
        """The metrics of the server, in the text format of Prometheus (protocol §7)."""
        return self._send(topic_calls.METRICS)

    def health(self) -> Health:
        """The state of the server and its components. A server that is not ready is no error here.

        Raises:
            ConnectionLostError: it can't be reached.
        """
        return self._send(topic_calls.HEALTH)

    def disk_use(self) -> DiskUse:
        """What is free on the disks of the server, and what its message store takes there.

        Raises:
            StorageUnavailableError: messages are down.
        """
        return self._send(topic_calls.DISK_USE)

    def reclaim_space(self) -> Reclaimed:
        """Delete what has expired, and free the space of all that was deleted, up to about 1 GiB.

        Raises:
            StorageUnavailableError: messages are down, or the disk is too full to delete any.
        """
        return self._send(topic_calls.RECLAIM_SPACE)

    def transaction(
        self,
        *participants: TransactionAware,
        type: TransactionTypeLike = "short",
        timeout: Duration | None = None,
        chain: bool = False,
    ) -> TransactionContext:
        """A context that starts a transaction, commits it at its end, and rolls back on an error.

            with client.transaction(rows) as tx:
                rows.put(b"apple", b"41")
                tx.publish(orders, "sold one apple")

        `type`: `short`, checked for conflicts, or `long`, which is not. `timeout`: seconds until
        the server ends it (default: the server's 30; not for a long one).

        `chain`: each commit also starts the transaction of the next block of this context, in the
        same call (SQL: COMMIT AND CHAIN). It is for a loop of transactions. The snapshot of that
        block is as old as the commit before it, at most 0.1 seconds; a block that begins later
        starts a transaction of its own. `end_chain` ends the last one, which no block has used;
        `close` does so for the contexts that still exist.

        Raises, when its block ends:
            TransactionConflictError: another transaction committed an equal change; see `run`.
            OutcomeUnknownError: it may have committed, and nothing was rolled back.
            Exception: the error of the block or of a participant, after all were rolled back.
        """
        return self._open(
            participants,
            type=type,
            timeout_s=maybe_seconds_of(timeout, what="timeout"),
            chain=of_type(chain, bool, "chain"),
        ).context

    def sql_transaction(
        self,
        database: SqlDatabase[D],
        connection: D,
        *,
        timeout: Duration | None = None,
    ) -> SqlTransaction:
        """A transaction of your database in which messages are published: both commit, or neither.

            shop = SqlAlchemyDatabase(engine, "shop")
            with client.sql_transaction(shop, session) as tx:
                session.add(Order(item="apple"))
                tx.publish(orders, "sold one apple")

        `database`: one of the classes in `tuff.sql.sqlalchemy`, `tuff.sql.psycopg`,
        `tuff.sql.asyncpg`, `tuff.sql.sqlite` or `tuff.sql.django`; keep it, as it remembers what it
        has checked. `connection`: the session or connection of that library; the block commits it
        at its end. `timeout`: seconds from the first message to the end of the block (default: the
        server's 30).

        Raises: TypeError: `database` or `connection` is of another class.

        Raises, when its block begins or ends:
            WrongStateError: the connection or the database is unsuitable; it says what to do.
            OutcomeUnknownError: the database can't say now whether it committed. A resolver makes
                the messages follow the rows.
            Exception: the error of the block, of the database or of the server, after all was
                rolled back.
        """
        timeout_s = maybe_seconds_of(timeout, what="timeout")
        protocol = SqlProtocol(
            self._retries,
            self._decider_of(database),
            database.joined(connection),
            timeout_s=timeout_s,
            client=self.client_id,
        )
        return SqlTransaction(protocol, self._driver)

    def sql_resolver(self, database: SqlDatabase[Any], *, every: Duration = EVERY_S) -> SqlResolver:
        """Settles prepared transactions of a database whose program died, as the database decided.

        At least one process of the application runs one; several are harmless. `every`: seconds
        between two rounds; what is prepared in two successive rounds is asked about.
        """
        every_s = checked_every_s(seconds_of(every, what="every"))
        flows = ResolverFlows(self._decider_of(database), self._retries, every_s=every_s)
        return SqlResolver(flows, self._driver)

    def _decider_of(self, database: SqlDatabase[D]) -> Decider[D]:
        require_database(database)
        decider: Decider[D] | None = self._deciders.get(database)
        if decider is None:
            decider = self._deciders[database] = Decider(database)
        return decider

    def run(
        self,
        function: Callable[[TransactionContext], T],
        *participants: TransactionAware,
        timeout: Duration | None = None,
        attempts: int = 20,
    ) -> T:
        """Run `function(tx)` in a transaction, and again in a new one after each conflict.

            left = client.run(lambda tx: sell_one(stock, b"apple"), stock)

        Returns its result. `timeout`: seconds that each attempt has, as in `transaction`. It runs
        up to `attempts` times, after waits that grow from 5 ms to half a second, so what it does
        outside of the transaction must be repeatable.

        Raises:
            TransactionConflictError: the last attempt conflicted too.
            Exception: as `transaction`.
        """
        timeout_s = maybe_seconds_of(timeout, what="timeout")
        flow = rerun(
            lambda: self._open(participants, timeout_s=timeout_s),
            function,
            attempts=attempts,
            backoff=CONFLICT_BACKOFF,
        )
        result: T = self._driver.run(flow)
        return result

    def subscriber(
        self,
        topic: TopicLike,
        process: Callable[[Sequence[Message], TransactionContext], object],
        *,
        positions: Positions,
        start: Start | None = None,
        isolation: IsolationLike = "committed",
        batch: int = 500,
        wait: Duration = 30.0,
        attempts: int = 5,
        outage: tuple[type[BaseException], ...] = (),
        dead_letters: TopicLike | None = None,
        tags: str | None = None,
    ) -> Subscriber:
        """Processes every message of a topic exactly once, with respect to `positions`.

            def process(messages, tx):
                stock.put(b"last sold", messages[-1].payload)

            positions = tuff.TablePositions(stock, "seller")
            client.subscriber(orders, process, positions=positions).run()

        It reads all partitions, also those that are added later, or the one that is named. Each
        batch of at most `batch` messages of one partition is processed in a transaction that also
        stores its new position, in the participant `positions`: both commit, or neither. `start`,
        `isolation` and `tags` are those of `subscribe`, `start` for the first time only. It waits
        up to `wait` seconds for messages. An error rolls the batch back. Then each message is tried
        alone, with growing waits, and one that has failed `attempts` times (that batch included)
        goes to `dead_letters` (default: topic `<topic>.dlq`, created when needed). Conflicts, a
        server that is away, and errors of the classes `outage` are no failures.

        Raises: ValueError, TypeError: an argument, or the signature of `process`, is not valid.
        """
        check_positions(positions)
        wait_s, limit = seconds_of(wait, what="wait"), number_of(batch, "batch")
        read = PollQuestion(start=start, isolation=isolation, limit=limit, wait_s=wait_s, tags=tags)
        plan = SubscriberPlan(
            topic=topic_of(topic),
            question=read,
            process=process,
            open_one=lambda: self._open((positions,), is_renewed=True),
            load=positions.load,
            save=positions.save,
            attempts=attempts,
            outage=outage,
            dead_letters=None if dead_letters is None else topic_of(dead_letters),
            name=getattr(positions, "position_name", None),
        )
        return Subscriber(SubscriberFlows(plan, self._retries), self._driver)

    @overload
    def consumer(
        self,
        topics: TopicLike | Collection[TopicLike],
        *,
        group: str,
        database: None = None,
        mode: DeliveryModeLike | None = None,
        start: GroupStartLike | None = None,
        isolation: IsolationLike | None = None,
        batch: int = 500,
        assignor: Assignor = "sticky",
        instance_id: str | None = None,
        retry: RetryPolicy | None = None,
        on_outage: OnOutage = "wait",
        tags: str | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> Consumer: ...
    @overload
    def consumer(
        self,
        topics: TopicLike | Collection[TopicLike],
        *,
        group: str,
        database: SqlDatabase[D],
        mode: DeliveryModeLike | None = None,
        start: GroupStartLike | None = None,
        isolation: IsolationLike | None = None,
        batch: int = 500,
        assignor: Assignor = "sticky",
        instance_id: str | None = None,
        retry: RetryPolicy | None = None,
        on_outage: OnOutage = "wait",
        tags: str | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> Consumer[SqlTransaction, D]: ...
    def consumer(
        self,
        topics: TopicLike | Collection[TopicLike],
        *,
        group: str,
        database: SqlDatabase[Any] | None = None,
        mode: DeliveryModeLike | None = None,
        start: GroupStartLike | None = None,
        isolation: IsolationLike | None = None,
        batch: int = 500,
        assignor: Assignor = "sticky",
        instance_id: str | None = None,
        retry: RetryPolicy | None = None,
        on_outage: OnOutage = "wait",
        tags: str | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> Consumer[Any, Any]:
        """A member of a consumer group: the members share the partitions of these topics, and the
        group has an offset for each. If they are of several namespaces, name it as `shop:billing`.

        `mode`: `at_least_once` (the default) commits the offset of a batch after it was processed;
        `at_most_once` before it is handed out; `exactly_once` with the transaction of the batch.
        `database`: exactly once into your database, whose table `tuff_positions` has the offsets
        (docs/howto/sql.md). `start`: where a new group begins, `earliest` or `latest`. `isolation`,
        `tags`: as in `poll`. `retry`: what becomes of messages that fail. None: as the preferences
        of the group say, else `earliest`, committed messages, all tags, no retries. `batch`: how
        many messages one has at most. `assignor`: `range`, `round_robin`, `sticky`. `instance_id`:
        of a static member, which keeps its partitions while it restarts. `on_outage`: `wait` for a
        server that is away, or `raise` after the client's `retries`. `poll` calls the callbacks.

        Raises: ValueError, TypeError: an argument is not valid.
        """
        plan = ConsumerPlan(
            name=group,
            topics=topics_of(topics),
            mode=mode_of(mode, has_database=database is not None),
            preferences=GroupPreferences(start=start, isolation=isolation, tags=tags, retry=retry),
            batch=batch,
            assignor=assignor,
            instance_id=instance_id,
            client=self.client_id,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
            attempts_max=self._retries.bound(on_outage),
            attempts_min=self._retries.count,
        )
        return self._consumer(plan, database)

    def _consumer(
        self, plan: ConsumerPlan, database: SqlDatabase[Any] | None
    ) -> Consumer[Any, Any]:
        member_id, place = new_member_id(), None
        opening: Open[Any] = self._open
        if database is not None:
            place = GroupPositions(self._decider_of(database), plan, member_id)
            opening = partial(self._open_for_database, place)
        flows = ConsumerFlows(plan, member_id, opening, elapsed_s=perf_counter, place=place)
        return Consumer(flows, self._driver)

    def share_consumer(
        self,
        topic: TopicLike,
        *,
        group: str,
        mode: DeliveryModeLike = "at_least_once",
        order: ShareOrder | None = None,
        tags: str | None = None,
        start: Start = "earliest",
        lease: Duration = 30.0,
        batch: int = 10,
        retry: RetryPolicy | None = None,
        on_outage: OnOutage = "wait",
    ) -> ShareConsumer:
        """A worker of a share group: the workers share the messages of a topic, or of one
        partition. A message that fails, or is slow, blocks no other.

            with client.share_consumer(orders, group="billing") as consumer:
                for message in consumer:
                    print(message.payload)

        `mode`: `at_least_once` accepts messages after they were processed; `exactly_once` by the
        transaction that processes them, see `ShareConsumer.transaction`. The first worker creates
        the group: `start`, as in `poll`, is where it begins; with the `order` `key`, a message
        waits until the one before it of the same key is done; `tags`, as in `poll`, select its
        messages. An `order` or `tags` of None are those of the group. `lease`: for how many seconds
        the server waits for a sign of life, 0.1 to 43200; leases are renewed while the consumer is
        open. `batch`: how many messages it takes at once, up to 1,000. `retry`: what becomes of
        messages that fail, in `run` or by `nack`. `on_outage`: as in `consumer`.

        Raises:
            ValueError: a word or a number is not possible.
        """
        plan = SharePlan(
            group=ShareGroupId(topic=topic_of(topic), name=group),
            mode=mode,
            order=order,
            tags=tags,
            start=start,
            lease_s=seconds_of(lease, what="lease"),
            count=batch,
            retry=retry,
            attempts_max=self._retries.bound(on_outage),
            attempts_min=self._retries.count,
        )
        flows = ShareConsumerFlows(plan, self._open, perf_counter)
        return ShareConsumer(flows, self._driver)

    def _open_for_database(
        self,
        place: GroupPositions,
        connection: Collection[Any],
        end: Callable[[int], Call[None]],
        timeout_s: float | None,
    ) -> Opened[SqlTransaction]:
        block = place.block(connection)
        protocol = SqlProtocol(
            self._retries,
            place.decider,
            block,
            timeout_s=timeout_s,
            client=self.client_id,
            position=lambda: place.save(block, end),
        )
        return Opened(protocol, SqlTransaction(protocol, self._driver))

    def _publish(self, make: MakePublish[T]) -> T:
        return self._driver.run(self._retries.publish(make))

    def _open(
        self,
        participants: Collection[TransactionAware],
        offsets: Callable[[int], Call[None]] | None = None,
        timeout_s: float | None = None,
        *,
        type: TransactionTypeLike = "short",
        chain: bool = False,
        is_renewed: bool = False,
    ) -> Opened[TransactionContext]:
        protocol = CommitProtocol(
            self._retries,
            participants,
            type=type,
            timeout_s=timeout_s,
            client=self.client_id,
            offsets=offsets,
            chain_elapsed_s=perf_counter if chain else None,
            is_renewed=is_renewed,
        )
        if chain:
            self._chained.add(protocol)
        return Opened(protocol, TransactionContext(protocol, self._driver))
