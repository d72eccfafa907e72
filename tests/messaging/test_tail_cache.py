"""The tail cache answers as the store does, whatever happened before, or not at all."""

import asyncio
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.engines.memory import MemoryStore
from messaging.log import tail_cache
from messaging.log.tail_cache import TOPIC_SHARE, TailCache
from messaging.model.packed_rows import NewRows
from messaging.model.row_format import MessageRow, PayloadRange, inline_values, message_key
from messaging.model.visibility import BEGINNING, PAST_ALL, Query, Undecided, id_before, start_after
from messaging.read.poll import Poll
from messaging.service import MessagingService
from messaging.settings import MessagingSettings
from tests.messaging.scan_model import COMMITTED_POINTER, PREFIX, SNAPSHOT, comparable, query, read
from tests.messaging.world import (
    AUDIT,
    COMMITTED,
    FlakyWorld,
    World,
    payloads,
    polled,
    publish,
    request,
    watched,
)
from tuff.protocol.attributes import Attributes, TagFilter
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import LAST_ID, MESSAGE_ID_SIZE, MessageId, Offset, TopicId
from tuff.protocol.media_types import Encoding, MediaType
from tuff.protocol.requests import PublishRequest, RollbackDetail
from tuff.protocol.transaction import Transaction

TOPICS = [TopicId("default", "audit"), TopicId("default", "other")]
SMALL_BYTES = 2_000  # a dozen rows; so few that they are cut all the time


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens; the numbers pick what it happens to."""

    kind: str
    topic: int
    pointer: int
    number: int


STEPS = st.builds(
    Step,
    st.sampled_from(
        ["publish"] * 6
        + [
            "publish_tagged",
            "publish_tagged",
            "publish_ttl",
            "publish_tx",
            "publish_tx",
            "store",
            "publish_reference",
            "commit",
        ]
        + ["abort", "rollback", "truncate", "recreate", "sweep", "time", "fail", "fail_late"]
    ),
    st.integers(0, len(TOPICS) - 1),
    st.integers(0, 2),
    st.integers(0, 5),
)


class History:
    """Does steps to a running service, and asks both sides after each."""

    def __init__(self, world: FlakyWorld, service: MessagingService) -> None:
        self.world = world
        self.service = service
        self.pointers: list[int] = []
        self.details: list[tuple[TopicId, RollbackDetail]] = []
        self.snapshot = world.transactions.reader()  # one that stays while rows change under it
        self.asked_last: dict[bytes, Query] = {}
        self.answered_count = 0

    def pointer(self, step: Step) -> int:
        transactions = self.world.transactions
        live = sorted(transactions.in_progress)
        if len(live) < 3:
            self.pointers.append(transactions.start(1 + len(self.pointers)))
            return self.pointers[-1]
        return live[step.pointer % len(live)]

    async def do(self, step: Step) -> None:
        # Refused where there is nothing stored to bring, the topic is away, or the disk fails.
        with suppress(TuffError):
            await getattr(self, f"_{step.kind}")(step, TOPICS[step.topic])
        assert self.world.store is not None
        self.world.store.writes_left = None
        await self.service.tick()

    async def _publish(self, step: Step, topic: TopicId) -> None:
        await self.service.publisher.publish(
            topic, request(*[b"p" * step.number] * (1 + step.number))
        )

    async def _publish_tagged(self, step: Step, topic: TopicId) -> None:
        tagged, other = Attributes(tags=("eu",)), Attributes(key=b"eu", tags=("us", "eu"))
        attributes = [tagged, None, other][: 1 + step.number // 2]
        plain = request(*[b"t" * step.number] * len(attributes))
        await self.service.publisher.publish(topic, plain._replace(attributes=attributes))

    async def _publish_ttl(self, step: Step, topic: TopicId) -> None:
        await self.service.publisher.publish(topic, request(b"ttl", b"l", ttl_s=1 + step.number))

    async def _publish_tx(self, step: Step, topic: TopicId) -> None:
        pointer = self.pointer(step)
        published = await self.service.publisher.publish(
            topic, request(b"tx", b"u", pointer=pointer)
        )
        assert published.rollback is not None
        self.details.append((topic, published.rollback))

    async def _store(self, step: Step, topic: TopicId) -> None:
        await self.service.publisher.store(topic, request(b"stored", pointer=self.pointer(step)))

    async def _publish_reference(self, step: Step, topic: TopicId) -> None:
        await self.service.publisher.publish(topic, request(pointer=self.pointer(step)))

    async def _commit(self, step: Step, _topic: TopicId) -> None:
        pointer = self.pointer(step)
        self.world.transactions.end(pointer, self.world.transactions.committed)
        self.service.rows.end_committed([pointer])

    async def _abort(self, step: Step, _topic: TopicId) -> None:
        pointer = self.pointer(step)
        self.world.transactions.end(pointer, self.world.transactions.invalid)
        await self.service.rows.roll_back([pointer])

    async def _rollback(self, step: Step, _topic: TopicId) -> None:
        if self.details:
            topic, detail = self.details[step.number % len(self.details)]
            await self.service.publisher.rollback(topic, detail)

    async def _truncate(self, step: Step, topic: TopicId) -> None:
        await self.service.topics.truncate(topic, self.world.clock.now_ms - 2 + step.number)

    async def _recreate(self, step: Step, topic: TopicId) -> None:
        await self.service.topics.delete(topic)
        await self.service.topics.create(topic, {"ttl": str(5 + step.number)})

    async def _sweep(self, _step: Step, _topic: TopicId) -> None:
        await self.service.cleaner.run_pass()

    async def _time(self, step: Step, _topic: TopicId) -> None:
        self.world.clock.now_ms += 10 ** (step.number % 4) * (1 + step.number)

    async def _fail(self, step: Step, topic: TopicId) -> None:
        self.world.fail_write(0, takes_effect=False)
        await self._publish(step, topic)

    async def _fail_late(self, step: Step, topic: TopicId) -> None:
        self.world.fail_write(0, takes_effect=True)
        await self._publish_tx(step, topic)

    def compare(self, step: Step) -> None:
        """Ask for the same from memory and from the store."""
        if step.kind == "publish_tx":
            self.snapshot = self.world.transactions.reader()
        live, table = self.service.state, MemoryStore(self.world.rows)
        transactions = self.world.transactions
        for topic in TOPICS:
            found = live.topics.find(topic)
            record = found.durable
            assert record is not None
            if record.generation < 0:
                continue
            asked = replace(_question(self.world, self.service, topic), limit=1 + step.number)
            snapshots = [None, transactions.reader(), self.snapshot]
            if step.number % 2:
                self._keep(table, asked)
            if (before := self.asked_last.get(asked.prefix)) is not None:
                # What was answered then must not be answered again, should rows have changed since.
                self._same(replace(asked, after=before.after, limit=9, snapshot=before.snapshot))
            for start in self._starts(table, asked):
                for snapshot in snapshots:
                    self._ask(replace(asked, after=start), snapshot, step)
            last = replace(asked, after=BEGINNING if step.pointer else start, limit=9)
            self.asked_last[asked.prefix] = replace(last, snapshot=self.snapshot)
            self._same(self.asked_last[asked.prefix])

    def _keep(self, table: MemoryStore, asked: Query) -> None:
        """What a reader somewhere in the topic was handed, as the polls do it."""
        ids = [each for each, _ in read(table, asked).items]
        after = id_before(ids[len(ids) // 2]) if ids else BEGINNING
        fetched = replace(asked, after=after, limit=10_000)
        self.service.state.tail_cache.add_read(fetched, read(table, fetched))

    def _starts(self, table: MemoryStore, asked: Query) -> list[bytes]:
        everything = replace(asked, limit=10_000, log_start=MessageId(0, 0), live_from=Offset(0, 0))
        ids = [each for each, _ in read(table, everything).items]
        starts = sorted({BEGINNING, _live_after(asked.now_ms - 1), *ids, *map(id_before, ids)})
        return starts[:: 1 + len(starts) // 12]

    def _ask(self, asked: Query, snapshot: Transaction | None, step: Step) -> None:
        number = int.from_bytes(asked.after, "big") + (step.pointer << 80)
        through = number.to_bytes(MESSAGE_ID_SIZE, "big")
        for changed in (
            replace(asked, snapshot=snapshot),
            replace(asked, snapshot=snapshot, limit=10_000),
            replace(asked, snapshot=snapshot, limit=10_000, bytes_max=1 + step.number),
            replace(asked, snapshot=snapshot, undecided=Undecided.SKIP),
            replace(asked, snapshot=snapshot, through=through),
            replace(asked, snapshot=snapshot, tags=TagFilter.parse("eu")),
            replace(asked, snapshot=snapshot, tags=TagFilter.parse("eu,us"), through=through),
        ):
            for _ in range(2):  # the second time it may be the page of the first
                self._same(changed)

    def _same(self, asked: Query) -> None:
        answer = self.service.state.tail_cache.read(asked)
        if answer is not None:
            self.answered_count += 1
            assert comparable(answer) == comparable(read(MemoryStore(self.world.rows), asked)), (
                asked
            )


def _live_after(timestamp_ms: int) -> bytes:
    return start_after(timestamp_ms, inclusive=True)


def _question(world: World, service: MessagingService, topic: TopicId) -> Query:
    """All that there is, of a topic that exists."""
    found = service.state.topics.find(topic)
    record = found.require_durable()
    return Query(
        prefix=found.prefix(record.generation),
        after=BEGINNING,
        through=PAST_ALL,
        high_water_mark=service.state.high_water_mark,
        log_start=record.log_start,
        live_from=record.rule.live_from(now_ms=world.clock.now_ms),
        now_ms=world.clock.now_ms,
        limit=10_000,
        bytes_max=1 << 20,
        snapshot=None,
    )


def _play(steps: list[Step], *, tail_bytes_max: int) -> History:
    async def played() -> History:
        world = FlakyWorld()
        world.settings = MessagingSettings(tail_bytes_max=tail_bytes_max)
        async with world.running() as service:
            for topic in TOPICS:
                await service.topics.create(topic, {"ttl": "60"})
            history = History(world, service)
            for left, step in zip(reversed(range(len(steps))), steps, strict=True):
                await history.do(step)
                # A reader changes how a tail holds its rows, so some steps have none behind them.
                if step.number % 2 or not left:
                    history.compare(step)
        return history

    return asyncio.run(played())


histories = given(
    steps=st.lists(STEPS, min_size=5, max_size=20),
    tail_bytes_max=st.sampled_from([0, SMALL_BYTES, SMALL_BYTES, 1 << 20, 1 << 20]),
)


@settings(max_examples=8)
@histories
def test_the_tail_cache_answers_as_the_store_in_any_history(
    steps: list[Step], tail_bytes_max: int
) -> None:
    _play(steps, tail_bytes_max=tail_bytes_max)


@pytest.mark.slow
@settings(max_examples=1_000)
@histories
def test_the_tail_cache_answers_as_the_store_in_many_histories(
    steps: list[Step], tail_bytes_max: int
) -> None:
    _play(steps, tail_bytes_max=tail_bytes_max)


def test_the_comparison_asks_for_what_is_cached() -> None:
    publishes = [Step("publish", topic, 0, number) for number in range(4) for topic in (0, 1)]
    others = [Step("publish_tx", 0, 0, 1), Step("abort", 0, 0, 1), Step("publish_ttl", 0, 0, 1)]

    history = _play([*publishes, *others], tail_bytes_max=1 << 20)

    assert history.answered_count > 500


async def test_reads_from_the_tail_need_no_disk() -> None:
    world, scan_count = watched()
    async with world.running(audit={}) as service:
        before = await publish(service, b"a")
        opened = scan_count()

        behind = await service.polls.poll(TOPICS[0], Poll(start=before.first))
        nothing = await service.polls.poll(TOPICS[0], Poll(start=before.first, inclusive=False))

        assert (payloads(behind), nothing.items) == ([b"a"], [])
        assert scan_count() == opened


async def test_rows_from_before_the_start_are_read_from_the_store_once() -> None:
    world, scan_count = watched()
    async with world.running(audit={}) as service:
        await publish(service, b"a")
    async with world.running() as service:
        await publish(service, b"b")
        opened = scan_count()

        assert await polled(service) == [b"a", b"b"]

        assert scan_count() == opened + 1
        assert await polled(service) == [b"a", b"b"]
        assert scan_count() == opened + 1


@pytest.mark.parametrize("meanwhile", ["nothing", "published", "cut", "forgotten"])
async def test_a_read_of_the_store_is_cached_only_where_it_adjoins_the_tail(
    meanwhile: str,
) -> None:
    """Prepended to a tail that was cut during the read, it would hide the rows in between."""
    world = World()
    world.settings = MessagingSettings(tail_bytes_max=SMALL_BYTES)
    async with world.running(audit={}) as service:
        await publish(service, b"before")
    async with world.running() as service:
        asked = _question(world, service, TOPICS[0])
        fetched = read(MemoryStore(world.rows), asked)
        for number in range({"nothing": 0, "published": 1}.get(meanwhile, 30)):
            await publish(service, b"%d" % number)
        tail_cache = service.state.tail_cache
        if meanwhile == "forgotten":
            tail_cache.restart(service.state.high_water_mark)

        table = MemoryStore(world.rows)
        now = _question(world, service, TOPICS[0])
        newest = read(table, now).items[-1][0]
        tail_cache.read(replace(now, after=id_before(newest)))
        tail_cache.add_read(asked, fetched)

        # A page that was handed out before must not be taken for that of another place.
        first = replace(now, through=read(table, now).items[0][0])
        assert comparable(tail_cache.read(first) or read(table, first)) == comparable(
            read(table, first)
        )
        everything = read(MemoryStore(world.rows), now)
        for start, _ in everything.items:
            each = replace(now, after=id_before(start))
            held = tail_cache.read(each)
            assert held is None or comparable(held) == comparable(
                read(MemoryStore(world.rows), each)
            )
        is_held = (
            tail_cache.read(replace(now, after=_live_after(asked.live_from.timestamp_ms)))
            is not None
        )
        assert is_held == (meanwhile in {"nothing", "published"})


@pytest.mark.parametrize("is_read", [False, True])
async def test_rows_that_a_tail_forgot_are_read_from_the_store(*, is_read: bool) -> None:
    world = World()
    world.settings = MessagingSettings(tail_bytes_max=SMALL_BYTES)
    async with world.running(audit={}) as service:
        for number in range(30):
            await publish(service, b"%d" % number)
            if is_read:  # what nobody has read yet is held, and forgotten, in another form
                await polled(service)

        assert await polled(service) == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("pointer", [None, 7])
async def test_readers_from_the_same_id_get_the_same_bytes(pointer: int | None) -> None:
    world = World()
    async with world.running(audit={}) as service:
        world.transactions.start(7)
        first = (await publish(service, b"a", b"b", pointer=pointer)).first

        pages = []
        for _ in range(2):
            pages.append((await service.polls.poll(TOPICS[0], Poll(start=first))).messages)
            world.clock.now_ms += 1
        await publish(service, b"c")
        later = (await service.polls.poll(TOPICS[0], Poll(start=first))).messages

        form = Encoding(MediaType.AVRO)
        assert pages[0].encoded(form, generation=1) is pages[1].encoded(form, generation=1)
        assert len(later) == 3


def test_a_publish_before_a_reference_of_its_batch_is_in_the_tail() -> None:
    last = Offset(950_000, 2)
    plain, reference = (message_key(PREFIX, place) for place in (Offset(950_000, 1), last))
    brings = PayloadRange(Offset(940_000, 0), Offset(940_000, 0), 1)
    row = MessageRow(tx_pointer=COMMITTED_POINTER, reference=brings).to_bytes(reference)
    rows = NewRows(PREFIX, [plain], inline_values([plain], [b"a"], pointer=None), is_plain=True)
    tail_cache = TailCache(bytes_max=1 << 20)

    tail_cache.apply_batch({reference: row}, [rows], high_water_mark=last)

    first = MessageId(950_000, 1)
    held = tail_cache.read(query(start=first.to_int(), through=first, high_water_mark=last))
    assert held is not None
    assert held.items == [(first.to_bytes(), b"a")]


def test_a_large_publish_before_a_reference_of_its_batch_is_not_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("messaging.log.tail_cache.CHANGED_COUNT_MAX", 1)
    places = [Offset(950_000, number) for number in range(3)]
    *plain, reference = [message_key(PREFIX, place) for place in places]
    row = MessageRow(tx_pointer=COMMITTED_POINTER).to_bytes(reference)
    rows = NewRows(PREFIX, plain, inline_values(plain, [b"a", b"b"], pointer=None), is_plain=True)
    tail_cache = TailCache(bytes_max=1 << 20)

    tail_cache.apply_batch({reference: row}, [rows], high_water_mark=places[-1])

    first = MessageId(*places[0]).to_int()
    assert tail_cache.read(query(start=first, high_water_mark=places[-1])) is None
    assert tail_cache.size_bytes == 0


def test_rows_count_in_the_bound_after_a_read() -> None:
    place = Offset(950_000, 0)
    key = message_key(PREFIX, place)
    values = inline_values([key], [b"x" * 1_000], pointer=COMMITTED_POINTER)
    tail_cache = TailCache(bytes_max=1 << 20)
    tail_cache.apply_batch(
        {}, [NewRows(PREFIX, [key], values, is_plain=False)], high_water_mark=place
    )

    assert (
        tail_cache.read(query(start=MessageId(*place).to_int(), high_water_mark=place)) is not None
    )

    assert tail_cache.size_bytes > 1_000


async def test_attributes_count_in_the_bound_as_long_as_they_are_there() -> None:
    world = World()
    world.settings = MessagingSettings(tail_bytes_max=1 << 20)
    large = request(b"x", b"y")._replace(attributes=[Attributes(key=b"k" * 10_000), None])
    async with world.running(audit={}) as service:
        published = await service.publisher.publish(AUDIT, large)
        await service.polls.poll(AUDIT, Poll())
        with_attributes = service.state.tail_cache.size_bytes
        (tail,) = service.state.tail_cache._tails.values()
        tail.cut(tail.size_bytes - 1)  # the first row

        assert 10_000 < with_attributes < 11_000
        assert [each[:10] for each in tail.ids] == [published.last.to_bytes()[:10]]
        assert 0 < tail.size_bytes < 1_000
        tail.change(message_key(tail.newest[1:-10], published.last.offset), None)
        assert tail.size_bytes == 0


@pytest.mark.parametrize("attributes", [None, Attributes(key=b"key")])
async def test_what_rows_take_in_memory_is_counted(attributes: Attributes | None) -> None:
    world = World()
    small = request(*[b"x" * 50] * 1_000)._replace(attributes=[attributes] * 1_000)
    async with world.running(audit={}) as service:
        await service.publisher.publish(AUDIT, small)
        tracemalloc.start()
        await service.polls.poll(AUDIT, Poll(limit=1))
        taken_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert taken_bytes < 1.3 * service.state.tail_cache.size_bytes


async def test_all_tails_together_keep_within_their_bound() -> None:
    world = World()
    world.settings = MessagingSettings(tail_bytes_max=20_000)
    topics = [TopicId("default", f"t{number}") for number in range(30)]
    async with world.running() as service:
        for topic in topics:
            await service.topics.create(topic, {})
        tail_cache = service.state.tail_cache
        for number in range(300):
            await service.publisher.publish(
                topics[number * number % 30], request(b"x" * (number % 90))
            )
            if number % 3 == 0:  # what is read is held in another form
                await service.polls.poll(topics[number % 30], Poll())
            held = [tail.size_bytes for tail in tail_cache._tails.values()]
            assert sum(held) == tail_cache.size_bytes <= 20_000
            assert max(held) <= 20_000 // TOPIC_SHARE
            filled = {each for each in tail_cache._tails.values() if each.ids or each.fresh}
            assert filled == {*tail_cache._filled.values()}
        assert max(held) > 0


def grow(tail_cache: TailCache, number: int, place: Offset, size_bytes: int) -> None:
    """Publish a message of this size to the topic of this number."""
    prefix = PREFIX + b"%d" % number
    key = message_key(prefix, place)
    values = inline_values([key], [b"x" * size_bytes], pointer=None)
    rows = NewRows(prefix, [key], values, is_plain=True)
    tail_cache.apply_batch({}, [rows], high_water_mark=place)


def held(tail_cache: TailCache, place: Offset) -> list[int]:
    """The topics of which the message at this offset is in memory."""
    asked = query(start=MessageId(*place).to_int(), high_water_mark=place)
    prefixes = [PREFIX + b"%d" % number for number in range(6)]
    found = [tail_cache.read(replace(asked, prefix=prefix)) for prefix in prefixes]
    return [number for number, each in enumerate(found) if each is not None and each.items]


def test_a_page_is_read_again_once_a_row_of_it_is_rolled_back() -> None:
    tail_cache = TailCache(bytes_max=1 << 20)
    places = [Offset(950_000, 0), Offset(950_000, 1)]
    keys = [message_key(PREFIX, place) for place in places]
    values = inline_values(keys, [b"a", b"b"], pointer=COMMITTED_POINTER)
    rows = NewRows(PREFIX, keys, values, is_plain=False)
    tail_cache.apply_batch({}, [rows], high_water_mark=places[-1])
    start = MessageId(*places[0]).to_int()
    asked = query(start=start, high_water_mark=places[-1], snapshot=SNAPSHOT)
    before = tail_cache.read(asked)

    rolled_back = MessageRow(tx_pointer=-COMMITTED_POINTER, payload=b"a").to_bytes(keys[0])
    tail_cache.apply_batch({keys[0]: rolled_back}, [], high_water_mark=places[-1])

    after = tail_cache.read(asked)
    assert before is not None
    assert after is not None
    assert [payload for _, payload in before.items] == [b"a", b"b"]
    assert [payload for _, payload in after.items] == [b"b"]


def test_plain_rows_are_read_from_memory_once_the_flagged_one_before_them_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("messaging.log.tail_cache.DECIDED_COUNT_MAX", 1)
    tail_cache = TailCache(bytes_max=8_000)
    flagged, *plain = [Offset(950_000, number) for number in range(4)]
    key = message_key(PREFIX + b"0", flagged)
    values = inline_values([key], [b"x" * 500], pointer=COMMITTED_POINTER)
    rows = NewRows(PREFIX + b"0", [key], values, is_plain=False)
    tail_cache.apply_batch({}, [rows], high_water_mark=flagged)
    assert held(tail_cache, flagged) == [0]  # this read makes columns of the row

    for place in plain:
        grow(tail_cache, 0, place, 500)

    asked = query(start=MessageId(*plain[-2]).to_int(), high_water_mark=plain[-1])
    found = tail_cache.read(replace(asked, prefix=PREFIX + b"0"))
    assert found is not None
    assert len(found.items) == 2


async def test_behind_the_last_possible_id_there_is_nothing() -> None:
    async with World().running(audit={}) as service:
        await publish(service, b"a")

        assert await polled(service, Poll(start=LAST_ID, inclusive=False)) == []


def test_the_tail_that_grew_least_recently_is_forgotten_first() -> None:
    tail_cache = TailCache(bytes_max=8_000)
    place = Offset(950_000, 2)
    for number in range(4):
        grow(tail_cache, number, Offset(950_000, 1), 1_500)
    grow(tail_cache, 0, place, 10)
    grow(tail_cache, 1, place, 10)
    grow(tail_cache, 3, place, 10)

    for number in (4, 5):
        grow(tail_cache, number, place, 1_500)

    assert held(tail_cache, place) == [1, 3, 4, 5]


def test_a_restarted_cache_has_all_its_memory_back() -> None:
    tail_cache = TailCache(bytes_max=8_000)
    place = Offset(950_000, 2)
    grow(tail_cache, 0, Offset(950_000, 1), 1_500)
    tail_cache.restart(Offset(950_000, 1))

    for number in range(1, 6):
        grow(tail_cache, number, place, 1_500)

    assert held(tail_cache, place) == [2, 3, 4, 5]


async def test_a_row_before_a_tail_that_is_rolled_back_does_not_get_into_it() -> None:
    world = World()
    async with world.running() as service:
        await service.topics.create(TOPICS[0], {})
        await publish(service, b"rolled back", pointer=world.transactions.start(7))
        start = (await publish(service, b"a")).first
    async with world.running() as service:
        await publish(service, b"b")
        await service.rows.roll_back([7])

        from_store = await polled(service, Poll(start=start))
        from_memory = await polled(service, Poll(start=start))

    assert from_store == from_memory == [b"a", b"b"]


async def test_unread_flagged_rows_are_cached_up_to_the_number_that_a_read_decides() -> None:
    world, scan_count = watched()
    async with world.running(audit={}) as service:
        pointer = world.transactions.start(7)
        numbers = [b"%04d" % number for number in range(2_500)]
        places = [
            await publish(service, *numbers[at : at + 500], pointer=pointer)
            for at in range(0, len(numbers), 500)
        ]
        (tail,) = service.state.tail_cache._tails.values()
        kept_count = sum(len(rows.keys) for rows in tail.fresh)
        opened = scan_count()

        newest = await polled(service, Poll(start=places[-1].first))
        assert scan_count() == opened
        oldest = await polled(service, Poll(limit=len(numbers)))

    assert kept_count == 1_000
    assert newest == numbers[-500:]
    assert oldest == numbers


async def test_a_tail_forgets_unread_rows_only_for_those_it_still_has() -> None:
    world = World()
    async with world.running(audit={}) as service:
        pointer = world.transactions.start(7)
        for _ in range(7):
            await publish(service, *[b"x"] * 400, pointer=pointer)

        # The sixth was one too many, and left the newest two; the seventh lies behind them.
        (tail,) = service.state.tail_cache._tails.values()
        assert sum(len(rows.keys) for rows in tail.fresh) == 3 * 400


LARGE_COUNT = 12  # rows; more than may be changed one by one


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys of rows that were cached or changed one by one."""
    keys: list[bytes] = []
    change = tail_cache._TopicTail.change

    def noted(self: tail_cache._TopicTail, key: bytes, value: bytes | None) -> None:
        keys.append(key)
        change(self, key, value)

    monkeypatch.setattr(tail_cache, "CHANGED_COUNT_MAX", LARGE_COUNT - 1)
    monkeypatch.setattr(tail_cache._TopicTail, "change", noted)
    return keys


