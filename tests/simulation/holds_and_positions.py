"""Retention holds and named positions: calls of clients, and checks (protocol §3.8, §3.9).

A position is a linearizable register: it has the value of the last write, or of a write that was
concurrent with it. What holds keep is checked in `retention_checks.py`.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from messaging.model.row_format import Hold, Position
from tests.simulation import retention_checks
from tests.simulation.invariants import require
from tests.simulation.observations import (
    Applied,
    Held,
    Move,
    Observations,
    ObservedTopic,
    Release,
    Request,
    Tx,
)
from tests.simulation.server import SimulatedServer
from tuff.protocol.errors import TopicNotFoundError, TuffError
from tuff.protocol.ids import MessageId


class Send(Protocol):
    """Sends a request, and records whether it was applied."""

    def __call__(
        self, request: Request, tx: Tx | None, call: Callable[[], Awaitable[object]], /
    ) -> Awaitable[object]: ...


class HoldsAndPositions:
    """The holds and positions of all clients."""

    def __init__(self, observed: Observations, server: SimulatedServer, send: Send) -> None:
        self._observed = observed
        self._server = server
        self._send = send

    def use_server(self, server: SimulatedServer) -> None:
        """The server was started again."""
        self._server = server

    async def hold(self, topic: ObservedTopic, name: str, first: MessageId, age_ms: int) -> None:
        """Hold messages beyond the topic's time to live; the hold itself expires after `age_ms`."""
        invoked, now_ms = self._observed.moment(), self._server.now_ms()
        made = Held(invoked=invoked, name=name, wanted=first, max_age_ms=age_ms)
        topic.holds.append(made)
        call = self._server.messaging.holds_and_positions.hold
        done = await self._send(made, None, lambda: call(topic.id, name, first, max_age_ms=age_ms))
        if isinstance(done, Hold):
            made.first, made.expires_at_ms = done.first, done.expires_at_ms
            self._observed.note_time(self._server.now_ms())
            require(
                2, retention_checks.holds_bring_nothing_back(self._observed, topic, made, now_ms)
            )

    async def release(self, topic: ObservedTopic, name: str) -> None:
        topic.releases.append(made := Release(invoked=self._observed.moment(), name=name))
        call = self._server.messaging.holds_and_positions.release
        await self._send(made, None, lambda: call(topic.id, name))

    async def move(self, topic: ObservedTopic, name: str, place: MessageId | None) -> None:
        """Set a position, or with None delete it; read it before and after."""
        self.look_at_positions(topic)
        topic.moves.append(made := Move(invoked=self._observed.moment(), name=name, place=place))
        held = self._server.messaging.holds_and_positions
        if place is None:
            await self._send(made, None, lambda: held.delete_position(topic.id, name))
        else:
            await self._send(made, None, lambda: held.set_position(topic.id, name, place))
        self.look_at_positions(topic)

    def look(self, topic: ObservedTopic) -> None:
        """With no request under way, every acknowledged hold and position is there, unchanged."""
        with suppress(TopicNotFoundError):
            holds = self._server.messaging.holds_and_positions.holds(topic.id)
            invoked = self._observed.moment()
            require(
                1,
                retention_checks.holds_are_reported(self._observed, topic, holds, invoked=invoked),
            )
        positions = self.look_at_positions(topic)
        if positions is not None:
            _settle(topic, positions, self._observed.moment())

    def look_at_positions(self, topic: ObservedTopic) -> Mapping[str, Position] | None:
        """Read and check all positions; None if there was no reply."""
        try:
            _, positions = self._server.messaging.holds_and_positions.positions(topic.id)
        except TuffError:
            return None
        require(1, positions_are_reported(topic, positions))
        _learn(topic, positions, self._observed.moment())
        return positions


def positions_are_reported(topic: ObservedTopic, reported: Mapping[str, Position]) -> Iterator[str]:
    """Each position has one of its possible values."""
    for name in sorted({each.name for each in topic.moves} | reported.keys()):
        found = reported.get(name)
        place = None if found is None else found.position
        if place not in _possible(topic, name):
            yield f"the position {name} of {topic.id.name} is {place}"


def _learn(topic: ObservedTopic, reported: Mapping[str, Position], moment: int) -> None:
    """A write whose value was read has been applied."""
    for each in topic.moves:
        found = reported.get(each.name)
        if found is not None and each.place == found.position:
            each.end(moment, Applied.YES)


def _settle(topic: ObservedTopic, reported: Mapping[str, Position], moment: int) -> None:
    """With no request under way, the current value counts as written now, so that a write without
    a reply must not appear later."""
    for name in sorted({each.name for each in topic.moves if each.applied is Applied.UNKNOWN}):
        found = reported.get(name)
        place = None if found is None else found.position
        topic.moves.append(now := Move(invoked=moment, name=name, place=place))
        now.end(moment, Applied.YES)
        for each in topic.moves:
            if each.name == name:
                each.end(moment, Applied.NO)


def _possible(topic: ObservedTopic, name: str) -> set[MessageId | None]:
    requests: list[tuple[Request, MessageId | None]] = [
        *((each, each.place) for each in topic.moves if each.name == name),
        *((each, None) for each in topic.deletions),
    ]
    requests = [each for each in requests if each[0].applied is not Applied.NO]
    # A write that began after the reply to another one replaces it, once it is applied.
    last = max((each.invoked for each, _ in requests if each.applied is Applied.YES), default=-1)
    places = {place for each, place in requests if each.completed >= last}
    return places if last >= 0 else places | {None}
