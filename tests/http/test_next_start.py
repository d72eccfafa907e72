"""A commit that starts the next transaction in the same call (protocol §5.2)."""

import pytest

from tests.http.calls import Topic, Tx, begin, entry
from tests.http.client import Client, ok, refused

START = {"start": {"client": "worker", "timeout": 5, "lists": False}}


def count_of_open(client: Client, name: str) -> int:
    found = ok(client.get("/v1/transactions")).json["inProgress"]
    return [each["client"] for each in found].count(name)


def test_the_next_transaction_sees_the_commit_and_can_commit(client: Client, topic: Topic) -> None:
    first = begin(client)
    reply = ok(first.commit(publish=[entry(topic, "one")], then=START)).json

    following = Tx(client, reply["next"])

    assert reply["state"] == "committed"
    assert (following.object["client"], following.object["timeout"]) == ("worker", 5)
    assert "encoded" not in following.object
    assert topic.read(tx=following.id) == ["one"]
    assert ok(following.commit(changes=["a"], publish=[entry(topic, "two")])).json.keys() == {
        "state", "published",
    }  # fmt: skip
    assert topic.committed() == ["one", "two"]


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ({"start": {"timeout": 0}}, "invalid_timeout"),
        ({"start": {"lease": 0}}, "invalid_timeout"),
        ({"start": {"other": 1}}, "bad_request"),
        ({"start": None}, "bad_request"),
        ({}, "bad_request"),
        ({"start": {}, "other": 1}, "bad_request"),
        (None, "bad_request"),
        ("start", "bad_request"),
    ],
)
def test_a_bad_start_is_refused_before_the_commit(client: Client, then: object, code: str) -> None:
    tx = begin(client)

    refused(tx.commit(then=then), 400, code)

    assert tx.state() == "in_progress"
    ok(tx.abort())


def test_without_a_commit_nothing_is_started(client: Client) -> None:
    other, tx = begin(client), begin(client)
    ok(other.commit(changes=["next-start"]))

    refused(
        tx.commit(changes=["next-start"], then={"start": {"client": "never"}}),
        409,
        "transaction_conflict",
    )

    assert count_of_open(client, "never") == 0
    ok(tx.abort())


def test_a_repeated_commit_starts_another_transaction(client: Client) -> None:
    tx = begin(client)
    replies = [ok(tx.commit(then=START)).json for _ in range(2)]

    assert replies[0]["published"] == replies[1]["published"]
    assert replies[0]["next"]["transactionId"] != replies[1]["next"]["transactionId"]
    for reply in replies:
        ok(Tx(client, reply["next"]).abort())
