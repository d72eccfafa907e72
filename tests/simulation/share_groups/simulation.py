"""A simulation of share groups: real message stores, workers, and a judge that knows everything.

One server restarts, or two servers of a cluster hand the topic over and fence each other. Workers
take messages, acknowledge them late, twice, or never, by themselves or in transactions, and lose
replies. After each reply the judge checks the promises of the group; at the end everything that was
committed has to be done, once.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import count

from messaging.groups import group_logs
from messaging.groups import share_decisions as share_state
from messaging.groups.share_coordinator import Given, LeaseRequest
from messaging.groups.share_decisions import Acknowledgement, ProcessingOrder, Token
from messaging.service import MessagingService
from tests.messaging.members import Member, new_tables
from tests.messaging.world import AUDIT, World
from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import LeaseLostError
from tuff.protocol.ids import TopicId
from tuff.protocol.leases import AttemptReport, LeaseAction, LeaseOutcome
from tuff.protocol.requests import PublishRequest

GROUP = "workers"
LEASE_MS = 1_000
WINDOW = 12  # messages; small, so that it fills
KEY_COUNT_MAX = 2  # of a key in the window
SUMMARY_BYTES_MIN = 250  # four acknowledged messages
KEYS = (None, b"a", b"b")
# Events and how frequent they are.
EVENTS = {
    "publish": 14,
    "publish_in_transaction": 4,
    "lease": 25,
    "acknowledge": 35,
    "accept_in_transaction": 12,
    "end_transaction": 12,
    "wait": 15,
    "fail_over": 3,
}


class BrokenPromiseError(AssertionError):
    """A promise of the group does not hold."""


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise BrokenPromiseError(sentence)


@dataclass(slots=True)
class Known:
    """What the judge knows of a message that was published and committed."""

    number: int
    key: bytes | None
    is_done: bool = False
    undecided: int | None = None  # the transaction in progress that accepted it
    last: Token | None = None  # the newest delivery, unless it was released
    is_open: bool = False  # earlier deliveries count, too: the server has forgotten the newest
    held_until_ms: int = 0  # on the present server
    waits_until_ms: int = 0  # for its retry, on every server
    is_begun: bool = False  # by the newest delivery, and not said how it ended
    attempts_min: int = 0  # that are over, as workers or ends of leases have said
    attempts_sure: int = 0  # of these, those that were written when the worker was answered
    attempts_max: int = 0
    done_by: Token | None = None


@dataclass(slots=True)
class Judge:
    """Checks replies against everything that happened."""

    order: ProcessingOrder
    messages: dict[bytes, Known] = field(default_factory=dict)  # by payload, in order

    def gave(self, given: Given, *, now_ms: int) -> None:
        known = self.messages.get(given.payload)
        require(known is not None, f"{given.payload!r} was given out and not committed")
        assert known is not None
        name = f"message {known.number}"
        require(not known.is_done, f"{name} was given out, and is done")
        require(known.undecided is None, f"{name} was given out, and its acceptance is undecided")
        require(known.held_until_ms <= now_ms, f"{name} was given out while another has it")
        require(known.waits_until_ms <= now_ms, f"{name} was given out before its retry")
        require(known.last != given.lease.token, f"{name} has a token twice")
        if self.order is ProcessingOrder.KEY and known.key is not None:
            for each in self.messages.values():
                is_before = each.key == known.key and each.number < known.number
                require(each.is_done or not is_before, f"{name} was given out before {each.number}")
        known.attempts_min += known.is_begun
        over = given.lease.attempts - 1
        require(over >= known.attempts_min, f"{name} had {known.attempts_min} attempts, not {over}")
        require(over <= known.attempts_max, f"{name} had {known.attempts_max} attempts, not {over}")
        known.attempts_max += 1
        known.last, known.is_open, known.is_begun = given.lease.token, False, False
        known.held_until_ms = given.lease.until_ms

    def gave_together(self, given: list[Given]) -> None:
        """Before `gave` of each."""
        for each in given:
            known = self.messages.get(each.payload)
            if known is not None and known.last is not None and not known.is_open:
                require(len(given) == 1, f"message {known.number} was not given out alone")

    def acknowledged(
        self,
        given: Given,
        action: LeaseAction,
        outcome: LeaseOutcome,
        *,
        attempt: AttemptReport | None,
        ms: int,
        now_ms: int,
    ) -> None:
        known = self.messages[given.payload]
        if outcome is LeaseOutcome.LEASE_LOST:
            return
        is_repeated = known.done_by == given.lease.token
        if action is LeaseAction.RENEW and known.undecided is not None:
            return
        if known.is_done:
            require(is_repeated, f"message {known.number} is done, and was acknowledged again")
            return
        self._require_last(known, given)
        if action in (LeaseAction.ACCEPT, LeaseAction.REJECT):
            known.is_done, known.done_by = True, given.lease.token
        elif action is LeaseAction.RENEW:
            known.held_until_ms = now_ms + ms
            known.is_begun |= attempt is AttemptReport.BEGUN
        else:
            known.last, known.is_open, known.is_begun = None, False, False
            known.held_until_ms, known.waits_until_ms = 0, now_ms + ms
            if attempt is AttemptReport.NONE:
                known.attempts_max -= 1
            elif attempt is not AttemptReport.UNKNOWN:
                known.attempts_min += 1
            known.attempts_sure = known.attempts_min

    def accepted_in(self, given: Given, pointer: int) -> None:
        known = self.messages[given.payload]
        require(not known.is_done, f"message {known.number} was accepted twice")
        if known.undecided == pointer:
            return
        require(known.undecided is None, f"two transactions accept message {known.number}")
        self._require_last(known, given)
        known.undecided, known.done_by = pointer, given.lease.token

    def _require_last(self, known: Known, given: Given) -> None:
        require(
            known.is_open or known.last == given.lease.token,
            f"a late acknowledgement of message {known.number} counts",
        )

    def ended(self, pointer: int, *, is_committed: bool) -> None:
        for known in self.messages.values():
            if known.undecided == pointer:
                known.undecided = None
                known.is_done = is_committed

    def failed_over(self) -> None:
        for known in self.messages.values():
            known.held_until_ms, known.is_open = 0, True
            # The newest beginning may not be in the log. If it is, it may be counted twice: when
            # the worker releases the message, the new server does not know that it means this one.
            # If it is not, the one before may be taken for it.
            known.is_begun = False
            known.attempts_min = max(known.attempts_sure, known.attempts_min - 1)
            known.attempts_max += 1

    def require_all_done(self) -> None:
        left = [each.number for each in self.messages.values() if not each.is_done]
        require(not left, f"messages {left} were never done")


class Servers:
    """A single server, or a cluster; `service` is that of the owner of the topic."""

    def __init__(self, stack: AsyncExitStack, *, is_cluster: bool) -> None:
        self._stack = stack
        self._is_cluster = is_cluster
        self._tables = new_tables()
        self._members: list[Member] = []
        self._started_count = 0
        self._running = AsyncExitStack()
        self.world = World()
        self.service: MessagingService

    async def start(self) -> None:
        if self._is_cluster:
            await self._join(AUDIT)
            await self._join()
        else:
            await self._run_alone({})
        self._own()

    async def fail_over(self, *, is_killed: bool) -> None:
        """The owner restarts, hands the topic over, or is killed."""
        if not self._is_cluster:
            await self._running.aclose()
            await self._run_alone(None)
        else:
            owner, other = self._members
            if is_killed:
                await other.fence(owner, AUDIT)
                self._members.remove(owner)
                await self._join()
            else:
                await owner.pass_on(AUDIT, other)
                self._members.reverse()
        self._own()

    async def _run_alone(self, audit: dict[str, str] | None) -> None:
        self._running = AsyncExitStack()
        self._stack.push_async_callback(self._running.aclose)
        running = self.world.running(audit=audit)
        self.service = await self._running.enter_async_context(running)

    async def _join(self, *topics: TopicId) -> None:
        self._started_count += 1
        made = Member(self._tables, f"s{self._started_count}")
        made.clock, made.transactions = self.world.clock, self.world.transactions
        self._members.append(await self._stack.enter_async_context(made.serving(*topics)))

    def _own(self) -> None:
        if self._is_cluster:
            self.service = self._members[0].service
        self.service.share_groups.window = WINDOW


class Run:
    """The workers and their events. A worker keeps what it got, and may come back to it late."""

    def __init__(self, seed: int, servers: Servers) -> None:
        self.chance = random.Random(seed)
        self.servers = servers
        self.order = self.chance.choice(list(ProcessingOrder))
        self.judge = Judge(self.order)
        self.held: list[Given] = []
        self.publishing: dict[int, list[Known]] = {}  # transactions that published
        self.accepting: set[int] = set()
        self.counts: Counter[str] = Counter()
        self._numbers = count(1)

    @property
    def now_ms(self) -> int:
        return self.servers.world.clock.now_ms

    async def run(self, event_count: int) -> None:
        """Random events, and then whatever is needed until all is done."""
        await self.servers.start()
        await self.servers.service.share_groups.create(
            AUDIT, GROUP, start="earliest", order=self.order, lease_ms=LEASE_MS
        )
        for _ in range(event_count):
            kind = self.chance.choices(list(EVENTS), list(EVENTS.values()))[0]
            self.counts[kind] += 1
            await getattr(self, f"_{kind}")()
        for pointer in [*self.publishing, *self.accepting]:
            await self._end(pointer, is_committed=True)
        for _ in range(len(self.judge.messages) + 1):
            self.servers.world.clock.now_ms += 2 * LEASE_MS
            for each in await self._leased(WINDOW):
                await self._done(each, LeaseAction.ACCEPT)
        self.judge.require_all_done()

    async def _publish(self) -> None:
        found = self._new_messages()
        await self._write(found, None)
        self._note(found)

    async def _publish_in_transaction(self) -> None:
        pointer = self._begin()
        self.publishing[pointer] = self._new_messages()
        await self._write(self.publishing[pointer], pointer)

    async def _lease(self) -> None:
        self.held += await self._leased(self.chance.randint(1, 4))
        del self.held[:-8]  # as if these workers were killed

    async def _acknowledge(self) -> None:
        action = self.chance.choice(list(LeaseAction))
        for each in self._some():
            await self._done(each, action)
            if self.chance.random() < 0.2:  # the reply was lost, and the worker repeats it
                await self._done(each, action)

    async def _accept_in_transaction(self) -> None:
        pointer = self.chance.choice([*self.accepting, self._begin()])
        self.accepting.add(pointer)
        for each in self._some():
            with suppress(LeaseLostError):
                (outcome,) = await self._asked(each, LeaseAction.ACCEPT, None, pointer)
                require(outcome is LeaseOutcome.ACCEPTED, f"{outcome} within a transaction")
                self.judge.accepted_in(each, pointer)

    async def _end_transaction(self) -> None:
        pointers = sorted({*self.publishing, *self.accepting})
        if pointers:
            is_committed = self.chance.random() < 0.7
            await self._end(self.chance.choice(pointers), is_committed=is_committed)

    async def _wait(self) -> None:
        self.servers.world.clock.now_ms += self.chance.choice((1, 300, 700))

    async def _fail_over(self) -> None:
        await self.servers.fail_over(is_killed=self.chance.random() < 0.5)
        self.judge.failed_over()

    async def _leased(self, number: int) -> list[Given]:
        groups = self.servers.service.share_groups
        _, given = await groups.lease(AUDIT, GROUP, LeaseRequest(count=number))
        self.judge.gave_together(given)
        for each in given:
            self.judge.gave(each, now_ms=self.now_ms)
        if given:
            self.judge.messages[given[0].payload].is_begun = True
        return given

    async def _done(self, given: Given, action: LeaseAction) -> None:
        ms = self.chance.choice((1, 200, 2_000))
        attempt = self.chance.choice([None, *AttemptReport])
        (outcome,) = await self._asked(given, action, ms, None, attempt)
        self.counts[outcome] += 1
        self.judge.acknowledged(given, action, outcome, attempt=attempt, ms=ms, now_ms=self.now_ms)

    async def _asked(
        self,
        given: Given,
        action: LeaseAction,
        ms: int | None,
        pointer: int | None,
        attempt: AttemptReport | None = None,
    ) -> list[LeaseOutcome]:
        request = Acknowledgement(
            id=given.lease.id, token=given.lease.token, action=action, ms=ms, attempt=attempt
        )
        groups = self.servers.service.share_groups
        return await groups.acknowledge(AUDIT, GROUP, [request], pointer=pointer)

    async def _end(self, pointer: int, *, is_committed: bool) -> None:
        world, service = self.servers.world, self.servers.service
        if is_committed:
            world.commit(service, pointer)
            self._note(self.publishing.get(pointer, []))
        else:
            await world.abort(service, pointer)
        self.publishing.pop(pointer, None)
        self.accepting.discard(pointer)
        self.judge.ended(pointer, is_committed=is_committed)

    def _begin(self) -> int:
        return self.servers.world.transactions.start(next(self._numbers))

    def _some(self) -> list[Given]:
        return self.chance.sample(self.held, min(len(self.held), self.chance.randint(1, 3)))

    def _new_messages(self) -> list[Known]:
        size = self.chance.randint(1, 3)
        return [Known(next(self._numbers), self.chance.choice(KEYS)) for _ in range(size)]

    def _note(self, messages: list[Known]) -> None:
        self.judge.messages |= {b"%d" % each.number: each for each in messages}

    async def _write(self, messages: list[Known], pointer: int | None) -> None:
        attributes = [None if each.key is None else Attributes(each.key) for each in messages]
        request = PublishRequest(
            pointer, [b"%d" % each.number for each in messages], attributes=attributes
        )
        await self.servers.service.publisher.publish(AUDIT, request)


async def simulated(seed: int, event_count: int) -> Run:
    """The run of a seed. Raises: BrokenPromiseError."""
    before, group_logs.SUMMARY_BYTES_MIN = group_logs.SUMMARY_BYTES_MIN, SUMMARY_BYTES_MIN
    key_count, share_state.KEY_COUNT_MAX = share_state.KEY_COUNT_MAX, KEY_COUNT_MAX
    try:
        async with AsyncExitStack() as stack:
            run = Run(seed, Servers(stack, is_cluster=seed % 2 == 1))
            await run.run(event_count)
            return run
    finally:
        group_logs.SUMMARY_BYTES_MIN, share_state.KEY_COUNT_MAX = before, key_count


def failures(seeds: range, event_count: int) -> Iterator[str]:
    """What is broken, by seed."""
    for seed in seeds:
        try:
            asyncio.run(simulated(seed, event_count))
        except AssertionError as error:
            yield f"seed {seed}: {error}"
