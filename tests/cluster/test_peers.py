"""Requests to other servers are sent once, and a caller learns whether one may have been executed
(decision 0042)."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster import peers as peers_module
from cluster.peers import PeerRefusedError, Peers, PeerUnansweredError
from kernel.requests_and_replies import Reply, Request
from tests.cluster.nodes import Spawned
from tests.cluster.raw_server import (
    OK,
    RawServer,
    answer,
    closed_url,
    hang_up,
    raw_server,
    saying,
    wait,
)
from tests.process.served import until
from tuff.protocol.errors import TopicNotFoundError, TuffError

EMPTY = Request({}, (), None, None, b"")
WITHIN_S = 60.0
SHORT_S = 1.0  # a connection is made in it, also on a busy machine


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    spawned = Spawned()
    made = Peers(spawn=spawned)
    yield made
    await made.close()
    await asyncio.gather(*spawned.tasks, return_exceptions=True)


def head_of(request: bytes) -> tuple[bytes, set[bytes]]:
    """The first line, and the header fields."""
    line, *fields = request.partition(b"\r\n\r\n")[0].split(b"\r\n")
    return line, set(fields)


async def test_the_owner_gets_what_the_client_sent_and_nothing_else(peers: Peers) -> None:
    request = Request({}, (), "avro/binary", "a/b; q=0.5", b"xyz", authorization="Bearer t")
    async with raw_server(answer) as owner:
        for sent in (request, EMPTY):
            await peers.forward(owner.url, "POST", "/v1/a%2Fb?c=%C3%A9+d", sent, within_s=WITHIN_S)

        host = b"Host: " + owner.url.removeprefix("http://").encode()
        assert head_of(owner.heard[0]) == (
            b"POST /v1/a%2Fb?c=%C3%A9+d HTTP/1.1",
            {host, b"Tuff-Forwarded: 1", b"Content-Type: avro/binary", b"Accept: a/b; q=0.5",
             b"Authorization: Bearer t", b"Content-Length: 3"},
        )  # fmt: skip
        assert owner.heard[0].endswith(b"\r\n\r\nxyz")
        assert head_of(owner.heard[1])[1] == {host, b"Tuff-Forwarded: 1", b"Content-Length: 0"}


async def test_the_client_gets_what_the_owner_answered_and_who_it_is(peers: Peers) -> None:
    reply = (
        b"HTTP/1.1 429 Too Many Requests\r\nServer: tuff\r\nDate: x\r\nConnection: keep-alive\r\n"
        b"Retry-After: 1\r\nTuff-Next: 00\r\nContent-Length: 3\r\nContent-Type: a/b; c=d\r\n"
        b"Content-Encoding: gzip\r\n\r\nxyz"
    )
    async with raw_server(saying(reply)) as owner:
        got = await peers.forward(owner.url, "GET", "/", EMPTY, within_s=WITHIN_S)

    assert got == Reply(
        429,
        "a/b; c=d",
        b"xyz",
        (
            ("Retry-After", "1"),
            ("Tuff-Next", "00"),
            ("Content-Encoding", "gzip"),
            ("Tuff-Owner", owner.url),
        ),
    )


async def test_a_redirect_is_returned_and_not_followed(peers: Peers) -> None:
    moved = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"
    async with raw_server(saying(moved)) as owner:
        got = await peers.forward(owner.url, "GET", "/a", EMPTY, within_s=WITHIN_S)

        assert (got.status, len(owner.heard)) == (307, 1)


async def test_bytes_that_are_no_text_reach_the_owner_as_replacement_characters(
    peers: Peers,
) -> None:
    odd = EMPTY._replace(content_type=b"a/\xff".decode("utf-8", "surrogateescape"))
    async with raw_server(answer) as owner:
        await peers.forward(owner.url, "POST", "/", odd, within_s=WITHIN_S)

        assert "Content-Type: a/\ufffd".encode() in owner.heard[0]


async def test_a_server_that_does_not_listen_received_nothing(peers: Peers) -> None:
    with pytest.raises(PeerUnansweredError, match="can't be reached") as caught:
        await peers.forward(await closed_url(), "POST", "/", EMPTY, within_s=WITHIN_S)

    assert not caught.value.was_sent


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
async def test_a_request_that_is_lost_on_a_kept_connection_is_sent_once(
    peers: Peers, method: str
) -> None:
    """aiohttp would send all of these but the last one again."""
    async with raw_server(answer, hang_up, answer) as owner:
        await peers.forward(owner.url, "GET", "/first", EMPTY, within_s=WITHIN_S)

        with pytest.raises(PeerUnansweredError, match="was lost before it answered") as caught:
            await peers.forward(owner.url, method, "/second", EMPTY, within_s=WITHIN_S)

        assert caught.value.was_sent
        assert [head_of(each)[0].split()[1] for each in owner.heard] == [b"/first", b"/second"]


async def test_a_write_may_have_been_executed_by_a_server_that_ended(peers: Peers) -> None:
    """A second attempt would find nothing that listens, as if nothing had been sent."""

    async def end(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()
        writer.close()

    owner = RawServer(answer, end)
    server = await asyncio.start_server(owner.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await peers.forward(url, "GET", "/first", EMPTY, within_s=WITHIN_S)

    with pytest.raises(PeerUnansweredError, match="was lost before it answered") as caught:
        await peers.forward(url, "PUT", "/second", EMPTY, within_s=WITHIN_S)

    assert caught.value.was_sent


async def test_a_write_uses_no_connection_that_the_owner_has_closed(peers: Peers) -> None:
    """The owner closes it while the event loop is busy."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(WITHIN_S)
    first_is_answered = threading.Event()

    def serve() -> None:
        first, _ = listening.accept()
        first.recv(65_536)
        first.sendall(OK)
        first_is_answered.wait(WITHIN_S)
        first.close()

    def serve_again() -> None:
        with listening.accept()[0] as second:
            second.recv(65_536)
            second.sendall(OK)

    with listening, ThreadPoolExecutor(1) as thread:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        serving = thread.submit(serve)
        await peers.forward(url, "POST", "/", EMPTY, within_s=WITHIN_S)

        first_is_answered.set()
        serving.result(WITHIN_S)  # blocks the loop
        thread.submit(serve_again)
        got = await peers.forward(url, "POST", "/", EMPTY, within_s=WITHIN_S)

        assert got.body == b"ok"


