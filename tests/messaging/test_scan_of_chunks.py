"""Chunks of plain rows and packed rows are read as the same rows one by one."""

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from messaging.engines.engine_interface import Engine, Row
from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.log.read_result import Messages
from messaging.log.scan import ReadResult, _Scan
from messaging.model.attributes import encode_attributes
from messaging.model.row_format import (
    MessageRow,
    PayloadRange,
    message_key,
    payload_key,
)
from messaging.model.visibility import Undecided
from tests.messaging.packed_stores import flip, packed_store
from tests.messaging.scan_model import (
    COMMITTED_POINTER,
    NOW_MS,
    PREFIX,
    SNAPSHOT,
    UNDECIDED_POINTER,
    comparable,
    query,
    read,
    start_number,
)
from tests.messaging.world import NOON_MS, DamagedStore
from tuff.protocol.attributes import Attributes, TagFilter
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import LAST_ID, MessageId, Offset
from tuff.protocol.json_bodies import payload_to_json
from tuff.protocol.media_types import Encoding, MediaType

ENCODINGS = Encoding(MediaType.ARROW), Encoding(MediaType.AVRO), Encoding(MediaType.AVRO, 2)
TAGGED = [
    encode_attributes(Attributes(tags=tags)) for tags in (("eu",), ("us", "paid"), ("paid", "eu"))
]
tagged_rows = st.builds(
    MessageRow, payload=st.binary(max_size=9), attributes=st.sampled_from([b"later", *TAGGED])
)
mixed_rows = st.builds(
    MessageRow,
    tx_pointer=st.sampled_from(
        [None] * 12 + [COMMITTED_POINTER, -COMMITTED_POINTER, UNDECIDED_POINTER]
    ),
    ttl_s=st.sampled_from([None] * 12 + [1, 50]),
    payload=st.binary(max_size=9),
    attributes=st.sampled_from([*[None] * 12, b"later", *TAGGED * 2]),
)
rows = st.lists(mixed_rows, max_size=12) | st.lists(tagged_rows, max_size=12)
filters = st.none() | st.sampled_from([TagFilter.parse(text) for text in ("eu", "eu,paid", "x|us")])


def _store_of(stored: list[MessageRow], *, flipped: int | None) -> MemoryStore:
    table = MemoryStore()
    for seq_id, row in enumerate(stored):
        key = message_key(PREFIX, Offset(NOW_MS - 2_000, seq_id))
        value = row.to_bytes(key)
        if seq_id == flipped:
            value = value[:-1] + bytes((value[-1] ^ 1,))
        table.write([(key, value)])
    return table


def _read_row_by_row(table: MemoryStore, **asked: object) -> ReadResult | str:
    with pytest.MonkeyPatch.context() as patch:
        # No record is part of a block.
        patch.setattr(_Scan, "_read_chunk", _decide_each)
        return _read(table, **asked)


def _decide_each(
    _scan: _Scan, chunk: Sequence[Row], rows: object, decide: Callable[..., None]
) -> None:
    for record in chunk:
        decide(*record, rows)


def _read(table: Engine | Store, **asked: object) -> ReadResult | str:
    try:
        return read(table, query(**asked))
    except DamagedRecordError as error:
        return str(error)


@given(
    stored=rows,
    flipped=st.none() | st.integers(0, 11),
    start=st.integers(0, 13),
    limit=st.integers(1, 13),
    bytes_max=st.integers(1, 60),
    snapshot=st.sampled_from([None, SNAPSHOT]),
    undecided=st.sampled_from(Undecided),
    tags=filters,
)
def test_chunks_of_rows_are_read_as_row_by_row(
    stored: list[MessageRow],
    flipped: int | None,
    start: int,
    limit: int,
    bytes_max: int,
    snapshot: object,
    undecided: Undecided,
    tags: TagFilter | None,
) -> None:
    table = _store_of(stored, flipped=flipped)
    asked: dict[str, object] = {
        "start": MessageId(NOW_MS - 2_000, start).to_int(),
        "limit": limit,
        "bytes_max": bytes_max,
        "snapshot": snapshot,
        "undecided": undecided,
        "tags": tags,
    }

    row_by_row = comparable(_read_row_by_row(table, **asked))
    assert comparable(_read(table, **asked)) == row_by_row
    is_flipped = flipped is not None and flipped < len(stored)
    keys = [message_key(PREFIX, Offset(NOW_MS - 2_000, flipped or 0))] if is_flipped else []
    joined = packed_store(_store_of(stored, flipped=None).rows, flipped=keys)
    assert comparable(_read(joined, **asked)) == row_by_row


