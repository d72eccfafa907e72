"""A member of a consumer group against a scripted server, with a clock that the test sets."""

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from tuff.commit_protocol import CommitProtocol, Opened
from tuff.consumer_options import Batch, ConsumerPlan, DeliveryModeLike, mode_of, topics_of
from tuff.consumer_run_loop import ConsumerRun
from tuff.errors import ConnectionLostError, WrongStateError
from tuff.flows_and_repeated_calls import Call, Flow, Hook, Pause, Retries, Unless
from tuff.group_calls import CommittedOffset, CommittedOffsets, MemberView
from tuff.group_member import INSTANCE_ID_WAIT_S, ConsumerFlows
from tuff.protocol.errors import (
    GroupError,
    OwnershipMovingError,
    PartitionNotAssignedError,
    StaleMemberEpochError,
    TooManyMembersError,
    TopicNotFoundError,
    TransactionInvalidatedError,
    TransactionTimedOutError,
    TuffError,
    UnknownMemberError,
    UnreleasedInstanceIdError,
)
from tuff.protocol.group_preferences import GroupPreferences, RetryPolicy
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message
from tuff.protocol.transaction import Transaction
from tuff.read_calls import Readable
from tuff.replies import Poll, TopicInfo
from tuff.retry_or_dead_letter import Offsets
from tuff.stop_signals import Stop, StoppedError

TOPIC = TopicId("shop", "orders")
P0, P1 = TOPIC.partition(0), TOPIC.partition(1)
FIRST, SECOND = Message(MessageId(1, 0), b"a"), Message(MessageId(2, 0), b"b")
LOST = ConnectionLostError("no answer", outcome_unknown=True)
SESSION_S = 10.0


_TRANSACTION = Transaction(transaction_id=10, read_pointer=9, write_pointer=10)


