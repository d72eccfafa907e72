"""Polling: places, limits, parameters and reply headers (protocol §3.4)."""

import base64
import socket

import pytest

from tests.http.calls import Topic, Tx, begin, ids, payloads
from tests.http.client import JSON, Client, ok, problem_of, refused, until
from tests.http.conftest import NewTopic
from tests.http.forms import messages_of

LAST_ID = "f" * 40


@pytest.fixture
def letters(topic: Topic) -> Topic:
    """A topic with `a`, `b`, `c`, `d`, each of a publish of its own."""
    for letter in "abcd":
        ok(topic.publish(letter))
    return topic


def test_a_poll_without_a_body_reads_from_the_oldest_message(
    client: Client, letters: Topic
) -> None:
    reply = client.send("POST", f"{letters.path}/poll")

    assert payloads(reply) == ["a", "b", "c", "d"]
    assert str(reply.header("Content-Type")).startswith(JSON)


def test_a_message_has_an_id_a_payload_and_its_publish_time(letters: Topic) -> None:
    [message] = ok(letters.poll({"limit": 1})).json

    assert set(message) == {"id", "payload", "timestamp"}
    assert message["timestamp"] == int(message["id"][:16], 16)


def test_null_members_are_as_good_as_none(letters: Topic) -> None:
    body = {"startFrom": None, "limit": None, "transaction": None, "inclusive": True}

    assert letters.read(body) == ["a", "b", "c", "d"]


def test_an_id_starts_at_that_message_or_behind_it(letters: Topic) -> None:
    found = ids(letters.poll())

    assert letters.read({"startFrom": found[1]}) == ["b", "c", "d"]
    assert letters.read({"startFrom": found[1], "inclusive": False}) == ["c", "d"]
    assert letters.read({"startFrom": found[1].upper()}) == ["b", "c", "d"]
    assert letters.read({"startFrom": found[3], "inclusive": False}) == []


def test_an_id_that_is_no_messages_is_a_place_like_any_other(letters: Topic) -> None:
    found = ids(letters.poll())
    behind_b = found[1][:39] + "1"

    assert letters.read({"startFrom": behind_b}) == ["c", "d"]
    assert letters.read({"startFrom": behind_b, "inclusive": False}) == ["c", "d"]
    assert letters.read({"startFrom": "0" * 40}) == ["a", "b", "c", "d"]
    assert letters.read({"startFrom": LAST_ID}) == []
    assert letters.read({"startFrom": LAST_ID, "inclusive": False}) == []


def test_a_time_starts_at_that_millisecond_or_the_next(topic: Topic) -> None:
    ok(topic.publish("a"))
    time_a = ok(topic.poll()).json[0]["timestamp"]
    until(lambda: _newest_time(topic) > time_a, what="another millisecond")
    newest = _newest_time(topic)

    assert topic.read({"startFrom": 0})[0] == "a"
    assert topic.read({"startFrom": time_a})[0] == "a"
    assert "a" not in topic.read({"startFrom": time_a, "inclusive": False})
    assert topic.read({"startFrom": time_a, "inclusive": False}) == topic.read(
        {"startFrom": time_a + 1}
    )
    assert topic.read({"startFrom": newest + 1}) == []
    assert topic.read({"startFrom": newest}) != []
    assert topic.read({"startFrom": newest, "inclusive": False}) == []


def _newest_time(topic: Topic) -> int:
    return int(str(ok(topic.publish("clock")).header("Tuff-Last-Id"))[:16], 16)


@pytest.mark.parametrize("start", ["", "ab", "f" * 38, "f" * 39, "f" * 41, "f" * 42, "g" * 40])
def test_an_id_of_the_wrong_form_is_refused(letters: Topic, start: str) -> None:
    refused(letters.poll({"startFrom": start}), 400, "invalid_message_id")


@pytest.mark.parametrize(
    "body",
    [
        {"startFrom": -1}, {"startFrom": 1.5}, {"startFrom": True}, {"startFrom": []},
        {"startFrom": {}}, {"limit": 0}, {"limit": -1}, {"limit": 1.5}, {"limit": "5"},
        {"limit": -(10**30)}, {"limit": True}, {"limit": []},
        {"inclusive": 1}, {"inclusive": "true"},
        {"inclusive": []}, {"from": 0}, {"isolation": "all"},
    ],
)  # fmt: skip
def test_a_malformed_member_is_refused(letters: Topic, body: dict[str, object]) -> None:
    refused(letters.poll(body), 400, "bad_request")


