"""Polling: places, limits, parameters and reply headers (protocol §3.4)."""

import socket

import pytest

from tests.http.calls import Topic, begin, ids, payloads
from tests.http.client import JSON, Client, ok, refused, until
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


def test_an_id_starts_at_that_message_or_behind_it(letters: Topic) -> None:
    found = ids(letters.poll())

    assert letters.read({"startFrom": found[1]}) == ["b", "c", "d"]
    assert letters.read({"startFrom": found[1], "inclusive": False}) == ["c", "d"]
    assert letters.read({"startFrom": found[1].upper()}) == ["b", "c", "d"]
    assert letters.read({"startFrom": found[3], "inclusive": False}) == []


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


@pytest.mark.parametrize(
    ("body", "query", "code"),
    [
        ({"startFrom": "f" * 39}, {}, "invalid_message_id"),
        ({"startFrom": -1}, {}, "bad_request"),
        ({"limit": 0}, {}, "bad_request"),
        ({"limit": True}, {}, "bad_request"),
        ({"inclusive": "true"}, {}, "bad_request"),
        ({"from": 0}, {}, "bad_request"),
        ({"transaction": "AAAA"}, {}, "invalid_transaction"),
        ({"transaction": {}}, {}, "invalid_transaction"),
        ({}, {"isolation": "none"}, "bad_request"),
        ({}, {"isolation": "committed", "tx": "1"}, "bad_request"),
        ({}, {"undecided": "maybe"}, "bad_request"),
        ({}, {"undecided": "skip"}, "bad_request"),
        ({}, {"undecided": "skip", "isolation": "all"}, "bad_request"),
        ({}, {"undecided": "skip", "isolation": "committed"}, "bad_request"),
        ({}, {"limit": "5"}, "bad_request"),
        ({}, {"through": "ab"}, "invalid_message_id"),
        *(({}, {"wait": wait}, "bad_request") for wait in
          ("-1", "60.001", "x", "nan", "inf", "", "0_1", "\u0660", " 0")),
    ],
)  # fmt: skip
def test_a_malformed_poll_is_refused(
    letters: Topic, body: dict[str, object], query: dict[str, object], code: str
) -> None:
    refused(letters.poll(body, **query), 400, code)


def test_a_poll_reads_in_one_snapshot(client: Client, topic: Topic) -> None:
    writer = begin(client)
    ok(topic.publish("a"))
    ok(topic.publish("b", tx=writer.id))
    early = begin(client)
    ok(writer.commit())
    late = begin(client)
    ok(late.abort())

    for started, expected in ((early, ["a"]), (late, ["a", "b"])):
        assert topic.read({"transaction": started.object["encoded"]}) == expected
        assert topic.read({"transaction": started.object}) == expected
    body = {"transaction": early.object["encoded"]}
    for query in ({"isolation": "committed"}, {"isolation": "all"}, {"tx": early.id}):
        refused(topic.poll(body, **query), 400, "bad_request")
    short = begin(client, lists=False).object
    refused(topic.poll({"transaction": short}), 400, "invalid_transaction")


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 2147483647])
def test_next_leads_through_the_topic_without_gap_or_repeat(letters: Topic, limit: int) -> None:
    pages: list[list[str]] = []
    body: dict[str, object] = {"limit": limit}
    is_over = False
    while not is_over:
        reply = ok(letters.poll(body, wait="59.999"))
        pages.append(payloads(reply))
        is_over = reply.header("Tuff-Caught-Up") == "true"
        body = {"limit": limit, "inclusive": False, "startFrom": reply.header("Tuff-Next")}

    assert pages == [list("abcd")[at : at + limit] for at in range(0, 4, limit)]


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
    ok(topic.publish("a", "a"))
    ok(topic.publish("held", tx=pointer))
    ok(topic.publish("b"))

    limited = ok(topic.poll({"limit": 1}, isolation="committed"))
    held = ok(topic.poll(isolation="committed"))
    every = ok(topic.poll(isolation="all"))

    assert payloads(held) == ["a", "a"]
    for reply, is_whole, blocker in (
        (limited, False, None),
        (held, False, tx.id),
        (every, True, None),
    ):
        assert reply.header("Tuff-Caught-Up") == str(is_whole).lower()
        assert reply.header("Tuff-Blocked-By") == blocker
    behind = {"startFrom": held.header("Tuff-Next"), "inclusive": False}
    assert topic.read(behind, isolation="committed") == []
    ok(tx.commit())
    free = ok(topic.poll(behind, isolation="committed"))
    assert payloads(free) == ["held", "b"]
    assert free.header("Tuff-Blocked-By") is None
    assert free.header("Tuff-Caught-Up") == "true"


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
        with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
            connection.sendall(f"{two}Connection: close\r\n{rest}".encode())
            said = b"".join(iter(lambda: connection.recv(65_536), b""))
        assert b"Content-Type: avro/binary\r\n" in said
    for accept in ("*/*", "text/html", "application/*"):
        other = client.send("POST", path, b"{}", content_type=JSON, headers={"Accept": accept})
        assert other.json == whole