class World:
    """A server that has messages, and answers each kind of call with what a test sets: errors in
    `errors` come first. `said` has the calls and callbacks, in order."""

    def __init__(
        self,
        mode: DeliveryModeLike = "at_least_once",
        *,
        retry: RetryPolicy | None = None,
        attempts_min: int = 0,
        attempts_max: int | None = None,
    ) -> None:
        self.now_s = 0.0
        self.view = self.assign(P0, P1)
        self.messages = {P0: [FIRST, SECOND], P1: []}
        self.committed: dict[TopicId, MessageId] = {}
        self.undecided: set[TopicId] = set()
        self.errors: dict[str, list[TuffError]] = {}
        self.said: list[str] = []
        self.is_quiet = False  # waits find nothing, until they are over
        self.polls: list[TopicId] = []
        self.brought: Poll | None = None  # by a wait, from the partition 1
        self.in_wait: Callable[[], object] = lambda: None
        self.poll_s = 0.0  # how long a read takes
        plan = ConsumerPlan(
            name="billing",
            topics=topics_of(TOPIC),
            mode=mode_of(mode, has_database=False),
            preferences=GroupPreferences(retry=retry),
            batch=1,
            assignor="sticky",
            instance_id=None,
            client="tests",
            on_assigned=self._note("assigned"),
            on_revoked=self._note("revoked"),
            on_lost=self._note("lost"),
            attempts_min=attempts_min,
            attempts_max=attempts_max,
        )
        self.flows: ConsumerFlows[object] = ConsumerFlows(
            plan,
            "m1",
            self._open,
            elapsed_s=lambda: self.now_s,
            chance=lambda: 0.0,
        )

    def _open(
        self, participants: Collection[Any], offsets: Offsets, timeout_s: float | None
    ) -> Opened[object]:
        protocol = CommitProtocol(
            Retries(0),
            participants,
            type="short",
            timeout_s=timeout_s,
            client="tests",
            offsets=offsets,
        )
        return Opened(protocol, None)

    def assign(self, *partitions: TopicId, epoch: int = 1) -> MemberView:
        self.view = MemberView(
            epoch=epoch,
            group_epoch=epoch,
            assigned=frozenset(partitions),
            heartbeat_interval_s=1.0,
            session_timeout_s=SESSION_S,
            lost=(),
            preferences=GroupPreferences(),
        )
        return self.view

    def beat(self) -> None:
        """One heartbeat of the background."""
        self.run(self.flows._beat())

    def poll(self) -> Batch | None:
        return self.run(self.flows.poll(0))

    def run(self, flow: Flow[Any]) -> Any:
        answer: object = None
        error: BaseException | None = None
        while True:
            try:
                step = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as end:
                return end.value
            try:
                answer, error = self._do(step), None
            except (TuffError, StoppedError) as raised:
                error = raised

    def _do(self, step: object) -> object:
        match step:
            case Unless(stop, within):
                stop.check()
                return self._do(within)
            case Pause(seconds):
                self.now_s += seconds
                return None
            case Hook():
                return step.run()
            case Call():
                return self._answer(step)
        raise AssertionError(step)

    def _answer(self, call: Call[Any]) -> object:
        method, path = call.request.operation.method, call.request.path.partition("?")[0]
        kind = path.rpartition("/")[2]
        if kind != "poll":
            self.said.append(f"{method} {kind}")
        if kind == "commit":
            assert b'"readOnly":false' in _body(call)  # there is an offset
        for each in (kind, f"{method} {kind}"):
            if self.errors.get(each):
                raise self.errors[each].pop(0)
        if kind == "heartbeat":
            return self.view
        if (method, kind) == ("GET", "offsets"):
            offsets = tuple(map(CommittedOffset, self.committed, self.committed.values()))
            return CommittedOffsets(offsets, frozenset(self.undecided))
        if kind == "poll" or method == "GET":
            return self._poll(call) if kind == "poll" else TopicInfo(TOPIC, 1, {}, (0, 1))
        return self._wait(call) if kind == "wait" else _TRANSACTION

    def _poll(self, call: Call[Any]) -> Poll:
        self.now_s += self.poll_s
        partition = P0 if "orders:0" in call.request.path else P1
        self.polls.append(partition)
        start = MessageId.from_hex(_start_of(call)) if b"startFrom" in _body(call) else None
        left = [each for each in self.messages[partition] if start is None or each.id > start]
        found = tuple(left[:1])
        next_id = found[-1].id if found else start or MessageId(0, 1)
        return Poll(messages=found, next_id=next_id, caught_up=True, blocked_by=None, expired=False)

    def _wait(self, call: Call[Any]) -> Readable:
        assert {b'"0"', b'"1"'} <= set(re.findall(rb'"[0-9]"', _body(call)))
        if self.is_quiet:
            self.now_s += 5.0
            self.beat()
            return Readable(partitions=[])
        self.messages[P1] = [SECOND]
        self.in_wait()
        return Readable(partitions=[P1], poll=self.brought)

    def _note(self, what: str) -> Callable[[list[TopicId]], None]:
        return lambda partitions: self.said.append(
            f"{what} {' '.join(str(each.number) for each in partitions)}"
        )

    def told(self) -> list[str]:
        """What was said since the last time."""
        said, self.said = self.said, []
        return said


def _body(call: Call[Any]) -> bytes:
    assert call.request.content is not None
    return call.request.content


def _start_of(call: Call[Any]) -> str:
    return _body(call).partition(b'"startFrom":"')[2][:40].decode()


@pytest.fixture
def world() -> World:
    """A member that has joined, and was assigned both partitions."""
    return joined(World())


def joined(world: World) -> World:
    world.beat()
    return world


def payload(batch: Batch | None) -> bytes | None:
    return None if batch is None else batch[0].payload


def not_assigned(*partitions: TopicId) -> PartitionNotAssignedError:
    names = [each.name for each in partitions]
    return PartitionNotAssignedError("lost", members={"partitions": names})


def test_a_member_whose_join_got_no_reply_leaves() -> None:
    world = World()
    world.errors["heartbeat"] = [LOST]
    with pytest.raises(ConnectionLostError):
        world.beat()
    world.told()

    world.flows.close()
    world.run(world.flows.leave())

    assert world.told() == ["POST heartbeat"]


def test_a_close_waits_for_a_join_that_was_sent() -> None:
    world = World()
    beat = world.flows._beat()
    join = beat.send(world._do(next(beat)))
    world.flows.close()

    with pytest.raises(StopIteration):
        beat.send(world._do(join))
    world.run(world.flows.leave())

    assert world.told() == ["GET orders", "POST heartbeat", "POST heartbeat"]


def test_a_member_that_is_closed_does_not_join() -> None:
    world = World()
    world.flows.close()
    world.beat()
    world.run(world.flows.leave())

    assert world.told() == ["GET orders"]


