"""Holds, times to live and truncation, compared with a model of them (protocol §2, §3.8)."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from messaging.model.row_format import BEFORE_ALL, offset_after
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, NOON_MS, World, polled, publish
from tuff.protocol.errors import TopicHeldError
from tuff.protocol.ids import MessageId, Offset

TTL_MS = 100_000  # of the topic at first
NEVER_TRUNCATED = Offset(0, 0)


@dataclass(frozen=True)
class Told:
    """What the model knows of a message."""

    offset: Offset
    payload: bytes
    ttl_ms: int | None


@dataclass
class Model:
    """Holds, times to live and a log start over a list of messages, each in a ms of its own.

    The log start is an offset and not a time: a truncation of all messages ends behind the last
    offset, inside its ms.
    """

    now_ms: int = NOON_MS
    ttl_ms: int = TTL_MS
    log_start: Offset = NEVER_TRUNCATED
    last: Offset = BEFORE_ALL  # the highest offset that is in use
    messages: list[Told] = field(default_factory=list)
    holds: dict[str, tuple[Offset, int]] = field(default_factory=dict)  # first, until
    seen_dead: set[bytes] = field(default_factory=set)

    def live_from(self) -> Offset:
        held = [first for first, until in self.holds.values() if self.now_ms < until]
        by_ttl = Offset(self.now_ms - self.ttl_ms + 1, 0)
        return max(self.log_start, min([by_ttl, *held]))

    def publish(self, payload: bytes, ttl_ms: int | None) -> None:
        self.last = Offset(self.now_ms, 0)
        self.messages.append(Told(self.last, payload, ttl_ms))

    def restart(self) -> None:
        """Later messages have offsets behind the log start."""
        self.last = max(self.last, self.log_start)

    def live(self) -> list[bytes]:
        return [
            told.payload
            for told in self.messages
            if told.offset >= self.live_from()
            and (told.ttl_ms is None or self.now_ms < told.offset.timestamp_ms + told.ttl_ms)
        ]


times = st.integers(-250, 10).map(lambda s: s * 1000)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([None, None, 5, 60])),
        st.tuples(st.just("wait"), st.sampled_from([1, 999, 20_000, 60_000, 100_000])),
        st.tuples(st.just("hold"), st.sampled_from("ab"), times, st.sampled_from([1, 70, 300])),
        st.tuples(st.just("release"), st.sampled_from("ab")),
        st.tuples(st.just("ttl"), st.sampled_from([50, 100, 200])),
        st.tuples(st.just("truncate"), times),
        st.tuples(st.just("sweep")),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


class Play:
    """The model and a real service, step by step; after each, readers are handed the same."""

    def __init__(self) -> None:
        self.world, self.model = World(), Model()
        self.number = 0

    async def run(self, played: list[tuple[object, ...]]) -> None:
        rest = list(played)
        is_new = True
        while rest or is_new:
            async with self.world.running() as service:
                if is_new:
                    await service.topics.create(AUDIT, {"ttl": "100"})
                    is_new = False
                await self._check(service)
                while rest:
                    name, *arguments = rest.pop(0)
                    if name == "restart":
                        self.model.restart()
                        break
                    await getattr(self, f"_{name}")(service, *arguments)
                    await self._check(service)

    async def _check(self, service: MessagingService) -> None:
        found, live = await polled(service), self.model.live()
        assert found == live
        assert not self.model.seen_dead & set(found)
        self.model.seen_dead |= {told.payload for told in self.model.messages} - set(live)
        names = {name for name, (_, until) in self.model.holds.items() if self.model.now_ms < until}
        assert set(service.holds_and_positions.holds(AUDIT)) == names

    async def _publish(self, service: MessagingService, ttl_s: int | None) -> None:
        self._pass(1)
        if ttl_s is not None and 1000 * ttl_s > self.model.ttl_ms:
            ttl_s = None
        payload = b"%d" % self.number
        self.number += 1
        await publish(service, payload, ttl_s=ttl_s)
        self.model.publish(payload, None if ttl_s is None else 1000 * ttl_s)

    async def _wait(self, _service: MessagingService, ms: int) -> None:
        self._pass(ms)

    async def _hold(self, service: MessagingService, name: str, before_ms: int, age_s: int) -> None:
        model = self.model
        asked = model.now_ms + before_ms
        told = await service.holds_and_positions.hold(AUDIT, name, asked, max_age_ms=1000 * age_s)
        first = max(Offset(asked, 0), model.live_from())
        assert told.first == MessageId(*first)
        model.holds[name] = (first, model.now_ms + 1000 * age_s)

    async def _release(self, service: MessagingService, name: str) -> None:
        if name in service.holds_and_positions.holds(AUDIT):
            await service.holds_and_positions.release(AUDIT, name)
        self.model.holds.pop(name, None)

    async def _ttl(self, service: MessagingService, ttl_s: int) -> None:
        if 1000 * ttl_s > self.model.ttl_ms:
            self.model.log_start = self.model.live_from()
        await service.topics.update(AUDIT, {"ttl": str(ttl_s)})
        self.model.ttl_ms = 1000 * ttl_s

    async def _truncate(self, service: MessagingService, before_ms: int) -> None:
        model = self.model
        asked_ms = model.now_ms + before_ms
        log_start = min(Offset(asked_ms, 0), offset_after(model.last))
        held = [
            name
            for name, (first, until) in model.holds.items()
            if model.now_ms < until and first < log_start
        ]
        truncating = service.topics.truncate(AUDIT, asked_ms)
        if held and log_start > model.log_start:
            with pytest.raises(TopicHeldError) as refused:
                await truncating
            assert sorted(refused.value.members["holds"]) == sorted(held)
        else:
            await truncating
            model.log_start = max(model.log_start, log_start)

    async def _sweep(self, service: MessagingService) -> None:
        await service.cleaner.run_pass()
        live = self.model.live_from()
        kept = [key for key in self.world.rows if key.startswith(b"m")]
        assert len([told for told in self.model.messages if told.offset >= live]) >= len(kept)

    def _pass(self, ms: int) -> None:
        self.world.clock.now_ms += ms
        self.model.now_ms += ms


@given(played=steps)
@example(played=[("ttl", 200), ("hold", "a", -100_000, 1), ("restart",), ("truncate", 0)])
@example(
    played=[
        ("publish", None), ("wait", 100_000),
        ("truncate", 0), ("restart",), ("truncate", 0), ("hold", "a", -100_000, 1),
    ]
)  # fmt: skip
def test_holds_ttls_and_truncation_follow_their_model(played: list[tuple[object, ...]]) -> None:
    asyncio.run(Play().run(played))
