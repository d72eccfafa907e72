"""Holds and named positions of a running server (protocol §3.8, §3.9)."""

import pytest

from tests.http.calls import Topic, ids
from tests.http.client import Client, ok, refused

PLACE = "0000015896dfd00000050000000000000000ffff"


def test_a_hold_is_set_shown_prevents_truncation_and_ends(client: Client, topic: Topic) -> None:
    for letter in "abc":
        ok(topic.publish(letter))
    _, second, third = ids(topic.poll())
    path = f"{topic.path}/holds/nightly"

    made = ok(client.put(path, {"from": second, "maxAge": 60.5})).json

    assert (made["name"], made["from"]) == ("nightly", second)
    assert made["expiresAt"] - made["setAt"] == 60_500
    assert ok(client.get(f"{topic.path}/holds")).json == {"holds": [made]}
    problem = refused(topic.truncate(third), 409, "topic_held", naming="nightly")
    assert problem["holds"] == ["nightly"]
    ok(client.delete(path))
    refused(client.delete(path), 404, "hold_not_found", naming="nightly")
    ok(topic.truncate(third))


def test_a_position_is_set_shown_and_deleted(client: Client, topic: Topic) -> None:
    path = f"{topic.path}/positions/nightly"
    refused(client.get(path), 404, "position_not_found", naming="nightly")

    made = ok(client.put(path, {"position": PLACE.upper()})).json

    assert (made["name"], made["position"], made["generation"]) == ("nightly", PLACE, 1)
    assert ok(client.get(path)).json == made
    assert ok(client.get(f"{topic.path}/positions")).json == {"positions": [made]}
    ok(client.delete(path))
    refused(client.delete(path), 404, "position_not_found")


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
def test_a_malformed_hold_or_position_is_refused(
    client: Client, topic: Topic, path: str, body: object, code: str
) -> None:
    refused(client.put(f"{topic.path}/{path}", body), 400, code)


def test_a_missing_topic_has_no_holds_positions_or_splits(client: Client) -> None:
    path = "/v1/namespaces/nowhere/topics/t"
    for reply in (
        client.put(f"{path}/holds/x", {"from": 0, "maxAge": 5}),
        client.put(f"{path}/positions/x", {"position": PLACE}),
        client.get(f"{path}/holds"),
        client.get(f"{path}/positions"),
        client.delete(f"{path}/holds/x"),
        client.get(f"{path}/splits?n=1"),
    ):
        refused(reply, 404, "topic_not_found")
