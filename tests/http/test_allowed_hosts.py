"""Requests that name a foreign host, or that a web page of another site sends, change nothing and
read nothing, by whichever way they come in (protocol §1)."""

import re
import socket

import pytest

from tests.http.calls import Topic
from tests.http.client import Client, ok
from tests.http.conftest import NewServer
from tests.http.process import ServerProcess
from tuff.protocol.operations import OPERATIONS, Operation

EVIL = "Host: evil.example\r\n"
FOREIGN = {
    "a foreign host": EVIL,
    "a foreign host with the port": "Host: evil.example:7411\r\n",
    "a name that begins like one of ours": "Host: localhost.evil.example\r\n",
    "an address of somebody else": "Host: 192.0.2.1\r\n",
    "no name": "Host:\r\n",
    "a user before the host": "Host: evil@localhost\r\n",
    "a page of another site": "Host: localhost\r\nOrigin: http://evil.example\r\n",
    "a page of another port": "Host: localhost\r\nOrigin: http://localhost:3000\r\n",
    "a page without an origin": "Host: localhost\r\nOrigin: null\r\n",
    "another site": "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
    "the same site": "Host: localhost\r\nSec-Fetch-Site: same-site\r\n",
    "one site of two": "Host: localhost\r\nSec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n",
}
OWN = {
    "the name of loopback": "Host: localhost\r\n",
    "in capitals, with a dot and a port": "Host: LOCALHOST.:80\r\n",
    "its address": "Host: 127.0.0.1\r\n",
    "another of its addresses": "Host: 127.8.9.10:1\r\n",
    "its address of IPv6": "Host: [::1]:7411\r\n",
    "an address that was typed": "Host: localhost\r\nSec-Fetch-Site: none\r\n",
    "a page of the server": (
        "Host: localhost:7411\r\nOrigin: http://localhost:7411\r\nSec-Fetch-Site: same-origin\r\n"
    ),
    "a page of the server on the usual port": "Host: localhost\r\nOrigin: http://localhost:80\r\n",
}
LAST = "GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
WITHOUT_BODY = "Content-Length: 0\r\n"
IN_CHUNKS = "Transfer-Encoding: chunked\r\n"


def say(server: ServerProcess, request: str, last: str = LAST) -> str:
    """All that the server answers to these bytes, and to a last request that asks it to close."""
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall((request + last).encode("latin-1"))
        said = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return said.decode("latin-1")


def status_of(said: str) -> int:
    return int(said.split(" ", 2)[1])


@pytest.mark.parametrize("fields", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("body", [WITHOUT_BODY, IN_CHUNKS], ids=["without", "chunked"])
def test_a_web_page_does_not_stop_the_transactions(
    server: ServerProcess, client: Client, fields: str, body: str
) -> None:
    head = f"POST /v1/transactions/service/stop HTTP/1.1\r\n{fields}{body}\r\n"

    said = say(server, head + ("0\r\n\r\n" if body == IN_CHUNKS else ""))

    assert status_of(said) == 403
    assert re.search('"code": "(host_not_allowed|cross_site_request)"', said)
    assert ok(client.get("/health/ready")).json["checks"]["transactions"]["status"] == "ok"


@pytest.mark.parametrize("endpoint", OPERATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (EVIL, "host_not_allowed"),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", "cross_site_request"),
    ],
    ids=["host", "site"],
)
def test_every_route_refuses(
    server: ServerProcess, endpoint: Operation, fields: str, code: str
) -> None:
    path = re.sub(r"{\w+}", "1", endpoint.path)

    said = say(
        server,
        f"{endpoint.method} {path} HTTP/1.1\r\n{fields}{WITHOUT_BODY}\r\n",
    )

    assert status_of(said) == 403
    assert f'"code": "{code}"' in said


@pytest.mark.parametrize(
    "line",
    [
        "GET /nothing HTTP/1.1", "PATCH /v1/namespaces HTTP/1.1", "OPTIONS * HTTP/1.1",
        "OPTIONS /v1/transactions HTTP/1.1", "HEAD /health/live HTTP/1.1",
        "GET //v1/namespaces HTTP/1.1", "GET /v1/namespaces?a=%41 HTTP/1.1",
        "GET http://localhost/v1/namespaces HTTP/1.1",
    ],
)  # fmt: skip
def test_what_no_route_answers_is_refused_too(server: ServerProcess, line: str) -> None:
    assert status_of(say(server, f"{line}\r\n{EVIL}\r\n")) == 403