async def test_an_answer_that_takes_too_long_leaves_the_outcome_open(peers: Peers) -> None:
    async with raw_server(wait) as owner:
        with pytest.raises(PeerUnansweredError) as caught:
            await peers.forward(owner.url, "POST", "/", EMPTY, within_s=SHORT_S)

        assert caught.value.was_sent
        await until(lambda: owner.closed_count == 1)


async def test_polls_that_wait_keep_no_write_out(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "CONNECTIONS_COUNT_MAX", 1)
    monkeypatch.setattr(peers_module, "CONNECT_S_MAX", SHORT_S)
    async with raw_server(wait, answer) as owner:
        poll = peers.forward(owner.url, "POST", "/poll", EMPTY, within_s=WITHIN_S, waits=True)
        polling = asyncio.get_running_loop().create_task(poll)
        await until(lambda: len(owner.heard) == 1)

        written = await peers.forward(owner.url, "POST", "/", EMPTY, within_s=WITHIN_S)
        with pytest.raises(PeerUnansweredError) as caught:
            await peers.forward(owner.url, "POST", "/poll", EMPTY, within_s=WITHIN_S, waits=True)

        assert written.body == b"ok"
        assert not caught.value.was_sent  # there was no free connection
        assert peers.polls_count == 1
        polling.cancel()
        await until(lambda: owner.closed_count == 1)
        assert peers.polls_count == 0


async def test_writes_of_clients_that_wait_keep_no_call_of_this_server_out(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "CONNECTIONS_COUNT_MAX", 1)
    monkeypatch.setattr(peers_module, "CONNECT_S_MAX", SHORT_S)
    async with raw_server(wait, answer) as other:
        write = peers.forward(other.url, "POST", "/", EMPTY, within_s=WITHIN_S)
        writing = asyncio.get_running_loop().create_task(write)
        await until(lambda: len(other.heard) == 1)

        assert await peers.ask(other.url, "POST", "/", within_s=WITHIN_S) == b"ok"

        writing.cancel()
        await until(lambda: other.closed_count == 1)


