"""Who sees what (protocol §6)."""

from typing import Any

import pytest

from tests.http.calls import Topic, begin, entry, payloads
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import NewServer, NewTopic

FUTURE = 2**62
NO_SHORT = "9223372036854775807"


def snapshot(
    *, read_pointer: int, invalids: tuple[int, ...] = (), in_progress: tuple[int, ...] = ()
) -> dict[str, Any]:
    """A reader's snapshot that no server has given out."""
    return {
        "transactionId": str(FUTURE), "writePointer": str(FUTURE),
        "readPointer": str(read_pointer), "invalids": [str(one) for one in invalids],
        "inProgress": [str(one) for one in in_progress], "firstShortInProgress": NO_SHORT,
        "type": "short", "checkpointWritePointers": [], "visibilityLevel": "SNAPSHOT",
    }  # fmt: skip


@pytest.fixture
def mixed(client: Client, topic: Topic) -> tuple[Topic, int]:
    """A topic with a plain row, a row of a transaction in progress, a plain row."""
    tx = begin(client)
    ok(topic.publish("before"))
    ok(topic.publish("row", tx=tx.id))
    ok(topic.publish("after"))
    return topic, int(tx.id)


def test_a_row_at_or_below_the_read_pointer_is_delivered(mixed: tuple[Topic, int]) -> None:
    topic, pointer = mixed

    for read_pointer in (pointer, pointer + 1, FUTURE):
        body = {"transaction": snapshot(read_pointer=read_pointer)}
        assert topic.read(body) == ["before", "row", "after"]


def test_a_row_above_the_read_pointer_is_undecided(mixed: tuple[Topic, int]) -> None:
    topic, pointer = mixed
    body = {"transaction": snapshot(read_pointer=pointer - 1)}

    assert topic.read(body) == ["before"]
    assert topic.read(body, undecided="hold") == ["before"]
    assert topic.read(body, undecided="skip") == ["before", "after"]


def test_a_row_in_progress_for_the_snapshot_is_undecided(mixed: tuple[Topic, int]) -> None:
    topic, pointer = mixed
    body = {"transaction": snapshot(read_pointer=FUTURE, in_progress=(pointer, 5, 3))}

    assert topic.read(body) == ["before"]
    assert topic.read(body, undecided="skip") == ["before", "after"]


def test_what_a_level_keeps_from_its_own_transaction_is_skipped_and_never_waited_for(
    client: Client, topic: Topic
) -> None:
    """A reader was held for ever by the row of its own current write pointer: no ending of another
    could bring it, and its own would only have ended the reader."""
    tx = begin(client)
    ok(topic.publish("earlier", tx=tx.id))
    checkpoint = ok(tx.checkpoint()).json
    ok(topic.publish("current", tx=checkpoint["writePointer"]))
    ok(topic.publish("plain"))
    excluding = {**checkpoint, "visibilityLevel": "SNAPSHOT_EXCLUDE_CURRENT"}

    reply = ok(topic.poll({"transaction": excluding}))

    assert payloads(reply) == ["earlier", "plain"]
    assert reply.header("Tuff-Caught-Up") == "true"
    assert reply.header("Tuff-Blocked-By") is None
    assert topic.read({"transaction": checkpoint}) == ["earlier", "current", "plain"]


def test_a_row_that_is_invalid_for_the_snapshot_is_skipped(mixed: tuple[Topic, int]) -> None:
    topic, pointer = mixed

    for invalids in ((pointer,), (pointer, 5, 3)):
        body = {"transaction": snapshot(read_pointer=FUTURE, invalids=invalids)}
        assert topic.read(body) == ["before", "after"]


def test_a_rolled_back_row_is_skipped_in_every_snapshot(
    client: Client, mixed: tuple[Topic, int]
) -> None:
    topic, pointer = mixed
    ok(client.post(f"/v1/transactions/{pointer}/abort"))

    for body in (
        {"transaction": snapshot(read_pointer=FUTURE)},
        {"transaction": snapshot(read_pointer=FUTURE, in_progress=(pointer,))},
        {"transaction": snapshot(read_pointer=5)},
    ):
        assert topic.read(body) == ["before", "after"]
    assert topic.read() == ["before", "row", "after"]


def test_a_transaction_sees_its_own_rows_of_all_its_pointers(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.publish("one", tx=tx.id))
    pointer = ok(tx.checkpoint()).json["writePointer"]
    ok(topic.publish("two", tx=pointer))
    ok(topic.publish("three", tx=tx.id))

    assert topic.read(tx=tx.id) == ["one", "two", "three"]
    assert topic.read(tx=begin(client).id) == []


def test_a_transaction_in_progress_at_the_start_stays_undecided_for_a_fixed_snapshot(
    client: Client, topic: Topic
) -> None:
    writer = begin(client)
    ok(topic.publish("row", tx=writer.id))
    ok(topic.publish("plain"))
    reader = begin(client)
    ok(writer.commit())

    assert topic.read(tx=reader.id) == []
    assert topic.read(tx=reader.id, undecided="skip") == ["plain"]
    assert topic.committed() == ["row", "plain"]


