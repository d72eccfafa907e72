"""`client.topics`, `client.holds`, `client.positions`, `client.delayed` and `client.cluster`: the
calls of protocol §2, §3.8 to §3.10 and §7.1."""

from tuff import topic_calls
from tuff.aio.driver import AsyncDriver
from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.errors import TopicExistsError
from tuff.protocol.ids import MessageId, TopicLike
from tuff.read_calls import Start
from tuff.replies import (
    ClusterState,
    DelayedMessage,
    Drain,
    Hold,
    MessageCount,
    NamedPosition,
    Splits,
    TopicInfo,
    TopicOwners,
    TopicSpace,
    TopicUpdate,
)
from tuff.requests_and_responses import of_type

# Inside the class, `list` is a method.
Names = list[str]
FoundHolds = list[Hold]
FoundPositions = list[NamedPosition]
DelayedMessages = list[DelayedMessage]


class AsyncTopics:
    """The topics of one server. Safe to share between the tasks of one event loop."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._send = driver.ask

    async def create(
        self,
        topic: TopicLike,
        *,
        ttl: Duration | None = None,
        properties: topic_calls.Properties | None = None,
        partitions: int | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a topic, durably.

        `ttl`: the time to live of its messages in whole seconds (default: the server's).
        `properties`: any strings to store with it. `partitions`: their number, 1 to 1,000 (default:
        1). `exist_ok`: leave a topic that exists as it is, whatever its properties are, in place of
        an error. After a lost reply the call is not repeated: make it again with `exist_ok`.

        Raises:
            TopicExistsError: the topic exists already.
        """
        given = topic_calls.topic_properties(ttl, properties, partitions)
        of_type(exist_ok, bool, "exist_ok")
        try:
            await self._send(topic_calls.create_topic(topic, given))
        except TopicExistsError:
            if not exist_ok:
                raise

    async def update(
        self,
        topic: TopicLike,
        *,
        ttl: Duration | None = None,
        properties: topic_calls.ChangedProperties | None = None,
        partitions: int | None = None,
        dry_run: bool = False,
    ) -> TopicUpdate:
        """Change what is named, and nothing else. A property that is None is removed; of the ttl,
        the server's default takes its place.

        A shorter ttl lets messages expire at once: the result says how many, and with `dry_run`
        nothing is changed. A longer ttl restores no expired message.
        `partitions`: how many take messages from now on; None changes nothing. More are added with
        new numbers. With fewer, those with the highest numbers are retired: they take no messages,
        and are read until these have expired.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        given = topic_calls.topic_properties(ttl, properties, partitions)
        return await self._send(topic_calls.update_topic(topic, given, dry_run=dry_run))

    async def delete(self, topic: TopicLike) -> None:
        """Delete a topic with its messages; created again, it begins empty.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        await self._send(topic_calls.delete_topic(topic))

    async def get(self, topic: TopicLike) -> TopicInfo:
        """A topic's generation, properties and partitions. Raises: TopicNotFoundError."""
        return await self._send(topic_calls.get_topic(topic))

    async def list(self, namespace: str) -> Names:
        """The names of a namespace's topics, in byte order; empty if there are none."""
        return await self._send(topic_calls.list_topics(namespace))

    async def count(
        self, topic: TopicLike, *, after: MessageId | str | None = None
    ) -> MessageCount:
        """How many messages a reader can receive: of a topic with all its partitions, or behind
        the id `after` in one partition. A large number is a lower bound.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        return await self._send(topic_calls.count_messages(topic, after=after))

    async def space(self, topic: TopicLike) -> TopicSpace:
        """The bytes of a topic that are live, and those that its files take.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        return await self._send(topic_calls.topic_space(topic))

    async def splits(
        self,
        topic: TopicLike,
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
        return await self._send(topic_calls.splits(topic, count, start=start, end=end))

    async def truncate(self, topic: TopicLike, before: Start) -> MessageId | None:
        """Remove everything before a start, as that of `Client.poll`, durably and for every reader;
        returns the id of the oldest remaining message. "latest" and a start in the future mean all
        messages of this moment, and no later one. A topic is truncated with all its partitions.

        Raises:
            TopicNotFoundError: the topic does not exist.
            TopicHeldError: a hold covers what would be removed.
        """
        return await self._driver.run(topic_calls.truncate(self._driver.retries, topic, before))

    async def namespaces(self) -> Names:
        """The namespaces that have topics, in byte order."""
        return await self._send(topic_calls.LIST_NAMESPACES)


class AsyncHolds:
    """The retention holds of topics: `client.holds` (protocol §3.8).
    Safe to share between the tasks of one event loop."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._send = driver.ask

    async def set(self, topic: TopicLike, name: str, start: Start, *, max_age: Duration) -> Hold:
        """Keep messages from `start` on, as that of `Client.poll`, beyond the topic's time to live,
        for `max_age` seconds, in all partitions; durably. Set it again to renew or to move it.

        Its `first` is later than `start` if messages had expired already. A message's own ttl still
        applies.

        Raises:
            TopicNotFoundError: the topic does not exist.
            BadRequestError: `max_age` is not above 0, or above the server's `messaging.hold_max`.
        """
        max_age_s = seconds_of(max_age, what="max_age")
        setting = topic_calls.set_hold(
            self._driver.retries, topic, name, start, max_age_s=max_age_s
        )
        return await self._driver.run(setting)

    async def list(self, topic: TopicLike) -> FoundHolds:
        """The holds of a topic that have not expired, by name; of several partitions the earliest
        `first` and the latest `expires_at_ms`."""
        return await self._send(topic_calls.list_holds(topic))

    async def delete(self, topic: TopicLike, name: str) -> None:
        """End a hold: the topic's time to live applies again at once.

        Raises:
            HoldNotFoundError: it does not exist, or has expired.
        """
        await self._send(topic_calls.delete_hold(topic, name))


class AsyncNamedPositions:
    """The positions that readers record, for people and for lag: `client.positions` (protocol
    §3.9). Safe to share between the tasks of one event loop."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._send = driver.ask

    async def set(self, topic: TopicLike, name: str, position: MessageId | str) -> NamedPosition:
        """Record the position of a reader, durably. It does not keep messages from removal."""
        return await self._send(topic_calls.set_position(topic, name, position))

    async def get(self, topic: TopicLike, name: str) -> NamedPosition:
        """The recorded position of a reader. Raises: PositionNotFoundError."""
        return await self._send(topic_calls.get_position(topic, name))

    async def list(self, topic: TopicLike) -> FoundPositions:
        """The named positions of a topic, by name."""
        return await self._send(topic_calls.list_positions(topic))

    async def delete(self, topic: TopicLike, name: str) -> None:
        """Remove a position. Raises: PositionNotFoundError."""
        await self._send(topic_calls.delete_position(topic, name))


class AsyncDelayed:
    """Messages that wait until they are due: `client.delayed`. `AsyncClient.publish` sends them
    (protocol §3.10). Of a topic with several partitions, the calls are about all of them."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver

    async def list(
        self,
        topic: TopicLike,
        *,
        after: str | None = None,
        limit: int = 100,
        payloads: bool = False,
    ) -> DelayedMessages:
        """The next messages that wait, behind the id `after`, in the order in which they become
        due; at most `limit`, and at most 1,000. It may be fewer, as their size is limited: only
        an empty page is the end of the list.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        listing = topic_calls.list_delayed(
            self._driver.retries, topic, after=after, limit=limit, payloads=payloads
        )
        return await self._driver.run(listing)

    async def delete(self, topic: TopicLike, delayed_id: str) -> None:
        """Delete a message that waits, durably: it never enters the topic.

        Raises:
            DelayedNotFoundError: it has entered, was cancelled, or never existed.
        """
        deletion = topic_calls.delete_delayed(self._driver.retries, topic, delayed_id)
        await self._driver.run(deletion)


class AsyncCluster:
    """The cluster to which the server belongs: `client.cluster`, for operators (protocol §7.1).
    Safe to share between the tasks of one event loop. A single server answers each call with a
    NotFoundError."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._send = driver.ask

    async def get(self) -> ClusterState:
        """The live servers, and the leader of transactions."""
        return await self._send(topic_calls.GET_CLUSTER)

    async def topics(
        self,
        server_id: str | None = None,
        *,
        limit: int | None = None,
        after: TopicLike | None = None,
    ) -> TopicOwners:
        """The owners of topics, by topic: of those behind `after`, and of one server if it is
        named. `limit`: how many, at most 10,000 (default: 1,000)."""
        return await self._send(topic_calls.list_owners(server_id, limit=limit, after=after))

    async def move(self, topic: TopicLike, server_id: str) -> None:
        """Move a topic to another server.

        Raises:
            ServerNotFoundError: no live server has that id.
            TopicNotMovableError: the topic is there already, or the server is draining.
            TopicNotFoundError: the topic was never created.
        """
        await self._send(topic_calls.move_topic(topic, server_id))

    async def drain(self, server_id: str, *, wait: Duration = 0) -> Drain:
        """Let a server give its topics to the others and claim no more, until `undrain` or its next
        start. Returns when it has none left, or after `wait`, 60 seconds at most; the drain goes on
        behind that.

        Raises:
            ServerNotFoundError: no live server has that id.
            TopicNotMovableError: no other server takes topics.
        """
        wait_s = seconds_of(wait, what="wait")
        return await self._send(topic_calls.drain_server(server_id, wait_s=wait_s))

    async def undrain(self, server_id: str) -> Drain:
        """Let a server claim topics again. Raises: ServerNotFoundError."""
        return await self._send(topic_calls.undrain_server(server_id))
