"""Acknowledgement levels of a publish without a transaction (protocol §3.1)."""

import pytest

from tests.http.calls import Topic, begin, ids
from tests.http.client import AVRO, Client, ok, refused
from tests.http.conftest import NewServer

IDS = ("Tuff-First-Id", "Tuff-Last-Id")


def test_a_reply_names_its_level_and_the_ids_that_it_knows(topic: Topic) -> None:
    durable = ok(topic.publish("a", ack="durable"))
    received = ok(topic.publish("b", "c", ack="received"))
    none = ok(topic.publish("d", ack="none"))
    unnamed = ok(topic.publish("e"))

    found = ids(topic.poll())
    assert topic.read() == ["a", "b", "c", "d", "e"]
    assert [durable.header(name) for name in IDS] == [found[0], found[0]]
    assert [received.header(name) for name in IDS] == [found[1], found[2]]
    assert [none.header(name) for name in IDS] == [None, None]
    assert [unnamed.header(name) for name in IDS] == [found[4], found[4]]
    levels = [reply.header("Tuff-Ack") for reply in (durable, received, none, unnamed)]
    assert levels == ["durable", "received", "none", None]
    assert {reply.body for reply in (durable, received, none)} == {b""}


def test_all_forms_of_a_request_have_all_levels(topic: Topic) -> None:
    for ack in ("none", "received", "durable"):
        ok(topic.avro("publish", bytes.fromhex("0204026104626300"), ack=ack, ttl=60))
        ok(topic.publish({"payload": "d", "ttl": 5}, ack=ack))

    assert topic.read() == ["a", "bc", "d"] * 3


def test_a_publish_under_a_transaction_is_durable(client: Client, topic: Topic) -> None:
    tx = begin(client)

    for ack in ("none", "received"):
        problem = refused(topic.publish("a", tx=tx.id, ack=ack), 400, "bad_request")
        assert f"ack={ack} is only for a publish without a transaction" in problem["detail"]
    reply = ok(topic.publish("a", tx=tx.id, ack="durable"))

    assert reply.header("Tuff-Ack") == "durable"
    assert reply.json["transactionWritePointer"] == tx.id
    assert topic.read() == ["a"]


@pytest.mark.parametrize("ack", ["none", "received"])
def test_what_can_be_refused_before_is_refused_with_every_level(
    topic: Topic, missing: Topic, ack: str
) -> None:
    for level in ("", "all", "None", "0"):
        problem = refused(topic.publish("a", ack=level), 400, "bad_request")
        assert "ack is none, received or durable" in problem["detail"]
    refused(topic.publish(7, ack=ack), 400, "bad_request")
    refused(topic.publish(ack=ack), 400, "empty_publish")
    refused(topic.publish("a", ack=ack, ttl=1 << 31), 400, "invalid_ttl")
    refused(topic.publish("a", ack=ack, ttl=(1 << 31) - 1), 400, "invalid_ttl")
    refused(missing.publish("a", ack=ack), 404, "topic_not_found")
    refused(topic.avro("publish", b"\x02\x02", ack=ack), 400, "bad_request")
    wrong_place = refused(topic.store("a", tx="1", ack=ack), 400, "bad_request")
    assert 'no query parameter "ack"' in wrong_place["detail"]

    assert topic.read() == []


def test_messages_of_one_connection_keep_their_order_over_all_levels(topic: Topic) -> None:
    levels = ("none", "received", "durable", "none", "none")
    for number in range(200):
        ok(topic.publish(str(number), ack=levels[number % len(levels)]))
    ok(topic.publish("last"))

    assert topic.read() == [*map(str, range(200)), "last"]


def test_a_kill_loses_nothing_durable_and_leaves_no_gap(new_server: NewServer) -> None:
    running = new_server()
    topic = Topic(running.client(), "default", "killed")
    ok(topic.create())
    sent: list[str] = []
    durable_count = 0
    for number in range(300):
        ack = "durable" if number % 100 == 99 else ("none", "received")[number % 2]
        ok(topic.publish(str(number), ack=ack))
        sent.append(str(number))
        durable_count = len(sent) if ack == "durable" else durable_count
    for number in range(300, 320):  # these may be lost
        ok(topic.publish(str(number), ack="none"))
        sent.append(str(number))

    running.kill()

    found = Topic(new_server(home=running.home).client(), "default", "killed").read()
    assert len(found) >= durable_count
    assert found == sent[: len(found)]


def test_avro_is_answered_without_a_body(topic: Topic) -> None:
    reply = ok(topic.avro("publish", bytes.fromhex("02020261 00"), accept=AVRO, ack="none"))

    assert (reply.body, reply.header("Content-Type")) == (b"", None)
