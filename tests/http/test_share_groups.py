"""Share groups of a running server (protocol §3.12)."""

from threading import Thread
from typing import Any

import pytest

from tests.http.calls import Topic, begin, created, ids, metrics_of
from tests.http.client import Client, Reply, ok, refused, until
from tests.http.conftest import NewServer

PLACE = "0000015896dfd00000050000000000000000ffff"


class Workers:
    """A share group of a topic."""

    def __init__(self, topic: Topic, name: str = "billing") -> None:
        self.client = topic.client
        self.path = f"{topic.path}/share-groups/{name}"

    def create(self, **body: object) -> Reply:
        return self.client.put(self.path, {"start": "earliest", **body})

    def try_lease(self, count: int = 10, *, wait: float | None = None, **body: object) -> Reply:
        query = {} if wait is None else {"wait": wait}
        return self.client.post(f"{self.path}/lease", {"count": count, **body}, **query)

    def lease(self, count: int = 10, **more: Any) -> list[Any]:
        found: list[Any] = ok(self.try_lease(count, **more)).json["messages"]
        return found

    def leased(self, count: int = 10, **more: Any) -> list[str]:
        """The payloads of a lease."""
        return [each["payload"] for each in self.lease(count, **more)]

    def try_acknowledge(
        self, *messages: Any, action: str = "accept", tx: object = None, **more: object
    ) -> Reply:
        named = [{"id": each["id"], "token": each["token"]} for each in messages]
        body: dict[str, object] = {
            "messages": [{**each, "action": action, **more} for each in named]
        }
        if tx is not None:
            body["transactionWritePointer"] = tx
        return self.client.post(f"{self.path}/acknowledge", body)

    def acknowledge(self, *messages: Any, **more: Any) -> list[str]:
        results = ok(self.try_acknowledge(*messages, **more)).json["results"]
        assert [each["id"] for each in results] == [each["id"] for each in messages]
        return [each["result"] for each in results]

    def show(self) -> Any:
        return ok(self.client.get(self.path)).json


@pytest.fixture
def workers(topic: Topic) -> Workers:
    found = Workers(topic)
    ok(found.create())
    return found


def publish(topic: Topic, *messages: object) -> None:
    ok(topic.publish(*messages))


def test_workers_share_the_messages_of_a_topic(topic: Topic, workers: Workers) -> None:
    publish(topic, "a", {"payload": "b", "key": "k", "tags": ["t"], "headers": {"h": "1"}}, "c")

    first, second = workers.lease(2), workers.lease(2)

    assert [each["payload"] for each in first + second] == ["a", "b", "c"]
    assert (first[1]["key"], first[1]["tags"], first[1]["headers"]) == ("k", ["t"], {"h": "1"})
    assert first[0]["attempts"] == 1
    assert workers.acknowledge(*first, *second) == ["accepted"] * 3
    assert workers.lease() == []
    shown = workers.show()
    assert (shown["available"], shown["leased"], shown["done"], shown["oldest"]) == (0, 0, 0, None)
    assert shown["behindMs"] == 0


def test_a_message_that_was_not_acknowledged_comes_again_and_a_late_answer_is_refused(
    topic: Topic, workers: Workers
) -> None:
    publish(topic, "a")
    (late,) = workers.lease(lease=0.1)

    (again,) = workers.lease(wait=10)

    assert (again["payload"], again["attempts"]) == ("a", 2)
    assert workers.acknowledge(late) == ["lease_lost"]
    assert workers.acknowledge(late, action="renew") == ["lease_lost"]
    assert workers.acknowledge(again) == ["accepted"]
    assert workers.acknowledge(again) == ["accepted"]  # its reply may have been lost
    assert workers.acknowledge(late) == ["lease_lost"]


