"""Topics that are truncated, deleted or made again under open transactions (protocol §2, §3)."""

from tests.http.calls import Topic, begin, payloads
from tests.http.client import Client, ok, refused
from tests.http.conftest import NewTopic


def test_a_transaction_publishes_to_the_new_generation(client: Client, topic: Topic) -> None:
    tx = begin(client)
    detail = ok(topic.publish("old", tx=tx.id)).json
    ok(topic.delete())
    refused(topic.publish("between", tx=tx.id), 404, "topic_not_found")
    ok(topic.create())
    assert topic.read() == []
    ok(topic.publish("new", tx=tx.id))
    ok(topic.rollback(detail))

    ok(tx.commit())

    assert topic.committed() == topic.read() == ["new"]


def test_a_transaction_ends_although_one_of_its_topics_was_deleted(
    client: Client, new_topic: NewTopic
) -> None:
    for ending, state in (("commit", "committed"), ("abort", "aborted"), ("invalidate", "invalid")):
        here, there = new_topic(), new_topic()
        tx = begin(client)
        ok(here.publish("a", tx=tx.id))
        ok(there.publish("b", tx=tx.id))
        ok(here.delete())

        assert ok(getattr(tx, ending)()).json["state"] == state

        assert there.committed() == (["b"] if ending == "commit" else [])


def test_a_truncated_row_holds_no_reader_back_and_stays_hidden(
    client: Client, topic: Topic
) -> None:
    committed, aborted = begin(client), begin(client)
    for tx in (committed, aborted):
        ok(topic.publish("held", tx=tx.id))
    ok(topic.store("stored", tx=committed.id))
    ok(topic.publish("also gone"))
    assert topic.committed() == []

    ok(topic.truncate(2**62))
    ok(topic.publish("later"))

    reply = ok(topic.poll(isolation="committed"))
    assert payloads(reply) == ["later"]
    assert reply.header("Tuff-Blocked-By") is None
    ok(topic.publish(tx=committed.id))
    ok(committed.commit())
    assert ok(aborted.abort()).json == {"state": "aborted"}
    assert topic.committed() == ["later", "stored"]


def test_a_truncation_inside_a_group_keeps_its_rest(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("a", "b", "c", tx=tx.id))
    ok(topic.publish(tx=tx.id))
    ok(tx.commit())
    second = ok(topic.poll()).json[1]["id"]

    reply = ok(topic.truncate(second))

    assert reply.json == {"earliest": second}
    assert topic.read() == ["b", "c"]