@pytest.mark.parametrize("ttls_s", [[5] * 12, [5, None, 6] * 4], ids=["one", "several"])
async def test_messages_with_a_ttl_are_cached_at_once(
    changed: list[bytes], service: MessagingService, ttls_s: list[int | None]
) -> None:
    large = [b"%d" % number for number in range(LARGE_COUNT)]

    await service.publisher.publish(
        AUDIT, PublishRequest(pointer=None, payloads=large, ttls_s=ttls_s)
    )

    assert changed == []
    assert await polled(service) == large


async def test_a_large_publish_that_is_marked_is_read_from_the_store(
    changed: list[bytes], world: World, service: MessagingService
) -> None:
    large = [b"gone"] * LARGE_COUNT
    world.transactions.start(7)
    await publish(service, *large, pointer=7)
    await publish(service, b"stays")
    assert await polled(service) == [*large, b"stays"]

    await world.abort(service, 7)

    assert changed == []
    assert await polled(service, COMMITTED) == [b"stays"]
    assert await polled(service) == [*large, b"stays"]
    await publish(service, b"more")
    assert await polled(service, COMMITTED) == [b"stays", b"more"]


async def test_a_large_publish_beside_a_reference_of_its_batch_is_cached_at_once(
    changed: list[bytes], world: World, service: MessagingService
) -> None:
    """The reference is cached as a single row, and lies behind the publish."""
    large = [b"x"] * LARGE_COUNT
    world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"stored", pointer=7))

    await asyncio.gather(publish(service, *large), publish(service, pointer=7))

    assert len(changed) == 1
    assert await polled(service) == [*large, b"stored"]


async def test_an_empty_read_at_the_end_names_the_end_of_its_time(
    world: World, service: MessagingService
) -> None:
    """It would stay where the first such read was, as long as no row came to its topic."""
    world.transactions.start(7)
    await publish(service, b"rolled back", pointer=7)
    await world.abort(service, 7)
    poll = Poll(transaction=world.transactions.reader())
    first = await service.polls.poll(AUDIT, poll)

    await service.topics.create(TopicId("default", "other"), {})
    await service.publisher.publish(TopicId("default", "other"), request(b"x"))
    second = await service.polls.poll(AUDIT, poll)

    assert (first.items, second.items, second.caught_up) == ([], [], True)
    assert second.next_id > first.next_id
