"""Errors: every call names what it does not know, and changes nothing (protocol §1)."""

import socket

import pytest

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, entry
from tests.http.client import JSON, Client, ok, problem_of, refused
from tests.http.process import ServerProcess
from tuff.protocol.operations import OPERATIONS, Operation

# Those of a cluster are tested in tests/cluster.
OF_EVERY_SERVER = [each for each in OPERATIONS if each.tag != "cluster"]


@pytest.mark.parametrize("endpoint", OF_EVERY_SERVER, ids=lambda each: each.name)
def test_a_call_names_a_parameter_it_does_not_know(
    client: Client, topic: Topic, endpoint: Operation
) -> None:
    tx = begin(client)
    path = endpoint.path.format(
        ns=topic.namespace, t=topic.name, tx=tx.id, name="x", sink="x", epoch="1", g="g",
        share="s", id=f"{0:040x}", version="x", file="x", message=f"{0:040x}",
    )  # fmt: skip
    body: object = {} if endpoint.method in {"PUT", "POST"} else None

    reply = client.call(endpoint.method, path, body, bogus="1")

    refused(reply, 400, "bad_request", naming="bogus")
    assert tx.state() == "in_progress"


@pytest.mark.parametrize("path", ["/v1/namespaces", "/health/live?", "/nowhere", "/v1/backup"])
def test_every_reply_names_the_server_and_no_library(client: Client, path: str) -> None:
    """A backup named the library, and its version."""
    assert client.send("GET", path).header("Server") == "tuff"


@pytest.mark.parametrize("call", ["truncate", "publish", "store", "rollback", "poll"])
def test_a_topic_call_names_a_member_it_does_not_know(
    client: Client, topic: Topic, call: str
) -> None:
    tx = begin(client)
    detail = ok(topic.publish("a", tx=tx.id)).json
    bodies: dict[str, dict[str, object]] = {
        "truncate": {"before": 2**62},
        "publish": {"messages": ["x"]},
        "store": {"messages": ["x"], "transactionWritePointer": tx.id},
        "rollback": detail,
        "poll": {"limit": 1},
    }

    reply = client.post(f"{topic.path}/{call}", {**bodies[call], "bogus": 1})

    refused(reply, 400, "bad_request", naming="bogus")
    assert topic.read() == ["a"]
    ok(tx.commit())
    assert topic.committed() == ["a"]


@pytest.mark.parametrize("call", ["", "/run", "/{tx}/can-commit", "/{tx}/commit"])
def test_a_transaction_call_names_a_member_it_does_not_know(client: Client, call: str) -> None:
    tx = begin(client)
    path = TRANSACTIONS + call.format(tx=tx.id)

    refused(client.post(path, {"bogus": 1}), 400, "bad_request", naming="bogus")

    assert tx.state() == "in_progress"


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v2/namespaces", "/v1/namespace", "/health", "/health/x", "/v1/transactionsx",
     "/v1/namespaces/default/topics/t/publish/x", "/v1/transactions/1/publish",
     "/v1/transactions/service/restart", "//", "/v1/namespaces/default"],
)  # fmt: skip
def test_an_unknown_address_is_404(client: Client, path: str) -> None:
    refused(client.get(path), 404, "not_found", naming="/openapi.json")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/transactions/run", "POST"),
        ("/v1/transactions/invalid", "GET"),
        ("/v1/transactions/snapshot", "GET, POST"),
        ("/v1/transactions/7", "GET"),
        ("/v1/transactions/7/commit", "POST"),
        ("/v1/transactions", "GET, POST"),
    ],
)
def test_a_fixed_path_is_not_taken_for_a_transaction_id(
    client: Client, path: str, allowed: str
) -> None:
    reply = client.send("OPTIONS", path)

    refused(reply, 405, "method_not_allowed")
    assert reply.header("Allow") == allowed


@pytest.mark.parametrize("call", ["publish", "store", "poll", "rollback"])
def test_a_message_call_takes_json_and_avro_only(client: Client, topic: Topic, call: str) -> None:
    for kind in ("text/plain", "application/octet-stream", "application/xml", "avro/json", "x"):
        reply = client.send("POST", f"{topic.path}/{call}", b"{}", content_type=kind)
        refused(reply, 415, "unsupported_media_type", naming=kind)

    assert topic.read() == []


