"""Reads with a tag filter, compared with a filter over everything that a read returns (§3.4)."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.log.read_result import Messages
from messaging.model.attributes import decode_attributes, encode_attributes
from messaging.model.row_format import HAS_ATTRIBUTES, MessageRow, frame, message_key
from messaging.model.visibility import Undecided
from messaging.read.poll import Poll
from tests.messaging.packed_stores import packed_store
from tests.messaging.scan_model import (
    COMMITTED_POINTER,
    NOW_MS,
    PREFIX,
    UNDECIDED_POINTER,
    ModelRow,
    build,
    model,
    query,
    read,
    snapshots,
    start_number,
    topics,
)
from tests.messaging.test_scan_of_chunks import _store_of
from tests.messaging.world import AUDIT, World, payloads, request, watched
from tuff.protocol.attributes import Attributes, TagFilter
from tuff.protocol.errors import DamagedRecordError, OverloadedError
from tuff.protocol.ids import MessageId, Offset
from tuff.protocol.requests import PublishRequest
from tuff.protocol.transaction import Transaction

TAGS: list[tuple[str, ...]] = [(), ("a",), ("b", "c"), ("a", "b"), ("ab",), ("c",)]
letters = st.sampled_from(["a", "b", "c", "ab", "d"])
expressions = st.lists(
    st.lists(letters, min_size=1, max_size=3).map(",".join), min_size=1, max_size=3
).map("|".join)


def tags_of(payload: bytes) -> tuple[str, ...]:
    """The tags of a message in this test; they follow from the payload."""
    return TAGS[sum(payload) % len(TAGS)]


def attributes_of(payload: bytes) -> bytes | None:
    tags = tags_of(payload)
    return encode_attributes(Attributes(key=b"a", tags=tags)) if tags else None


def selects(expression: str, tags: tuple[str, ...]) -> bool:
    return any(set(each.split(",")) <= set(tags) for each in expression.split("|"))


@given(
    rows=topics,
    reader=snapshots,
    expression=expressions,
    limit=st.integers(1, 5),
    is_packed=st.booleans(),
)
def test_pages_with_a_filter_together_contain_what_it_selects(
    rows: list[ModelRow],
    reader: tuple[Transaction | None, Undecided],
    expression: str,
    limit: int,
    is_packed: bool,
) -> None:
    table, _, places = build(rows, attributes_of=attributes_of)
    store = packed_store(table.rows) if is_packed else table
    snapshot, undecided = reader
    expected = model(rows, places, snapshot=snapshot, undecided=undecided)
    tags = TagFilter.parse(expression)

    paged: list[tuple[bytes, bytes]] = []
    asked = query(limit=limit, snapshot=snapshot, undecided=undecided, tags=tags)
    while True:
        page = read(store, asked)
        paged += page.items
        for index, (_, payload) in enumerate(page.items):
            assert decode_attributes(page.messages.attributes[index]).tags == tags_of(payload)
        asked = replace(asked, after=page.next_id)
        if not page.items:
            break

    assert paged == [one for one in expected.items if selects(expression, tags_of(one[1]))]
    assert page.caught_up is not expected.is_held
    assert (page.blocking_pointer == UNDECIDED_POINTER) is expected.is_held


def _tagged(*tags: str) -> MessageRow:
    return MessageRow(payload=b"p", attributes=encode_attributes(Attributes(tags=tags)))


def test_a_filter_that_selects_nothing_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("messaging.log.scan.SCAN_ROWS_MAX", 300)
    table = _store_of([_tagged("a")] * 1_000 + [MessageRow(payload=b"plain")] * 1_000, flipped=None)
    asked = query(tags=TagFilter.parse("b"))

    starts = [asked.after]
    for _ in range(20):
        page = read(table, replace(asked, after=starts[-1]))
        starts.append(page.next_id)
        if page.finished:
            break

    assert page.caught_up
    assert len(starts) > 4
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("others", [MessageRow(payload=b"plain"), _tagged("a")])
@pytest.mark.parametrize("flipped", [0, 5, 9])
def test_a_corrupt_row_stops_a_reader_that_would_not_select_it(
    flipped: int, others: MessageRow
) -> None:
    stored = [_tagged("a"), _tagged("b"), _tagged("a"), *[others] * 7]
    table = _store_of(stored, flipped=flipped)
    packed = packed_store(
        _store_of(stored, flipped=None).rows,
        flipped=[message_key(PREFIX, Offset(NOW_MS - 2_000, flipped))],
    )
    damaged = MessageId(NOW_MS - 2_000, flipped).hex()

    for store in (table, packed):
        with pytest.raises(DamagedRecordError, match=damaged):
            read(store, query(tags=TagFilter.parse("d")))
        if flipped > 1:
            page = read(store, query(tags=TagFilter.parse("b")))
            assert len(page.items) == 1
            assert not page.caught_up
            with pytest.raises(DamagedRecordError, match=damaged):
                read(store, query(tags=TagFilter.parse("b"), start=_behind(page.next_id)))


def _behind(id_bytes: bytes) -> int:
    return start_number(MessageId.from_bytes(id_bytes), inclusive=False)


def _with_tags(*messages: tuple[bytes, tuple[str, ...]]) -> PublishRequest:
    attributes = [Attributes(tags=tags) if tags else None for _, tags in messages]
    return request(*[payload for payload, _ in messages])._replace(attributes=attributes)


async def test_a_filtered_read_does_not_fill_the_tail_cache() -> None:
    """It would hide all rows that it passed over from other readers."""
    world, _ = watched()
    async with world.running(audit={}) as service:
        await service.publisher.publish(AUDIT, request(b"a", b"b"))
    async with world.running() as service:
        filtered = await service.polls.poll(AUDIT, Poll(tags=TagFilter.parse("eu")))
        everything = await service.polls.poll(AUDIT, Poll())

    assert payloads(filtered) == []
    assert payloads(everything) == [b"a", b"b"]


async def test_a_filtered_read_of_the_tail_needs_no_disk() -> None:
    world, scan_count = watched()
    async with world.running(audit={}) as service:
        await service.publisher.publish(AUDIT, request(b"a", b"b"))
        await service.publisher.publish(AUDIT, _with_tags((b"c", ("eu",)), (b"d", ())))
        opened = scan_count()

        found = await service.polls.poll(AUDIT, Poll(tags=TagFilter.parse("eu")))
        nothing = await service.polls.poll(AUDIT, Poll(tags=TagFilter.parse("us")))

        assert (payloads(found), payloads(nothing)) == ([b"c"], [])
        assert found.next_id < nothing.next_id
        assert scan_count() == opened


async def test_a_poll_that_only_passed_over_rows_answers_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("messaging.log.scan.SCAN_ROWS_MAX", 2)
    monkeypatch.setattr("messaging.read.poll.FILTERED_READ_S", 0.0)
    world = World()
    async with world.running(audit={}) as service:
        await service.publisher.publish(AUDIT, _with_tags(*[(b"c", ("eu",))] * 100))
    async with world.running() as service:
        first = await service.polls.poll(AUDIT, Poll(tags=TagFilter.parse("us")))
        at_once = Poll(tags=TagFilter.parse("us"), start=MessageId.from_bytes(first.next_id))
        second = await service.polls.poll(AUDIT, at_once)
        waiting = await service.polls.poll(AUDIT, replace(at_once, wait_s=0.2))

    assert (first.caught_up, second.caught_up, waiting.caught_up) == (False, False, True)
    assert first.next_id < second.next_id < waiting.next_id


def test_attributes_of_another_form_are_selected_by_no_filter() -> None:
    table = _store_of([MessageRow(payload=b"p", attributes=b"later")], flipped=None)

    page = read(table, query(tags=TagFilter.parse("later")))

    assert page.items == []
    assert page.caught_up


async def test_a_poll_that_passes_over_rows_ends_when_the_server_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("messaging.log.scan.SCAN_ROWS_MAX", 2)
    world = World()
    async with world.running(audit={}) as service:
        await service.publisher.publish(AUDIT, _with_tags(*[(b"c", ("eu",))] * 100))
    async with world.running() as service:
        service.polls.stop_waiting()

        found = await service.polls.poll(AUDIT, Poll(tags=TagFilter.parse("us"), wait_s=60.0))

    assert (payloads(found), found.caught_up) == ([], False)


def test_messages_of_payload_groups_count_as_rows_that_were_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("messaging.log.scan.SCAN_ROWS_MAX", 10)
    group = ModelRow(NOW_MS - 10, COMMITTED_POINTER, ((b"\x01", None),) * 5, is_reference=True)
    table, _, _ = build([group] * 6, attributes_of=attributes_of)

    page = read(table, query(tags=TagFilter.parse("c")))

    assert (page.items, page.finished, page.caught_up) == ([], False, False)
    assert read(table, query()).caught_up


@pytest.mark.parametrize("others", [0, 3])
def test_attributes_that_are_cut_off_stop_a_reader_with_a_filter(others: int) -> None:
    """The checksum is right, so a faulty writer made the row; whether it has the tag is unknown."""
    stored = [_tagged("a"), *[MessageRow(payload=b"plain")] * others, _tagged("a")]
    table = _store_of(stored, flipped=None)
    key = message_key(PREFIX, Offset(NOW_MS - 2_000, len(stored)))
    table.write([(key, frame(key, HAS_ATTRIBUTES, b"\0\0\0\x7f" + b"eu"))])

    with pytest.raises(DamagedRecordError, match="the attributes are cut off"):
        read(table, query(tags=TagFilter.parse("eu")))


def test_attributes_count_in_the_bytes_of_a_page() -> None:
    stored = [MessageRow(payload=b"p", attributes=bytes(99)) for _ in range(5)]

    page = read(_store_of(stored, flipped=None), query(bytes_max=250))

    assert len(page.items) == 2
    assert page.messages.size_bytes == 200


def test_messages_that_are_cut_take_their_attributes_with_them() -> None:
    messages = Messages(limit=10, bytes_max=1_000)
    messages.append(bytes(20), b"a", attributes=b"1")
    sizes = messages.sizes()
    messages.append(bytes(20), b"b", attributes=b"2")

    messages.cut(sizes)

    assert (messages.attributes, messages.size_bytes) == ({0: b"1"}, 2)


async def test_attributes_count_in_the_bound_of_waiting_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("messaging.write.write_queue.PENDING_BYTES_MAX", 2_500)
    world = World()
    one = request(b"")._replace(attributes=[Attributes(key=bytes(3_000))])
    async with world.running(audit={}) as service:
        writes = [service.publisher.publish(AUDIT, one) for _ in range(2)]
        answers = await asyncio.gather(*writes, return_exceptions=True)

    assert [isinstance(each, OverloadedError) for each in answers] == [False, True]
