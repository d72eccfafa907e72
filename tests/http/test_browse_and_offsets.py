"""Browsing and offsets (protocol §3.5, §3.6)."""

from datetime import UTC, datetime

import pytest

from tests.http.calls import Topic, begin, ids, payloads
from tests.http.client import Client, ok, problem_of, refused, until


@pytest.fixture
def letters(topic: Topic) -> Topic:
    ok(topic.publish("a", "b", "c"))
    return topic


def test_browsing_reads_what_a_poll_reads(letters: Topic) -> None:
    polled = ok(letters.poll())

    for query in ({}, {"from": "earliest"}, {"from": "0"}, {"limit": "3"}, {"isolation": "all"}):
        reply = ok(letters.browse(**query))
        assert reply.json == polled.json
        assert reply.header("Tuff-Next") == polled.header("Tuff-Next")
        assert reply.header("Tuff-Caught-Up") == "true"


def test_browsing_starts_at_an_id_a_time_or_the_end(letters: Topic) -> None:
    found = ids(letters.poll())
    timestamp = int(found[0][:16], 16)

    assert payloads(letters.browse(**{"from": found[1]})) == ["b", "c"]
    assert payloads(letters.browse(**{"from": found[1], "inclusive": "false"})) == ["c"]
    assert payloads(letters.browse(**{"from": found[1], "inclusive": "true"})) == ["b", "c"]
    assert payloads(letters.browse(**{"from": timestamp})) == ["a", "b", "c"]
    assert payloads(letters.browse(**{"from": timestamp, "inclusive": "false"})) == []
    assert payloads(letters.browse(**{"from": "latest"})) == []
    assert payloads(letters.browse(limit=2)) == ["a", "b"]


def test_browsing_starts_at_an_iso_time(topic: Topic) -> None:
    ok(topic.publish("a"))
    first_ms = ok(topic.poll()).json[0]["timestamp"]
    until(
        lambda: int(str(ok(topic.publish("x")).header("Tuff-Last-Id"))[:16], 16) > first_ms,
        what="the next millisecond",
    )
    at = datetime.fromtimestamp(first_ms / 1000, tz=UTC)
    later = datetime.fromtimestamp((first_ms + 1) / 1000, tz=UTC)

    for text in (
        at.isoformat(timespec="milliseconds"),
        at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
    ):
        assert payloads(topic.browse(**{"from": text}))[0] == "a"
    text = later.isoformat(timespec="milliseconds")
    assert "a" not in payloads(topic.browse(**{"from": text}))
    assert payloads(topic.browse(**{"from": "2001-01-01T00:00:00Z"}))[0] == "a"


@pytest.mark.parametrize(
    "query",
    [
        {"from": "yesterday"}, {"from": "-1"}, {"from": ""}, {"from": "f" * 39},
        {"from": "2026-13-01T00:00:00Z"}, {"limit": "0"}, {"limit": "x"}, {"inclusive": "maybe"},
        {"startFrom": "0"}, {"isolation": "x"}, {"wait": "61"}, {"through": "x"},
    ],
)  # fmt: skip
def test_a_malformed_browse_is_refused(letters: Topic, query: dict[str, object]) -> None:
    assert problem_of(letters.browse(**query))["status"] == 400


def test_the_refusal_of_a_time_zone_with_a_space_says_how_to_escape_the_plus(
    letters: Topic,
) -> None:
    """The sentence named what it does take, which was what its reader had written."""
    unescaped = f"{letters.path}/messages?from=2016-11-24T16:00:00+02:00"

    refused(letters.client.get(unescaped), 400, "bad_request", naming="+ is written %2B")
    ok(letters.client.get(unescaped.replace("+", "%2B")))


def test_browsing_takes_the_parameters_of_a_poll(client: Client, topic: Topic) -> None:
    writer = begin(client)
    ok(topic.publish("a"))
    ok(topic.publish("held", tx=writer.id))
    ok(topic.publish("b"))
    first, held, _ = ids(topic.poll())

    reply = ok(topic.browse(isolation="committed"))

    assert payloads(reply) == ["a"]
    assert reply.header("Tuff-Blocked-By") == writer.id
    assert payloads(topic.browse(tx=begin(client).id, undecided="skip")) == ["a", "b"]
    assert payloads(topic.browse(through=held)) == ["a", "held"]
    assert payloads(topic.browse(through=first, isolation="committed")) == ["a"]


def test_offsets_tell_where_a_topic_begins_and_ends_for_each_reader(
    client: Client, topic: Topic
) -> None:
    empty = {"generation": 1, "earliest": None, "end": None, "blockedBy": None}
    assert ok(topic.offsets()).json == ok(topic.offsets(isolation="committed")).json == empty
    writer = begin(client)
    ok(topic.publish("a"))
    ok(topic.publish("held", tx=writer.id))
    ok(topic.publish("b"))
    first, _, last = ids(topic.poll())
    reader = begin(client)

    every = ok(topic.offsets()).json
    committed = ok(topic.offsets(isolation="committed")).json
    fixed = ok(topic.offsets(tx=reader.id)).json
    ok(writer.commit())
    after = ok(topic.offsets(tx=reader.id)).json

    assert every == {"generation": 1, "earliest": first, "end": last, "blockedBy": None}
    assert committed == fixed == {**every, "end": first, "blockedBy": writer.id}
    assert after == {**fixed, "blockedBy": None}
    assert ok(topic.offsets(isolation="committed")).json == ok(topic.offsets()).json == every
    ok(topic.truncate(last))
    assert ok(topic.offsets()).json == {**every, "earliest": last}
    ok(topic.delete())
    ok(topic.create())
    assert ok(topic.offsets()).json == {**empty, "generation": 2}


def test_a_malformed_request_for_offsets_is_refused(client: Client, topic: Topic) -> None:
    tx = begin(client)

    refused(topic.offsets(isolation="x"), 400, "bad_request", naming="x")
    refused(topic.offsets(isolation="committed", tx=tx.id), 400, "bad_request")
    refused(topic.offsets(tx="1000000000000000001"), 404, "transaction_unknown")
