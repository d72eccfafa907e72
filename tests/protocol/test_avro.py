"""The Avro forms, beside the worked bytes and beside fastavro (protocol §4)."""

import io
from collections.abc import Callable
from contextlib import suppress

import fastavro
import pytest
from fastavro.types import Schema
from hypothesis import given
from hypothesis import strategies as st

from messaging.model.avro_bodies import (
    decode_consume_request,
    decode_publish_request,
    decode_publish_request_2,
    decode_rollback_detail,
    encode_columns,
    encode_rollback_detail,
)
from process.binary_schemas import AVRO, AVRO_2
from tests.protocol.attributes import ATTRIBUTES
from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes
from tuff.protocol.avro import (
    decode_messages_2,
    encode_long,
    encode_publish_request,
    encode_publish_request_2,
)
from tuff.protocol.errors import BadRequestError, InvalidMessageIdError, InvalidTransactionError
from tuff.protocol.ids import MessageId, Offset
from tuff.protocol.requests import ConsumeRequest, PublishRequest, RollbackDetail
from tuff.protocol.transaction import Transaction

# Those of the OpenAPI document.
PUBLISH, RESPONSE, CONSUME, MESSAGES = (
    fastavro.parse_schema(AVRO[name])
    for name in ("PublishRequest", "PublishResponse", "ConsumeRequest", "MessageList")
)
PUBLISH_2, MESSAGES_2 = (
    fastavro.parse_schema(AVRO_2[name]) for name in ("PublishRequest", "MessageList")
)

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
TIMESTAMPS = st.integers(0, (1 << 63) - 1)
SEQ_IDS = st.integers(0, 65_535)
PLACES = st.builds(Offset, TIMESTAMPS, SEQ_IDS)
DETAILS = st.builds(
    RollbackDetail, LONGS.filter(lambda pointer: pointer != -(1 << 63)), PLACES, PLACES
)
IDS = st.builds(MessageId, TIMESTAMPS, SEQ_IDS, TIMESTAMPS, SEQ_IDS)
TRANSACTION = Transaction(transaction_id=1000, read_pointer=998, write_pointer=1000)


