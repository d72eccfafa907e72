"""Both transports: headers, timeouts, proxies, and wrong addresses."""

import asyncio
import math
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest

import tuff
from tuff.address import Address
from tuff.blocking.http import pieces
from tuff.flows_and_repeated_calls import Call
from tuff.protocol.errors import InternalError
from tuff.protocol.operations import START_TRANSACTION, TAKE_BACKUP
from tuff.requests_and_responses import Request

EMPTY_LIST = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]"


@contextmanager
def answering(*answers: bytes | None) -> Iterator[tuple[str, list[str]]]:
    """The address of one that answers each connection's request with these bytes, in their order;
    None: it says nothing, and hangs up when the caller does. And what it was sent."""
    heard: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for said in answers:
                caller, _ = listener.accept()
                with caller:
                    heard.append(caller.recv(65536).decode())
                    if said is not None:
                        caller.sendall(said)
                    else:
                        caller.recv(1)

        thread = Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
        thread.join()


DRIP_S = 0.01  # seconds between two bytes: never silent for long
DRIPPED = EMPTY_LIST.replace(b": 2\r", b": 502\r") + b" " * 500  # five seconds in all


@contextmanager
def dripping() -> Iterator[str]:
    """The address of one that answers byte by byte, until the caller hangs up."""
    over = Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.recv(65536)
                for byte in DRIPPED:
                    if over.wait(DRIP_S):
                        break
                    caller.sendall(bytes([byte]))

        thread = Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        thread.join()


def namespaces_blocking(url: str, **settings: Any) -> list[str]:
    with tuff.Client(url, retries=0, **settings) as client:
        return client.topics.namespaces()


def namespaces_on_a_loop(url: str, **settings: Any) -> list[str]:
    async def main() -> list[str]:
        async with tuff.AsyncClient(url, retries=0, **settings) as client:
            return await client.topics.namespaces()

    return asyncio.run(main())


Namespaces = Callable[..., list[str]]
BOTH = pytest.mark.parametrize("namespaces", [namespaces_blocking, namespaces_on_a_loop])


@BOTH
def test_the_token_travels_in_a_header(namespaces: Namespaces) -> None:
    with answering(EMPTY_LIST) as (url, heard):
        assert namespaces(url, token="secret") == []

    assert "\r\nAuthorization: Bearer secret\r\n" in heard[0]


@BOTH
def test_without_a_token_there_is_no_such_header(namespaces: Namespaces) -> None:
    with answering(EMPTY_LIST) as (url, heard):
        namespaces(url)

    assert "authorization" not in heard[0].lower()


@BOTH
def test_a_server_that_does_not_answer_is_waited_for_until_the_timeout(
    namespaces: Namespaces,
) -> None:
    with answering(None) as (url, _), pytest.raises(tuff.ConnectionLostError, match="imeout"):
        namespaces(url, timeout=0.05)


@BOTH
def test_an_answer_that_comes_byte_by_byte_is_not_waited_for_without_end(
    namespaces: Namespaces,
) -> None:
    with dripping() as url, pytest.raises(tuff.ConnectionLostError, match="imeout"):
        namespaces(url, timeout=0.3, connect_timeout=0.3)


@BOTH
def test_a_server_that_is_not_there_is_named(namespaces: Namespaces) -> None:
    with pytest.raises(tuff.ConnectionLostError, match=r"127\.0\.0\.1:1 ") as caught:
        namespaces("http://127.0.0.1:1")

    assert not caught.value.outcome_unknown
    assert "(ConnectionRefusedError: [Errno 111] Conn" in caught.value.detail


def first_error_blocking(url: str, *, after: int) -> tuff.TuffError:
    with tuff.Client(url, retries=0) as client:
        for _ in range(after):
            client.topics.namespaces()
        with pytest.raises(tuff.ConnectionLostError) as caught:
            client.topics.namespaces()
    return caught.value


