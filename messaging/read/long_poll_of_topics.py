"""Long polls over several partitions: which of them have something to read (protocol §3.4)."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from kernel.requests_and_replies import (
    BODY_TYPES,
    Reply,
    Request,
    Route,
    members_of,
    read_query,
    reply_encoding,
    value_reply,
)
from messaging.log.state_in_memory import OpenStore, StoreState, require_topic
from messaging.log.topics import Topic, topic_of
from messaging.model.parameters import boolean, choice, tags_in, wait_in, whole_digits
from messaging.read.poll import Poll, PollResult, Polls, poll_reply, require_limit
from tuff.protocol import operations
from tuff.protocol.attributes import TagFilter
from tuff.protocol.errors import (
    BadRequestError,
    DamagedRecordError,
    TopicNotFoundError,
    TransactionsUnavailableError,
)
from tuff.protocol.ids import (
    PARTITION_NUMBER_MAX,
    MessageId,
    PartitionId,
    TopicId,
    check_name,
    name_in,
    topic_in,
)
from tuff.protocol.json_bodies import check_object, shown, text_from_json
from tuff.protocol.media_types import MediaType
from tuff.protocol.requests import Isolation

LOOKS_COUNT_MAX = 16  # at partitions, some tens of µs each, before others have the event loop

_PARAMETERS = frozenset({"isolation", "tags", "wait", "added"})


class PartitionWaits:
    """Waits for messages of any of several partitions. Lives on the event loop."""

    def __init__(self, polls: Polls, store: OpenStore, state: StoreState) -> None:
        self._polls = polls
        self._store = store
        self._state = state

    async def readable(
        self, topic: TopicId, after: Mapping[int, MessageId], poll: Poll, *, added: bool
    ) -> list[int]:
        """The numbers of those partitions in which this reader finds something behind the id, be it
        an error; none after `poll.wait_s`. With `added` also the partitions behind the last number.

        Raises: TopicNotFoundError, and as a poll.
        """
        base, _ = require_topic(self._store, self._state, topic.base)
        polls = {topic.partition(number): _behind(poll, id) for number, id in after.items()}

        def new() -> list[PartitionId]:
            numbers = base.require_durable().partitions.readable if added else ()
            return [topic.partition(each) for each in numbers if each > max(after)]

        found = await self.readable_of(polls, wait_s=poll.wait_s, base=base, new=new)
        return [each.number for each in found]

    async def messages(self, partition: PartitionId, poll: Poll) -> PollResult | None:
        """What a poll finds in a partition; None without messages, and where a poll of the reader
        has to say why."""
        try:
            result = await self._polls.poll(partition, poll)
        except (TopicNotFoundError, DamagedRecordError):
            return None
        return result if result.messages else None

    async def readable_of(
        self,
        asked: Mapping[PartitionId, Poll],
        *,
        wait_s: float,
        base: Topic | None = None,
        new: Callable[[], list[PartitionId]] = list,
    ) -> list[PartitionId]:
        """The partitions in which this reader finds something, be it an error or that it does not
        exist; none after `wait_s`. `base` is woken when there may be `new` partitions."""
        loop, waiter = asyncio.get_running_loop(), asyncio.Event()
        deadline_s = loop.time() + wait_s
        polls = dict(sorted(asked.items()))
        # Registered before the first look, so that no message is missed in between.
        are_woken = {each: asyncio.Event() for each in polls}
        watched = [*self._watched(are_woken, waiter)]
        if base is not None:
            watched.append((base, waiter))
        for each, event in watched:
            each.waiters[event] = None
        due = [*polls]
        try:
            while True:
                waiter.clear()
                found = await self._with_news(due, polls, are_woken) + new()
                if found or self._polls.is_stopping or loop.time() >= deadline_s:
                    return found
                await self._polls.wait_until(waiter, deadline_s)
                # The last look is at all: a row that expires in front of others wakes nobody.
                is_last = loop.time() >= deadline_s
                due = [each for each, woken in are_woken.items() if is_last or woken.is_set()]
        finally:
            for each, event in watched:
                each.waiters.pop(event, None)

    def _watched(
        self, are_woken: Mapping[PartitionId, asyncio.Event], waiter: asyncio.Event
    ) -> Iterator[tuple[Topic, asyncio.Event]]:
        """The partitions, each with the events to set when it is woken."""
        for partition, is_woken in are_woken.items():
            with suppress(TopicNotFoundError):
                log = self._state.topics.find(partition)
                yield from ((log, waiter), (log, is_woken))

    async def _with_news(
        self,
        due: Sequence[PartitionId],
        polls: dict[PartitionId, Poll],
        are_woken: Mapping[PartitionId, asyncio.Event],
    ) -> list[PartitionId]:
        found = []
        for count, partition in enumerate(due, start=1):
            are_woken[partition].clear()
            if await self._has_news(partition, polls):
                found.append(partition)
            if count % LOOKS_COUNT_MAX == 0:
                await asyncio.sleep(0)
        return found

    async def _has_news(self, partition: PartitionId, polls: dict[PartitionId, Poll]) -> bool:
        """Look once; what is passed over is not read again."""
        poll = polls[partition]
        try:
            result = await self._polls.poll(partition, poll)
        except (TopicNotFoundError, DamagedRecordError, TransactionsUnavailableError):
            return True
        polls[partition] = replace(poll, start=MessageId.from_bytes(result.next_id))
        is_at_end = result.caught_up or result.blocked_by is not None
        return bool(result.messages) or (poll.tags is not None and not is_at_end)


def routes(waits: PartitionWaits) -> list[Route]:
    """The HTTP routes."""

    async def wait(request: Request) -> Reply:
        topic = topic_of(request, parameters=_PARAMETERS)
        query = dict(request.query)
        body = members_of(request, members=("after",), what="the wait", has_query=True)
        added = boolean(query.get("added", "false"), what="added")
        poll = _poll(query, tags_in(query))
        found = await waits.readable(topic, _after(body.get("after")), poll, added=added)
        return value_reply(request, {"partitions": found})

    async def wait_for_topics(request: Request) -> Reply:
        query = read_query(request.query, parameters=("isolation", "wait", "limit"))
        encoding = reply_encoding(request.accept, asked_in=MediaType.JSON, offered=BODY_TYPES)
        limit = whole_digits(query["limit"], what="limit") if "limit" in query else None
        require_limit(limit)
        namespace = check_name(request.parameters["ns"], what="namespace")
        polls = {
            partition: poll
            for topic, member in topics_in(request).items()
            for partition, poll in _polls_of(topic_in(namespace, topic), member, query)
        }
        found = await waits.readable_of(polls, wait_s=wait_in(query))
        if found and encoding.media_type is MediaType.AVRO:
            first = found[0]
            result = await waits.messages(first, replace(polls[first], limit=limit))
            if result is not None:
                reply = poll_reply(result, encoding)
                named = ("Tuff-Partition", name_in(namespace, first))
                return reply._replace(headers=(*reply.headers, named))
        names = [name_in(namespace, each) for each in found]
        return value_reply(request, {"partitions": names})

    return [
        Route(operations.WAIT_FOR_PARTITIONS, wait),
        Route(operations.WAIT_FOR_TOPICS, wait_for_topics),
    ]


def topics_in(request: Request) -> Mapping[str, object]:
    """What the wait for several topics names, by their names. Raises: BadRequestError."""
    body = members_of(request, members=("topics",), what="the wait", has_query=True)
    found = body.get("topics")
    if not isinstance(found, dict) or not found:
        raise BadRequestError(
            'topics names topics, as {"orders": {"after": {"0": "<id>"}}}, and not '
            f"{shown(found)}"
        )
    return found


def _polls_of(
    topic: TopicId, member: object, query: Mapping[str, str]
) -> Iterator[tuple[PartitionId, Poll]]:
    member = check_object(member, members=("after", "tags"), what=f"the wait for {topic}")
    tags = member.get("tags")
    poll = _poll(query, tags_in({} if tags is None else {"tags": text_from_json(tags, "tags")}))
    for number, id in _after(member.get("after")).items():
        yield topic.partition(number), _behind(poll, id)


def _poll(query: Mapping[str, str], tags: TagFilter | None) -> Poll:
    isolation = choice(query, "isolation", Isolation) or Isolation.ALL
    return Poll(isolation=isolation, wait_s=wait_in(query), tags=tags)


def _behind(poll: Poll, id: MessageId) -> Poll:
    return replace(poll, start=id, inclusive=False, limit=1, wait_s=0.0)


def _after(value: object) -> dict[int, MessageId]:
    if not isinstance(value, dict) or not value:
        raise BadRequestError(
            f'after names partitions by number, as {{"0": "<id>"}}, and not {shown(value)}'
        )
    return {
        _number(number): MessageId.from_hex(text_from_json(id, f"the id of partition {number}"))
        for number, id in value.items()
    }


def _number(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(PARTITION_NUMBER_MAX))
    if not is_number or int(text) > PARTITION_NUMBER_MAX:
        raise BadRequestError(f"{shown(text)} is no number of a partition")
    return int(text)
