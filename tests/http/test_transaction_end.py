"""Abort, invalidate, outcomes, and what repeating a call does (protocol §1, §5.2, §6)."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, entry
from tests.http.client import JSON, Client, Reply, ok, refused, until
from tests.http.process import ServerProcess, serve

UNKNOWN = "1000000000000000001"


def outcome(tx: Tx) -> tuple[str, str | None]:
    shown = ok(tx.outcome()).json
    return shown["state"], shown["reason"]


def timed_out(client: Client) -> Tx:
    tx = begin(client, timeout=0.05)
    until(lambda: tx.state() == "invalid", within_s=3)
    return tx


def test_an_abort_ends_a_short_transaction_as_aborted(client: Client) -> None:
    tx = begin(client)

    reply = ok(tx.abort())

    assert reply.json == {"state": "aborted"}
    assert outcome(tx) == ("aborted", None)
    started = begin(client).object
    assert tx.id not in started["invalids"] + started["inProgress"]


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

    assert topic.committed() == ["plain"]
    assert topic.read(tx=reader.id) == ["plain"]
    assert topic.read() == ["a", "b", "plain"]
    assert outcome(tx) == ("aborted", None)


def test_an_abort_ends_a_long_transaction_as_invalid(client: Client) -> None:
    tx = begin(client, type="long")

    reply = ok(tx.abort())

    assert reply.json["state"] == "invalid"
    assert outcome(tx) == ("invalid", "abort_of_long")
    assert tx.id in begin(client).object["invalids"]
    assert ok(tx.abort()).json["state"] == "invalid"
    assert outcome(tx) == ("invalid", "abort_of_long")


@pytest.mark.parametrize("how", ["invalidate", "time out"])
def test_an_abort_takes_an_invalid_short_transaction_off_the_list(
    client: Client, topic: Topic, how: str
) -> None:
    if how == "invalidate":
        tx = begin(client)
        ok(topic.publish("a", tx=tx.id))
        ok(tx.invalidate())
    else:
        tx = timed_out(client)
    assert tx.id in begin(client).object["invalids"]

    reply = ok(tx.abort())

    assert reply.json == {"state": "aborted"}
    assert outcome(tx)[0] == "aborted"
    assert tx.id not in begin(client).object["invalids"]
    assert topic.committed() == []


def test_an_abort_of_an_invalid_long_transaction_leaves_it_invalid(client: Client) -> None:
    tx = begin(client, type="long")
    ok(tx.invalidate())

    assert ok(tx.abort()).json["state"] == "invalid"

    assert tx.id in begin(client).object["invalids"]


def test_an_invalidated_transaction_joins_the_list(client: Client) -> None:
    for kind in ("short", "long"):
        tx = begin(client, type=kind)

        assert ok(tx.invalidate()).json["state"] == "invalid"

        assert outcome(tx) == ("invalid", "invalidated")
        assert tx.id in begin(client).object["invalids"]


def test_an_ended_transaction_takes_no_other_call(client: Client) -> None:
    aborted, invalid, late = begin(client), begin(client), timed_out(client)
    ok(aborted.abort())
    ok(invalid.invalidate())
    expected = (
        (aborted, "transaction_aborted", None),
        (invalid, "transaction_invalidated", "invalidated"),
        (late, "transaction_timed_out", "timed_out"),
    )

    for tx, code, reason in expected:
        for reply in (tx.can_commit("k"), tx.commit(), tx.commit(changes=["k"]), tx.checkpoint()):
            problem = refused(reply, 409, code)
            assert reason is None or problem["reason"] == reason


def test_a_committed_transaction_takes_no_other_call_but_its_commit(client: Client) -> None:
    tx = begin(client)
    ok(tx.commit())

    refused(tx.can_commit("k"), 409, "transaction_committed")
    refused(tx.checkpoint(), 409, "transaction_committed")


def _calls(tx: Tx) -> dict[str, Reply]:
    return {
        "can-commit": tx.can_commit("k"), "commit": tx.commit(), "abort": tx.abort(),
        "invalidate": tx.invalidate(), "checkpoint": tx.checkpoint(), "get": tx.outcome(),
    }  # fmt: skip


@pytest.mark.parametrize(
    "pointer", [UNKNOWN, "0", "1", "-1", "9" * 30, "abc", "1.5", "0x10", "%20"]
)
def test_an_unknown_transaction_is_unknown_to_every_call(client: Client, pointer: str) -> None:
    for name, reply in _calls(Tx(client, {"transactionId": pointer})).items():
        assert (name, reply.status, reply.json["code"]) == (name, 404, "transaction_unknown")


def test_the_outcome_names_the_transaction(client: Client, topic: Topic) -> None:
    tx = begin(client, client="billing-7")
    ok(topic.publish("a", tx=tx.id))

    shown = ok(tx.outcome()).json

    assert shown == {
        "transactionId": tx.id, "state": "in_progress", "type": "short", "client": "billing-7",
        "startedAt": tx.object["startedAt"], "expiresAt": tx.object["expiresAt"],
        "reason": None, "topics": [str_of(topic)],
    }  # fmt: skip
    ok(tx.commit())
    assert ok(tx.outcome()).json["topics"] == [str_of(topic)]


def str_of(topic: Topic) -> str:
    return f"{topic.namespace}:{topic.name}"


@pytest.mark.parametrize("body", [None, {}, {"changes": ["other"]}, {"readOnly": True}])
def test_a_repeated_commit_gives_the_first_answer_whatever_its_body(
    client: Client, topic: Topic, body: dict[str, Any] | None
) -> None:
    tx = begin(client)
    first = ok(tx.commit(changes=["k"], publish=[entry(topic, "a")]))

    for _ in range(3):
        assert ok(client.post(f"{tx.path}/commit", body)).body == first.body
    same = ok(tx.commit(changes=["k"], publish=[entry(topic, "a")]))
    other = ok(tx.commit(publish=[entry(topic, "another")]))

    assert same.body == other.body == first.body
    assert topic.committed() == ["a"]
    assert topic.read() == ["a"]


def test_a_repeated_commit_must_still_be_well_formed(client: Client) -> None:
    tx = begin(client)
    ok(tx.commit())

    refused(tx.commit(nonsense=1), 400, "bad_request", naming="nonsense")
    assert tx.state() == "committed"


def test_a_repeated_abort_or_invalidate_gives_the_first_answer(
    client: Client, topic: Topic
) -> None:
    for kind in ("short", "long"):
        for call in ("abort", "invalidate"):
            tx = begin(client, type=kind)
            ok(topic.publish("a", tx=tx.id))
            first = ok(getattr(tx, call)())

            assert [ok(getattr(tx, call)()).body for _ in range(3)] == [first.body] * 3

    assert topic.committed() == []


def test_an_invalidate_after_an_abort_took_it_off_the_list_is_refused(client: Client) -> None:
    tx = begin(client)
    ok(tx.invalidate())
    ok(tx.abort())

    refused(tx.invalidate(), 409, "transaction_aborted")


def test_a_repeated_can_commit_keeps_it_committing(client: Client) -> None:
    tx = begin(client)

    for _ in range(3):
        assert ok(tx.can_commit("k")).json == {"state": "committing"}
    ok(tx.commit())


def test_endings_take_an_empty_body_with_or_without_a_content_type(client: Client) -> None:
    for call in ("commit", "abort", "invalidate", "checkpoint"):
        ok(client.send("POST", f"{begin(client).path}/{call}"))
        ok(client.send("POST", f"{begin(client).path}/{call}", b"", content_type=JSON))


@pytest.fixture(scope="module")
def forgetful_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that forgets how transactions ended after a fifth of a second."""
    running = serve(tmp_path_factory.mktemp("forgetful"), "tx.outcome_retention=0.2")
    yield running
    running.end()


