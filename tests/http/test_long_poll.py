"""Polls that wait (protocol §3.4, `wait`)."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.http.calls import Topic, begin, created, payloads
from tests.http.client import Client, Reply, ok, refused, until
from tests.http.conftest import NewServer, NewTopic
from tests.http.forms import messages_of
from tests.http.process import ServerProcess

LONG_S = 60  # a wait that a test ends; longer than anything that is meant to be prompt
PROMPT_S = 30.0  # what "at once" may take on a busy machine

Waiting = Callable[..., "Future[Reply]"]


@pytest.fixture
def waiting(server: ServerProcess, topic: Topic) -> Iterator[Waiting]:
    """Polls the topic from a thread and a connection of its own."""
    clients: list[Client] = []

    with ThreadPoolExecutor(4) as threads:

        def start(body: dict[str, object] | None = None, **query: object) -> "Future[Reply]":
            connection = server.client()
            clients.append(connection)
            own = Topic(connection, topic.namespace, topic.name)
            return threads.submit(own.poll, body, wait=LONG_S, **query)

        yield start
    for connection in clients:
        connection.close()


def still_waits(poll: "Future[Reply]") -> None:
    """See that it has not been answered after a while."""
    time.sleep(0.15)  # the only proof that something waits is that time passes
    assert not poll.done(), poll.result()


def answer(poll: "Future[Reply]") -> Reply:
    return ok(poll.result(PROMPT_S))


def test_a_poll_with_tags_waits_for_a_message_that_has_them(topic: Topic, waiting: Waiting) -> None:
    ok(topic.publish("0", {"payload": "1", "tags": ["b"]}))

    poll = waiting(tags="a")
    ok(topic.publish("2", {"payload": "3", "tags": ["b"]}))
    still_waits(poll)
    ok(topic.publish({"payload": "4", "tags": ["a"]}, "5"))

    assert payloads(answer(poll)) == ["4"]
    rest = {"startFrom": answer(poll).header("Tuff-Next"), "inclusive": False}
    assert payloads(topic.poll(rest, tags="a")) == []
    assert payloads(topic.poll(rest)) == []


@pytest.mark.parametrize("isolation", ["all", "committed"])
def test_a_publish_wakes_a_waiting_poll(topic: Topic, waiting: Waiting, isolation: str) -> None:
    poll = waiting(isolation=isolation)
    still_waits(poll)

    ok(topic.publish("a", "b"))

    assert payloads(answer(poll)) == ["a", "b"]


@pytest.mark.parametrize("ending", ["commit", "abort", "invalidate"])
def test_an_ending_wakes_a_committed_reader(
    client: Client, topic: Topic, waiting: Waiting, ending: str
) -> None:
    ok(topic.publish("before"))
    start = ok(topic.poll()).header("Tuff-Next")
    tx = begin(client)
    ok(topic.publish("held", tx=tx.id))
    ok(topic.publish("plain"))
    poll = waiting({"startFrom": start, "inclusive": False}, isolation="committed")
    still_waits(poll)

    ok(getattr(tx, ending)())

    assert payloads(answer(poll)) == (["held", "plain"] if ending == "commit" else ["plain"])


def test_a_fixed_snapshot_held_by_an_ended_transaction_is_answered_at_once(
    client: Client, topic: Topic
) -> None:
    reader, writer = begin(client), begin(client)
    ok(topic.publish("held", tx=writer.id))
    ok(writer.commit())
    began = time.monotonic()

    reply = ok(topic.poll(tx=reader.id, wait=LONG_S))
    encoded = ok(topic.poll({"transaction": reader.object["encoded"]}, wait=LONG_S))

    assert (reply.json, encoded.json) == ([], [])
    assert time.monotonic() - began < PROMPT_S
    assert reply.header("Tuff-Caught-Up") == "false"
    assert reply.header("Tuff-Blocked-By") is None


@pytest.mark.parametrize(
    ("ending", "body", "code"),
    [
        ("commit", {"readOnly": True}, "transaction_committed"),
        ("abort", {}, "transaction_aborted"),
        ("invalidate", {}, "transaction_invalidated"),
    ],
)
def test_a_poll_in_a_transaction_ends_with_it(
    client: Client, topic: Topic, waiting: Waiting, ending: str, body: dict[str, bool], code: str
) -> None:
    """Though the transaction wrote nothing, to this topic or to any."""
    tx = begin(client)
    woken, ended = waiting(tx=tx.id), waiting({"startFrom": "f" * 40}, tx=tx.id)
    still_waits(ended)
    ok(topic.publish("plain"))
    assert payloads(answer(woken)) == ["plain"]

    ok(getattr(tx, ending)(**body))

    refused(ended.result(PROMPT_S), 409, code)


def test_a_poll_in_a_transaction_that_times_out_is_refused_at_once(
    client: Client, topic: Topic, waiting: Waiting
) -> None:
    tx = begin(client, timeout=1.5)  # the checkpoint comes in time, also on a busy machine
    inside = ok(tx.checkpoint()).json["writePointer"]

    polls = [waiting(tx=tx.id), waiting(tx=inside)]

    for poll in polls:
        refused(poll.result(PROMPT_S), 409, "transaction_timed_out")


def test_browsing_from_the_latest_delivers_what_comes(server: ServerProcess, topic: Topic) -> None:
    ok(topic.publish("old"))
    connection = server.client()
    own = Topic(connection, topic.namespace, topic.name)
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(own.browse, **{"from": "latest", "wait": LONG_S})
        still_waits(poll)

        ok(topic.publish("new"))

        assert payloads(answer(poll)) == ["new"]
    connection.close()


def test_waiting_polls_are_answered_with_nothing_when_the_server_stops(
    new_server: NewServer,
) -> None:
    running = new_server()
    client = running.client()
    created(client, "default", "t")
    other = running.client()
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(Topic(other, "default", "t").poll, wait=LONG_S)
        still_waits(poll)

        assert running.terminate() == 0

        assert answer(poll).json == []


def test_a_wait_for_topics_brings_the_messages_of_one_to_a_client_that_accepts_avro(
    client: Client, new_topic: NewTopic
) -> None:
    one, other = new_topic(), new_topic()
    path = one.path.replace(f"topics/{one.name}", "wait")
    body = {"topics": {each.name: {"after": {"0": "0" * 40}} for each in (one, other)}}

    def wait(accept: str, **query: object) -> Reply:
        data = json.dumps(body).encode()
        headers = {"Accept": accept}
        return client.send(
            "POST", path, data, content_type="application/json", headers=headers, query=query
        )

    assert ok(wait("avro/binary")).json == {"partitions": []}
    ok(other.publish("a", "b"))
    brought = ok(wait("avro/binary", limit=1))
    ((id, payload),) = messages_of(brought.body)
    assert (payload, brought.header("Tuff-Partition")) == (b"a", f"{other.name}:0")
    assert brought.header("Tuff-Next") == id.hex()
    assert brought.header("Tuff-Caught-Up") == "false"

    assert ok(wait("application/json")).json == {"partitions": [f"{other.name}:0"]}
    ok(other.delete())
    assert ok(wait("avro/binary")).json == {"partitions": [f"{other.name}:0"]}
    refused(wait("avro/binary", limit=0), 400, "bad_request", naming="limit")


POLL = "POST TOPIC/poll?wait=60 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
AFTER = '{"after":{"0":"7fffffffffffffff000000000000000000000000"}}'
BROWSE = "GET TOPIC/messages?wait=60 HTTP/1.1\r\nHost: localhost\r\n"
# The other form of each is one that few clients use.
WAITING = {
    "poll": f"{POLL}Content-Length: 2\r\n\r\n{{}}",
    "poll in chunks": f"{POLL}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n",
    "wait": f"{POLL.replace('/poll', '/wait')}Content-Length: {len(AFTER)}\r\n\r\n{AFTER}",
    "browse": f"{BROWSE}\r\n",
    "browse by an escape": f"{BROWSE}\r\n".replace("messages", "%6dessages"),
}


@pytest.mark.parametrize("request_text", WAITING.values(), ids=WAITING)
def test_a_waiting_poll_ends_when_its_client_disconnects(
    server: ServerProcess, client: Client, topic: Topic, request_text: str
) -> None:
    """Else nothing counts what it costs: neither connections nor requests under way."""

    def waiting_count() -> int:
        figures = client.get("/metrics").body.decode().splitlines()
        (line,) = [line for line in figures if line.startswith("tuff_polls_waiting ")]
        return int(float(line.split()[1]))

    before = waiting_count()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(request_text.replace("TOPIC", topic.path).encode())
            until(lambda: waiting_count() == before + 1)

        until(lambda: waiting_count() == before)
