"""Requests that can't be read are problem documents and occupy no slot (protocol §1)."""

import asyncio
import json
import logging
import re
from contextlib import suppress

import pytest

from process.http_connection import LIMITS_S, State
from tests.process.served import Served, connected, talk, turns, until

CHUNKED = b"Transfer-Encoding: chunked\r\n"
GET = b"GET /v1/echo/a HTTP/1.1\r\n"
END = GET + b"Host: x\r\nConnection: close\r\n\r\n"


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
    "no length": (post("/v1/echo/a", b"Content-Length: abc\r\n"), 400, "Content-Length"),
    "chunks and a length": (post("/v1/echo/a", b"Content-Length: 1\r\n" + CHUNKED), 400, "Length"),
    "a chunk of no size": (post("/v1/echo/a", CHUNKED, b"zz\r\n"), 400, "chunk size"),
    "no host": (GET + b"\r\n", 400, "Host"),
    "a field without a colon": (GET + b"Host: x\r\nbroken\r\n\r\n", 400, "header token"),
    "an expectation": (post("/v1/echo/a", b"Expect: magic\r\n"), 400, "magic"),
    "an expectation where nothing is": (post("/nowhere", b"Expect: magic\r\n"), 400, "magic"),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "status", "named"), UNREADABLE.values(), ids=UNREADABLE)
async def test_an_unreadable_request_is_a_problem_document_and_closes_the_connection(
    server: Served, caplog: pytest.LogCaptureFixture, sent: bytes, status: int, named: str
) -> None:
    """It was a plain text, with a stack trace in the log."""
    with caplog.at_level(logging.INFO):
        said = await talk(server.port, sent)

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


async def test_a_broken_chunk_ends_its_request(server: Served) -> None:
    """The request was not answered, and counted as under way until its client disconnected."""
    async with connected(server.port) as (reader, writer):
        writer.write(post("/v1/echo/a", CHUNKED, b"3\r\nabc\r\n"))
        await until(lambda: server.admission.under_way == 1)

        writer.write(b"zz\r\n")

        assert _problems(await reader.read()) == [(400, "bad_request")]
        assert server.admission.under_way == 0


async def test_a_broken_chunk_ends_a_request_that_waits_behind_another(server: Served) -> None:
    async with connected(server.port) as (reader, writer):
        writer.write(post("/v1/slow", CHUNKED, b"1\r\n1\r\n0\r\n\r\n"))
        await until(lambda: server.routes.asked == [b"1"])
        writer.write(post("/v1/echo/a", CHUNKED, b"3\r\nabc\r\n"))
        await turns()
        writer.write(b"zz\r\n")
        await turns()

        server.routes.go_on.set()

        first, _, second = (await reader.read()).partition(b'{"slow":"1"}')
        assert first.startswith(b"HTTP/1.1 200 OK\r\n")
        assert _problems(second) == [(400, "bad_request")]


async def test_garbage_behind_a_whole_request_is_refused_after_its_reply(server: Served) -> None:
    async with connected(server.port) as (reader, writer):
        writer.write(post("/v1/slow", CHUNKED, b"1\r\n1\r\n0\r\n\r\n"))
        await until(lambda: server.routes.asked == [b"1"])
        writer.write(post("/v1/slow", CHUNKED, b"1\r\n2\r\n0\r\n\r\n"))
        await turns()
        writer.write(b"garbage\r\n\r\n")
        await turns()

        server.routes.go_on.set()

        *served_before, refused = _replies(await reader.read())
        assert [each[:15] for each in served_before] == [b"HTTP/1.1 200 OK"] * 2
        assert server.routes.asked == [b"1", b"2"]
        assert _problems(refused) == [(400, "bad_request")]