def test_a_transaction_started_later_is_undecided_for_a_fixed_snapshot(
    client: Client, topic: Topic
) -> None:
    reader = begin(client)
    writer = begin(client)
    ok(topic.publish("row", tx=writer.id))
    ok(writer.commit())
    ok(topic.publish("plain"))

    assert topic.read(tx=reader.id) == []
    assert topic.read(tx=reader.id, undecided="skip") == ["plain"]


def test_a_fixed_snapshot_never_sees_more_of_others_as_time_goes_on(
    client: Client, topic: Topic
) -> None:
    first = begin(client)
    ok(topic.publish("a", tx=first.id))
    ok(first.commit())
    reader = begin(client)
    encoded = {"transaction": reader.object["encoded"]}

    for name in ("b", "c"):
        writer = begin(client)
        ok(topic.publish(name, tx=writer.id))
        ok(writer.commit())
        assert topic.read(tx=reader.id) == ["a"]
        assert topic.read(encoded, undecided="skip") == ["a"]


def test_an_invalidated_transactions_rows_are_skipped_at_once(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.publish("row", tx=tx.id))
    ok(topic.publish("plain"))
    assert topic.committed() == []

    ok(tx.invalidate())

    reply = ok(topic.poll(isolation="committed"))
    assert payloads(reply) == ["plain"]
    assert reply.header("Tuff-Blocked-By") is None


def test_a_timed_out_transactions_rows_are_skipped(client: Client, topic: Topic) -> None:
    tx = begin(client, timeout=0.1)
    ok(topic.publish("row", tx=tx.id))
    ok(topic.publish("plain"))

    until(lambda: topic.committed() == ["plain"], within_s=3)

    assert tx.state() == "invalid"


def test_an_aborted_long_transactions_rows_are_skipped(client: Client, topic: Topic) -> None:
    tx = begin(client, type="long")
    ok(topic.publish("row", tx=tx.id))
    ok(topic.publish("plain"))

    ok(tx.abort())

    assert topic.committed() == ["plain"]
    assert topic.read() == ["row", "plain"]


def test_a_long_transactions_rows_appear_when_it_commits(client: Client, topic: Topic) -> None:
    tx = begin(client, type="long")
    ok(topic.publish("row", tx=tx.id))
    assert topic.committed() == []

    ok(tx.commit())

    assert topic.committed() == ["row"]


def test_a_reader_with_skip_sees_all_or_nothing_of_a_transaction_on_its_topic(
    client: Client, topic: Topic
) -> None:
    before = begin(client)
    writer = begin(client)
    for part in range(3):
        ok(topic.publish(f"part {part}", tx=writer.id))
        ok(topic.publish(f"plain {part}"))
    during = begin(client)
    ok(writer.commit())
    after = begin(client)

    plain = ["plain 0", "plain 1", "plain 2"]
    assert topic.read(tx=before.id, undecided="skip") == plain
    assert topic.read(tx=during.id, undecided="skip") == plain
    assert len(topic.read(tx=after.id, undecided="skip")) == 6


def test_a_commit_with_publish_appears_on_all_its_topics_for_one_snapshot(
    client: Client, new_topic: NewTopic
) -> None:
    here, there = new_topic(), new_topic()
    before, tx = begin(client), begin(client)

    ok(tx.commit(publish=[entry(here, "a", "b"), entry(there, "c")]))

    after = begin(client)
    assert (here.read(tx=before.id), there.read(tx=before.id)) == ([], [])
    assert (here.read(tx=after.id), there.read(tx=after.id)) == (["a", "b"], ["c"])


def test_max_block_invalidates_a_publisher_that_holds_readers_back(new_server: NewServer) -> None:
    client = new_server("messaging.max_block=0.2").client()
    for kind in ("short", "long"):
        topic = Topic(client, "default", kind)
        ok(topic.create())
        idle, publisher = begin(client, type=kind), begin(client, type=kind)
        ok(topic.publish("held", tx=publisher.id))
        ok(topic.publish("plain"))

        blocked_until_plain(topic)

        outcome = ok(publisher.outcome()).json
        assert (outcome["state"], outcome["reason"]) == ("invalid", "blocked_readers")
        assert idle.state() == "in_progress"
        problem = refused(publisher.commit(), 409, "transaction_invalidated")
        assert problem["reason"] == "blocked_readers"


def blocked_until_plain(topic: Topic) -> None:
    until(lambda: topic.committed() == ["plain"], within_s=5)


@pytest.mark.slow
def test_max_block_counts_on_across_a_restart(new_server: NewServer) -> None:
    first = new_server("messaging.max_block=0.5")
    client = first.client()
    topic = Topic(client, "default", "t")
    ok(topic.create())
    publisher = begin(client, type="long")
    ok(topic.publish("held", tx=publisher.id))
    ok(topic.publish("plain"))
    first.kill()

    second = new_server("messaging.max_block=0.5", home=first.home)

    client = second.client()
    topic = Topic(client, "default", "t")
    blocked_until_plain(topic)