def _group(
    stored: list[MessageRow], changed: tuple[int, bool] | None, offset: Offset
) -> tuple[MemoryStore, list[bytes]]:
    """A reference and what it brings, of which one row may be missing; and the key of the one that
    is to be damaged."""
    table = MemoryStore()
    flipped = []
    for seq_id, row in enumerate(stored):
        key = payload_key(PREFIX, COMMITTED_POINTER, Offset(NOW_MS - 2_000, seq_id))
        if changed == (seq_id, True):
            flipped.append(key)
        if changed != (seq_id, False):
            table.write([(key, row.to_bytes(key))])
    last = Offset(NOW_MS - 2_000, len(stored) - 1)
    brings = PayloadRange(Offset(NOW_MS - 2_000, 0), last, len(stored))
    key = message_key(PREFIX, offset)
    table.write([(key, MessageRow(tx_pointer=COMMITTED_POINTER, reference=brings).to_bytes(key))])
    return table, flipped


mixed_payloads = st.builds(
    MessageRow,
    payload=st.binary(max_size=9),
    ttl_s=st.sampled_from([None] * 20 + [1, 50]),
    attributes=st.sampled_from([*[None] * 20, b"later", *TAGGED * 2]),
)
tagged_payloads = st.builds(
    MessageRow, payload=st.binary(max_size=9), attributes=st.sampled_from(TAGGED)
)
stored_rows = st.lists(mixed_payloads, min_size=1, max_size=40) | st.lists(
    tagged_payloads, min_size=1, max_size=40
)


@given(
    stored=stored_rows,
    changed=st.none() | st.tuples(st.integers(0, 39), st.booleans()),
    start=st.integers(0, 41),
    through=st.none() | st.integers(0, 41),
    limit=st.integers(1, 41),
    bytes_max=st.integers(1, 200),
    tags=filters,
)
@example(
    stored=[MessageRow(payload=b"a")] * 20,
    changed=None,
    start=0,
    through=5,
    limit=41,
    bytes_max=200,
    tags=None,
)
def test_chunks_of_payload_rows_are_read_as_row_by_row(
    stored: list[MessageRow],
    changed: tuple[int, bool] | None,
    start: int,
    through: int | None,
    limit: int,
    bytes_max: int,
    tags: TagFilter | None,
) -> None:
    place = Offset(NOW_MS - 1_000, 0)
    table, flipped = _group(stored, changed, place)
    asked: dict[str, object] = {
        "start": MessageId(*place, NOW_MS - 2_000, start).to_int() if start else 0,
        "through": LAST_ID if through is None else MessageId(*place, NOW_MS - 2_000, through),
        "limit": limit,
        "bytes_max": bytes_max,
        "tags": tags,
    }

    joined = _read(packed_store(table.rows, flipped=flipped), **asked)
    for key in flipped:
        table.write([(key, flip(key, table.rows[key], key))])
    general = _read_row_by_row(table, **asked)

    for found in (_read(table, **asked), joined):
        assert comparable(found) == comparable(general)
        if isinstance(found, ReadResult) and isinstance(general, ReadResult):
            for encoding in ENCODINGS:
                expected = general.messages.encoded(encoding, generation=1)
                assert found.messages.encoded(encoding, generation=1) == expected


@pytest.mark.parametrize(
    ("pattern", "limit"), [((0, 1, 0, 0), 13), ((1, 1, 1, 0, 0, 1), 3), ((1, 0, 1, 1), 1)]
)
def test_a_filtered_page_ends_as_row_by_row(pattern: tuple[int, ...], limit: int) -> None:
    table = _store_of([MessageRow(attributes=TAGGED[each]) for each in pattern], flipped=None)
    asked: dict[str, object] = {"limit": limit, "tags": TagFilter.parse("us")}

    found = _read(table, **asked)

    assert comparable(found) == comparable(_read_row_by_row(table, **asked))


@pytest.mark.parametrize("through", [2, 5, 19])
def test_a_filtered_read_ends_inside_a_group_as_row_by_row(through: int) -> None:
    place = Offset(NOW_MS - 1_000, 0)
    table, _ = _group([MessageRow(payload=b"a", attributes=TAGGED[0])] * 20, None, place)
    last = MessageId(*place, NOW_MS - 2_000, through)
    asked: dict[str, object] = {"through": last, "tags": TagFilter.parse("eu")}

    found = _read(table, **asked)

    assert isinstance(found, ReadResult)
    assert len(found.items) == through + 1
    assert comparable(found) == comparable(_read_row_by_row(table, **asked))


places = st.integers(0, 20)


def _twenty_rows() -> dict[bytes, bytes]:
    """Rows of which all but the tenth can be packed."""
    plain = [MessageRow(payload=b"%d" % number) for number in range(9)]
    odd = MessageRow(tx_pointer=COMMITTED_POINTER, payload=b"odd")
    return _store_of([*plain, odd, *plain[:5], *plain][:20], flipped=None).rows