def first_error_on_a_loop(url: str, *, after: int) -> tuff.TuffError:
    async def main() -> tuff.TuffError:
        async with tuff.AsyncClient(url, retries=0) as client:
            for _ in range(after):
                await client.topics.namespaces()
            with pytest.raises(tuff.ConnectionLostError) as caught:
                await client.topics.namespaces()
        return caught.value

    return asyncio.run(main())


@pytest.mark.parametrize("first_error", [first_error_blocking, first_error_on_a_loop])
def test_tls_is_only_suggested_where_nothing_has_answered(
    first_error: Callable[..., tuff.TuffError],
) -> None:
    """It was suggested when a server without TLS was killed."""
    with answering(b"") as (url, _):
        assert "begins with https://" in first_error(url, after=0).detail
    once = EMPTY_LIST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with answering(once, b"") as (url, _):
        assert "https" not in first_error(url, after=1).detail


@pytest.mark.parametrize(
    ("is_repeatable", "advice"),
    [(True, "you can repeat it, which has no second effect"), (False, "check that before you")],
)
def test_a_lost_call_says_whether_it_can_be_repeated(is_repeatable: bool, advice: str) -> None:
    request = Request(operation=START_TRANSACTION, has_id=is_repeatable)

    address = Address(url="http://127.0.0.1:1", timeout_s=1.0, connect_timeout_s=1.0)
    error = address.lost(request, OSError("gone"), was_sent=True)

    assert error.outcome_unknown
    assert advice in str(error)


@BOTH
def test_a_truncated_response_is_a_lost_connection(namespaces: Namespaces) -> None:
    with answering(EMPTY_LIST[:-1]) as (url, _), pytest.raises(tuff.ConnectionLostError):
        namespaces(url)


@BOTH
@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>"])
def test_a_response_of_another_server_is_an_error(namespaces: Namespaces, said: bytes) -> None:
    with answering(said) as (url, _), pytest.raises(tuff.TuffError):
        namespaces(url)


def of_another(status: int, *, body: bytes = b"<html>", headers: bytes = b"") -> bytes:
    """An answer that no Tuff server gives."""
    length = b"Content-Length: %d\r\n" % len(body)
    return b"HTTP/1.1 %d No\r\n" % status + length + headers + b"\r\n" + body


@BOTH
@pytest.mark.parametrize("said", [of_another(502), of_another(504), of_another(503, body=b"{}")])
def test_a_proxy_that_has_no_answer_is_a_lost_connection(
    namespaces: Namespaces, said: bytes
) -> None:
    """A subscription ended with it, while its server was restarted."""
    with answering(said) as (url, _), pytest.raises(tuff.ConnectionLostError) as caught:
        namespaces(url)

    assert (caught.value.outcome_unknown, caught.value.retry_safe) == (False, True)
    assert "a proxy says 50" in caught.value.detail


def test_the_retry_after_of_a_proxy_is_honoured() -> None:
    said = of_another(503, headers=b"Retry-After: 7\r\n")

    with answering(said) as (url, _), pytest.raises(tuff.ConnectionLostError) as caught:
        namespaces_blocking(url)

    assert caught.value.retry_after_s == 7


@BOTH
def test_a_redirect_is_an_error_that_names_its_target(namespaces: Namespaces) -> None:
    said = of_another(301, headers=b"Location: https://elsewhere\r\n")

    with answering(said) as (url, _), pytest.raises(InternalError, match="to https://elsewhere"):
        namespaces(url)


