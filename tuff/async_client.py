"""The asyncio client: the methods of `tuff.client` as coroutines, run by `tuff.async_driver`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any, TypeVar

from tuff import calls
from tuff.async_driver import AsyncDriver
from tuff.async_publisher import AsyncPublisher
from tuff.async_transport import AsyncTransport
from tuff.calls import Call, Duration, Payload, PollBatch, PollQuestion, Start, poll_batch
from tuff.client import CONFLICT_BACKOFF, DEFAULT_URL, address_of, client_name, retries_of
from tuff.commit import AsyncTransactionAware, CommitProtocol, Opened, rerun
from tuff.context import AsyncTransactionContext
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import IsolationLike, Message, RollbackDetail
from tuff.protocol.transaction import Transaction, TransactionTypeLike
from tuff.publisher import BATCH_BYTES, LINGER_S, Delivery
from tuff.replies import Health, Offsets, Poll, Published
from tuff.retries import Retries
from tuff.sinks import AsyncSinks
from tuff.subscriber import (
    AsyncPositions,
    AsyncSubscriber,
    Consumption,
    Plan,
    Subscription,
    keep_for,
)
from tuff.topics import AsyncTopics
from tuff.transactions import AsyncTransactions, write_pointer_of

T = TypeVar("T")


class AsyncClient:
    """As `Client`, with coroutines, for the tasks of one event loop. It connects with its first
    call; use it with `async with`, or await it and close it.

        async with tuff.AsyncClient("http://127.0.0.1:7411") as client:
            await client.publish(tuff.TopicId("shop", "orders"), "hello")

    Raises:
        ValueError: `url` is no address, or a number is out of its range.
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
    ) -> None:
        address = address_of(url, timeout, connect_timeout, token=token, ssl_context=ssl_context)
        self._set(AsyncTransport(address), client_name(client_id), retries_of(retries))

    @classmethod
    def _over(cls, transport: AsyncTransport, client_id: str, retries: Retries) -> "AsyncClient":
        """A client over a transport that is there already; for tests."""
        client = cls.__new__(cls)
        client._set(transport, client_id, retries)  # noqa: SLF001 - of the same class
        return client

    def _set(self, transport: AsyncTransport, client_id: str, retries: Retries) -> None:
        self._transport = transport
        self._driver = AsyncDriver(transport, pause=asyncio.sleep)
        self._retries = retries
        self.client_id = client_id
        self.topics = AsyncTopics(self._send)
        self.transactions = AsyncTransactions(self._send, client_id)
        self.sinks = AsyncSinks(self._send, client_id)

    @property
    def url(self) -> str:
        """The address this client speaks to."""
        return self._transport.url

    async def close(self) -> None:
        """Close the connections; calling it again is harmless."""
        await self._transport.close()

    def __await__(self) -> Generator[Any, None, "AsyncClient"]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def publish(
        self,
        topic: TopicId,
        *messages: Payload,
        transaction: Transaction | int | None = None,
        ttl: Duration | None = None,
    ) -> Published:
        """As `Client.publish`."""
        pointer = None if transaction is None else write_pointer_of(transaction)
        payloads = calls.payloads_of(topic, messages)
        return await self._send(
            calls.publish(topic, payloads, pointer=pointer, ttl_s=calls.ttl_of(ttl))
        )

    async def store(
        self,
        topic: TopicId,
        *messages: Payload,
        transaction: Transaction | int,
        ttl: Duration | None = None,
    ) -> None:
        """As `Client.store`."""
        pointer = write_pointer_of(transaction)
        payloads = calls.payloads_of(topic, messages)
        await self._send(calls.store(topic, payloads, pointer=pointer, ttl_s=calls.ttl_of(ttl)))

    async def publish_stored(self, topic: TopicId, *, transaction: Transaction | int) -> Published:
        """As `Client.publish_stored`."""
        pointer = write_pointer_of(transaction)
        return await self._send(calls.publish(topic, [], pointer=pointer, ttl_s=None))

    async def rollback(self, topic: TopicId, detail: RollbackDetail) -> None:
        """As `Client.rollback`."""
        await self._send(calls.rollback(topic, detail))

    async def poll(
        self,
        topic: TopicId,
        start: Start | None = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        transaction: Transaction | int | None = None,
        isolation: IsolationLike | None = None,
        undecided: str = "hold",
        wait: Duration = 0,
        through: MessageId | str | None = None,
    ) -> Poll:
        """As `Client.poll`."""
        question = PollQuestion(
            start=start,
            inclusive=inclusive,
            limit=limit,
            transaction=transaction,
            isolation=isolation,
            undecided=undecided,
            wait_s=calls.seconds_of(wait, what="wait"),
            through=through,
        )
        return await self._send(calls.poll(topic, question))

    async def poll_batch(self, topic: TopicId, question: PollQuestion) -> PollBatch:
        """As `Client.poll_batch`."""
        return await self._send(poll_batch(topic, question))

    async def subscribe(
        self,
        topic: TopicId,
        start: Start | None = None,
        *,
        isolation: IsolationLike = "committed",
        limit: int = 1_000,
        wait: Duration = 30.0,
    ) -> AsyncIterator[Message]:
        """As `Client.subscribe`: `async for message in client.subscribe(orders): …`."""
        question = PollQuestion(
            start=start,
            isolation=isolation,
            limit=limit,
            wait_s=calls.seconds_of(wait, what="wait"),
        )
        subscription = Subscription(topic, question)
        while True:
            for message in await self._driver.run(subscription.poll()):
                yield message

    def publisher(
        self,
        topic: TopicId,
        *,
        linger: Duration = LINGER_S,
        batch_bytes: int = BATCH_BYTES,
        ttl: Duration | None = None,
    ) -> AsyncPublisher:
        """As `Client.publisher`: `async with client.publisher(orders) as publisher: …`."""
        delivery = Delivery(topic, calls.ttl_of(ttl), self._retries)
        linger_s = calls.seconds_of(linger, what="linger")
        return AsyncPublisher(delivery, self._driver, batch_bytes=batch_bytes, linger_s=linger_s)

    async def offsets(self, topic: TopicId, *, isolation: IsolationLike = "committed") -> Offsets:
        """As `Client.offsets`."""
        return await self._send(calls.offsets(topic, isolation=isolation))

    async def health(self) -> Health:
        """As `Client.health`."""
        return await self._send(calls.health())

    def transaction(
        self,
        *participants: AsyncTransactionAware,
        type: TransactionTypeLike = "short",
        timeout: Duration | None = None,
    ) -> AsyncTransactionContext:
        """As `Client.transaction`: `async with client.transaction(rows) as tx: …`."""
        return self._open(
            participants, type=type, timeout_s=calls.maybe_seconds_of(timeout, what="timeout")
        ).context

    async def run(
        self,
        function: Callable[[AsyncTransactionContext], Awaitable[T]],
        *participants: AsyncTransactionAware,
        attempts: int = 20,
    ) -> T:
        """As `Client.run`; `function` is a coroutine function."""
        flow = rerun(
            lambda: self._open(participants), function, attempts=attempts, backoff=CONFLICT_BACKOFF
        )
        result: T = await self._driver.run(flow)
        return result

    def subscriber(
        self,
        topic: TopicId,
        process: Callable[[Sequence[Message], AsyncTransactionContext], object],
        *,
        positions: AsyncPositions,
        start: Start | None = None,
        isolation: IsolationLike = "committed",
        batch: int = 100,
        wait: Duration = 30.0,
        attempts: int = 5,
        dead_letters: TopicId | None = None,
    ) -> AsyncSubscriber:
        """As `Client.subscriber`; `process` may be a coroutine function, and so may the methods of
        `positions`."""
        wait_s = calls.seconds_of(wait, what="wait")
        plan = Plan(
            topic=topic,
            question=PollQuestion(start=start, isolation=isolation, limit=batch, wait_s=wait_s),
            process=process,
            open_one=lambda: self._open((positions,)),
            load=positions.load,
            save=positions.save,
            attempts=attempts,
            dead_letters=dead_letters,
        )
        consumption = Consumption(plan, self._retries)
        keep_for(topic, positions)
        return AsyncSubscriber(consumption, self._driver)

    async def _send(self, call: Call[T]) -> T:
        return await self._driver.run(self._retries.ask(call))

    def _open(
        self,
        participants: Collection[AsyncTransactionAware],
        *,
        type: TransactionTypeLike = "short",
        timeout_s: float | None = None,
    ) -> Opened[AsyncTransactionContext]:
        protocol = CommitProtocol(
            self._retries, participants, type=type, timeout_s=timeout_s, client=self.client_id
        )
        return Opened(protocol, AsyncTransactionContext(protocol, self._driver))
