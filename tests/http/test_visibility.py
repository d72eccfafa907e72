"""Visibility (protocol §6), with both components. `tests/messaging/test_scan.py` and
`tests/protocol/test_transaction.py` compare each verdict with a model."""

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


def test_a_row_is_judged_by_the_snapshot_in_the_body(client: Client, topic: Topic) -> None:
    tx = begin(client)
    pointer = int(tx.id)
    for payload, under in (("before", None), ("row", tx.id), ("after", None)):
        ok(topic.publish(payload, tx=under))
    at_it, below = snapshot(read_pointer=pointer), snapshot(read_pointer=pointer - 1)
    open_to_it = snapshot(read_pointer=FUTURE, in_progress=(pointer, 5, 3))
    invalid_to_it = snapshot(read_pointer=FUTURE, invalids=(pointer, 5, 3))

    def read(transaction: dict[str, Any], **query: object) -> list[Any]:
        return topic.read({"transaction": transaction}, **query)

    assert read(at_it) == ["before", "row", "after"]
    assert read(invalid_to_it) == ["before", "after"]
    for undecided in (below, open_to_it):
        assert read(undecided) == read(undecided, undecided="hold") == ["before"]
        assert read(undecided, undecided="skip") == ["before", "after"]

    ok(tx.abort())

    for each in (at_it, open_to_it, below):
        assert read(each) == ["before", "after"]
    assert topic.read() == ["before", "row", "after"]


def test_rows_that_the_visibility_level_excludes_are_skipped_and_hold_no_reader_back(
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
    assert topic.read(tx=tx.id) == ["earlier", "current", "plain"]


def test_a_fixed_snapshot_never_sees_more_of_others_as_time_goes_on(
    client: Client, topic: Topic
) -> None:
    first, during = begin(client), begin(client)
    ok(topic.publish("a", tx=first.id))
    ok(first.commit())
    reader = begin(client)
    encoded = {"transaction": reader.object["encoded"]}

    for writer in (during, begin(client)):
        ok(topic.publish("b", tx=writer.id))
        ok(writer.commit())
        ok(topic.publish("plain"))

    assert topic.read(tx=reader.id) == topic.read(encoded) == ["a"]
    skipping = topic.read(tx=reader.id, undecided="skip")
    assert skipping == topic.read(encoded, undecided="skip") == ["a", "plain", "plain"]
    assert topic.committed() == ["a", "b", "plain", "b", "plain"]


@pytest.mark.parametrize("kind", ["short", "long"])
@pytest.mark.parametrize("ending", ["commit", "abort", "invalidate"])
def test_rows_are_decided_as_soon_as_their_transaction_ends(
    client: Client, topic: Topic, kind: str, ending: str
) -> None:
    tx = begin(client, type=kind)
    ok(topic.publish("row", tx=tx.id))
    ok(topic.publish("plain"))
    assert topic.committed() == []

    ok(getattr(tx, ending)())

    reply = ok(topic.poll(isolation="committed"))
    assert payloads(reply) == (["row", "plain"] if ending == "commit" else ["plain"])
    assert reply.header("Tuff-Blocked-By") is None
    assert topic.read() == ["row", "plain"]


def test_a_timed_out_transactions_rows_are_skipped(client: Client, topic: Topic) -> None:
    tx = begin(client, timeout=1)  # the publish comes in time, also on a busy machine
    ok(topic.publish("row", tx=tx.id))
    ok(topic.publish("plain"))

    until(lambda: topic.committed() == ["plain"])

    assert tx.state() == "invalid"


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
    topics = {kind: Topic(client, "default", kind) for kind in ("short", "long")}
    open_ones = {}
    for kind, topic in topics.items():
        ok(topic.create())
        idle, publisher = begin(client, type=kind), begin(client, type=kind)
        open_ones[kind] = (idle, publisher)
        ok(topic.publish("held", tx=publisher.id))
        ok(topic.publish("plain"))

    for kind, (idle, publisher) in open_ones.items():
        blocked_until_plain(topics[kind])
        outcome = ok(publisher.outcome()).json
        assert (outcome["state"], outcome["reason"]) == ("invalid", "blocked_readers")
        assert idle.state() == "in_progress"
        problem = refused(publisher.commit(), 409, "transaction_invalidated")
        assert problem["reason"] == "blocked_readers"


def blocked_until_plain(topic: Topic) -> None:
    until(lambda: topic.committed() == ["plain"])
