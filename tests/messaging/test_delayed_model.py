"""Delayed messages, compared with a model of them: sorted lists (protocol §3.10)."""

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.service import MessagingService
from tests.messaging.test_delayed import after, delayed, looked
from tests.messaging.world import AUDIT, NOON_MS, FlakyWorld, polled
from tuff.protocol.errors import DelayedNotFoundError
from tuff.protocol.ids import DelayedId, Offset
from tuff.protocol.requests import RollbackDetail

TTL = {"ttl": "1000000"}
RETRIES_MS = 3_000  # ms; longer than a failed look waits, twice


class Held(NamedTuple):
    """A message of the model. Messages with equal due times enter by their numbers."""

    due_ms: int
    number: int
    payload: bytes


@dataclass
class Model:
    """What waits, what is undecided, and what has entered, in order."""

    now_ms: int = NOON_MS
    number: int = 0
    waiting: list[Held] = field(default_factory=list)
    undecided: list[tuple[int, Held]] = field(default_factory=list)  # with pointers
    entered: list[bytes] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)

    def publish(self, delays_ms: list[int], pointer: int | None) -> list[bytes]:
        texts = []
        for delay_ms in delays_ms:
            self.number += 1
            held = Held(self.now_ms + delay_ms, self.number, b"%d" % self.number)
            texts.append(held.payload)
            if pointer is None:
                self.waiting.append(held)
            else:
                self.undecided.append((pointer, held))
        return texts

    def settle(self) -> None:
        """Let everything happen that may happen now."""
        self.waiting += [held for pointer, held in self.undecided if pointer in self.committed]
        self.undecided = [each for each in self.undecided if each[0] in self.open]
        self.waiting.sort()
        due = [each for each in self.waiting if each.due_ms <= self.now_ms]
        self.waiting = self.waiting[len(due) :]
        self.entered += [each.payload for each in due]

    def clear(self) -> None:
        self.waiting, self.undecided, self.entered = [], [], []


DELAYS = st.lists(st.sampled_from([1, 2, 5, 50]), min_size=1, max_size=4)
POINTERS = st.integers(1, 3)  # of the transactions that are open together
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), DELAYS),
        st.tuples(st.just("publish under"), POINTERS, DELAYS),
        st.tuples(st.just("roll back"), POINTERS, DELAYS),
        st.tuples(st.sampled_from(["commit", "abort", "invalidate"]), POINTERS),
        st.tuples(st.just("advance"), st.sampled_from([1, 3, 60])),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["cancel none", "restart", "recreate", "sweep"])),
        st.tuples(st.just("fail a write"), st.booleans()),
    ),
    max_size=25,
)


class Run:
    """The steps on a message store and on the model."""

    def __init__(self) -> None:
        self.world, self.model = FlakyWorld(), Model()
        self.pointers: dict[int, int] = {}  # of the open transaction with each number
        self.last_pointer = 0

    async def steps(self, steps: list[tuple[object, ...]]) -> None:
        left = list(steps)
        properties: dict[str, str] | None = TTL
        while left or properties is not None:
            async with self.world.running(audit=properties) as service:
                properties = None
                # As the transaction service does at a start.
                done = self.model.committed.intersection(service.rows.indexed_pointers())
                service.rows.end_committed(done)
                await self.compare(service)
                while left:
                    name, *arguments = left.pop(0)
                    if name == "restart":
                        break
                    await getattr(self, str(name).replace(" ", "_"))(service, *arguments)
                    await self.compare(service)

    async def compare(self, service: MessagingService) -> None:
        await looked(service)
        self.model.settle()
        assert await polled(service) == self.model.entered
        found = await service.delayed.listed(AUDIT, count_max=1000)
        assert [(each.id.due_ms, each.row.payload) for each in found] == [
            (each.due_ms, each.payload) for each in self.model.waiting
        ]

    def pointer(self, number: int) -> int:
        """The pointer of an open transaction, which begins with the first use of its number."""
        if number not in self.pointers:
            self.last_pointer += 1
            self.pointers[number] = self.world.transactions.start(self.last_pointer)
            self.model.open.add(self.last_pointer)
        return self.pointers[number]

    async def publish(self, service: MessagingService, delays_ms: list[int]) -> None:
        texts = self.model.publish(delays_ms, None)
        await delayed(service, *texts, delays=[*map(after, delays_ms)])

    async def publish_under(
        self, service: MessagingService, number: int, delays_ms: list[int]
    ) -> None:
        pointer = self.pointer(number)
        texts = self.model.publish(delays_ms, pointer)
        await delayed(service, *texts, delays=[*map(after, delays_ms)], pointer=pointer)

    async def roll_back(self, service: MessagingService, number: int, delays_ms: list[int]) -> None:
        pointer = self.pointer(number)
        texts = [b"never"] * len(delays_ms)
        published = await delayed(service, *texts, delays=[*map(after, delays_ms)], pointer=pointer)
        assert isinstance(published.rollback, RollbackDetail)
        await service.publisher.rollback(AUDIT, published.rollback)

    async def commit(self, service: MessagingService, number: int) -> None:
        pointer = self.pointer(number)
        self.world.commit(service, pointer)
        self.model.committed.add(pointer)
        self.ended(service, number)

    async def abort(self, service: MessagingService, number: int) -> None:
        await self.world.abort(service, self.pointer(number))
        self.ended(service, number)

    async def invalidate(self, service: MessagingService, number: int) -> None:
        self.world.transactions.end(self.pointer(number), self.world.transactions.invalid)
        self.ended(service, number)

    def ended(self, service: MessagingService, number: int) -> None:
        pointer = self.pointers.pop(number)
        self.model.open.discard(pointer)
        service.rows.wake_readers([pointer])

    async def advance(self, _service: MessagingService, ms: int) -> None:
        self.world.clock.now_ms += ms
        self.model.now_ms += ms

    async def cancel(self, service: MessagingService, index: int) -> None:
        if index < len(self.model.waiting):
            self.model.waiting.pop(index)
            found = await service.delayed.listed(AUDIT, count_max=1000)
            await service.delayed.cancel(AUDIT, found[index].id)

    async def cancel_none(self, service: MessagingService) -> None:
        with pytest.raises(DelayedNotFoundError):
            await service.delayed.cancel(AUDIT, DelayedId(NOON_MS + 1, Offset(1, 1)))

    async def recreate(self, service: MessagingService) -> None:
        await service.topics.delete(AUDIT)
        await service.topics.create(AUDIT, TTL)
        self.model.clear()

    async def sweep(self, service: MessagingService) -> None:
        await service.cleaner.run_pass()

    async def fail_a_write(self, service: MessagingService, takes_effect: object) -> None:
        """The next write that lets a message enter fails."""
        await self.publish(service, [1])
        self.world.fail_write(0, takes_effect=bool(takes_effect))
        await self.advance(service, 1)
        for _ in range(2):
            await looked(service)
            self.model.settle()
            await self.advance(service, RETRIES_MS)


@given(steps=STEPS)
def test_delayed_messages_follow_the_model(steps: list[tuple[object, ...]]) -> None:
    asyncio.run(Run().steps(steps))