async def test_a_caller_that_gives_up_at_once_sends_nothing(peers: Peers) -> None:
    async with raw_server(answer) as owner:
        giving_up = peers.forward(owner.url, "POST", "/", EMPTY, within_s=WITHIN_S)

        giving_up.send(None)  # runs it until it waits
        giving_up.close()
        await peers.forward(owner.url, "POST", "/second", EMPTY, within_s=WITHIN_S)

        assert [head_of(each)[0] for each in owner.heard] == [b"POST /second HTTP/1.1"]


async def test_after_the_close_nothing_is_sent(peers: Peers) -> None:
    async with raw_server(wait) as owner:
        sent = peers.forward(owner.url, "POST", "/", EMPTY, within_s=WITHIN_S)
        waiting = asyncio.get_running_loop().create_task(sent)
        await until(lambda: len(owner.heard) == 1)

        await peers.close()

        with pytest.raises(PeerUnansweredError) as under_way:
            await waiting
        with pytest.raises(PeerUnansweredError, match="stopping") as later:
            await peers.forward(owner.url, "POST", "/", EMPTY, within_s=WITHIN_S)
        assert (under_way.value.was_sent, later.value.was_sent) == (True, False)
        assert len(owner.heard) == 1


def json_of(status: bytes, body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b X\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        status, kind, len(body), body,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "sent", "kind"),
    [
        ({"a": 1}, b'{"a": 1}', b"Content-Type: application/json"),
        (b"\x00\xff", b"\x00\xff", b"Content-Type: application/octet-stream"),
    ],
)
async def test_a_question_of_this_server_has_a_body_and_a_parsed_answer(
    peers: Peers, body: bytes | dict[str, object], sent: bytes, kind: bytes
) -> None:
    async with raw_server(saying(json_of(b"200", b'{"b":[2]}'))) as other:
        got = await peers.ask(other.url, "POST", "/internal/a", body, within_s=WITHIN_S)

        assert got == {"b": [2]}
        line, fields = head_of(other.heard[0])
        assert line == b"POST /internal/a HTTP/1.1"
        assert kind in fields
        assert not any(each.startswith(b"Tuff-Forwarded") for each in fields)
        assert other.heard[0].endswith(b"\r\n\r\n" + sent)


async def test_an_answer_that_is_not_json_is_its_bytes(peers: Peers) -> None:
    async with raw_server(answer) as other:
        assert await peers.ask(other.url, "GET", "/", within_s=WITHIN_S) == b"ok"


async def test_a_refusal_is_the_error_of_its_problem_document(peers: Peers) -> None:
    problem = b'{"code":"topic_not_found","detail":"no audit","x":1}'
    reply = json_of(b"404", problem, b"application/problem+json")
    async with raw_server(saying(reply)) as other:
        with pytest.raises(PeerRefusedError, match="no audit") as caught:
            await peers.ask(other.url, "GET", "/", within_s=WITHIN_S)

    assert type(caught.value.error) is TopicNotFoundError
    assert caught.value.error.members == {"x": 1}


@pytest.mark.parametrize(
    "reply",
    [
        json_of(b"502", b"<html>", b"text/html"),
        json_of(b"500", b"{", b"application/problem+json"),
        json_of(b"307", b"[]"),
    ],
)
async def test_a_refusal_that_is_no_problem_document_is_a_refusal(
    peers: Peers, reply: bytes
) -> None:
    async with raw_server(saying(reply)) as other:
        with pytest.raises(PeerRefusedError, match="without a reason") as caught:
            await peers.ask(other.url, "GET", "/", within_s=WITHIN_S)

    assert type(caught.value.error) is TuffError


async def test_a_question_without_a_readable_answer_in_time_is_unanswered(peers: Peers) -> None:
    async with raw_server(saying(json_of(b"200", b"{")), wait) as other:
        for within_s in (WITHIN_S, SHORT_S):
            with pytest.raises(PeerUnansweredError) as caught:
                await peers.ask(other.url, "POST", "/", within_s=within_s)
            assert caught.value.was_sent

    with pytest.raises(PeerUnansweredError) as caught:
        await peers.ask(other.url, "POST", "/", within_s=WITHIN_S)
    assert not caught.value.was_sent