@pytest.mark.parametrize("connect", [tuff.Client, tuff.AsyncClient])
@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"url": "ftp://here"}, "no address"),
        ({"url": "127.0.0.1:7411"}, "no address"),
        ({"url": "http://127.0.0.1:port"}, "no address"),
        ({"url": "http://127.0.0.1:99999"}, "no address"),
        ({"url": "http://127.0.0.1:0"}, "no address"),
        ({"url": "http://[::1"}, "no address"),
        ({"url": "http://127.0.0.1:7411/?q"}, "no address"),
        ({"url": "http://127.0.0.1:7411#part"}, "no address"),
        ({"url": "http://a b"}, "no address"),
        ({"url": "http://127.0.0.1:7411/a b"}, "no address"),
        ({"url": "http://127.0.0.1:7411/ü"}, "no address"),
        ({"url": "http://a..b"}, "no address"),
        ({"url": "http://" + "a" * 64}, "no address"),
        ({"url": "http://me:secret@127.0.0.1"}, "no user and no password"),
        ({"timeout": 0}, "above 0"),
        ({"timeout": math.inf}, "timeout is a number"),
        ({"timeout": math.nan}, "timeout is a number"),
        ({"connect_timeout": 1e10}, "up to 1,000,000"),
        ({"connect_timeout": -1}, "connect_timeout is a number"),
        ({"retries": -1}, "from 0 to 100"),
        ({"token": "line\r\nX-Other: header"}, "printable"),
    ],
)
def test_settings_that_can_not_be_are_refused(
    connect: Callable[..., object], settings: dict[str, object], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        connect(**settings)


@pytest.mark.parametrize("settings", [{"token": "sécret"}, {"url": "http://me:secret@host:1"}])
def test_a_refused_secret_is_not_shown(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        tuff.Client(**settings)

    assert "cret" not in str(caught.value)


BACKUP: Call[None] = Call(Request(operation=TAKE_BACKUP), lambda _: None)


def pieces_of(*urls: str) -> list[bytes]:
    addresses = [Address(url=url, timeout_s=2.0, connect_timeout_s=60.0) for url in urls]
    return list(pieces(addresses, BACKUP, size_bytes=3))


def test_a_large_reply_comes_in_pieces_from_the_first_server_that_is_there() -> None:
    said = of_another(200, body=b"abcdefgh")

    with answering(said) as (url, heard):
        found = pieces_of("http://127.0.0.1:1", url)

    assert b"".join(found) == b"abcdefgh"
    assert max(map(len, found)) <= 3
    assert heard[0].startswith("GET /v1/backup ")


@contextmanager
def slow_pieces(count: int) -> Iterator[str]:
    """The address of one that sends a byte in less than the timeout, so often."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.recv(65536)
                caller.sendall(of_another(200, body=b"")[:-6] + b"%d\r\n\r\n" % count)
                for _ in range(count):
                    Event().wait(0.5)
                    caller.sendall(b"x")

        thread = Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_each_piece_of_a_large_reply_has_the_time_of_a_reply() -> None:
    with slow_pieces(6) as url:
        assert b"".join(pieces_of(url)) == b"x" * 6


@pytest.mark.parametrize(
    ("said", "kind", "detail"),
    [
        (of_another(502), tuff.ConnectionLostError, "a proxy says 502"),
        (of_another(403, body=b'{"code": "forbidden", "detail": "no"}'),
         tuff.errors.ForbiddenError, "no"),
        (b"", tuff.ConnectionLostError, "was lost before it answered GET /v1/backup"),
    ],
)  # fmt: skip
def test_a_refusal_of_a_large_reply_is_told_as_of_any_call(
    said: bytes, kind: type[tuff.TuffError], detail: str
) -> None:
    """A lost connection is an OSError too, and was told as the loss of another one."""
    with answering(said) as (url, _), pytest.raises(kind) as caught:
        pieces_of(url)

    assert detail in caught.value.detail
    assert "ConnectionLostError" not in caught.value.detail


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("certificate has expired", "has expired .*; renew it at the server"),
        ("unable to get local issuer certificate", r"SSL_CERT_FILE, or as tls_ca_file \(--tls"),
    ],
)
def test_a_certificate_that_is_not_trusted_says_what_to_do(reason: str, advice: str) -> None:
    address = Address(url="https://127.0.0.1:1", timeout_s=1.0, connect_timeout_s=1.0)

    error = address.not_trusted(OSError(f"[SSL: CERTIFICATE_VERIFY_FAILED] {reason}"))

    assert re.search(advice, error.detail)
