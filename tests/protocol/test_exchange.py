"""Media types, bodies and queries (protocol §1)."""

import json
from collections.abc import Callable
from typing import NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuff.protocol.errors import (
    BadRequestError,
    InvalidTtlError,
    UnsupportedMediaTypeError,
)
from tuff.protocol.exchange import MediaType, body_type, read_object, read_query, reply_type
from tuff.protocol.json_forms import (
    parse_json,
    payloads_from_json,
    pointer_from_json,
    shown,
    ttl_from_json,
    whole_number,
)


@pytest.mark.parametrize(
    ("content_type", "body", "found"),
    [
        (None, b"", MediaType.JSON),
        ("application/json", b"{}", MediaType.JSON),
        ("Application/JSON; charset=utf-8", b"{}", MediaType.JSON),
        ("avro/binary", b"", MediaType.AVRO),
    ],
)
def test_a_body_has_the_media_type_of_its_header(
    content_type: str | None, body: bytes, found: MediaType
) -> None:
    assert body_type(content_type, body) is found


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_of_another_type_or_of_none_is_refused(content_type: str | None) -> None:
    with pytest.raises(UnsupportedMediaTypeError):
        body_type(content_type, b"x")


@pytest.mark.parametrize(
    ("accept", "found"),
    [
        (None, MediaType.AVRO),
        ("*/*", MediaType.AVRO),
        ("text/html", MediaType.AVRO),
        ("application/json", MediaType.JSON),
        ("text/html, application/json;q=0.5", MediaType.JSON),
        ("application/json;q=0.5, avro/binary", MediaType.AVRO),
        ("application/json;q=0", MediaType.AVRO),
    ],
)
def test_the_reply_has_the_type_of_the_request_unless_accept_names_one(
    accept: str | None, found: MediaType
) -> None:
    assert reply_type(accept, asked_in=MediaType.AVRO) is found


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
    value = read_object(b'{"a":%d}' % number, "application/json", members={"a"}, what="it")["a"]

    with pytest.raises(BadRequestError):
        whole_number(value, what="a")
    with pytest.raises(BadRequestError):
        pointer_from_json(value, what="a")
    with pytest.raises(InvalidTtlError):
        ttl_from_json(value)


@pytest.mark.parametrize("number", [2**62, -(2**63) + 1, 2**63 - 1])
def test_a_number_of_64_bits_is_read_to_the_last_digit(number: int) -> None:
    assert whole_number(parse_json(b"%d" % number), what="a") == number


def test_an_object_has_only_the_members_that_its_endpoint_takes() -> None:
    assert read_object(b"", None, members={"a"}, what="it") == {}
    assert read_object(b'{"a":1}', "application/json", members={"a"}, what="it") == {"a": 1}
    with pytest.raises(BadRequestError, match='it has no member "b"; it takes a'):
        read_object(b'{"b":1}', "application/json", members={"a"}, what="it")
    with pytest.raises(BadRequestError, match="it is a JSON object"):
        read_object(b"[]", "application/json", members={"a"}, what="it")
    with pytest.raises(UnsupportedMediaTypeError):
        read_object(b"{}", "avro/binary", members={"a"}, what="it")


def test_a_query_parameter_is_known_and_given_once() -> None:
    assert read_query([("ttl", "5")], parameters={"ttl"}) == {"ttl": "5"}
    with pytest.raises(BadRequestError, match='no query parameter "tll" here; known: ttl'):
        read_query([("tll", "5")], parameters={"ttl"})
    with pytest.raises(BadRequestError, match="ttl is given twice"):
        read_query([("ttl", "5"), ("ttl", "5")], parameters={"ttl"})


def test_a_bad_value_is_quoted_in_one_line_of_bounded_length() -> None:
    assert shown("a\nb") == '"a\\nb"'
    assert len(shown("x" * 10_000)) == 101