@pytest.mark.parametrize(
    "query",
    [
        {"isolation": "none"}, {"isolation": ""}, {"isolation": "ALL"}, {"undecided": "maybe"},
        {"wait": "-1"}, {"wait": "61"}, {"wait": "60.001"}, {"wait": "x"}, {"wait": "nan"},
        {"wait": "inf"}, {"wait": ""}, {"wait": "0_1"}, {"wait": "\u0660"}, {"wait": " 0"},
        {"limit": "5"}, {"ttl": "5"},
        {"undecided": "skip"}, {"undecided": "skip", "isolation": "all"},
        {"undecided": "skip", "isolation": "committed"},
    ],
)  # fmt: skip
def test_a_malformed_parameter_is_refused(letters: Topic, query: dict[str, object]) -> None:
    refused(letters.poll(None, **query), 400, "bad_request")


@pytest.mark.parametrize(
    "digits",
    [str(2**63 - 1), str(2**63), str(2**64), "1" + "0" * 30, "1" + "0" * 400, "1" + "0" * 5_000],
    ids=len,
)
def test_a_limit_and_a_time_of_more_than_64_bits_are_clamped(letters: Topic, digits: str) -> None:
    """They were said to be no whole numbers."""
    limited, late = (
        letters.client.send(
            "POST", f"{letters.path}/poll", f'{{"{member}": {digits}}}'.encode(), content_type=JSON
        )
        for member in ("limit", "startFrom")
    )

    assert payloads(ok(limited)) == payloads(letters.browse(limit=digits)) == ["a", "b", "c", "d"]
    assert payloads(ok(late)) == []
    for inclusive in ("true", "false"):
        after = letters.browse(**{"from": digits[:39], "inclusive": inclusive})
        assert payloads(ok(after)) == []


@pytest.mark.parametrize("through", ["", "ab", "g" * 40, "f" * 39])
def test_a_malformed_through_is_refused(letters: Topic, through: str) -> None:
    refused(letters.poll(through=through), 400, "invalid_message_id")


def test_there_is_at_most_one_snapshot_to_read_in(client: Client, letters: Topic) -> None:
    tx = begin(client)
    body = {"transaction": tx.object["encoded"]}

    refused(letters.poll(isolation="committed", tx=tx.id), 400, "bad_request")
    refused(letters.poll(isolation="all", tx=tx.id), 400, "bad_request")
    refused(letters.poll(body, isolation="committed"), 400, "bad_request")
    refused(letters.poll(body, isolation="all"), 400, "bad_request")
    refused(letters.poll(body, tx=tx.id), 400, "bad_request")


@pytest.mark.parametrize("wait", ["0", "0.0", "60", "59.999", "1e1"])
def test_a_wait_up_to_60_seconds_is_taken(letters: Topic, wait: str) -> None:
    assert letters.read(wait=wait) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 2147483647])
def test_a_limit_bounds_the_reply(letters: Topic, limit: int) -> None:
    reply = letters.poll({"limit": limit})

    assert payloads(reply) == list("abcd")[:limit]
    assert reply.header("Tuff-Caught-Up") == ("true" if limit >= 4 else "false")


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_next_leads_through_the_topic_without_gap_or_repeat(letters: Topic, limit: int) -> None:
    found: list[str] = []
    body: dict[str, object] = {"limit": limit}
    while True:
        reply = ok(letters.poll(body))
        found += payloads(reply)
        if reply.header("Tuff-Caught-Up") == "true":
            break
        assert reply.json
        body = {"limit": limit, "inclusive": False, "startFrom": reply.header("Tuff-Next")}

    assert found == ["a", "b", "c", "d"]


def test_next_of_an_empty_reply_leads_to_what_comes(topic: Topic) -> None:
    empty = ok(topic.poll())
    assert empty.json == []
    assert empty.header("Tuff-Caught-Up") == "true"
    assert len(bytes.fromhex(str(empty.header("Tuff-Next")))) == 20

    ok(topic.publish("a"))

    body = {"startFrom": empty.header("Tuff-Next"), "inclusive": False}
    after = ok(topic.poll(body))
    assert payloads(after) == ["a"]
    body = {"startFrom": after.header("Tuff-Next"), "inclusive": False}
    again = ok(topic.poll(body))
    assert again.json == []
    ok(topic.publish("b"))
    assert topic.read({"startFrom": again.header("Tuff-Next"), "inclusive": False}) == ["b"]


