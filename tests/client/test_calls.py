"""What each call sends, byte for byte, and how its answer is read (protocol §2, §3, §5.2)."""

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from messaging.model.avro_bodies import decode_publish_request, encode_columns
from tuff import publish_calls, read_calls, topic_calls, transaction_calls
from tuff.flows_and_repeated_calls import Call
from tuff.protocol.errors import (
    InternalError,
    InvalidNameError,
    TopicNotFoundError,
    TransactionConflictError,
    TuffError,
)
from tuff.protocol.ids import SEQ_ID_LIMIT, MessageId, MessageIds, Offset, TopicId
from tuff.protocol.requests import Message, PublishEntry, PublishRequest, RollbackDetail
from tuff.protocol.transaction import Transaction, TransactionType
from tuff.publish_calls import all_checked
from tuff.read_calls import PollQuestion
from tuff.replies import Published, Renewed
from tuff.requests_and_responses import Request, Response
from tuff.transaction_calls import id_of, write_pointer_of

ORDERS = TopicId("shop", "orders")
ID = MessageId(1480000000000, 5)
HEX = "0000015896dfd00000050000000000000000" + "0000"
NEXT_HEX = MessageId(1480000000000, 6).hex()


def ok(body: object = None, **headers: str) -> Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(200, names, b"" if body is None else json.dumps(body).encode())


def sent(request: Request) -> tuple[str, str, object]:
    body = None if request.body is None else json.loads(request.content or b"")
    return request.operation.method, request.path, body


TOPIC = "/v1/namespaces/shop/topics/orders"
AT = 1480000000000
SKIPPING = PollQuestion(start=ID, inclusive=False, transaction=7, wait_s=1.5, undecided="skip")
SOLD = PublishEntry(topic=ORDERS, payloads=[b"sold"], pointer=7)
SOLD_FORM = {"namespace": "shop", "topic": "orders", "messages": ["sold"], "pointer": "7"}


@pytest.mark.parametrize(
    ("call", "method", "path", "body"),
    [
        (topic_calls.create_topic(ORDERS, {"ttl": 5}), "PUT", TOPIC, {"ttl": 5}),
        (read_calls.poll(ORDERS, PollQuestion(start=AT, limit=10)), "POST",
         f"{TOPIC}/poll?isolation=committed", {"startFrom": AT, "inclusive": True, "limit": 10}),
        (read_calls.poll(ORDERS, PollQuestion(start=datetime(2016, 11, 24, 15, 6, 40, tzinfo=UTC))),
         "POST", f"{TOPIC}/poll?isolation=committed", {"startFrom": AT, "inclusive": True}),
        (read_calls.poll(ORDERS, SKIPPING), "POST", f"{TOPIC}/poll?tx=7&undecided=skip&wait=1.5",
         {"startFrom": HEX, "inclusive": False}),
        (transaction_calls.commit(5, [b"apple"], [SOLD], read_only=False), "POST",
         "/v1/transactions/5/commit",
         {"changes": ["apple"], "publish": [SOLD_FORM], "readOnly": False}),
        (transaction_calls.truncate(ids=[1], before_ms=None), "POST",
         "/v1/transactions/invalid/truncate", {"ids": ["1"]}),
        (transaction_calls.start(type="long", timeout_s=None, client=None, request_id="r",
                                 lease_s=60, messages_only=True), "POST",
         "/v1/transactions",
         {"type": "long", "lease": 60, "requestId": "r", "messagesOnly": True}),
        (transaction_calls.join(7), "POST", "/v1/transactions/7/join", None),
        (transaction_calls.renew(7), "POST", "/v1/transactions/7/renew", None),
        (transaction_calls.begin_epoch("a/b", 7, "r", lease_s=None, client="c"), "POST",
         "/v1/sinks/a%2Fb/epochs/7", {"runId": "r", "client": "c"}),
    ],
    ids=lambda value: value.request.path if isinstance(value, Call) else "",
)  # fmt: skip
def test_a_call_sends_what_it_was_given_and_no_more(
    call: Call[object], method: str, path: str, body: object
) -> None:
    assert sent(call.request) == (method, path, body)


def test_a_poll_tells_the_transport_how_long_the_server_may_wait() -> None:
    assert read_calls.poll(ORDERS, SKIPPING).request.wait_s == 1.5


def test_a_bad_namespace_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidNameError):
        topic_calls.list_topics("../transactions")


