"""The Avro forms of the message endpoints (protocol §4)."""

import base64
from typing import Any

import pytest

from tests.http.calls import Topic, begin, ids
from tests.http.client import AVRO, JSON, Client, ok, problem_of, refused
from tests.http.forms import (
    CONSUME_REQUEST,
    PUBLISH_RESPONSE,
    consume_request,
    decode,
    encode,
    messages_of,
    publish_request,
    transaction_bytes,
)

VECTOR_A = bytes.fromhex(
    "0a000100000000000003e80a000200000000000003e60f00030a0000000200000000000003de"
    "00000000000003df0f00040a0000000100000000000003e30a000500000000000003e30800060000"
    "00010a000700000000000003e80f00080a000000000800090000000100"
)
VECTOR_B = bytes.fromhex(
    "0a000100000000000003e80a000200000000000003e60f00030a000000000f00040a000000000a0005"
    "7fffffffffffffff080006000000010a000700000000000003ea0f00080a0000000200000000000003e9"
    "00000000000003ea0800090000000200"
)


def zigzag(number: int) -> bytes:
    """One Avro long."""
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def test_the_worked_bytes_of_a_publish_without_transaction(topic: Topic) -> None:
    body = bytes.fromhex("02 04 02 61 04 62 63 00")
    assert body == publish_request([b"a", b"bc"])

    reply = topic.avro("publish", body)

    assert (reply.status, reply.body) == (200, b"")
    assert topic.read() == ["a", "bc"]


def test_the_worked_bytes_of_a_publish_with_a_pointer_and_no_messages(topic: Topic) -> None:
    body = bytes.fromhex("00 02 00")
    assert body == publish_request([], pointer=1)

    refused(topic.avro("publish", body), 404, "transaction_unknown", naming="1")


def test_the_worked_bytes_of_a_poll_from_the_beginning(topic: Topic) -> None:
    body = bytes.fromhex("04 01 00 14 02")
    assert body == consume_request(limit=10)
    ok(topic.publish("a", "bc"))

    reply = ok(topic.avro("poll", body))

    assert reply.header("Content-Type") == AVRO
    assert [payload for _, payload in messages_of(reply.body)] == [b"a", b"bc"]


def test_the_worked_bytes_of_a_rollback_detail_of_an_unknown_pointer(topic: Topic) -> None:
    body = bytes.fromhex("00 02 80c0feed9256 0a 80c0feed9256 0c")
    assert decode(PUBLISH_RESPONSE, body) == {
        "transactionWritePointer": 1,
        "startTimestamp": 1480000000000, "startSequenceId": 5,
        "endTimestamp": 1480000000000, "endSequenceId": 6,
    }  # fmt: skip

    reply = topic.avro("rollback", body)

    assert (reply.status, reply.body) == (200, b"")


def test_an_empty_poll_is_one_zero_byte(topic: Topic) -> None:
    reply = ok(topic.avro("poll", consume_request()))

    assert reply.body == b"\x00"


def test_the_ids_and_headers_are_those_of_json(topic: Topic) -> None:
    ok(topic.publish("a", "b", "c"))
    whole = ok(topic.poll())

    reply = ok(topic.avro("poll", consume_request()))

    assert [one.hex() for one, _ in messages_of(reply.body)] == ids(whole)
    for name in ("Tuff-Next", "Tuff-Caught-Up"):
        assert reply.header(name) == whole.header(name)


def test_a_publish_response_equals_its_json_form(client: Client, topic: Topic) -> None:
    tx = begin(client)

    reply = ok(topic.avro("publish", publish_request([b"a", b"b"], pointer=int(tx.id))))

    first, last = ids(topic.poll())
    assert reply.header("Content-Type") == AVRO
    assert decode(PUBLISH_RESPONSE, reply.body) == {
        "transactionWritePointer": int(tx.id),
        "startTimestamp": int(first[:16], 16), "startSequenceId": int(first[16:20], 16),
        "endTimestamp": int(last[:16], 16), "endSequenceId": int(last[16:20], 16),
    }  # fmt: skip


def test_a_store_in_avro(client: Client, topic: Topic) -> None:
    tx = begin(client)

    reply = topic.avro("store", publish_request([b"\xff", b""], pointer=int(tx.id)))
    ok(topic.avro("publish", publish_request([], pointer=int(tx.id))))

    assert (reply.status, reply.body) == (200, b"")
    polled = ok(topic.avro("poll", consume_request()))
    assert [payload for _, payload in messages_of(polled.body)] == [b"\xff", b""]


