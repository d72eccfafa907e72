"""After a SIGKILL everything acknowledged is there, and no outcome changes (protocol §5.2)."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, entry, ids
from tests.http.client import Client, Reply, ok, refused, until
from tests.http.process import ServerProcess, serve


def run_once(client: Client) -> Reply:
    publish = [entry(Topic(client, "default", "run"), "r")]
    return ok(client.post(f"{TRANSACTIONS}/run", {"publish": publish, "requestId": "once"}))


def _acknowledge(client: Client, before: SimpleNamespace) -> None:
    topics = {name: Topic(client, "default", name) for name in ("kept", "gone", "run", "ended")}
    for topic in topics.values():
        ok(topic.create({"ttl": 5000, "a": "b"}))
    ok(topics["kept"].publish("plain"))
    before.committed = tx = begin(client)
    ok(topics["kept"].store("stored", tx=tx.id))
    ok(topics["kept"].publish(tx=tx.id))
    before.commit_body = ok(tx.commit(publish=[entry(topics["kept"], "with commit")])).body
    before.run_body = run_once(client).body
    ok(topics["gone"].delete())
    ok(topics["gone"].create())
    before.messages = ok(topics["kept"].poll()).json
    before.aborted, before.invalid = begin(client), begin(client)
    before.long = begin(client, type="long")
    for one in (before.aborted, before.invalid, before.long):
        ok(topics["ended"].publish("x", tx=one.id))
    ok(before.aborted.abort())
    ok(before.invalid.invalidate())
    ok(before.long.abort())


def _leave_open(client: Client, before: SimpleNamespace) -> None:
    for name in ("open", "snapshot", "survivor"):
        ok(Topic(client, "default", name).create())
    before.logged = begin(client, client="survivor")
    early, before.reader = begin(client), begin(client)
    ok(Topic(client, "default", "snapshot").publish("early", tx=early.id))
    ok(early.commit(changes=["read"]))
    before.keeper, before.loser = begin(client), begin(client)
    topic = Topic(client, "default", "open")
    ok(topic.publish("kept", tx=before.keeper.id))
    ok(topic.publish("lost", tx=before.loser.id))
    ok(topic.store("stored", tx=before.keeper.id))
    before.first, before.second, before.named = begin(client), begin(client), begin(client)
    before.late = begin(client, timeout=0.5)
    ok(begin(client).commit(changes=["forces the log"]))
    for tx in (before.first, before.second, before.named):
        ok(tx.can_commit("cut off"))
    before.fresh = [begin(client) for _ in range(5)]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Any]]:
    """A server on what a killed one left, and what its clients knew before."""
    first = serve(tmp_path_factory.mktemp("crashed"))
    client, before = first.client(), SimpleNamespace()
    _acknowledge(client, before)
    _leave_open(client, before)
    first.kill()
    second = serve(first.home)
    yield second, before
    second.end()


@pytest.fixture
def before(crashed: tuple[ServerProcess, Any]) -> Any:
    return crashed[1]


@pytest.fixture
def after(crashed: tuple[ServerProcess, Any]) -> Client:
    return crashed[0].client()


def again(client: Client, tx: Tx) -> Tx:
    """The same transaction, at the server that was started afterwards."""
    return Tx(client, tx.object)


def shown(client: Client, tx: Tx) -> Mapping[str, Any]:
    found: Mapping[str, Any] = ok(again(client, tx).outcome()).json
    return found


def test_messages_and_topics_are_there(after: Client, before: Any) -> None:
    topic = Topic(after, "default", "kept")

    assert ok(topic.poll(isolation="committed")).json == before.messages
    assert topic.read() == ["plain", "stored", "with commit"]
    assert ok(topic.show()).json["properties"] == {"ttl": "5000", "a": "b"}
    assert ok(Topic(after, "default", "gone").show()).json["generation"] == 2


def test_later_ids_are_greater(after: Client, before: Any) -> None:
    topic = Topic(after, "default", "kept")
    start = before.messages[-1]["id"]

    ok(topic.publish("after"))

    assert topic.read({"startFrom": start, "inclusive": False}) == ["after"]
    ok(topic.truncate(0))
    assert ids(topic.poll())[-1] > start


def test_a_repeated_commit_gives_the_same_answer(after: Client, before: Any) -> None:
    assert ok(again(after, before.committed).commit()).body == before.commit_body


def test_a_repeated_run_gives_the_same_answer(after: Client, before: Any) -> None:
    assert run_once(after).body == before.run_body
    assert Topic(after, "default", "run").read() == ["r"]


def test_ended_transactions_stay_ended(after: Client, before: Any) -> None:
    assert shown(after, before.aborted)["state"] == "aborted"
    found = shown(after, before.invalid)
    assert (found["state"], found["reason"]) == ("invalid", "invalidated")
    found = shown(after, before.long)
    assert (found["state"], found["reason"], found["type"]) == ("invalid", "abort_of_long", "long")
    assert Topic(after, "default", "ended").committed() == []
    assert {before.invalid.id, before.long.id} <= set(begin(after).object["invalids"])


def test_a_transaction_whose_start_was_logged_survives(after: Client, before: Any) -> None:
    found = shown(after, before.logged)
    assert (found["state"], found["client"]) == ("in_progress", "survivor")
    topic = Topic(after, "default", "survivor")

    ok(again(after, before.logged).commit(changes=["k"], publish=[entry(topic, "a")]))

    assert topic.committed() == ["a"]


def test_a_start_that_was_answered_is_never_unknown(after: Client, before: Any) -> None:
    for tx in before.fresh:
        found = shown(after, tx)
        assert (found["state"], found["reason"]) in {
            ("in_progress", None), ("invalid", "lost_in_crash"),
        }  # fmt: skip
    assert int(begin(after).id) > int(before.fresh[-1].id)


def test_a_survivor_reads_in_its_old_snapshot_and_conflicts_as_before(
    after: Client, before: Any
) -> None:
    topic, reader = Topic(after, "default", "snapshot"), again(after, before.reader)

    assert topic.read(tx=reader.id) == []
    assert topic.committed() == ["early"]
    refused(reader.commit(changes=["read"]), 409, "transaction_conflict")


def test_open_rows_stay_undecided_and_can_still_be_decided(after: Client, before: Any) -> None:
    topic = Topic(after, "default", "open")
    assert topic.committed() == []

    ok(topic.publish(tx=before.keeper.id))
    ok(again(after, before.keeper).commit(changes=[]))
    ok(again(after, before.loser).abort())

    assert topic.committed() == ["kept", "stored"]
    assert topic.read() == ["kept", "lost", "stored"]


def test_a_can_commit_that_was_cut_off_is_never_skipped(after: Client, before: Any) -> None:
    first, second, named = (
        again(after, tx) for tx in (before.first, before.second, before.named)
    )  # fmt: skip

    ok(named.commit(changes=["cut off"]))

    reply = first.commit()
    if reply.json["code"] == "transaction_invalidated":
        assert reply.json["reason"] == "lost_in_crash"
    else:
        refused(reply, 409, "transaction_conflict")
    refused(second.commit(changes=["cut off"]), 409, "transaction_conflict")


def test_time_goes_on_while_the_server_is_down(after: Client, before: Any) -> None:
    until(lambda: again(after, before.late).state() == "invalid")

    assert shown(after, before.late)["reason"] == "timed_out"
