"""Prepare and resolve over HTTP (protocol §5.4)."""

import pytest

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin
from tests.http.client import Client, Reply, ok, refused


def prepare(tx: Tx, topic: Topic, *, changes: tuple[str, ...] = ("k",)) -> Reply:
    entry = {"namespace": topic.namespace, "topic": topic.name, "messages": ["m"]}
    body = {"changes": list(changes), "publish": [entry], "database": "orders"}
    return tx.client.post(f"{tx.path}/prepare", body)


def resolve(tx: Tx, outcome: str) -> Reply:
    return tx.client.post(f"{tx.path}/resolve", {"outcome": outcome})


def test_messages_appear_when_the_database_has_committed(client: Client, topic: Topic) -> None:
    tx = begin(client)
    prepared = ok(prepare(tx, topic)).json
    held = topic.committed()
    committed = ok(resolve(tx, "commit")).json

    assert (prepared["state"], prepared["database"]) == ("prepared", "orders")
    assert held == []
    assert committed == {"state": "committed", "published": prepared["published"]}
    assert topic.committed() == ["m"]
    assert ok(resolve(tx, "commit")).json == committed
    refused(resolve(tx, "abort"), 409, "transaction_committed")


def test_a_held_reader_is_told_which_database_it_waits_for(client: Client, topic: Topic) -> None:
    tx = begin(client)
    since = str(ok(prepare(tx, topic)).json["preparedAt"])
    held = topic.poll(isolation="committed")
    offsets = ok(client.get(f"{topic.path}/offsets?isolation=committed")).json

    assert held.header("Tuff-Blocked-By") == tx.id
    assert (held.header("Tuff-Blocked-Database"), held.header("Tuff-Blocked-Since")) == (
        "orders",
        since,
    )
    assert (offsets["blockedBy"], offsets["database"]) == (tx.id, "orders")
    ok(resolve(tx, "commit"))
    free = topic.poll(isolation="committed")
    assert free.header("Tuff-Blocked-Database") is None


def test_messages_never_appear_when_it_has_not(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(prepare(tx, topic))

    assert ok(resolve(tx, "abort")).json == {"state": "aborted"}
    assert topic.committed() == []
    refused(resolve(tx, "commit"), 409, "transaction_aborted")


def test_each_view_of_it_names_the_database(client: Client, topic: Topic) -> None:
    tx = begin(client)
    prepared = ok(prepare(tx, topic)).json
    shown = {"database": "orders", "preparedAt": prepared["preparedAt"]}

    (listed,) = ok(client.get(f"{TRANSACTIONS}/prepared?database=orders")).json["prepared"]
    assert listed == {
        "transactionId": tx.id, "client": tx.object["client"], "changeCount": 1,
        "blocksReaders": True,
        "topics": [f"{topic.namespace}:{topic.name}"], **shown,
    }  # fmt: skip
    assert ok(client.get(f"{TRANSACTIONS}/prepared?database=other")).json == {"prepared": []}
    outcome = ok(tx.outcome()).json
    assert (outcome["state"], shown.items() <= outcome.items()) == ("prepared", True)
    refusal = refused(tx.abort(), 409, "transaction_prepared", naming="orders")
    assert shown.items() <= refusal.items()
    ok(resolve(tx, "abort"))
    assert shown.keys().isdisjoint(ok(tx.outcome()).json)


@pytest.mark.parametrize(
    ("call", "body", "code"),
    [
        ("prepare", {}, "bad_request"),
        ("prepare", {"database": 7}, "bad_request"),
        ("prepare", {"database": ""}, "invalid_name"),
        ("prepare", {"database": "d" * 129}, "invalid_name"),
        ("prepare", {"database": "d", "readOnly": True}, "bad_request"),
        ("resolve", {}, "bad_request"),
        ("resolve", {"outcome": "committed"}, "bad_request"),
    ],
)
def test_a_body_that_can_not_be_is_refused(
    client: Client, call: str, body: dict[str, object], code: str
) -> None:
    tx = begin(client)
    refused(client.post(f"{tx.path}/{call}", body), 400, code)

    assert ok(tx.outcome()).json["state"] == "in_progress"
    refused(client.get(f"{TRANSACTIONS}/prepared?database=."), 400, "invalid_name")


def test_a_resolve_of_what_was_not_prepared_only_aborts(client: Client) -> None:
    tx = begin(client)
    refused(resolve(tx, "commit"), 409, "transaction_not_prepared")

    assert ok(resolve(tx, "abort")).json == {"state": "aborted"}
