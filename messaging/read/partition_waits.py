"""Long polls over several partitions: which of them have something to read (protocol §3.4)."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from messaging.read.poll import Poll, Polls, boolean, choice, tags_in, wait_in
from messaging.storage.store_state import OpenStore, StoreState, require_topic
from messaging.topics import TOPIC_PATH, Topic, topic_of
from tuff.protocol.errors import (
    BadRequestError,
    DamagedRecordError,
    TopicNotFoundError,
)
from tuff.protocol.exchange import Reply, Request, Route, json_reply, read_object
from tuff.protocol.ids import PARTITION_NUMBER_MAX, MessageId, TopicId
from tuff.protocol.json_forms import shown
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
        loop, waiter = asyncio.get_running_loop(), asyncio.Event()
        deadline_s = loop.time() + poll.wait_s
        polls = {
            number: replace(poll, start=id, inclusive=False, limit=1, wait_s=0.0)
            for number, id in sorted(after.items())
        }
        # Registered before the first look, so that no message is missed in between.
        are_woken = {number: asyncio.Event() for number in polls}
        watched = [(base, waiter), *self._watched(topic, are_woken, waiter)]
        for each, event in watched:
            each.waiters[event] = None
        due = [*polls]
        try:
            while True:
                waiter.clear()
                found = await self._with_news(topic, due, polls, are_woken)
                if added:
                    numbers = base.require_durable().partitions.readable
                    found += [each for each in numbers if each > max(after)]
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
        self, topic: TopicId, are_woken: Mapping[int, asyncio.Event], waiter: asyncio.Event
    ) -> Iterator[tuple[Topic, asyncio.Event]]:
        """The partitions, each with the events to set when it is woken."""
        for number, is_woken in are_woken.items():
            with suppress(TopicNotFoundError):
                log = self._state.topics.find(topic.partition(number))
                yield from ((log, waiter), (log, is_woken))

    async def _with_news(
        self,
        topic: TopicId,
        due: Sequence[int],
        polls: dict[int, Poll],
        are_woken: Mapping[int, asyncio.Event],
    ) -> list[int]:
        found = []
        for count, number in enumerate(due, start=1):
            are_woken[number].clear()
            if await self._has_news(topic, number, polls):
                found.append(number)
            if count % LOOKS_COUNT_MAX == 0:
                await asyncio.sleep(0)
        return found

    async def _has_news(self, topic: TopicId, number: int, polls: dict[int, Poll]) -> bool:
        """Look once; what is passed over is not read again."""
        try:
            result = await self._polls.poll(topic.partition(number), polls[number])
        except (TopicNotFoundError, DamagedRecordError):
            return True
        polls[number] = replace(polls[number], start=MessageId.from_bytes(result.next_id))
        is_held = result.caught_up or result.blocked_by is not None
        return bool(result.messages) or (polls[number].tags is not None and not is_held)


def routes(waits: PartitionWaits) -> list[Route]:
    """The HTTP route."""

    async def wait(request: Request) -> Reply:
        topic = topic_of(request, parameters=_PARAMETERS)
        query = dict(request.query)
        poll = Poll(
            isolation=choice(query, "isolation", Isolation) or Isolation.ALL,
            wait_s=wait_in(query),
            tags=tags_in(query),
        )
        body = read_object(request.body, request.content_type, members=("after",), what="the wait")
        added = boolean(query.get("added", "false"), what="added")
        found = await waits.readable(topic, _after(body.get("after")), poll, added=added)
        return json_reply({"partitions": found})

    return [Route("POST", f"{TOPIC_PATH}/wait", wait)]


def _after(value: object) -> dict[int, MessageId]:
    if not isinstance(value, dict) or not value:
        raise BadRequestError(
            f'after names partitions by number, as {{"0": "<id>"}}, and not {shown(value)}'
        )
    return {_number(number): _id(number, id) for number, id in value.items()}


def _number(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(PARTITION_NUMBER_MAX))
    if not is_number or int(text) > PARTITION_NUMBER_MAX:
        raise BadRequestError(f"{shown(text)} is no number of a partition")
    return int(text)


def _id(number: str, value: object) -> MessageId:
    if not isinstance(value, str):
        raise BadRequestError(f"the id of partition {number} is a string, not {shown(value)}")
    return MessageId.from_hex(value)
