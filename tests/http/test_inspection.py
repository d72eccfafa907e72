"""The overview of topics, and rows with their states (protocol §3.13)."""

from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, begin
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import NewServer, NewTopic


def summaries(client: Client, **query: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(client.get("/v1/topics", **query)).json["topics"]
    return found


def rows(topic: Topic, **query: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(topic.client.get(f"{topic.path}/rows", **query)).json["rows"]
    return found


def test_the_overview_has_size_and_age_of_a_topic(new_topic: NewTopic) -> None:
    topic = new_topic({"ttl": 60, "partitions": 3})
    first = ok(topic.publish({"payload": "abc", "key": "a"})).header("Tuff-First-Id")
    last = ok(topic.publish({"payload": "defg", "key": "b"})).header("Tuff-Last-Id")
    ok(topic.client.put(f"{topic.path}:1/positions/nightly", {"position": first}))

    (found,) = summaries(topic.client, namespace=topic.namespace)

    assert found == {
        "namespace": topic.namespace,
        "name": topic.name,
        "generation": 1,
        "ttl": 60,
        "partitionCount": 3,
        "positionCount": 1,
        "publishedCount": 2,
        "publishedBytes": 7,
        "storedBytes": found["storedBytes"],
        "messageCount": 2,
        "isLowerBound": False,
        "oldest": int(str(first)[:16], 16),
        "newest": int(str(last)[:16], 16),
    }


def test_an_empty_topic_has_no_times(topic: Topic) -> None:
    (found,) = summaries(topic.client, namespace=topic.namespace)

    assert (found["oldest"], found["newest"], found["publishedCount"]) == (None, None, 0)


def test_the_overview_comes_in_pages_by_name(new_server: NewServer) -> None:
    client = new_server().client()
    names = [("a", "x"), ("a-b", "x"), ("a.b", "x"), ("b", "x"), ("b", "y")]
    for each in names:
        ok(Topic(client, *each).create())
    found: list[tuple[str, str]] = []
    after: str | None = ""
    while after is not None:
        page = ok(client.get("/v1/topics", limit=2, after=after)).json
        assert page["count"] == len(names)
        found += [(each["namespace"], each["name"]) for each in page["topics"]]
        after = page["next"]

    assert found == names
    assert [each["name"] for each in summaries(client, contains="b:y")] == ["y"]


@pytest.mark.parametrize("limit", ["0", "501", "x"])
def test_a_page_of_topics_has_a_limit(client: Client, limit: str) -> None:
    refused(client.get("/v1/topics", limit=limit), 400, "bad_request")


def test_each_row_has_the_state_of_its_transaction(topic: Topic) -> None:
    client = topic.client
    ok(topic.publish({"payload": "brief", "ttl": 1}))
    ok(topic.publish("plain"))
    committed, aborted, opened = begin(client), begin(client), begin(client)
    for each in (committed, aborted, opened):
        ok(topic.publish(each.id, tx=each.id))
    ok(client.post(f"{TRANSACTIONS}/{committed.id}/commit"))
    ok(client.post(f"{TRANSACTIONS}/{aborted.id}/abort"))
    until(lambda: rows(topic)[0]["state"] == "expired", what="the first row to expire")

    found = rows(topic)

    assert [(each["state"], each["writePointer"], each["transactionId"]) for each in found] == [
        ("expired", None, None),
        ("committed", None, None),
        ("committed", committed.id, None),
        ("rolled_back", aborted.id, None),
        ("in_progress", opened.id, opened.id),
    ]
    assert found[1]["expiresAt"] == found[1]["timestamp"] + 604_800_000


def test_a_reference_row_says_how_many_messages_it_publishes(topic: Topic) -> None:
    opened = begin(topic.client)
    ok(topic.store("a", "b", "c", tx=opened.id))
    ok(topic.publish(tx=opened.id))

    (found,) = rows(topic)

    assert (found["messageCount"], found["state"]) == (3, "in_progress")


def test_rows_come_in_pages_in_both_orders(topic: Topic) -> None:
    ok(topic.publish(*"abcde"))
    ids = [each["id"] for each in rows(topic)]
    for order, expected in (("ascending", ids), ("descending", ids[::-1])):
        found: list[str] = []
        query: dict[str, object] = {"order": order, "limit": 2}
        while query.get("from", "") is not None:
            page = ok(topic.client.get(f"{topic.path}/rows", **query)).json
            found += [each["id"] for each in page["rows"]]
            query["from"] = page["next"]

        assert found == expected
    assert [each["id"] for each in rows(topic, **{"from": ids[2]})] == ids[2:]
    assert [each["id"] for each in rows(topic, **{"from": ids[2], "order": "descending"})] == [
        *reversed(ids[:3])
    ]


def test_without_transactions_the_state_of_their_rows_is_unknown(new_server: NewServer) -> None:
    client = new_server().client()
    topic = Topic(client, "shop", "orders")
    ok(topic.create())
    ok(topic.publish("plain"))
    ok(topic.publish("open", tx=begin(client).id))
    ok(client.post(f"{TRANSACTIONS}/service/stop"))

    assert [each["state"] for each in rows(topic)] == ["committed", "unknown"]


def test_rows_of_no_topic_or_from_nowhere_are_refused(topic: Topic, missing: Topic) -> None:
    refused(missing.client.get(f"{missing.path}/rows"), 404, "topic_not_found")
    refused(topic.client.get(f"{topic.path}/rows", **{"from": "latest"}), 400, "bad_request")


def test_the_overview_of_a_topic_has_its_partitions_and_the_groups_that_read_it(
    client: Client, missing: Topic
) -> None:
    ok(missing.create({"partitions": 2}))
    one = Topic(client, missing.namespace, f"{missing.name}:1")
    first = ok(one.publish("committed")).header("Tuff-First-Id")
    opened = begin(client)
    ok(one.publish("undecided", tx=opened.id))
    ok(client.put(f"{one.path}/positions/reader", {"position": first}))
    ok(client.put(f"{one.path}/holds/backup", {"from": first, "maxAge": 60}))
    groups = f"/v1/namespaces/{missing.namespace}/groups"
    for name, topic in (("reads-it", missing.name), ("reads-another", "another")):
        join = {"memberId": name, "memberEpoch": 0, "topics": [topic]}
        ok(client.post(f"{groups}/{missing.name}.{name}/heartbeat", join))

    found = ok(client.get(f"{missing.path}/overview")).json

    assert found["topic"] == ok(client.get(missing.path)).json
    assert [each["number"] for each in found["partitions"]] == [0, 1]
    second = found["partitions"][1]
    assert second["all"] == ok(client.get(f"{one.path}/offsets")).json
    assert second["committed"] == ok(client.get(f"{one.path}/offsets?isolation=committed")).json
    assert second["committed"]["blockedBy"] == opened.id
    assert {"positions": second["positions"]} == ok(client.get(f"{one.path}/positions")).json
    assert {"holds": second["holds"]} == ok(client.get(f"{one.path}/holds")).json
    assert [each["name"] for each in second["positions"]] == ["reader"]
    assert [each["name"] for each in second["holds"]] == ["backup"]
    (group,) = found["groups"]
    shown = ok(client.get(f"{groups}/{missing.name}.reads-it")).json
    for each in (*group["partitions"], *shown["partitions"]):
        each.pop("unreadAgeMs")  # it grows
    assert group == shown
    assert found["hasAllGroups"] is True
    ok(opened.abort())
    refused(client.get(f"{missing.path}-no/overview"), 404, "topic_not_found")