def test_next_of_a_read_from_a_time_leads_on(topic: Topic) -> None:
    ok(topic.publish("a"))
    timestamp = ok(topic.poll()).json[0]["timestamp"]

    reply = ok(topic.poll({"startFrom": timestamp}))
    ok(topic.publish("b"))

    assert payloads(reply) == ["a"]
    assert topic.read({"startFrom": reply.header("Tuff-Next"), "inclusive": False}) == ["b"]


def test_next_lies_past_what_was_skipped(client: Client, topic: Topic) -> None:
    ok(topic.publish("a"))
    tx = begin(client)
    skipped = [str(ok(topic.publish("x", tx=tx.id)).header("Tuff-Last-Id")) for _ in range(3)]
    ok(tx.abort())

    reply = ok(topic.poll(isolation="committed"))

    assert payloads(reply) == ["a"]
    assert reply.header("Tuff-Caught-Up") == "true"
    assert str(reply.header("Tuff-Next")) >= skipped[-1]
    behind = {"startFrom": reply.header("Tuff-Next"), "inclusive": False}
    assert ok(topic.poll(behind, isolation="committed")).json == []


def test_through_bounds_the_read_and_makes_it_caught_up(letters: Topic) -> None:
    found = ids(letters.poll())

    reply = ok(letters.poll(through=found[2]))

    assert payloads(reply) == ["a", "b", "c"]
    assert reply.header("Tuff-Caught-Up") == "true"
    partial = ok(letters.poll({"limit": 2}, through=found[2]))
    assert payloads(partial) == ["a", "b"]
    assert partial.header("Tuff-Caught-Up") == "false"
    assert letters.read(through="0" * 40) == []
    assert letters.read(through=LAST_ID) == ["a", "b", "c", "d"]
    rest = {"startFrom": reply.header("Tuff-Next"), "inclusive": False}
    assert letters.read(rest) == ["d"]


def test_a_held_row_stops_the_read_and_names_its_transaction(client: Client, topic: Topic) -> None:
    tx = begin(client)
    pointer = ok(tx.checkpoint()).json["writePointer"]
    ok(topic.publish("a"))
    ok(topic.publish("held", tx=pointer))
    ok(topic.publish("b"))

    held = ok(topic.poll(isolation="committed"))

    assert payloads(held) == ["a"]
    assert held.header("Tuff-Caught-Up") == "false"
    assert held.header("Tuff-Blocked-By") == tx.id
    behind = {"startFrom": held.header("Tuff-Next"), "inclusive": False}
    assert topic.read(behind, isolation="committed") == []
    ok(tx.commit())
    free = ok(topic.poll(behind, isolation="committed"))
    assert payloads(free) == ["held", "b"]
    assert free.header("Tuff-Blocked-By") is None
    assert free.header("Tuff-Caught-Up") == "true"


def test_nobody_is_blocked_in_a_read_of_all(client: Client, topic: Topic) -> None:
    ok(topic.publish("a", tx=begin(client).id))

    reply = ok(topic.poll(isolation="all"))

    assert payloads(reply) == ["a"]
    assert reply.header("Tuff-Blocked-By") is None
    assert reply.header("Tuff-Caught-Up") == "true"


def test_a_limit_before_a_held_row_names_no_blocker(client: Client, topic: Topic) -> None:
    ok(topic.publish("a"))
    ok(topic.publish("b"))
    ok(topic.publish("held", tx=begin(client).id))

    reply = ok(topic.poll({"limit": 1}, isolation="committed"))

    assert payloads(reply) == ["a"]
    assert reply.header("Tuff-Blocked-By") is None
    assert reply.header("Tuff-Caught-Up") == "false"


def test_expired_says_that_messages_may_have_been_missed(new_topic: NewTopic) -> None:
    topic = new_topic({"ttl": 1000})
    ok(topic.publish("a"))
    [message] = ok(topic.poll()).json
    old_ms = message["timestamp"] - 1_001_000
    old_id = f"{old_ms:016x}" + "0" * 24

    assert ok(topic.poll({"startFrom": old_ms})).header("Tuff-Expired") == "true"
    assert ok(topic.poll({"startFrom": old_id})).header("Tuff-Expired") == "true"
    for start in (0, "0" * 40, "0" * 16 + "f" * 24, None, message["id"], message["timestamp"]):
        assert ok(topic.poll({"startFrom": start})).header("Tuff-Expired") in {None, "false"}


