"""The explanation of what a reader receives (protocol §3.14): each reason, made real."""

from pathlib import Path
from typing import Any

import pytest

from messaging.read.explanation_decision import Reason
from tests.http.calls import TRANSACTIONS, Topic, begin, created
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import NewServer
from tests.http.process import serve
from tests.http.test_damaged_records import damage

FUTURE_ID = "7" + "f" * 39


@pytest.fixture
def namespace(missing: Topic) -> str:
    """A namespace that no other test uses."""
    return missing.namespace


def published(topic: Topic, payload: str, **query: Any) -> str:
    """The id of a message that this call publishes."""
    return str(ok(topic.publish(payload, **query)).headers["tuff-first-id"])


def explained(topic: Topic, id: str, **query: Any) -> Any:
    return ok(topic.client.get(f"{topic.path}/messages/{id}/explain", **query)).json


def reason(topic: Topic, id: str, **query: Any) -> tuple[bool, str]:
    found = explained(topic, id, **query)
    return found["visible"], found["reason"]


def test_a_message_is_held_by_its_transaction_until_that_commits(
    client: Client, topic: Topic
) -> None:
    tx = begin(client, client="billing")
    id = published(topic, "held", tx=tx.id)
    behind = published(topic, "behind")

    held = explained(topic, id)
    assert (held["visible"], held["reason"], held["blockedBy"]) == (False, "in_progress", tx.id)
    assert held["transaction"]["client"] == "billing"
    assert "still in progress" in held["detail"]
    assert "tuff tx abort" in held["advice"]
    waits = explained(topic, behind)
    assert (waits["reason"], waits["blockedBy"]) == ("behind_undecided", tx.id)
    assert id in waits["detail"]
    for each in (id, behind):
        assert reason(topic, each, isolation="all") == (True, "visible")

    ok(tx.commit())

    for each in (id, behind):
        assert reason(topic, each) == (True, "visible")


def test_an_ended_transaction_explains_why_its_message_does_not_count(
    client: Client, topic: Topic
) -> None:
    aborted, invalid = begin(client), begin(client)
    gone, refused_one = published(topic, "a", tx=aborted.id), published(topic, "b", tx=invalid.id)

    ok(aborted.abort())
    ok(invalid.invalidate())

    assert reason(topic, gone) == (False, "aborted")
    found = explained(topic, refused_one)
    assert (found["reason"], found["transaction"]["reason"]) == ("invalid", "invalidated")
    assert reason(topic, gone, isolation="all") == (True, "visible")


def test_a_message_that_was_committed_after_the_snapshot_of_a_reader(
    client: Client, topic: Topic
) -> None:
    writer = begin(client)
    id = published(topic, "a", tx=writer.id)
    behind = published(topic, "b")
    reader = begin(client, lists=True)
    ok(writer.commit())

    assert reason(topic, id, tx=reader.id) == (False, "after_snapshot")
    assert reason(topic, behind, tx=reader.id) == (False, "behind_undecided")
    assert reason(topic, id) == (True, "visible")
    path = f"{topic.path}/messages/{id}/explain"
    in_snapshot = ok(client.post(path, {"transaction": reader.object["encoded"]})).json
    assert (in_snapshot["visible"], in_snapshot["reason"]) == (False, "after_snapshot")
    refused(client.post(path, {}), 400, "bad_request")
    refused(client.get(path, tx=reader.id, isolation="all"), 400, "bad_request")


def test_a_decided_message_is_explained_while_transactions_are_down(
    new_server: NewServer,
) -> None:
    client = new_server().client()
    topic = created(client, "default", "t")
    first = published(topic, "first")
    undecided = published(topic, "undecided", tx=begin(client).id)
    behind = published(topic, "behind")

    ok(client.post(f"{TRANSACTIONS}/service/stop"))

    assert reason(topic, first) == (True, "visible")
    for each in (undecided, behind):
        path = f"{topic.path}/messages/{each}/explain"
        refused(client.get(path), 503, "transactions_unavailable")


def test_a_prepared_transaction_names_its_database(client: Client, topic: Topic) -> None:
    tx = begin(client)
    id = published(topic, "a", tx=tx.id)
    ok(client.post(f"/v1/transactions/{tx.id}/prepare", {"changes": ["k"], "database": "shop"}))

    found = explained(topic, id)

    assert (found["reason"], found["blockedBy"]) == ("prepared", tx.id)
    assert "'shop'" in found["detail"]
    ok(client.post(f"/v1/transactions/{tx.id}/resolve", {"outcome": "abort"}))
    assert reason(topic, id) == (False, "aborted")


def test_messages_that_were_set_aside(new_server: NewServer) -> None:
    client = new_server("messaging.max_block=0.2").client()
    topic = created(client, "explained", "aside")
    tx = begin(client)
    id = published(topic, "a", tx=tx.id)
    ok(client.post(f"/v1/transactions/{tx.id}/prepare", {"database": "shop"}))
    until(lambda: reason(topic, id) == (False, "set_aside"))
    found = explained(topic, id)
    assert found["blockedBy"] == tx.id
    assert "'shop' commits" in found["detail"]

    ok(client.post(f"/v1/transactions/{tx.id}/resolve", {"outcome": "commit"}))

    found = explained(topic, id)
    assert (found["reason"], found["blockedBy"]) == ("set_aside", None)
    assert str(found["transaction"]["endedAt"]) in found["advice"]


