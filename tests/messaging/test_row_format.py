"""Golden bytes of every stored key and value, and how damage of them is detected (design §5)."""

import json
from pathlib import Path
from typing import Protocol

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from messaging.log.rows_by_transaction import MESSAGE_ROWS, PAYLOAD_ROWS, IndexedRange
from messaging.log.topics import TopicRecord
from messaging.model.attributes import decode_attributes, encode_attributes
from messaging.model.partitions import Partitions
from messaging.model.row_format import (
    HOLDS,
    LAST_BATCH_KEY,
    METADATA_KEY,
    POSITIONS,
    DamagedRowError,
    Hold,
    LastBatch,
    MessageRow,
    NewerRowError,
    PayloadRange,
    Position,
    StoreMetadata,
    delayed_key,
    delayed_stop,
    frame,
    inline_values,
    is_undecided,
    message_key,
    message_keys,
    named_row_key,
    offset_in,
    payload_key,
    pointer_in,
    prefix_of,
    row_prefix,
    split_named_row_key,
    split_prefix,
    split_topic,
    split_undecided,
    topic_key,
    undecided_key,
    undecided_row,
    undecided_start,
    unframe,
)
from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes, stored_size
from tuff.protocol.ids import NEVER_MS, DelayedId, MessageId, Offset, TopicId

GOLDEN = Path(__file__).parent.parent / "golden" / "messaging-rows.json"
TOPIC = TopicId("default", "t1")
PREFIX = prefix_of(TOPIC, 1)
PLACE = Offset(1_480_000_000_000, 5)
POINTER = 1_480_000_000_000_000_000
MESSAGE_KEY = message_key(PREFIX, PLACE)
PAYLOAD_KEY = payload_key(PREFIX, POINTER, Offset(1_480_000_000_000, 7))

RANGE = PayloadRange(Offset(1_480_000_000_000, 7), Offset(1_480_000_000_001, 0), 3)
INDEXED = IndexedRange(
    pointer=POINTER,
    kind=MESSAGE_ROWS,
    topic=TOPIC,
    generation=1,
    first=PLACE,
    last=Offset(1_480_000_000_000, 9),
    final=True,
    written_ms=1_480_000_000_123,
)


class Stored(Protocol):
    """What all stored values have in common."""

    def to_bytes(self, key: bytes) -> bytes: ...
    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "Stored": ...


ATTRIBUTES = encode_attributes(
    Attributes(b"k1", ("eu", "paid"), (("traceparent", b"00-01"), ("traceparent", b"\xff")))
)
ROWS: dict[str, Stored] = {
    "message": MessageRow(payload=b"hello"),
    "message, empty": MessageRow(),
    "message of a transaction": MessageRow(tx_pointer=POINTER, payload=b"hello"),
    "message rolled back": MessageRow(tx_pointer=-POINTER, payload=b"hello"),
    "message with ttl": MessageRow(ttl_s=60, payload=b"hello"),
    "message with attributes": MessageRow(
        tx_pointer=POINTER, ttl_s=60, attributes=b"later", payload=b"hello"
    ),
    "message with key, tags, headers": MessageRow(attributes=ATTRIBUTES, payload=b"hello"),
    "reference": MessageRow(tx_pointer=POINTER, reference=RANGE),
    "payload": MessageRow(payload=b"hello"),
    "payload with ttl": MessageRow(payload=b"hello", ttl_s=60),
    "payload with key, tags, headers": MessageRow(payload=b"hello", attributes=ATTRIBUTES),
    "topic": TopicRecord(
        generation=-3, properties={"ttl": "60", "owner": "me"}, log_start=MessageId(*PLACE)
    ),
    "topic with partitions": TopicRecord(
        generation=3,
        properties={"ttl": "60", "owner": "me"},
        partitions=Partitions((0, 1, 5), (3, 4), 6),
    ),
    "retired partition": TopicRecord(generation=3, properties={"ttl": "60"}, is_retired=True),
    "index": INDEXED,
    "mark": LastBatch(batch_number=12, last=PLACE, clock_ms=1_480_000_000_123),
    "mark with edit": LastBatch(
        batch_number=12, last=PLACE, clock_ms=1_480_000_000_123, seen_lsn=41
    ),
    "hold": Hold(
        first=MessageId(*PLACE), set_at_ms=1_480_000_000_123, expires_at_ms=1_480_086_400_123
    ),
    "position": Position(
        position=MessageId(*PLACE, 1_480_000_000_000, 7), updated_at_ms=1_480_000_000_123
    ),
    "facts": StoreMetadata(
        store_id="ab12", highest_pointer=POINTER, longest_transaction_ms=86_400_000
    ),
}
KEYS: dict[type[Stored], bytes] = {
    MessageRow: MESSAGE_KEY,
    TopicRecord: topic_key(TOPIC),
    IndexedRange: INDEXED.key,
    LastBatch: LAST_BATCH_KEY,
    StoreMetadata: METADATA_KEY,
    Hold: named_row_key(HOLDS, PREFIX, "nightly"),
    Position: named_row_key(POSITIONS, PREFIX, "nightly"),
}


