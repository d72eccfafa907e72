"""Reads that start before the log continue in the archive, and then in the log (protocol §3.4)."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.archive_manifest import Hour
from kernel.requests_and_replies import Request
from messaging.read import archive as archive_module
from messaging.read.poll import Poll, PollResult, routes
from messaging.service import MessagingService
from tests.messaging.archives import ArchiveJob, Message
from tests.messaging.world import AUDIT, World, payloads, publish
from tuff.protocol.attributes import TagFilter
from tuff.protocol.errors import ArchiveUnavailableError, DamagedRecordError
from tuff.protocol.ids import FIRST_ID, MessageId, Offset
from tuff.protocol.media_types import MediaType
from tuff.protocol.operations import POLL
from tuff.protocol.requests import Isolation

DAY = Hour(411_096)  # the first hour of a day
OLD_HOUR = Hour(DAY.number - 5)
TTL_S = 7_260
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
FROM_1970 = Poll(start=1, isolation=Isolation.COMMITTED)


class Place:
    """A running service, its clock, an archive, and all that was published."""

    def __init__(self, world: World, service: MessagingService, job: ArchiveJob) -> None:
        self.world, self.service, self.job = world, service, job
        self.published: list[Message] = []

    async def publish(self, *texts: bytes) -> None:
        found = await publish(self.service, *texts)
        first = found.first.offset.to_int()
        self.published += [
            (MessageId(*Offset.from_int(first + index)), text) for index, text in enumerate(texts)
        ]

    def advance(self, ms: int) -> None:
        self.world.clock.now_ms += ms

    async def archive(self) -> None:
        """Archive what is closed, and live."""
        replies = await self.read_all(Poll())
        live = [(MessageId.from_bytes(id_), v) for reply in replies for id_, v in reply.items]
        await self.job.run(self.service, live)

    async def poll(self, poll: Poll) -> PollResult:
        return await self.service.polls.poll(AUDIT, poll)

    async def read_all(self, poll: Poll, *, limit: int | None = None) -> list[PollResult]:
        """Replies until the reader is caught up."""
        replies = [await self.poll(replace(poll, limit=limit))]
        while not replies[-1].caught_up:
            start = MessageId.from_bytes(replies[-1].next_id)
            replies.append(
                await self.poll(replace(poll, start=start, inclusive=False, limit=limit))
            )
        return replies


@asynccontextmanager
async def running(root: Path, *, poll_bytes_max: int = 100) -> AsyncIterator[Place]:
    world = World()
    world.settings = replace(world.settings, poll_bytes_max=poll_bytes_max)
    (root / "_manifest").mkdir(parents=True)
    world.clock.now_ms = DAY.start_ms
    job = ArchiveJob(root)
    world.archive = job.reader()
    async with world.running(audit={"ttl": str(TTL_S)}) as service:
        yield Place(world, service, job)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running(tmp_path / "archive") as found:
        yield found


async def two_archived_hours(place: Place) -> None:
    """Hours 0 and 1 are archived, and hour 0 and half of hour 1 have expired. Hour 2 is open."""
    await place.publish(b"0a", b"0b", b"0c")
    place.advance(HOUR_MS)
    await place.publish(b"1a")
    place.advance(HOUR_MS // 2)
    await place.publish(b"1b")
    place.advance(HOUR_MS // 2)
    await place.publish(b"2a")
    await place.archive()
    place.advance(HOUR_MS + MINUTE_MS)


def texts(replies: list[PollResult]) -> list[bytes]:
    return [text for reply in replies for text in payloads(reply)]


@pytest.mark.parametrize("limit", [None, 1, 2, 3])
async def test_a_read_continues_from_the_archive_into_the_log(
    place: Place, limit: int | None
) -> None:
    await two_archived_hours(place)

    replies = await place.read_all(FROM_1970, limit=limit)

    assert texts(replies) == [b"0a", b"0b", b"0c", b"1a", b"1b", b"2a"]
    assert [reply.archived for reply in replies if reply.messages] == [
        each < {None: 1, 1: 4, 2: 2, 3: 2}[limit] for each in range(len(replies))
    ]
    assert not any(reply.expired for reply in replies[1:])


async def test_a_reader_misses_nothing_if_the_archive_has_it(place: Place) -> None:
    await two_archived_hours(place)
    reader = replace(FROM_1970, start=place.published[1][0], inclusive=False)
    place.advance(2 * HOUR_MS)  # the message of the open hour expires too, and is lost

    replies = await place.read_all(reader)

    assert texts(replies) == [b"0c", b"1a", b"1b"]
    assert [reply.expired for reply in replies] == [False, True]


@pytest.mark.parametrize(
    ("start", "inclusive", "expected"),
    [
        ("id", True, [b"0b", b"0c", b"1a"]),
        ("id", False, [b"0c", b"1a"]),
        ("time", True, [b"0a", b"0b", b"0c", b"1a"]),
        ("time", False, [b"1a"]),
        ("zero", True, [b"0a", b"0b", b"0c", b"1a"]),
        ("first id", True, [b"0a", b"0b", b"0c", b"1a"]),
    ],
)
async def test_a_start_is_an_id_or_a_time_inclusive_or_not(
    place: Place, start: str, inclusive: bool, expected: list[bytes]
) -> None:
    await two_archived_hours(place)
    starts: dict[str, MessageId | int] = {
        "id": place.published[1][0],
        "time": place.published[0][0].publish_timestamp_ms,
        "zero": 0,
        "first id": FIRST_ID,
    }

    reply = await place.poll(Poll(start=starts[start], inclusive=inclusive))

    assert (payloads(reply), reply.archived) == (expected, True)


async def test_without_a_start_a_read_begins_with_the_log_and_opens_no_file(place: Place) -> None:
    await two_archived_hours(place)
    shutil.rmtree(place.job.archive.root)

    reply = await place.poll(Poll())
    latest = await place.poll(Poll(start=place.published[-1][0]))

    assert (payloads(reply), payloads(latest)) == ([b"1b", b"2a"], [b"2a"])


async def test_through_ends_a_read_in_the_archive(place: Place) -> None:
    await two_archived_hours(place)
    to = place.published[1][0]

    reply = await place.poll(replace(FROM_1970, through=to))
    behind = await place.poll(replace(FROM_1970, start=to, inclusive=False, through=to))

    assert (payloads(reply), reply.caught_up, reply.archived) == ([b"0a", b"0b"], True, True)
    assert (behind.items, behind.caught_up, behind.next_id) == ([], True, to.to_bytes())


async def test_a_page_has_limited_bytes_and_at_least_one_message(tmp_path: Path) -> None:
    async with running(tmp_path, poll_bytes_max=5) as place:
        await two_archived_hours(place)
        replies = await place.read_all(FROM_1970)

    assert [payloads(reply) for reply in replies if reply.messages] == [
        [b"0a", b"0b"], [b"0c", b"1a"], [b"1b", b"2a"],
    ]  # fmt: skip


async def test_a_read_ends_before_a_gap_and_the_next_one_is_expired(place: Place) -> None:
    await place.publish(b"0a")
    place.advance(HOUR_MS)
    await place.publish(b"1a")
    await place.archive()
    place.advance(4 * HOUR_MS)  # 1a expires before the job runs again
    await place.publish(b"5a")
    place.advance(HOUR_MS)
    await place.publish(b"6a")
    await place.archive()
    place.advance(2 * HOUR_MS)

    replies = await place.read_all(replace(FROM_1970, start=DAY.start_ms))

    assert [(payloads(reply), reply.expired) for reply in replies] == [
        ([b"0a"], False), ([b"5a"], True), ([b"6a"], False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kept_from_ms", "after_ms", "start_ms", "is_expired"),
    [
        (0, 0, OLD_HOUR.start_ms - 1, False),
        (None, 0, OLD_HOUR.start_ms, True),  # a row of version 0.1.0 does not say what had expired
        (OLD_HOUR.start_ms, 0, OLD_HOUR.start_ms - 1, True),
        (OLD_HOUR.start_ms, 0, OLD_HOUR.start_ms, False),
        # Another hour precedes it, which was not archived.
        (0, OLD_HOUR.start_ms, OLD_HOUR.start_ms - 1, True),
    ],
)
async def test_an_archived_hour_says_from_when_on_it_is_complete(
    place: Place, kept_from_ms: int | None, after_ms: int, start_ms: int, is_expired: bool
) -> None:
    messages = [(MessageId(OLD_HOUR.start_ms, 0), b"old")]
    place.job.add_hour(messages, kept_from_ms=kept_from_ms, after_ms=after_ms)

    reply = await place.poll(replace(FROM_1970, start=start_ms))

    assert (payloads(reply), reply.expired) == ([b"old"], is_expired)


async def test_an_older_generation_of_the_topic_is_not_read(place: Place) -> None:
    await two_archived_hours(place)
    await place.service.topics.delete(AUDIT)
    await place.service.topics.create(AUDIT, {"ttl": str(TTL_S)})
    place.advance(2 * HOUR_MS)
    await place.publish(b"new")
    hour = Hour(DAY.number + 2)
    place.job.add_hour([(MessageId(hour.start_ms, 9), b"new too")], generation=2)
    place.job.compact()

    replies = await place.read_all(FROM_1970)

    assert texts(replies) == [b"new too", b"new"]


async def test_a_read_in_a_fixed_snapshot_stays_in_the_log(place: Place) -> None:
    await two_archived_hours(place)
    place.world.transactions.start(5)

    reply = await place.poll(Poll(start=1, tx=5))

    assert (payloads(reply), reply.archived, reply.expired) == ([b"1b", b"2a"], False, True)


async def test_a_read_by_tags_stays_in_the_log(place: Place) -> None:
    await two_archived_hours(place)

    reply = await place.poll(Poll(start=1, tags=TagFilter.parse("urgent")))

    assert (payloads(reply), reply.archived, reply.expired) == ([], False, True)


async def test_a_read_opens_no_day_before_its_start(place: Place) -> None:
    """Each page looked up the file of every archived day."""
    await two_archived_hours(place)
    directory = place.job.archive.directory_of(AUDIT)
    (directory / "dt=1999-12-31.json").write_text("not JSON")
    with pytest.raises(ArchiveUnavailableError):
        await place.poll(FROM_1970)

    reply = await place.poll(replace(FROM_1970, start=DAY.start_ms))

    assert payloads(reply)[0] == b"0a"


async def test_a_reader_follows_a_compaction(place: Place) -> None:
    await two_archived_hours(place)
    first = await place.poll(replace(FROM_1970, limit=2))
    place.job.compact()

    rest = await place.read_all(
        replace(FROM_1970, start=MessageId.from_bytes(first.next_id), inclusive=False)
    )

    assert payloads(first) + texts(rest) == [b"0a", b"0b", b"0c", b"1a", b"1b", b"2a"]


async def test_a_compaction_while_a_read_runs_repeats_the_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two_archived_hours(place)
    real = archive_module._decode
    calls: list[int] = []

    def compact_first(file: archive_module._ArchiveFile, index: int) -> archive_module._RowGroup:
        if not calls:
            place.job.compact()
        calls.append(index)
        return real(file, index)

    monkeypatch.setattr(archive_module, "_decode", compact_first)

    reply = await place.poll(FROM_1970)

    assert payloads(reply) == [b"0a", b"0b", b"0c", b"1a"]


async def test_messages_that_retention_removes_during_a_read_come_from_the_archive(
    place: Place,
) -> None:
    await place.publish(b"0a")
    place.advance(HOUR_MS)
    await place.publish(b"1a")
    place.advance(HOUR_MS)
    await place.publish(b"2a")
    await place.archive()
    store = place.service.store
    real = store.in_thread_read

    async def expire_first(read: Callable[[], object]) -> object:
        store.in_thread_read = real
        place.advance(HOUR_MS + MINUTE_MS)
        await place.service.cleaner.run_pass()
        return await real(read)

    place.service.state.tail_cache.restart(place.service.state.high_water_mark)
    store.in_thread_read = expire_first

    replies = await place.read_all(replace(FROM_1970, start=DAY.start_ms))

    assert texts(replies) == [b"0a", b"1a", b"2a"]
    assert not any(reply.expired for reply in replies)


def unmounted(job: ArchiveJob) -> None:
    shutil.rmtree(job.archive.root)
    job.archive.root.mkdir()


def without_files(job: ArchiveJob) -> None:
    shutil.rmtree(job.archive.root / job.archive.entries(AUDIT)[0].path)


def without_one_of_two_files(job: ArchiveJob) -> None:
    job.files(job.archive.entries(AUDIT)[0].path)[1].unlink()


def as_of_an_earlier_version(job: ArchiveJob) -> None:
    (first, *_) = job.archive.entries(AUDIT)
    job.archive.record(AUDIT, [replace(first, files=())])


def with_a_bad_manifest(job: ArchiveJob) -> None:
    next(job.archive.directory_of(AUDIT).glob("*.json")).write_text("{}")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (unmounted, "is no archive, as it has no directory _manifest"),
        (without_files, "No such file or directory: '.*hour=00/part-00000-0000-c000"),
        (without_one_of_two_files, "No such file or directory: '.*hour=00/part-00000-0000-c001"),
        (as_of_an_earlier_version, "no checksums of hours/.*/hour=00, which version 0.1.0"),
        (with_a_bad_manifest, "is not a manifest"),
    ],
)
async def test_an_archive_that_is_away_is_unavailable(
    place: Place, damage: Callable[[ArchiveJob], None], told: str
) -> None:
    await two_archived_hours(place)
    damage(place.job)

    with pytest.raises(ArchiveUnavailableError, match=told):
        await place.poll(FROM_1970)

    assert payloads(await place.poll(Poll())) == [b"1b", b"2a"]


async def test_another_file_in_place_of_one_is_corrupt(place: Place) -> None:
    await two_archived_hours(place)
    row = place.job.archive.entries(AUDIT)[0]
    first, second = place.job.files(row.path)
    shutil.copyfile(first, second)

    with pytest.raises(DamagedRecordError, match="but the manifest says") as told:
        await place.poll(FROM_1970)

    assert told.value.members == {"id": row.summary.first, "next": row.summary.last}
    behind = MessageId.from_hex(row.summary.last)
    reply = await place.poll(replace(FROM_1970, start=behind, inclusive=False))
    assert payloads(reply) == [b"1a"]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("damage", "error"), [(cut, DamagedRecordError), (Path.unlink, ArchiveUnavailableError)]
)
async def test_a_reply_ends_before_a_file_that_cannot_be_read(
    place: Place, damage: Callable[[Path], None], error: type[Exception]
) -> None:
    await two_archived_hours(place)
    (file,) = place.job.files(place.job.archive.entries(AUDIT)[1].path)[:1]
    damage(file)

    reply = await place.poll(FROM_1970)

    assert payloads(reply) == [b"0a", b"0b", b"0c"]
    with pytest.raises(error, match=file.name):
        await place.read_all(FROM_1970)


async def test_a_flipped_byte_anywhere_in_a_file_is_reported(place: Place) -> None:
    # Without a comparison of checksums, the decoder ends the process at some of these bytes.
    hour = Hour(DAY.number - 9)
    row = place.job.add_hour([(MessageId(hour.start_ms, index), b"text") for index in range(3)])
    file = place.job.files(row.path)[0]
    whole = file.read_bytes()

    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(DamagedRecordError, match="but the manifest says"):
            await place.poll(FROM_1970)


async def test_all_forms_have_the_same_messages_and_say_where_they_come_from(
    place: Place,
) -> None:
    await two_archived_hours(place)
    (poll,) = [each for each in routes(place.service.polls) if each.operation is POLL]

    bodies = {}
    for media_type in (MediaType.JSON, MediaType.AVRO, MediaType.ARROW):
        names = {"ns": AUDIT.namespace, "t": AUDIT.name}
        asked = Request(names, (), MediaType.JSON.value, media_type.value, b'{"startFrom":1}')
        reply = await poll.handler(asked)
        assert ("Tuff-Archive", "true") in reply.headers
        bodies[media_type] = reply.body

    assert bodies[MediaType.JSON].count(b'"payload"') == 4
    assert bodies[MediaType.AVRO].endswith(b"1a\x00")
    with pa.ipc.open_stream(bodies[MediaType.ARROW]) as stream:
        (batch,) = list(stream)
    assert batch.column("value").to_pylist() == [b"0a", b"0b", b"0c", b"1a"]
    assert batch.column("write_pointer").null_count == 4


async def test_offsets_say_where_the_archive_begins_if_they_are_asked(place: Place) -> None:
    nothing = await place.service.offsets.archived_from(AUDIT)
    await two_archived_hours(place)

    found = await place.service.offsets.archived_from(AUDIT)
    earliest = await place.service.offsets.earliest(AUDIT)

    assert (nothing, found, earliest) == (None, place.published[0][0], place.published[4][0])
    assert await place.service.offsets.archived_from(AUDIT.partition(0)) == found


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10])
@pytest.mark.parametrize("end", [None, 1, 4])
async def test_splits_from_a_start_before_the_log_cover_the_archive(
    place: Place, count: int, end: int | None
) -> None:
    await two_archived_hours(place)
    last = None if end is None else place.published[end][0]

    _, parts = await place.service.offsets.splits(AUDIT, start=FIRST_ID, end=last, count=count)
    _, of_log = await place.service.offsets.splits(AUDIT, start=None, end=last, count=count)

    assert len(parts) <= count
    assert [part.start for part in parts] == [FIRST_ID, *(part.end for part in parts[:-1])]
    found = [
        texts(await place.read_all(Poll(start=part.start, inclusive=False, through=part.end)))
        for part in parts
    ]
    expected = [text for _, text in place.published[: None if end is None else end + 1]]
    assert [text for each in found for text in each] == expected
    assert all(found[:-1]) or count > 3
    assert all(part.end > place.published[3][0] for part in of_log)


async def test_splits_of_an_expired_range_end_where_they_are_told_to(place: Place) -> None:
    await two_archived_hours(place)
    place.advance(3 * HOUR_MS)
    end = place.published[-1][0]

    _, parts = await place.service.offsets.splits(AUDIT, start=FIRST_ID, end=end, count=2)

    assert [part.end for part in parts] == [place.published[2][0], end]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 5)),
        st.tuples(st.just("publish"), st.integers(1, 5)),
        st.tuples(st.just("advance"), st.sampled_from([1, 20, 61, 130])),
        st.tuples(st.just("advance"), st.sampled_from([1, 20, 61, 130])),
        st.tuples(st.just("archive"), st.just(0)),
        st.tuples(st.just("sweep"), st.just(0)),
        st.tuples(st.just("compact"), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(-150, 0)),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(steps=steps, limit=st.integers(1, 7), skip=st.integers(0, 20))
def test_archive_and_log_together_are_the_list_of_what_was_published(
    steps: list[tuple[str, int]], limit: int, skip: int
) -> None:
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(compare(Path(home), steps, limit, skip))


async def compare(home: Path, steps: list[tuple[str, int]], limit: int, skip: int) -> None:
    async with running(home) as place:
        await place.publish(b"first")
        truncated_to = FIRST_ID
        for number, (step, given_number) in enumerate(steps):
            if step == "publish":
                await place.publish(*(b"%d/%d" % (number, i) for i in range(given_number)))
            elif step == "advance":
                place.advance(given_number * MINUTE_MS)
            elif step == "archive":
                await place.archive()
            elif step == "sweep":
                await place.service.cleaner.run_pass()
            elif step == "compact":
                place.job.compact()
            else:
                before_ms = place.world.clock.now_ms + given_number * MINUTE_MS
                await place.service.topics.truncate(AUDIT, before_ms)
                truncated_to = max(truncated_to, MessageId(before_ms, 0))

        start = place.published[min(skip, len(place.published) - 1)][0]
        replies = await place.read_all(replace(FROM_1970, start=start), limit=limit)

        live_from = place.world.clock.now_ms - TTL_S * 1000 + 1
        rows = place.job.archive.entries(AUDIT)
        expected = [
            (message_id, text)
            for message_id, text in place.published
            if message_id >= start
            and (
                (message_id.publish_timestamp_ms >= live_from and message_id >= truncated_to)
                or any(row.summary.first <= message_id.hex() <= row.summary.last for row in rows)
            )
        ]
        got = [(MessageId.from_bytes(i), text) for reply in replies for i, text in reply.items]
        assert got == expected
        # Each message that expired and is not delivered is within a reply that says so.
        began = start.to_int()
        for reply in replies:
            stop = int.from_bytes(reply.next_id, "big")
            has_lost = any(
                began <= message_id.to_int() <= stop
                and (message_id, text) not in expected
                and message_id.publish_timestamp_ms < live_from
                and message_id >= truncated_to
                for message_id, text in place.published
            )
            assert reply.expired or not has_lost
            began = stop + 1
