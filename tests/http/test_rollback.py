"""Rolling one publish back (protocol §3.3)."""

import pytest

from tests.http.calls import Topic, begin
from tests.http.client import AVRO, Client, ok, problem_of, refused
from tests.http.forms import publish_request


def test_a_rolled_back_publish_is_hidden_from_transactional_readers_only(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.publish("before"))
    detail = ok(topic.publish("a", "b", tx=tx.id)).json
    ok(topic.publish("after"))

    reply = topic.rollback(detail)

    assert (reply.status, reply.body) == (200, b"")
    assert topic.read() == ["before", "a", "b", "after"]
    assert topic.committed() == ["before", "after"]
    assert topic.read(tx=begin(client).id) == ["before", "after"]
    ok(tx.commit())
    assert topic.committed() == ["before", "after"]


def test_a_rollback_under_a_checkpoint_pointer_touches_that_pointers_rows(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.publish("by id", tx=tx.id))
    pointer = ok(tx.checkpoint()).json["writePointer"]
    detail = ok(topic.publish("by checkpoint", tx=pointer)).json

    ok(topic.rollback(detail))
    ok(tx.commit())

    assert topic.committed() == ["by id"]


def test_a_committed_transaction_keeps_its_rows(client: Client, topic: Topic) -> None:
    tx = begin(client)
    detail = ok(topic.publish("a", tx=tx.id)).json
    ok(tx.commit())

    refused(topic.rollback(detail), 409, "transaction_committed")

    assert topic.committed() == ["a"]


def test_rows_of_an_ended_transaction_may_be_rolled_back_again(
    client: Client, topic: Topic
) -> None:
    aborted, invalid = begin(client), begin(client)
    details = [ok(topic.publish("a", tx=tx.id)).json for tx in (aborted, invalid)]
    ok(aborted.abort())
    ok(invalid.invalidate())

    for detail in details:
        ok(topic.rollback(detail))

    assert topic.committed() == []
    assert topic.read() == ["a", "a"]


def test_a_rollback_takes_the_bytes_of_the_avro_response(client: Client, topic: Topic) -> None:
    tx = begin(client)
    response = ok(topic.avro("publish", publish_request([b"a"], pointer=int(tx.id))))
    assert response.header("Content-Type") == AVRO

    reply = topic.avro("rollback", response.body)

    assert (reply.status, reply.body) == (200, b"")
    ok(tx.commit())
    assert topic.committed() == []


def test_a_stored_group_is_rolled_back_with_its_reference(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("a", "b", tx=tx.id))
    detail = ok(topic.publish(tx=tx.id)).json
    ok(topic.publish("c", tx=tx.id))

    ok(topic.rollback(detail))
    ok(tx.commit())

    assert topic.committed() == ["c"]
    assert topic.read() == ["a", "b", "c"]


def test_a_rollback_in_a_missing_topic_is_refused(topic: Topic, missing: Topic) -> None:
    detail = ok(topic.publish("a", tx=begin(topic.client).id)).json

    refused(missing.rollback(detail), 404, "topic_not_found")


@pytest.mark.parametrize(
    "change",
    [
        {"transactionWritePointer": None},
        {"transactionWritePointer": "x"},
        {"startTimestamp": "x"},
        {"startTimestamp": -1},
        {"startSequenceId": 65536},
        {"endSequenceId": -1},
        {"endTimestamp": True},
        {"extra": 1},
    ],
)
def test_a_malformed_detail_is_refused_and_changes_nothing(
    client: Client, topic: Topic, change: dict[str, object]
) -> None:
    tx = begin(client)
    detail = ok(topic.publish("a", tx=tx.id)).json

    assert problem_of(topic.rollback({**detail, **change}))["status"] == 400

    ok(tx.commit())
    assert topic.committed() == ["a"]


@pytest.mark.parametrize(
    "left_out",
    [
        "transactionWritePointer", "startTimestamp", "startSequenceId", "endTimestamp",
        "endSequenceId",
    ],
)  # fmt: skip
def test_a_detail_without_one_of_its_members_is_refused(
    client: Client, topic: Topic, left_out: str
) -> None:
    tx = begin(client)
    detail = ok(topic.publish("a", tx=tx.id)).json
    del detail[left_out]

    assert problem_of(topic.rollback(detail))["status"] == 400

    ok(tx.commit())
    assert topic.committed() == ["a"]
