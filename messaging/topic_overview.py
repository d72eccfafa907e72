"""What an operator sees of one topic in one call: its partitions, and the consumer groups that read
it (protocol §3.13). Lives on the event loop."""

from contextlib import suppress

from kernel.requests_and_replies import Reply, Request, Route, json_reply
from messaging.groups.consumer_coordinator import GroupCoordinator, group_log_of
from messaging.groups.consumer_decisions import GroupState
from messaging.groups.consumer_routes import group_body
from messaging.log.topics import topic_of
from messaging.read.offsets_and_splits import TopicOffsets, offsets_body
from messaging.retention.holds_and_positions import HoldsAndPositions, hold_body, position_body
from messaging.topic_changes import TopicChanges, topic_body
from tuff.protocol import operations
from tuff.protocol.errors import TransactionsUnavailableError, TuffError
from tuff.protocol.ids import TopicId, name_in, partition_in
from tuff.protocol.requests import Isolation

# Each partition costs two reads of the store, and each group one for each of its partitions.
PARTITIONS_COUNT_MAX = 50
GROUPS_COUNT_MAX = 50
GROUPS_SEARCHED_MAX = 1_000  # of the namespace, in the order of their names

JsonObject = dict[str, object]


class TopicOverview:
    """Composes what the parts of the message store say of a topic."""

    def __init__(
        self,
        topics: TopicChanges,
        offsets: TopicOffsets,
        holds_and_positions: HoldsAndPositions,
        groups: GroupCoordinator,
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._holds_and_positions = holds_and_positions
        self._groups = groups

    async def of(self, topic: TopicId) -> JsonObject:
        """Raises: TopicNotFoundError, StorageUnavailableError."""
        record = self._topics.get(topic)
        numbers = sorted(record.partitions.readable)[:PARTITIONS_COUNT_MAX]
        partitions = [await self._partition(topic.partition(number)) for number in numbers]
        groups, has_all = await self._groups_of(topic)
        return {
            "topic": topic_body(topic, record),
            "partitions": partitions,
            "groups": groups,
            "hasAllGroups": has_all,
        }

    async def _partition(self, partition: TopicId) -> JsonObject:
        committed = None
        with suppress(TransactionsUnavailableError):
            found = await self._offsets.offsets(partition, isolation=Isolation.COMMITTED)
            committed = offsets_body(found)
        generation, positions = self._holds_and_positions.positions(partition)
        holds = self._holds_and_positions.holds(partition)
        return {
            "number": partition.number,
            "all": offsets_body(await self._offsets.offsets(partition)),
            "committed": committed,
            "positions": [position_body(generation, *each) for each in positions.items()],
            "holds": [hold_body(*each) for each in holds.items()],
        }

    async def _groups_of(self, topic: TopicId) -> tuple[list[JsonObject], bool]:
        """The groups that read the topic, each with its partitions of this topic; False if more may
        read it. A group that can't be read now is left out."""
        names = self._groups.names(topic.namespace)
        found: list[JsonObject] = []
        for name in names[:GROUPS_SEARCHED_MAX]:
            group_log = group_log_of(topic.namespace, name)
            with suppress(TuffError):
                state = await self._groups.committed(group_log)
                if not _reads(state, topic):
                    continue
                if len(found) == GROUPS_COUNT_MAX:
                    return found, False
                lags = await self._groups.lags(group_log, state)
                own = {
                    name: each
                    for name, each in lags.items()
                    if _base_of(topic.namespace, name) == topic
                }
                found.append(group_body(name, state, own, now_ms=self._groups.now_ms()))
        return found, len(names) <= GROUPS_SEARCHED_MAX


def _reads(state: GroupState, topic: TopicId) -> bool:
    namespace = topic.namespace
    subscribed = {name for member in state.members.values() for name in member.topics}
    return name_in(namespace, topic) in subscribed or any(
        _base_of(namespace, each) == topic for each in state.offsets
    )


def _base_of(namespace: str, partition: str) -> TopicId:
    return partition_in(namespace, partition).base


def routes(overview: TopicOverview) -> list[Route]:
    """The HTTP route of the overview of a topic."""

    async def get(request: Request) -> Reply:
        return json_reply(await overview.of(topic_of(request).base))

    return [Route(operations.GET_TOPIC_OVERVIEW, get)]
