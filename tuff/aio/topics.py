"""`client.topics`: the calls of protocol §2."""

from typing import Protocol, TypeVar

from tuff import calls
from tuff.calls import Call, Duration, Properties, Start
from tuff.protocol.ids import MessageId, TopicId
from tuff.replies import Hold, NamedPosition, Splits, TopicInfo

T = TypeVar("T")

# Inside the class, `list` is a method.
Names = list[str]
Holds = list[Hold]
NamedPositions = list[NamedPosition]


class AsyncSend(Protocol):
    """Sends a call, and again where that is safe."""

    async def __call__(self, call: Call[T]) -> T: ...


class AsyncTopics:
    """The topics of one server. Safe to share between the tasks of one event loop."""

    def __init__(self, send: AsyncSend) -> None:
        self._send = send

    async def create(
        self, topic: TopicId, *, ttl: Duration | None = None, properties: Properties | None = None
    ) -> None:
        """Create a topic, durably.

        `ttl`: whole seconds that its messages live (default: the server's). `properties`: whatever
        you want to keep with it. After a lost answer it is not sent again: look if it is there.

        Raises:
            TopicExistsError: there is one of that name.
        """
        await self._send(calls.create_topic(topic, calls.topic_properties(ttl, properties)))

    async def update(
        self, topic: TopicId, *, ttl: Duration | None = None, properties: Properties | None = None
    ) -> None:
        """Replace *all* properties, the ttl included. A longer ttl brings nothing back.

        Raises:
            TopicNotFoundError: there is none of that name.
        """
        await self._send(calls.update_topic(topic, calls.topic_properties(ttl, properties)))

    async def delete(self, topic: TopicId) -> None:
        """Delete a topic with its messages; created again, it begins empty.

        Raises:
            TopicNotFoundError: there is none of that name.
        """
        await self._send(calls.delete_topic(topic))

    async def get(self, topic: TopicId) -> TopicInfo:
        """A topic's generation and properties. Raises: TopicNotFoundError."""
        return await self._send(calls.get_topic(topic))

    async def list(self, namespace: str) -> Names:
        """The names of a namespace's topics, in byte order; empty if there are none."""
        return await self._send(calls.list_topics(namespace))

    async def splits(
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
        return await self._send(calls.splits(topic, count, start=start, end=end))

    async def truncate(self, topic: TopicId, before: Start) -> MessageId | None:
        """Remove everything before a place (an id, its hex, or a publish time), durably and for
        every reader; returns the oldest message that is left. What is older never comes back.
        A place to come means all that is there when you call, and nothing that comes later.

        Raises:
            TopicNotFoundError: there is none of that name.
            TopicHeldError: a hold covers what would be removed.
        """
        latest = await self._send(calls.latest_position(topic))
        return await self._send(calls.truncate(topic, before, latest=latest))

    async def hold(self, topic: TopicId, name: str, start: Start, *, max_age: Duration) -> Hold:
        """Keep messages from `start` on (an id, its hex, or a publish time) from the topic's time
        to live, for `max_age` seconds; durably. Set it again to renew it, or to move it on.

        Its `first` is later than `start` where messages had expired already. A message's own ttl
        still holds.

        Raises:
            TopicNotFoundError: there is none of that name.
            BadRequestError: `max_age` is not above 0, or above the server's `messaging.hold_max`.
        """
        return await self._send(
            calls.set_hold(topic, name, start, max_age_s=calls.seconds_of(max_age, what="max_age"))
        )

    async def holds(self, topic: TopicId) -> Holds:
        """The holds of a topic that are not over, by name."""
        return await self._send(calls.list_holds(topic))

    async def release(self, topic: TopicId, name: str) -> None:
        """End a hold: the topic's time to live counts again at once.

        Raises:
            HoldNotFoundError: there is none of that name, or it is over.
        """
        await self._send(calls.delete_hold(topic, name))

    async def set_position(
        self, topic: TopicId, name: str, position: MessageId | str
    ) -> NamedPosition:
        """Record the position of a reader, durably. It keeps nothing from removal."""
        return await self._send(calls.set_position(topic, name, position))

    async def position(self, topic: TopicId, name: str) -> NamedPosition:
        """The recorded position of a reader. Raises: PositionNotFoundError."""
        return await self._send(calls.get_position(topic, name))

    async def positions(self, topic: TopicId) -> NamedPositions:
        """The named positions of a topic, by name."""
        return await self._send(calls.list_positions(topic))

    async def delete_position(self, topic: TopicId, name: str) -> None:
        """Forget a position. Raises: PositionNotFoundError."""
        await self._send(calls.delete_position(topic, name))

    async def namespaces(self) -> Names:
        """The namespaces that hold a topic, in byte order."""
        return await self._send(calls.list_namespaces())
