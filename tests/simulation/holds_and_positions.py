"""Retention holds and named positions of a simulated server: the calls, and what they may answer
(protocol §3.8, §3.9).

A position is a register: what it holds was the last to be set, or was under way together with what
was. An answer that was seen stays true: whatever it shows has happened. What holds keep is checked
in `retention_checks.py`.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from messaging.storage.rows import Hold, Position
from tests.simulation import retention_checks
from tests.simulation.invariants import require
from tests.simulation.observations import Asked, Facts, Fate, Held, Move, Release, TopicFacts, Tx
from tests.simulation.server import Life
from tuff.protocol.errors import TopicNotFoundError, TuffError
from tuff.protocol.ids import MessageId


class Send(Protocol):
    """Sends a request, and notes what its answer says of its fate."""

    def __call__(
        self, asked: Asked, tx: Tx | None, call: Callable[[], Awaitable[object]], /
    ) -> Awaitable[object]: ...


class Bookmarks:
    """All readers together."""

    def __init__(self, facts: Facts, life: Life, send: Send) -> None:
        self._facts = facts
        self._life = life
        self._send = send

    def lives_on(self, life: Life) -> None:
        """The server was started again."""
        self._life = life

    async def hold(self, topic: TopicFacts, name: str, first: MessageId, age_ms: int) -> None:
        """Keep messages from the topic's time to live; `age_ms` is how long the hold may live."""
        asked, now_ms = self._facts.moment(), self._life.now_ms()
        made = Held(asked=asked, name=name, wanted=first, max_age_ms=age_ms)
        topic.holds.append(made)
        call = self._life.messaging.holds_and_positions.hold
        done = await self._send(made, None, lambda: call(topic.id, name, first, max_age_ms=age_ms))
        if isinstance(done, Hold):
            made.first, made.expires_at_ms = done.first, done.expires_at_ms
            self._facts.note_time(self._life.now_ms())
            require(2, retention_checks.holds_bring_nothing_back(self._facts, topic, made, now_ms))

    async def release(self, topic: TopicFacts, name: str) -> None:
        topic.releases.append(made := Release(asked=self._facts.moment(), name=name))
        call = self._life.messaging.holds_and_positions.release
        await self._send(made, None, lambda: call(topic.id, name))

    async def move(self, topic: TopicFacts, name: str, place: MessageId | None) -> None:
        """Set a position; with None, forget it. Before and after it is looked at."""
        self.look_at_positions(topic)
        topic.moves.append(made := Move(asked=self._facts.moment(), name=name, place=place))
        held = self._life.messaging.holds_and_positions
        if place is None:
            await self._send(made, None, lambda: held.delete_position(topic.id, name))
        else:
            await self._send(made, None, lambda: held.set_position(topic.id, name, place))
        self.look_at_positions(topic)

    def look(self, topic: TopicFacts) -> None:
        """Whatever was acknowledged is there, and as it was answered. Nothing is under way."""
        with suppress(TopicNotFoundError):
            told = self._life.messaging.holds_and_positions.holds(topic.id)
            asked = self._facts.moment()
            require(1, retention_checks.holds_are_told(self._facts, topic, told, asked=asked))
        told = self.look_at_positions(topic)
        if told is not None:
            _settle(topic, told, self._facts.moment())

    def look_at_positions(self, topic: TopicFacts) -> Mapping[str, Position] | None:
        """What is told has to be possible, and stays so. None if there was no answer."""
        try:
            _, told = self._life.messaging.holds_and_positions.positions(topic.id)
        except TuffError:
            return None
        require(1, positions_are_told(topic, told))
        _learn(topic, told, self._facts.moment())
        return told


def positions_are_told(topic: TopicFacts, told: Mapping[str, Position]) -> Iterator[str]:
    """Each is one of those that it may be."""
    for name in sorted({each.name for each in topic.moves} | told.keys()):
        found = told.get(name)
        place = None if found is None else found.position
        if place not in _possible(topic, name):
            yield f"the position {name} of {topic.id.name} is {place}"


def _learn(topic: TopicFacts, told: Mapping[str, Position], moment: int) -> None:
    """What is told has happened."""
    for each in topic.moves:
        found = told.get(each.name)
        if found is not None and each.place == found.position:
            each.end(moment, Fate.DONE)


def _settle(topic: TopicFacts, told: Mapping[str, Position], moment: int) -> None:
    """Nothing is under way: what is told now counts as set now, so that nothing cut off comes."""
    for name in sorted({each.name for each in topic.moves if each.fate is Fate.OPEN}):
        found = told.get(name)
        place = None if found is None else found.position
        topic.moves.append(now := Move(asked=moment, name=name, place=place))
        now.end(moment, Fate.DONE)
        for each in topic.moves:
            if each.name == name:
                each.end(moment, Fate.NOT_DONE)


def _possible(topic: TopicFacts, name: str) -> set[MessageId | None]:
    asked: list[tuple[Asked, MessageId | None]] = [
        *((each, each.place) for each in topic.moves if each.name == name),
        *((each, None) for each in topic.deletions),
    ]
    asked = [each for each in asked if each[0].fate is not Fate.NOT_DONE]
    # What was asked for after the answer to something else has taken its place, once it is done.
    last = max((each.asked for each, _ in asked if each.fate is Fate.DONE), default=-1)
    places = {place for each, place in asked if each.told >= last}
    return places if last >= 0 else places | {None}
