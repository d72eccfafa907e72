"""A simulation of a consumer group: the coordinator's decisions and members, on a virtual clock.

The network delays, repeats, reorders and loses requests and replies. Members are killed, paused for
longer than a session, closed and started; the coordinator fails over; topics get partitions and
messages. After every event the promises of the group are checked (`World.check`, `Ledger`).
"""

import heapq
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from messaging.groups import consumer_decisions
from messaging.groups.assignors import ASSIGNORS
from messaging.groups.consumer_decisions import GroupState, Heartbeat, MemberSessions
from messaging.groups.group_log_records import CONSUMER_RECORDS, ConsumerRecord, MemberRecord
from tuff.protocol.errors import (
    FencedMemberEpochError,
    GroupError,
    UnknownMemberError,
    UnreleasedInstanceIdError,
)
from tuff.protocol.ids import FIRST_ID, MessageId

SESSION_MS = 10_000
RELEASE_MS = 30_000
INTERVAL_MS = 1_000
TIMEOUT_MS = 3_000  # of a request
LATE_MS_MAX = 20_000  # how late a request or a repetition may arrive
MEMBERS_COUNT_MAX = 6
TOPICS = ("a", "b")
INSTANCES = ("i1", "i2")
PARTITIONS_COUNT_MAX = 12
# Events and how frequent they are.
OPERATIONS = {
    "wait": 70,
    "start": 6,
    "kill": 2,
    "pause": 3,
    "close": 3,
    "fail_over": 1,
    "add_partition": 2,
    "publish": 10,
    "summarize": 1,
    "tick": 13,
}


class BrokenPromiseError(AssertionError):
    """A promise of the group does not hold."""


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise BrokenPromiseError(sentence)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a member gets for a join or a heartbeat, and the grants that it is about."""

    epoch: int
    group_epoch: int
    assigned: frozenset[str]
    grants: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets of a batch that a member processed. `start` and `grants` are for the checks only: the
    offset from which it read each partition, and the grant under which."""

    member_id: str
    epoch: int
    offsets: Mapping[str, int]
    starts: Mapping[str, int]
    grants: Mapping[str, int]
    pointer: int | None = None


