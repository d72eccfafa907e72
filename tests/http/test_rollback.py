"""Rolling one publish back (protocol §3.3)."""

from typing import Any

import pytest

from tests.http.calls import Topic, begin
from tests.http.client import Client, ok, problem_of, refused


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
    assert topic.committed() == topic.read(tx=begin(client).id) == ["before", "after"]
    ok(tx.commit())
    assert topic.committed() == ["before", "after"]


def test_a_rollback_touches_the_rows_of_its_pointer_and_its_place(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.publish("by id", tx=tx.id))
    pointer = ok(tx.checkpoint()).json["writePointer"]
    ok(topic.store("a", "b", tx=pointer))
    group = ok(topic.publish(tx=pointer)).json
    by_checkpoint = ok(topic.publish("by checkpoint", tx=pointer)).json

    ok(topic.rollback(group))
    ok(topic.rollback(by_checkpoint))
    ok(tx.commit())

    assert topic.committed() == ["by id"]
    assert topic.read() == ["by id", "a", "b", "by checkpoint"]


def test_rows_of_an_ended_transaction_are_rolled_back_unless_it_committed(
    client: Client, topic: Topic
) -> None:
    committed, aborted, invalid = begin(client), begin(client), begin(client)
    details = [ok(topic.publish("a", tx=tx.id)).json for tx in (committed, aborted, invalid)]
    ok(committed.commit())
    ok(aborted.abort())
    ok(invalid.invalidate())

    refused(topic.rollback(details[0]), 409, "transaction_committed")
    for detail in details[1:]:
        ok(topic.rollback(detail))

    assert topic.committed() == ["a"]
    assert topic.read() == ["a", "a", "a"]


@pytest.mark.parametrize(
    "change",
    [{"transactionWritePointer": None}, {"startTimestamp": -1}, {"endSequenceId": 65536}],
)
def test_a_malformed_detail_is_refused_and_changes_nothing(
    client: Client, topic: Topic, missing: Topic, change: dict[str, Any]
) -> None:
    tx = begin(client)
    detail = ok(topic.publish("a", tx=tx.id)).json

    assert problem_of(topic.rollback({**detail, **change}))["status"] == 400
    cut = {name: detail[name] for name in detail if name not in change}
    assert problem_of(topic.rollback(cut))["status"] == 400
    refused(missing.rollback(detail), 404, "topic_not_found")

    ok(tx.commit())
    assert topic.committed() == ["a"]
