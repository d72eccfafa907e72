"""Keys, tags and headers of messages (protocol §3.1, §3.4, §4)."""

from collections.abc import Mapping
from typing import Any

import pytest
from fastavro import parse_schema

from process.binary_schemas import AVRO_2
from tests.http.calls import Topic, begin, entry
from tests.http.client import AVRO, JSON, Client, Reply, ok, refused
from tests.http.forms import consume_request, decode, encode, messages_of
from tests.http.forms import publish_request as publish_request_1

PUBLISH_2, MESSAGES_2 = (parse_schema(AVRO_2[name]) for name in ("PublishRequest", "MessageList"))
JSON_2, AVRO_SCHEMA_2 = f"{JSON}; schema=2", f"{AVRO}; schema=2"
NONE = {"key": None, "tags": [], "headers": {}}
ORDER = {
    "key": "customer-7",
    "tags": ["eu", "paid"],
    "headers": {"traceparent": "00-ab-cd-01", "part": ["1", {"base64": "/wA="}]},
}


def polled(topic: Topic, accept: str = JSON_2, **query: object) -> Reply:
    path = f"{topic.path}/messages"
    return ok(topic.client.send("GET", path, headers={"Accept": accept}, query=query))


def attributes(topic: Topic, **query: object) -> list[tuple[Any, Mapping[str, Any]]]:
    """The payload of each message, and its attributes."""
    found = polled(topic, **query).json
    return [(one["payload"], {name: one[name] for name in NONE}) for one in found]


def test_attributes_come_back_as_they_were_published(topic: Topic) -> None:
    ok(topic.publish({"payload": "a", **ORDER}, "b", {"payload": "c", "key": ""}))

    assert attributes(topic) == [
        ("a", ORDER),
        ("b", NONE),
        ("c", {**NONE, "key": ""}),
    ]


def test_only_a_reader_that_accepts_schema_2_gets_attributes(topic: Topic) -> None:
    ok(topic.publish({"payload": "a", **ORDER}))

    for accept in ("*/*", JSON, f"{JSON};schema=1", "text/html; schema=7"):
        reply = polled(topic, accept)
        assert [*reply.json[0]] == ["id", "timestamp", "payload"]
        assert reply.header("Content-Type") == f"{JSON}; charset=utf-8"
    for accept in (JSON_2, f'{JSON};SCHEMA="2"', f"{JSON}; schema=3, {JSON}; schema=2; q=0.5"):
        reply = polled(topic, accept)
        assert [*reply.json[0]] == ["id", "timestamp", "payload", "key", "tags", "headers"]
        assert reply.header("Content-Type") == f"{JSON}; charset=utf-8; schema=2"


def test_attributes_survive_every_way_of_publishing(topic: Topic, client: Client) -> None:
    stored, inline, committed = begin(client), begin(client), begin(client)
    message = {"payload": "a", **ORDER}

    ok(topic.store(message, "plain", tx=stored.id))
    ok(topic.publish(tx=stored.id))
    ok(stored.commit())
    ok(topic.publish(message, tx=inline.id, ttl=100))
    ok(inline.commit())
    ok(committed.commit(publish=[entry(topic, message)]))
    run = {"publish": [entry(topic, {**message, "ttl": 100})]}
    ok(client.post("/v1/transactions/run", run))

    expected = [("a", ORDER), ("plain", NONE), ("a", ORDER), ("a", ORDER), ("a", ORDER)]
    assert attributes(topic) == attributes(topic, isolation="committed") == expected


def test_attributes_in_avro_are_those_in_json(topic: Topic) -> None:
    message = {
        "payload": b"\xff",
        "key": b"k",
        "tags": ["eu"],
        "headers": [{"name": "n", "value": b"1"}, {"name": "n", "value": b""}],
        "ttl": 100,
    }
    without = {"payload": b"b", "key": None, "tags": [], "headers": [], "ttl": None}
    body = encode(PUBLISH_2, {"transactionWritePointer": None, "messages": [message, without]})

    ok(topic.client.send("POST", f"{topic.path}/publish", body, content_type=AVRO_SCHEMA_2))
    reply = ok(topic.avro("poll", consume_request(), AVRO_SCHEMA_2))
    old = ok(topic.avro("poll", consume_request()))

    assert reply.header("Content-Type") == AVRO_SCHEMA_2
    found = decode(MESSAGES_2, reply.body)
    sent = [{name: one[name] for name in one if name != "ttl"} for one in (message, without)]
    assert [{name: one[name] for name in one if name != "id"} for one in found] == sent
    assert old.header("Content-Type") == AVRO
    assert messages_of(old.body) == [(one["id"], one["payload"]) for one in found]
    assert attributes(topic) == [
        ({"base64": "/w=="}, {"key": "k", "tags": ["eu"], "headers": {"n": ["1", ""]}}),
        ("b", NONE),
    ]


