"""Decisions of the group coordinator, request by request (decision 0043, section 4)."""

from collections.abc import Mapping, Sequence

import pytest

from messaging.groups.consumer_decisions import (
    GroupState,
    Heartbeat,
    MemberSessions,
    commit,
    fence,
    heartbeat,
    join,
    leave,
    reset,
)
from messaging.groups.group_log_records import (
    CONSUMER_RECORDS,
    AssignmentRecord,
    ConsumerRecord,
    DamagedRecordOfGroupError,
    MemberLeftRecord,
    MemberRecord,
    OffsetRecord,
    ResetRecord,
    SummaryRecord,
    TargetRecord,
)
from tuff.protocol.errors import (
    FencedMemberEpochError,
    GroupNotEmptyError,
    PartitionNotAssignedError,
    StaleMemberEpochError,
    UnknownMemberError,
    UnreleasedInstanceIdError,
)
from tuff.protocol.ids import MessageId

FOUR = {"t": ("t", "t:1", "t:2", "t:3")}


class Group:
    """A state, to which each decision is applied as it would be from the log."""

    def __init__(self, partitions: Mapping[str, Sequence[str]] = FOUR) -> None:
        self.state = GroupState()
        self.partitions = partitions

    def apply(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        for record in records:
            self.state.apply(CONSUMER_RECORDS.from_bytes(CONSUMER_RECORDS.to_bytes(record)))
        return records

    def join(self, member_id: str, instance_id: str | None = None) -> list[ConsumerRecord]:
        request = MemberRecord(
            member_id=member_id, topics=("t",), assignor="sticky", instance_id=instance_id
        )
        return self.apply(join(self.state, request, self.partitions))

    def beat(self, member_id: str, *owned: str) -> list[ConsumerRecord]:
        """A heartbeat of a member that acted on its last reply."""
        epoch = self.state.current[member_id].epoch
        return self.late_beat(member_id, *owned, epoch=epoch, group_epoch=self.state.epoch)

    def late_beat(
        self, member_id: str, *owned: str, epoch: int, group_epoch: int
    ) -> list[ConsumerRecord]:
        request = Heartbeat(
            member_id=member_id, epoch=epoch, group_epoch=group_epoch, owned=frozenset(owned)
        )
        return self.apply(heartbeat(self.state, request, self.partitions))

    def commit(self, member_id: str, epoch: int, partition: str, number: int) -> None:
        offsets = {partition: MessageId(number, 0)}
        self.apply(commit(self.state, member_id, epoch, offsets, now_ms=1))

    def kept(self, member_id: str) -> list[str]:
        return sorted(self.state.current[member_id].kept)

    def epoch(self, member_id: str) -> int:
        return self.state.current[member_id].epoch


def two_members() -> Group:
    """m1 has t and t:1, m2 has t:2 and t:3."""
    group = Group()
    group.join("m1")
    group.join("m2")
    group.beat("m1", "t", "t:1", "t:2", "t:3")
    group.beat("m1", *group.kept("m1"))
    group.beat("m2")
    return group


def test_the_first_member_gets_every_partition_at_once() -> None:
    group = Group()

    group.join("m1")

    assert group.kept("m1") == ["t", "t:1", "t:2", "t:3"]
    assert group.epoch("m1") == group.state.epoch == 1


def test_a_partition_is_given_out_only_after_its_former_member_released_it() -> None:
    group = Group()
    group.join("m1")
    group.join("m2")
    assert group.kept("m2") == []

    group.beat("m1", "t", "t:1", "t:2", "t:3")
    group.beat("m2")
    assert group.kept("m1") == ["t", "t:1"]
    assert group.kept("m2") == []

    group.beat("m1", "t", "t:1")
    group.beat("m2")
    assert group.kept("m2") == ["t:2", "t:3"]
    assert group.epoch("m1") == group.epoch("m2") == 2


def test_a_member_that_has_to_release_keeps_its_epoch_until_it_has() -> None:
    group = Group()
    group.join("m1")
    group.join("m2")

    group.beat("m1", "t", "t:1", "t:2", "t:3")

    assert group.epoch("m1") == 1
    group.commit("m1", 1, "t:2", 5)
    assert group.state.offsets["t:2"].after == MessageId(5, 0)


def test_a_heartbeat_from_before_a_partition_was_taken_does_not_release_it() -> None:
    group = Group()
    group.join("m1")
    group.join("m2")
    group.beat("m1", "t", "t:1", "t:2", "t:3")

    group.late_beat("m1", epoch=1, group_epoch=1)
    group.beat("m2")

    assert group.kept("m2") == []


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    group = two_members()

    assert group.beat("m1", "t", "t:1") == []


def test_a_repeated_join_changes_nothing() -> None:
    group = two_members()

    assert group.join("m2") == []


def test_a_lost_reply_is_repeated() -> None:
    group = two_members()
    group.apply(fence(group.state, ["m2"], FOUR))
    group.beat("m1", "t", "t:1")
    assert group.epoch("m1") == 3

    group.late_beat("m1", "t", "t:1", epoch=2, group_epoch=2)

    assert group.kept("m1") == ["t", "t:1", "t:2", "t:3"]


@pytest.mark.parametrize("epoch", [1, 3])
def test_another_epoch_is_fenced(epoch: int) -> None:
    group = two_members()

    with pytest.raises(FencedMemberEpochError, match="has the epoch 2, and not"):
        group.late_beat("m2", "t", epoch=epoch, group_epoch=2)


def test_a_member_that_left_is_unknown_and_its_partitions_are_free() -> None:
    group = two_members()

    group.apply(leave(group.state, "m2", FOUR, keeps_assignment=False))
    group.beat("m1", "t", "t:1")

    assert group.kept("m1") == ["t", "t:1", "t:2", "t:3"]
    with pytest.raises(UnknownMemberError):
        group.late_beat("m2", epoch=2, group_epoch=2)


def test_a_static_member_that_closes_keeps_its_partitions_for_its_next_process() -> None:
    group = Group()
    group.join("m1", instance_id="i1")
    group.join("m2")
    group.beat("m1", "t", "t:1", "t:2", "t:3")
    group.beat("m1", "t", "t:1")
    group.beat("m2")

    group.apply(leave(group.state, "m1", FOUR, keeps_assignment=True))
    group.beat("m2", "t:2", "t:3")
    assert group.kept("m2") == ["t:2", "t:3"]
    with pytest.raises(UnknownMemberError):
        group.commit("m1", 2, "t", 1)

    group.join("m3", instance_id="i1")
    assert group.kept("m3") == ["t", "t:1"]
    assert group.state.epoch == 2


def test_an_instance_id_has_one_member() -> None:
    group = Group()
    group.join("m1", instance_id="i1")

    with pytest.raises(UnreleasedInstanceIdError, match="m1 has the instance id i1"):
        group.join("m2", instance_id="i1")


def test_a_new_partition_is_given_out_with_the_next_heartbeats() -> None:
    group = two_members()
    group.partitions = {"t": (*FOUR["t"], "t:4")}

    group.beat("m1", "t", "t:1")
    group.beat("m2", "t:2", "t:3")

    assert group.kept("m1") == ["t", "t:1", "t:4"]
    assert group.state.epoch == 3


def test_a_commit_counts_in_every_epoch_since_the_member_has_the_partition() -> None:
    group = two_members()
    group.apply(fence(group.state, ["m2"], FOUR))
    group.beat("m1", "t", "t:1")

    group.commit("m1", 2, "t", 7)

    assert group.state.offsets["t"].after == MessageId(7, 0)
    with pytest.raises(PartitionNotAssignedError, match="t:2 in the epoch 2"):
        group.commit("m1", 2, "t:2", 7)
    with pytest.raises(StaleMemberEpochError, match="has the epoch 3, and not 4"):
        group.commit("m1", 4, "t", 7)


def test_a_commit_of_a_partition_that_was_lost_and_came_back_is_refused_by_its_epoch() -> None:
    group = two_members()
    group.apply(leave(group.state, "m1", FOUR, keeps_assignment=False))
    group.beat("m2", "t:2", "t:3")
    group.join("m1")
    group.beat("m2", "t", "t:1", "t:2", "t:3")
    group.beat("m2", *group.kept("m2"))
    group.beat("m1")
    partition = group.kept("m1")[0]

    with pytest.raises(PartitionNotAssignedError):
        group.commit("m1", 2, partition, 7)
    group.commit("m1", group.epoch("m1"), partition, 7)


def test_a_late_commit_does_not_set_an_offset_back() -> None:
    group = two_members()
    group.commit("m1", 2, "t", 9)

    group.commit("m1", 2, "t", 5)

    assert group.state.offsets["t"].after == MessageId(9, 0)


def test_an_offset_in_a_transaction_counts_once_it_commits() -> None:
    group = two_members()
    for pointer in (1, 2):
        offsets = {"t": MessageId(pointer, 0)}
        group.apply(commit(group.state, "m1", 2, offsets, now_ms=1, pointer=pointer))
    assert group.state.undecided_partitions() == {"t"}

    group.state.end_transaction(1, is_committed=True)
    assert group.state.offsets["t"].after == MessageId(1, 0)
    group.state.end_transaction(2, is_committed=False)
    assert group.state.offsets["t"].after == MessageId(1, 0)
    assert group.state.undecided_partitions() == set()


def test_an_operator_sets_offsets_that_no_member_has() -> None:
    group = two_members()
    group.commit("m1", 2, "t", 9)
    back = {"t": MessageId(3, 0)}
    with pytest.raises(GroupNotEmptyError, match="members have t;"):
        reset(group.state, back, now_ms=1)

    group.apply(fence(group.state, ["m1", "m2"], FOUR))
    group.state.apply(
        OffsetRecord(partition="t", after=MessageId(10, 0), member_id="m1", at_ms=1, pointer=7)
    )
    with pytest.raises(GroupNotEmptyError, match="a transaction in progress"):
        reset(group.state, back, now_ms=1)
    group.state.end_transaction(7, is_committed=False)
    group.apply(reset(group.state, back, now_ms=1))
    assert group.state.offsets["t"].after == MessageId(3, 0)

    group.apply(reset(group.state, {"t": None}, now_ms=1))
    assert group.state.offsets == {}


def test_a_reset_drops_commits_that_were_decided_before_it() -> None:
    """While the log is loaded, it is not known yet how the transactions before it ended."""
    group = two_members()
    early = {"t": MessageId(9, 0)}
    group.apply(commit(group.state, "m1", 2, early, now_ms=1, pointer=1))
    group.apply(fence(group.state, ["m1", "m2"], FOUR))

    # As at a load: when the reset was decided, the transaction had ended.
    group.state.apply(ResetRecord(partition="t", after=MessageId(3, 0), at_ms=1))
    group.state.end_transaction(1, is_committed=True)

    assert group.state.offsets["t"].after == MessageId(3, 0)


def test_a_summary_makes_an_equal_state() -> None:
    group = two_members()
    group.commit("m1", 2, "t", 9)
    other = two_members()
    other.join("m3", instance_id="i1")

    for record in group.state.summary():
        other.state.apply(CONSUMER_RECORDS.from_bytes(CONSUMER_RECORDS.to_bytes(record)))

    assert other.state == group.state


def test_a_member_is_fenced_when_its_session_or_its_time_to_release_is_over() -> None:
    group = two_members()
    sessions = MemberSessions(session_timeout_ms=100, rebalance_timeout_ms=1_000)
    sessions.begin(group.state, now_ms=0)
    sessions.heard(group.state, "m1", now_ms=50)
    assert sessions.over(group.state, now_ms=99) == []
    assert sessions.over(group.state, now_ms=100) == ["m2"]

    group.join("m3")
    group.beat("m1", "t", "t:1")
    for now_ms in range(100, 1_200, 50):
        for member_id in ("m1", "m2", "m3"):
            sessions.heard(group.state, member_id, now_ms=now_ms)
    revoking = [each for each in ("m1", "m2") if group.state.current[each].revoking]
    assert sessions.over(group.state, now_ms=1_160) == revoking == ["m1"]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b'{"type":"later"}',
        b'{"type":"left"}',
        b'{"type":"left","memberId":1}',
        b'{"type":"left","memberId":"m","more":1}',
        b'{"type":"left","memberId":"m","topics":["t"]}',
        b'{"type":"reset","partition":"t","after":"00","at":1}',
        b'{"type":"reset","partition":"t","at":true}',
        b'{"type":"target","epoch":1,"assignor":"range","partitions":{"t":"t"},"target":{}}',
        b'{"type":"target","epoch":1,"assignor":"range","partitions":[],"target":[1]}',
    ],
)
def test_what_is_no_record_is_refused(payload: bytes) -> None:
    with pytest.raises(DamagedRecordOfGroupError):
        CONSUMER_RECORDS.from_bytes(payload)