def test_messages_that_the_log_no_longer_has(client: Client, namespace: str) -> None:
    topic = created(client, namespace, "short")
    short = published(topic, "own time to live", ttl=1)
    cut = published(topic, "cut")
    kept = published(topic, "kept")
    ok(topic.truncate(kept))
    until(lambda: reason(topic, short, isolation="all")[1] in ("expired", "truncated"))

    assert reason(topic, cut) == (False, "truncated")
    assert reason(topic, kept) == (True, "visible")
    other = created(client, namespace, "expiring")
    own = published(other, "own", ttl=1)
    until(lambda: reason(other, own) == (False, "expired"))
    by_topic = published(other, "by the topic")
    ok(other.update({"ttl": 1}))
    until(lambda: reason(other, by_topic) == (False, "expired"))


def test_ids_that_no_row_has(client: Client, namespace: str) -> None:
    topic = created(client, namespace, "orders")
    id = published(topic, "a")
    never = f"{int(id, 16) - (1 << 96):040x}"

    assert reason(topic, FUTURE_ID) == (False, "not_written_yet")
    assert reason(topic, never) == (False, "no_such_message")
    refused(topic.client.get(f"{topic.path}/messages/12/explain"), 400, "invalid_message_id")
    ok(topic.delete())
    assert reason(topic, id) == (False, "topic_deleted")
    ok(topic.create())
    found = explained(topic, id)
    assert (found["reason"], found["generation"]) == ("topic_recreated", 2)
    assert "generation 1" in found["detail"]


def test_a_message_of_another_namespace(client: Client, namespace: str) -> None:
    here, there = Topic(client, namespace, "same"), created(client, f"{namespace}-b", "same")
    id = published(there, "a")

    found = explained(here, id)

    assert found["reason"] == "other_namespace"
    assert found["elsewhere"] == [{"namespace": f"{namespace}-b", "topic": "same"}]
    ok(here.create())
    assert reason(here, id) == (False, "other_namespace")
    assert reason(Topic(client, namespace, "none"), id) == (False, "topic_not_found")


def test_the_partition_that_has_the_message_is_named(client: Client, namespace: str) -> None:
    topic = Topic(client, namespace, "parted")
    ok(topic.create({"partitions": 3}))
    ids = [published(topic, str(number)) for number in range(3)]

    names = {explained(topic, id)["topic"] for id in ids}

    assert names == {"parted", "parted:1", "parted:2"}


def test_an_id_that_no_partition_has_names_the_topic(client: Client, namespace: str) -> None:
    topic = Topic(client, namespace, "parted-without")
    ok(topic.create({"partitions": 3}))
    id = published(topic, "a")

    missing = explained(topic, id[:-1] + "1")

    assert (missing["topic"], missing["reason"]) == ("parted-without", "no_such_message")


def test_a_delayed_message_waits_and_then_has_another_id(client: Client, topic: Topic) -> None:
    later = ok(topic.publish("a", delay=600)).headers["tuff-delayed-first"]
    soon = ok(topic.publish("b", delay=0.2)).headers["tuff-delayed-first"]
    tx = begin(client)
    undecided = ok(topic.publish("c", tx=tx.id, delay=600)).headers["tuff-delayed-first"]

    assert reason(topic, later) == (False, "delayed")
    assert explained(topic, undecided)["blockedBy"] == tx.id
    until(lambda: reason(topic, soon) == (False, "entered"))
    ok(tx.abort())
    assert reason(topic, undecided) == (False, "no_such_message")
    assert "did not commit" in explained(topic, undecided)["detail"]
    ok(client.delete(f"{topic.path}/delayed/{later}"))
    assert reason(topic, later) == (False, "no_such_message")


def test_stored_messages_are_explained_like_others(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("x", "y", tx=tx.id))
    ok(topic.publish(tx=tx.id))
    ids = [each["id"] for each in ok(client.get(f"{topic.path}/messages")).json]

    assert [reason(topic, id)[1] for id in ids] == ["in_progress"] * 2
    ok(tx.commit())
    assert [reason(topic, id) for id in ids] == [(True, "visible")] * 2
    assert reason(topic, ids[0][:20] + "0" * 20) == (False, "no_such_message")


def test_a_damaged_record_is_the_reason(tmp_path: Path) -> None:
    running = serve(tmp_path)
    topic = created(running.client(), "default", "orders")
    id = published(topic, "to be damaged")
    running.end()
    assert damage(running.data / "messages", b"to be damaged") == 1
    with serve(tmp_path) as again:
        found = explained(Topic(again.client(), "default", "orders"), id)

    assert (found["visible"], found["reason"]) == (False, "damaged")
    assert "tuff fsck" in found["advice"]


def test_an_expired_message_names_the_groups_that_had_not_read_it(tmp_path: Path) -> None:
    with serve(tmp_path, "messaging.cleanup_interval=0.2") as running:
        topic = created(running.client(), "shop", "orders")
        member = {"memberId": "m1", "memberEpoch": 0, "topics": ["orders"]}
        ok(topic.client.post("/v1/namespaces/shop/groups/billing/heartbeat", member))
        ok(topic.client.put(f"{topic.path}/share-groups/mailing", {"start": "earliest"}))
        id = published(topic, "unread")
        assert "lostBy" not in explained(topic, id)
        ok(topic.change({"ttl": "1"}))

        until(lambda: len(explained(topic, id).get("lostBy", ())) == 2)

        found = explained(topic, id)
    assert found["reason"] == "expired"
    of_groups = {"namespace": "shop", "cause": "expired"}
    assert [{**each, "after": None} for each in found["lostBy"]] == [
        {"kind": "consumer", "group": "billing", "after": None, **of_groups},
        {"kind": "share", "group": "mailing", "after": None, **of_groups},
    ]


@pytest.mark.parametrize("each", Reason)
def test_the_protocol_lists_each_reason(each: Reason) -> None:
    text = Path(__file__).resolve().parents[2].joinpath("docs/protocol.md").read_text()
    section = text.partition("### 3.14 ")[2].partition("\n## ")[0]

    assert f"`{each.value}`" in section
