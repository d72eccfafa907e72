"""Abort, invalidate, outcomes, and what repeating a call does (protocol §1, §5.2, §6)."""

from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, entry
from tests.http.client import JSON, Client, Reply, ok, refused, until
from tests.http.conftest import NewServer

UNKNOWN = "1000000000000000001"


def outcome(tx: Tx) -> tuple[str, str | None]:
    shown = ok(tx.outcome()).json
    return shown["state"], shown["reason"]


def timed_out(client: Client) -> Tx:
    tx = begin(client, timeout=0.05)
    until(lambda: tx.state() == "invalid")
    return tx


@pytest.mark.parametrize(
    ("kind", "calls", "ends_as", "is_listed"),
    [
        ("short", ["abort"], ("aborted", None), False),
        ("short", ["invalidate"], ("invalid", "invalidated"), True),
        ("short", ["invalidate", "abort"], ("aborted", None), False),
        ("short", ["time out", "abort"], ("aborted", None), False),
        ("long", ["abort"], ("invalid", "abort_of_long"), True),
        ("long", ["invalidate"], ("invalid", "invalidated"), True),
        ("long", ["invalidate", "abort"], ("invalid", "invalidated"), True),
    ],
)
def test_how_a_transaction_ends(
    client: Client,
    topic: Topic,
    kind: str,
    calls: list[str],
    ends_as: tuple[str, str | None],
    is_listed: bool,
) -> None:
    tx = timed_out(client) if "time out" in calls else begin(client, type=kind)
    if "time out" not in calls:
        ok(topic.publish("a", tx=tx.id))
    last = {"state": "invalid"}

    for call in calls:
        if call != "time out":
            last = ok(getattr(tx, call)()).json
            assert [ok(getattr(tx, call)()).json for _ in range(2)] == [last] * 2

    assert last == {"state": ends_as[0]}
    state, reason = outcome(tx)
    assert (state, reason if state == "invalid" else None) == ends_as
    started = begin(client).object
    assert (tx.id in started["invalids"], tx.id in started["inProgress"]) == (is_listed, False)
    assert topic.committed() == []
    if calls == ["invalidate", "abort"] and kind == "short":
        refused(tx.invalidate(), 409, "transaction_aborted")


def test_an_abort_has_taken_published_rows_back_when_it_answers(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)
    reader = begin(client)
    ok(topic.publish("a", tx=tx.id))
    pointer = ok(tx.checkpoint()).json["writePointer"]
    ok(topic.publish("b", tx=pointer))
    ok(topic.publish("plain"))

    ok(tx.abort())

    assert topic.committed() == topic.read(tx=reader.id) == ["plain"]
    assert topic.read() == ["a", "b", "plain"]


def test_an_ended_transaction_takes_no_other_call(client: Client, topic: Topic) -> None:
    committed, aborted, invalid, late = (
        begin(client), begin(client), begin(client), timed_out(client),
    )  # fmt: skip
    ok(committed.commit())
    ok(aborted.abort())
    ok(invalid.invalidate())

    def uses(tx: Tx) -> list[Reply]:
        return [
            tx.can_commit("k"), tx.checkpoint(), topic.publish("a", tx=tx.id),
            topic.store("a", tx=tx.id), topic.poll(tx=tx.id),
        ]  # fmt: skip

    for reply in uses(committed):
        refused(reply, 409, "transaction_committed", naming=committed.id)
    for tx, code, reason in (
        (aborted, "transaction_aborted", None),
        (invalid, "transaction_invalidated", "invalidated"),
        (late, "transaction_timed_out", "timed_out"),
    ):
        for reply in (*uses(tx), tx.commit(), tx.commit(changes=["k"])):
            problem = refused(reply, 409, code, naming=tx.id)
            assert reason is None or problem["reason"] == reason
    assert topic.read() == []


def _calls(tx: Tx) -> dict[str, Reply]:
    return {
        "can-commit": tx.can_commit("k"), "commit": tx.commit(), "abort": tx.abort(),
        "invalidate": tx.invalidate(), "checkpoint": tx.checkpoint(), "get": tx.outcome(),
    }  # fmt: skip


