"""Commits are put by columns or entry by entry, and both ways have the same result."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.read.poll import Poll
from messaging.service import MessagingService
from tests.messaging.world import (
    AUDIT,
    COMMITTED,
    FlakyWorld,
    World,
    payloads,
    publish,
    publish_commits,
)
from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import StorageUnavailableError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishEntry

T = TypeVar("T")

OTHER = TopicId("default", "other")
PARTED = TopicId("default", "parted")
GROUP = TopicId("default", "billing:group")
POINTERS = (11, 12, 13, 14)

Commit = list[PublishEntry]

entries = st.builds(
    lambda topic, sizes, pointer, has_key: PublishEntry(
        topic=topic,
        payloads=[bytes([65 + index]) * size for index, size in enumerate(sizes)],
        pointer=pointer,
        attributes=[Attributes(key=b"k")] * len(sizes) if has_key else None,
    ),
    st.sampled_from([AUDIT, AUDIT, AUDIT, OTHER, PARTED, GROUP]),
    st.lists(st.sampled_from([0, 1, 3, 40_000]), min_size=1, max_size=3),
    st.sampled_from(POINTERS),
    st.sampled_from([False, False, False, True]),
)


def one_by_one(commit: Sequence[PublishEntry]) -> Commit:
    """The commit, with times to live that say nothing: such entries are put one by one."""
    return [replace(entry, ttls_s=[None] * len(entry.payloads)) for entry in commit]


async def state_of(service: MessagingService) -> list[object]:
    """What readers and the transaction service see."""
    index, rows = service.state.index, service.rows
    found: list[object] = [rows.final_pointers(), sorted(rows.published_by(1 << 60))]
    found += [rows.topics([pointer]) for pointer in POINTERS]
    found += [service.state.topics.find(each).messages_published for each in (AUDIT, OTHER)]
    found += [payloads(await service.polls.poll(topic, Poll())) for topic in (AUDIT, OTHER)]
    found += [payloads(await service.polls.poll(AUDIT, COMMITTED))]
    found += [index.ranges(pointer) for pointer in POINTERS]
    return [*found, sorted(rows.indexed_pointers())]


async def run(
    commits: Sequence[Commit], earlier: Sequence[int], ended: Sequence[int]
) -> tuple[list[object], dict[bytes, bytes], dict[bytes, bytes]]:
    world = World()
    async with world.running(audit={}) as service:
        await service.topics.create(OTHER, {})
        await service.topics.create(GROUP, {})
        await service.topics.create(PARTED, {}, partition_count=3)
        for pointer in POINTERS:
            world.transactions.start(pointer)
        for pointer in earlier:
            await publish(service, b"earlier", pointer=pointer)
        found: list[object] = [*await publish_commits(service, commits)]
        written = dict(world.rows)
        found += await state_of(service)
        for pointer in ended:
            world.commit(service, pointer)
        service.rows.wake_readers(ended)
        await publish(service, b"later")
        found += await state_of(service)
        return found, written, dict(world.rows)


@settings(max_examples=40)
@given(
    commits=st.lists(st.lists(entries, max_size=3), max_size=6),
    earlier=st.lists(st.sampled_from(POINTERS), max_size=2),
    ended=st.lists(st.sampled_from(POINTERS), unique=True),
)
def test_commits_by_columns_have_the_rows_of_those_that_are_put_one_by_one(
    commits: list[Commit], earlier: list[int], ended: list[int]
) -> None:
    expected = asyncio.run(run([one_by_one(commit) for commit in commits], earlier, ended))

    assert asyncio.run(run(commits, earlier, ended)) == expected


async def test_many_commits_are_put_in_runs_that_the_tail_cache_can_drop_one_by_one() -> None:
    world = World()
    async with world.running(audit={}) as service:
        commits = [
            [PublishEntry(topic=AUDIT, payloads=[b"%d" % pointer], pointer=pointer)]
            for pointer in range(1, 1_001)
        ]
        details = await publish_commits(service, commits)

        tail = service.state.tail_cache._tails[service.state.topics.find(AUDIT).prefix(1)]
        assert [len(rows.keys) for rows in tail.fresh] == [250] * 4
        found = payloads(await service.polls.poll(AUDIT, Poll()))
        assert found == [commit[0].payloads[0] for commit in commits]
        pointers = [each[0].pointer for each in details if isinstance(each, list)]
        assert pointers == [*range(1, 1_001)]


async def test_commits_that_are_lost_leave_nothing_in_memory() -> None:
    world = FlakyWorld()
    async with world.running(audit={}) as service:
        world.fail_write(0, takes_effect=False)
        commits = [
            [PublishEntry(topic=AUDIT, payloads=[b"a"], pointer=pointer)] for pointer in POINTERS
        ]
        with pytest.raises(StorageUnavailableError):
            await publish_commits(service, commits)

        assert service.rows.indexed_pointers() == []
        assert list(service.rows.published_by(1 << 60)) == []
        assert not any(map(service.rows.is_carried, POINTERS))