def test_a_publish_without_a_transaction_names_no_pointer() -> None:
    call = publish_calls.publish(ORDERS, PublishRequest(None, [b"a", b"\xff"], ttl_s=60))

    assert call.request.path == "/v1/namespaces/shop/topics/orders/publish?ttl=60"
    assert decode_publish_request(call.request.body or b"") == PublishRequest(
        pointer=None, payloads=[b"a", b"\xff"]
    )
    assert call.answer(ok(tuff_first_id=HEX, tuff_last_id=NEXT_HEX)) == Published(
        ids=MessageIds(ID.offset, 2)
    )


@pytest.mark.parametrize(("last", "count"), [(HEX, 2), (NEXT_HEX, 1), (NEXT_HEX, 3)])
def test_a_reply_with_other_offsets_than_messages_is_an_error(last: str, count: int) -> None:
    call = publish_calls.publish(ORDERS, PublishRequest(None, [b"a"] * count))

    with pytest.raises(InternalError, match="the messages exist, and their ids are unknown"):
        call.answer(ok(tuff_first_id=HEX, tuff_last_id=last))


def test_ids_are_those_of_consecutive_offsets() -> None:
    ids = MessageIds(Offset(7, SEQ_ID_LIMIT - 1), 3)
    expected = (MessageId(7, SEQ_ID_LIMIT - 1), MessageId(8, 0), MessageId(8, 1))

    assert tuple(ids) == ids[:] == expected
    assert (len(ids), ids[0], ids[-1], ids[1:]) == (3, expected[0], expected[2], expected[1:])
    assert ids.index(expected[1]) == 1
    with pytest.raises(IndexError):
        ids[3]


def test_a_publish_under_a_pointer_returns_the_detail_for_a_rollback() -> None:
    call = publish_calls.publish(ORDERS, PublishRequest(1480000000000000000, [b"a"]))

    published = call.answer(
        ok(
            {
                "transactionWritePointer": "1480000000000000000",
                "startTimestamp": 1480000000000,
                "startSequenceId": 5,
                "endTimestamp": 1480000000000,
                "endSequenceId": 6,
            },
            tuff_first_id=HEX,
            tuff_last_id=HEX,
        )
    )

    assert published.rollback == RollbackDetail(
        1480000000000000000, Offset(1480000000000, 5), Offset(1480000000000, 6)
    )


def test_a_poll_from_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="a datetime with a time zone"):
        read_calls.poll(ORDERS, PollQuestion(start=datetime(2016, 11, 24)))  # noqa: DTZ001 - refused


def test_a_poll_carries_a_snapshot_as_its_bytes() -> None:
    snapshot = Transaction(transaction_id=1, read_pointer=0, write_pointer=1)

    call = read_calls.poll(ORDERS, PollQuestion(transaction=snapshot))

    body = sent(call.request)[2]
    assert isinstance(body, dict)
    assert body["transaction"].startswith("CgABAAAAAAAAAAE")


def test_a_poll_reads_messages_and_where_it_leaves_the_reader() -> None:
    headers = {
        "content-type": "avro/binary; schema=2",
        "tuff-next": HEX,
        "tuff-caught-up": "false",
        "tuff-blocked-by": "12",
    }
    body = encode_columns([ID.to_bytes()], [b"\xff"], {})
    call = read_calls.poll(ORDERS, PollQuestion())

    assert call.request.accept == "avro/binary; schema=2"
    poll = call.answer(Response(200, headers, body))

    assert list(poll) == [Message(ID, b"\xff")]
    assert (poll.next_id, poll.caught_up, poll.blocked_by, poll.expired) == (ID, False, 12, False)


def test_offsets_of_an_empty_topic_are_none() -> None:
    reply = ok({"generation": 1, "earliest": None, "end": None, "blockedBy": None})

    found = read_calls.offsets(ORDERS, isolation="committed").answer(reply)

    assert (found.earliest, found.end, found.blocked_by) == (None, None, None)


def test_a_problem_is_raised_as_its_class() -> None:
    problem = {"status": 404, "code": "topic_not_found", "detail": "there is no shop:orders"}
    response = Response(404, {}, json.dumps(problem).encode())

    with pytest.raises(TopicNotFoundError, match="there is no shop:orders"):
        topic_calls.get_topic(ORDERS).answer(response)


def test_a_conflict_names_the_key_and_the_other() -> None:
    problem = {
        "code": "transaction_conflict",
        "detail": "…",
        "key": {"base64": "/w=="},
        "conflictingTransaction": "12",
        "conflictingClient": "billing-7",
    }
    response = Response(409, {}, json.dumps(problem).encode())

    with pytest.raises(TransactionConflictError) as caught:
        transaction_calls.can_commit(13, [b"\xff"]).answer(response)

    assert (caught.value.key, caught.value.transaction, caught.value.client) == (
        b"\xff",
        12,
        "billing-7",
    )


