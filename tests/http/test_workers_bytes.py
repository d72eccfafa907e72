"""The same bytes come back with workers and without them."""

import re
import socket
from collections.abc import Iterator

import pytest

from tests.http.calls import Topic
from tests.http.client import ok
from tests.http.process import ServerProcess, serve

TOPIC = "/v1/namespaces/default/topics/t"
HOST = "Host: localhost\r\n"
JSON = f"{HOST}Content-Type: application/json\r\n"
CLOSE = "Connection: close\r\n"
_DATE = re.compile(rb"Date: [^\r]+\r\n")


def request(line: str, fields: str = HOST, body: str = "") -> bytes:
    """The last one on its connection."""
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{line} HTTP/1.1\r\n{fields}{length}{CLOSE}\r\n{body}".encode("latin-1")


REQUESTS = {
    "a route": request(f"GET {TOPIC}"),
    "a plain request, then another one": (
        f"GET {TOPIC} HTTP/1.1\r\n{HOST}\r\n".encode() + request(f"GET {TOPIC}/properties")
    ),
    "HEAD of a probe": request("HEAD /health/live"),
    "HTTP/1.0": f"GET {TOPIC} HTTP/1.0\r\n\r\n".encode(),
    "HTTP/1.0 that keeps the connection": (
        f"GET {TOPIC} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode() + request("GET /x")
    ),
    "an escape": request("GET /v1/namespaces/default/topics/%74"),
    "an absolute address": request(f"GET http://localhost{TOPIC}"),
    "no route": request("GET /nothing"),
    "another method": request(f"PATCH {TOPIC}"),
    "an unknown method": request("BREW /pot"),
    "no method": b"\x00\x01\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00",
    "no host": request(f"GET {TOPIC}", fields=""),
    "a foreign host": request(f"GET {TOPIC}", fields="Host: evil.example\r\n"),
    "another origin": request(f"GET {TOPIC}", fields=f"{HOST}Origin: http://evil.example\r\n"),
    "two hosts": request(f"GET {TOPIC}", fields=HOST * 2),
    "a coding": request(f"POST {TOPIC}/publish", f"{JSON}Content-Encoding: gzip\r\n", "x"),
    "an expectation": request(f"POST {TOPIC}/publish", f"{JSON}Expect: a-miracle\r\n", "{}"),
    "a body that is announced": request(
        f"POST {TOPIC}/publish", f"{JSON}Expect: 100-continue\r\n", '{"messages": 3}'
    ),
    "no JSON": request(f"POST {TOPIC}/publish", JSON, "{"),
    "a wrong member": request(f"POST {TOPIC}/publish", JSON, '{"massages": []}'),
    "a media type": request(f"POST {TOPIC}/publish", f"{HOST}Content-Type: a/b\r\n", "{}"),
    "chunks": (
        f"POST {TOPIC}/poll HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\n{CLOSE}\r\n"
        "2\r\n{}\r\n0\r\n\r\n"
    ).encode(),
    "broken chunks": (
        f"POST {TOPIC}/poll HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\n\r\nx\r\n"
    ).encode(),
    "too large": request(f"POST {TOPIC}/publish", JSON, "x" * 3_000),
    "a query": request(f"GET {TOPIC}?what=1"),
    "bytes that are no text": request(f"GET {TOPIC}", f"{HOST}Accept: \xff\xfe\r\n"),
    "a poll in Avro": request(f"POST {TOPIC}/poll", f"{JSON}Accept: avro/binary\r\n", "{}"),
    "a page of the console": request("GET /console/"),
    "no upgrade": request("GET /v1/session"),
    "another protocol": request(
        "GET /v1/session", f"{HOST}Connection: Upgrade\r\nUpgrade: websocket\r\n"
    ),
    "an unknown transaction": request("POST /v1/transactions/1700000000000000000/commit"),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """Without workers, and with two."""
    started = []
    for count in (0, 2):
        settings = f"server.workers={count}", "server.max_request_bytes=2000"
        started.append(serve(tmp_path_factory.mktemp(f"workers-{count}"), *settings))
        ok(Topic(started[-1].client(), "default", "t").create({"ttl": 77}))
    yield started
    for each in started:
        each.end()


def exchange(server: ServerProcess, sent: bytes) -> bytes:
    """Everything that the server answers until it closes the connection."""
    with socket.create_connection((server.host, server.port), 20) as connection:
        connection.sendall(sent)
        said = b"".join(iter(lambda: connection.recv(65_536), b""))
    return _DATE.sub(b"", said)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_has_the_same_reply(both: list[ServerProcess], name: str) -> None:
    alone, through_a_worker = (exchange(each, REQUESTS[name]) for each in both)

    assert through_a_worker == alone
    assert alone.startswith(b"HTTP/1.1 ")
