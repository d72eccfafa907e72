"""Retention never deletes a payload that a live reference needs, in any history (design §5)."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.service import MessagingService
from tests.messaging.world import AUDIT, World, polled, publish, request

TTL_S, LONGEST_S = 100, 50
GROUP = (b"a", b"b", b"c")

steps = st.lists(
    st.sampled_from(
        ["store", "publish", "settle", "abort", "sweep", "restart", "longer ttl", "shorter ttl"]
    )
    | st.sampled_from([-30_000, 1, 999, 49_999, 50_000, 100_000, 149_999, 150_000, 400_000]),
    max_size=30,
)


class History:
    """A topic under one transaction after the other; each stores a group and may publish it."""

    def __init__(self) -> None:
        self.world = World()
        self.world.longest_transaction_s = LONGEST_S
        self.pointer = self.world.transactions.start(1)
        self.stored = 0
        self.ttl_s = TTL_S

    async def run(self, steps: list[str | int]) -> None:
        async with self.world.running(audit={"ttl": str(self.ttl_s)}):
            pass
        lives: list[list[str | int]] = [[]]
        for step in steps:
            if step == "restart":
                lives.append([])
            else:
                lives[-1].append(step)
        for life in lives:
            async with self.world.running() as service:
                for step in life:
                    await self._take(service, step)
                    # A group is all there or not at all, and a missing row would be an error.
                    found = await polled(service)
                    assert found == list(GROUP) * (len(found) // len(GROUP))

    async def _take(self, service: MessagingService, step: str | int) -> None:
        if isinstance(step, int):
            self.world.clock.now_ms += step
        elif step == "store" and self.stored < len(GROUP):
            payload = GROUP[self.stored]
            await service.publisher.store(AUDIT, request(payload, pointer=self.pointer))
            self.stored += 1
        elif step == "publish" and self.stored == len(GROUP):
            await publish(service, pointer=self.pointer)
            self.stored = 0
        elif step in ("settle", "abort"):
            await self._end(service, is_committed=step == "settle")
        elif step == "sweep":
            await service.cleaner.run_pass()
        elif step in ("longer ttl", "shorter ttl"):
            self.ttl_s = self.ttl_s * 3 if step == "longer ttl" else max(1, self.ttl_s // 3)
            await service.topics.update(AUDIT, {"ttl": str(self.ttl_s)})

    async def _end(self, service: MessagingService, *, is_committed: bool) -> None:
        transactions = self.world.transactions
        transactions.end(
            self.pointer, transactions.committed if is_committed else transactions.aborted
        )
        if is_committed:
            service.rows.end_committed([self.pointer])
        else:
            await service.rows.roll_back([self.pointer])
        self.pointer = transactions.start(self.pointer + 1)
        self.stored = 0


@settings(max_examples=150, deadline=None)
@given(steps=steps)
def test_retention_keeps_or_deletes_a_payload_group_as_a_whole(steps: list[str | int]) -> None:
    asyncio.run(History().run(steps))


def test_a_group_published_at_the_last_moment_lives_for_the_full_ttl() -> None:
    asyncio.run(
        History().run(
            ["store", "store", "store", 50_000, "publish", "settle", 99_999, "sweep",
             "longer ttl", "sweep", 1, "sweep", -30_000, "sweep", 400_000, "sweep"]
        )
    )  # fmt: skip
