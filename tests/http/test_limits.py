"""Bounds, made small by settings (protocol §1, §3.4, §8)."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.http.calls import (
    TRANSACTIONS,
    Topic,
    begin,
    created,
    entry,
    ids,
    metrics_of,
    payloads,
)
from tests.http.client import JSON, Client, Reply, ok, refused, until
from tests.http.conftest import NewServer
from tests.http.forms import consume_request, messages_of
from tests.http.process import ServerProcess, serve
from tuff.protocol import avro

REQUEST_BYTES_MAX = 20_000


@pytest.fixture(scope="module")
def narrow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that takes little of everything."""
    running = serve(
        tmp_path_factory.mktemp("narrow"),
        f"server.max_request_bytes={REQUEST_BYTES_MAX}",
        "messaging.poll_limit_max=5",
        "messaging.poll_bytes_max=1000",
    )
    yield running
    running.end()


@pytest.fixture
def narrow(narrow_server: ServerProcess) -> Client:
    return narrow_server.client()


@pytest.fixture
def small(narrow: Client, request: pytest.FixtureRequest) -> Topic:
    made = Topic(narrow, "limits", request.node.name[:120].replace("[", "-").replace("]", "-"))
    ok(made.create())
    return made


def body_of(size: int) -> bytes:
    """A publish of one message whose body has this many bytes."""
    frame = b'{"messages": [""]}'
    return b'{"messages": ["' + b"x" * (size - len(frame)) + b'"]}'


def test_a_larger_request_than_the_limit_is_refused_and_changes_nothing(
    narrow: Client, small: Topic
) -> None:
    tx = begin(narrow)
    calls = ("publish", "store", "poll", "rollback", "truncate")
    paths = [f"{small.path}/{call}" for call in calls]
    for path in (*paths, f"{tx.path}/commit", f"{TRANSACTIONS}/run", TRANSACTIONS):
        for size in (REQUEST_BYTES_MAX + 1, 10 * REQUEST_BYTES_MAX):
            reply = narrow.send("POST", path, body_of(size), content_type=JSON)
            refused(reply, 413, "request_too_large")
            narrow.close()

    assert small.read() == []
    assert tx.state() == "in_progress"
    ok(narrow.send("POST", paths[0], body_of(REQUEST_BYTES_MAX), content_type=JSON))
    assert len(small.read()) == 1


@pytest.mark.parametrize("call", ["publish", "store"])
def test_a_request_with_too_many_messages_is_refused(topic: Topic, call: str) -> None:
    """However small they are: each takes its time on the event loop."""
    count = 1_000_001
    body = b"\x02" + avro.encode_long(count) + b"\0" * count + b"\0"

    reply = topic.avro(call, body)
    refused(reply, 413, "request_too_large", naming="1000000 is the most")
    path, messages = f"{topic.path}/{call}", b",".join([b'""'] * count)
    reply = topic.client.send("POST", path, b'{"messages":[%b]}' % messages, content_type=JSON)
    refused(reply, 413, "request_too_large", naming="1000001 messages")

    assert topic.read() == []


@pytest.mark.parametrize("form", ["application/json", "avro/binary; schema=2"])
def test_a_request_with_too_many_attributes_is_refused(topic: Topic, form: str) -> None:
    """Messages with attributes take longer: a full request once took twenty seconds."""

    def body_of(count: int) -> bytes:
        if form == JSON:
            messages = b",".join([b'{"payload":"","key":""}'] * count)
            return b'{"messages":["",%b]}' % messages
        plain, keyed = b"\0" * 5, b"\0\x02\0\0\0\0"
        return b"\x02" + avro.encode_long(count + 1) + plain + keyed * count + b"\0"

    def publish(count: int) -> Reply:
        path = f"{topic.path}/publish"
        return topic.client.send("POST", path, body_of(count), content_type=form)

    refused(publish(100_001), 413, "request_too_large", naming="more than 100000")
    assert topic.read() == []
    ok(publish(100_000))