def test_an_avro_request_can_be_answered_in_json(topic: Topic) -> None:
    ok(topic.publish("a"))

    reply = topic.avro("poll", consume_request(), accept=JSON)

    assert str(ok(reply).header("Content-Type")).startswith(JSON)
    assert reply.json == ok(topic.poll()).json


def test_an_error_of_an_avro_request_is_a_problem_document(missing: Topic) -> None:
    refused(missing.avro("poll", consume_request()), 404, "topic_not_found")


@pytest.mark.parametrize("wait", [0, 0.1])
def test_the_query_parameters_are_those_of_json(client: Client, topic: Topic, wait: float) -> None:
    tx = begin(client)
    ok(topic.publish("held", tx=tx.id))
    ok(topic.publish("plain"))

    committed = ok(topic.avro("poll", consume_request(), isolation="committed", wait=wait))
    own = ok(topic.avro("poll", consume_request(), tx=tx.id, wait=wait))

    assert committed.body == b"\x00"
    assert committed.header("Tuff-Blocked-By") == tx.id
    assert [payload for _, payload in messages_of(own.body)] == [b"held", b"plain"]
    refused(topic.avro("poll", consume_request(), undecided="skip"), 400, "bad_request")


def test_starts_limits_and_inclusive_in_avro(topic: Topic) -> None:
    ok(topic.publish("a", "b", "c"))
    found = [bytes.fromhex(one) for one in ids(topic.poll())]

    def read(**request: Any) -> list[bytes]:
        reply = ok(topic.avro("poll", consume_request(**request)))
        return [payload for _, payload in messages_of(reply.body)]

    assert read(start=found[1]) == [b"b", b"c"]
    assert read(start=found[1], inclusive=False) == [b"c"]
    assert read(start=found[0], limit=1) == [b"a"]
    assert read(start=0) == [b"a", b"b", b"c"]
    assert read(start=2**62) == []


@pytest.mark.parametrize("count", [0, 1, 19, 21, 40])
def test_an_id_of_the_wrong_length_is_refused(topic: Topic, count: int) -> None:
    reply = topic.avro("poll", consume_request(start=b"\x01" * count))

    refused(reply, 400, "invalid_message_id")


@pytest.mark.parametrize("limit", [0, -1, -(2**31)])
def test_a_limit_below_1_is_refused(topic: Topic, limit: int) -> None:
    refused(topic.avro("poll", consume_request(limit=limit)), 400, "bad_request")


def test_a_negative_start_time_is_refused(topic: Topic) -> None:
    refused(topic.avro("poll", consume_request(start=-1)), 400, "bad_request")


def test_the_transaction_of_a_start_can_be_carried_by_a_poll(client: Client, topic: Topic) -> None:
    writer = begin(client)
    ok(topic.publish("a"))
    ok(topic.publish("b", tx=writer.id))
    early = base64.b64decode(begin(client).object["encoded"])
    ok(writer.commit())
    late = base64.b64decode(begin(client).object["encoded"])

    for snapshot, expected in ((early, [b"a"]), (late, [b"a", b"b"])):
        reply = ok(topic.avro("poll", consume_request(transaction=snapshot)))
        assert [payload for _, payload in messages_of(reply.body)] == expected


@pytest.mark.parametrize("vector", [VECTOR_A, VECTOR_B])
def test_transactions_of_other_codecs_are_read(topic: Topic, vector: bytes) -> None:
    ok(topic.publish("plain"))

    reply = ok(topic.avro("poll", consume_request(transaction=vector)))
    same = ok(topic.poll({"transaction": base64.b64encode(vector).decode()}))

    assert [payload for _, payload in messages_of(reply.body)] == [b"plain"]
    assert same.json[0]["payload"] == "plain"


@pytest.mark.parametrize("vector", [VECTOR_A, VECTOR_B])
def test_malformed_transactions_are_refused(topic: Topic, vector: bytes) -> None:
    cuts = [vector[:size] for size in range(0, len(vector), 7)]

    for bad in (*cuts, vector[:-1], vector + b"\x00", b"\x0b" + vector[1:]):
        reply = topic.avro("poll", consume_request(transaction=bad))
        refused(reply, 400, "invalid_transaction")


def test_unsorted_lists_of_a_transaction_are_read_as_meant(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.publish("invalid for the reader", tx=tx.id))
    ok(topic.publish("plain"))
    reader = {
        **tx.object, "transactionId": str(2**62), "writePointer": str(2**62),
        "readPointer": str(2**62), "invalids": [tx.id, "7", str(2**61), "3"],
    }  # fmt: skip

    reply = ok(topic.avro("poll", consume_request(transaction=transaction_bytes(reader))))

    assert [payload for _, payload in messages_of(reply.body)] == [b"plain"]


