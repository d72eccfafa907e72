"""Members that change their instance id."""

import pytest

from messaging.groups.consumer_decisions import GroupState, join, leave
from messaging.groups.group_log_records import MemberRecord
from tuff.protocol.errors import UnreleasedInstanceIdError

FOUR = {"t": ("t:0", "t:1", "t:2", "t:3")}


def joined(state: GroupState, member_id: str, instance_id: str | None) -> None:
    request = MemberRecord(
        member_id=member_id, topics=("t",), assignor="sticky", instance_id=instance_id
    )
    for record in join(state, request, FOUR):
        state.apply(record)


def test_a_member_that_joins_again_with_another_instance_id_gives_up_the_first() -> None:
    state = GroupState()
    joined(state, "m1", "i1")
    joined(state, "m1", "i2")
    assert state.instances == {"i2": "m1"}

    joined(state, "m2", "i1")
    assert state.instances == {"i2": "m1", "i1": "m2"}


def test_a_static_member_that_comes_back_without_its_instance_id_gives_it_up() -> None:
    state = GroupState()
    joined(state, "m1", "i1")
    for record in leave(state, "m1", FOUR, keeps_assignment=True):
        state.apply(record)
    joined(state, "m1", None)
    for record in leave(state, "m1", FOUR, keeps_assignment=False):
        state.apply(record)

    joined(state, "m2", "i1")
    assert state.instances == {"i1": "m2"}


def test_a_member_of_the_group_can_not_take_the_instance_id_of_another() -> None:
    state = GroupState()
    joined(state, "m1", "i1")
    joined(state, "m2", None)

    with pytest.raises(UnreleasedInstanceIdError, match="m1 has the instance id i1"):
        joined(state, "m2", "i1")
