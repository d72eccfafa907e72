"""The Avro forms of the message endpoints (protocol §4): that each endpoint takes and answers them.
`tests/protocol/test_avro.py` and `test_transaction.py` have every form and every malformed one."""

import base64
from typing import Any

import pytest

from tests.http.calls import Topic, begin, ids
from tests.http.client import AVRO, JSON, Client, ok, refused
from tests.http.forms import (
    PUBLISH_RESPONSE,
    consume_request,
    decode,
    messages_of,
    publish_request,
    transaction_bytes,
)


def payloads_of(body: bytes) -> list[bytes]:
    return [payload for _, payload in messages_of(body)]


def test_a_publish_and_a_poll_in_avro(topic: Topic) -> None:
    sent = [b"", b"a", b"\xff" * 63, b"\x80" * 64, b"\x07" * 8200, "grüße".encode()]

    published = topic.avro("publish", publish_request(sent))
    polled = ok(topic.avro("poll", consume_request()))
    as_json = topic.avro("poll", consume_request(), accept=JSON)

    assert (published.status, published.body) == (200, b"")
    assert polled.header("Content-Type") == AVRO
    assert payloads_of(polled.body) == sent
    whole = ok(topic.poll())
    assert [one.hex() for one, _ in messages_of(polled.body)] == ids(whole)
    for name in ("Tuff-Next", "Tuff-Caught-Up"):
        assert polled.header(name) == whole.header(name)
    assert str(ok(as_json).header("Content-Type")).startswith(JSON)
    assert as_json.json == whole.json


def test_a_publish_in_a_transaction_answers_what_its_rollback_takes(
    client: Client, topic: Topic
) -> None:
    tx = begin(client)

    reply = ok(topic.avro("publish", publish_request([b"a", b"b"], pointer=int(tx.id))))

    first, last = ids(topic.poll())
    assert reply.header("Content-Type") == AVRO
    assert decode(PUBLISH_RESPONSE, reply.body) == {
        "transactionWritePointer": int(tx.id),
        "startTimestamp": int(first[:16], 16), "startSequenceId": int(first[16:20], 16),
        "endTimestamp": int(last[:16], 16), "endSequenceId": int(last[16:20], 16),
    }  # fmt: skip
    rollback = topic.avro("rollback", reply.body)
    assert (rollback.status, rollback.body) == (200, b"")
    ok(tx.commit())
    assert topic.committed() == []


def test_a_store_in_avro(client: Client, topic: Topic) -> None:
    tx = begin(client)

    reply = topic.avro("store", publish_request([b"\xff", b""], pointer=int(tx.id)))
    ok(topic.avro("publish", publish_request([], pointer=int(tx.id))))

    assert (reply.status, reply.body) == (200, b"")
    assert payloads_of(ok(topic.avro("poll", consume_request())).body) == [b"\xff", b""]


@pytest.mark.parametrize("wait", [0, 0.1])
def test_the_query_parameters_are_those_of_json(client: Client, topic: Topic, wait: float) -> None:
    tx = begin(client)
    ok(topic.publish("held", tx=tx.id))
    ok(topic.publish("plain"))

    committed = ok(topic.avro("poll", consume_request(), isolation="committed", wait=wait))
    own = ok(topic.avro("poll", consume_request(), tx=tx.id, wait=wait))

    assert committed.body == b"\x00"
    assert committed.header("Tuff-Blocked-By") == tx.id
    assert payloads_of(own.body) == [b"held", b"plain"]
    refused(topic.avro("poll", consume_request(), undecided="skip"), 400, "bad_request")


def test_starts_limits_and_inclusive_in_avro(topic: Topic) -> None:
    ok(topic.publish("a", "b", "c"))
    found = [bytes.fromhex(one) for one in ids(topic.poll())]

    def read(**request: Any) -> list[bytes]:
        return payloads_of(ok(topic.avro("poll", consume_request(**request))).body)

    assert read(start=found[1]) == [b"b", b"c"]
    assert read(start=found[1], inclusive=False) == [b"c"]
    assert read(start=found[0], limit=1) == [b"a"]
    assert read(start=0) == [b"a", b"b", b"c"]
    assert read(start=2**62) == []


def test_a_poll_carries_the_transaction_of_a_start(client: Client, topic: Topic) -> None:
    writer = begin(client)
    ok(topic.publish("a"))
    ok(topic.publish("b", tx=writer.id))
    early = begin(client).object
    ok(writer.commit())
    late = begin(client).object

    for started, expected in ((early, [b"a"]), (late, [b"a", b"b"])):
        for snapshot in (base64.b64decode(started["encoded"]), transaction_bytes(started)):
            reply = ok(topic.avro("poll", consume_request(transaction=snapshot)))
            assert payloads_of(reply.body) == expected


@pytest.mark.parametrize(
    ("call", "body", "code"),
    [
        ("publish", publish_request([b"a"])[:-1], "bad_request"),
        ("publish", publish_request([]), "empty_publish"),
        ("store", publish_request([b"a"]) + b"\x00", "bad_request"),
        ("rollback", bytes.fromhex("00 02 80c0feed9256 0a 80c0feed9256"), "bad_request"),
        ("poll", consume_request() + b"\x00", "bad_request"),
        ("poll", consume_request(limit=0), "bad_request"),
        ("poll", consume_request(start=-1), "bad_request"),
        ("poll", consume_request(start=b"\x01" * 19), "invalid_message_id"),
        ("poll", consume_request(transaction=b"\x0b"), "invalid_transaction"),
    ],
)
def test_a_malformed_datum_is_refused_with_a_problem_document(
    topic: Topic, call: str, body: bytes, code: str
) -> None:
    refused(topic.avro(call, body), 400, code)

    assert topic.read() == []


def test_an_error_of_an_avro_request_is_a_problem_document(topic: Topic, missing: Topic) -> None:
    refused(missing.avro("poll", consume_request()), 404, "topic_not_found")
    refused(topic.avro("publish", publish_request([], pointer=1)), 404, "transaction_unknown")
    # The range of an unknown pointer: there is nothing to roll back.
    ok(topic.avro("rollback", bytes.fromhex("00 02 80c0feed9256 0a 80c0feed9256 0c")))