def test_only_http_1_0_may_name_no_host(server: ServerProcess) -> None:
    line = "GET /v1/namespaces HTTP/1.0\r\n"

    said = [say(server, f"{line}{fields}\r\n", last="") for fields in ("", EVIL)]

    assert [status_of(each) for each in said] == [200, 403]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://evil.example/v1/namespaces", 403), ("http://localhost/v1/namespaces", 200),
        ("http://127.0.0.1:9/v1/namespaces", 200), ("http://a@localhost/v1/namespaces", 403),
        ("https://evil.example:443/v1/namespaces", 403),
    ],
)  # fmt: skip
def test_the_host_of_an_absolute_target_is_checked_too(
    server: ServerProcess, target: str, status: int
) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"

    assert status_of(say(server, request)) == status


@pytest.mark.parametrize("fields", OWN.values(), ids=OWN)
@pytest.mark.parametrize("line", ["GET /openapi.json", "HEAD /openapi.json"])
def test_a_person_and_a_page_of_the_server_are_served(
    server: ServerProcess, fields: str, line: str
) -> None:
    said = say(server, f"{line} HTTP/1.1\r\n{fields}\r\n")

    assert status_of(said) == 200


@pytest.mark.parametrize("fields", ["", "Host: localhost\r\nHost: localhost\r\n"])
def test_a_request_without_one_host_is_malformed(server: ServerProcess, fields: str) -> None:
    said = say(server, f"GET /health/live HTTP/1.1\r\n{fields}\r\n")

    assert status_of(said) == 400


def test_a_refused_request_leaves_the_connection_in_use(server: ServerProcess) -> None:
    own = "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    foreign = f"GET /health/live HTTP/1.1\r\n{EVIL}\r\n"

    said = say(server, own + foreign + own + foreign)

    assert re.findall(r"HTTP/1\.1 (\d+)", said) == ["200", "403", "200", "403", "200"]


def test_a_page_neither_publishes_nor_reads(server: ServerProcess, topic: Topic) -> None:
    ok(topic.publish("secret"))
    body = '{"messages": ["forged"]}'
    head = f"POST {topic.path}/publish HTTP/1.1\r\nHost: localhost\r\n"
    own = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    assert status_of(say(server, f"{head}{own}\r\n{body}")) == 200  # it is remembered as plain

    forged = say(server, f"{head}{own}Origin: http://evil.example\r\n\r\n{body}")
    read = say(server, f"GET {topic.path}/messages HTTP/1.1\r\n{EVIL}\r\n")

    assert (status_of(forged), status_of(read)) == (403, 403)
    assert "secret" not in read
    assert [each["payload"] for each in ok(topic.poll()).json] == ["secret", "forged"]


def test_the_settings_name_further_hosts(new_server: NewServer) -> None:
    server = new_server("server.allowed_hosts=['tuff.example', '192.0.2.7']")

    def ask(fields: str) -> int:
        return status_of(say(server, f"GET /v1/namespaces HTTP/1.1\r\n{fields}\r\n"))

    assert ask("Host: tuff.example:8443\r\n") == 200
    assert ask("Host: 192.0.2.7\r\n") == 200
    assert ask("Host: 127.0.0.1\r\nOrigin: https://tuff.example\r\n") == 200
    assert ask("Host: other.example\r\n") == 403


def test_a_server_on_all_addresses_answers_to_every_address_and_to_no_name(
    new_server: NewServer,
) -> None:
    server = new_server("server.host=0.0.0.0", "server.allow_remote=true")
    server.host = "127.0.0.1"

    def ask(host: str) -> int:
        head = f"GET /v1/namespaces HTTP/1.1\r\nHost: {host}\r\n\r\n"
        return status_of(say(server, head))

    assert [ask("0.0.0.0"), ask("192.0.2.1:80"), ask("[2001:db8::1]"), ask("localhost")] == [
        200
    ] * 4
    assert [ask("evil.example"), ask("192.0.2.1.evil.example"), ask("3221225985")] == [403] * 3