def written(schema: Schema, datum: object) -> bytes:
    """The datum as fastavro writes it."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, datum)
    return buffer.getvalue()


def read(schema: Schema, data: bytes) -> object:
    """The datum as fastavro reads it, which has read all the bytes."""
    buffer = io.BytesIO(data)
    datum = fastavro.schemaless_reader(buffer, schema, None)
    assert buffer.read() == b""
    return datum


def test_the_example_bytes_of_the_protocol_are_read() -> None:
    assert decode_publish_request(bytes.fromhex("0204026104626300")) == PublishRequest(
        pointer=None, payloads=[b"a", b"bc"]
    )
    assert decode_publish_request(bytes.fromhex("000200")) == PublishRequest(pointer=1, payloads=[])
    assert decode_consume_request(bytes.fromhex("0401001402")) == ConsumeRequest(limit=10)
    assert decode_rollback_detail(
        bytes.fromhex("000280c0feed92560a80c0feed92560c")
    ) == RollbackDetail(1, Offset(1_480_000_000_000, 5), Offset(1_480_000_000_000, 6))


def test_the_example_bytes_of_the_protocol_are_written() -> None:
    detail = RollbackDetail(1, Offset(1_480_000_000_000, 5), Offset(1_480_000_000_000, 6))

    assert encode_rollback_detail(detail).hex() == "000280c0feed92560a80c0feed92560c"
    assert encode_publish_request(PublishRequest(pointer=None, payloads=[b"a", b"bc"])).hex() == (
        "0204026104626300"
    )
    assert encode_columns([], [], None).hex() == "00"


@given(st.none() | LONGS, st.lists(st.binary(max_size=200), max_size=80))
def test_publish_requests_are_those_of_fastavro(pointer: int | None, payloads: list[bytes]) -> None:
    datum = {"transactionWritePointer": pointer, "messages": payloads}
    request = PublishRequest(pointer=pointer, payloads=payloads)

    assert decode_publish_request(written(PUBLISH, datum)) == request
    assert read(PUBLISH, encode_publish_request(request)) == datum


def _attributes_form(attributes: Attributes | None) -> dict[str, object]:
    key, tags, headers = attributes or NO_ATTRIBUTES
    pairs = [{"name": name, "value": value} for name, value in headers]
    return {"key": key, "tags": list(tags), "headers": pairs}


@given(
    st.none() | LONGS,
    st.lists(
        st.tuples(
            st.binary(max_size=50),
            st.none() | ATTRIBUTES,
            st.none() | st.integers(1, (1 << 31) - 1),
        ),
        max_size=8,
    ),
)
def test_publish_requests_of_version_2_are_those_of_fastavro(
    pointer: int | None, messages: list[tuple[bytes, Attributes | None, int | None]]
) -> None:
    datum = {
        "transactionWritePointer": pointer,
        "messages": [
            {"payload": payload, **_attributes_form(attributes), "ttl": ttl_s}
            for payload, attributes, ttl_s in messages
        ],
    }
    attributes = [None if each == NO_ATTRIBUTES else each for _, each, _ in messages]
    ttls_s = [ttl_s for *_, ttl_s in messages]
    request = PublishRequest(
        pointer,
        [payload for payload, *_ in messages],
        ttls_s if any(ttls_s) else None,
        attributes=attributes if any(attributes) else None,
    )

    assert decode_publish_request_2(written(PUBLISH_2, datum)) == request
    assert read(PUBLISH_2, encode_publish_request_2(request)) == datum


@given(
    st.lists(
        st.tuples(IDS.map(MessageId.to_bytes), st.binary(max_size=50), st.none() | ATTRIBUTES),
        max_size=8,
    )
)
def test_fastavro_reads_a_poll_reply_of_version_2(
    messages: list[tuple[bytes, bytes, Attributes | None]],
) -> None:
    form = [
        {"id": message_id, "payload": payload, **_attributes_form(attributes)}
        for message_id, payload, attributes in messages
    ]
    ids, payloads = [one[0] for one in messages], [one[1] for one in messages]
    attributes = {index: each for index, (*_, each) in enumerate(messages) if each is not None}

    assert read(MESSAGES_2, encode_columns(ids, payloads, attributes)) == form
    assert decode_messages_2(written(MESSAGES_2, form)) == [
        (message_id, payload, each or NO_ATTRIBUTES) for message_id, payload, each in messages
    ]


def test_the_example_bytes_of_version_2_are_read_and_written() -> None:
    digits = "0202026102026b020465750002026e023100027800"
    request = PublishRequest(
        None, [b"a"], [60], attributes=[Attributes(b"k", ("eu",), (("n", b"1"),))]
    )

    assert decode_publish_request_2(bytes.fromhex(digits)) == request
    assert encode_publish_request_2(request).hex() == digits


def test_blocks_of_either_kind_come_in_arrays_inside_of_messages() -> None:
    # The tags and the headers of the message in blocks with their size, then without.
    digits = "0202026100010602610000"
    with pytest.raises(BadRequestError, match="a block has 3 bytes, not 2"):
        decode_publish_request_2(bytes.fromhex(digits))
    tags = "0104026102026200"
    headers = "02026e02310108026e023200"
    request = decode_publish_request_2(bytes.fromhex("0202026100" + tags + headers + "00" + "00"))
    assert request.attributes == [Attributes(None, ("a", "b"), (("n", b"1"), ("n", b"2")))]


@pytest.mark.parametrize(
    ("digits", "reason"),
    [
        ("02" "02" "0261" "04", "picks branch 2 of a union that has 2"),
        ("02" "02" "0261" "00" "0202ff" "00" "00" "00" "00", "has a string that is not UTF-8"),
        ("02" "02" "0261" "00" "00" "00" "0280808080" "20" "00", "where an int of 32 bits belongs"),
        ("02" "02" "0261" "00" "00" "00" "0201" "00", "a ttl is a whole number of seconds"),
        ("02" "02" "0261" "00" "02022c" "00" "00" "00", '"," has not'),
        ("02" "02" "0261" "00" "feffffff0f", "items follow in 0 bytes"),
    ],
)  # fmt: skip
def test_a_malformed_publish_of_version_2_is_refused_with_a_reason(
    digits: str, reason: str
) -> None:
    with pytest.raises(BadRequestError, match=reason):
        decode_publish_request_2(bytes.fromhex(digits))


@given(DETAILS)
def test_publish_responses_are_those_of_fastavro(detail: RollbackDetail) -> None:
    datum = {
        "transactionWritePointer": detail.pointer,
        "startTimestamp": detail.first.timestamp_ms,
        "startSequenceId": detail.first.seq_id,
        "endTimestamp": detail.last.timestamp_ms,
        "endSequenceId": detail.last.seq_id,
    }

    assert encode_rollback_detail(detail) == written(RESPONSE, datum)
    assert decode_rollback_detail(written(RESPONSE, datum)) == detail


@given(st.none() | LONGS | IDS, st.booleans(), st.none() | INTS, st.booleans())
def test_consume_requests_of_fastavro_are_read(
    start: MessageId | int | None, inclusive: bool, limit: int | None, transactional: bool
) -> None:
    datum = {
        "startFrom": start.to_bytes() if isinstance(start, MessageId) else start,
        "inclusive": inclusive,
        "limit": limit,
        "transaction": TRANSACTION.to_bytes() if transactional else None,
    }

    assert decode_consume_request(written(CONSUME, datum)) == ConsumeRequest(
        start=start,
        inclusive=inclusive,
        limit=limit,
        transaction=TRANSACTION if transactional else None,
    )


@given(st.lists(st.tuples(IDS.map(MessageId.to_bytes), st.binary(max_size=100)), max_size=80))
def test_fastavro_reads_a_poll_reply(messages: list[tuple[bytes, bytes]]) -> None:
    form = [{"id": message_id, "payload": payload} for message_id, payload in messages]
    ids, payloads = [one[0] for one in messages], [one[1] for one in messages]

    assert read(MESSAGES, encode_columns(ids, payloads, None)) == form


@pytest.mark.parametrize("size_bytes", [0, 1, 63, 64, 127, 8_191, 8_192, 20_000])
@pytest.mark.parametrize("attributes", [{}, {0: Attributes(tags=("a",))}, {1: Attributes(b"")}])
def test_a_poll_reply_of_version_2_is_read_whole_with_lengths_of_every_form(
    size_bytes: int, attributes: dict[int, Attributes]
) -> None:
    ids = [MessageId(number, 1).to_bytes() for number in range(3)]
    payloads = [bytes(range(256)) * 100, b"x" * size_bytes, b"\x00" * 5]
    body = encode_columns(ids, payloads, attributes)

    found = decode_messages_2(body)

    assert [(id, payload) for id, payload, _ in found] == [*zip(ids, payloads, strict=True)]
    assert [each for *_, each in found] == [attributes.get(n, NO_ATTRIBUTES) for n in range(3)]
    for cut in (*range(30), *range(len(body) - size_bytes - 60, len(body))):
        with pytest.raises(BadRequestError):
            decode_messages_2(body[:cut])


@given(LONGS)
def test_a_number_has_the_bytes_that_fastavro_gives_it(number: int) -> None:
    assert encode_long(number) == written("long", number)


@pytest.mark.parametrize(
    "digits",
    [
        "02" "03" "0a" "0261" "046263" "00",
        "02" "02" "0261" "02" "046263" "00",
        "02" "01" "04" "0261" "02" "046263" "00",
    ],
    ids=["one block with its size", "two blocks", "a block with its size and one without"],
)  # fmt: skip
def test_an_array_comes_in_blocks_of_either_kind(digits: str) -> None:
    assert decode_publish_request(bytes.fromhex(digits)).payloads == [b"a", b"bc"]


@pytest.mark.parametrize(
    ("digits", "reason"),
    [
        ("", "is cut off"),
        ("0204026104626300" "00", "is followed by 1 bytes"),
        ("04" "00", "picks branch 2 of a union that has 2"),
        ("01" "00", "picks branch -1"),
        ("02" "feffffffffffffffff01", "says that 9223372036854775807 items follow in 0 bytes"),
        ("02" "ffffffffffffffffff01" "00", "items follow in 0 bytes"),
        ("02" "01" "02", "says that a block has 1 bytes, and 0 follow"),
        ("02" "01" "01" "0261" "00", "says that a block has -1 bytes"),
        ("02" "02" "feffffff0f" "61", "says that 2147483647 bytes follow, and 1 do"),
        ("02" "02" "01" "00", "says that -1 bytes follow"),
        ("00" "ffffffffffffffffff02" "00", "a number of more than 64 bits"),
        ("00" "ffffffffffffffffffff01" "00", "a number of more than 64 bits"),
    ],
)  # fmt: skip
def test_a_malformed_publish_is_refused_with_a_reason(digits: str, reason: str) -> None:
    with pytest.raises(BadRequestError, match=reason):
        decode_publish_request(bytes.fromhex(digits))


@pytest.mark.parametrize(
    ("digits", "kind"),
    [
        ("06" "01" "02" "02", BadRequestError),
        ("04" "02" "02" "02", BadRequestError),
        ("04" "01" "00" "8080808020" "02", BadRequestError),
        ("00" "02" "61" "01" "02" "02", InvalidMessageIdError),
        ("04" "01" "02" "00" "02" "61", InvalidTransactionError),
    ],
    ids=["unknown branch", "boolean 2", "limit of 33 bits", "id of 1 byte", "no TTransaction"],
)  # fmt: skip
def test_a_malformed_poll_is_refused_with_its_code(
    digits: str, kind: type[BadRequestError]
) -> None:
    with pytest.raises(kind):
        decode_consume_request(bytes.fromhex(digits))


@pytest.mark.parametrize(
    "digits",
    ["02" "00" "00" "00" "00", "0002" "01" "00" "00" "00", "0002" "00" "808008" "00" "00"],
    ids=["no pointer", "a time before 1970", "sequence id 65536"],
)  # fmt: skip
def test_a_rollback_without_a_valid_offset_is_refused(digits: str) -> None:
    with pytest.raises(BadRequestError):
        decode_rollback_detail(bytes.fromhex(digits))


VALID = [
    (decode_publish_request, "02" "03" "0a" "0261" "046263" "00"),
    (decode_rollback_detail, "000280c0feed92560a80c0feed92560c"),
    (decode_consume_request, "0401001402"),
    (decode_consume_request, "00" "28" + "11" * 20 + "01" "0014" "02"),
    (
        decode_publish_request_2,
        "02" "02" "0261" "02026b" "02046575" "00" "02026e0231" "00" "0278" "00",
    ),
    (
        decode_messages_2,
        "02" "28" + "11" * 20 + "0261" "02026b" "02046575" "00" "02026e0231" "00" "00",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("decode", "digits"), VALID)
def test_a_datum_cut_off_anywhere_or_followed_by_anything_is_refused(
    decode: Callable[[bytes], object], digits: str
) -> None:
    data = bytes.fromhex(digits)
    decode(data)

    for size in range(len(data)):
        with pytest.raises(BadRequestError):
            decode(data[:size])
    with pytest.raises(BadRequestError):
        decode(data + b"\x00")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_refused_as_none(data: bytes) -> None:
    for decode in (
        decode_publish_request,
        decode_consume_request,
        decode_rollback_detail,
        decode_publish_request_2,
        decode_messages_2,
    ):
        with suppress(BadRequestError):
            assert decode(data) is not None
