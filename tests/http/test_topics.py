"""Topics: creating, changing, listing, deleting, truncating (protocol §2)."""

import time
from urllib.parse import quote

import pytest

from tests.http.calls import Topic, begin, ids
from tests.http.client import JSON, Client, ok, problem_of, refused, until
from tests.http.conftest import NewTopic

BAD_PROPERTIES = [
    b"{", b"[1]", b'"s"', b"null", b"7", b"[]", b'{"a": "b"', b'{"x": NaN}', b"\xff\xfe",
    b'{"ttl": 0}', b'{"ttl": -1}', b'{"ttl": 1.5}', b'{"ttl": "5.0"}', b'{"ttl": "abc"}',
    b'{"ttl": ""}', b'{"ttl": " 5"}', b'{"ttl": "+5"}', b'{"ttl": "\xd9\xa5"}', b'{"ttl": true}',
    b'{"ttl": null}', b'{"ttl": []}', b'{"ttl": 2147483648}', b'{"ttl": "2147483648"}',
    b'{"ttl": 99999999999999999999999999}', b'{"generation": 2}', b'{"generation": "1"}',
    b'{"x": []}', b'{"x": {}}', b'{"x": null}', b'{"x": true}', b'{"ttl": 5.0}', b'{"ttl": 1e2}',
    b'{"x": ' + b"[" * 1_010 + b"]" * 1_010 + b"}", b'{"x": ' + b"9" * 70_000 + b"}",
]  # fmt: skip
ILLEGAL_NAMES = [".", "..", "a b", "a:b", "ü", "a/b", "a" * 129, "a\n", "%", "a?b", "\x00", "*"]


def test_a_topic_without_properties_has_the_default_ttl_and_generation_1(topic: Topic) -> None:
    shown = ok(topic.show()).json

    assert shown == {"name": topic.name, "properties": {"ttl": "604800"}, "generation": 1}


def test_creating_answers_200_with_an_empty_body(missing: Topic) -> None:
    reply = missing.create({"ttl": 60})

    assert (reply.status, reply.body) == (200, b"")


def test_creating_a_topic_twice_is_refused_and_leaves_the_first_alone(new_topic: NewTopic) -> None:
    topic = new_topic({"ttl": 60})

    refused(topic.create({"ttl": 90}), 409, "topic_already_exists", naming=topic.name)

    assert ok(topic.show()).json["properties"] == {"ttl": "60"}


def test_properties_are_kept_as_given_and_shown_as_strings(new_topic: NewTopic) -> None:
    topic = new_topic({"ttl": 5, "owner": "billing", "weight": 7, "empty": "", "ratio": 1.5})

    assert ok(topic.show()).json["properties"] == {
        "ttl": "5", "owner": "billing", "weight": "7", "empty": "", "ratio": "1.5",
    }  # fmt: skip


@pytest.mark.parametrize(
    "number",
    ["123456789012345678901234567890", "0.1234567890123456789", "1.10", "1E5", "-0", "1e400",
     "9" * 5_000],
)  # fmt: skip
def test_a_number_is_kept_as_it_is_written(client: Client, missing: Topic, number: str) -> None:
    """It was kept as a machine's number: 1.1, 100000.0, 0, Infinity."""
    body = f'{{"ttl": 5, "x": {number}, "y": "1.0"}}'.encode()

    ok(client.send("PUT", missing.path, body, content_type=JSON))

    assert ok(missing.show()).json["properties"] == {"ttl": "5", "x": number, "y": "1.0"}


@pytest.mark.parametrize("ttl", [1, "1", 2147483647, "2147483647"])
def test_a_ttl_may_be_a_number_or_a_string(new_topic: NewTopic, ttl: object) -> None:
    topic = new_topic({"ttl": ttl})

    assert ok(topic.show()).json["properties"] == {"ttl": str(ttl)}


@pytest.mark.parametrize("body", BAD_PROPERTIES)
def test_bad_properties_create_nothing(client: Client, missing: Topic, body: bytes) -> None:
    reply = client.send("PUT", missing.path, body, content_type=JSON)

    refused(reply, 400, "invalid_topic_properties")
    refused(missing.show(), 404, "topic_not_found")


@pytest.mark.parametrize("body", BAD_PROPERTIES)
def test_bad_properties_change_nothing(client: Client, new_topic: NewTopic, body: bytes) -> None:
    topic = new_topic({"ttl": 60, "a": "b"})

    reply = client.send("PUT", f"{topic.path}/properties", body, content_type=JSON)

    refused(reply, 400, "invalid_topic_properties")
    assert ok(topic.show()).json["properties"] == {"ttl": "60", "a": "b"}


def test_an_update_replaces_all_properties(new_topic: NewTopic) -> None:
    topic = new_topic({"ttl": 60, "a": "b"})

    reply = ok(topic.update({"c": "d"}))

    assert reply.body == b""
    assert ok(topic.show()).json == {
        "name": topic.name, "properties": {"ttl": "604800", "c": "d"}, "generation": 1,
    }  # fmt: skip


def test_a_missing_topic_can_not_be_shown_updated_deleted_or_truncated(missing: Topic) -> None:
    for reply in (
        missing.show(),
        missing.update({"ttl": 5}),
        missing.delete(),
        missing.truncate(5),
        missing.publish("a"),
        missing.poll(),
        missing.browse(),
        missing.offsets(),
    ):
        refused(reply, 404, "topic_not_found", naming="missing")


