"""Browsing and offsets (protocol §3.5, §3.6)."""

from datetime import UTC, datetime

import pytest

from tests.http.calls import Topic, begin, ids, payloads
from tests.http.client import Client, ok, problem_of, refused, until
from tests.http.conftest import NewTopic


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
        {"from": "2026-13-01T00:00:00Z"}, {"limit": "0"}, {"limit": "-1"}, {"limit": "x"},
        {"inclusive": "maybe"}, {"offset": "1"}, {"startFrom": "0"}, {"isolation": "x"},
        {"wait": "61"}, {"undecided": "skip"}, {"through": "x"},
    ],
)  # fmt: skip
def test_a_malformed_browse_is_refused(letters: Topic, query: dict[str, object]) -> None:
    assert problem_of(letters.browse(**query))["status"] == 400


def test_a_time_zone_whose_plus_arrived_as_a_space_is_told_how_to_write_it(letters: Topic) -> None:
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


def test_browsing_never_changes_anything(client: Client, letters: Topic) -> None:
    before = (ok(letters.show()).json, ok(letters.offsets()).json, ok(letters.poll()).json)

    for query in ({}, {"from": "latest"}, {"isolation": "committed"}, {"limit": 1}):
        ok(letters.browse(**query))

    assert (ok(letters.show()).json, ok(letters.offsets()).json, ok(letters.poll()).json) == before


def test_offsets_of_an_empty_topic_are_null(topic: Topic) -> None:
    expected = {"generation": 1, "earliest": None, "end": None, "blockedBy": None}

    assert ok(topic.offsets()).json == expected
    assert ok(topic.offsets(isolation="committed")).json == expected
    assert ok(topic.offsets(isolation="all")).json == expected


def test_offsets_name_the_first_and_the_last_message(letters: Topic) -> None:
    found = ids(letters.poll())
    expected = {"generation": 1, "earliest": found[0], "end": found[2], "blockedBy": None}

    assert ok(letters.offsets()).json == expected
    assert ok(letters.offsets(isolation="committed")).json == expected
    assert ok(letters.offsets(tx=begin(letters.client).id)).json == expected


def test_the_end_stops_before_a_row_that_is_not_decided(client: Client, topic: Topic) -> None:
    writer = begin(client)
    ok(topic.publish("a"))
    ok(topic.publish("held", tx=writer.id))
    ok(topic.publish("b"))
    found = ids(topic.poll())

    committed = ok(topic.offsets(isolation="committed")).json

    assert (committed["end"], committed["blockedBy"]) == (found[0], writer.id)
    everything = ok(topic.offsets()).json
    assert (everything["end"], everything["blockedBy"]) == (found[2], None)
    reader = begin(client)
    fixed = ok(topic.offsets(tx=reader.id)).json
    assert (fixed["end"], fixed["blockedBy"]) == (found[0], writer.id)
    ok(writer.commit())
    assert ok(topic.offsets(isolation="committed")).json["end"] == found[2]
    fixed = ok(topic.offsets(tx=reader.id)).json
    assert (fixed["end"], fixed["blockedBy"]) == (found[0], None)


def test_the_end_lies_past_a_last_row_that_is_skipped(client: Client, topic: Topic) -> None:
    ok(topic.publish("a"))
    writer = begin(client)
    ok(topic.publish("skipped", tx=writer.id))
    ok(writer.abort())
    _, skipped = ids(topic.poll())

    end = ok(topic.offsets(isolation="committed")).json["end"]

    assert end >= skipped
    assert end[:20] == skipped[:20]
    assert topic.read({"startFrom": end, "inclusive": False}) == []


def test_a_read_through_the_end_brings_what_is_decided(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.store("a", "b", tx=tx.id))
    ok(topic.publish(tx=tx.id))
    ok(tx.commit())

    end = ok(topic.offsets(isolation="committed")).json["end"]

    ok(topic.publish("later"))
    assert topic.read(through=end) == ["a", "b"]
    assert end == ids(topic.poll())[1]


def test_offsets_follow_a_truncation_and_a_new_generation(letters: Topic) -> None:
    found = ids(letters.poll())
    ok(letters.truncate(found[2]))
    shown = ok(letters.offsets()).json
    assert (shown["earliest"], shown["end"]) == (found[2], found[2])

    ok(letters.delete())
    ok(letters.create())

    shown = ok(letters.offsets()).json
    assert (shown["generation"], shown["earliest"]) == (2, None)


def test_malformed_questions_for_offsets_are_refused(client: Client, topic: Topic) -> None:
    tx = begin(client)

    refused(topic.offsets(isolation="x"), 400, "bad_request", naming="x")
    refused(topic.offsets(isolation="committed", tx=tx.id), 400, "bad_request")
    refused(topic.offsets(limit=5), 400, "bad_request", naming="limit")
    refused(topic.offsets(tx="1000000000000000001"), 404, "transaction_unknown")


def test_a_topic_of_many_pages_has_the_end_of_the_last(new_topic: NewTopic) -> None:
    topic = new_topic()
    last = None
    for _ in range(3):
        last = ok(topic.publish(*["x"] * 5000)).header("Tuff-Last-Id")

    assert ok(topic.offsets()).json["end"] == last
    assert ok(topic.offsets(isolation="committed")).json["end"] == last
