"""Media types, bodies and queries (protocol §1)."""

import json
from collections.abc import Callable
from typing import NoReturn

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuff.protocol.errors import BadRequestError, UnsupportedMediaTypeError
from tuff.protocol.media import (
    MediaType,
    body_type,
    parse_json,
    read_object,
    read_query,
    reply_type,
    shown,
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
def test_a_body_is_in_the_form_that_its_type_says(
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
def test_what_is_no_json_is_refused_and_never_an_accident(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="the body is not JSON"):
        parse_json(body)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _by_the_standard_library(body: bytes) -> object:
    return json.JSONDecoder(parse_constant=_no_number).decode(body.decode("utf-8"))


def _read(parse: Callable[[bytes], object], body: bytes) -> str:
    """What a parser makes of a body: every type, sign and order shows, and why it is refused."""
    try:
        return repr(parse(body))
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


@pytest.mark.parametrize("depth", [10, 400, 900])
def test_a_body_that_nests_deeply_is_read_as_the_standard_library_reads_it(depth: int) -> None:
    body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"

    assert _read(parse_json, body) == _read(_by_the_standard_library, body)


def test_nearly_every_body_is_read_by_the_fast_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def loads(body: bytes) -> object:
        seen.append(body)
        return json.loads(body)

    monkeypatch.setattr(orjson, "loads", loads)
    plain = b'{"changes":["0000010000000007"],"publish":[{"pointer":"1480000000000000000"}]}'

    for body in (plain, b'{"a":1234567890123456789}', b"[1]", b'{"a":' + b"[" * 600):
        _read(parse_json, body)

    assert seen == [plain]


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
