"""Topics: creating, changing, listing, deleting, truncating (protocol §2)."""

from urllib.parse import quote

import pytest

from tests.http.calls import Topic, begin, ids
from tests.http.client import JSON, Client, ok, problem_of, refused
from tests.http.conftest import NewTopic

BAD_PROPERTIES = [
    b"{", b"[1]", b'{"a": "b"', b'{"x": NaN}', b"\xff\xfe", b'{"ttl": 0}', b'{"ttl": "5.0"}',
    b'{"ttl": true}', b'{"ttl": 2147483648}', b'{"ttl": 1e2}', b'{"generation": "1"}',
    b'{"x": []}', b'{"x": null}', b'{"x": ' + b"[" * 1_010 + b"]" * 1_010 + b"}",
    b'{"x": ' + b"9" * 70_000 + b"}",
]  # fmt: skip
ILLEGAL_NAMES = [".", "..", "a b", "a:b", "ü", "a/b", "a" * 129, "a\n", "%", "a?b", "\x00", "*"]


def test_a_topic_is_created_updated_deleted_and_created_again(
    client: Client, missing: Topic
) -> None:
    topic = missing
    refused(topic.show(), 404, "topic_not_found", naming=topic.name)

    created = topic.create({"owner": "billing", "weight": 7, "empty": "", "ratio": 1.5})
    properties = {"ttl": "604800", "owner": "billing", "weight": "7", "empty": "", "ratio": "1.5"}

    assert (created.status, created.body) == (200, b"")
    assert ok(topic.show()).json == {
        "name": topic.name, "properties": properties, "generation": 1,
        "partitions": [0], "retired": [],
    }  # fmt: skip
    refused(topic.create({"ttl": 90}), 409, "topic_already_exists", naming=topic.name)
    assert ok(topic.show()).json["properties"] == properties
    changes: list[dict[str, object]] = [{"ttl": 2147483647}, {"ttl": "1"}]
    for given in (*changes, {"a": "b"}):
        assert ok(topic.update(given)).body == b""
        shown = {name: str(value) for name, value in {"ttl": 604800, **given}.items()}
        assert ok(topic.show()).json["properties"] == shown
    ok(topic.publish("old"))
    [old] = ids(topic.poll())
    assert ok(topic.delete()).body == b""
    refused(topic.delete(), 404, "topic_not_found")
    assert ok(client.get(f"/v1/namespaces/{topic.namespace}/topics")).json == []
    ok(topic.create({"ttl": 90}))
    assert ok(topic.show()).json == {
        "name": topic.name, "properties": {"ttl": "90"}, "generation": 2,
        "partitions": [0], "retired": [],
    }  # fmt: skip
    assert topic.read() == []
    ok(topic.publish("new"))
    assert topic.read() == topic.read({"startFrom": old, "inclusive": False}) == ["new"]


def test_a_patch_changes_what_it_names_and_nothing_else(new_topic: NewTopic) -> None:
    topic = new_topic({"ttl": 31_536_000, "owner": "me", "team": "red"})
    ok(topic.publish("kept"))

    changed = ok(topic.change({"partitions": 2, "team": None, "weight": 1.50})).json

    assert changed == {
        "properties": {"ttl": "31536000", "owner": "me", "weight": "1.5"},
        "partitions": [0, 1], "retired": [], "expires": None,
    }  # fmt: skip
    assert ok(topic.show()).json["properties"] == changed["properties"]
    assert ok(topic.change({}, dryRun="true")).json == changed
    before = ok(topic.show()).json
    assert ok(topic.change({"ttl": None, "partitions": 1}, dryRun="true")).json == {
        "properties": {**changed["properties"], "ttl": "604800"},
        "partitions": [0], "retired": [1], "expires": None,
    }  # fmt: skip
    assert ok(topic.show()).json == before


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[1]", "invalid_topic_properties"), (b'{"ttl": 0}', "invalid_topic_properties"),
        (b'{"partitions": null}', "invalid_topic_properties"),
        (b'{"generation": null}', "invalid_topic_properties"),
        (b"{", "invalid_topic_properties"),
    ],
)  # fmt: skip
def test_a_bad_patch_changes_nothing(new_topic: NewTopic, body: bytes, code: str) -> None:
    topic = new_topic({"ttl": 60, "a": "b"})

    reply = topic.client.send(
        "PATCH", f"{topic.path}/properties", body, content_type="application/json"
    )

    refused(reply, 400, code)
    assert ok(topic.show()).json["properties"] == {"ttl": "60", "a": "b"}


@pytest.mark.parametrize("body", BAD_PROPERTIES)
def test_bad_properties_create_and_change_nothing(
    client: Client, new_topic: NewTopic, missing: Topic, body: bytes
) -> None:
    topic = new_topic({"ttl": 60, "a": "b"})

    for path in (missing.path, f"{topic.path}/properties"):
        reply = client.send("PUT", path, body, content_type=JSON)
        refused(reply, 400, "invalid_topic_properties")

    refused(missing.show(), 404, "topic_not_found")
    assert ok(topic.show()).json["properties"] == {"ttl": "60", "a": "b"}


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


@pytest.mark.parametrize("before", [0, 2**62, 10**30, "f" * 40])
def test_truncating_at_either_end(client: Client, topic: Topic, before: object) -> None:
    assert ok(topic.truncate(before)).json == {"earliest": None}
    ok(topic.publish("a", "b"))
    reader = begin(client)
    first, _ = ids(topic.poll())
    kept = ["a", "b"] if before == 0 else []

    reply = ok(topic.truncate(before))

    assert reply.json == {"earliest": first if kept else None}
    assert topic.read() == topic.read(tx=reader.id) == kept
    ok(topic.publish("later"))
    assert topic.read() == [*kept, "later"]


@pytest.mark.parametrize("before", [True, -1, 1.5, "abc", "f" * 39, {}])
def test_a_truncation_at_no_place_is_refused_and_takes_nothing(
    client: Client, topic: Topic, before: object
) -> None:
    ok(topic.publish("a"))

    for body in ({"before": before}, {}, None):
        reply = client.post(f"{topic.path}/truncate", body)
        assert problem_of(reply)["status"] == 400

    assert topic.read() == ["a"]