def test_topics_are_listed_in_byte_order(client: Client, new_topic: NewTopic) -> None:
    names = ["b", "a", "_", "-x", "B", "10", "9", "a.b", "a-b"]
    made = [new_topic(name=name) for name in names]

    listed = ok(client.get(f"/v1/namespaces/{made[0].namespace}/topics")).json

    assert listed == ["-x", "10", "9", "B", "_", "a", "a-b", "a.b", "b"]


def test_a_namespace_without_topics_lists_none(client: Client, missing: Topic) -> None:
    assert ok(client.get(f"/v1/namespaces/{missing.namespace}/topics")).json == []


def test_a_namespace_exists_while_a_topic_is_in_it(client: Client, missing: Topic) -> None:
    def namespaces() -> list[str]:
        found: list[str] = ok(client.get("/v1/namespaces")).json
        assert found == sorted(found)
        return found

    assert missing.namespace not in namespaces()
    ok(missing.create())
    assert missing.namespace in namespaces()
    ok(missing.delete())
    assert missing.namespace not in namespaces()


def test_a_deleted_topic_is_gone(client: Client, topic: Topic) -> None:
    ok(topic.publish("a"))

    reply = ok(topic.delete())

    assert reply.body == b""
    refused(topic.show(), 404, "topic_not_found")
    refused(topic.delete(), 404, "topic_not_found")
    refused(topic.poll(), 404, "topic_not_found")
    assert ok(client.get(f"/v1/namespaces/{topic.namespace}/topics")).json == []


def test_a_topic_made_again_has_the_next_generation_and_no_old_message(
    new_topic: NewTopic,
) -> None:
    topic = new_topic({"ttl": 60, "a": "b"})
    ok(topic.publish("old"))
    [old] = ids(topic.poll())
    ok(topic.delete())

    ok(topic.create({"ttl": 90}))

    assert ok(topic.show()).json == {
        "name": topic.name, "properties": {"ttl": "90"}, "generation": 2,
    }  # fmt: skip
    assert topic.read() == []
    ok(topic.publish("new"))
    assert topic.read() == ["new"]
    assert topic.read({"startFrom": old, "inclusive": False}) == ["new"]


@pytest.mark.parametrize("name", ["a", "a" * 128, "AZaz09._-", "...", "-", "_"])
def test_legal_names_are_taken(missing: Topic, name: str) -> None:
    topic = Topic(missing.client, missing.namespace, name)

    ok(topic.create())

    assert ok(topic.show()).json["name"] == name


@pytest.mark.parametrize("name", ILLEGAL_NAMES)
def test_illegal_names_are_refused(client: Client, missing: Topic, name: str) -> None:
    quoted = quote(name, safe="").replace(".", "%2E")

    for path in (
        f"/v1/namespaces/{missing.namespace}/topics/{quoted}",
        f"/v1/namespaces/{quoted}/topics/t",
    ):
        refused(client.put(path), 400, "invalid_name")
        refused(client.get(path), 400, "invalid_name")
        refused(client.post(f"{path}/publish", {"messages": ["a"]}), 400, "invalid_name")
    refused(client.get(f"/v1/namespaces/{quoted}/topics"), 400, "invalid_name")


def test_truncating_at_an_id_takes_everything_before_that_place(topic: Topic) -> None:
    ok(topic.publish("a", "b", "c"))
    found = ids(topic.poll())

    reply = ok(topic.truncate(found[1]))

    assert reply.json == {"earliest": found[1]}
    assert topic.read() == ["b", "c"]
    assert topic.read({"startFrom": found[0]}) == ["b", "c"]
    assert topic.committed() == ["b", "c"]


def test_truncating_at_a_time_takes_everything_before_that_time(topic: Topic) -> None:
    ok(topic.publish("a"))
    first = ok(topic.poll()).json[0]["timestamp"]
    until(lambda: time.time() * 1000 > first + 2, what="the next millisecond")
    ok(topic.publish("b"))
    [_, second] = ok(topic.poll()).json

    reply = ok(topic.truncate(second["timestamp"]))

    assert reply.json == {"earliest": second["id"]}
    assert topic.read() == ["b"]


@pytest.mark.parametrize("before", [2**62, 2**63, 10**30, "f" * 40])
def test_truncating_in_the_future_takes_what_is_there_now(topic: Topic, before: object) -> None:
    ok(topic.publish("a", "b"))

    reply = ok(topic.truncate(before))

    assert reply.json == {"earliest": None}
    assert topic.read() == []
    ok(topic.publish("later"))
    assert topic.read() == ["later"]


def test_truncated_messages_are_gone_for_a_snapshot_taken_before(
    client: Client, topic: Topic
) -> None:
    ok(topic.publish("a"))
    reader = begin(client)
    ok(topic.truncate(2**62))

    assert topic.read(tx=reader.id) == []
    assert topic.read({"startFrom": 0}) == []


def test_truncating_an_empty_topic_leaves_none(topic: Topic) -> None:
    assert ok(topic.truncate(0)).json == {"earliest": None}


@pytest.mark.parametrize("before", [None, True, -1, -(10**30), 1.5, "abc", "f" * 39, [], {}])
def test_a_truncation_at_no_place_is_refused_and_takes_nothing(
    topic: Topic, before: object
) -> None:
    ok(topic.publish("a"))

    assert problem_of(topic.truncate(before))["status"] == 400

    assert topic.read() == ["a"]


def test_a_truncation_without_before_is_refused(client: Client, topic: Topic) -> None:
    ok(topic.publish("a"))

    assert problem_of(client.post(f"{topic.path}/truncate", {}))["status"] == 400
    assert problem_of(client.post(f"{topic.path}/truncate"))["status"] == 400

    assert topic.read() == ["a"]
