"""The coordinator of a group moves with the group's log (decision 0042)."""

from collections.abc import AsyncIterator

import pytest

from messaging.groups.group_log_records import MemberRecord
from tests.cluster.shared_store import SharedTables
from tests.messaging.members import Member, new_tables
from tests.messaging.world import AUDIT
from tuff.protocol.errors import OwnershipMovingError
from tuff.protocol.ids import MessageId, TopicId

LOG = TopicId("default", "billing:group")


@pytest.fixture
async def members() -> AsyncIterator[tuple[Member, Member]]:
    """Two servers; the first one owns the topic, and the log of the group."""
    tables: SharedTables = new_tables()
    async with (
        Member(tables, "a").serving(AUDIT, LOG) as a,
        Member(tables, "b").serving() as b,
    ):
        yield a, b


async def test_the_next_owner_of_the_log_continues_the_group(
    members: tuple[Member, Member],
) -> None:
    a, b = members
    groups = a.service.groups
    await groups.join(LOG, MemberRecord(member_id="m1", topics=(AUDIT.name,), assignor="range"))
    await groups.commit(LOG, "m1", 1, {AUDIT.partition(0).name: MessageId(5, 0)}, pointer=None)
    before = await groups.committed(LOG)

    await a.pass_on(LOG, b)

    assert await b.service.groups.committed(LOG) == before
    await b.service.groups.commit(
        LOG, "m1", 1, {AUDIT.partition(0).name: MessageId(6, 0)}, pointer=None
    )
    with pytest.raises(OwnershipMovingError):
        await groups.commit(LOG, "m1", 1, {AUDIT.partition(0).name: MessageId(7, 0)}, pointer=None)


async def test_a_group_that_comes_back_has_what_was_decided_elsewhere(
    members: tuple[Member, Member],
) -> None:
    a, b = members
    await a.service.groups.join(
        LOG, MemberRecord(member_id="m1", topics=(AUDIT.name,), assignor="range")
    )
    await a.pass_on(LOG, b)
    await b.service.groups.leave(LOG, "m1", keeps_assignment=False)

    await b.pass_on(LOG, a)

    assert (await a.service.groups.committed(LOG)).members == {}
