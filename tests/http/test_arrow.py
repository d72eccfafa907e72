"""Arrow replies and splits of a running server (protocol §3.4, §3.7)."""

import pyarrow as pa
import pytest

from process import binary_schemas
from tests.http.calls import Topic, ids
from tests.http.client import PROBLEM, Client, Reply, ok, refused

ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
ARROW_2 = {"Accept": "application/vnd.apache.arrow.stream; schema=2"}


def batch_of(reply: Reply, *, accepted: dict[str, str] = ARROW) -> pa.RecordBatch:
    assert reply.header("Content-Type") == accepted["Accept"]
    with pa.ipc.open_stream(ok(reply).body) as stream:
        (batch,) = list(stream)
    batch.validate(full=True)
    return batch


@pytest.fixture
def letters(topic: Topic) -> Topic:
    for letter in "abcdef":
        ok(topic.publish(letter))
    return topic


def test_a_poll_and_a_browse_answer_in_arrow_what_they_answer_in_json(
    client: Client, letters: Topic
) -> None:
    told = ids(letters.poll())

    polled = client.send("POST", f"{letters.path}/poll", headers=ARROW)
    browsed = client.send("GET", f"{letters.path}/messages", headers=ARROW, query={"limit": 4})

    assert [each.hex() for each in batch_of(polled)["id"].to_pylist()] == told
    assert batch_of(polled)["value"].to_pylist() == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert batch_of(browsed)["value"].to_pylist() == [b"a", b"b", b"c", b"d"]
    assert polled.header("Tuff-Next") == told[-1]
    assert browsed.header("Tuff-Caught-Up") == "false"


def test_an_empty_reply_in_arrow_has_one_empty_batch(client: Client, topic: Topic) -> None:
    batch = batch_of(client.send("POST", f"{topic.path}/poll", headers=ARROW))

    assert batch.num_rows == 0
    assert batch.schema.names == ["id", "value", "timestamp", "generation", "write_pointer"]


def test_an_error_is_a_problem_document_whatever_is_accepted(client: Client) -> None:
    reply = client.send("POST", "/v1/namespaces/n/topics/missing/poll", headers=ARROW)

    assert (reply.status, reply.header("Content-Type")) == (404, PROBLEM)


def test_a_body_in_arrow_is_not_taken(client: Client, topic: Topic) -> None:
    reply = client.send("POST", f"{topic.path}/publish", b"x", content_type=ARROW["Accept"])

    refused(reply, 415, "unsupported_media_type")


def test_the_splits_of_a_topic_cover_all_its_messages(client: Client, letters: Topic) -> None:
    told = ids(letters.poll())
    found = ok(client.get(f"{letters.path}/splits", n=3)).json

    read = [
        letters.read({"startFrom": part["start"], "inclusive": False}, through=part["end"])
        for part in found["splits"]
    ]

    assert found["generation"] == 1
    assert read == [["a", "b"], ["c", "d"], ["e", "f"]]
    between = ok(client.get(f"{letters.path}/splits", n=1, start=told[0], end=told[4]))
    assert between.json["splits"] == [{"start": told[0], "end": told[4]}]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({}, "bad_request"),
        ({"n": "0"}, "bad_request"),
        ({"n": "10001"}, "bad_request"),
        ({"n": "many"}, "bad_request"),
        ({"n": "2", "start": "00"}, "invalid_message_id"),
        ({"n": "2", "limit": "3"}, "bad_request"),
    ],
)
def test_a_malformed_request_for_splits_is_refused(
    client: Client, topic: Topic, asked: dict[str, str], code: str
) -> None:
    refused(client.get(f"{topic.path}/splits", **asked), 400, code)


def test_a_batch_of_schema_2_has_the_attributes_too(client: Client, topic: Topic) -> None:
    headers = {"n": ["1", {"base64": "/w=="}], "m": ""}
    message = {"payload": "a", "key": "k", "tags": ["eu", "paid"], "headers": headers}
    ok(topic.publish("before", message, {"payload": "c", "key": ""}))

    reply = client.send("GET", f"{topic.path}/messages", headers=ARROW_2)

    batch = batch_of(reply, accepted=ARROW_2)
    assert {field.name: str(field.type) for field in batch.schema} == binary_schemas.ARROW_2
    assert batch["value"].to_pylist() == [b"before", b"a", b"c"]
    assert batch["key"].to_pylist() == [None, b"k", b""]
    assert batch["tags"].to_pylist() == [None, ["eu", "paid"], None]
    values = [("n", b"1"), ("n", b"\xff"), ("m", b"")]
    pairs = [{"name": name, "value": value} for name, value in values]
    assert batch["headers"].to_pylist() == [None, pairs, None]


def test_a_batch_of_schema_2_without_attributes_has_nulls(client: Client, topic: Topic) -> None:
    ok(topic.publish("a", "b"))
    ok(topic.publish({"payload": "c", "tags": ["eu"]}))
    path = f"{topic.path}/messages"

    two = client.send("GET", path, headers=ARROW_2, query={"limit": 2})
    none = client.send("GET", path, headers=ARROW_2, query={"tags": "x"})

    for name in ("key", "tags", "headers"):
        assert batch_of(two, accepted=ARROW_2)[name].to_pylist() == [None, None]
        assert batch_of(none, accepted=ARROW_2)[name].to_pylist() == []
