"""What a connection answers, in which order, and when it closes."""

import asyncio
import logging
import os
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from process import http_connection
from process.allowed_hosts import AllowedHosts
from process.http_connection import LIMITS_S, State
from process.open_connections import Connections
from process.request_parser import Fields, HeaderCache, RequestParser
from tests.process.served import REQUEST_BYTES_MAX, Served, connected, served, talk, turns, until

END = b"GET /v1/echo/end HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
FIRST = b"GET /v1/echo/first HTTP/1.1\r\nHost: x\r\n\r\n"
JSON = b"Content-Type: application/json\r\n"


def post(path: str, body: bytes, fields: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
    return head + fields + b"\r\n" + body


def get(path: str, fields: bytes = b"") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n".encode() + fields + b"\r\n"


SERVED = {
    "a body": post("/v1/echo/a", b'{"a": 1}', JSON),
    "no body": get("/v1/echo/a"),
    "a body of nothing": post("/v1/echo/a", b""),
    "a query": get("/v1/echo/a?wait=5&isolation=committed"),
    "an odd query": get("/v1/echo/a?a&b=&=c&&a=1&a=2"),
    "an empty query": get("/v1/echo/a?"),
    "both names": post("/v1/echo/a/deep", b"x"),
    "a fixed name before any": post("/v1/echo/fixed", b""),
    "dots": get("/v1/echo/..."),
    "other cases": post("/v1/echo/a", b"x", b"content-TYPE: a/b\r\nACCEPT: c/d ; q=0.5\r\n"),
    "spaces around a value": post("/v1/echo/a", b"x", b"Content-Type: \t a/b \r\n"),
    "a field of bytes": post("/v1/echo/a", b"x", b"Content-Type: \xe9\xff\r\n"),
    "zeros in bytes": post("/v1/echo/a", bytes(range(256))),
    "kept alive": get("/v1/echo/a", b"Connection: keep-alive\r\n"),
    "unknown connection": get("/v1/echo/a", b"Connection: x\r\n"),
    "a refusal": get("/v1/refused"),
    "an answer that waits": get("/v1/later"),
    "the largest body": post("/v1/echo/a", b"x" * REQUEST_BYTES_MAX),
    "forwarded": post("/v1/between/a", b"x", b"Tuff-Forwarded: 1\r\n"),
    "for a redirect": get("/v1/between/a", b"TUFF-redirect:1 \r\n"),
    "with a token": get("/v1/between/a", b"Authorization: Bearer x\r\n"),
    "of another value": get("/v1/between/a", b"Tuff-Forwarded: 0\r\nTuff-Redirect: true\r\n"),
}

# Refused, or of a form that few clients use.
OTHER = {
    "no host": b"GET /v1/echo/a HTTP/1.1\r\nAccept: */*\r\n\r\n",
    "no fields": b"GET /v1/echo/a HTTP/1.1\r\n\r\n",
    "nothing there": get("/v1/nothing"),
    "another method": post("/v1/large", b""),
    "a method that no route has": b"PATCH /v1/echo/a HTTP/1.1\r\nHost: x\r\n\r\n",
    "a head": b"HEAD /v1/echo/a HTTP/1.1\r\nHost: x\r\n\r\n",
    "options": b"OPTIONS /v1/echo/a HTTP/1.1\r\nHost: x\r\n\r\n",
    "an escape": get("/v1/echo/%41"),
    "an escape in the query": get("/v1/echo/a?a=%41+b"),
    "bytes in the path": b"GET /v1/echo/\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
    "an empty name": get("/v1/echo/"),
    "double slashes": get("//v1/echo/a"),
    "an absolute address": get("http://x/v1/echo/a"),
    "a fragment": get("/v1/echo/a#b"),
    "a fixed name with another method": get("/v1/echo/fixed"),
    "no way back from a fixed name": post("/v1/echo/fixed/deep", b"x"),
    "too large a body": post("/v1/echo/a", b"x" * (REQUEST_BYTES_MAX + 1)),
    "chunks": post("/v1/echo/a", b"3\r\nabc\r\n0\r\n\r\n", b"").replace(
        b"Content-Length: 13", b"Transfer-Encoding: chunked"
    ),
    "chunks and a length": post("/v1/echo/a", b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\n"),
    "an unknown coding": post("/v1/echo/a", b"x", b"Transfer-Encoding: x\r\n"),
    "expecting": post("/v1/echo/a", b"x", b"Expect: 100-continue\r\n"),
    "expecting the impossible": post("/v1/echo/a", b"x", b"Expect: x\r\n"),
    "an upgrade": get("/v1/echo/a", b"Connection: upgrade\r\nUpgrade: websocket\r\n"),
    "two lengths": post("/v1/echo/a", b"xyz", b"Content-Length: 3\r\n"),
    "two lengths that differ": post("/v1/echo/a", b"xyz", b"Content-Length: 1\r\n"),
    "no length": post("/v1/echo/a", b"", b"").replace(b"Content-Length: 0", b"Content-Length: x"),
    "a negative length": post("/v1/echo/a", b"").replace(b": 0", b": -1"),
    "a signed length": post("/v1/echo/a", b"xyz").replace(b": 3", b": +3"),
    "a huge length": post("/v1/echo/a", b"").replace(b": 0", b": " + b"9" * 30),
    "two types": post("/v1/echo/a", b"x", b"Content-Type: a/b\r\nContent-Type: c/d\r\n"),
    "two tokens": get("/v1/echo/a", b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"),
    "a folded field": post("/v1/echo/a", b"x", b"Content-Type: a/\r\n b\r\n"),
    "a space before the colon": post("/v1/echo/a", b"xyz", b"Content-Type : a/b\r\n"),
    "a field without a colon": get("/v1/echo/a", b"broken\r\n"),
    "a field without a name": get("/v1/echo/a", b": x\r\n"),
    "a bare line feed": get("/v1/echo/a", b"A: b\nContent-Length: 3\r\n"),
    "a bare return": get("/v1/echo/a", b"A: b\rContent-Length: 3\r\n"),
    "a zero in a field": get("/v1/echo/a", b"A: b\x00\r\n"),
    "a long field": get("/v1/echo/a", b"A: " + b"x" * 9_000 + b"\r\n"),
    "many fields": get("/v1/echo/a", b"A: b\r\n" * 200),
    "a long path": get("/v1/echo/" + "a" * 9_000),
    "HTTP 1.0": b"GET /v1/echo/a HTTP/1.0\r\n\r\n",
    "HTTP 1.0, kept": b"GET /v1/echo/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "HTTP 2.0": b"GET /v1/echo/a HTTP/2.0\r\n\r\n",
    "no version": b"GET /v1/echo/a\r\n\r\n",
    "two spaces": b"GET  /v1/echo/a HTTP/1.1\r\n\r\n",
    "small letters": b"get /v1/echo/a HTTP/1.1\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "a blank line first": b"\r\n" + get("/v1/echo/a"),
    "closing": END,
    "a foreign host": b"GET /v1/echo/a HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "a page of another site": get("/v1/echo/a", b"Sec-Fetch-Site: cross-site\r\n"),
    "a page of another origin": post("/v1/echo/a", b"x", b"Origin: http://evil.example\r\n"),
    "a compressed body": post("/v1/echo/a", b"x", b"Content-Encoding: gzip\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("request_bytes", SERVED.values(), ids=SERVED)
async def test_a_request_has_one_answer_however_it_arrives(
    server: Served, request_bytes: bytes
) -> None:
    first = await talk(server.port, request_bytes + END)

    again = await talk(server.port, request_bytes + END)
    in_pieces = await talk(server.port, *_halves(request_bytes), END)
    byte_by_byte = await talk(server.port, *_bytes_of(request_bytes), END)
    behind = await talk(server.port, FIRST, request_bytes + END)
    in_one_segment = await talk(server.port, FIRST + request_bytes + END)

    assert first.count(b"HTTP/1.1 ") == 2
    assert first == again == in_pieces == byte_by_byte
    before = await _first_reply(server)
    assert behind == in_one_segment == before + first


@pytest.mark.parametrize("request_bytes", OTHER.values(), ids=OTHER)
async def test_another_request_has_one_answer_however_it_arrives(
    server: Served, request_bytes: bytes
) -> None:
    first = await talk(server.port, request_bytes + END)

    again = await talk(server.port, request_bytes + END)
    behind = await talk(server.port, FIRST, request_bytes + END)

    assert first == again
    assert behind == await _first_reply(server) + first


async def _first_reply(server: Served) -> bytes:
    said = await talk(server.port, FIRST + END)
    return said[: said.index(b"HTTP/1.1 ", 1)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (b"", b"[false,false,null]"),
        (b"Tuff-Forwarded: 1\r\n", b"[true,false,null]"),
        (b"Tuff-Forwarded: 0\r\nTuff-Forwarded: 1\r\n", b"[true,false,null]"),
        (b"tuff-redirect: 1\r\n", b"[false,true,null]"),
        (b"Tuff-Forwarded: 0\r\nTuff-Redirect: yes\r\n", b"[false,false,null]"),
        (b"Authorization: Bearer x y\r\n", b'[false,false,"Bearer x y"]'),
    ],
)
async def test_a_request_says_what_matters_between_servers(
    server: Served, fields: bytes, expected: bytes
) -> None:
    said = await talk(server.port, post("/v1/between/a", b"x", fields) + END)

    assert said.split(b"\r\n\r\n")[1].startswith(expected)


NAMES = st.sampled_from(
    ["Content-Length", "content-length", "Transfer-Encoding", "Content-Type", "Accept",
     "Connection", "Expect", "Host", "X", "Upgrade", "Content-Encoding", "Content-Length ", "",
     "Trailer"]
)  # fmt: skip
VALUES = st.sampled_from(
    ["0", "1", "3", "03", "+3", "-1", "3, 3", "3 3", "0x3", "", "chunked", "identity", "gzip",
     "chunked, chunked", "xchunked", "close", "keep-alive", "Upgrade", "a/b", "100-continue",
     "x\ty"]
)  # fmt: skip
ENDS = st.sampled_from(["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r\n ", "\r", "\r\n\r\n"])
FIELDS = st.lists(
    st.tuples(NAMES, st.sampled_from([": ", ":", " : ", " "]), VALUES, ENDS), max_size=4
)
LINES = st.sampled_from(
    ["POST /v1/echo/a HTTP/1.1\r\n", "GET /v1/echo/a?x=1 HTTP/1.1\r\n", "PUT /v1/echo/a HTTP/1.1\n",
     "POST /v1/echo/a HTTP/1.0\r\n", "POST /v1/echo/fixed HTTP/1.1\r\n"]
)  # fmt: skip


@given(line=LINES, fields=FIELDS, data=st.data())
async def test_the_segments_of_a_request_do_not_change_where_it_ends(
    line: str, fields: list[tuple[str, ...]], data: st.DataObject
) -> None:
    """Otherwise one client could smuggle a request behind another's."""
    block = "".join("".join(field) for field in fields)
    request_bytes = f"{line}{block}\r\nxyz".encode("latin-1") + END
    middle = data.draw(st.integers(1, len(request_bytes) - 1))

    async with served() as server:
        whole = await talk(server.port, request_bytes)
        again = await talk(server.port, request_bytes)
        parts = await talk(server.port, request_bytes[:middle], request_bytes[middle:])

    assert whole == again
    assert _statuses(parts) == _statuses(whole)


def _statuses(said: bytes) -> list[bytes]:
    """Of errors, whether they are those of the client: a segment that begins with a method which
    does not exist is refused for that, and other garbage is not."""
    return [status[:1] for status in re.findall(rb"HTTP/1\.1 (\d+) ", said)]


@given(st.lists(st.binary(max_size=12), max_size=6), st.sampled_from([b"\r\n", b"\n", b"\r"]))
def test_no_field_has_a_line_feed(lines: list[bytes], end: bytes) -> None:
    """The cache of blocks of fields separates names and values by it."""
    seen: list[bytes] = []

    def read(block: Sequence[bytes]) -> Fields:
        seen.extend(block)
        return HeaderCache(AllowedHosts()).read(block)

    parser = RequestParser(max_request_bytes=9, read_fields=read)
    parser.feed(b"GET / HTTP/1.1\r\nA: b" + end + end.join(lines) + b"\r\n\r\n")
    parser.stop()

    assert not any(b"\n" in each for each in seen)


async def test_requests_in_one_segment_are_answered_in_their_order(server: Served) -> None:
    server.routes.go_on.set()
    requests = b"".join(
        post("/v1/slow" if number % 3 else "/v1/echo/a", b"%d" % number) for number in range(300)
    )

    said = await talk(server.port, requests + END)

    assert server.routes.asked == [b"%d" % number for number in range(300) if number % 3]
    assert said.count(b"HTTP/1.1 200 OK") == 301


async def test_a_request_behind_one_under_way_waits_for_it(server: Served) -> None:
    async with connected(server.port) as (reader, writer):
        writer.write(post("/v1/slow", b"1"))
        await until(lambda: server.routes.asked == [b"1"])

        writer.write(post("/v1/slow", b"2") + END)
        for _ in range(20):
            await asyncio.sleep(0)
        assert server.routes.asked == [b"1"]

        server.routes.go_on.set()
        said = await reader.read()
        assert said.index(b'"slow":"1"') < said.index(b'"slow":"2"')


async def test_a_client_that_sends_more_than_is_held_is_not_read(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "HELD_BYTES_MAX", 10_000)
    async with connected(server.port) as (reader, writer):
        writer.write(post("/v1/slow", b"1"))
        await until(lambda: server.routes.asked == [b"1"])
        (held,) = server.connections

        count, large = 300, post("/v1/echo/a", b"x" * REQUEST_BYTES_MAX)
        writer.write(large * count + END)
        await until(lambda: not held._transport.is_reading())
        assert held._held_bytes < count * len(large)
        server.routes.go_on.set()

        said = await reader.read()
        assert said.count(b"HTTP/1.1 200 OK") == count + 2


async def test_a_client_that_does_not_read_gets_no_more_replies(server: Served) -> None:
    async with connected(server.port) as (reader, writer):
        writer.write(get("/v1/large") * 3)
        await until(lambda: any(each._is_paused for each in server.connections))
        (slow,) = server.connections
        while slow._parser.queue:  # what came at first is served; the rest comes while it is paused
            await reader.readexactly(1 << 20)
        await until(lambda: slow._is_paused)
        for _ in range(20):
            writer.write(get("/v1/large"))
            await asyncio.sleep(0)
        await until(lambda: len(slow._parser.queue) == 20)
        assert slow._transport.get_write_buffer_size() < 2 * (8 << 20)

        for _ in range(3):  # it goes on when the client does
            await reader.readexactly(8 << 20)
        assert len(slow._parser.queue) < 20


async def test_a_bug_is_answered_and_logged_and_the_connection_goes_on(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        said = await talk(server.port, get("/v1/bug") + END)

    assert b'"code": "internal"' in said
    assert said.count(b"HTTP/1.1 ") == 2
    (record,) = caplog.records
    assert (record.message, record.code) == ("bug 1 in GET /v1/bug", "bug")


async def test_a_request_runs_on_when_its_client_disconnects(server: Served) -> None:
    async with connected(server.port) as (_, writer):
        writer.write(post("/v1/slow", b"1"))
        await until(lambda: server.routes.asked == [b"1"])
        writer.close()
        await until(lambda: server.count == 0)
        assert server.admission.under_way == 1

        server.routes.go_on.set()

        await until(lambda: server.admission.under_way == 0)


async def test_a_read_ends_when_its_client_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("process.admission_and_dispatch._ENDS_WITH_CONNECTION", {"POST /v1/slow"})
    async with served() as server, connected(server.port) as (_, writer):
        writer.write(post("/v1/slow", b"1"))
        await until(lambda: server.routes.asked == [b"1"])
        assert server.admission.under_way == 1

        writer.close()

        await until(lambda: server.admission.under_way == 0)
        assert not server.routes.go_on.is_set()


async def test_a_close_waits_for_the_request_under_way_and_for_no_other(server: Served) -> None:
    port = server.port
    async with connected(port) as (reader, writer), connected(port) as (idle_reader, _):
        writer.write(post("/v1/slow", b"1") + post("/v1/slow", b"2"))
        await until(lambda: server.routes.asked == [b"1"])

        closing = asyncio.ensure_future(server.listener.close(within_s=60))
        assert await idle_reader.read() == b""
        server.routes.go_on.set()

        assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 1
        await closing
        assert server.routes.asked == [b"1"]


async def test_a_request_that_arrives_during_a_close_is_answered(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle connections were closed at once, and what came then was lost."""
    over = asyncio.Event()
    monkeypatch.setattr(Connections, "last_requests", lambda _connections: over.wait())
    async with connected(server.port) as (reader, writer):
        writer.write(get("/v1/echo/a"))
        await reader.readuntil(b'""]')

        closing = asyncio.ensure_future(server.listener.close(within_s=60))
        await turns()
        writer.write(get("/v1/echo/b"))

        said = await reader.read()
        over.set()
        await closing
    assert said.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in said


@pytest.mark.parametrize("ends", ["close", "_check"])
async def test_a_connection_is_not_closed_while_a_request_waits_to_be_read(
    server: Served, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Its client could not know whether it was executed."""
    async with connected(server.port) as (reader, writer):
        writer.write(get("/v1/echo/a"))
        await reader.readuntil(b'""]')
        (held,) = server.connections
        monkeypatch.setitem(LIMITS_S, State.IDLE, 0.0)
        client = writer.get_extra_info("socket")
        os.write(client.fileno(), get("/v1/echo/b"))  # the loop has no turn to read it

        getattr(held, ends)()

        said = await reader.read()
    assert said.endswith(b'""]')
    assert b"\r\nConnection: close\r\n" in said


async def test_a_close_cancels_a_request_that_does_not_end(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("process.listener.CLOSE_S_MIN", 0.01)
    async with connected(server.port) as (reader, writer):
        writer.write(post("/v1/slow", b"1"))
        await until(lambda: server.routes.asked == [b"1"])

        await server.listener.close(within_s=0)

        assert await reader.read() == b""
        assert server.admission.under_way == 0


async def test_an_idle_connection_is_closed_and_one_with_a_request_is_not(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(server.port) as (reader, writer):
        writer.write(post("/v1/slow", b"1"))
        await until(lambda: server.routes.asked == [b"1"])
        (held,) = server.connections
        monkeypatch.setitem(LIMITS_S, State.IDLE, 0.0)
        held._check()
        assert not held._transport.is_closing()

        server.routes.go_on.set()
        await reader.readuntil(b"}")
        held._check()
        assert await reader.read() == b""


async def test_a_body_that_comes_slowly_is_taken(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_bytes = post("/v1/echo/a", b"xyz")
    async with connected(server.port) as (reader, writer):
        writer.write(request_bytes[:-2])
        await until(lambda: any(each._state is State.BODY for each in server.connections))
        (held,) = server.connections
        since_s = held._since_s
        writer.write(request_bytes[-2:-1])
        await until(lambda: held._since_s > since_s)  # a byte moves the limit
        held._check()
        writer.write(request_bytes[-1:] + END)

        assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 2


async def test_a_body_that_its_client_never_sends_leaves_no_request_under_way(
    server: Served,
) -> None:
    async with connected(server.port) as (_, writer):
        writer.write(post("/v1/echo/a", b"xyz")[:-1])
        await until(lambda: server.admission.under_way == 1)

    await until(lambda: server.count == 0)
    assert server.admission.under_way == 0


@pytest.mark.parametrize("path", ["/health/live", "/metrics"])
async def test_a_probe_is_answered_under_any_load_and_while_the_server_stops(
    server: Served, path: str
) -> None:
    server.admission.under_way = 100
    loaded = await _statuses_of(path, server.port)
    server.admission.stop()
    stopping = await _statuses_of(path, server.port)

    assert loaded == ["200", "200", "429"]
    assert stopping == ["200", "200", "503"]


async def _statuses_of(path: str, port: int) -> list[str]:
    said = await talk(port, get(path) + f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() + END)
    return re.findall(r"HTTP/1\.1 (\d+) ", said.decode())


async def test_requests_are_counted_by_their_routes(server: Served) -> None:
    await talk(server.port, SERVED["both names"] + get("/v1/refused") + END)
    text, _ = server.metrics.text([])

    for operation in ("POST /v1/{kind}/{name}/deep", "GET /v1/refused", "GET /v1/echo/{name}"):
        line = f'tuff_request_seconds_count{{operation="{operation}"'.encode()
        assert _figure(text, line) == 1


def _figure(text: bytes, start: bytes) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return float(line.split()[-1])


async def test_open_connections_are_limited(server: Served) -> None:
    async with AsyncExitStack() as held:
        streams = [await held.enter_async_context(connected(server.port)) for _ in range(5)]
        for reader, writer in streams[:3]:
            writer.write(FIRST)
            await reader.readuntil(b"\r\n\r\n")

        one_too_many = await talk(server.port, get("/v1/echo/a"))

        assert one_too_many.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert b"server.max_connections=5" in one_too_many


def _halves(request_bytes: bytes) -> list[bytes]:
    """The head, and the body in two pieces."""
    start = request_bytes.index(b"\r\n\r\n") + 4
    middle = (start + len(request_bytes)) // 2
    pieces = [request_bytes[:start], request_bytes[start:middle], request_bytes[middle:]]
    return [piece for piece in pieces if piece]


def _bytes_of(request_bytes: bytes) -> list[bytes]:
    """A head byte by byte; the body is one piece."""
    start = request_bytes.index(b"\r\n\r\n") + 4
    pieces = [bytes([each]) for each in request_bytes[:start]]
    return [*pieces, request_bytes[start:]] if request_bytes[start:] else pieces
