"""Options are checked once, and an error names the option and the remedy."""

import pytest

from pyspark_tuff.errors import OptionError
from pyspark_tuff.options import (
    Edge,
    ReadIsolation,
    batch_read_options,
    batch_write_options,
    stream_read_options,
    stream_write_options,
    topic_named,
)
from tuff.launch import ServerProcess
from tuff.protocol.ids import MessageId, TopicId

ID = MessageId(1_480_000_000_000, 5)


def test_an_unknown_option_is_refused_with_the_most_similar_known_one() -> None:
    with pytest.raises(OptionError, match="startingoffset here; did you mean startingOffsets"):
        batch_read_options({"subscribe": "a", "startingoffset": "earliest"})
    with pytest.raises(OptionError, match="did you mean maxMessagesPerTrigger"):
        stream_read_options({"subscribe": "a", "maxoffsetspertrigger": "5"})
    with pytest.raises(OptionError, match="no known option is similar"):
        batch_write_options({"zzz": "1"})


def test_an_option_of_another_kind_of_read_is_unknown_here() -> None:
    with pytest.raises(OptionError, match="endingoffsets"):
        stream_read_options({"subscribe": "a", "endingoffsets": "latest"})


def test_topics_are_those_of_the_namespace_unless_they_name_another() -> None:
    options = batch_read_options({"subscribe": "b, a,other:c", "namespace": "shop"})

    assert options.topics == (TopicId("other", "c"), TopicId("shop", "a"), TopicId("shop", "b"))


def test_a_batch_starts_at_the_beginning_and_a_stream_at_the_end() -> None:
    batch, stream = batch_read_options({"subscribe": "a"}), stream_read_options({"subscribe": "a"})

    assert (batch.starting.others, batch.isolation) == (Edge.EARLIEST, ReadIsolation.COMMITTED)
    assert (stream.starting.others, stream.isolation) == (Edge.LATEST, ReadIsolation.COMMITTED)


def test_offsets_of_single_topics_are_ids_times_or_ends() -> None:
    given = f'{{"a": "{ID.hex()}", "b": 7, "other:c": "latest"}}'

    boundaries = batch_read_options(
        {"subscribe": "a,b,d,other:c", "startingoffsets": given}
    ).starting

    assert boundaries.of(TopicId("default", "a")) == ID
    assert boundaries.of(TopicId("default", "b")) == 7
    assert boundaries.of(TopicId("other", "c")) is Edge.LATEST
    assert boundaries.of(TopicId("default", "d")) is Edge.EARLIEST


def test_the_url_may_have_the_addresses_of_several_servers(tuff_server: ServerProcess) -> None:
    url = f"http://127.0.0.1:1,{tuff_server.url}"

    connection = batch_read_options({"subscribe": "a", "url": url}).connection

    with connection.connect("tests") as client:
        client.topics.namespaces()
        assert client.url == tuff_server.url


@pytest.mark.parametrize("text", ["1480000000000", "2016-11-24T15:06:40Z"])
def test_a_time_is_ms_or_iso_8601(text: str) -> None:
    options = batch_read_options({"subscribe": "a", "endingtimestamp": text})

    assert options.ending.others == 1_480_000_000_000


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "subscribe"),
        ({"subscribe": "a", "subscribepattern": "b"}, "either subscribe"),
        ({"subscribepattern": "("}, "not a regular expression"),
        ({"subscribe": "a", "startingtimestamp": "2016-11-24T15:06:40"}, "no time zone"),
        ({"subscribe": "a", "startingtimestamp": "yesterday"}, "ISO 8601"),
        ({"subscribe": "a", "startingoffsets": "beginning"}, "'beginning'"),
        ({"subscribe": "a", "startingoffsets": "{"}, "not JSON"),
        ({"subscribe": "a", "startingoffsets": "latest", "startingtimestamp": "1"}, "not both"),
        ({"subscribe": "a", "startingoffsets": '{"b": 1}'}, "names the topic default:b, but subsc"),
        ({"subscribe": "a", "endingoffsets": '{"c:a": 1}'}, "names the topic c:a, but subscribe h"),
        ({"subscribe": "a", "failondataloss": "perhaps"}, "true or false"),
        ({"subscribe": "a", "minpartitions": "0"}, "whole number from 1"),
        ({"subscribe": "a", "isolation": "prefix"}, "snapshot, committed, all"),
        ({"subscribe": "a", "timeout": "0"}, "above 0"),
    ],
)
def test_invalid_read_options_are_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        batch_read_options(given)


def test_a_repeatable_job_has_a_name_and_a_version_and_a_transaction_of_its_own() -> None:
    with pytest.raises(OptionError, match="give txnAppId and txnVersion together"):
        batch_write_options({"txnappid": "job"})
    with pytest.raises(OptionError, match="one of the two"):
        batch_write_options({"txnappid": "job", "txnversion": "1", "transaction": "5"})

    assert batch_write_options({"txnappid": "job", "txnversion": "7"}).version == 7


def test_options_that_spark_adds_to_those_of_a_sink_are_ignored() -> None:
    options = stream_write_options({"topic": "a", "checkpointlocation": "/c", "queryname": "q"})

    assert options.topic == TopicId("default", "a")


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("orders", TopicId("home", "orders")),
        ("shop:orders", TopicId("shop", "orders")),
        ("shop:orders:3", TopicId("shop", "orders:3")),
    ],
)
def test_a_topic_is_named_alone_with_its_namespace_or_as_a_partition(
    name: str, topic: TopicId
) -> None:
    assert topic_named(f" {name} ", "home") == topic