def test_the_reply_to_an_avro_publish_is_that_of_schema_1(topic: Topic, client: Client) -> None:
    pointer = int(begin(client).id)
    body = encode(PUBLISH_2, {"transactionWritePointer": pointer, "messages": []})

    reply = client.send(
        "POST", f"{topic.path}/publish", body,
        content_type=AVRO_SCHEMA_2, headers={"Accept": AVRO_SCHEMA_2},
    )  # fmt: skip

    assert ok(reply).header("Content-Type") == AVRO
    ok(topic.avro("rollback", reply.body))


LONG = "x" * 65_535
WRONG = [
    ({"key": 7}, "a key is a string"),
    ({"key": LONG + "x"}, "a key has at most 65535 bytes, not 65536"),
    ({"tags": "eu"}, 'tags is an array of strings, not "eu"'),
    ({"tags": [7]}, "an element of tags is a string, not 7"),
    ({"tags": [""]}, 'a tag has 1 to 64 characters of A-Z a-z 0-9 . _ -, and "" has not'),
    ({"tags": ["a b"]}, '"a b"'),
    ({"tags": ["x" * 65]}, "1 to 64 characters"),
    ({"tags": ["ü"]}, "1 to 64 characters"),
    ({"tags": ["a\n"]}, "1 to 64 characters"),
    ({"tags": [str(n) for n in range(17)]}, "a message has at most 16 tags, not 17"),
    ({"tags": ["a", "b", "a"]}, 'a message has the tag "a" more than once'),
    ({"headers": 7}, "headers is a JSON object or an array, not 7"),
    ({"headers": {"n": 7}}, "the value of a header is a string"),
    ({"headers": {"n": []}}, 'the header "n" has an array without a value'),
    ({"headers": {"": "1"}}, "the name of a header has 1 to 128 printable ASCII characters"),
    ({"headers": {"a,b": "1"}}, '"a,b" has not'),
    ({"headers": {"a\n": "1"}}, '"a\\n" has not'),
    ({"headers": {"x" * 129: "1"}}, "1 to 128 printable ASCII characters"),
    ({"headers": {"n": ["1"] * 65}}, "a message has at most 64 headers, not 65"),
    ({"headers": {"n": LONG}}, "take at most 65536 bytes as stored, not 65545"),
    ({"key": LONG[:-4]}, "take at most 65536 bytes as stored, not 65537"),
    ({"colour": "red"}, '"colour"'),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "naming"), WRONG)
def test_wrong_attributes_are_refused_with_the_value_and_the_limit(
    topic: Topic, client: Client, wrong: dict[str, object], naming: str
) -> None:
    message = {"payload": "a", **wrong}
    tx = begin(client)

    for reply in (
        topic.publish("good", message),
        topic.store(message, tx=tx.id),
        tx.commit(publish=[entry(topic, message)]),
        client.post("/v1/transactions/run", {"publish": [entry(topic, message)]}),
    ):
        refused(reply, 400, "bad_request", naming=naming)

    assert topic.read() == []


@pytest.mark.parametrize(
    "most",
    [
        {"key": LONG[:-5]},
        {"key": "", "tags": [f"{n:064}" for n in range(16)]},
        {"headers": {"x" * 128: ["1"] * 64}},
        {"headers": {" !~": LONG[:-11]}},
    ],
)
def test_the_most_that_is_allowed_is_kept(topic: Topic, most: dict[str, object]) -> None:
    ok(topic.publish({"payload": "a", **most}))

    assert attributes(topic) == [("a", {**NONE, **most})]