def test_a_batch_is_committed_before_partitions_are_given_up(world: World) -> None:
    assert payload(world.poll()) == b"a"
    world.told()
    world.assign(P1, epoch=2)
    world.beat()

    assert world.poll() is None
    assert world.told() == ["POST heartbeat", "POST offsets", "revoked 0"]
    assert world.flows.assignment == [P1]


def test_a_commit_whose_reply_was_lost_is_repeated_by_the_next_poll(world: World) -> None:
    world.poll()
    world.errors["offsets"] = [LOST]
    world.told()

    with pytest.raises(ConnectionLostError):
        world.poll()
    assert payload(world.poll()) == b"b"
    assert world.told() == ["POST offsets", "POST offsets"]


def test_a_refused_commit_of_a_lost_partition_reads_it_from_its_offset(world: World) -> None:
    world.poll()
    world.errors["offsets"] = [not_assigned(P0)]

    assert payload(world.poll()) == b"a"


@pytest.mark.parametrize("error", [UnknownMemberError("gone"), StaleMemberEpochError("old")])
def test_a_member_whose_commit_is_refused_joins_again(world: World, error: TuffError) -> None:
    world.poll()
    world.errors["offsets"] = [error]
    world.told()

    assert world.poll() is None
    assert world.told() == ["POST offsets", "lost 0 1"]
    world.beat()
    assert payload(world.poll()) == b"a"


def test_an_explicit_commit_reports_that_a_partition_was_lost(world: World) -> None:
    world.poll()
    world.errors["offsets"] = [not_assigned(P0)]

    with pytest.raises(GroupError):
        world.run(world.flows.commit())
    assert payload(world.poll()) == b"a"


def test_an_explicit_commit_is_repeated_until_it_is_known(world: World) -> None:
    world.poll()
    world.errors["offsets"] = [LOST, OwnershipMovingError("moving")]
    world.told()

    world.run(world.flows.commit())
    assert world.told() == ["POST offsets"] * 3


def test_at_most_once_hands_nothing_out_whose_commit_is_not_known() -> None:
    world = joined(World("at_most_once"))
    world.errors["offsets"] = []
    world.poll()
    world.errors["offsets"] = [LOST, LOST]
    world.told()

    assert payload(world.poll()) == b"b"
    assert world.told() == ["POST offsets"] * 3


def test_at_most_once_drops_a_batch_whose_commit_is_refused() -> None:
    world = joined(World("at_most_once"))
    world.poll()
    world.errors["offsets"] = [not_assigned(P0)]

    assert world.poll() is None


def test_at_most_once_drops_a_batch_when_its_session_is_over() -> None:
    world = joined(World("at_most_once"))
    world.poll()
    world.errors["offsets"] = [LOST] * 1000
    world.told()

    assert world.poll() is None
    assert world.now_s >= SESSION_S


def test_a_member_without_answers_gives_up_when_its_session_is_over(world: World) -> None:
    assert payload(world.poll()) == b"a"
    world.told()
    world.errors["heartbeat"] = [LOST] * 3
    with pytest.raises(ConnectionLostError):
        world.beat()

    world.now_s = SESSION_S - 0.1
    assert payload(world.poll()) == b"b"
    world.now_s = SESSION_S
    assert world.poll() is None
    assert world.told() == ["POST heartbeat", "POST offsets", "lost 0 1"]
    assert world.flows.assignment == []


def test_a_batch_is_dropped_if_the_session_ends_while_it_is_read(world: World) -> None:
    world.poll_s = SESSION_S

    assert world.poll() is None


def test_a_waiting_poll_is_woken_when_partitions_move(world: World) -> None:
    world.messages[P0].clear()
    world.poll()
    assert not world.flows._news.is_set
    world.assign(P1, epoch=2)

    world.beat()
    assert world.flows._news.is_set


def test_a_heartbeat_is_due_once_partitions_were_released(world: World) -> None:
    world.poll()
    world.flows._due.clear()
    world.assign(P1, epoch=2)
    world.beat()
    assert not world.flows._due.is_set

    world.poll()
    assert world.flows._due.is_set


def test_a_topic_that_was_deleted_is_passed_over(world: World) -> None:
    world.messages = {P0: [FIRST], P1: [FIRST]}
    world.errors["poll"] = [TopicNotFoundError("gone")]

    assert payload(world.poll()) == b"a"


