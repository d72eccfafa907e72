"""Holds and named positions of a running server (protocol §3.8, §3.9)."""

import json

import pytest

from tests.http.calls import Topic, ids
from tests.http.client import JSON, Client, Reply, ok, refused

PLACE = "0000015896dfd00000050000000000000000ffff"


def put(client: Client, path: str, body: object) -> Reply:
    return client.send("PUT", path, json.dumps(body).encode(), content_type=JSON)


def test_the_story_of_a_hold(client: Client, topic: Topic) -> None:
    for letter in "abc":
        ok(topic.publish(letter))
    _, second, third = ids(topic.poll())
    path = f"{topic.path}/holds/nightly"

    made = ok(put(client, path, {"from": second, "maxAge": 60.5})).json

    assert (made["name"], made["from"]) == ("nightly", second)
    assert made["expiresAt"] - made["setAt"] == 60_500
    assert ok(client.send("GET", f"{topic.path}/holds")).json == {"holds": [made]}
    truncation = json.dumps({"before": third}).encode()
    problem = refused(
        client.send("POST", f"{topic.path}/truncate", truncation, content_type=JSON),
        409,
        "topic_held",
        naming="nightly",
    )
    assert problem["holds"] == ["nightly"]
    ok(client.send("DELETE", path))
    refused(client.send("DELETE", path), 404, "hold_not_found", naming="nightly")
    ok(client.send("POST", f"{topic.path}/truncate", truncation, content_type=JSON))


def test_the_story_of_a_position(client: Client, topic: Topic) -> None:
    path = f"{topic.path}/positions/nightly"
    refused(client.send("GET", path), 404, "position_not_found", naming="nightly")

    made = ok(put(client, path, {"position": PLACE.upper()})).json

    assert (made["name"], made["position"], made["generation"]) == ("nightly", PLACE, 1)
    assert ok(client.send("GET", path)).json == made
    assert ok(client.send("GET", f"{topic.path}/positions")).json == {"positions": [made]}
    ok(client.send("DELETE", path))
    refused(client.send("DELETE", path), 404, "position_not_found")


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("holds/x", {"from": 0}, "bad_request"),
        ("holds/x", {"maxAge": 5}, "bad_request"),
        ("holds/x", {"from": 0, "maxAge": 0}, "bad_request"),
        ("holds/x", {"from": 0, "maxAge": True}, "bad_request"),
        ("holds/x", {"from": 0, "maxAge": "60"}, "bad_request"),
        ("holds/x", {"from": 0, "maxAge": 2_592_000.1}, "bad_request"),
        ("holds/x", {"from": -1, "maxAge": 5}, "bad_request"),
        ("holds/x", {"from": "00", "maxAge": 5}, "invalid_message_id"),
        ("holds/x", {"from": 0, "maxAge": 5, "to": 7}, "bad_request"),
        ("holds/x:y", {"from": 0, "maxAge": 5}, "invalid_name"),
        ("positions/x", {}, "bad_request"),
        ("positions/x", {"position": 5}, "bad_request"),
        ("positions/x", {"position": "00"}, "invalid_message_id"),
        ("positions/..x%20", {"position": PLACE}, "invalid_name"),
    ],
)
def test_what_they_cannot_be_is_refused(
    client: Client, topic: Topic, path: str, body: object, code: str
) -> None:
    refused(put(client, f"{topic.path}/{path}", body), 400, code)


def test_of_a_topic_that_is_not_there_nothing_is_kept(client: Client) -> None:
    path = "/v1/namespaces/nowhere/topics/t"
    for reply in (
        put(client, f"{path}/holds/x", {"from": 0, "maxAge": 5}),
        put(client, f"{path}/positions/x", {"position": PLACE}),
        client.send("GET", f"{path}/holds"),
        client.send("GET", f"{path}/positions"),
        client.send("DELETE", f"{path}/holds/x"),
        client.send("GET", f"{path}/splits?n=1"),
    ):
        refused(reply, 404, "topic_not_found")