def key_of(name: str) -> bytes:
    """The key of the row with this name."""
    return PAYLOAD_KEY if name.startswith("payload") else KEYS[type(ROWS[name])]


def test_the_worked_example_of_a_message_key() -> None:
    assert MESSAGE_KEY[1:].hex() == "64656661756c743a74313a" + "00000001" + "0000015896dfd0000005"


def test_the_worked_example_of_a_payload_key() -> None:
    assert PAYLOAD_KEY[1:].hex() == (
        "64656661756c743a74313a" + "00000001" + "148a04289b940000" + "0000015896dfd0000007"
    )


def test_golden_bytes_of_a_delayed_message() -> None:
    golden = json.loads(GOLDEN.read_text())
    delayed_id = DelayedId(1_480_000_060_000, PLACE)
    key = delayed_key(PREFIX, delayed_id)
    row = MessageRow(ttl_s=60, payload=b"hello")
    undecided = undecided_key(PREFIX, PLACE)

    assert key.hex() == "64" + PREFIX.hex() + "0000015896e0ba60" + "0000015896dfd0000005"
    assert (row_prefix(key), DelayedId.from_bytes(key)) == (PREFIX, delayed_id)
    assert row.to_bytes(key).hex() == golden["delayed"]
    assert undecided.hex() == "64" + PREFIX.hex() + "ff" * 8 + "0000015896dfd0000005"
    held = undecided_row(POINTER, delayed_id, row.to_bytes(key)).to_bytes(undecided)
    assert held.hex() == golden["undecided"]
    assert split_undecided(undecided, held) == (POINTER, delayed_id, row.to_bytes(key))
    assert (is_undecided(undecided), is_undecided(key)) == (True, False)


@pytest.mark.parametrize("generation", [1, 255, 0x2CFFFFFF])
def test_the_keys_of_delayed_messages_are_in_the_order_of_due_times(generation: int) -> None:
    prefix = prefix_of(TOPIC, generation)
    ids = [DelayedId(5, Offset(9, 9)), DelayedId(6, Offset(1, 0)), DelayedId(NEVER_MS - 1, PLACE)]
    keys = [delayed_key(prefix, each) for each in ids]
    keys += [undecided_start(prefix), undecided_key(prefix, Offset(1, 0))]
    assert [*keys, delayed_stop(prefix), delayed_key(prefix_of(TOPIC, generation + 1), ids[0])] == (
        sorted([*keys, delayed_stop(prefix), delayed_key(prefix_of(TOPIC, generation + 1), ids[0])])
    )


def test_the_parts_of_a_key_can_be_read_back() -> None:
    assert (offset_in(PAYLOAD_KEY), pointer_in(PAYLOAD_KEY)) == ((PLACE[0], 7), POINTER)
    assert row_prefix(PAYLOAD_KEY) == row_prefix(MESSAGE_KEY) == PREFIX
    assert split_prefix(PREFIX) == (TOPIC, 1)


@pytest.mark.parametrize("topic", ["t", "t:3", "t:3:g:share", "g:group"])
@pytest.mark.parametrize("generation", [1, 0x3A, 0x3A3A3A, 0x2CFFFFFF])
@pytest.mark.parametrize("name", ["0", "nightly", "3"])
def test_topic_generation_and_name_of_a_hold_can_be_read_back(
    topic: str, generation: int, name: str
) -> None:
    of = TopicId("n", topic)
    key = named_row_key(HOLDS, prefix_of(of, generation), name)

    assert split_named_row_key(key) == (of, generation, name)
    assert split_topic(topic_key(of)[1:]) == of