@pytest.mark.parametrize(
    ("wrong", "code", "naming"),
    [
        ({"key": b"k" * 65_536}, "bad_request", "at most 65535 bytes"),
        ({"tags": ["a b"]}, "bad_request", '"a b"'),
        ({"headers": [{"name": "a,b", "value": b""}]}, "bad_request", '"a,b"'),
        ({"ttl": 0}, "invalid_ttl", "not 0"),
    ],
)
def test_wrong_attributes_in_avro_are_refused(
    topic: Topic, wrong: dict[str, object], code: str, naming: str
) -> None:
    message = {"payload": b"", "key": None, "tags": [], "headers": [], "ttl": None, **wrong}
    body = encode(PUBLISH_2, {"transactionWritePointer": None, "messages": [message]})

    reply = topic.client.send("POST", f"{topic.path}/publish", body, content_type=AVRO_SCHEMA_2)

    refused(reply, 400, code, naming=naming)


def test_an_unknown_schema_is_refused_before_anything_is_written(topic: Topic) -> None:
    send, path = topic.client.send, f"{topic.path}/publish"
    body = publish_request_1([b"a"])
    unknown = f"{AVRO}; schema=3"

    in_request = send("POST", path, body, content_type=unknown)
    in_accept = send("POST", path, body, content_type=AVRO, headers={"Accept": unknown})
    in_poll = send("POST", f"{topic.path}/poll", headers={"Accept": f"{JSON}; schema=0"})
    in_browse = send("GET", f"{topic.path}/messages", headers={"Accept": f"{JSON}; schema=x"})

    refused(in_request, 415, "unsupported_media_type", naming='no schema "3"; known: 1, 2')
    refused(in_accept, 406, "not_acceptable", naming='no schema "3"; known: 1, 2')
    refused(in_poll, 406, "not_acceptable", naming='no schema "0"')
    refused(in_browse, 406, "not_acceptable", naming='no schema "x"')
    assert topic.read() == []


def test_a_datum_of_the_other_schema_is_malformed(topic: Topic) -> None:
    message = {"payload": b"a", "key": None, "tags": ["t"], "headers": [], "ttl": None}
    first = publish_request_1([b"abc", b"d"])
    second = encode(PUBLISH_2, {"transactionWritePointer": None, "messages": [message]})

    send, path = topic.client.send, f"{topic.path}/publish"
    refused(send("POST", path, first, content_type=AVRO_SCHEMA_2), 400, "bad_request")
    refused(send("POST", path, second, content_type=AVRO), 400, "bad_request")
    assert topic.read() == []


def tagged(payload: str, *tags: str) -> dict[str, object]:
    return {"payload": payload, "tags": list(tags)}


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("a", ["1", "3", "4"]),
        ("a,b", ["3"]),
        ("b,a", ["3"]),
        ("a,b|c", ["3", "4"]),
        ("c|a,b|c", ["3", "4"]),
        ("b|c", ["2", "3", "4"]),
        ("ab", ["5"]),
        ("A", []),
        ("a,a", ["1", "3", "4"]),
    ],
)
def test_a_read_with_tags_gets_the_messages_that_have_them(
    topic: Topic, expression: str, selected: list[str]
) -> None:
    ok(topic.publish("0", tagged("1", "a"), tagged("2", "b"), {"payload": "x", "key": "a"}))
    ok(topic.publish(tagged("3", "b", "x", "a"), tagged("4", "c", "a"), tagged("5", "ab"), "6"))

    assert topic.read(tags=expression) == selected
    assert [one["payload"] for one in ok(topic.browse(tags=expression)).json] == selected
    everything = topic.poll()
    assert topic.poll(tags=expression).header("Tuff-Next") >= everything.header("Tuff-Next")


def test_the_expression_may_stand_in_the_address_as_it_is(topic: Topic) -> None:
    ok(topic.publish(tagged("1", "a"), tagged("2", "b", "c"), "3"))

    reply = topic.client.send("GET", f"{topic.path}/messages?tags=b,c|x&limit=5")

    assert [one["payload"] for one in ok(reply).json] == ["2"]


@pytest.mark.parametrize(
    ("expression", "naming"),
    [
        ("", 'and "" has not'),
        ("a|", 'and "" has not'),
        (",a", 'and "" has not'),
        ("a b", '"a b"'),
        ("x" * 65, "1 to 64 characters"),
        ("|".join(["a"] * 17), "tags has at most 16 alternatives, not 17"),
        (",".join(["a"] * 17), "an alternative of tags has at most 16 tags, not 17"),
    ],
)
def test_a_bad_expression_is_refused(topic: Topic, expression: str, naming: str) -> None:
    for reply in (topic.poll(tags=expression), topic.browse(tags=expression)):
        refused(reply, 400, "bad_request", naming=naming)
