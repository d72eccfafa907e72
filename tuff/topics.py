"""`client.topics`: the calls of protocol §2, blocking and for asyncio."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from tuff import calls, job_calls
from tuff.calls import Call
from tuff.protocol.ids import MessageId
from tuff.protocol.names import TopicId
from tuff.replies import Splits, TopicInfo

T = TypeVar("T")

Names = list[str]  # inside the classes, `list` is a method
Properties = Mapping[str, str | int]


class Send(Protocol):
    """Sends a call, and again where that is safe."""

    def __call__(self, call: Call[T]) -> T: ...


class AsyncSend(Protocol):
    """As `Send`, on an event loop."""

    async def __call__(self, call: Call[T]) -> T: ...


class Topics:
    """The topics of one server. Safe to share between threads."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def create(
        self, topic: TopicId, *, ttl: int | None = None, properties: Properties | None = None
    ) -> None:
        """Create a topic, durably.

        `ttl`: whole seconds that its messages live (default: the server's). `properties`: whatever
        you want to keep with it. After a lost answer it is not sent again: look if it is there.

        Raises:
            TopicExistsError: there is one of that name.
        """
        self._send(calls.create_topic(topic, _properties(ttl, properties)))

    def update(
        self, topic: TopicId, *, ttl: int | None = None, properties: Properties | None = None
    ) -> None:
        """Replace *all* properties, the ttl included. A longer ttl brings nothing back.

        Raises:
            TopicNotFoundError: there is none of that name.
        """
        self._send(calls.update_topic(topic, _properties(ttl, properties)))

    def delete(self, topic: TopicId) -> None:
        """Delete a topic with its messages; created again, it begins empty.

        Raises:
            TopicNotFoundError: there is none of that name.
        """
        self._send(calls.delete_topic(topic))

    def get(self, topic: TopicId) -> TopicInfo:
        """A topic's generation and properties. Raises: TopicNotFoundError."""
        return self._send(calls.get_topic(topic))

    def list(self, namespace: str) -> Names:
        """The names of a namespace's topics, in byte order; empty if there are none."""
        return self._send(calls.list_topics(namespace))

    def splits(
        self,
        topic: TopicId,
        count: int,
        *,
        start: MessageId | str | None = None,
        end: MessageId | str | None = None,
    ) -> Splits:
        """At most `count` parts of about equal size, to be polled side by side: each with its
        `start`, exclusive, and `through` its `end`. Without `start` and `end`, all that is there.

        Raises:
            TopicNotFoundError: there is none of that name.
        """
        return self._send(job_calls.splits(topic, count, start=start, end=end))

    def namespaces(self) -> Names:
        """The namespaces that hold a topic, in byte order."""
        return self._send(calls.list_namespaces())


class AsyncTopics:
    """As `Topics`, with coroutines."""

    def __init__(self, send: AsyncSend) -> None:
        self._send = send

    async def create(
        self, topic: TopicId, *, ttl: int | None = None, properties: Properties | None = None
    ) -> None:
        """As `Topics.create`."""
        await self._send(calls.create_topic(topic, _properties(ttl, properties)))

    async def update(
        self, topic: TopicId, *, ttl: int | None = None, properties: Properties | None = None
    ) -> None:
        """As `Topics.update`."""
        await self._send(calls.update_topic(topic, _properties(ttl, properties)))

    async def delete(self, topic: TopicId) -> None:
        """As `Topics.delete`."""
        await self._send(calls.delete_topic(topic))

    async def get(self, topic: TopicId) -> TopicInfo:
        """As `Topics.get`."""
        return await self._send(calls.get_topic(topic))

    async def list(self, namespace: str) -> Names:
        """As `Topics.list`."""
        return await self._send(calls.list_topics(namespace))

    async def splits(
        self,
        topic: TopicId,
        count: int,
        *,
        start: MessageId | str | None = None,
        end: MessageId | str | None = None,
    ) -> Splits:
        """As `Topics.splits`."""
        return await self._send(job_calls.splits(topic, count, start=start, end=end))

    async def namespaces(self) -> Names:
        """As `Topics.namespaces`."""
        return await self._send(calls.list_namespaces())


def _properties(ttl: int | None, properties: Properties | None) -> dict[str, object]:
    given: dict[str, object] = dict(properties or {})
    if ttl is not None:
        given["ttl"] = ttl
    return given
