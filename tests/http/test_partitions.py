"""Topics with several partitions, over HTTP (protocol §2, §3.1)."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from messaging.model.partition_of_key import partition_index
from tests.http.calls import Topic, begin, entry
from tests.http.client import Client, Reply, ok, refused
from tests.http.conftest import NewTopic
from tests.http.forms import messages_of

KEYS = [f"customer-{number}" for number in range(12)]


@pytest.fixture
def orders(new_topic: NewTopic) -> Topic:
    """A topic with three partitions."""
    return new_topic({"partitions": 3})


def partition(topic: Topic, number: int) -> Topic:
    return Topic(topic.client, topic.namespace, f"{topic.name}:{number}")


def keyed(*keys: str) -> list[dict[str, str]]:
    return [{"payload": key, "key": key} for key in keys]


def of_keys(keys: Sequence[str], count: int = 3) -> list[list[str]]:
    """The keys by their partition."""
    numbers = [partition_index(key.encode(), count) for key in keys]
    return [
        [key for key, of in zip(keys, numbers, strict=True) if of == number]
        for number in range(count)
    ]


def contents(topic: Topic, count: int = 3, **query: Any) -> list[list[str]]:
    return [partition(topic, number).read(**query) for number in range(count)]


def test_a_topic_shows_its_partitions(new_topic: NewTopic, orders: Topic) -> None:
    one = new_topic({"ttl": 5})

    shown = ok(one.show()).json
    assert (shown["partitions"], shown["retired"]) == ([0], [])
    shown = ok(orders.show()).json
    assert (shown["partitions"], shown["retired"]) == ([0, 1, 2], [])
    assert "partitions" not in shown["properties"]
    shown = ok(partition(orders, 2).show()).json
    assert shown == {
        "name": f"{orders.name}:2", "properties": {"ttl": "604800"}, "generation": 1,
    }  # fmt: skip
    assert orders.name in ok(orders.client.get(orders.path.rpartition("/")[0])).json
    assert not [
        name for name in ok(orders.client.get(orders.path.rpartition("/")[0])).json if ":" in name
    ]


def test_the_count_changes_the_partitions_and_is_optional(orders: Topic) -> None:
    ok(orders.update({"partitions": "2"}))
    ok(orders.update({"ttl": 60}))
    ok(orders.update({"partitions": 3, "owner": "me"}))

    shown = ok(orders.show()).json
    assert (shown["partitions"], shown["retired"]) == ([0, 1, 3], [2])
    assert shown["properties"] == {"ttl": "604800", "owner": "me"}
    assert ok(partition(orders, 2).show()).json["properties"] == {"ttl": "604800"}
    refused(partition(orders, 2).publish("a"), 409, "partition_retired", naming=f"{orders.name}:2")
    ok(partition(orders, 3).publish("a"))


@pytest.mark.parametrize("count", [0, 1001, -1, "x", "", 1.5, True, None, [2], "9" * 30])
def test_a_bad_count_creates_and_changes_nothing(
    missing: Topic, orders: Topic, count: object
) -> None:
    refused(missing.create({"partitions": count}), 400, "invalid_topic_properties")
    refused(missing.show(), 404, "topic_not_found")
    refused(orders.update({"partitions": count}), 400, "invalid_topic_properties")
    assert ok(orders.show()).json["partitions"] == [0, 1, 2]


def test_a_thousand_partitions_are_possible(missing: Topic) -> None:
    ok(missing.create({"partitions": 1000}))

    assert ok(missing.show()).json["partitions"] == [*range(1000)]
    ok(partition(missing, 999).publish("last"))
    assert partition(missing, 999).read() == ["last"]
    ok(missing.delete())


@pytest.mark.parametrize("number", [0, 1, 9])
def test_partitions_are_not_created_changed_or_deleted_alone(orders: Topic, number: int) -> None:
    one = partition(orders, number)

    for reply in (one.create(), one.update({"ttl": 5}), one.delete()):
        refused(reply, 400, "bad_request", naming=f"is a partition of {orders.namespace}")
    assert ok(orders.show()).json["partitions"] == [0, 1, 2]


@pytest.mark.parametrize(
    "part", ["delayed", "group", "3:delayed", "01", "10000", "-1", "", "a", "1:2", "\u0661"]
)
def test_other_logs_of_a_topic_are_not_named_in_requests(orders: Topic, part: str) -> None:
    client, name = orders.client, f"{orders.name}:{part}"
    other = Topic(client, orders.namespace, name.replace("\u0661", "%D9%A1"))

    for reply in (other.show(), other.create(), other.publish("a"), other.poll(), other.offsets()):
        refused(reply, 400, "invalid_name")
    run = {"publish": [{"namespace": orders.namespace, "topic": name, "messages": ["a"]}]}
    refused(client.post("/v1/transactions/run", run), 400, "invalid_name")


def test_a_partition_that_does_not_exist_is_not_found(orders: Topic) -> None:
    for reply in (partition(orders, 3).publish("a"), partition(orders, 3).poll()):
        refused(reply, 404, "topic_not_found", naming=f"{orders.name}:3")


def test_messages_are_divided_by_key(orders: Topic) -> None:
    published = ok(orders.publish(*keyed(*KEYS)))

    assert published.header("Tuff-Partitions") == "0,1,2"
    assert contents(orders) == of_keys(KEYS)
    firsts = [ok(partition(orders, number).offsets()).json["earliest"] for number in range(3)]
    ends = [ok(partition(orders, number).offsets()).json["end"] for number in range(3)]
    assert published.header("Tuff-First-Id") == min(firsts)
    assert published.header("Tuff-Last-Id") == max(ends)


def test_requests_without_keys_take_turns(orders: Topic) -> None:
    headers = [ok(orders.publish("a", "b")).header("Tuff-Partitions") for _ in range(4)]

    assert headers == ["0", "1", "2", "0"]
    assert contents(orders) == [["a", "b"] * 2, ["a", "b"], ["a", "b"]]


def test_a_topic_with_one_partition_has_no_header_of_partitions(topic: Topic) -> None:
    assert ok(topic.publish("a")).header("Tuff-Partitions") is None
    assert partition(topic, 0).read() == topic.read() == ["a"]


CALLS: dict[str, Callable[[Topic], Reply]] = {
    "poll": lambda topic: topic.poll(),
    "browse": lambda topic: topic.browse(),
    "latest": lambda topic: topic.browse(**{"from": "latest"}),
    "offsets": lambda topic: topic.offsets(),
    "splits": lambda topic: topic.client.get(f"{topic.path}/splits", n=2),
    "position": lambda topic: topic.client.put(f"{topic.path}/positions/p", {"position": "0" * 40}),
    "positions": lambda topic: topic.client.get(f"{topic.path}/positions"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_for_one_partition_needs_its_number(orders: Topic, call: str) -> None:
    problem = refused(CALLS[call](orders), 400, "partition_required", naming=f"{orders.name}:2")

    assert problem["partitions"] == [0, 1, 2]
    namespace = orders.path.split("/")[3]
    assert f"name it: {namespace}:{orders.name}/2 in a program or a command" in str(
        problem["detail"]
    )
    for number in range(3):
        ok(CALLS[call](partition(orders, number)))


def test_transactions_divide_their_messages_too(orders: Topic, client: Client) -> None:
    inline, stored, committed = begin(client), begin(client), begin(client)

    detail = ok(orders.publish(*keyed(*KEYS), tx=inline.id))
    ok(orders.store(*keyed(*KEYS), tx=stored.id))
    ok(orders.publish(tx=stored.id))
    assert detail.header("Tuff-Partitions") == "0,1,2"
    assert contents(orders, isolation="committed") == [[], [], []]
    for each in (inline, stored):
        ok(each.commit())
    ok(committed.commit(publish=[entry(orders, *keyed(*KEYS))]))
    run = {"publish": [entry(orders, *keyed(*KEYS)), entry(partition(orders, 0), "chosen")]}
    result = ok(client.post("/v1/transactions/run", run)).json

    found = contents(orders, isolation="committed")
    expected = of_keys(KEYS)
    assert found == [expected[0] * 4 + ["chosen"], expected[1] * 4, expected[2] * 4]
    assert len(result["published"]) == 2


def test_a_rollback_of_a_divided_publish_hides_all_of_it(orders: Topic, client: Client) -> None:
    tx = begin(client)
    detail = ok(orders.publish(*keyed(*KEYS), tx=tx.id)).json
    ok(partition(orders, 1).publish("kept", tx=tx.id))

    ok(orders.rollback(detail))
    ok(tx.commit())

    assert contents(orders, isolation="committed") == [[], ["kept"], []]
    assert contents(orders)[1] == [*of_keys(KEYS)[1], "kept"]


def test_a_truncation_of_the_topic_is_one_of_all_partitions(orders: Topic) -> None:
    ok(orders.publish(*keyed(*KEYS)))
    ok(partition(orders, 1).truncate(1 << 62))
    assert contents(orders) == [of_keys(KEYS)[0], [], of_keys(KEYS)[2]]

    assert ok(orders.truncate(1 << 62)).json == {"earliest": None}
    assert contents(orders) == [[], [], []]


def test_a_deleted_topic_comes_back_without_messages(orders: Topic) -> None:
    ok(orders.publish(*keyed(*KEYS)))
    ok(orders.delete())
    refused(partition(orders, 1).poll(), 404, "topic_not_found")

    ok(orders.create({"partitions": 2}))

    assert contents(orders, 2) == [[], []]
    assert ok(partition(orders, 1).show()).json["generation"] == 2
    refused(partition(orders, 2).poll(), 404, "topic_not_found")


def test_an_avro_publish_goes_to_a_partition(orders: Topic) -> None:
    one = partition(orders, 2)

    ok(one.avro("publish", bytes.fromhex("0204026104626300")))

    found = messages_of(ok(one.avro("poll", bytes.fromhex("0401001402"))).body)
    assert [payload for _, payload in found] == [b"a", b"bc"]
    assert contents(orders) == [[], [], ["a", "bc"]]
