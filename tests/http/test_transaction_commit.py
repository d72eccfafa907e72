"""Can-commit, commit, conflicts, and commit with publish (protocol §5.2)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.calls import Topic, Tx, begin, entry, ids
from tests.http.client import Client, Reply, ok, problem_of, refused
from tests.http.conftest import NewTopic
from tests.http.process import ServerProcess


def conflicting(reply: Reply, *, key: object, other: Tx) -> None:
    problem = refused(reply, 409, "transaction_conflict")
    assert problem["key"] == key
    assert problem["conflictingTransaction"] == other.id
    assert problem["conflictingClient"] == other.object["client"]


def test_a_transaction_that_wrote_nothing_commits(client: Client) -> None:
    tx = begin(client)

    assert ok(tx.commit()).json == {"state": "committed", "published": []}
    assert tx.state() == "committed"


def test_can_commit_makes_it_committing_and_commit_ends_it(client: Client) -> None:
    tx = begin(client)

    assert ok(tx.can_commit("a", {"base64": "/wA="})).json == {"state": "committing"}
    assert tx.state() == "committing"
    assert ok(tx.commit()).json["state"] == "committed"
    assert tx.state() == "committed"


def test_an_equal_change_committed_since_the_start_is_a_conflict(client: Client) -> None:
    first, second, third = begin(client, client="first"), begin(client), begin(client)
    ok(first.commit(changes=["k1", "k2"]))

    conflicting(second.can_commit("other", "k2"), key="k2", other=first)
    conflicting(third.commit(changes=["k1"]), key="k1", other=first)


def test_a_conflicting_key_is_shown_in_payload_form(client: Client) -> None:
    first, second = begin(client), begin(client)
    ok(first.commit(changes=[{"base64": "/wA="}]))

    conflicting(second.can_commit({"base64": "/wA="}), key={"base64": "/wA="}, other=first)


def test_a_change_committed_before_the_start_is_no_conflict(client: Client) -> None:
    first = begin(client)
    ok(first.commit(changes=["serial"]))
    second = begin(client)

    ok(second.can_commit("serial"))
    ok(second.commit())


def test_one_that_is_only_committing_is_no_conflict_yet(client: Client) -> None:
    first, second = begin(client), begin(client)
    ok(first.can_commit("race"))
    ok(second.can_commit("race"))

    ok(first.commit())

    conflicting(second.commit(), key="race", other=first)


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
    conflicting(loser.can_commit("final"), key="final", other=winner)

    for reply in (
        loser.can_commit("final"),
        loser.can_commit("quite another"),
        loser.can_commit(),
        loser.commit(),
        loser.commit(changes=[]),
        loser.commit(changes=["quite another"]),
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


def test_a_chain_of_one_key_lets_exactly_one_of_many_commit(server: ServerProcess) -> None:
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


def test_a_read_only_commit_is_a_commit(client: Client) -> None:
    tx = begin(client)

    assert ok(tx.commit(readOnly=True)).json == {"state": "committed", "published": []}
    assert tx.state() == "committed"


@pytest.mark.parametrize("act", ["publish", "store", "checkpoint"])
def test_who_wrote_can_not_commit_read_only(client: Client, topic: Topic, act: str) -> None:
    tx = begin(client)
    ok(tx.checkpoint() if act == "checkpoint" else getattr(topic, act)("a", tx=tx.id))

    refused(tx.commit(readOnly=True), 400, "bad_request")

    assert tx.state() == "in_progress"
    ok(tx.commit())


@pytest.mark.parametrize(
    "body",
    [
        {"changes": "k"}, {"changes": [7]}, {"changes": [None]}, {"changes": [{"base64": "!"}]},
        {"changes": {}}, {"readOnly": "yes"}, {"readOnly": 1}, {"publish": {}}, {"publish": [7]},
        {"publish": [{}]}, {"publish": [{"namespace": "a", "topic": "b"}]}, {"publishes": []},
        {"change": ["k"]},
    ],
)  # fmt: skip
def test_a_malformed_commit_is_refused_and_ends_nothing(
    client: Client, body: dict[str, Any]
) -> None:
    tx = begin(client)

    refused(tx.commit(**body), 400, "bad_request")

    assert tx.state() == "in_progress"


def test_a_malformed_can_commit_is_refused_and_ends_nothing(client: Client) -> None:
    tx = begin(client)

    bodies: list[object] = [{"changes": "k"}, {"changes": [7]}, {"change": []}, [], "x"]
    for body in bodies:
        refused(client.post(f"{tx.path}/can-commit", body), 400, "bad_request")

    assert tx.state() == "in_progress"


def test_a_commit_with_publish_writes_to_several_topics(
    client: Client, new_topic: NewTopic
) -> None:
    here, there = new_topic(), new_topic()
    tx = begin(client)

    reply = ok(
        tx.commit(
            changes=["with publish"],
            publish=[entry(here, "a", "b"), entry(there, {"base64": "/wA="}), entry(here, "c")],
        )
    )

    assert here.committed() == ["a", "b", "c"]
    assert there.committed() == [{"base64": "/wA="}]
    assert reply.json["state"] == "committed"
    found = ids(here.poll())
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


def test_a_commit_may_reference_what_was_stored(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("a", "b", tx=tx.id))
    pointer = ok(tx.checkpoint()).json["writePointer"]
    ok(topic.store("c", tx=pointer))

    ok(tx.commit(publish=[entry(topic, pointer=tx.id), entry(topic, pointer=pointer)]))

    assert topic.committed() == ["a", "b", "c"]


def test_a_commits_entry_belongs_to_the_current_write_pointer_by_default(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.store("first", tx=tx.id))
    pointer = ok(tx.checkpoint()).json["writePointer"]
    ok(topic.store("second", tx=pointer))

    reply = ok(tx.commit(publish=[entry(topic)]))

    assert topic.committed() == ["second"]
    assert reply.json["published"][0]["transactionWritePointer"] == pointer


def test_an_entry_for_a_missing_topic_writes_nothing_and_ends_nothing(
    client: Client, topic: Topic, missing: Topic
) -> None:
    tx = begin(client)

    reply = tx.commit(publish=[entry(topic, "a"), entry(missing, "b")])

    refused(reply, 404, "topic_not_found", naming="missing")
    assert topic.read() == []
    assert tx.state() == "in_progress"
    ok(tx.commit(publish=[entry(topic, "a")]))
    assert topic.committed() == ["a"]


def test_an_entry_that_is_malformed_writes_nothing_and_ends_nothing(
    client: Client, new_topic: NewTopic
) -> None:
    topic, other_tx = new_topic({"ttl": 100}), begin(client)
    tx = begin(client)
    good = entry(topic, "good")
    bad: list[dict[str, Any]] = [
        {**good, "pointer": other_tx.id}, {**good, "pointer": "1"}, {**good, "pointer": "x"},
        {**good, "messages": [7]}, {**good, "messages": "x"}, {**good, "extra": 1},
        {**good, "namespace": "a b"}, {**good, "topic": ".."}, {**good, "topic": 7},
        {**good, "messages": [{"payload": "x", "ttl": 0}]},
        {**good, "messages": [{"payload": "x", "ttl": 101}]},
    ]  # fmt: skip

    for one in bad:
        assert problem_of(tx.commit(publish=[good, one]))["status"] == 400

    assert topic.read() == []
    assert tx.state() == "in_progress"
    assert other_tx.state() == "in_progress"


def test_a_conflict_at_a_commit_with_publish_writes_nothing(client: Client, topic: Topic) -> None:
    winner, loser = begin(client), begin(client)
    ok(winner.commit(changes=["cp"]))

    reply = loser.commit(changes=["cp"], publish=[entry(topic, "x")])

    conflicting(reply, key="cp", other=winner)
    assert topic.read() == []


def test_messages_of_a_commit_may_have_a_ttl(client: Client, topic: Topic) -> None:
    tx = begin(client)

    ok(tx.commit(publish=[entry(topic, {"payload": "x", "ttl": 1000})]))

    assert topic.committed() == ["x"]


def test_what_was_published_before_appears_with_the_commits_own_messages(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    ok(topic.publish("before", tx=tx.id))

    ok(tx.commit(publish=[entry(topic, "last")]))

    assert topic.committed() == ["before", "last"]