@pytest.mark.parametrize(
    "key", [b"h", b"hn:t:", b"hn:t:\0\0\0\1", b"hn:t:\0\0\0\1:", b"hn:t:x:\0\0\0\1a", b"hn:t"]
)
def test_a_key_of_no_hold_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="b'"):
        split_named_row_key(key)


@pytest.mark.parametrize("name", ROWS)
def test_stored_values_have_their_golden_bytes(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    row = ROWS[name]
    key = key_of(name)

    assert row.to_bytes(key).hex() == golden[name]
    assert type(row).from_bytes(key, bytes.fromhex(golden[name])) == row


@pytest.mark.parametrize("name", ROWS)
def test_any_flipped_bit_is_detected(name: str) -> None:
    row = ROWS[name]
    key = key_of(name)
    value = row.to_bytes(key)

    for bit in range(8 * len(value)):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedRowError):
            type(row).from_bytes(key, bytes(flipped))


@pytest.mark.parametrize("name", ROWS)
def test_a_whole_value_under_another_key_is_damaged(name: str) -> None:
    row = ROWS[name]
    key = key_of(name)

    with pytest.raises(DamagedRowError):
        type(row).from_bytes(key + b"x", row.to_bytes(key))


@given(value=st.binary(max_size=60))
def test_arbitrary_bytes_raise_only_the_damage_error(value: bytes) -> None:
    for row in ROWS.values():
        with pytest.raises(DamagedRowError):
            type(row).from_bytes(b"mkey", value)


@pytest.mark.parametrize("name", ROWS)
def test_a_flag_of_a_newer_version_is_refused_and_not_called_damaged(name: str) -> None:
    """A topic row with attributes was read as one of another generation."""
    row = ROWS[name]
    key = key_of(name)
    flags, body = unframe(key, row.to_bytes(key))
    known = {MessageRow: 0x0F, TopicRecord: 0x03, LastBatch: 0x01}.get(type(row), 0)
    if key == PAYLOAD_KEY:
        known = 0x06

    for flag in [1 << bit for bit in range(8) if not known >> bit & 1]:
        with pytest.raises(NewerRowError) as raised:
            type(row).from_bytes(key, frame(key, flags | flag, body))
        assert "damaged" not in raised.value.finding
        assert "salvage" not in raised.value.advice


@pytest.mark.parametrize(("at", "value"), [(len(b"i") + 8, b"k"), (len(INDEXED.key) + 10, b"\x02")])
def test_an_index_row_of_an_unknown_kind_is_of_a_newer_version(at: int, value: bytes) -> None:
    body = unframe(INDEXED.key, INDEXED.to_bytes(INDEXED.key))[1]
    changed = INDEXED.key + body
    changed = changed[:at] + value + changed[at + 1 :]
    key, body = changed[: len(INDEXED.key)], changed[len(INDEXED.key) :]

    with pytest.raises(NewerRowError):
        IndexedRange.from_bytes(key, frame(key, 0, body))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"format":2,"layout":"other"}', NewerRowError),
        (b'{"format":1,"colour":"red"}', NewerRowError),
        (b'{"store_id":null}', DamagedRowError),
        (b'{"format":0}', DamagedRowError),
        (b'{"format":true}', DamagedRowError),
        (b"[1]", DamagedRowError),
        (b"{", DamagedRowError),
    ],
)
def test_metadata_of_another_format_is_refused(body: bytes, error: type[DamagedRowError]) -> None:
    with pytest.raises(DamagedRowError) as raised:
        StoreMetadata.from_bytes(METADATA_KEY, frame(METADATA_KEY, 0, body))

    assert raised.type is error


@pytest.mark.parametrize("body", [b"", bytes(23), bytes(24) + b'{"ttl":1e999}', bytes(24) + b"[]"])
def test_a_topic_row_with_another_body_is_damaged(body: bytes) -> None:
    """A short one raised the error of a message id once, which nobody expects from a row."""
    key = topic_key(TopicId("default", "t1"))

    with pytest.raises(DamagedRowError):
        TopicRecord.from_bytes(key, frame(key, 0, body))


