"""Topics that are truncated, deleted or made again under open transactions (protocol §2, §3)."""

from tests.http.calls import Topic, begin, entry, payloads
from tests.http.client import Client, ok, refused
from tests.http.conftest import NewTopic


def test_a_commit_leaves_a_new_generation_empty(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.publish("old", tx=tx.id))
    ok(topic.delete())
    ok(topic.create())

    ok(tx.commit())

    assert topic.read() == []
    assert topic.committed() == []


def test_an_ending_takes_no_notice_of_a_deleted_topic(client: Client, new_topic: NewTopic) -> None:
    for ending, state in (("commit", "committed"), ("abort", "aborted"), ("invalidate", "invalid")):
        here, there = new_topic(), new_topic()
        tx = begin(client)
        ok(here.publish("a", tx=tx.id))
        ok(there.publish("b", tx=tx.id))
        ok(here.delete())

        assert ok(getattr(tx, ending)()).json["state"] == state

        assert there.committed() == (["b"] if ending == "commit" else [])


def test_a_rollback_in_a_new_generation_changes_nothing(client: Client, topic: Topic) -> None:
    tx = begin(client)
    detail = ok(topic.publish("old", tx=tx.id)).json
    ok(topic.delete())
    ok(topic.create())
    ok(topic.publish("new", tx=tx.id))

    ok(topic.rollback(detail))
    ok(tx.commit())

    assert topic.committed() == ["new"]


def test_a_commit_can_not_reference_what_was_stored_in_an_older_generation(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.store("old", tx=tx.id))
    ok(topic.delete())
    ok(topic.create())

    refused(tx.commit(publish=[entry(topic)]), 404, "topic_not_found")

    assert tx.state() == "in_progress"
    ok(tx.commit(publish=[entry(topic, "new")]))
    assert topic.committed() == ["new"]


def test_a_transaction_publishes_to_the_new_generation(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.publish("old", tx=tx.id))
    ok(topic.delete())
    refused(topic.publish("between", tx=tx.id), 404, "topic_not_found")
    ok(topic.create())
    ok(topic.publish("new", tx=tx.id))

    ok(tx.commit())

    assert topic.committed() == ["new"]


def test_a_truncated_row_holds_nobody_back_and_does_not_come_back(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.publish("held", tx=tx.id))
    ok(topic.publish("also gone"))
    assert topic.committed() == []

    ok(topic.truncate(2**62))
    ok(topic.publish("later"))

    reply = ok(topic.poll(isolation="committed"))
    assert payloads(reply) == ["later"]
    assert reply.header("Tuff-Blocked-By") is None
    ok(tx.commit())
    assert topic.committed() == ["later"]


def test_an_abort_after_a_truncation_is_an_abort(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.publish("gone", tx=tx.id))
    ok(topic.truncate(2**62))

    assert ok(tx.abort()).json == {"state": "aborted"}


def test_what_was_stored_before_a_truncation_can_still_be_published(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.store("stored", tx=tx.id))
    ok(topic.publish("gone"))
    ok(topic.truncate(2**62))

    ok(topic.publish(tx=tx.id))
    ok(tx.commit())

    assert topic.committed() == ["stored"]


def test_a_truncation_inside_a_group_keeps_its_rest(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("a", "b", "c", tx=tx.id))
    ok(topic.publish(tx=tx.id))
    ok(tx.commit())
    second = ok(topic.poll()).json[1]["id"]

    reply = ok(topic.truncate(second))

    assert reply.json == {"earliest": second}
    assert topic.read() == ["b", "c"]


def test_next_lies_past_a_group_that_was_skipped(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.publish("a"))
    ok(topic.store("x", "y", "z", tx=tx.id))
    ok(topic.publish(tx=tx.id))
    ok(tx.abort())

    reply = ok(topic.poll(isolation="committed"))
    ok(topic.publish("b"))

    assert payloads(reply) == ["a"]
    assert reply.header("Tuff-Caught-Up") == "true"
    behind = {"startFrom": reply.header("Tuff-Next"), "inclusive": False}
    assert topic.read(behind, isolation="committed") == ["b"]
    assert topic.read(behind) == ["b"]


def test_next_of_a_read_that_skips_undecided_rows_leads_past_them(
    client: Client, topic: Topic
) -> None:
    writer = begin(client)
    ok(topic.publish("a"))
    ok(topic.publish("undecided", tx=writer.id))
    reader = begin(client)

    reply = ok(topic.poll(tx=reader.id, undecided="skip"))
    ok(topic.publish("b"))

    assert payloads(reply) == ["a"]
    assert reply.header("Tuff-Caught-Up") == "true"
    behind = {"startFrom": reply.header("Tuff-Next"), "inclusive": False}
    assert topic.read(behind, tx=reader.id, undecided="skip") == ["b"]


def test_many_generations_keep_their_messages_apart(client: Client, topic: Topic) -> None:
    last = ""
    for generation in range(2, 8):
        ok(topic.publish(f"of {generation - 1}"))
        first = str(ok(topic.publish("x")).header("Tuff-Last-Id"))
        assert first > last
        last = first
        ok(topic.delete())
        ok(topic.create())
        assert ok(topic.show()).json["generation"] == generation
        assert topic.read({"startFrom": 0}) == []
