"""Media types, bodies and queries (protocol §1)."""

import pytest

from kernel.requests_and_replies import body_encoding, read_object, read_query, reply_encoding
from tuff.protocol.errors import BadRequestError, UnsupportedMediaTypeError
from tuff.protocol.media_types import Encoding, MediaType


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
    assert body_encoding(content_type, body) == Encoding(found)


def test_a_body_without_a_type_is_json() -> None:
    assert body_encoding(None, b"{}") == Encoding(MediaType.JSON)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_a_body_of_another_type_is_refused(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaTypeError):
        body_encoding(content_type, b"x")


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
    assert reply_encoding(accept, asked_in=MediaType.AVRO) == Encoding(found)


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
