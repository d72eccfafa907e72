"""Publishing, with and without a transaction (protocol §3.1)."""

import json

import pytest

from tests.http.calls import Topic, begin, entry, ids, payloads
from tests.http.client import AVRO, JSON, Client, ok, problem_of, refused, until
from tests.http.conftest import NewTopic
from tests.http.forms import PUBLISH_RESPONSE, decode


def test_a_plain_publish_answers_200_empty_and_is_visible_at_once_to_every_reader(
    client: Client, topic: Topic
) -> None:
    before = begin(client)

    reply = topic.publish("a", "b", "c")
    second = ok(topic.publish("d"))

    assert (reply.status, reply.body) == (200, b"")
    assert topic.read() == topic.committed() == topic.read(tx=before.id) == ["a", "b", "c", "d"]
    found = ids(topic.poll())
    assert reply.header("Tuff-First-Id") == found[0]
    assert reply.header("Tuff-Last-Id") == found[2]
    assert second.header("Tuff-First-Id") == second.header("Tuff-Last-Id") == found[3]
    assert found == sorted(set(found))
    # An inline payload's id ends in zeros.
    assert all(one == one.lower() and len(one) == 40 and one[20:] == "0" * 20 for one in found)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("", ""),
        ("grüße 😀 \u0000", "grüße 😀 \u0000"),
        ({"base64": "aGk="}, "hi"),
        ({"base64": "7aCA"}, {"base64": "7aCA"}),
        ({"payload": {"base64": "/wA="}, "ttl": 5}, {"base64": "/wA="}),
    ],
)
def test_a_payload_is_shown_as_a_string_exactly_if_it_is_utf_8(
    topic: Topic, sent: object, shown: object
) -> None:
    ok(topic.publish(sent))

    assert topic.read() == [shown]


@pytest.mark.parametrize(
    "message", [7, {"base64": "/wA"}, {"payload": None}, {"payload": "a", "size": 1}, "\ud800"]
)
def test_a_malformed_message_refuses_the_whole_publish(topic: Topic, message: object) -> None:
    refused(topic.publish("good", message), 400, "bad_request")

    assert topic.read() == []


@pytest.mark.parametrize(
    "body", [b"", b"null", b"{", b'{"messages": "a"}', b'{"messages": ["\xff"]}', b"[" * 100_000]
)
def test_a_malformed_body_is_refused_even_for_a_missing_topic(
    client: Client, topic: Topic, missing: Topic, body: bytes
) -> None:
    for place in (topic, missing):
        reply = client.send("POST", f"{place.path}/publish", body, content_type=JSON)
        assert problem_of(reply)["status"] == 400
        refused(place.publish(), 400, "empty_publish")
        refused(place.publish("a", tx="1e3"), 400, "bad_request")

    assert topic.read() == []


@pytest.mark.slow
def test_a_publish_of_more_rows_than_a_millisecond_holds_keeps_its_order(topic: Topic) -> None:
    count = 66_000  # a sequence id has 16 bits

    reply = ok(topic.publish(*map(str, range(count))))

    found: list[str] = []
    last_id, start = "", "0" * 40
    while page := topic.poll({"startFrom": start, "inclusive": False}):
        if not ok(page).json:
            break
        found += payloads(page)
        start = last_id = ids(page)[-1]
    assert found == list(map(str, range(count)))
    assert last_id == reply.header("Tuff-Last-Id")


@pytest.mark.parametrize("ttl", ["0", "1.5", "", "101", "99999999999999999999"])
def test_a_ttl_that_is_no_legal_one_is_refused(
    client: Client, new_topic: NewTopic, ttl: str
) -> None:
    """Also where every message names its own."""
    topic, tx = new_topic({"ttl": 100}), begin(client)
    own = {"payload": "a", "ttl": 5}

    for reply in (
        topic.publish("a", ttl=ttl), topic.publish(own, ttl=ttl),
        topic.publish(own, tx=tx.id, ttl=ttl), topic.store(own, tx=tx.id, ttl=ttl),
    ):  # fmt: skip
        refused(reply, 400, "invalid_ttl")
    assert problem_of(topic.publish("a", {"payload": "b", "ttl": ttl}))["status"] == 400

    assert topic.read() == []


def test_a_messages_own_ttl_wins_over_the_requests(topic: Topic) -> None:
    ok(topic.publish("request's", {"payload": "own", "ttl": 1000}, ttl=2))
    ok(topic.publish("topic's", {"payload": "own and short", "ttl": 2}))
    assert topic.read() == ["request's", "own", "topic's", "own and short"]

    until(lambda: topic.read() == ["own", "topic's"])

    assert topic.committed() == ["own", "topic's"]


@pytest.mark.parametrize("form", [str, int])
def test_a_publish_in_a_transaction_answers_where_its_rows_are(
    client: Client, topic: Topic, form: type
) -> None:
    tx = begin(client)

    reply = ok(topic.publish("a", "b", tx=form(tx.id)))

    first, last = ids(topic.poll())
    assert reply.json == {
        "transactionWritePointer": tx.id,
        "startTimestamp": int(first[:16], 16),
        "startSequenceId": int(first[16:20], 16),
        "endTimestamp": int(last[:16], 16),
        "endSequenceId": int(last[16:20], 16),
    }
    assert reply.header("Tuff-First-Id") == first
    assert reply.header("Tuff-Last-Id") == last


def test_a_publish_in_a_transaction_can_be_answered_in_avro(client: Client, topic: Topic) -> None:
    tx = begin(client)
    body = json.dumps({"transactionWritePointer": tx.id, "messages": ["a"]}).encode()

    reply = client.send(
        "POST", f"{topic.path}/publish", body, content_type=JSON, headers={"Accept": AVRO}
    )

    assert ok(reply).header("Content-Type") == AVRO
    assert decode(PUBLISH_RESPONSE, reply.body)["transactionWritePointer"] == int(tx.id)


@pytest.mark.parametrize("kind", ["short", "long"])
def test_a_checkpoint_pointer_may_publish(client: Client, topic: Topic, kind: str) -> None:
    tx = begin(client, type=kind)
    pointer = ok(tx.checkpoint()).json["writePointer"]

    reply = ok(topic.publish("under checkpoint", tx=pointer))
    ok(topic.publish("under id", tx=tx.id))

    assert reply.json["transactionWritePointer"] == pointer
    assert topic.committed() == []
    ok(tx.commit())
    assert topic.committed() == ["under checkpoint", "under id"]


def test_a_publish_in_a_transaction_to_a_missing_topic_changes_nothing(
    client: Client, missing: Topic, topic: Topic
) -> None:
    tx = begin(client)

    refused(missing.publish("a", tx=tx.id), 404, "topic_not_found")

    assert tx.state() == "in_progress"
    ok(tx.commit(publish=[entry(topic, "b")]))
    assert topic.committed() == ["b"]


def test_a_charset_beside_the_media_type_is_taken(client: Client, topic: Topic) -> None:
    body = '{"messages": ["ü"]}'.encode()
    kind = "application/json; charset=utf-8"

    ok(client.send("POST", f"{topic.path}/publish", body, content_type=kind))

    assert topic.read() == ["ü"]