def test_a_body_without_a_content_type_is_json(client: Client, topic: Topic) -> None:
    """The ancestor's client sends its properties so, and was answered 415."""
    for content_type in (None, "", " "):
        path = f"{topic.path}/properties"
        ok(client.send("PUT", path, b'{"ttl":"60"}', content_type=content_type))
        body = b'{"messages":["one"]}'
        ok(client.send("POST", f"{topic.path}/publish", body, content_type=content_type))
        reply = client.send("PUT", path, b"ttl=60", content_type=content_type)
        refused(reply, 400, "invalid_topic_properties")

    assert len(topic.read()) == 3


def test_all_other_calls_take_json_only(client: Client, topic: Topic) -> None:
    tx = begin(client)
    for method, path in (
        ("PUT", f"{topic.path}/properties"), ("POST", f"{topic.path}/truncate"),
        ("POST", TRANSACTIONS), ("POST", f"{TRANSACTIONS}/run"), ("POST", f"{tx.path}/commit"),
        ("POST", f"{tx.path}/can-commit"), ("POST", f"{TRANSACTIONS}/invalid/truncate"),
    ):  # fmt: skip
        for kind in ("avro/binary", "text/plain"):
            reply = client.send(method, path, b"{}", content_type=kind)
            refused(reply, 415, "unsupported_media_type", naming=kind)

    assert tx.state() == "in_progress"


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe{}", b"{}{}", b'{"a":' * 50_000, b"NaN"])
def test_a_body_that_is_no_json_object_is_refused_everywhere(
    client: Client, topic: Topic, body: bytes
) -> None:
    tx = begin(client)
    for path in (
        f"{topic.path}/truncate", f"{topic.path}/poll", f"{topic.path}/store",
        f"{topic.path}/rollback", TRANSACTIONS, f"{TRANSACTIONS}/run", f"{tx.path}/commit",
        f"{tx.path}/can-commit", f"{TRANSACTIONS}/invalid/truncate",
    ):  # fmt: skip
        reply = client.send("POST", path, body, content_type=JSON)
        assert problem_of(reply)["status"] == 400, reply

    assert tx.state() == "in_progress"
    assert topic.read() == []


@pytest.mark.parametrize("name", ["%ff", "%zz", "%C3%28", "a%00b", "%"])
def test_a_name_that_is_no_utf_8_is_refused(client: Client, name: str) -> None:
    assert problem_of(client.get(f"/v1/namespaces/default/topics/{name}"))["status"] == 400


@pytest.mark.parametrize("query", ["wait=%ff", "%ff=1", "isolation=%00", "isolation=all&bogus"])
def test_a_query_that_is_no_utf_8_is_refused(client: Client, topic: Topic, query: str) -> None:
    reply = client.send("POST", f"{topic.path}/poll?{query}", b"{}", content_type=JSON)

    assert problem_of(reply)["status"] == 400


def test_a_body_that_is_cut_off_changes_nothing(server: ServerProcess, topic: Topic) -> None:
    head = f"POST {topic.path}/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f'{head}Content-Length: 500\r\n\r\n{{"messages": ["a"]}}'.encode())

    ok(topic.publish("after"))
    assert topic.read() == ["after"]


def test_a_refusal_names_the_value(client: Client, topic: Topic) -> None:
    tx = Tx(client, {"transactionId": "1000000000000000007"})

    refused(topic.poll(isolation="sometimes"), 400, "bad_request", naming="sometimes")
    refused(topic.poll(wait="soon"), 400, "bad_request", naming="soon")
    refused(topic.poll({"limit": -7}), 400, "bad_request", naming="-7")
    refused(topic.publish("a", ttl="soon"), 400, "invalid_ttl", naming="soon")
    refused(topic.update({"ttl": "soon"}), 400, "invalid_topic_properties", naming="soon")
    refused(client.post(TRANSACTIONS, {"timeout": -7}), 400, "invalid_timeout", naming="-7")
    refused(tx.commit(), 404, "transaction_unknown", naming="1000000000000000007")
    refused(client.put("/v1/namespaces/a/topics/b%20c"), 400, "invalid_name", naming="b c")
    started = begin(client)
    refused(
        started.commit(publish=[entry(topic, "x", pointer="7")]), 400, "bad_request", naming="7"
    )