@given(
    start=places,
    through=places,
    log_start=places,
    limit=st.integers(1, 21),
    bytes_max=st.integers(1, 60),
    inclusive=st.booleans(),
    high_water_mark=st.sampled_from([5, 19, 20]),
)
@example(
    start=3, through=20, log_start=0, limit=21, bytes_max=60, inclusive=False, high_water_mark=19
)
@example(
    start=0, through=7, log_start=0, limit=21, bytes_max=60, inclusive=True, high_water_mark=19
)
@example(
    start=7, through=20, log_start=0, limit=4, bytes_max=60, inclusive=True, high_water_mark=19
)
@example(
    start=0, through=20, log_start=0, limit=4, bytes_max=60, inclusive=True, high_water_mark=19
)
def test_packed_rows_are_read_from_and_through_any_of_their_rows(
    start: int,
    through: int,
    log_start: int,
    limit: int,
    bytes_max: int,
    inclusive: bool,
    high_water_mark: int,
) -> None:
    asked: dict[str, object] = {
        "start": start_number(MessageId(NOW_MS - 2_000, start), inclusive=inclusive),
        "through": MessageId(NOW_MS - 2_000, through),
        "log_start": MessageId(NOW_MS - 2_000, log_start),
        "high_water_mark": Offset(NOW_MS - 2_000, high_water_mark),
        "limit": limit,
        "bytes_max": bytes_max,
    }
    # Nothing behind what is served is there: a batch is served as a whole.
    last = message_key(PREFIX, Offset(NOW_MS - 2_000, high_water_mark))
    rows = {key: value for key, value in _twenty_rows().items() if key <= last}

    one_by_one, joined = _read(MemoryStore(rows), **asked), _read(packed_store(rows), **asked)

    assert comparable(joined) == comparable(one_by_one)
    assert isinstance(one_by_one, ReadResult)
    assert isinstance(joined, ReadResult)
    if joined.cacheable_after is not None:
        assert joined.cacheable_after == one_by_one.cacheable_after


def test_rows_that_the_engine_read_before_it_failed_are_delivered() -> None:
    table = DamagedStore(_store_of([MessageRow(payload=b"x")] * 12, flipped=None).rows)
    eighth = message_key(PREFIX, Offset(NOW_MS - 2_000, 7))
    table.is_damaged = lambda key: key == eighth

    assert len(read(table, query()).items) == 7


def test_behind_a_row_that_the_engine_can_not_read_a_reader_continues_a_millisecond_later() -> None:
    table = DamagedStore(_store_of([MessageRow(payload=b"x")] * 3, flipped=None).rows)
    later = message_key(PREFIX, Offset(NOW_MS - 1_000, 0))
    table.write([(later, MessageRow(payload=b"later").to_bytes(later))])
    second = Offset(NOW_MS - 2_000, 1)
    table.is_damaged = lambda key: key == message_key(PREFIX, second)

    with pytest.raises(DamagedRecordError) as raised:
        read(table, query(start=MessageId(*second).to_int()))

    behind = start_number(MessageId.from_hex(raised.value.members["next"]), inclusive=False)
    assert [payload for _, payload in read(table, query(start=behind)).items] == [b"later"]


def test_a_flipped_bit_in_the_middle_ends_the_page_before_it() -> None:
    table = _store_of([MessageRow(payload=b"%d" % number) for number in range(4)], flipped=2)

    assert [payload for _, payload in read(table, query()).items] == [b"0", b"1"]


payloads = st.binary(max_size=300) | st.text(max_size=40).map(str.encode)
messages = st.lists(st.tuples(st.binary(min_size=20, max_size=20), payloads), max_size=5)


@given(messages=messages)
def test_messages_have_the_bytes_that_the_forms_have_one_by_one(
    messages: list[tuple[bytes, bytes]],
) -> None:
    run = Messages(limit=len(messages), bytes_max=None)
    run.extend([each for each, _ in messages], [payload for _, payload in messages])

    form = [
        {
            "id": message_id.hex(),
            "timestamp": int.from_bytes(message_id[:8], "big"),
            "payload": payload_to_json(payload),
        }
        for message_id, payload in messages
    ]
    assert run.encoded(Encoding(MediaType.JSON), generation=1) == json.dumps(form).encode("ascii")
    assert run.items() == messages


@pytest.mark.parametrize("name_size", range(3, 20))
def test_a_read_ends_inside_a_group_for_topic_names_of_any_length(name_size: int) -> None:
    prefix = b"n" * name_size + (1).to_bytes(4, "big")
    places = [Offset(NOON_MS, seq_id) for seq_id in range(4)]
    key, table = message_key(prefix, places[3]), MemoryStore()
    brings = PayloadRange(places[0], places[2], 3)
    table.write([(key, MessageRow(tx_pointer=COMMITTED_POINTER, reference=brings).to_bytes(key))])
    for place in places[:3]:
        key = payload_key(prefix, COMMITTED_POINTER, place)
        table.write([(key, MessageRow(payload=b"%d" % place.seq_id).to_bytes(key))])
    served = {"now_ms": NOON_MS, "live_from": places[0], "high_water_mark": places[3]}
    through = MessageId(*places[3], *places[1])

    reading = read(table, query(prefix=prefix, through=through, **served))

    assert [payload for _, payload in reading.items] == [b"0", b"1"]
