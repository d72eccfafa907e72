"""What the HTTP library can't read is refused as all else, and keeps no place (protocol §1)."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from tests.process.laned import Served, connected, served, talk

CHUNKED = b"Transfer-Encoding: chunked\r\n"
GET = b"GET /v1/echo/a HTTP/1.1\r\n"
END = GET + b"Host: x\r\nConnection: close\r\n\r\n"


@pytest.fixture
async def both() -> AsyncIterator[Served]:
    async with served() as made:
        yield made


def post(path: str, fields: bytes, body: bytes = b"") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + fields + b"\r\n" + body


UNREADABLE = {
    "an unknown method": (b"FROB /v1/echo/a HTTP/1.1\r\nHost: x\r\n\r\n", 405, "FROB"),
    "a method in small letters": (b"get /v1/echo/a HTTP/1.1\r\nHost: x\r\n\r\n", 405, "get"),
    "no method": (b"G@T /v1/echo/a HTTP/1.1\r\nHost: x\r\n\r\n", 400, "G@T"),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400, "HTTPS"),
    "bytes in the address": (b"GET /v1/echo/\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400, "\\u00ff"),
    "a long address": (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400, "8190"),
    "a long field": (GET + b"Host: x\r\nA: " + b"a" * 9_000 + b"\r\n\r\n", 400, "8190"),
    "two types": (post("/v1/echo/a", b"Content-Type: a/b\r\n" * 2), 400, "Content-Type"),
    "two lengths": (post("/v1/echo/a", b"Content-Length: 1\r\n" * 2), 400, "Content-Length"),
    "no length": (post("/v1/echo/a", b"Content-Length: abc\r\n"), 400, "abc"),
    "chunks and a length": (post("/v1/echo/a", b"Content-Length: 1\r\n" + CHUNKED), 400, "chunked"),
    "a chunk of no size": (post("/v1/echo/a", CHUNKED, b"zz\r\n"), 400, "zz"),
    "no host": (GET + b"\r\n", 400, "Host"),
    "a field without a colon": (GET + b"Host: x\r\nbroken\r\n\r\n", 400, "broken"),
    "an expectation": (post("/v1/echo/a", b"Expect: magic\r\n"), 400, "magic"),
    "an expectation where nothing is": (post("/nowhere", b"Expect: magic\r\n"), 400, "magic"),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "status", "named"), UNREADABLE.values(), ids=UNREADABLE)
async def test_what_can_not_be_read_is_a_problem_document_and_the_end(
    both: Served, caplog: pytest.LogCaptureFixture, sent: bytes, status: int, named: str
) -> None:
    """It was a text of the library's, with a stack trace in the log."""
    with caplog.at_level(logging.INFO):
        said = await talk(both.lane_port, sent)

    head, _, body = said.partition(b"\r\n\r\n")
    problem = json.loads(body)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Content-Type: application/problem+json\r\n" in head
    assert b"Connection: close\r\n" in head
    assert head.endswith(b"Server: tuff")
    assert (b"Allow: DELETE, GET, POST, PUT\r\n" in head) == (status == 405)
    assert problem["code"] == {400: "bad_request", 405: "method_not_allowed"}[status]
    assert named in problem["detail"]
    assert caplog.text == ""


async def test_a_chunk_that_comes_broken_later_ends_its_request(both: Served) -> None:
    """Nobody was answered, and the request counted as one under way until its client hung up."""
    async with connected(both.lane_port) as (reader, writer):
        writer.write(post("/v1/echo/a", CHUNKED, b"3\r\nabc\r\n"))
        await _until(lambda: both.admission.under_way == 1)

        writer.write(b"zz\r\n")

        assert _problems(await reader.read()) == [(400, "bad_request")]
        assert both.admission.under_way == 0


async def test_a_broken_chunk_ends_a_request_that_waits_behind_another(both: Served) -> None:
    async with connected(both.lane_port) as (reader, writer):
        writer.write(post("/v1/slow", CHUNKED, b"1\r\n1\r\n0\r\n\r\n"))
        await _until(lambda: both.routes.asked == [b"1"])
        writer.write(post("/v1/echo/a", CHUNKED, b"3\r\nabc\r\n"))
        await _turns()
        writer.write(b"zz\r\n")
        await _turns()

        both.routes.go_on.set()

        first, _, second = (await reader.read()).partition(b'{"slow":"1"}')
        assert first.startswith(b"HTTP/1.1 200 OK\r\n")
        assert _problems(second) == [(400, "bad_request")]


