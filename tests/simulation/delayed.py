"""Delayed messages: calls of clients, and checks (protocol §3.10).

They go to a topic of their own, whose messages never expire. Each has a due time by the clock of
the server. It enters its topic then and not before, once, and only if its transaction commits.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from messaging.read.poll import Poll
from tests.simulation.invariants import require
from tests.simulation.observations import Applied, Observations, Request, Tx
from tests.simulation.server import SimulatedServer
from tuff.protocol.errors import DelayedNotFoundError, TopicExistsError, TuffError
from tuff.protocol.ids import DelayedId, MessageId, Offset, TopicId, topic_id
from tuff.protocol.requests import Delay, PublishEntry, PublishRequest

TOPIC: TopicId = topic_id("default", "later")
TTL_S = (1 << 31) - 1
DELAYS_MS = (-5, 1, 3, 40, 700, 5_000, 40_000, 200_000)
# A message that could not enter is tried again after a second. So it may be that late once nothing
# fails any more; a wrong look at the next due time is later by the distance of two due times.
LATE_MS_MAX = 2_000


@dataclass(slots=True, eq=False, kw_only=True)
class DelayedPublish(Request):
    """One publish of delayed messages. `first` is the offset of the first one, once it is known,
    and `cancels` are the requests that cancel one of them, by its place."""

    payloads: tuple[bytes, ...]
    due_ms: tuple[int, ...]
    tx: Tx | None
    pointer: int | None
    first: Offset | None = None
    is_final: bool = False  # its transaction publishes it by its commit
    cancels: dict[int, Request]

    @property
    def is_there(self) -> Applied:
        """Whether its messages exist: their transaction may have to commit."""
        if self.tx is None or self.applied is Applied.NO:
            return self.applied
        if self.tx.is_lost:
            return Applied.NO
        return self.applied if self.tx.state == "committed" else Applied.UNKNOWN

    def entry(self) -> PublishEntry:
        return PublishEntry(
            topic=TOPIC, payloads=self.payloads, pointer=self.pointer, delays=self.delays()
        )

    def delays(self) -> list[Delay]:
        return [Delay(each, is_time=True) for each in self.due_ms]


class Send(Protocol):
    """Sends a request, and records whether it was applied."""

    def __call__(
        self, request: Request, tx: Tx | None, call: Callable[[], Awaitable[object]], /
    ) -> Awaitable[object]: ...


class DelayedClient:
    """The delayed messages of all clients."""

    def __init__(self, observed: Observations, server: SimulatedServer, send: Send) -> None:
        self._observed = observed
        self._server = server
        self._send = send
        self.publishes: list[DelayedPublish] = []

    def use_server(self, server: SimulatedServer) -> None:
        """The server was started again."""
        self._server = server

    def new_publish(
        self, payloads: tuple[bytes, ...], delays_ms: tuple[int, ...], tx: Tx | None
    ) -> DelayedPublish:
        now_ms = self._server.now_ms()
        made = DelayedPublish(
            invoked=self._observed.moment(),
            payloads=payloads,
            due_ms=tuple(max(0, now_ms + each) for each in delays_ms),
            tx=tx,
            pointer=None if tx is None else tx.pointers[-1],
            cancels={},
        )
        self.publishes.append(made)
        return made

    async def publish(self, made: DelayedPublish) -> None:
        await self.create()
        request = PublishRequest(pointer=made.pointer, payloads=made.payloads, delays=made.delays())
        call = self._server.messaging.publisher.publish
        done = await self._send(made, made.tx, lambda: call(TOPIC, request))
        if done is not None:
            made.first = done.first.offset  # type: ignore[attr-defined]  # a Published

    async def create(self) -> None:
        """Create the topic, if it is not there. It is created late: histories without delayed
        messages are those of before."""
        with suppress(TopicExistsError, TuffError):
            await self._server.messaging.topics.create(TOPIC, {"ttl": str(TTL_S)})

    async def cancel(self, made: DelayedPublish, place: int) -> None:
        if made.first is None or place in made.cancels:
            return
        offset = Offset.from_int(made.first.to_int() + place)
        request = made.cancels[place] = Request(invoked=self._observed.moment())
        call = self._server.messaging.delayed.cancel
        with suppress(DelayedNotFoundError):
            await self._send(
                request, None, lambda: call(TOPIC, DelayedId(made.due_ms[place], offset))
            )

    async def check(self) -> None:
        """With no request and no fault left, every message is where it has to be."""
        messaging = self._server.messaging
        if TOPIC not in await messaging.topics.live("default"):
            return
        waiting = [
            each.row.payload for each in await messaging.delayed.listed(TOPIC, count_max=1_000)
        ]
        found = await messaging.polls.poll(TOPIC, Poll(limit=10_000))
        entered = [(MessageId.from_bytes(id), payload) for id, payload in found.items]
        while not found.caught_up:
            start = MessageId.from_bytes(found.next_id)
            found = await messaging.polls.poll(TOPIC, Poll(start=start, inclusive=False))
            entered += [(MessageId.from_bytes(id), payload) for id, payload in found.items]
        require(4, nothing_enters_early_or_twice(self.publishes, waiting, entered))
        require(1, nothing_is_lost(self.publishes, waiting, entered))
        if messaging.state.due().accepted_from_ms is None:  # the clock is not ahead
            require(1, nothing_is_late(self.publishes, waiting, self._server.now_ms()))


def nothing_enters_early_or_twice(
    publishes: list[DelayedPublish], waiting: list[bytes], entered: list[tuple[MessageId, bytes]]
) -> Iterator[str]:
    """A message enters at its due time at the earliest, once, and if its transaction commits."""
    due_ms = {
        payload: due_ms
        for each in publishes
        for payload, due_ms in zip(each.payloads, each.due_ms, strict=True)
    }
    seen = list(waiting)
    for id, payload in entered:
        seen.append(payload)
        if id.publish_timestamp_ms < due_ms[payload]:
            yield f"{payload!r} is due at {due_ms[payload]}, and entered with the id {id.hex()}"
    for payload in {each for each in seen if seen.count(each) > 1}:
        yield f"{payload!r} is there {seen.count(payload)} times"
    for each in publishes:
        for place, payload in enumerate(each.payloads):
            if payload in seen and each.is_there is Applied.NO:
                yield f"{payload!r} is there, and was refused, or its transaction did not commit"
            if payload in seen and _was_cancelled(each, place):
                yield f"{payload!r} is there, and was cancelled"


def nothing_is_lost(
    publishes: list[DelayedPublish], waiting: list[bytes], entered: list[tuple[MessageId, bytes]]
) -> Iterator[str]:
    """A message whose publish and commit were acknowledged waits, or has entered."""
    seen = {*waiting, *(payload for _, payload in entered)}
    for each in publishes:
        for place, payload in enumerate(each.payloads):
            is_there = each.is_there is Applied.YES and place not in each.cancels
            if is_there and payload not in seen:
                yield f"{payload!r} is acknowledged, and neither waits nor has entered"


def nothing_is_late(
    publishes: list[DelayedPublish], waiting: list[bytes], now_ms: int
) -> Iterator[str]:
    """A message waits until it is due, and not longer."""
    for each in publishes:
        for payload, due_ms in zip(each.payloads, each.due_ms, strict=True):
            if payload in waiting and due_ms + LATE_MS_MAX <= now_ms:
                yield f"{payload!r} still waits at {now_ms}, and was due at {due_ms}"


def _was_cancelled(publish: DelayedPublish, place: int) -> bool:
    cancel = publish.cancels.get(place)
    return cancel is not None and cancel.applied is Applied.YES