@pytest.mark.slow
def test_an_outcome_is_forgotten_after_its_retention(forgetful_server: ServerProcess) -> None:
    client = forgetful_server.client()
    committed, aborted, invalid = begin(client), begin(client), begin(client)
    ok(committed.commit())
    ok(aborted.abort())
    ok(invalid.invalidate())
    assert committed.state() == "committed"

    until(lambda: committed.outcome().status == 404, within_s=5)
    until(lambda: aborted.outcome().status == 404, within_s=5)

    refused(committed.outcome(), 404, "transaction_unknown", naming=committed.id)
    refused(committed.commit(), 404, "transaction_unknown")
    assert invalid.state() == "invalid"
    client.close()


def test_type_and_outcome_are_kept_while_a_pointer_is_on_the_invalid_list(
    forgetful_server: ServerProcess,
) -> None:
    client = forgetful_server.client()
    marker, short_one, long_one = begin(client), begin(client), begin(client, type="long")
    for tx in (short_one, long_one, marker):
        ok(tx.invalidate() if tx is not marker else tx.commit())

    until(lambda: marker.outcome().status == 404, within_s=5)

    assert outcome(short_one) == outcome(long_one) == ("invalid", "invalidated")
    assert ok(short_one.abort()).json["state"] == "aborted"
    assert ok(long_one.abort()).json["state"] == "invalid"
    client.close()


def test_the_overview_lists_who_is_in_progress(client: Client, topic: Topic) -> None:
    tx = begin(client, type="long", client="me")
    ok(topic.publish("a", tx=tx.id))

    shown = ok(client.get(TRANSACTIONS)).json

    assert set(shown) == {
        "readPointer", "writePointer", "inProgress", "visibilityUpperBound", "invalidCount",
        "committingCount", "oldestInProgress",
    }  # fmt: skip
    [mine] = [one for one in shown["inProgress"] if one["transactionId"] == tx.id]
    assert mine == {
        "transactionId": tx.id, "type": "long", "client": "me",
        "startedAt": tx.object["startedAt"], "expiresAt": tx.object["expiresAt"],
        "topics": [str_of(topic)],
    }  # fmt: skip
    assert int(shown["oldestInProgress"]) <= int(tx.id)
    assert int(shown["visibilityUpperBound"]) < int(tx.id)
    assert int(shown["writePointer"]) >= int(tx.id)
    ok(tx.commit())
    left = ok(client.get(TRANSACTIONS)).json["inProgress"]
    assert tx.id not in [one["transactionId"] for one in left]