def test_arrays_in_several_blocks_and_with_byte_sizes_are_read(topic: Topic) -> None:
    one, two = b"\x02a", b"\x04bc"
    bodies = [
        b"\x02" + zigzag(-2) + zigzag(len(one + two)) + one + two + b"\x00",
        b"\x02" + zigzag(1) + one + zigzag(1) + two + b"\x00",
        b"\x02" + zigzag(-1) + zigzag(len(one)) + one + zigzag(1) + two + b"\x00",
    ]

    for body in bodies:
        ok(topic.avro("publish", body))

    assert topic.read() == ["a", "bc"] * 3


@pytest.mark.parametrize(
    "body",
    [
        publish_request([b"a"]) + b"\x00",
        publish_request([b"a"]) * 2,
        publish_request([b"a"])[:-1] + zigzag(2**62),
        b"\x02" + zigzag(2**62) + b"\x02a\x00",
        b"\x02" + zigzag(2**40) + b"\x00" * 50,
        b"\x02" + zigzag(-(2**62)) + zigzag(2) + b"\x02a\x00",
        b"\x02" + zigzag(-(2**63)) + zigzag(2) + b"\x02a\x00",
        b"\x02" + zigzag(-1) + zigzag(-2) + b"\x02a\x00",
        b"\x02" + zigzag(-1) + zigzag(1) + b"\x02a\x00",
        b"\x02" + zigzag(-1) + zigzag(3) + b"\x02a\x00",
        b"\x02" + zigzag(-1) + zigzag(2**62) + b"\x02a\x00",
        b"\x02\x02" + zigzag(2**62) + b"a\x00",
        b"\x02\x02" + zigzag(-1) + b"\x00",
        b"\x02\x02" + zigzag(-(2**63)) + b"\x00",
        b"\x04\x02\x02a\x00",
        b"\x01\x02\x02a\x00",
        b"\x02\x02\x02a" + b"\x80" * 20 + b"\x00",
        b"\x02" + b"\xff" * 9 + b"\x7f" + b"\x00",
        b"\xff" * 100,
    ],
)
def test_a_body_that_is_no_publish_request_is_refused(topic: Topic, body: bytes) -> None:
    assert problem_of(topic.avro("publish", body))["status"] == 400

    assert topic.read() == []


def test_a_publish_request_cut_anywhere_is_refused(topic: Topic) -> None:
    whole = publish_request([b"abc", b"d" * 100], pointer=None)

    for size in range(len(whole)):
        refused(topic.avro("publish", whole[:size]), 400, "bad_request")

    assert topic.read() == []


def test_a_consume_request_cut_anywhere_or_followed_by_anything_is_refused(topic: Topic) -> None:
    whole = encode(
        CONSUME_REQUEST,
        {"startFrom": b"\x01" * 20, "inclusive": False, "limit": 5, "transaction": VECTOR_A},
    )

    for bad in (*(whole[:size] for size in range(len(whole))), whole + b"\x00"):
        assert problem_of(topic.avro("poll", bad))["status"] == 400
    for bad in (b"\x06\x01\x00\x14\x02", b"\x04\x02\x00\x14\x02", b"\x04\x01\x04\x02"):
        assert problem_of(topic.avro("poll", bad))["status"] == 400


def test_a_limit_beyond_32_bits_is_refused(topic: Topic) -> None:
    body = b"\x04\x01\x00" + zigzag(2**31) + b"\x02"

    refused(topic.avro("poll", body), 400, "bad_request")


def test_a_rollback_detail_cut_anywhere_or_followed_by_anything_is_refused(topic: Topic) -> None:
    whole = bytes.fromhex("00 02 80c0feed9256 0a 80c0feed9256 0c")

    for bad in (*(whole[:size] for size in range(len(whole))), whole + b"\x00"):
        refused(topic.avro("rollback", bad), 400, "bad_request")
    null_pointer = b"\x02" + whole[2:]
    assert problem_of(topic.avro("rollback", null_pointer))["status"] == 400


def test_a_publish_of_nothing_without_transaction_is_refused(topic: Topic) -> None:
    refused(topic.avro("publish", bytes.fromhex("02 00")), 400, "empty_publish")


def test_any_payload_comes_back_as_it_was(topic: Topic) -> None:
    sent = [bytes([byte]) * size for byte, size in ((0, 1), (255, 63), (128, 64), (7, 8200))]
    sent += [b"", bytes(range(256)), "grüße".encode()]

    ok(topic.avro("publish", publish_request(sent)))

    reply = ok(topic.avro("poll", consume_request()))
    assert [payload for _, payload in messages_of(reply.body)] == sent
