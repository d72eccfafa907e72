"""Messages that wait until they are due, over all partitions of a topic (protocol §3.10)."""

from tuff import topic_calls
from tuff.flows_and_repeated_calls import Flow, Retries
from tuff.protocol.errors import DelayedNotFoundError, PartitionRequiredError
from tuff.protocol.ids import PartitionId, TopicLike, topic_of
from tuff.replies import DelayedMessage


def list_delayed(
    retries: Retries, topic: TopicLike, *, after: str | None, limit: int, payloads: bool
) -> Flow[list[DelayedMessage]]:
    """The next messages that wait, behind an id, in the order in which they become due."""
    try:
        page = topic_calls.list_delayed(topic, after=after, limit=limit, payloads=payloads)
        return (yield from retries.ask(page))
    except PartitionRequiredError:
        partitions = yield from _partitions(retries, topic)
    found: list[DelayedMessage] = []
    for partition in partitions:
        found += yield from _list_of(retries, partition, after, limit, payloads=payloads)
    return sorted(found, key=lambda message: message.id)[:limit]


def _list_of(
    retries: Retries, partition: PartitionId, after: str | None, limit: int, *, payloads: bool
) -> Flow[list[DelayedMessage]]:
    found: list[DelayedMessage] = []
    while len(found) < limit:
        # A page may be shorter: its messages have a limited size.
        left = limit - len(found)
        page = topic_calls.list_delayed(partition, after=after, limit=left, payloads=payloads)
        messages = yield from retries.ask(page)
        if not messages:
            break
        found += messages
        after = messages[-1].id
    return found


def delete_delayed(retries: Retries, topic: TopicLike, delayed_id: str) -> Flow[None]:
    """Delete a message that waits, in the partition that has it.

    Raises:
        TypeError: the id is none of a delayed message.
        DelayedNotFoundError: no partition has it.
    """
    try:
        return (yield from retries.ask(topic_calls.cancel_delayed(topic, delayed_id)))
    except PartitionRequiredError:
        partitions = yield from _partitions(retries, topic)
    for number, partition in enumerate(partitions, 1):
        try:
            return (yield from retries.ask(topic_calls.cancel_delayed(partition, delayed_id)))
        except DelayedNotFoundError:
            if number == len(partitions):
                raise
    return None


def _partitions(retries: Retries, topic: TopicLike) -> Flow[list[PartitionId]]:
    info = yield from retries.ask(topic_calls.get_topic(topic))
    return [topic_of(topic).partition(number) for number in info.partitions]
