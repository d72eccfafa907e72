"""What the coordinator of a consumer group asks the owners of other topics (protocol §3.11)."""

from urllib.parse import quote

from cluster.joined_cluster import Joined
from cluster.peers import PeerRefusedError, Peers, PeerUnansweredError
from messaging.read.counts import MessageCount
from metadata.json_values import Fields
from tuff.protocol.errors import OwnershipMovingError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Isolation

ANSWER_S_MAX = 3.0  # seconds; members of the group wait meanwhile


class PartitionsClient:
    """A `messaging.groups.consumer_coordinator.OwnersOfPartitions`: it asks by the routes that
    clients use. Lives on the event loop."""

    def __init__(self, joined: Joined, peers: Peers) -> None:
        self._joined = joined
        self._peers = peers

    async def partitions(self, topic: TopicId) -> list[int]:
        """The numbers of the partitions that can be read, ascending.

        Raises: TopicNotFoundError; UnavailableError (its kinds): nobody can tell now.
        """
        body = await self._ask(topic, "")
        if not body.has("partitions"):
            return [0]
        return sorted((*body.integers("partitions"), *body.integers("retired")))

    async def ends(
        self, partition: TopicId, isolation: Isolation
    ) -> tuple[MessageId | None, MessageId | None]:
        """The ids of the earliest and the last message for a reader with this isolation. Raises: as
        `partitions`."""
        body = await self._ask(partition, f"/offsets?isolation={isolation.value}")
        return _maybe_id(body, "earliest"), _maybe_id(body, "end")

    async def count(self, partition: TopicId, after: MessageId | None) -> MessageCount:
        """The messages behind an id, or all. Raises: as `partitions`."""
        body = await self._ask(partition, "/count" + (f"?after={after.hex()}" if after else ""))
        return MessageCount(
            count=body.integer("count"),
            is_lower_bound=body.flag("isLowerBound"),
            oldest_ms=body.integer("oldest") if body.has("oldest") else None,
        )

    async def _ask(self, topic: TopicId, what: str) -> Fields:
        owner = await self._joined().ownership.owner_of(
            topic.unit, is_forwarded=False, creates=False
        )
        if owner is None:
            raise OwnershipMovingError(f"the topic {topic} has just come to this server; try again")
        path = f"/v1/namespaces/{quote(topic.namespace)}/topics/{quote(topic.name)}{what}"
        try:
            return Fields(await self._peers.ask(owner.url, "GET", path, within_s=ANSWER_S_MAX))
        except PeerRefusedError as error:
            if isinstance(error.error, OwnershipMovingError):
                self._joined().ownership.forget(topic.unit)
            raise error.error from None
        except PeerUnansweredError as error:
            raise OwnershipMovingError(f"{error}; try again") from None


def _maybe_id(body: Fields, name: str) -> MessageId | None:
    return MessageId.from_hex(body.text(name)) if body.has(name) else None
