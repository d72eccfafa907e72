"""Storing payloads ahead of a publish, and the reference row that brings them (protocol §3.2)."""

import pytest

from tests.http.calls import Topic, begin, entry, ids
from tests.http.client import Client, ok, problem_of, refused, until
from tests.http.conftest import NewTopic


def test_a_store_needs_a_transaction_and_messages(client: Client, topic: Topic) -> None:
    tx = begin(client)

    refused(topic.store("a"), 400, "bad_request")
    refused(topic.store(tx=tx.id), 400, "bad_request")
    refused(topic.store(), 400, "bad_request")

    ok(topic.publish(tx=tx.id))
    assert topic.read() == []


def test_a_stored_message_is_visible_to_nobody_until_published(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)

    reply = topic.store("a", "b", tx=tx.id)

    assert (reply.status, reply.body) == (200, b"")
    assert topic.read() == []
    assert topic.read(tx=tx.id) == []
    assert ok(topic.offsets()).json["end"] is None


def test_a_reference_brings_what_was_stored_together_and_in_order(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.store("a", "b", tx=tx.id))
    ok(topic.publish("between"))
    ok(topic.store("c", tx=tx.id))
    ok(topic.publish(tx=tx.id))
    ok(topic.publish("after"))

    assert topic.read() == ["between", "a", "b", "c", "after"]
    assert topic.read(tx=tx.id) == ["between", "a", "b", "c", "after"]
    assert topic.committed() == ["between"]
    ok(tx.commit())
    assert topic.committed() == ["between", "a", "b", "c", "after"]
    found = ids(topic.poll())
    assert found == sorted(set(found))


def test_a_reference_to_nothing_brings_nothing_and_is_decided_like_any_row(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)

    reply = ok(topic.publish(tx=tx.id))
    ok(topic.publish("after"))

    assert reply.json["transactionWritePointer"] == tx.id
    assert topic.read() == ["after"]
    assert topic.committed() == []
    ok(tx.commit())
    assert topic.committed() == ["after"]


def test_the_reply_to_a_reference_names_its_row(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("a", "b", tx=tx.id))

    reply = ok(topic.publish(tx=tx.id))

    first, last = ids(topic.poll())
    row = reply.header("Tuff-First-Id")
    assert row is not None
    assert row[:20] == first[:20] == last[:20]
    assert (reply.header("Tuff-Last-Id") or "")[:20] == row[:20]
    detail = reply.json
    assert detail["startTimestamp"] == detail["endTimestamp"] == int(first[:16], 16)
    assert detail["startSequenceId"] == detail["endSequenceId"] == int(first[16:20], 16)


def test_an_id_inside_a_group_starts_there(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("a", "b", "c", tx=tx.id))
    ok(topic.publish(tx=tx.id))
    ok(tx.commit())
    found = ids(topic.poll())

    assert topic.read({"startFrom": found[1]}) == ["b", "c"]
    assert topic.read({"startFrom": found[1], "inclusive": False}) == ["c"]
    assert topic.read(through=found[1]) == ["a", "b"]


def test_each_pointer_of_a_transaction_has_its_own_stored_messages(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.store("first", tx=tx.id))
    checkpoint = ok(tx.checkpoint()).json["writePointer"]
    ok(topic.store("second", tx=checkpoint))
    ok(topic.publish(tx=checkpoint))
    ok(topic.publish(tx=tx.id))
    ok(tx.commit())

    assert topic.committed() == ["second", "first"]


def test_a_reference_in_another_topic_brings_nothing(client: Client, new_topic: NewTopic) -> None:
    here, there = new_topic(), new_topic()
    tx = begin(client)
    ok(here.store("a", tx=tx.id))

    ok(there.publish(tx=tx.id))

    assert there.read() == []
    ok(here.publish(tx=tx.id))
    assert here.read() == ["a"]


def test_stored_messages_of_an_aborted_transaction_never_appear(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.store("a", tx=tx.id))
    ok(topic.publish(tx=tx.id))
    ok(tx.abort())

    assert topic.committed() == []
    assert topic.read() == ["a"]


def test_a_reference_brings_all_that_was_stored_or_says_what_became_of_it(
    client: Client, topic: Topic
) -> None:
    """The refusal said that there was no such topic, beside one of that name."""
    tx = begin(client)
    ok(topic.store("gone", tx=tx.id))
    ok(topic.delete())
    ok(topic.create())
    ok(topic.store("there", tx=tx.id))

    for refusal in (topic.publish(tx=tx.id), tx.commit(publish=[entry(topic)])):
        refused(
            refusal, 404, "topic_not_found", naming="was deleted after messages had been stored"
        )

    assert topic.read() == []
    ok(tx.abort())
    again = begin(client)
    ok(topic.store("again", tx=again.id))
    ok(topic.publish(tx=again.id))
    assert topic.read() == ["again"]


def test_a_ttl_on_a_publish_without_messages_is_refused(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("a", tx=tx.id))

    assert problem_of(topic.publish(tx=tx.id, ttl=5))["status"] == 400

    assert topic.read() == []


def test_the_ttl_of_a_stored_message_must_be_legal(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic({"ttl": 100})
    tx = begin(client)

    for ttl in ("0", "101", "x"):
        refused(topic.store("a", tx=tx.id, ttl=ttl), 400, "invalid_ttl")

    ok(topic.publish(tx=tx.id))
    assert topic.read() == []


@pytest.mark.slow
def test_the_ttl_of_a_stored_message_counts_from_the_publish(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("a", {"payload": "long", "ttl": 1000}, tx=tx.id, ttl=1))
    stored_by = ok(topic.publish("clock")).header("Tuff-First-Id")
    stored_ms = int(str(stored_by)[:16], 16)

    def a_second_has_passed() -> bool:
        return int(str(ok(topic.publish("clock")).header("Tuff-Last-Id"))[:16], 16) > (
            stored_ms + 1000
        )

    until(a_second_has_passed, within_s=3)
    start = ok(topic.publish(tx=tx.id)).header("Tuff-First-Id")
    assert topic.read({"startFrom": start}) == ["a", "long"]

    until(lambda: topic.read({"startFrom": start}) == ["long"], within_s=3)


def test_a_store_to_a_missing_topic_is_refused(client: Client, missing: Topic) -> None:
    refused(missing.store("a", tx=begin(client).id), 404, "topic_not_found")
    refused(missing.store("a"), 400, "bad_request")
