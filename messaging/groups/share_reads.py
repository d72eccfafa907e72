"""Reads the messages of a topic into the window of a share group, and the payloads to give out."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from messaging.groups.group_logs import LoadedGroup
from messaging.groups.share_decisions import ProcessingOrder, ShareProperties, ShareState
from messaging.read.poll import Poll, PollResult, Polls
from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes, TagFilter
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import MessageId
from tuff.protocol.requests import Isolation

AHEAD_COUNT_MIN = 100  # messages that are read at once, if some can't be given out
FURTHER_COUNT = 1_000  # messages among which those of a key are looked for at once


ShareGroup = LoadedGroup[ShareState, ShareProperties]


class Read(NamedTuple):
    """What the window does not keep of a message."""

    payload: bytes
    attributes: Attributes


class WindowReader:
    """The reads of one request, in the turn of its group. `window`: the most messages in it;
    `messages` has what was read, by id. No more is read to give out once that has `bytes_max`."""

    def __init__(self, polls: Polls, group: ShareGroup, *, window: int, bytes_max: int) -> None:
        self._polls = polls
        home = group.topic.id.home
        self._topic = home.base.partition(home.number or 0)  # also of a topic with several
        self._state = group.state
        self._window = window
        self.bytes_max = bytes_max
        tags = group.memory.tags
        self._tags = None if tags is None else TagFilter.parse(tags)
        self._count_min = AHEAD_COUNT_MIN if group.memory.order is ProcessingOrder.KEY else 1
        self._read_bytes = 0
        self.messages: dict[bytes, Read] = {}

    async def take(self, count: int) -> list[bytes]:
        """Up to so many messages to give out, the oldest first; `messages` has all of them. Then
        call `lease` or `put_back` of the state for each."""
        taken: list[bytes] = []
        is_more = True
        while len(taken) < count and not self._state.is_complete(taken):
            ids = self._state.candidates(count - len(taken))
            if not ids and (self._is_full or not is_more):
                break
            try:
                if ids:
                    await self._read_again(ids)
                else:
                    is_more = await self.read_on(max(count - len(taken), self._count_min))
            except BaseException as error:
                self._put_back(ids)
                # What can't be read, as a damaged record, does not hold up what was read before.
                if isinstance(error, TuffError) and taken:
                    break
                self._put_back(taken)
                raise
            read = [each for each in ids if each in self.messages]
            taken += read
            if len(read) < len(ids):
                self._put_back(each for each in ids if each not in self.messages)
                if self._is_full:
                    break
        return taken

    @property
    def _is_full(self) -> bool:
        return self._read_bytes >= self.bytes_max

    def _put_back(self, ids: Iterable[bytes]) -> None:
        for each in ids:
            self._state.put_back(each)

    async def read_through(self, last: bytes) -> None:
        """Read on up to this id, if it is behind the window."""
        is_more = True
        while is_more and (self._state.read_to < last or self._state.further_from is not None):
            is_more = await self.read_on(AHEAD_COUNT_MIN)
            self.messages.clear()  # nothing of it is given out

    async def read_on(self, count: int) -> bool:
        """Read up to so many messages into the window; whether there may be more. It never passes
        a message whose transaction is undecided."""
        state = self._state
        room = self._window - state.window_count
        if room <= 0:
            return False
        if (behind := state.further_from) is not None:
            await self._read_further(MessageId.from_bytes(behind))
            return state.further_from != behind
        start = MessageId.from_bytes(state.read_to)
        result, found = await self._poll(
            Poll(start=start, inclusive=False, limit=min(count, room), tags=self._tags)
        )
        is_further = result.next_id > state.read_to
        state.add([(each, read.attributes.key) for each, read in found], read_to=result.next_id)
        self._keep(found)
        return is_further and not result.caught_up and result.blocked_by is None

    async def _read_further(self, behind: MessageId) -> None:
        """Look for the next messages of keys that have none in the window."""
        through = MessageId.from_bytes(self._state.read_to)
        result, found = await self._poll(
            Poll(
                start=behind,
                inclusive=False,
                through=through,
                limit=FURTHER_COUNT,
                tags=self._tags,
            )
        )
        self._state.add_further(
            [(each, read.attributes.key) for each, read in found],
            read_to=None if result.caught_up else result.next_id,
        )
        self._keep(found)

    async def _read_again(self, ids: Sequence[bytes]) -> None:
        """Read those of these messages that were read, or given out, in earlier requests. Those
        that are gone leave the window."""
        missing = [each for each in ids if each not in self.messages]
        while missing and not self._is_full:
            first, last = MessageId.from_bytes(missing[0]), MessageId.from_bytes(missing[-1])
            poll = Poll(start=first, through=last, limit=len(missing))
            result, found = await self._poll(poll)
            self._keep(found)
            passed = [each for each in missing if each <= result.next_id]
            assert passed, f"the poll from {first.hex()} on ended before it"
            self._state.forget(each for each in passed if each not in self.messages)
            missing = missing[len(passed) :]

    async def _poll(self, poll: Poll) -> tuple[PollResult, list[tuple[bytes, Read]]]:
        result = await self._polls.poll(self._topic, replace(poll, isolation=Isolation.COMMITTED))
        attributes = result.messages.decoded_attributes()
        return result, [
            (message_id, Read(payload, attributes.get(index, NO_ATTRIBUTES)))
            for index, (message_id, payload) in enumerate(result.items)
        ]

    def _keep(self, found: Iterable[tuple[bytes, Read]]) -> None:
        """Of what was read, the messages of the window."""
        for message_id, read in found:
            if message_id in self._state:
                self.messages[message_id] = read
                self._read_bytes += len(read.payload)
