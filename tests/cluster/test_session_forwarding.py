"""A session with any server of a cluster: calls that another server answers have the replies of a
session with that server (docs/session.md)."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.session_forwarding import http_request
from kernel.requests_and_replies import Request
from tests.cluster.nodes import Node
from tests.http.session_client import (
    ABORT,
    CAN_COMMIT,
    CHECKPOINT,
    COMMIT,
    OUTCOME,
    POLL,
    PUBLISH,
    ROLLBACK,
    RUN,
    START,
    STORE,
    SessionClient,
)
from tuff.protocol.errors import BadRequestError

TOPIC = ("default", "audit")
BINARY = b"\xff\x00"


def story(client: SessionClient) -> Iterator[list[Any]]:
    """Calls of all kinds; their replies."""
    message = {"payload": BINARY, "key": BINARY, "headers": {"h": BINARY}, "tags": ["red"]}
    yield client.call(PUBLISH, *TOPIC, body={"messages": [BINARY, "text", message]})
    yield client.call(PUBLISH, *TOPIC, body=b"\x00\x00\x00")  # a datum of Avro that is cut off
    yield (started := client.call(START, body={"client": "a"}))
    tx, encoded = int(started[2]["transactionId"]), started[2]["encoded"]
    body = {"transactionWritePointer": tx, "messages": [BINARY]}
    yield (published := client.call(PUBLISH, *TOPIC, body=body))
    yield client.call(STORE, *TOPIC, body=body)
    yield client.call(POLL, *TOPIC, body={"transaction": encoded, "limit": 10})
    yield client.call(POLL, *TOPIC, accept="avro/binary; schema=2")
    yield client.call(ROLLBACK, *TOPIC, body=published[2])
    yield client.call(CHECKPOINT, tx)
    yield client.call(CAN_COMMIT, tx, body={"changes": [BINARY, "key"]})
    yield (committed := client.call(COMMIT, tx, body={"then": {"start": {"lists": True}}}))
    yield client.call(COMMIT, tx, body={"changes": [BINARY]})
    yield client.call(OUTCOME, tx)
    yield client.call(ABORT, int(committed[2]["next"]["transactionId"]))
    yield client.call(ABORT, 1)
    entry = {"namespace": "default", "topic": "audit", "messages": [BINARY]}
    yield client.call(
        RUN, body={"publish": [entry], "requestId": f"r{client.socket.getpeername()}"}
    )
    yield client.call(POLL, *TOPIC, query={"isolation": "nonsense"})


def shape(value: object) -> object:
    """What is the same at each run: members, types, and texts without numbers."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in sorted(value.items()) if name != "Tuff-Owner"}
    if isinstance(value, list):
        return [shape(each) for each in value]
    if isinstance(value, bytes | int):
        return type(value)
    if isinstance(value, str) and any(each.isdigit() for each in value):
        return "with digits"
    return value


def replies_of(node: Node) -> list[object]:
    with SessionClient(node.port) as client:
        return [(status, shape(rest)) for status, *rest in story(client)]


async def test_calls_that_another_server_answers_have_its_replies(
    pair: tuple[Node, Node],
) -> None:
    front, owner = pair
    direct = await asyncio.to_thread(replies_of, owner)
    through = await asyncio.to_thread(replies_of, front)

    assert through == direct
    assert front.answered == []


async def test_a_payload_arrives_as_it_was_sent(pair: tuple[Node, Node]) -> None:
    front, _ = pair

    def published() -> bytes:
        with SessionClient(front.port) as client:
            client.call(PUBLISH, *TOPIC, body={"messages": [BINARY]})
            found: bytes = client.call(POLL, *TOPIC, body={})[2]
            return found

    assert BINARY in await asyncio.to_thread(published)


async def test_a_body_that_json_has_no_form_for_is_refused() -> None:
    request = Request({}, (), None, None, b"", members={b"messages": ["a"]})

    with pytest.raises(BadRequestError, match="can't be read"):
        http_request(request, is_poll=False)


async def test_publishes_that_arrive_together_go_to_the_owner(pair: tuple[Node, Node]) -> None:
    front, _ = pair

    def published() -> set[int]:
        with SessionClient(front.port) as client:
            body = {"messages": [BINARY]}
            sent = [client.frame(PUBLISH, *TOPIC, body=body) for _ in range(5)]
            client.write(*sent)
            return {client.reply_to(frame[1])[0] for frame in sent}

    assert await asyncio.to_thread(published) == {200}
    assert front.answered == []
