"""Can-commit, commit, conflicts, and commit with publish (protocol §5.2): their replies, and one
history of each kind. `tests/tx` compares the decisions with a model."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.calls import Topic, Tx, begin, entry, ids
from tests.http.client import Client, Reply, ok, problem_of, refused
from tests.http.conftest import NewTopic
from tests.http.process import ServerProcess

BYTES = {"base64": "/wA="}


def conflicting(reply: Reply, *, key: object, other: Tx) -> None:
    problem = refused(reply, 409, "transaction_conflict")
    assert problem["key"] == key
    assert problem["conflictingTransaction"] == other.id
    assert problem["conflictingClient"] == other.object["client"]


def test_can_commit_makes_it_committing_and_commit_ends_it(client: Client) -> None:
    tx = begin(client)

    for _ in range(2):
        assert ok(tx.can_commit("a", BYTES)).json == {"state": "committing"}
        assert tx.state() == "committing"
    assert ok(tx.commit()).json == {"state": "committed", "published": []}
    assert tx.state() == "committed"


def test_a_read_only_commit_is_one_of_a_transaction_that_wrote_nothing(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    assert ok(tx.commit(readOnly=True)).json == {"state": "committed", "published": []}
    assert tx.state() == "committed"

    for act in ("publish", "store", "checkpoint"):
        tx = begin(client)
        ok(tx.checkpoint() if act == "checkpoint" else getattr(topic, act)("a", tx=tx.id))

        refused(tx.commit(readOnly=True), 400, "bad_request")

        assert tx.state() == "in_progress"
        ok(tx.commit())


def test_an_equal_change_committed_since_the_start_is_a_conflict(client: Client) -> None:
    first, second, third = begin(client, client="first"), begin(client), begin(client)
    ok(first.can_commit("k1", "k2", BYTES))
    ok(second.can_commit("k1"))
    ok(first.commit())
    later = begin(client)

    conflicting(second.commit(), key="k1", other=first)
    conflicting(third.can_commit("other", BYTES), key=BYTES, other=first)
    conflicting(third.commit(changes=["k2"]), key=BYTES, other=first)
    ok(later.commit(changes=["k1", "k2"]))


def test_changes_of_an_aborted_or_invalid_transaction_conflict_with_nobody(
    client: Client,
) -> None:
    reader = begin(client)
    for ending in ("abort", "invalidate"):
        tx = begin(client)
        ok(tx.can_commit("undone"))
        ok(getattr(tx, ending)())

    ok(reader.commit(changes=["undone"]))


def test_a_conflict_is_final(client: Client, topic: Topic) -> None:
    winner, loser = begin(client), begin(client)
    ok(winner.commit(changes=["final"]))
    conflicting(
        loser.commit(changes=["final"], publish=[entry(topic, "x")]), key="final", other=winner
    )

    for reply in (
        loser.can_commit("quite another"),
        loser.commit(),
        loser.commit(publish=[entry(topic, "x")]),
        topic.publish("x", tx=loser.id),
        topic.store("x", tx=loser.id),
        loser.checkpoint(),
    ):
        conflicting(reply, key="final", other=winner)

    assert topic.read() == []
    assert ok(loser.abort()).json["state"] == "aborted"


def test_long_transactions_take_no_part_in_conflicts(client: Client) -> None:
    long_one, short_one, reader = begin(client, type="long"), begin(client), begin(client)
    ok(short_one.commit(changes=["shared"]))

    ok(long_one.can_commit("shared", "only long"))
    ok(long_one.commit(changes=["shared", "only long"]))

    ok(reader.commit(changes=["only long"]))


def test_of_many_commits_of_one_key_at_once_exactly_one_succeeds(server: ServerProcess) -> None:
    clients = [server.client() for _ in range(8)]
    started = [begin(one) for one in clients]

    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda tx: tx.commit(changes=["contended"]), started))

    assert sorted(reply.status for reply in replies) == [200] + [409] * 7
    winner = next(tx for tx, reply in zip(started, replies, strict=True) if reply.status == 200)
    for reply in replies:
        if reply.status == 409:
            conflicting(reply, key="contended", other=winner)
    for one in clients:
        one.close()


@pytest.mark.parametrize(
    "body",
    [
        {"changes": "k"}, {"changes": [7]}, {"changes": [{"base64": "!"}]}, {"readOnly": 1},
        {"publish": {}}, {"publish": [7]}, {"publish": [{"namespace": "a", "topic": "b"}]},
        {"change": ["k"]},
    ],
)  # fmt: skip
def test_a_malformed_commit_is_refused_and_ends_nothing(
    client: Client, body: dict[str, Any]
) -> None:
    tx = begin(client)

    refused(tx.commit(**body), 400, "bad_request")
    refused(client.post(f"{tx.path}/can-commit", body), 400, "bad_request")

    assert tx.state() == "in_progress"


def test_a_commit_with_publish_writes_to_several_topics(
    client: Client, new_topic: NewTopic
) -> None:
    here, there = new_topic(), new_topic()
    tx = begin(client)
    ok(here.publish("before", tx=tx.id))
    more = [entry(here, {"payload": "a", "ttl": 1000}, "b"), entry(there, BYTES), entry(here, "c")]

    reply = ok(tx.commit(changes=["with publish"], publish=more))

    assert here.committed() == ["before", "a", "b", "c"]
    assert there.committed() == [BYTES]
    assert reply.json["state"] == "committed"
    _, *found = ids(here.poll())
    first, second, third = reply.json["published"]
    assert first == {
        "transactionWritePointer": tx.id,
        "startTimestamp": int(found[0][:16], 16), "startSequenceId": int(found[0][16:20], 16),
        "endTimestamp": int(found[1][:16], 16), "endSequenceId": int(found[1][16:20], 16),
    }  # fmt: skip
    assert third["startTimestamp"] == int(found[2][:16], 16)
    assert set(second) == set(first)
    shown = ok(tx.outcome()).json
    assert sorted(shown["topics"]) == sorted(
        [f"{one.namespace}:{one.name}" for one in (here, there)]
    )


def test_a_commit_may_reference_what_was_stored_under_any_of_its_pointers(
    client: Client, new_topic: NewTopic
) -> None:
    named, default = new_topic(), new_topic()
    tx = begin(client)
    for topic in (named, default):
        ok(topic.store("a", "b", tx=tx.id))
    pointer = ok(tx.checkpoint()).json["writePointer"]
    for topic in (named, default):
        ok(topic.store("c", tx=pointer))
    publish = [entry(named, pointer=tx.id), entry(named, pointer=pointer), entry(default)]

    reply = ok(tx.commit(publish=publish))

    assert named.committed() == ["a", "b", "c"]
    assert default.committed() == ["c"]
    assert [one["transactionWritePointer"] for one in reply.json["published"]] == [
        tx.id, pointer, pointer,
    ]  # fmt: skip


def test_an_entry_that_can_not_be_written_writes_nothing_and_ends_nothing(
    client: Client, new_topic: NewTopic, missing: Topic
) -> None:
    topic, other_tx = new_topic({"ttl": 100}), begin(client)
    tx = begin(client)
    good = entry(topic, "good")
    bad: list[dict[str, Any]] = [
        {**good, "pointer": other_tx.id}, {**good, "pointer": "1"}, {**good, "pointer": "x"},
        {**good, "messages": [7]}, {**good, "extra": 1}, {**good, "namespace": "a b"},
        {**good, "messages": [{"payload": "x", "ttl": 0}]},
        {**good, "messages": [{"payload": "x", "ttl": 101}]},
    ]  # fmt: skip

    refused(
        tx.commit(publish=[good, entry(missing, "b")]), 404, "topic_not_found", naming="missing"
    )
    for one in bad:
        assert problem_of(tx.commit(publish=[good, one]))["status"] == 400

    assert topic.read() == []
    assert (tx.state(), other_tx.state()) == ("in_progress", "in_progress")
    ok(tx.commit(publish=[good]))
    assert topic.committed() == ["good"]