def test_a_session_counts_from_when_the_heartbeat_was_sent(world: World) -> None:
    world.poll()
    flow = world.flows._beat()
    next(flow)
    world.now_s = 5.0  # the reply was slow
    with pytest.raises(StopIteration):
        flow.send(world.view)

    world.now_s = SESSION_S
    world.poll()
    assert "lost 0 1" in world.told()


def test_a_late_reply_of_a_former_membership_is_ignored(world: World) -> None:
    world.poll()
    late = world.flows._beat()
    next(late)
    world.now_s = SESSION_S
    assert world.poll() is None

    with pytest.raises(StopIteration):
        late.send(world.view)

    assert world.poll() is None
    assert world.flows.assignment == []


def test_a_member_that_the_group_does_not_know_joins_again(world: World) -> None:
    world.poll()
    world.errors["heartbeat"] = [UnknownMemberError("gone")]
    world.beat()
    world.told()
    world.beat()  # nothing, until the partitions were given up
    assert world.told() == []

    assert world.poll() is None
    assert world.told() == ["lost 0 1"]
    world.beat()
    assert payload(world.poll()) == b"a"


def test_a_close_is_not_overlooked_between_two_heartbeats() -> None:
    world = World()

    class Due(Stop):
        def clear(self) -> None:
            world.flows.close()
            super().clear()

    world.flows._due = Due()

    world.run(world.flows.heartbeats())
    assert (world.told(), world.now_s) == ([], 0.0)


def test_a_static_member_waits_for_the_session_of_its_former_process() -> None:
    world = World()
    heartbeats = world.flows.heartbeats()
    next(heartbeats)  # it asks for the topic
    heartbeats.send(TopicInfo(TOPIC, 1, {}))

    step = heartbeats.throw(UnreleasedInstanceIdError("there"))

    assert isinstance(step, Unless)
    assert step.step == Pause(0.05)
    assert world.poll() is None


def test_an_instance_id_of_a_member_that_lives_is_refused_after_a_session() -> None:
    """The poll returned None for ever, and only the log said that two consumers had one id."""
    world = World()
    taken = [UnreleasedInstanceIdError("the member m0 has the instance id i1") for _ in range(4)]
    heartbeats = world.flows.heartbeats()
    next(heartbeats)
    heartbeats.send(TopicInfo(TOPIC, 1, {}))
    heartbeats.throw(taken[0])
    world.now_s += INSTANCE_ID_WAIT_S - 1
    join_again(heartbeats, taken[1])
    assert world.poll() is None

    world.now_s += 1
    for error in taken[2:]:  # it is tried again, and raised again
        join_again(heartbeats, error)
        with pytest.raises(UnreleasedInstanceIdError, match="m0 has the instance id i1"):
            world.poll()

    world.beat()  # the other one was closed
    assert payload(world.poll()) == b"a"


def join_again(heartbeats: Flow[None], error: TuffError) -> None:
    """The next heartbeat, which is a join, gets this error."""
    next(heartbeats)  # it asks for the topic
    heartbeats.send(TopicInfo(TOPIC, 1, {}))
    heartbeats.throw(error)


def test_any_other_refusal_is_raised_by_poll_and_tried_again() -> None:
    world = World()
    heartbeats = world.flows.heartbeats()
    next(heartbeats)
    heartbeats.send(TopicInfo(TOPIC, 1, {}))
    heartbeats.throw(TooManyMembersError("full"))

    with pytest.raises(TooManyMembersError):
        world.poll()
    world.beat()
    assert payload(world.poll()) == b"a"


def test_heartbeats_go_on_after_the_attempts_of_a_consumer_that_raises_outages() -> None:
    """They stopped until the next poll, and a member that processed lost its partitions."""
    world = joined(World(attempts_max=1))
    assert payload(world.poll()) == b"a"
    heartbeats = world.flows.heartbeats()

    for _ in range(3):
        step = next(heartbeats)
        assert isinstance(step, Unless)
        assert isinstance(step.step, Call)
        assert isinstance(heartbeats.throw(LOST), Unless)  # a pause
    with pytest.raises(ConnectionLostError):
        world.poll()

    for _ in range(2):
        next(heartbeats)
        heartbeats.throw(LOST)
    world.beat()  # it is answered again
    assert payload(world.poll()) == b"b"