def test_an_error_page_of_a_proxy_is_an_error_of_the_root_class() -> None:
    with pytest.raises(TuffError, match="502"):
        topic_calls.LIST_NAMESPACES.answer(Response(502, {}, b"<html>bad gateway</html>"))


def test_a_response_that_no_tuff_server_gives_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="check the address"):
        read_calls.poll(ORDERS, PollQuestion()).answer(Response(200, {}, b"<html>hello</html>"))


@pytest.mark.parametrize(
    "call",
    [
        topic_calls.create_topic(ORDERS, {}),
        topic_calls.delete_topic(ORDERS),
        publish_calls.store(ORDERS, PublishRequest(5, [b"x"])),
        transaction_calls.can_commit(5, []),
        transaction_calls.invalidate(5),
        transaction_calls.delete_sink("sink"),
    ],
    ids=lambda call: call.request.path,
)
@pytest.mark.parametrize("answer", [(301, b""), (200, b"<html>hello</html>")])
def test_a_response_that_no_tuff_server_gives_is_an_error_even_if_its_body_is_not_read(
    call: Call[None], answer: tuple[int, bytes]
) -> None:
    """Whatever it was, it counted as done."""
    status, body = answer

    with pytest.raises(InternalError, match="check the address"):
        call.answer(Response(status, {}, body))


def test_a_truncation_takes_ids_or_a_time_and_not_both() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        transaction_calls.truncate(ids=[1], before_ms=2)


def test_one_message_or_several_of_any_bytes_can_be_given() -> None:
    assert all_checked(ORDERS, ["é"]) == [b"\xc3\xa9"]
    assert all_checked(ORDERS, [bytearray(b"ab")]) == [b"ab"]
    assert all_checked(ORDERS, ["a", b"b", memoryview(b"c")]) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("message", [5, 1.5, None, {"a": 1}, ["a"], [5], ("a",), {"a": 1}.items()])
def test_anything_but_str_or_bytes_is_refused_as_a_message(message: object) -> None:
    """bytes(5) is five zeros: a list of numbers was once published as that."""
    with pytest.raises(TypeError, match="a message is str or bytes, not"):
        all_checked(ORDERS, [message])


def test_a_message_without_utf_8_is_refused() -> None:
    with pytest.raises(ValueError, match="half a surrogate pair"):
        all_checked(ORDERS, ["\ud800"])


def test_a_type_may_be_given_by_its_name_or_by_its_enum() -> None:
    """The enum was a TypeError of the JSON encoder."""
    starts = [
        transaction_calls.start(type=kind, timeout_s=None, client=None, request_id="r")
        for kind in (TransactionType.LONG, "long")
    ]

    assert starts[0].request == starts[1].request


@pytest.mark.parametrize("changes", [["row"], b"row", [bytearray(b"row")]])
def test_a_change_that_is_no_bytes_is_refused(changes: Any) -> None:
    with pytest.raises(TypeError, match="a change is a key, as bytes"):
        transaction_calls.can_commit(1, changes)
    with pytest.raises(TypeError, match="a change is a key, as bytes"):
        transaction_calls.commit(1, changes, [], read_only=False)


@pytest.mark.parametrize("wait_s", [math.nan, math.inf])
def test_a_wait_that_is_no_number_is_refused(wait_s: float) -> None:
    with pytest.raises(ValueError, match="wait is a number of seconds"):
        read_calls.poll(ORDERS, PollQuestion(wait_s=wait_s))


@pytest.mark.parametrize("transaction", [None, "12", 1.5])
def test_anything_but_a_transaction_or_a_pointer_is_refused(transaction: Any) -> None:
    for pointer_of in (id_of, write_pointer_of):
        with pytest.raises(TypeError, match="or one of its pointers"):
            pointer_of(transaction)


def test_a_renewal_answers_until_when() -> None:
    call = transaction_calls.renew(7)

    assert call.answer(ok({"leaseExpiresAt": 5, "expiresAt": 9})) == Renewed(
        lease_expires_at_ms=5, expires_at_ms=9
    )


@pytest.mark.parametrize(
    ("members", "lease"), [({}, (None, None)), ({"lease": 2.5, "leaseExpiresAt": 5}, (2.5, 5))]
)
def test_an_outcome_says_what_lease_there_is(
    members: dict[str, object], lease: tuple[float | None, int | None]
) -> None:
    body = {"transactionId": "7", "state": "in_progress", **members}

    found = transaction_calls.outcome(7).answer(ok(body))

    assert (found.lease_s, found.lease_expires_at_ms) == lease