def test_a_lease_that_is_over_counts_as_long_as_nobody_else_has_the_message(
    topic: Topic, workers: Workers
) -> None:
    publish(topic, "a")
    (held,) = workers.lease(lease=0.1)
    assert workers.acknowledge(held, action="renew", lease=0.1) == ["renewed"]

    assert workers.acknowledge(held) == ["accepted"]

    assert workers.lease() == []


def test_a_failed_message_is_retried_later_and_blocks_no_other(
    topic: Topic, workers: Workers
) -> None:
    publish(topic, "a", "b")
    (failed,) = workers.lease(1)
    assert workers.acknowledge(failed, action="release", delay=2) == ["released"]
    assert workers.leased() == ["b"]
    assert workers.show()["waiting"] == 1

    (again,) = workers.lease(wait=10)

    assert (again["payload"], again["attempts"]) == ("a", 2)
    assert workers.acknowledge(again, action="reject") == ["rejected"]
    assert workers.acknowledge(failed) == ["lease_lost"]


def test_with_order_by_key_a_key_waits_and_others_do_not(topic: Topic) -> None:
    workers = Workers(topic)
    ok(workers.create(order="key"))
    publish(
        topic,
        {"payload": "a1", "key": "a"},
        {"payload": "a2", "key": "a"},
        {"payload": "b1", "key": "b"},
        "free",
    )

    held = workers.lease()
    assert [each["payload"] for each in held] == ["a1", "b1", "free"]
    assert workers.show()["blocked"] == 1
    workers.acknowledge(held[0], action="release")

    assert workers.leased() == ["a1"]
    assert workers.acknowledge(held[1]) == ["accepted"]
    assert workers.lease() == []


def test_a_request_waits_for_a_message_a_release_and_the_end_of_a_lease(
    topic: Topic, workers: Workers
) -> None:
    assert workers.lease(wait=0.05) == []
    publish(topic, "a")
    assert workers.leased(wait=10, lease=0.1) == ["a"]
    assert workers.leased(wait=10) == ["a"]


def test_an_acceptance_within_a_transaction_counts_if_that_commits(
    client: Client, topic: Topic, workers: Workers
) -> None:
    publish(topic, "a", "b")
    first, second = workers.lease()
    kept, dropped = begin(client), begin(client)
    assert workers.acknowledge(first, tx=kept.id) == ["accepted"]
    assert workers.acknowledge(first, tx=kept.id) == ["accepted"]
    assert workers.acknowledge(first) == ["lease_lost"]
    assert workers.acknowledge(second, tx=dropped.id) == ["accepted"]
    assert workers.show()["undecided"] == 2
    ok(kept.commit())
    ok(dropped.abort())

    assert workers.acknowledge(second, action="release") == ["released"]

    assert workers.leased(wait=10) == ["b"]
    assert workers.show()["undecided"] == 0


def test_an_undecided_acceptance_is_not_given_out_when_its_lease_ends(
    client: Client, topic: Topic, workers: Workers
) -> None:
    publish(topic, "a")
    tx = begin(client)
    (held,) = workers.lease(lease=0.1)
    assert workers.acknowledge(held, tx=tx.id) == ["accepted"]
    assert workers.lease(wait=0.2) == []
    ok(tx.abort())

    assert workers.leased(wait=10) == ["a"]


def test_a_message_of_an_undecided_transaction_is_not_passed(
    client: Client, topic: Topic, workers: Workers
) -> None:
    tx = begin(client)
    ok(topic.publish("undecided", tx=tx.id))
    publish(topic, "later")
    assert workers.lease() == []
    ok(tx.commit())

    assert workers.leased(wait=10) == ["undecided", "later"]


def test_a_refused_transaction_changes_nothing(
    client: Client, topic: Topic, workers: Workers
) -> None:
    publish(topic, "a")
    (held,) = workers.lease()
    tx = begin(client)
    ok(tx.abort())

    refused(workers.try_acknowledge(held, tx=tx.id), 409, "transaction_aborted")

    assert workers.acknowledge(held) == ["accepted"]