def test_the_tx_parameter_reads_in_that_transactions_snapshot(client: Client, topic: Topic) -> None:
    writer, reader = begin(client), begin(client)
    ok(topic.publish("own", tx=reader.id))
    ok(topic.publish("other", tx=writer.id))
    ok(writer.commit())

    reply = ok(topic.poll(tx=reader.id))

    assert payloads(reply) == ["own"]
    assert reply.header("Tuff-Caught-Up") == "false"
    assert reply.header("Tuff-Blocked-By") is None
    checkpoint = ok(reader.checkpoint()).json["writePointer"]
    assert topic.read(tx=checkpoint) == ["own"]


def test_the_tx_parameter_must_name_a_transaction_in_progress(client: Client, topic: Topic) -> None:
    committed, aborted, invalid = begin(client), begin(client), begin(client)
    ok(committed.commit())
    ok(aborted.abort())
    ok(invalid.invalidate())

    refused(topic.poll(tx=committed.id), 409, "transaction_committed")
    refused(topic.poll(tx=aborted.id), 409, "transaction_aborted")
    refused(topic.poll(tx=invalid.id), 409, "transaction_invalidated")
    refused(topic.poll(tx="1000000000000000001"), 404, "transaction_unknown")
    assert problem_of(topic.poll(tx="abc"))["status"] in {400, 404}


def _object_of(tx: Tx) -> dict[str, object]:
    return dict(tx.object)


def test_a_transaction_in_the_body_is_read_as_bytes_or_as_its_object(
    client: Client, topic: Topic
) -> None:
    writer = begin(client)
    ok(topic.publish("a"))
    ok(topic.publish("b", tx=writer.id))
    early = begin(client)
    ok(writer.commit())
    late = begin(client)

    for form in ("encoded", "object"):
        snapshots = [tx.object["encoded"] if form == "encoded" else _object_of(tx)
                     for tx in (early, late)]  # fmt: skip
        assert topic.read({"transaction": snapshots[0]}) == ["a"]
        assert topic.read({"transaction": snapshots[1]}) == ["a", "b"]
    ok(early.abort())
    assert topic.read({"transaction": early.object["encoded"]}) == ["a"]


def test_a_transaction_object_without_lists_is_refused(client: Client, topic: Topic) -> None:
    short = begin(client, lists=False).object
    whole = begin(client).object

    refused(topic.poll({"transaction": short}), 400, "invalid_transaction")
    for name in ("invalids", "inProgress"):
        cut = {key: whole[key] for key in whole if key != name}
        refused(topic.poll({"transaction": cut}), 400, "invalid_transaction")


@pytest.mark.parametrize(
    "transaction",
    ["", "x", "AAAA", "!!!!", base64.b64encode(b"\x0a\x00\x01").decode(), {}, 7, [], True],
)
def test_a_malformed_transaction_is_refused(topic: Topic, transaction: object) -> None:
    refused(topic.poll({"transaction": transaction}), 400, "invalid_transaction")


def test_the_reply_takes_the_form_that_accept_names(client: Client, letters: Topic) -> None:
    path = f"{letters.path}/poll"
    whole = ok(letters.poll()).json

    reply = client.send("POST", path, b"{}", content_type=JSON, headers={"Accept": "avro/binary"})

    assert ok(reply).header("Content-Type") == "avro/binary"
    found = messages_of(reply.body)
    assert [(one.hex(), payload.decode()) for one, payload in found] == [
        (message["id"], message["payload"]) for message in whole
    ]
    assert reply.header("Tuff-Caught-Up") == "true"
    # As of two Accept fields the first alone was read. The second way is the HTTP library's.
    two = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\nAccept: avro/binary\r\n"
    for rest in ("Content-Length: 0\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", client.port), timeout=5) as connection:
            connection.sendall(f"{two}Connection: close\r\n{rest}".encode())
            said = b"".join(iter(lambda: connection.recv(65_536), b""))
        assert b"Content-Type: avro/binary\r\n" in said
    for accept in ("*/*", "text/html", "application/*"):
        other = client.send("POST", path, b"{}", content_type=JSON, headers={"Accept": accept})
        assert other.json == whole
