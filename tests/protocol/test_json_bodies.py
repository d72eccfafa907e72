"""The JSON forms, there and back, and what they refuse (protocol §1, §3, §5.1)."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernel.request_bodies import (
    consume_request_from_json,
    payloads_from_json,
    publish_entries_from_json,
    publish_request_from_json,
    transaction_to_json,
    ttl_from_json,
)
from tests.protocol.attributes import ATTRIBUTES
from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes
from tuff.protocol.errors import (
    BadRequestError,
    InvalidMessageIdError,
    InvalidNameError,
    InvalidTransactionError,
    InvalidTtlError,
)
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.json_bodies import (
    attributes_to_json,
    choice_from_json,
    flag_from_json,
    parse_json,
    payload_from_json,
    payload_to_json,
    pointer_from_json,
    pointer_to_json,
    publish_entry_to_json,
    rollback_detail_from_json,
    rollback_detail_to_json,
    seconds_from_json,
    shown,
    transaction_from_json,
    whole_number,
)
from tuff.protocol.pointer_list import CHUNK_COUNT_MAX, PointerList
from tuff.protocol.requests import Ack, ConsumeRequest, PublishEntry, PublishRequest, RollbackDetail
from tuff.protocol.transaction import Transaction, TransactionType, VisibilityLevel

PAYLOADS = st.binary(max_size=60) | st.text(max_size=20).map(str.encode)
TTLS = st.none() | st.integers(1, (1 << 31) - 1)
POINTERS = st.integers(0, (1 << 63) - 1)
NO_POINTER: tuple[object, ...] = (
    True,
    1.5,
    "",
    "-",
    "1 ",
    "+1",
    "\u0663",
    "0x1",
    None,
    [],
    1 << 63,
)


def through_json(form: object) -> object:
    """What the other side of the wire is handed."""
    return json.loads(json.dumps(form))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"NaN", b"[Infinity]", b"[" * 100_000, b'{"a":1}x']
)
def test_a_body_that_is_not_json_is_refused_in_a_sentence(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="the body is not JSON"):
        parse_json(body)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _by_the_standard_library(body: bytes) -> object:
    return json.JSONDecoder(parse_constant=_no_number).decode(body.decode("utf-8"))


def _small(value: object) -> object:
    """The value, with floats for integers of more than 64 bits."""
    if isinstance(value, dict):
        return {name: _small(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_small(each) for each in value]
    is_long = isinstance(value, int) and not -(2**63) <= value < 2**64
    return float(value) if is_long else value


def _read(parse: Callable[[bytes], object], body: bytes) -> str:
    """What a parser makes of a body: every type, sign and order shows, and why it is refused."""
    try:
        return repr(_small(parse(body)))
    except BadRequestError as error:
        return error.detail
    except (ValueError, RecursionError) as error:
        return f"the body is not JSON: {error}"


_NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(2**63 - 2, 2**64 + 2).map(str),
    st.integers(-(2**63) - 2, -(2**63) + 2).map(str),
    st.floats().map(repr),
    st.sampled_from(
        ["-0", "-0.0", "0.1e1", "1E400", "-1e999", "1e-400", "01", "1.", "NaN", "-Infinity"]
    ),
)
_TEXTS = st.text().map(json.dumps) | st.sampled_from(
    [
        r'"\ud800"',
        r'"\u0000"',
        '"\x7f"',
        '"\t"',
        r'"\/"',
        '"\u2028"',
        r'"\x"',
        '"9999999999999999999999"',
    ]
)
_VALUES = st.recursive(
    _NUMBERS | _TEXTS | st.sampled_from(["true", "null", "nul", "[]", "{}", "[1,]", '{"a":1,}']),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda parts: "[" + ", ".join(parts) + "]")
        | st.lists(st.tuples(_TEXTS, inner), max_size=4).map(
            lambda pairs: "{" + ",".join(f"{name}: {value}" for name, value in pairs) + "}"
        )
    ),
    max_leaves=8,
)


@given(st.tuples(st.sampled_from(["", " ", "\n", "\ufeff", "x"]), _VALUES, _VALUES))
@example(('"a"', "123456789012345678901", "18446744073709551616"))
def test_a_body_says_the_same_to_the_fast_parser_as_to_the_standard_library(
    parts: tuple[str, str, str],
) -> None:
    around, first, second = parts
    texts = [
        f'{{"a":{first},"b":{second}}}{around}',
        f'{around}{{"b": {first} ,"a":[{second}],"b":{second}}}',
        f"{around}{first}",
    ]

    for text in texts:
        body = text.encode("utf-8", "surrogatepass")
        assert _read(parse_json, body) == _read(_by_the_standard_library, body)


@pytest.mark.parametrize("depth", [10, 900, 1000, 1020])
def test_a_body_that_nests_deeply_is_refused_in_a_sentence(depth: int) -> None:
    body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"

    with pytest.raises(BadRequestError):
        payloads_from_json(parse_json(body), what="changes")


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**64), 10**30, 10**400])
def test_a_number_of_more_than_64_bits_is_refused(number: int) -> None:
    value = parse_json(b"%d" % number)

    with pytest.raises(BadRequestError):
        whole_number(value, what="a")
    with pytest.raises(BadRequestError):
        pointer_from_json(value, what="a")
    with pytest.raises(InvalidTtlError):
        ttl_from_json(value)


@pytest.mark.parametrize("number", [2**62, -(2**63) + 1, 2**63 - 1])
def test_a_number_of_64_bits_is_read_to_the_last_digit(number: int) -> None:
    assert whole_number(parse_json(b"%d" % number), what="a") == number


def test_a_bad_value_is_quoted_in_one_line_of_bounded_length() -> None:
    assert shown("a\nb") == '"a\\nb"'
    assert len(shown("x" * 10_000)) == 101


@given(PAYLOADS)
def test_any_payload_survives_json(payload: bytes) -> None:
    assert payload_from_json(through_json(payload_to_json(payload))) == payload


def test_a_payload_is_a_string_exactly_if_it_is_utf_8() -> None:
    assert payload_to_json("größe".encode()) == "größe"
    assert payload_to_json(b"") == ""
    assert payload_to_json(b"\xff\xfe") == {"base64": "//4="}


@pytest.mark.parametrize(
    "value",
    [
        None, 7, True, [], {}, {"base64": 7}, {"base64": "a"}, {"base64": "YQ==", "more": 1},
        {"base64": "Y Q=="}, {"base64": "ä"}, "\ud800",
    ],
)  # fmt: skip
def test_anything_else_is_no_payload(value: object) -> None:
    with pytest.raises(BadRequestError, match="a payload"):
        payload_from_json(value)


@given(POINTERS)
def test_a_pointer_is_read_from_a_string_and_from_an_integer(pointer: int) -> None:
    assert pointer_from_json(str(pointer), what="x") == pointer
    assert pointer_from_json(pointer, what="x") == pointer


@pytest.mark.parametrize("value", NO_POINTER)
def test_anything_else_is_no_pointer(value: object) -> None:
    with pytest.raises(BadRequestError, match="thePointer is a 64-bit number in decimal digits"):
        pointer_from_json(value, what="thePointer")


@pytest.mark.parametrize(("value", "ttl_s"), [(1, 1), ("5", 5), (2147483647, 2147483647)])
def test_a_ttl_is_whole_seconds(value: object, ttl_s: int) -> None:
    assert ttl_from_json(value) == ttl_s


@pytest.mark.parametrize(
    "value", [0, -1, "0", "", "1.5", 1.5, True, None, 2147483648, "\u0663", " 5"]
)
def test_anything_else_is_no_ttl(value: object) -> None:
    with pytest.raises(InvalidTtlError):
        ttl_from_json(value)


@pytest.mark.parametrize("value", [True, None, "3", [], float("nan"), float("inf"), 10**400])
def test_seconds_are_a_finite_number(value: object) -> None:
    with pytest.raises(BadRequestError, match="timeout is a number of seconds"):
        seconds_from_json(value, what="timeout")


@given(st.none() | POINTERS, st.lists(st.tuples(PAYLOADS, TTLS), max_size=8))
def test_a_publish_request_survives_json(
    pointer: int | None, messages: list[tuple[bytes, int | None]]
) -> None:
    ttls_s = [ttl_s for _, ttl_s in messages]
    request = PublishRequest(
        pointer=pointer,
        payloads=[payload for payload, _ in messages],
        ttls_s=ttls_s if any(ttls_s) else None,
    )

    form: dict[str, object] = {
        "messages": [
            payload_to_json(payload)
            if ttl_s is None or not request.ttls_s
            else {"payload": payload_to_json(payload), "ttl": ttl_s}
            for payload, ttl_s in messages
        ]
    }
    if pointer is not None:
        form["transactionWritePointer"] = pointer_to_json(pointer)

    assert publish_request_from_json(through_json(form)) == request


@given(attributes=ATTRIBUTES)
def test_attributes_survive_json(attributes: Attributes) -> None:
    form = {"messages": [{"payload": "a", **attributes_to_json(attributes)}, "b"]}

    read = publish_request_from_json(through_json(form))

    # Headers of one name are together.
    names = list(dict.fromkeys(name for name, _ in attributes.headers))
    together = tuple(each for name in names for each in attributes.headers if each[0] == name)
    expected = attributes._replace(headers=together)
    assert read.attributes == (None if expected == NO_ATTRIBUTES else [expected, None])


@given(attributes=ATTRIBUTES)
def test_an_entry_in_json_keeps_the_order_of_all_headers(attributes: Attributes) -> None:
    entry = PublishEntry(topic=TopicId("a", "b"), payloads=[b"x"], attributes=[attributes])
    expected = None if attributes == NO_ATTRIBUTES else [attributes]

    (read,) = publish_entries_from_json(through_json([publish_entry_to_json(entry)]))

    assert read.attributes == expected


@pytest.mark.parametrize("pair", [["a"], ["a", ["x"]], [1, "x"], "ab", None])
def test_a_header_in_an_array_is_a_pair(pair: object) -> None:
    with pytest.raises(BadRequestError, match="a header in an array is"):
        publish_request_from_json({"messages": [{"payload": "a", "headers": [pair]}]})


def test_a_publish_request_is_read_as_the_protocol_shows_it() -> None:
    request = publish_request_from_json(
        {
            "transactionWritePointer": "1480000000000000000",
            "messages": ["a", {"base64": "/w=="}, {"payload": "b", "ttl": 5}],
        }
    )

    assert request == PublishRequest(
        pointer=1_480_000_000_000_000_000,
        payloads=[b"a", b"\xff", b"b"],
        ttls_s=[None, None, 5],
    )


@pytest.mark.parametrize(
    ("body", "culprit"),
    [
        ([], "the request is a JSON object"),
        ({"messages": "a"}, "messages is an array"),
        ({}, "messages is missing"),
        ({"messages": [1]}, "a message is a string"),
        ({"messages": [], "topic": "t"}, 'no member "topic"'),
        ({"messages": [{"payload": "a", "colour": "k"}]}, 'no member "colour"'),
        ({"messages": [{"ttl": 1}]}, "has none"),
        ({"messages": [{"payload": "a", "ttl": 0}]}, "a ttl is"),
        ({"messages": [], "transactionWritePointer": "x"}, "transactionWritePointer is"),
    ],
)
def test_a_malformed_publish_names_the_culprit(body: object, culprit: str) -> None:
    with pytest.raises(BadRequestError, match=culprit):
        publish_request_from_json(body)


def test_the_entries_of_a_commit_survive_json() -> None:
    entries = [
        PublishEntry(topic=TopicId("a", "b"), payloads=[b"x"], ttls_s=[3], pointer=17),
        PublishEntry(topic=TopicId("a", "c"), payloads=[]),
        PublishEntry(
            topic=TopicId("a", "d"),
            payloads=[b"x", b"y", b"z"],
            ttls_s=[None, 5, None],
            attributes=[
                None,
                Attributes(b"\xff", ("eu",), (("n", b"1"), ("n", b"\xff"), ("m", b""))),
                Attributes(b""),
            ],
        ),
    ]

    assert publish_entries_from_json(through_json(list(map(publish_entry_to_json, entries)))) == (
        entries
    )


def test_an_entry_of_an_illegal_topic_is_refused_as_a_name() -> None:
    with pytest.raises(InvalidNameError):
        publish_entries_from_json([{"namespace": "a/b", "topic": "t", "messages": []}])
    with pytest.raises(BadRequestError, match="names its namespace"):
        publish_entries_from_json([{"topic": "t", "messages": []}])


def test_a_publish_response_survives_json() -> None:
    detail = RollbackDetail(17, Offset(1_480_000_000_000, 5), Offset(1_480_000_000_000, 6))
    form = rollback_detail_to_json(detail)

    assert form == {
        "transactionWritePointer": "17",
        "startTimestamp": 1_480_000_000_000,
        "startSequenceId": 5,
        "endTimestamp": 1_480_000_000_000,
        "endSequenceId": 6,
    }
    assert rollback_detail_from_json(through_json(form)) == detail


def test_a_rollback_without_its_pointer_or_an_offset_is_refused() -> None:
    form = rollback_detail_to_json(RollbackDetail(17, Offset(1, 5), Offset(1, 6)))

    for name in form:
        with pytest.raises(BadRequestError):
            rollback_detail_from_json({**form, name: None})


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        ({}, ConsumeRequest()),
        ({"startFrom": 5, "inclusive": False, "limit": 3},
         ConsumeRequest(start=5, inclusive=False, limit=3)),
        ({"startFrom": "0000015896DFD000000500000000000000000000"},
         ConsumeRequest(start=MessageId(1_480_000_000_000, 5))),
        ({"startFrom": None, "limit": None, "transaction": None}, ConsumeRequest()),
    ],
)  # fmt: skip
def test_a_poll_is_read(body: object, request_: ConsumeRequest) -> None:
    assert consume_request_from_json(body) == request_


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"startFrom": "00"}, InvalidMessageIdError),
        ({"startFrom": 1.5}, BadRequestError),
        ({"startFrom": True}, BadRequestError),
        ({"inclusive": None}, BadRequestError),
        ({"limit": "3"}, BadRequestError),
        ({"from": 1}, BadRequestError),
        ({"transaction": "AAA"}, InvalidTransactionError),
        ({"transaction": 7}, InvalidTransactionError),
    ],
)
def test_a_malformed_poll_has_its_code(body: object, kind: type[BadRequestError]) -> None:
    with pytest.raises(BadRequestError) as refused:
        consume_request_from_json(body)

    assert type(refused.value) is kind


TRANSACTION = Transaction(
    transaction_id=1000,
    read_pointer=998,
    write_pointer=1001,
    invalids=(990, 991),
    in_progress=(995,),
    first_short_in_progress=995,
    type=TransactionType.LONG,
    checkpoint_write_pointers=(1001,),
    visibility_level=VisibilityLevel.SNAPSHOT_ALL,
)


def test_a_transaction_survives_json_as_an_object_and_encoded() -> None:
    form = transaction_to_json(TRANSACTION, lists=True)

    assert transaction_from_json(through_json(form)) == TRANSACTION
    assert transaction_from_json(form["encoded"]) == TRANSACTION


def test_shared_lists_have_the_json_of_plain_ones() -> None:
    pointers = tuple(range(10**18, 10**18 + 3 * CHUNK_COUNT_MAX, 2))
    for some in ((), pointers[:1], pointers):
        plain = replace(TRANSACTION, invalids=some, in_progress=some)
        shared = replace(plain, invalids=PointerList(some), in_progress=PointerList(some))

        form = orjson.dumps(transaction_to_json(shared, lists=True))

        assert form == orjson.dumps(transaction_to_json(plain, lists=True))


def test_the_lists_of_an_object_need_not_be_sorted() -> None:
    form = transaction_to_json(TRANSACTION, lists=True)

    assert transaction_from_json({**form, "invalids": ["991", 990]}) == TRANSACTION


def test_an_object_without_its_lists_is_no_snapshot_to_read_in() -> None:
    """A missing list read as an empty one would show what is in progress."""
    form = transaction_to_json(TRANSACTION, lists=False)

    with pytest.raises(InvalidTransactionError, match="has no invalids"):
        transaction_from_json(form)


@pytest.mark.parametrize(
    ("name", "value"),
    [("type", "medium"), ("visibilityLevel", "ALL"), ("invalids", ["x"]), ("readPointer", None)],
)
def test_a_malformed_transaction_object_is_refused(name: str, value: object) -> None:
    form = transaction_to_json(TRANSACTION, lists=True)

    with pytest.raises(InvalidTransactionError, match=name):
        transaction_from_json({**form, name: value})


@pytest.mark.parametrize("value", ["SHORT", "", "none", 1, True, None, ["short"], {}])
def test_a_choice_is_one_of_the_values_of_its_enumeration(value: object) -> None:
    assert choice_from_json(TransactionType, "long", what="type") is TransactionType.LONG
    with pytest.raises(BadRequestError, match=r"^type is short or long, not "):
        choice_from_json(TransactionType, value, what="type")


def test_a_choice_of_three_names_them_all() -> None:
    with pytest.raises(BadRequestError) as caught:
        choice_from_json(Ack, "never", what="ack")

    assert caught.value.detail == 'ack is none, received or durable, not "never"'


@pytest.mark.parametrize("value", [0, 1, "true", None, [True]])
def test_a_flag_is_true_or_false(value: object) -> None:
    assert flag_from_json(False, what="lists") is False
    with pytest.raises(BadRequestError, match=r"^lists is true or false, not "):
        flag_from_json(value, what="lists")
