"""`client.topics` and `client.delayed`: the calls of protocol §2 and §3.10."""

from typing import Protocol, TypeVar

from tuff import calls
from tuff.calls import Call, Duration, Properties, Start
from tuff.protocol.errors import PartitionRequiredError
from tuff.protocol.ids import MessageId, TopicId
from tuff.replies import DelayedMessage, Hold, NamedPosition, Splits, TopicInfo

T = TypeVar("T")

# Inside the class, `list` is a method.
Names = list[str]
Holds = list[Hold]
NamedPositions = list[NamedPosition]
DelayedMessages = list[DelayedMessage]


class AsyncSend(Protocol):
    """Sends a call, and repeats it if that is safe."""

    async def __call__(self, call: Call[T]) -> T: ...


class AsyncTopics:
    """The topics of one server. Safe to share between the tasks of one event loop."""

    def __init__(self, send: AsyncSend) -> None:
        self._send = send

    async def create(
        self,
        topic: TopicId,
        *,
        ttl: Duration | None = None,
        properties: Properties | None = None,
        partitions: int | None = None,
    ) -> None:
        """Create a topic, durably.

        `ttl`: the time to live of its messages in whole seconds (default: the server's).
        `properties`: any strings to store with it. `partitions`: their number, 1 to 1,000 (default:
        1). After a lost reply it is not repeated: check whether the topic exists.

        Raises:
            TopicExistsError: the topic exists already.
        """
        given = calls.topic_properties(ttl, properties, partitions)
        await self._send(calls.create_topic(topic, given))

    async def update(
        self,
        topic: TopicId,
        *,
        ttl: Duration | None = None,
        properties: Properties | None = None,
        partitions: int | None = None,
    ) -> None:
        """Replace *all* properties, including the ttl. A longer ttl restores no expired message.

        `partitions`: how many take messages from now on; None changes nothing. More are added with
        new numbers. With fewer, those with the highest numbers are retired: they take no messages,
        and are read until these have expired.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        given = calls.topic_properties(ttl, properties, partitions)
        await self._send(calls.update_topic(topic, given))

    async def delete(self, topic: TopicId) -> None:
        """Delete a topic with its messages; created again, it begins empty.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        await self._send(calls.delete_topic(topic))

    async def get(self, topic: TopicId) -> TopicInfo:
        """A topic's generation, properties and partitions. Raises: TopicNotFoundError."""
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
        """At most `count` parts of about equal size, to be polled in parallel: each from its
        `start`, exclusive, and `through` its `end`. `start` and `end` limit the range (default: the
        whole topic).

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        return await self._send(calls.splits(topic, count, start=start, end=end))

    async def truncate(self, topic: TopicId, before: Start) -> MessageId | None:
        """Remove everything before a position (an id, its hex, or a publish time), durably and for
        every reader; returns the id of the oldest remaining message. A position in the future means
        all messages of this moment, and no later one. A topic is truncated with all its partitions.

        Raises:
            TopicNotFoundError: the topic does not exist.
            TopicHeldError: a hold covers what would be removed.
        """
        try:
            latest = await self._send(calls.latest_position(topic))
        except PartitionRequiredError:
            # It is the same for all topics of a server.
            latest = await self._send(calls.latest_position(topic.partition(0)))
        return await self._send(calls.truncate(topic, before, latest=latest))

    async def hold(self, topic: TopicId, name: str, start: Start, *, max_age: Duration) -> Hold:
        """Keep messages from `start` on (an id, its hex, or a publish time) beyond the topic's time
        to live, for `max_age` seconds; durably. Set it again to renew or to move it.

        Its `first` is later than `start` if messages had expired already. A message's own ttl still
        applies.

        Raises:
            TopicNotFoundError: the topic does not exist.
            BadRequestError: `max_age` is not above 0, or above the server's `messaging.hold_max`.
        """
        return await self._send(
            calls.set_hold(topic, name, start, max_age_s=calls.seconds_of(max_age, what="max_age"))
        )

    async def holds(self, topic: TopicId) -> Holds:
        """The holds of a topic that have not expired, by name."""
        return await self._send(calls.list_holds(topic))

    async def release(self, topic: TopicId, name: str) -> None:
        """End a hold: the topic's time to live applies again at once.

        Raises:
            HoldNotFoundError: it does not exist, or has expired.
        """
        await self._send(calls.delete_hold(topic, name))

    async def set_position(
        self, topic: TopicId, name: str, position: MessageId | str
    ) -> NamedPosition:
        """Record the position of a reader, durably. It does not keep messages from removal."""
        return await self._send(calls.set_position(topic, name, position))

    async def position(self, topic: TopicId, name: str) -> NamedPosition:
        """The recorded position of a reader. Raises: PositionNotFoundError."""
        return await self._send(calls.get_position(topic, name))

    async def positions(self, topic: TopicId) -> NamedPositions:
        """The named positions of a topic, by name."""
        return await self._send(calls.list_positions(topic))

    async def delete_position(self, topic: TopicId, name: str) -> None:
        """Remove a position. Raises: PositionNotFoundError."""
        await self._send(calls.delete_position(topic, name))

    async def namespaces(self) -> Names:
        """The namespaces that have topics, in byte order."""
        return await self._send(calls.list_namespaces())


class AsyncDelayed:
    """Messages that wait until they are due: `client.delayed`. `AsyncClient.publish` sends them
    (protocol §3.10)."""

    def __init__(self, send: AsyncSend) -> None:
        self._send = send

    async def list(
        self, topic: TopicId, *, after: str | None = None, limit: int = 100, payloads: bool = False
    ) -> DelayedMessages:
        """The next messages that wait, behind the id `after`, in the order in which they become
        due; at most `limit`, and at most 1,000. It may be fewer, as their size is limited: only
        an empty page is the end of the list.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        return await self._send(
            calls.list_delayed(topic, after=after, limit=limit, payloads=payloads)
        )

    async def cancel(self, topic: TopicId, delayed_id: str) -> None:
        """Delete a message that waits, durably: it never enters the topic.

        Raises:
            DelayedNotFoundError: it has entered, was cancelled, or never existed.
        """
        await self._send(calls.cancel_delayed(topic, delayed_id))
