"""Arrow replies and splits of a running server (protocol §3.4, §3.7)."""

import pyarrow as pa
import pytest

from tests.http.calls import Topic, ids
from tests.http.client import PROBLEM, Client, Reply, ok, refused

ARROW = {"Accept": "application/vnd.apache.arrow.stream"}


def batch_of(reply: Reply) -> pa.RecordBatch:
    assert reply.header("Content-Type") == ARROW["Accept"]
    with pa.ipc.open_stream(ok(reply).body) as stream:
        (batch,) = list(stream)
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