@pytest.mark.parametrize(
    ("record", "payload"),
    [
        (
            OffsetRecord(
                partition="t:1", after=MessageId(1, 2), member_id="m1", at_ms=7, pointer=5
            ),
            b'{"type":"offset","partition":"t:1",'
            b'"after":"0000000000000001000200000000000000000000","memberId":"m1","at":7,'
            b'"pointer":"5"}',
        ),
        (
            ResetRecord(partition="t", at_ms=7),
            b'{"type":"reset","partition":"t","at":7}',
        ),
        (
            MemberRecord(member_id="m1", topics=("t",), assignor="range", instance_id="i1"),
            b'{"type":"member","memberId":"m1","topics":["t"],"assignor":"range",'
            b'"instanceId":"i1"}',
        ),
        (MemberLeftRecord(member_id="m1"), b'{"type":"left","memberId":"m1"}'),
        (
            TargetRecord(
                epoch=2, assignor="range", partitions={"t": ("t",)}, target={"m1": ("t",)}
            ),
            b'{"type":"target","epoch":2,"assignor":"range","partitions":{"t":["t"]},'
            b'"target":{"m1":["t"]}}',
        ),
        (
            AssignmentRecord(
                member_id="m1", epoch=2, previous_epoch=1, assigned={"t": 1}, revoking={"t": 2}
            ),
            b'{"type":"assignment","memberId":"m1","epoch":2,"previousEpoch":1,'
            b'"assigned":{"t":1},"revoking":{"t":2}}',
        ),
        (SummaryRecord(), b'{"type":"summary"}'),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_form_of_a_record(record: ConsumerRecord, payload: bytes) -> None:
    """Logs that were written have it."""
    assert CONSUMER_RECORDS.to_bytes(record) == payload
    assert CONSUMER_RECORDS.from_bytes(payload) == record