def test_in_a_transaction_all_messages_are_accepted_or_none(
    client: Client, topic: Topic, workers: Workers
) -> None:
    publish(topic, "a", "b")
    late, held = workers.lease()
    workers.acknowledge(late, action="release")
    tx = begin(client)

    problem = refused(workers.try_acknowledge(late, held, tx=tx.id), 409, "lease_lost")

    assert problem["ids"] == [late["id"]]
    assert workers.show()["undecided"] == 0
    assert workers.acknowledge(held, tx=tx.id) == ["accepted"]


def test_a_group_begins_where_it_is_told(topic: Topic) -> None:
    publish(topic, "a", "b")
    second = ids(topic.poll())[1]
    for name, start, payloads in (
        ("all", "earliest", ["a", "b"]),
        ("new", "latest", []),
        ("at", second, ["b"]),
        ("time", int(second[:16], 16), ["a", "b"]),
    ):
        workers = Workers(topic, name)
        ok(workers.create(start=start))
        assert workers.leased() == payloads, name
    names = ok(topic.client.get(f"{topic.path}/share-groups")).json
    assert names == ["all", "at", "new", "time"]


def test_the_same_group_can_be_created_again_and_another_not(
    topic: Topic, workers: Workers
) -> None:
    ok(workers.create())
    refused(workers.create(order="key"), 409, "group_already_exists", naming="order none")
    ok(topic.client.delete(workers.path))
    refused(workers.try_lease(), 404, "group_not_found", naming="billing")
    ok(workers.create(order="key"))
    assert workers.show()["order"] == "key"


def test_metrics_show_the_lag_of_a_group(topic: Topic, workers: Workers) -> None:
    labels = f'{{group="billing",namespace="{topic.namespace}",topic="{topic.name}"}}'
    publish(topic, "a")
    publish(topic, "b")
    first, second = (int(each[:16], 16) for each in ids(topic.poll()))

    # A scrape shows no lag that takes long to read, and the next one what was read then.
    def behind_s() -> float | None:
        return metrics_of(topic.client).get(f"tuff_share_group_behind_seconds{labels}")

    until(lambda: behind_s() == (second - first) / 1000)
    assert workers.acknowledge(*workers.lease()) == ["accepted"] * 2
    until(lambda: behind_s() == 0)
    ok(topic.client.delete(workers.path))
    until(lambda: labels not in str(metrics_of(topic.client)))


def test_a_restart_loads_the_groups_for_the_metrics(new_server: NewServer) -> None:
    """Otherwise the lag of a group whose workers are all dead would not be seen."""
    server = new_server()
    topic = created(server.client(), "default", "orders")
    ok(Workers(topic).create())
    publish(topic, "a")
    publish(topic, "b")
    first, second = (int(each[:16], 16) for each in ids(topic.poll()))
    server.kill()

    client = new_server(home=server.home).client()

    name = 'tuff_share_group_behind_seconds{group="billing",namespace="default",topic="orders"}'
    until(lambda: metrics_of(client).get(name) == (second - first) / 1000)


def test_a_group_has_the_messages_of_all_partitions(client: Client, topic: Topic) -> None:
    ok(topic.update({"partitions": 3}))
    workers = Workers(topic)
    ok(workers.create(lease=1))
    ok(workers.create(lease=1))
    refused(workers.create(lease=2), 409, "group_already_exists")
    parts = [Topic(client, topic.namespace, f"{topic.name}:{number}") for number in range(3)]
    for number, part in enumerate(parts):
        publish(part, f"m{number}")

    replies = [ok(workers.try_lease()).json for _ in parts]
    payloads = {each["partition"]: each["messages"][0]["payload"] for each in replies}
    assert payloads == {f"{topic.name}:{number}": f"m{number}" for number in range(3)}
    shown = workers.show()
    assert (shown["leased"], shown["available"], shown["lease"]) == (3, 0, 1.0)
    refused(workers.try_acknowledge(*replies[0]["messages"]), 400, "partition_required")
    for each in replies:
        part = Workers(Topic(client, topic.namespace, each["partition"]))
        assert part.acknowledge(*each["messages"]) == ["accepted"]

    assert workers.show()["oldest"] is None
    assert ok(client.get(f"{topic.path}/share-groups")).json == ["billing"]
    ok(client.delete(workers.path))
    for part in (topic, *parts):
        refused(Workers(part).try_lease(), 404, "group_not_found")


