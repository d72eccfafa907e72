# Generated from tuff/aio/cluster.py by `make blocking`; change that one.
"""`client.cluster`: the calls of protocol §7.1, for operators of a cluster."""

from tuff import topic_calls
from tuff.blocking.topics import Send
from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.ids import TopicLike
from tuff.replies import ClusterState, Drain, TopicOwners


class Cluster:
    """The cluster to which the server belongs. A single server answers each call with a
    NotFoundError. Safe to share between threads."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def get(self) -> ClusterState:
        """The live servers, and the leader of transactions."""
        return self._send(topic_calls.GET_CLUSTER)

    def topics(
        self,
        server_id: str | None = None,
        *,
        limit: int | None = None,
        after: TopicLike | None = None,
    ) -> TopicOwners:
        """The owners of topics, by topic: of those behind `after`, and of one server if it is
        named. `limit`: how many, at most 10,000 (default: 1,000)."""
        return self._send(topic_calls.list_owners(server_id, limit=limit, after=after))

    def move(self, topic: TopicLike, server_id: str) -> None:
        """Move a topic to another server.

        Raises:
            ServerNotFoundError: no live server has that id.
            TopicNotMovableError: the topic is there already, or the server is draining.
            TopicNotFoundError: the topic was never created.
        """
        self._send(topic_calls.move_topic(topic, server_id))

    def drain(self, server_id: str, *, wait: Duration = 0) -> Drain:
        """Let a server give its topics to the others and claim no more, until `undrain` or its next
        start. Returns when it has none left, or after `wait`, 60 seconds at most; the drain goes on
        behind that.

        Raises:
            ServerNotFoundError: no live server has that id.
            TopicNotMovableError: no other server takes topics.
        """
        wait_s = seconds_of(wait, what="wait")
        return self._send(topic_calls.drain_server(server_id, wait_s=wait_s))

    def undrain(self, server_id: str) -> Drain:
        """Let a server claim topics again. Raises: ServerNotFoundError."""
        return self._send(topic_calls.undrain_server(server_id))