def test_a_member_whose_heartbeats_have_ended_says_so() -> None:
    """It returned None for ever."""
    world = World()
    heartbeats = world.flows.heartbeats()
    next(heartbeats)

    with pytest.raises(KeyError):
        heartbeats.throw(KeyError("a bug"))

    for _ in range(2):
        with pytest.raises(WrongStateError, match="KeyError has ended the heartbeats of"):
            world.poll()


def test_an_idle_member_waits_for_all_partitions_at_once(world: World) -> None:
    """It asked each partition five times a second."""
    world.messages = {P0: [], P1: []}
    world.told()

    assert payload(world.run(world.flows.poll(5))) == b"b"

    assert world.told()[-1:] == ["POST wait"]


def test_a_message_that_a_wait_brings_is_not_read_again(world: World) -> None:
    """A member of several partitions got it after two round trips, and one of a single partition
    after one."""
    world.messages = {P0: [], P1: []}
    world.brought = brought(SECOND)

    assert payload(world.run(world.flows.poll(5))) == b"b"

    assert sorted(world.polls) == [P0, P1], "before the wait, and not behind it"


def test_a_message_that_a_wait_brings_of_a_partition_that_is_lost_meanwhile_is_dropped(
    world: World,
) -> None:
    world.messages = {P0: [], P1: []}
    world.brought = brought(SECOND)
    world.in_wait = lambda: (world.assign(P0, epoch=2), world.beat(), world.flows.stop())

    assert world.run(world.flows.poll(5)) is None
    assert world.flows.assignment == [P0]


def test_a_message_that_a_wait_brings_for_other_tags_is_read_again(world: World) -> None:
    world.messages = {P0: [], P1: []}
    world.brought = brought(FIRST)
    retail = replace(world.view, preferences=GroupPreferences(tags="retail"))
    world.in_wait = lambda: (setattr(world, "view", retail), world.beat())

    assert payload(world.run(world.flows.poll(5))) == b"b"

    assert world.polls.count(P1) == 2


def brought(message: Message) -> Poll:
    return Poll(
        messages=(message,), next_id=message.id, caught_up=True, blocked_by=None, expired=False
    )


def test_what_a_wait_found_empty_is_not_read_before_the_next_wait(world: World) -> None:
    """Ten idle members with 64 partitions made 24 polls a second."""
    world.messages = {P0: [], P1: []}
    world.run(world.flows.poll(0))
    world.is_quiet = True
    assert world.run(world.flows.poll(5)) is None
    world.told(), world.polls.clear()

    for _ in range(3):
        assert world.run(world.flows.poll(5)) is None
    assert ("POST wait" in world.told(), world.polls) == (True, [])

    world.is_quiet = False
    assert payload(world.run(world.flows.poll(5))) == b"b"


def test_a_poll_that_does_not_wait_looks_at_what_a_wait_found_empty(world: World) -> None:
    world.messages = {P0: [], P1: []}
    world.is_quiet = True
    assert world.run(world.flows.poll(5)) is None

    world.messages = {P0: [], P1: [SECOND]}

    assert payload(world.poll()) == b"b"


def test_an_undecided_offset_is_waited_for(world: World) -> None:
    world.undecided = {P0}
    assert world.poll() is None
    world.undecided = set()
    world.committed = {P0: FIRST.id}

    assert payload(world.poll()) == b"b"


def test_exactly_once_hands_a_batch_out_again_until_it_is_committed() -> None:
    world = joined(World("exactly_once"))
    for _ in range(2):
        batch = world.poll()
        assert payload(batch) == b"a"
        assert batch is not None
        world.flows.open_for(batch, (), None)
    world.committed = {P0: FIRST.id}  # its outcome was unknown, and it has committed

    assert payload(world.poll()) == b"b"
    assert "POST offsets" not in world.told()


def test_the_first_message_of_a_partition_is_reported_before_it_is_begun() -> None:
    world = joined(World(retry=RetryPolicy()))
    world.told()

    assert payload(world.poll()) == b"a"
    assert world.told() == ["assigned 0 1", "GET offsets", "POST offsets"]  # the report
    assert payload(world.poll()) == b"b"
    assert world.told() == ["POST offsets"]  # the commit
    call = world.flows._heartbeat(world.flows._held)
    assert call.request.body is not None
    assert call.request.body["begun"] == {"orders:0": SECOND.id.hex()}


def test_a_message_whose_report_is_refused_is_not_begun() -> None:
    world = joined(World(retry=RetryPolicy()))
    world.errors["POST offsets"] = [not_assigned(P0)]

    assert world.poll() is None
    assert payload(world.poll()) == b"a"