def test_an_added_partition_joins_a_group_from_its_beginning(new_server: NewServer) -> None:
    server = new_server()
    client = server.client()
    topic = created(client, "share", "growing")
    workers = Workers(Topic(server.client(), topic.namespace, topic.name))
    ok(workers.create(start="latest", order="key"))
    found: list[Any] = []
    waiting = Thread(target=lambda: found.append(ok(workers.try_lease(wait=30)).json))
    waiting.start()
    until(lambda: metrics_of(client)["tuff_polls_waiting"] == 1)
    ok(topic.update({"partitions": 2}))
    publish(Topic(client, topic.namespace, f"{topic.name}:1"), "new")
    waiting.join()

    (reply,) = found
    assert (reply["partition"], reply["messages"][0]["payload"]) == (f"{topic.name}:1", "new")
    part = Workers(Topic(client, topic.namespace, f"{topic.name}:1"))
    assert (part.show()["start"], part.show()["order"]) == ("earliest", "key")


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_group_has_the_messages_with_its_tags(client: Client, topic: Topic, order: str) -> None:
    workers = Workers(topic)
    ok(workers.create(tags="urgent,new|late", order=order))
    refused(workers.create(order=order), 409, "group_already_exists")
    refused(workers.create(order=order, tags=""), 400, "bad_request")
    messages = [
        {"payload": text, "tags": text.split("-")} for text in ("new", "urgent-new", "late")
    ]
    ok(client.post(f"{topic.path}/publish", {"messages": messages}))

    assert workers.leased() == ["urgent-new", "late"]
    assert workers.show()["tags"] == "urgent,new|late"


def test_a_group_of_one_partition_ends_with_its_topic(client: Client, topic: Topic) -> None:
    ok(topic.update({"partitions": 2}))
    of_one = Workers(Topic(client, topic.namespace, f"{topic.name}:1"))
    ok(of_one.create())
    assert of_one.lease() == []
    refused(Workers(topic).try_lease(), 404, "group_not_found")

    ok(topic.delete())
    refused(of_one.try_lease(), 404, "topic_not_found")
    again = created(client, topic.namespace, topic.name)

    assert ok(client.get(f"{again.path}/share-groups")).json == []
    refused(client.get(f"{again.path}/share-groups/billing"), 404, "group_not_found")


def test_only_a_message_that_was_begun_was_attempted(topic: Topic, workers: Workers) -> None:
    publish(topic, "a", "b")
    workers.acknowledge(*workers.lease(), action="release", attempt="none")
    assert [(each["attempts"], each["lost"]) for each in workers.lease(lease=0.1)] == [(1, 0)] * 2

    (first,) = workers.lease(wait=10)  # the worker may have died of one of the two
    (second,) = workers.lease(wait=10)

    assert (first["payload"], first["attempts"], first["lost"]) == ("a", 2, 1)
    assert (second["payload"], second["attempts"], second["lost"]) == ("b", 1, 0)


def test_a_release_that_outlives_its_message_is_answered_and_changes_nothing(
    topic: Topic, workers: Workers
) -> None:
    publish(topic, {"payload": "a", "ttl": 60})
    (held,) = workers.lease()

    assert workers.acknowledge(held, action="release", delay=100) == ["expires"]
    assert workers.show()["leased"] == 1
    assert workers.acknowledge(held, action="release", delay=1) == ["released"]