async def test_an_upload_that_stalls_is_given_up(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as a request under way for ever."""
    monkeypatch.setitem(LIMITS_S, State.BODY, 0.01)
    for begun in (
        post("/v1/echo/a", CHUNKED, b"3\r\nabc\r\n"),
        post("/v1/echo/a", b"Content-Length: 300\r\n", b"abc"),
    ):
        said = await talk(server.port, begun)

        assert _problems(said) == [(400, "bad_request")]
        assert b"after 3 bytes" in said
        assert server.admission.under_way == 0


async def test_a_second_token_is_refused(server: Served) -> None:
    fields = b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"

    said = await talk(server.port, post("/v1/echo/a", fields))

    assert _problems(said) == [(400, "bad_request")]
    assert b"2 Authorization fields; send one" in said


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "zstd", "deflate", "foo", "gzip, gzip"])
async def test_a_content_coding_is_refused_by_its_name(server: Served, coding: str) -> None:
    """What was no gzip was a bug of the server's, a gzip cut short counted as no body, and an
    unknown coding as none at all."""
    fields = f"Content-Encoding: {coding}\r\nContent-Length: 3\r\n".encode()

    said = await talk(server.port, post("/v1/echo/a", fields, b"abc") + END)

    refusal, answer = _replies(said)
    assert _problems(refusal) == [(415, "unsupported_media_type")]
    assert coding in json.loads(refusal.partition(b"\r\n\r\n")[2])["detail"]
    assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_identity_is_no_content_coding(server: Served) -> None:
    fields = b"Content-Encoding: identity\r\nContent-Length: 3\r\n"

    said = await talk(server.port, post("/v1/echo/a", fields, b"abc") + END)

    assert said.count(b"HTTP/1.1 200 OK") == 2
    assert b"abc".hex().encode() in said


HEAD = b"HEAD /v1/echo/a HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"GET /v1/large HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_close_cuts_no_reply_that_is_being_read(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut a second after the stop."""
    monkeypatch.setattr("process.listener.CLOSE_S_MIN", 0.01)
    port = server.port
    async with connected(port) as (reader, writer), connected(port) as (idle_reader, idle_writer):
        idle_writer.write(HEAD)
        await idle_reader.readuntil(b"\r\n\r\n")
        writer.write(LARGE)
        await reader.readuntil(b"200 OK\r\n")

        closing = asyncio.ensure_future(server.listener.close(within_s=60))
        assert await idle_reader.read() == b""
        ended, _ = await asyncio.wait({closing}, timeout=0.1)  # ten times what there is at least
        assert not ended

        assert (await reader.read()).endswith(b"x" * (8 << 20))
        await closing


async def test_a_close_aborts_a_client_that_reads_nothing(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("process.listener.CLOSE_S_MIN", 0.01)
    async with connected(server.port) as (reader, writer):
        writer.write(HEAD + LARGE)
        await reader.readuntil(b"200 OK\r\n")

        await server.listener.close(within_s=0)

        with suppress(ConnectionError):
            assert len(await reader.read()) < 8 << 20


async def test_http_1_0_is_answered_and_the_connection_closes(server: Served) -> None:
    said = await talk(server.port, b"GET /v1/echo/a HTTP/1.0\r\n\r\n")

    assert said.startswith(b"HTTP/1.1 200 OK\r\nConnection: close\r\n")


async def test_an_upgrade_that_is_not_offered_is_answered_and_http_goes_on(server: Served) -> None:
    upgrade = GET + b"Host: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"

    said = await talk(server.port, upgrade + END)

    assert said.count(b"HTTP/1.1 200 OK") == 2


async def test_a_body_is_asked_for_only_when_the_request_is_admitted(server: Served) -> None:
    """A client that waits for `100 Continue` does not upload what is refused."""
    expecting = b"Expect: 100-continue\r\nContent-Length: 3\r\n"
    async with connected(server.port) as (reader, writer):
        writer.write(post("/v1/echo/a", expecting))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc" + END)
        assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 2
    server.admission.stop()
    async with connected(server.port) as (reader, writer):
        writer.write(post("/v1/echo/a", expecting))
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 503 ")


async def test_a_body_that_is_declared_too_large_is_not_asked_for(server: Served) -> None:
    for length in (2_000_000, 10 << 30):
        expecting = f"Expect: 100-continue\r\nContent-Length: {length}\r\n".encode()
        async with connected(server.port) as (reader, writer):
            writer.write(post("/v1/echo/a", expecting))
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413 ")


async def test_the_rest_of_a_refused_body_is_dropped_for_a_while(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = post("/v1/echo/a", CHUNKED, b"bb8\r\n" + bytes(3000) + b"\r\n")
    more = b"100000\r\n" + bytes(1 << 20) + b"\r\n"  # more than is held of a request that waits
    async with connected(server.port) as (reader, writer):
        writer.write(begun)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413 ")
        writer.write(more + b"1\r\na\r\n0\r\n\r\n" + END)
        assert b"HTTP/1.1 200 OK" in await reader.read()
    monkeypatch.setitem(LIMITS_S, State.DISCARDING, 0.01)

    assert _problems(await talk(server.port, begun)) == [(413, "request_too_large")]


async def test_a_head_without_end_is_refused(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("process.request_parser.HEAD_BYTES_MAX", 1_000)
    async with connected(server.port) as (reader, writer):
        writer.write(GET)
        await turns()
        writer.write(b"A: " + b"a" * 1_000)
        assert b"longer than 1000 bytes" in await reader.read()


@pytest.mark.parametrize(
    "begun",
    [GET, GET + b"Host: x\r\nA: a", b"GE"],
    ids=["of one line", "in a field", "in a method"],
)
async def test_a_head_that_takes_too_long_is_refused(
    server: Served, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """Its connection stayed for as long as the client sent a byte now and then."""
    monkeypatch.setitem(LIMITS_S, State.HEAD, 0.01)

    said = await talk(server.port, begun)

    assert _problems(said) == [(400, "bad_request")]
    assert b"not complete after 0.01 seconds" in said
    assert b"Connection: close\r\n" in said
    await until(lambda: server.count == 0)


async def test_the_time_for_a_head_does_not_run_behind_a_request_under_way(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(server.port) as (reader, writer):
        writer.write(HEAD + post("/v1/slow", b"Content-Length: 1\r\n", b"1") + GET)
        await until(lambda: server.routes.asked == [b"1"])
        (connection,) = server.connections
        monkeypatch.setitem(LIMITS_S, State.HEAD, 0.0)
        connection._check()
        writer.write(b"Host: x\r\nConnection: close\r\n\r\n")
        await until(lambda: len(connection._parser.queue) == 1)

        server.routes.go_on.set()

        said = await reader.read()
        assert re.findall(rb"HTTP/1\.1 (\d+) ", said) == [b"405", b"200", b"200"]


async def test_no_request_begins_behind_the_last_reply(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that read a large reply to its end let the next request begin, although the
    connection was closing."""
    async with connected(server.port) as (reader, writer):
        writer.write(HEAD)
        await reader.readuntil(b"\r\n\r\n")
        (slow,) = server.connections
        slow.end_with_reply()
        writer.write(LARGE + post("/v1/slow", b"Content-Length: 1\r\n", b"1"))

        assert (await reader.read()).endswith(b"x" * (8 << 20))
        await until(lambda: server.count == 0)

    assert server.routes.asked == []


def _replies(said: bytes) -> list[bytes]:
    return re.split(rb"(?=HTTP/1\.1 \d{3} )", said)[1:]


def _problems(said: bytes) -> list[tuple[int, str]]:
    found = []
    for reply in _replies(said):
        problem = json.loads(reply.partition(b"\r\n\r\n")[2])
        assert reply.startswith(b"HTTP/1.1 %d " % problem["status"])
        found.append((problem["status"], problem["code"]))
    return found


async def test_a_trailer_behind_the_chunks_changes_no_header_field(server: Served) -> None:
    fields = CHUNKED + b"Connection: close\r\n"
    body = b"1\r\na\r\n0\r\nContent-Type: application/json\r\nHost: y\r\n\r\n"

    said = await talk(server.port, post("/v1/echo/a", fields, body))

    head, _, echoed = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(echoed) == [{"name": "a"}, [], None, None, "61"]


async def test_a_trailer_without_end_is_refused(server: Served) -> None:
    begun = post("/v1/echo/a", CHUNKED, b"1\r\na\r\n0\r\nA: ")

    said = await talk(server.port, begun, b"a" * 200_000)

    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"the trailer of the request is longer than 131072 bytes" in said