def test_the_entries_of_a_commit_have_no_more_messages_than_that_together(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    part = json.dumps(entry(topic, *[""] * 500_001)).encode()
    body = b'{"publish":[%b,%b]}' % (part, part)

    for path in (f"{tx.path}/commit", f"{TRANSACTIONS}/run"):
        reply = client.send("POST", path, body, content_type=JSON)
        refused(reply, 413, "request_too_large", naming="1000002 messages")

    assert tx.state() == "in_progress"
    assert topic.read() == []


def test_a_limit_is_clamped_to_the_servers(small: Topic) -> None:
    ok(small.publish(*"abcdefgh"))

    for body in ({}, {"limit": 6}, {"limit": 2147483647}):
        reply = small.poll(body)
        assert payloads(reply) == list("abcde")
        assert reply.header("Tuff-Caught-Up") == "false"
    rest = {"startFrom": small.poll().header("Tuff-Next"), "inclusive": False}
    assert small.read(rest) == ["f", "g", "h"]
    assert len(ok(small.browse(limit=100)).json) == 5
    assert len(messages_of(ok(small.avro("poll", consume_request(limit=100))).body)) == 5


def test_a_reply_stops_after_the_byte_limit_but_holds_one_message(small: Topic) -> None:
    big, medium = "b" * 3000, "m" * 400
    ok(small.publish(big, medium, medium, medium, medium, big))

    pages: list[list[str]] = []
    start = "0" * 40
    while True:
        reply = ok(small.poll({"startFrom": start, "inclusive": False}))
        pages.append(payloads(reply))
        if reply.header("Tuff-Caught-Up") == "true":
            break
        start = str(reply.header("Tuff-Next"))
        assert ids(reply)[-1] <= start

    assert [payload for page in pages for payload in page] == [big, *[medium] * 4, big]
    assert pages[0] == [big]
    assert all(page for page in pages)
    assert all(len(page) == 1 or sum(map(len, page)) <= 1000 + 3000 for page in pages)
    assert len(pages) >= 3


def test_requests_above_the_limit_of_pending_ones_are_refused_with_429(
    new_server: NewServer,
) -> None:
    running = new_server("server.max_pending_requests=1")
    client = running.client()
    topic = created(client, "default", "t")
    request = json.dumps({"messages": ["x"]}).encode()
    head = f"POST {topic.path}/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
    whole = f"{head}Content-Length: {len(request)}\r\nConnection: close\r\n\r\n".encode() + request
    taken, told = 0, 0

    def burst() -> bool:
        nonlocal taken, told
        address = ("127.0.0.1", running.port)
        sockets = [socket.create_connection(address, timeout=60) for _ in range(30)]
        for one in sockets:
            one.sendall(whole)
        answers = [_all_of(one) for one in sockets]
        refusals = [answer for answer in answers if answer.startswith(b"HTTP/1.1 429 ")]
        taken += sum(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
        told += len(refusals)
        assert taken + told == len(answers) * (1 + bursts)
        assert all(b"overloaded" in one and b"\r\nretry-after:" in one.lower() for one in refusals)
        return told > 0

    bursts = 0
    while not burst():
        bursts += 1
        assert bursts < 20, "thirty requests at once never met the bound of one"

    until(lambda: topic.poll().status == 200)
    assert len(topic.read()) == taken


def _all_of(connection: socket.socket) -> bytes:
    with connection:
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def test_waiting_polls_do_not_count_as_pending(new_server: NewServer) -> None:
    running = new_server("server.max_pending_requests=1")
    client = running.client()
    ok(Topic(client, "default", "t").create())
    others = [running.client() for _ in range(3)]

    with ThreadPoolExecutor(3) as threads:
        waiting = []
        for one in others:  # one behind the other: the next must not meet it under way
            waiting.append(threads.submit(Topic(one, "default", "t").poll, None, wait=60))
            until(lambda: metrics_of(client)["tuff_polls_waiting"] == len(waiting))
        assert not any(poll.done() for poll in waiting), [poll.result() for poll in waiting]

        ok(Topic(client, "default", "t").publish("a"))

        assert [payloads(poll.result()) for poll in waiting] == [["a"]] * 3


def test_idle_connections_leave_descriptors_to_the_message_store(tmp_path: Path) -> None:
    """They took the last ones, and the store, which opens files, went down."""
    with serve(tmp_path, under=("prlimit", "--nofile=200:200")) as running:
        assert "code=few_file_descriptors limit=200 connections=100" in running.stderr()
        held = [running.client() for _ in range(100)]
        for each in held:
            ok(each.get("/health/live"))

        refusals = [Client(running.port, timeout_s=10).get("/health/live") for _ in range(20)]

        assert {each.status for each in refusals} == {429}
        assert "max_connections=100 connections are open" in refusals[0].json["detail"]
        topic = Topic(held[0], "default", "full")
        ok(topic.create())
        ok(topic.publish("x"))
        assert topic.read() == ["x"]
        for each in held:
            each.close()


def test_a_connection_above_the_bound_is_not_served_until_another_closes(
    new_server: NewServer,
) -> None:
    running = new_server("server.max_connections=2")
    first, second = running.client(), running.client()
    for held in (first, second):
        ok(held.get("/health/live"))
    third = Client(running.port, timeout_s=0.3)

    with suppress(TimeoutError, ConnectionError):
        assert third.get("/health/live").status in {429, 503}
    ok(first.get("/health/live"))
    ok(second.get("/health/live"))
    first.close()
    second.close()

    def is_served() -> bool:
        later = Client(running.port, timeout_s=5)
        try:
            return later.get("/health/live").status == 200
        except (TimeoutError, ConnectionError):
            return False
        finally:
            later.close()

    until(is_served)
    third.close()


def test_a_stop_lets_a_client_read_its_reply_to_the_end(new_server: NewServer) -> None:
    """It was cut a second after the signal."""
    server = new_server()
    topic = created(server.client(), "limits", "large")
    for _ in range(8):
        ok(topic.publish("x" * 1_000_000))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(
            f"GET {topic.path}/messages HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        said = connection.recv(65_536)
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(1.5)
        while piece := connection.recv(65_536):
            said += piece

    head, _, body = said.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}\r\n".encode() in head
    assert len(body) > 8_000_000
    # A second signal, which finds the process past its own handler, would end it by itself.
    assert server.wait_exit() == 0
