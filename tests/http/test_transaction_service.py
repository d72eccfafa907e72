"""Messaging goes on while the transaction service is down (protocol §5.2, §8; promise 7)."""

from collections.abc import Iterator

import pytest

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, created, entry
from tests.http.client import AVRO, JSON, Client, Reply, ok, refused, until
from tests.http.conftest import NewServer
from tests.http.forms import publish_request
from tests.http.process import ServerProcess, serve


@pytest.fixture(scope="module")
def stoppable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose transaction service the tests of this file stop and start."""
    running = serve(tmp_path_factory.mktemp("stoppable"))
    yield running
    running.end()


@pytest.fixture
def own(stoppable: ServerProcess) -> Client:
    connection = stoppable.client()
    ok(connection.post(f"{TRANSACTIONS}/service/start"))
    return connection


@pytest.fixture
def own_topic(own: Client, request: pytest.FixtureRequest) -> Topic:
    made = Topic(own, "service", request.node.name[:120].replace("[", "-").replace("]", "-"))
    ok(made.create())
    return made


def stop(client: Client) -> None:
    assert ok(client.post(f"{TRANSACTIONS}/service/stop")).json == {"state": "stopped"}


def start(client: Client) -> None:
    assert ok(client.post(f"{TRANSACTIONS}/service/start")).json == {"state": "running"}


def unavailable(reply: Reply) -> None:
    refused(reply, 503, "transactions_unavailable")
    assert reply.header("Retry-After"), reply.request


def refuses_transactions(client: Client, topic: Topic, tx: Tx, detail: object) -> None:
    """Everything that needs the transaction service answers 503."""
    for reply in (
        client.post(TRANSACTIONS), client.get(TRANSACTIONS), tx.outcome(), tx.can_commit("k"),
        tx.commit(), tx.abort(), tx.invalidate(), tx.checkpoint(),
        client.post(f"{TRANSACTIONS}/run", {"publish": [entry(topic, "x")]}),
        client.get(f"{TRANSACTIONS}/invalid"), client.get(f"{TRANSACTIONS}/snapshot"),
        client.post(f"{TRANSACTIONS}/invalid/truncate", {"ids": []}),
        client.post(f"{TRANSACTIONS}/snapshot"), topic.publish("x", tx=tx.id),
        topic.avro("publish", publish_request([b"x"], pointer=int(tx.id))),
        topic.store("x", tx=tx.id), topic.rollback(detail), topic.poll(tx=tx.id),
        topic.offsets(tx=tx.id), client.get("/v1/sinks"), client.get("/v1/sinks/s"),
        client.delete("/v1/sinks/s"), client.post("/v1/sinks/s/epochs/0", {"runId": "a"}),
    ):  # fmt: skip
        unavailable(reply)


def test_a_stopped_service_refuses_what_needs_it(own: Client, own_topic: Topic) -> None:
    tx = begin(own)
    detail = ok(own_topic.publish("a", tx=tx.id)).json
    stop(own)

    refuses_transactions(own, own_topic, tx, detail)

    for read in (own_topic.poll, own_topic.browse, own_topic.offsets):
        unavailable(read(isolation="committed"))  # the only message is undecided
    assert own_topic.read() == ["a"]


def test_a_stopped_service_says_so_before_all_else(own: Client) -> None:
    """A bad body was still told, and every transaction that has no number was unknown."""
    stop(own)

    for method, path, body in (
        ("POST", TRANSACTIONS, b"{"), ("POST", TRANSACTIONS, b'{"timeout":0}'),
        ("GET", f"{TRANSACTIONS}/abc", None), ("POST", f"{TRANSACTIONS}/abc/commit", None),
        ("POST", f"{TRANSACTIONS}/7/commit", b'{"bogus":1}'), ("POST", f"{TRANSACTIONS}/run", b""),
        ("GET", f"{TRANSACTIONS}?bogus=1", None), ("POST", f"{TRANSACTIONS}/7/renew", b"{"),
        ("POST", f"{TRANSACTIONS}/invalid/truncate", b"{}"), ("POST", "/v1/sinks/s/epochs/x", b"{"),
    ):  # fmt: skip
        unavailable(own.send(method, path, body, content_type=JSON))
    refused(
        own.send("POST", f"{TRANSACTIONS}/service/stop", b"{", content_type=JSON), 400,
        "bad_request",
    )  # fmt: skip


def test_messaging_goes_on_while_the_service_is_stopped(own: Client, own_topic: Topic) -> None:
    stop(own)
    other = Topic(own, own_topic.namespace, f"{own_topic.name}-other")

    ok(other.create({"ttl": 60}))
    ok(other.update({"ttl": 90}))
    ok(other.publish("a"))
    ok(other.avro("publish", publish_request([b"b"])))

    assert other.read() == ["a", "b"]
    assert ok(other.avro("poll", bytes.fromhex("04 01 00 14 02"))).header("Content-Type") == AVRO
    assert ok(other.offsets()).json["end"] is not None
    ok(other.truncate(2**62))
    ok(other.delete())


def test_what_was_committed_right_before_a_stop_is_readable(own: Client, own_topic: Topic) -> None:
    """Its confirmation was synced by the tick of a running service only, and readers waited."""
    ok(begin(own).commit(publish=[entry(own_topic, "committed")]))
    ok(own.post(f"{TRANSACTIONS}/service/stop"))

    until(lambda: own_topic.poll(isolation="committed").status == 200, what="it to be readable")

    assert own_topic.committed() == ["committed"]


def test_a_poll_with_the_transaction_in_its_body_needs_no_service(
    own: Client, own_topic: Topic
) -> None:
    writer = begin(own)
    ok(own_topic.publish("a"))
    ok(own_topic.publish("held", tx=writer.id))
    snapshot = begin(own).object["encoded"]
    stop(own)

    assert own_topic.read({"transaction": snapshot}) == ["a"]
    ok(own_topic.publish("b"))
    assert own_topic.read({"transaction": snapshot}, undecided="skip") == ["a", "b"]


def test_transactions_open_at_a_stop_can_commit_after_the_start(
    own: Client, own_topic: Topic
) -> None:
    tx, committing, late = begin(own), begin(own), begin(own, timeout=0.3)
    ok(own_topic.publish("a", tx=tx.id))
    ok(committing.can_commit("k"))
    stop(own)
    start(own)

    ok(tx.commit(publish=[entry(own_topic, "b")]))
    ok(committing.commit(changes=["k"]))

    assert own_topic.committed() == ["a", "b"]
    until(lambda: late.state() == "invalid")


def test_stopping_and_starting_twice_is_no_error(own: Client) -> None:
    for _ in range(2):
        stop(own)
    for _ in range(2):
        start(own)

    ok(begin(own).commit())


def test_pointers_grow_across_a_stop(own: Client) -> None:
    before = begin(own)
    stop(own)
    start(own)

    after = begin(own)

    assert int(after.id) > int(before.id)
    assert before.id in after.object["inProgress"]


def test_readiness_says_that_transactions_are_down(own: Client) -> None:
    assert ok(own.get("/health/ready")).json["status"] == "ok"
    stop(own)

    shown = ok(own.get("/health/ready")).json

    assert shown["status"] == "degraded"
    assert shown["checks"]["transactions"]["status"] != "ok"
    assert shown["checks"]["storage"]["status"] == "ok"
    start(own)
    assert ok(own.get("/health/ready")).json["status"] == "ok"


def test_a_server_can_live_without_transactions(new_server: NewServer) -> None:
    client = new_server("tx.enabled=false").client()
    topic = created(client, "default", "t")
    ok(topic.publish("a"))

    assert topic.read() == ["a"]
    detail = {
        "transactionWritePointer": "1", "startTimestamp": 1, "startSequenceId": 0,
        "endTimestamp": 1, "endSequenceId": 0,
    }  # fmt: skip
    refuses_transactions(client, topic, Tx(client, {"transactionId": "1"}), detail)
    assert topic.committed() == ["a"]
    ok(client.get("/health/ready"))


def test_a_service_stopped_stays_up_for_messages_after_a_restart(new_server: NewServer) -> None:
    first = new_server()
    client = first.client()
    topic = created(client, "default", "t")
    tx = begin(client)
    ok(topic.publish("a", tx=tx.id))
    stop(client)
    ok(topic.publish("b"))
    assert first.terminate() == 0

    client = new_server(home=first.home).client()

    topic = Topic(client, "default", "t")
    assert topic.read() == ["a", "b"]