@pytest.mark.parametrize(
    "form",
    [
        "[]",
        "{}",
        '{"properties":{"ttl":"6"},"partitions":[0,1],"retired":[]}',
        '{"properties":{"ttl":"6"},"partitions":[0,true],"retired":[],"next":3}',
        '{"properties":{"ttl":"6"},"partitions":[0,2,1],"retired":[],"next":3}',
        '{"properties":{"ttl":"6"},"partitions":[0,1],"retired":[1],"next":3}',
        '{"properties":{"ttl":"6"},"partitions":[0,1],"retired":[],"next":1}',
        '{"properties":{"ttl":"6"},"partitions":[1],"retired":[],"next":3}',
        '{"properties":{"ttl":"6"},"partitions":[0],"retired":[],"next":10001}',
    ],
)
def test_a_topic_row_with_impossible_partitions_is_damaged(form: str) -> None:
    key = topic_key(TopicId("default", "t1"))

    with pytest.raises(DamagedRowError):
        TopicRecord.from_bytes(key, frame(key, 1, bytes(24) + form.encode()))


def test_an_index_row_of_stored_payloads_keeps_its_kind() -> None:
    entry = IndexedRange(
        pointer=1, kind=PAYLOAD_ROWS, topic=TOPIC, generation=2,
        first=PLACE, last=PLACE, final=False, written_ms=5,
    )  # fmt: skip
    assert IndexedRange.from_bytes(entry.key, entry.to_bytes(entry.key)) == entry


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    st.none() | st.integers(1, (1 << 63) - 1),
    st.none() | st.lists(st.none() | st.sampled_from((1, 5, (1 << 31) - 1)), min_size=4),
)
def test_rows_of_one_publish_are_encoded_as_single_rows(
    payloads: list[bytes], pointer: int | None, ttls: list[int | None] | None
) -> None:
    keys = message_keys(prefix_of(TopicId("a", "t"), 1), Offset(7, (1 << 16) - 2), len(payloads))
    ttls_s = ttls and ttls[: len(payloads)]
    rows = [
        MessageRow(tx_pointer=pointer, ttl_s=ttl_s, payload=payload)
        for payload, ttl_s in zip(payloads, ttls_s or [None] * len(payloads), strict=True)
    ]

    values = inline_values(keys, payloads, pointer=pointer, ttls_s=ttls_s)

    assert values == [row.to_bytes(key) for key, row in zip(keys, rows, strict=True)]
    assert [MessageRow.from_bytes(*each) for each in zip(keys, values, strict=True)] == rows


tags = st.text("abcABC019._-", min_size=1, max_size=64)
headers = st.tuples(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1), st.binary()
)
any_attributes = st.builds(
    Attributes,
    st.none() | st.binary() | st.sampled_from([b"k" * 255, b"k" * 256]),
    st.lists(tags, max_size=16).map(tuple),
    st.lists(headers, max_size=20).map(tuple),
)


@given(attributes=any_attributes)
@example(
    attributes=Attributes(b"", ("x" * 31, "x" * 32), (("n" * 31, b""), ("n" * 32, b"v" * 256)))
)
@example(attributes=Attributes(None, tuple(map(str, range(16))), (("n", b""),) * 16))
@example(attributes=Attributes(None, (), (("n", b"v" * 65_536),)))
def test_stored_attributes_are_read_back_and_their_size_is_known(attributes: Attributes) -> None:
    stored = encode_attributes(attributes)

    assert decode_attributes(stored) == attributes
    assert stored_size(attributes) == len(stored)
    assert msgpack.unpackb(stored) == [
        attributes.key,
        list(attributes.tags),
        [list(pair) for pair in attributes.headers],
    ]


@pytest.mark.parametrize(
    "other",
    [
        [None, []],
        [None, [], [], 1],
        ["k", [], []],
        [None, [b"a"], []],
        [None, ["a"], [["n", "text"]]],
        [None, ["a"], [["n"]]],
        [None, "a", []],
        {"key": None},
        7,
    ],
)
def test_attributes_of_another_form_are_none(other: object) -> None:
    assert decode_attributes(msgpack.packb(other)) == NO_ATTRIBUTES


@given(data=st.binary(max_size=40))
@example(data=b"later")
@example(data=b"")
@example(data=b"\x93\xc0\x90\x91" + b"\x91" * 2_000)
@example(data=b"\x93\xc0\x91\xa1\xff\x90")
def test_no_bytes_of_attributes_are_refused(data: bytes) -> None:
    assert len(decode_attributes(data)) == 3