@pytest.mark.parametrize("name", ["group", "delayed", "share", "3"])
def test_a_group_may_have_the_name_of_a_kind_of_log(topic: Topic, name: str) -> None:
    workers = Workers(topic, name)
    ok(workers.create())
    publish(topic, "a")

    assert workers.acknowledge(*workers.lease()) == ["accepted"]

    listed = ok(topic.client.get(f"/v1/namespaces/{topic.namespace}/topics")).json
    assert listed == [topic.name]
    assert ok(topic.client.get(f"/v1/namespaces/{topic.namespace}/groups")).json == []


@pytest.mark.parametrize(
    ("body", "naming"),
    [
        ({"count": 0}, "count"),
        ({"lease": 0.01}, "lease"),
        ({"lease": 50_000}, "lease"),
        ({"lease": 1e308}, "lease"),
        ({"maxBytes": 0}, "maxBytes"),
        ({"other": 1}, "other"),
    ],
)
def test_a_wrong_lease_request_is_refused(
    workers: Workers, body: dict[str, object], naming: str
) -> None:
    refused(workers.client.post(f"{workers.path}/lease", body), 400, "bad_request", naming=naming)


@pytest.mark.parametrize(
    ("message", "naming"),
    [
        ({"id": PLACE}, "token"),
        ({"id": PLACE, "token": "?"}, "token"),
        ({"id": PLACE, "token": "1-1", "action": "eat"}, "eat"),
        ({"id": PLACE, "token": "1-1", "delay": 1}, "delay"),
        ({"id": PLACE, "token": "1-1", "action": "release", "lease": 1}, "lease"),
        ({"id": PLACE, "token": "1-1", "action": "release", "attempt": "some"}, "attempt"),
        ({"id": PLACE, "token": "1-1", "attempt": "begun"}, "attempt"),
    ],
)
def test_a_wrong_acknowledgement_is_refused(
    workers: Workers, message: dict[str, object], naming: str
) -> None:
    reply = workers.client.post(f"{workers.path}/acknowledge", {"messages": [message]})
    refused(reply, 400, "bad_request", naming=naming)


def test_a_message_named_twice_and_a_release_in_a_transaction_are_refused(
    client: Client, topic: Topic, workers: Workers
) -> None:
    publish(topic, "a")
    (held,) = workers.lease()
    refused(workers.try_acknowledge(held, held), 400, "bad_request", naming="twice")
    release = workers.try_acknowledge(held, action="release", tx=begin(client).id)
    refused(release, 400, "bad_request", naming="transaction")
    assert workers.acknowledge({"id": PLACE, "token": held["token"]}) == ["lease_lost"]


def test_a_restart_keeps_what_is_done_and_gives_out_the_rest(new_server: NewServer) -> None:
    server = new_server()
    topic = created(server.client(), "default", "orders")
    workers = Workers(topic)
    ok(workers.create())
    publish(topic, "a", "b", "c")
    held = workers.lease()
    assert workers.acknowledge(held[1]) == ["accepted"]
    server.kill()

    client = new_server(home=server.home).client()
    workers = Workers(Topic(client, "default", "orders"))

    assert workers.acknowledge(held[0]) == ["accepted"]  # no other worker has it
    (again,) = workers.lease()
    assert (again["payload"], again["attempts"]) == ("c", 1)
    assert workers.acknowledge(held[2]) == ["lease_lost"]
    assert workers.acknowledge(again) == ["accepted"]


def test_a_server_that_stops_answers_a_lease_that_waits_at_once(new_server: NewServer) -> None:
    """It waited until the time for a stop was over, and then cut the connection."""
    server = new_server()
    workers = Workers(created(server.client(), "share", "stopping"))
    ok(workers.create())
    replies: list[Reply] = []
    waiting = Thread(target=lambda: replies.append(workers.try_lease(wait=60)))
    waiting.start()
    until(lambda: metrics_of(server.client())["tuff_polls_waiting"] == 1)

    server.end()

    waiting.join(60)
    assert [each.status for each in replies] == [200]