async def test_garbage_behind_a_whole_request_does_it_no_harm(both: Served) -> None:
    async with connected(both.lane_port) as (reader, writer):
        writer.write(post("/v1/slow", CHUNKED, b"1\r\n1\r\n0\r\n\r\n"))
        await _until(lambda: both.routes.asked == [b"1"])
        writer.write(post("/v1/slow", CHUNKED, b"1\r\n2\r\n0\r\n\r\n"))
        await _turns()
        writer.write(b"garbage\r\n\r\n")
        await _turns()

        both.routes.go_on.set()

        *served_before, refused = _replies(await reader.read())
        assert [each[:15] for each in served_before] == [b"HTTP/1.1 200 OK"] * 2
        assert both.routes.asked == [b"1", b"2"]
        assert _problems(refused) == [(400, "bad_request")]


async def test_an_upload_that_stalls_is_given_up(
    both: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as a request under way for ever."""
    monkeypatch.setattr("process.application.UPLOAD_QUIET_S_MAX", 0.01)
    for begun in (
        post("/v1/echo/a", CHUNKED, b"3\r\nabc\r\n"),
        post("/v1/echo/a", b"Content-Length: 3000000\r\n", b"abc"),
    ):
        said = await talk(both.lane_port, begun)

        assert _problems(said) == [(400, "bad_request")]
        assert b"after 3 bytes" in said
        assert both.admission.under_way == 0


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "zstd", "deflate", "foo", "gzip, gzip"])
async def test_a_content_coding_is_refused_by_its_name(both: Served, coding: str) -> None:
    """What was no gzip was a bug of the server's, a gzip cut short counted as no body, and an
    unknown coding as none at all."""
    fields = f"Content-Encoding: {coding}\r\nContent-Length: 3\r\n".encode()

    said = await talk(both.lane_port, post("/v1/echo/a", fields, b"abc") + END)

    refusal, answer = _replies(said)
    assert _problems(refusal) == [(415, "unsupported_media_type")]
    assert coding in json.loads(refusal.partition(b"\r\n\r\n")[2])["detail"]
    assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_identity_is_no_content_coding(both: Served) -> None:
    fields = b"Content-Encoding: identity\r\nContent-Length: 3\r\n"

    said = await talk(both.lane_port, post("/v1/echo/a", fields, b"abc") + END)

    assert said.count(b"HTTP/1.1 200 OK") == 2
    assert b"abc".hex().encode() in said


HEAD = b"HEAD /v1/echo/a HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"GET /v1/large HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("first", [b"", HEAD], ids=["in the lane", "behind it"])
async def test_a_close_cuts_no_reply_that_is_being_read(
    both: Served, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """It was cut a second after the stop, or as soon as the library had it in its buffer."""
    monkeypatch.setattr("process.http.CLOSE_S_MIN", 0.01)
    port = both.lane_port
    async with connected(port) as (reader, writer), connected(port) as (idle_reader, idle_writer):
        idle_writer.write(HEAD)
        await idle_reader.readuntil(b"\r\n\r\n")
        writer.write(first + LARGE)
        await reader.readuntil(b"200 OK\r\n")

        closing = asyncio.ensure_future(both.listener.close(within_s=60))
        assert await idle_reader.read() == b""
        ended, _ = await asyncio.wait({closing}, timeout=0.1)  # ten times what there is at least
        assert not ended

        assert (await reader.read()).endswith(b"x" * (8 << 20))
        await closing


async def test_a_close_gives_up_who_reads_nothing(
    both: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("process.http.CLOSE_S_MIN", 0.01)
    async with connected(both.lane_port) as (reader, writer):
        writer.write(HEAD + LARGE)
        await reader.readuntil(b"200 OK\r\n")

        await both.listener.close(within_s=0)

        with suppress(ConnectionError):
            assert len(await reader.read()) < 8 << 20


def _replies(said: bytes) -> list[bytes]:
    return re.split(rb"(?=HTTP/1\.1 \d{3} )", said)[1:]


def _problems(said: bytes) -> list[tuple[int, str]]:
    found = []
    for reply in _replies(said):
        problem = json.loads(reply.partition(b"\r\n\r\n")[2])
        assert reply.startswith(b"HTTP/1.1 %d " % problem["status"])
        found.append((problem["status"], problem["code"]))
    return found


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")