def test_a_server_that_is_away_is_waited_for(world: World) -> None:
    world.errors["poll"] = [LOST, OwnershipMovingError("moving")]

    assert payload(world.run(world.flows.poll(30))) == b"a"


def test_a_run_waits_for_however_long_the_server_is_away(world: World) -> None:
    world.errors["poll"] = [LOST] * 8

    def process(batch: Batch) -> None:
        world.said.append(f"processes {payload(batch)!r}")
        world.flows.stop()

    world.run(ConsumerRun(world.flows, process, (), None).run())

    assert world.now_s > 4
    assert "processes b'a'" in world.told()


def test_a_poll_makes_its_attempts_before_it_raises_an_outage() -> None:
    """A poll with a short wait must outlast a server that moves a topic, as other calls do."""
    world = joined(World(attempts_min=2))
    world.errors["poll"] = [LOST, LOST]
    assert payload(world.poll()) == b"a"
    world.errors["poll"] = [LOST, LOST, LOST]

    with pytest.raises(ConnectionLostError):
        world.poll()


@pytest.mark.parametrize("was_suspended", [False, True])
def test_a_timeout_of_a_suspended_member_is_no_fault_of_its_batch(was_suspended: bool) -> None:
    world = joined(World("exactly_once"))
    world.errors["commit"] = [TransactionTimedOutError("too late")]

    def process(_batch: Batch, _context: None) -> None:
        if was_suspended:
            world.now_s += SESSION_S
        world.flows.stop()

    run = ConsumerRun(world.flows, process, (), None).run()
    if was_suspended:
        world.run(run)
    else:
        with pytest.raises(TransactionTimedOutError):
            world.run(run)
    assert world.told()[-4:] == ["POST transactions", "POST offsets", "POST commit", "POST abort"]


@pytest.mark.parametrize(
    "error",
    [
        TransactionTimedOutError("too late"),
        TransactionInvalidatedError("too late", members={"reason": "lease_expired"}),
    ],
)
def test_a_timeout_is_never_a_failed_attempt_of_a_message(error: TuffError) -> None:
    """A message whose handler succeeded five times became a dead letter."""
    world = joined(World("exactly_once", retry=RetryPolicy(delays=[])))
    world.errors["commit"] = [error] * 3
    processed: list[bytes | None] = []

    def process(batch: Batch, _context: None) -> None:
        processed.append(payload(batch))
        if len(processed) == 4:
            world.flows.stop()

    world.run(ConsumerRun(world.flows, process, (), None).run())

    assert (processed, world.errors["commit"]) == ([b"a"] * 4, [])


def test_the_transaction_of_a_batch_is_renewed_while_its_handler_runs() -> None:
    world = joined(World("exactly_once"))
    renewals: list[list[str]] = []

    def process(_batch: Batch, _context: None) -> None:
        world.told()
        world.run(world.flows._renew_transactions())
        renewals.append(world.told())
        world.errors["renew"] = [TransactionTimedOutError("it has ended")]
        world.run(world.flows._renew_transactions())  # the commit says so
        world.flows.stop()

    world.run(ConsumerRun(world.flows, process, (), None).run())
    assert renewals == [["POST renew"]]
    world.told()
    world.run(world.flows._renew_transactions())  # there is none in progress
    assert world.told() == []

    world = joined(World("exactly_once"))
    world.run(ConsumerRun(world.flows, process, (), 5.0).run())
    assert renewals[1:] == [[]]


def test_offsets_of_what_was_passed_over_are_committed_while_the_member_waits() -> None:
    """The lag of a group that had read all was reported for 20 seconds."""

    class OtherTags(World):
        read_count = 0

        def _poll(self, call: Call[Any]) -> Poll:
            self.read_count += 1
            end = MessageId(self.read_count, 0)
            return Poll(messages=(), next_id=end, caught_up=True, blocked_by=None, expired=False)

        def _wait(self, call: Call[Any]) -> Readable:
            self.now_s += call.request.wait_s
            self.beat()
            return Readable(partitions=[])

    world = OtherTags()
    world.view = replace(world.view, preferences=GroupPreferences(tags="retail"))
    joined(world)
    world.told()

    assert world.run(world.flows.poll(8)) is None

    assert world.told().count("POST offsets") == 2, "at once, and after 5 seconds"