class Coordinator:
    """Decides, appends records to the log, and applies them."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.log: list[bytes] = []
        self.load()

    def load(self) -> None:
        """Make the state from the log, as after a failover."""
        self.state = GroupState()
        for payload in self.log:
            self.state.apply(CONSUMER_RECORDS.from_bytes(payload))
        for pointer in list(self.state.undecided):
            if pointer not in self.world.open_transactions:
                is_committed = pointer in self.world.committed_transactions
                self.state.end_transaction(pointer, is_committed=is_committed)
        self.sessions = MemberSessions(SESSION_MS, RELEASE_MS)
        self.sessions.begin(self.state, now_ms=self.world.now_ms)

    def write(self, records: list[ConsumerRecord], *, is_lost: bool = False) -> None:
        """`is_lost`: the coordinator ends before the batch is durable."""
        if is_lost:
            self.load()
            raise ConnectionError
        if not records:
            return
        before = self.world.snapshot()
        for record in records:
            payload = CONSUMER_RECORDS.to_bytes(record)
            self.world.counts_of_records[json.loads(payload)["type"]] += 1
            self.log.append(payload)
            self.state.apply(CONSUMER_RECORDS.from_bytes(payload))
        self.world.check(before)

    def tick(self) -> None:
        now_ms, partitions = self.world.now_ms, self.world.partitions
        over = self.sessions.over(self.state, now_ms=now_ms)
        if over:
            self.write(consumer_decisions.fence(self.state, over, partitions))
        self.sessions.forget_others(self.state)

    def join(self, request: MemberRecord) -> Reply:
        self.tick()
        world = self.world
        records = consumer_decisions.join(self.state, request, world.partitions)
        topics = consumer_decisions.topics_to_start(self.state, request)
        names = [each for topic in topics for each in world.partitions[topic]]
        ends = {each: id_of(world.ends[each]) for each in names if world.is_at_latest}
        records += consumer_decisions.start(topics, ends, now_ms=world.now_ms)
        self.write(records, is_lost=self.world.chance.random() < 0.01)
        world.note_subscription(request.topics)
        return self._reply(request.member_id)

    def heartbeat(self, request: Heartbeat) -> Reply:
        self.tick()
        records = consumer_decisions.heartbeat(self.state, request, self.world.partitions)
        self.write(records, is_lost=self.world.chance.random() < 0.01)
        return self._reply(request.member_id)

    def leave(self, member_id: str, *, keeps_assignment: bool) -> None:
        self.tick()
        records = consumer_decisions.leave(
            self.state, member_id, self.world.partitions, keeps_assignment=keeps_assignment
        )
        self.world.leaving = member_id
        self.write(records)
        self.world.leaving = ""
        self.sessions.heard(self.state, member_id, now_ms=self.world.now_ms)
        self.sessions.forget_others(self.state)

    def commit(self, commit: Commit) -> None:
        self.tick()
        offsets = {each: id_of(number) for each, number in commit.offsets.items()}
        if commit.pointer is not None and commit.pointer not in self.world.open_transactions:
            raise ConnectionError  # the write permit is refused
        records = consumer_decisions.commit(
            self.state,
            commit.member_id,
            commit.epoch,
            offsets,
            now_ms=self.world.now_ms,
            pointer=commit.pointer,
        )
        for partition, start in commit.starts.items():
            offset = self.state.offsets.get(partition)
            before = self.world.start_of(partition)
            if offset is not None:
                before = max(before, offset.after.publish_timestamp_ms)
            require(
                start <= before,
                f"{commit.member_id} begins {partition} at {start}, and {before} was its offset",
            )
        for partition, grant in commit.grants.items():
            require(
                self.world.grant_of(partition) == (commit.member_id, grant),
                f"a commit of {commit.member_id} for {partition} counts, which it has lost",
            )
        self.write(records, is_lost=self.world.chance.random() < 0.01)
        if commit.pointer is not None:
            self.world.open_transactions[commit.pointer].append(commit)

    def fetch(self, partition: str) -> int:
        if partition in self.state.undecided_partitions():
            raise ConnectionError  # asked again later
        found = self.state.offsets.get(partition)
        return 0 if found is None else found.after.publish_timestamp_ms

    def _reply(self, member_id: str) -> Reply:
        self.sessions.heard(self.state, member_id, now_ms=self.world.now_ms)
        self.sessions.forget_others(self.state)
        current = self.state.current[member_id]
        kept = frozenset(current.kept)
        grants = {each: self.world.grant_of(each)[1] for each in kept}
        return Reply(current.epoch, self.state.epoch, kept, grants)


def id_of(number: int) -> MessageId:
    return MessageId(number, 0) if number else FIRST_ID


class Member:
    """A client: it heartbeats, reads its partitions, and commits within transactions or without."""

    def __init__(self, world: "World", name: str, instance_id: str | None) -> None:
        chance = world.chance
        self.world, self.id, self.instance_id = world, name, instance_id
        self.topics = tuple(topic for topic in TOPICS if chance.random() < 0.7) or TOPICS
        self.assignor = chance.choice(sorted(ASSIGNORS))
        self.in_transactions = world.in_transactions
        self.is_running, self.paused_until_ms = True, 0
        self.epoch = self.group_epoch = 0
        self.owned: dict[str, int] = {}  # with their grants
        self.positions: dict[str, int] = {}
        self.is_busy = False  # with a commit
        self.asked: frozenset[str] = frozenset()  # of the last reply
        self.number = 0  # of the newest request; replies to others are ignored
        self.lease_ms = world.now_ms + SESSION_MS
        world.at(0, self.beat)

    @property
    def is_paused(self) -> bool:
        return self.world.now_ms < self.paused_until_ms

    @property
    def works(self) -> bool:
        """Whether it may process messages, as far as it knows."""
        return self.is_running and not self.is_paused and self.world.now_ms < self.lease_ms

    def beat(self) -> None:
        if not self.is_running:
            return
        if self.is_paused:
            self.world.at(self.paused_until_ms - self.world.now_ms, self.beat)
            return
        if self.world.now_ms >= self.lease_ms:
            self.abandon()
        self.number += 1
        number, sent_ms = self.number, self.world.now_ms

        def answered(reply: object) -> None:
            if number == self.number and self.is_running:
                self.replied(reply, sent_ms)

        self.world.send(self._request(), answered, repeats=True)
        self.world.at(TIMEOUT_MS, self._beat_again, number)

    def _request(self) -> Callable[[], object]:
        coordinator = self.world.coordinator
        if self.epoch == 0:
            join = MemberRecord(
                member_id=self.id,
                topics=self.topics,
                assignor=self.assignor,
                instance_id=self.instance_id,
            )
            return lambda: coordinator.join(join)
        heartbeat = Heartbeat(
            member_id=self.id,
            epoch=self.epoch,
            group_epoch=self.group_epoch,
            owned=frozenset(self.owned),
            begun={each: id_of(position + 1) for each, position in self.positions.items()},
        )
        return lambda: coordinator.heartbeat(heartbeat)

    def _beat_again(self, number: int) -> None:
        if number == self.number:
            self.beat()

    def replied(self, reply: object, sent_ms: int) -> None:
        if self.is_paused:
            self.world.at(
                self.paused_until_ms - self.world.now_ms, lambda: self.replied(reply, sent_ms)
            )
            return
        match reply:
            case Reply():
                self.lease_ms = sent_ms + SESSION_MS
                self.epoch, self.group_epoch = reply.epoch, reply.group_epoch
                self.asked = reply.assigned
                for partition in self.owned.keys() - reply.assigned:
                    self.world.at(self.world.chance.randrange(2_000), self._release, partition)
                for partition in reply.assigned - self.owned.keys():
                    self.owned[partition] = reply.grants[partition]
                    self.world.at(0, self._fetch, partition, reply.grants[partition])
            case FencedMemberEpochError() | UnknownMemberError():
                self.abandon()
            case UnreleasedInstanceIdError():
                pass
        self.number += 1
        self.world.at(INTERVAL_MS, self._beat_again, self.number)

    def abandon(self) -> None:
        self.epoch = self.group_epoch = 0
        self.owned, self.positions, self.asked = {}, {}, frozenset()
        self.lease_ms = self.world.now_ms + SESSION_MS

    def _release(self, partition: str) -> None:
        if partition not in self.asked:
            self.owned.pop(partition, None)
            self.positions.pop(partition, None)

    def _fetch(self, partition: str, grant: int) -> None:
        coordinator = self.world.coordinator

        def answered(offset: object) -> None:
            if self.owned.get(partition) != grant or not self.is_running:
                return
            if isinstance(offset, int):
                self.positions[partition] = offset
            else:
                self.world.at(500, self._fetch, partition, grant)

        self.world.send(lambda: coordinator.fetch(partition), answered)

    def work(self) -> None:
        """Process some messages of each partition, and commit."""
        if self.is_busy or not self.works or not self.positions:
            return
        starts = dict(self.positions)
        grants = {each: self.owned[each] for each in starts}
        ends = {each: start + self.world.chance.randrange(1, 4) for each, start in starts.items()}
        pointer = self.world.begin_transaction() if self.in_transactions else None
        commit = Commit(self.id, self.epoch, ends, starts, grants, pointer)
        self.is_busy = True

        def answered(reply: object) -> None:
            # A transaction whose offsets were refused, or may have been, is aborted.
            is_sure = reply is None and (pointer is None or self.world.chance.random() < 0.8)
            delay_ms = 0 if pointer is None else self.world.chance.randrange(3_000)
            self.world.at(delay_ms, finish, is_sure)

        def finish(is_sure: bool) -> None:
            if pointer is not None:
                self.world.end_transaction(pointer, is_committed=is_sure)
            self.is_busy = False
            for partition, grant in grants.items():
                if self.owned.get(partition) == grant and partition in self.positions:
                    if is_sure:
                        self.positions[partition] = ends[partition]
                    else:
                        del self.positions[partition]
                        self._fetch(partition, grant)

        coordinator = self.world.coordinator
        self.world.send(lambda: coordinator.commit(commit), answered, repeats=pointer is None)


@dataclass(order=True, slots=True)
class Event:
    at_ms: int
    number: int
    call: Callable[..., object] = field(compare=False)
    arguments: tuple[object, ...] = field(compare=False)


class World:
    """The clock, the network, the transactions and the checks."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.in_transactions = self.chance.random() < 0.5
        self.now_ms = 1_000_000
        self.leaving = ""  # the member that leaves now, and does not vanish
        self.events: list[Event] = []
        self.numbers = count()
        self.has_faults = True
        self.counts = {"a": 4, "b": self.chance.randrange(3)}
        self.is_at_latest = self.chance.random() < 0.7
        self.ends = Counter({"a": 5, "a:1": 8})  # how many messages each partition has
        # The start that the group was promised: those of the partitions that existed when it
        # subscribed to their topic for the first time.
        self.starts: dict[str, int] = {}
        self.subscribed: set[str] = set()
        self.members: list[Member] = []
        self.grants: dict[str, tuple[str, int]] = {}
        self.open_transactions: dict[int, list[Commit]] = {}
        self.committed_transactions: set[int] = set()
        self.processed: dict[str, int] = {}  # exactly-once: the end of the effects by partition
        self.counts_of_records: Counter[str] = Counter()
        self.coordinator = Coordinator(self)

    @property
    def partitions(self) -> dict[str, list[str]]:
        return {
            topic: [topic if number == 0 else f"{topic}:{number}" for number in range(size)]
            for topic, size in self.counts.items()
        }

    def note_subscription(self, topics: Iterable[str]) -> None:
        """A member that subscribes to these topics has joined, durably."""
        for topic in sorted({*topics} - self.subscribed):
            self.subscribed.add(topic)
            if self.is_at_latest:
                self.starts |= {each: self.ends[each] for each in self.partitions[topic]}

    def start_of(self, partition: str) -> int:
        return self.starts.get(partition, 0)

    def grant_of(self, partition: str) -> tuple[str, int]:
        """The member that has a partition, and a number that rises with each grant."""
        return self.grants[partition]

    def at(self, delay_ms: int, call: Callable[..., object], *arguments: object) -> None:
        event = Event(self.now_ms + delay_ms, next(self.numbers), call, arguments)
        heapq.heappush(self.events, event)

    def send(
        self,
        handle: Callable[[], object],
        answered: Callable[[object], None],
        *,
        repeats: bool = False,
    ) -> None:
        """`repeats`: the network may deliver the request twice, the second time late."""
        chance = self.chance
        if not self.has_faults:
            self.at(chance.randrange(20), self._arrive, handle, answered)
            return
        if chance.random() < 0.05:  # lost
            self.at(TIMEOUT_MS, answered, ConnectionError())
            return
        late_ms = chance.randrange(LATE_MS_MAX) if chance.random() < 0.05 else chance.randrange(50)
        self.at(late_ms, self._arrive, handle, answered)
        if repeats and chance.random() < 0.1:
            self.at(chance.randrange(LATE_MS_MAX), self._arrive, handle, lambda _reply: None)

    def _arrive(self, handle: Callable[[], object], answered: Callable[[object], None]) -> None:
        try:
            reply: object = handle()
        except (GroupError, ConnectionError) as error:
            reply = error
        if self.has_faults and self.chance.random() < 0.05:
            self.at(TIMEOUT_MS, answered, ConnectionError())
        else:
            self.at(self.chance.randrange(20), answered, reply)

    # Transactions.

    def begin_transaction(self) -> int:
        pointer = next(self.numbers)
        self.open_transactions[pointer] = []
        return pointer

    def end_transaction(self, pointer: int, *, is_committed: bool) -> None:
        commits = self.open_transactions.pop(pointer)
        if is_committed:
            self.committed_transactions.add(pointer)
            for commit in commits:
                for partition, end in commit.offsets.items():
                    start = commit.starts[partition]
                    before = self.processed.get(partition, self.start_of(partition))
                    require(
                        start == before,
                        f"{commit.member_id} processed {partition} from {start} on, and {before} "
                        "was the end of what had been processed",
                    )
                    self.processed[partition] = end
        before_state = self.snapshot()
        self.coordinator.state.end_transaction(pointer, is_committed=is_committed)
        self.check(before_state)

    # Checks.

    def snapshot(self) -> GroupState:
        state = self.coordinator.state.copy_of_members()
        state.offsets = dict(state.offsets)
        return state

    def check(self, before: GroupState) -> None:
        """What holds after every change of the state."""
        state = self.coordinator.state
        owners: dict[str, str] = {}
        for member_id, current in state.current.items():
            for partition, since in current.assigned.items():
                require(partition not in owners, f"{partition} has two members")
                owners[partition] = member_id
                was = before.current.get(member_id)
                if was is None or was.assigned.get(partition) != since:
                    self.grants[partition] = (member_id, next(self.numbers))
        require(owners == state.owners, "the owners are not those of the assignments")
        for partition, offset in before.offsets.items():
            after = state.offsets.get(partition)
            require(
                after is not None and after.after >= offset.after,
                f"the offset of {partition} went back",
            )
        self._check_beginnings(before)
        self._check_that_nothing_is_interrupted(before)
        self._check_that_one_member_works()

    def _check_beginnings(self, before: GroupState) -> None:
        """A beginning is lost with a member that is fenced, and with no other."""
        state = self.coordinator.state
        for partition, was in before.begun.items():
            vanished = was.member_id and was.member_id not in state.members
            lost = was.lost + bool(vanished and was.member_id != self.leaving)
            found = state.begun.get(partition)
            offset = state.offsets.get(partition)
            if found is not None and found.after == was.after:
                require(
                    found.lost == lost,
                    f"{found.lost} members, and not {lost}, vanished with what they began in "
                    f"{partition}",
                )
            elif lost:
                is_done = offset is not None and offset.after >= was.after
                is_later = found is not None and found.after > was.after
                require(is_done or is_later, f"lost beginnings in {partition} are forgotten")

    def _check_that_nothing_is_interrupted(self, before: GroupState) -> None:
        state = self.coordinator.state
        for member_id, was in before.current.items():
            current = state.current.get(member_id)
            if current is None or min(was.epoch, current.epoch) < 0:
                continue
            for partition in was.kept.keys() & set(state.target.get(member_id, ())):
                require(
                    current.kept.get(partition) == was.kept[partition],
                    f"{member_id} was interrupted in {partition}, which does not move",
                )

    def _check_that_one_member_works(self) -> None:
        workers: dict[str, str] = {}
        for member in self.members:
            for partition in member.positions if member.works else ():
                require(partition not in workers, f"two members work on {partition}")
                workers[partition] = member.id

    # The run.

    def run(self, event_count: int) -> None:
        """Random events, and then a time without faults, after which the group has settled."""
        for _ in range(event_count):
            self._operate()
            self._until(self.now_ms + self.chance.randrange(700))
        self.has_faults = False
        for member in self.members:
            member.paused_until_ms = 0
        if not any(member.is_running for member in self.members):
            self._start()
        self._until(self.now_ms + LATE_MS_MAX + RELEASE_MS + 5 * SESSION_MS)
        self._check_that_it_settled()

    def _until(self, end_ms: int) -> None:
        while self.events and self.events[0].at_ms <= end_ms:
            event = heapq.heappop(self.events)
            self.now_ms = event.at_ms
            event.call(*event.arguments)
        self.now_ms = end_ms

    def _operate(self) -> None:
        chance = self.chance
        for member in self._running():
            if chance.random() < 0.3:
                member.work()
        kind = chance.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
        getattr(self, f"_{kind}")()

    def _wait(self) -> None:
        pass

    def _running(self) -> list[Member]:
        return [member for member in self.members if member.is_running]

    def _kill(self) -> None:
        for member in self._running()[:1]:
            member.is_running = False

    def _pause(self) -> None:
        for member in self._running()[-1:]:
            pause_ms = self.chance.choice((2_000, SESSION_MS, 3 * SESSION_MS))
            member.paused_until_ms = self.now_ms + pause_ms

    def _fail_over(self) -> None:
        before = self.snapshot()
        self.coordinator.load()
        self._check_beginnings(before)

    def _add_partition(self) -> None:
        if sum(self.counts.values()) < PARTITIONS_COUNT_MAX:
            self.counts[self.chance.choice(TOPICS)] += 1

    def _publish(self) -> None:
        for partitions in self.partitions.values():
            for each in partitions:
                self.ends[each] += self.chance.randrange(3)

    def _summarize(self) -> None:
        if not self.coordinator.state.undecided:
            self.coordinator.log = [
                *map(CONSUMER_RECORDS.to_bytes, self.coordinator.state.summary())
            ]

    def _tick(self) -> None:
        self.coordinator.tick()

    def _start(self) -> None:
        if len(self._running()) >= MEMBERS_COUNT_MAX:
            return
        used = {member.instance_id for member in self.members if member.is_running}
        instance_id = self.chance.choice((None, None, *INSTANCES))
        if instance_id in used:
            instance_id = None
        self.members.append(Member(self, f"m{next(self.numbers)}", instance_id))

    def _close(self) -> None:
        for member in self._running()[:1]:
            if member.is_paused:
                continue
            member.is_running = False
            keeps = member.instance_id is not None and self.chance.random() < 0.7
            leave = partial(self.coordinator.leave, member.id, keeps_assignment=keeps)
            self.send(leave, lambda _reply: None)

    def _check_that_it_settled(self) -> None:
        state = self.coordinator.state
        self.coordinator.tick()
        running = {member.id: member for member in self.members if member.is_running}
        require(state.members.keys() == running.keys(), "members that live are not in the group")
        topics = {topic for member in running.values() for topic in member.topics}
        wanted = {each for topic in topics for each in self.partitions[topic]}
        owned = [each for member in running.values() for each in member.owned]
        require(sorted(owned) == sorted(wanted), f"{sorted(wanted)} are owned as {sorted(owned)}")
        for member_id, member in running.items():
            require(
                set(state.target[member_id]) == set(member.owned) == set(member.positions),
                f"{member_id} has {sorted(member.owned)}",
            )


def run(seed: int, event_count: int) -> None:
    """Raises: BrokenPromiseError."""
    World(seed).run(event_count)


def failures(seeds: range, event_count: int) -> Iterator[str]:
    """What is broken, by seed."""
    for seed in seeds:
        try:
            run(seed, event_count)
        except AssertionError as error:
            yield f"seed {seed}: {error}"
