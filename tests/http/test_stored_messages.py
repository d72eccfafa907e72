"""Storing payloads ahead of a publish, and the reference row that brings them (protocol §3.2)."""

import pytest

from tests.http.calls import Topic, begin, entry, ids
from tests.http.client import Client, ok, problem_of, refused, until
from tests.http.conftest import NewTopic


def test_a_stored_message_is_visible_to_no_reader_until_it_is_published(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)

    reply = topic.store("a", "b", tx=tx.id)

    assert (reply.status, reply.body) == (200, b"")
    assert topic.read() == topic.read(tx=tx.id) == []
    assert ok(topic.offsets()).json["end"] is None


def test_a_reference_brings_what_was_stored_together_and_in_order(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.store("a", "b", tx=tx.id))
    ok(topic.publish("between"))
    ok(topic.store("c", tx=tx.id))
    reply = ok(topic.publish(tx=tx.id))
    ok(topic.publish("after"))

    assert topic.read() == topic.read(tx=tx.id) == ["between", "a", "b", "c", "after"]
    assert topic.committed() == ["between"]
    ok(tx.commit())
    assert topic.committed() == ["between", "a", "b", "c", "after"]
    found = ids(topic.poll())
    assert found == sorted(set(found))
    first, detail = found[1], reply.json
    for name in ("Tuff-First-Id", "Tuff-Last-Id"):
        assert str(reply.header(name))[:20] == first[:20]
    assert detail["startTimestamp"] == detail["endTimestamp"] == int(first[:16], 16)
    assert detail["startSequenceId"] == detail["endSequenceId"] == int(first[16:20], 16)
    assert topic.read({"startFrom": found[2]}, through=found[3]) == ["b", "c"]
    assert topic.read({"startFrom": found[2], "inclusive": False}) == ["c", "after"]


def test_each_pointer_has_its_own_stored_messages_in_each_topic(
    client: Client, new_topic: NewTopic
) -> None:
    here, there = new_topic(), new_topic()
    tx = begin(client)
    ok(here.store("first", tx=tx.id))
    checkpoint = ok(tx.checkpoint()).json["writePointer"]
    ok(here.store("second", tx=checkpoint))
    for topic, pointer in ((there, tx.id), (here, checkpoint), (here, tx.id)):
        ok(topic.publish(tx=pointer))
    assert there.read() == []
    ok(there.publish("after"))
    assert there.committed() == []

    ok(tx.commit())

    assert here.committed() == ["second", "first"]
    assert there.committed() == ["after"]


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
    ok(tx.commit(publish=[entry(topic, "new")]))
    assert topic.committed() == ["new"]


def test_what_can_not_be_stored_is_refused(
    client: Client, new_topic: NewTopic, missing: Topic
) -> None:
    topic = new_topic({"ttl": 100})
    tx = begin(client)

    for reply in (topic.store("a"), topic.store(tx=tx.id), topic.store(), missing.store("a")):
        refused(reply, 400, "bad_request")
    for ttl in ("0", "101", "x"):
        refused(topic.store("a", tx=tx.id, ttl=ttl), 400, "invalid_ttl")
    refused(missing.store("a", tx=tx.id), 404, "topic_not_found")

    ok(topic.publish(tx=tx.id))
    assert topic.read() == []
    ok(topic.store("a", tx=tx.id))
    assert problem_of(topic.publish(tx=tx.id, ttl=5))["status"] == 400
    assert topic.read() == []


@pytest.mark.slow
def test_the_ttl_of_a_stored_message_counts_from_the_publish(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("a", {"payload": "long", "ttl": 1000}, tx=tx.id, ttl=2))
    stored_by = ok(topic.publish("clock")).header("Tuff-First-Id")
    stored_ms = int(str(stored_by)[:16], 16)

    def its_ttl_has_passed() -> bool:
        return int(str(ok(topic.publish("clock")).header("Tuff-Last-Id"))[:16], 16) > (
            stored_ms + 2000
        )

    until(its_ttl_has_passed)
    start = ok(topic.publish(tx=tx.id)).header("Tuff-First-Id")
    assert topic.read({"startFrom": start}) == ["a", "long"]

    until(lambda: topic.read({"startFrom": start}) == ["long"])