@pytest.mark.parametrize("pointer", [UNKNOWN, "0", "-1", "9" * 30, "abc", "%20"])
def test_an_unknown_transaction_is_unknown_to_every_call(
    client: Client, topic: Topic, pointer: str
) -> None:
    refused(topic.poll(tx=pointer), 404, "transaction_unknown")
    for name, reply in _calls(Tx(client, {"transactionId": pointer})).items():
        assert (name, reply.status, reply.json["code"]) == (name, 404, "transaction_unknown")


def test_nothing_is_published_or_stored_under_an_unknown_pointer(topic: Topic) -> None:
    for write in (topic.publish, topic.store):
        refused(write("a", tx=UNKNOWN), 404, "transaction_unknown", naming=UNKNOWN)


@pytest.mark.parametrize("body", [None, {}, {"changes": ["other"]}, {"readOnly": True}])
def test_a_repeated_commit_gives_the_first_answer_whatever_its_body(
    client: Client, topic: Topic, body: dict[str, Any] | None
) -> None:
    tx = begin(client)
    first = ok(tx.commit(changes=["k"], publish=[entry(topic, "a")]))

    again = ok(client.post(f"{tx.path}/commit", body))
    same = ok(tx.commit(changes=["k"], publish=[entry(topic, "a")]))
    other = ok(tx.commit(publish=[entry(topic, "another")]))

    assert again.body == same.body == other.body == first.body
    assert topic.committed() == topic.read() == ["a"]
    refused(tx.commit(nonsense=1), 400, "bad_request", naming="nonsense")


def test_endings_take_an_empty_body_with_or_without_a_content_type(client: Client) -> None:
    for call in ("commit", "abort", "invalidate", "checkpoint"):
        ok(client.send("POST", f"{begin(client).path}/{call}"))
        ok(client.send("POST", f"{begin(client).path}/{call}", b"", content_type=JSON))


def test_an_outcome_is_forgotten_after_its_retention_unless_its_pointer_is_invalid(
    new_server: NewServer,
) -> None:
    client = new_server("tx.outcome_retention=0.2").client()
    committed, aborted = begin(client), begin(client)
    short_one, long_one = begin(client), begin(client, type="long")
    for tx in (short_one, long_one):
        ok(tx.invalidate())
    ok(aborted.abort())
    ok(committed.commit())

    until(lambda: committed.outcome().status == aborted.outcome().status == 404)

    for reply in (committed.outcome(), committed.commit()):
        refused(reply, 404, "transaction_unknown", naming=committed.id)
    assert outcome(short_one) == outcome(long_one) == ("invalid", "invalidated")
    assert ok(short_one.abort()).json["state"] == "aborted"
    assert ok(long_one.abort()).json["state"] == "invalid"


def test_the_outcome_and_the_overview_show_a_transaction(client: Client, topic: Topic) -> None:
    tx = begin(client, type="long", client="billing-7")
    ok(topic.publish("a", tx=tx.id))
    times = {name: tx.object[name] for name in ("startedAt", "expiresAt")}
    expected = {
        "transactionId": tx.id, "type": "long", "client": "billing-7", **times,
        "topics": [f"{topic.namespace}:{topic.name}"],
    }  # fmt: skip

    overview = ok(client.get(TRANSACTIONS)).json

    assert ok(tx.outcome()).json == {**expected, "state": "in_progress", "reason": None}
    assert set(overview) == {
        "readPointer", "writePointer", "inProgress", "visibilityUpperBound", "invalidCount",
        "committingCount", "oldestInProgress",
    }  # fmt: skip
    assert [one for one in overview["inProgress"] if one["transactionId"] == tx.id] == [expected]
    assert int(overview["oldestInProgress"]) <= int(tx.id) <= int(overview["writePointer"])
    assert int(overview["visibilityUpperBound"]) < int(tx.id)
    ok(tx.commit())
    assert ok(tx.outcome()).json["topics"] == expected["topics"]
    left = ok(client.get(TRANSACTIONS)).json["inProgress"]
    assert tx.id not in [one["transactionId"] for one in left]
