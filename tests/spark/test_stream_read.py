"""Streaming reads without Spark: offsets, limits, restarts and data loss."""

import json
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

import tuff
from pyspark_tuff import DefaultSource
from pyspark_tuff.errors import DataLossError
from pyspark_tuff.readers import StreamReader
from tests.spark.messages import expire
from tests.spark.without_spark import pickled, source_of
from tuff.launch import ServerProcess

Offset = dict[str, object]
ALL = ReadAllAvailable()


class Streams:
    """Streaming reads of topics of the tests' server."""

    def __init__(self, server: ServerProcess) -> None:
        self._url = server.url
        self._opened: list[Stream] = []

    def open(self, *topics: tuff.TopicId, loads: bool = True, **options: object) -> "Stream":
        """A query; `loads` is whether `load()` asks for the schema, as it does without one."""
        names = ",".join(map(str, topics))
        given = {"url": self._url, "subscribe": names, "startingOffsets": "earliest", **options}
        if "subscribePattern" in given:
            del given["subscribe"]
        source = source_of(**given)
        schema = source.schema() if loads else StructType().add("value", "binary")
        self._opened.append(Stream(source, schema))
        return self._opened[-1]

    def stop(self) -> None:
        for stream in self._opened:
            stream.planner.stop()


class Stream:
    """A query's two readers: the one that plans, and the one that the tasks get."""

    def __init__(self, source: DefaultSource, schema: StructType) -> None:
        self.planner: StreamReader = source.streamReader(schema)
        self._task = pickled(source.streamReader(schema))

    def first(self) -> Offset:
        return through_json(self.planner.initialOffset())

    def next(self, start: Offset, limit: ReadLimit = ALL) -> Offset:
        return through_json(self.planner.latestOffset(start, limit))

    def read(self, start: Offset, end: Offset) -> list[bytes]:
        return [
            value
            for partition in pickled(self.planner.partitions(start, end))
            for batch in self._task.read(partition)
            for value in batch.column("value").to_pylist()
        ]


def through_json(offset: Offset) -> Offset:
    """As Spark keeps it in a checkpoint."""
    return json.loads(json.dumps(offset))


@pytest.fixture
def streams(tuff_server: ServerProcess) -> Iterator[Streams]:
    opened = Streams(tuff_server)
    yield opened
    opened.stop()


def test_batches_take_each_message_once_and_a_batch_can_be_read_again(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    stream = streams.open(tuff_topic)
    begin = stream.first()
    tuff_client.publish(tuff_topic, "1", "2")
    middle = stream.next(begin)
    tuff_client.publish(tuff_topic, "3")
    end = stream.next(middle)

    assert stream.read(begin, middle) == [b"1", b"2"]
    assert stream.read(middle, end) == [b"3"]
    assert streams.open(tuff_topic).read(begin, middle) == [b"1", b"2"]


def test_without_new_messages_the_text_of_the_offset_is_unchanged(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, "1")
    stream = streams.open(tuff_topic)
    end = stream.next(stream.first())

    assert json.dumps(stream.next(end)) == json.dumps(end)
    assert stream.read(end, end) == []


def test_a_batch_ends_before_the_first_undecided_message_and_a_later_one_has_it(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tx = tuff_client.transactions.start()
    tuff_client.publish(tuff_topic, "1")
    tuff_client.publish(tuff_topic, "2", transaction=tx)
    tuff_client.publish(tuff_topic, "3")
    stream = streams.open(tuff_topic)
    begin = stream.first()

    middle = stream.next(begin)
    tuff_client.transactions.commit(tx)
    end = stream.next(middle)

    assert (stream.read(begin, middle), stream.read(middle, end)) == ([b"1"], [b"2", b"3"])


def test_a_stream_with_latest_offsets_starts_at_the_end(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, "old")
    stream = streams.open(tuff_topic, startingOffsets="latest")
    begin = stream.first()
    tuff_client.publish(tuff_topic, "new")

    assert stream.first() == begin
    assert stream.read(begin, stream.next(begin)) == [b"new"]


def test_a_batch_whose_start_is_after_its_end_is_empty(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    stream = streams.open(tuff_topic)
    begin = stream.first()
    tuff_client.publish(tuff_topic, "1")

    assert stream.planner.partitions(stream.next(begin), begin) == []


def test_topics_share_a_limit_and_the_unused_share_of_one_goes_to_others(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    small, large = tuff_topic, tuff.TopicId("tests", f"{tuff_topic.name}-large")
    tuff_client.topics.create(large)
    tuff_client.publish(small, *(["s"] * 10))
    for _ in range(100):
        tuff_client.publish(large, "l")
    stream = streams.open(small, large)
    begin = stream.first()

    middle = stream.next(begin, ReadMaxRows(50))
    end = stream.next(middle, ReadMaxRows(50))

    assert sorted(stream.read(begin, middle)) == [b"l"] * 40 + [b"s"] * 10
    assert stream.read(middle, end) == [b"l"] * 50


def test_a_limit_below_the_number_of_topics_takes_a_message_of_each(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    other = tuff.TopicId("tests", f"{tuff_topic.name}-other")
    tuff_client.topics.create(other)
    for topic in (tuff_topic, other):
        tuff_client.publish(topic, topic.name)
        tuff_client.publish(topic, topic.name)
    stream = streams.open(tuff_topic, other)
    begin = stream.first()

    read = stream.read(begin, stream.next(begin, ReadMaxRows(1)))

    assert set(read) == {tuff_topic.name.encode(), other.name.encode()}


def test_adjacent_messages_of_one_transaction_are_in_one_batch(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tx = tuff_client.transactions.start()
    tuff_client.publish(tuff_topic, "1", "2", transaction=tx)
    tuff_client.store(tuff_topic, "3", "4", transaction=tx)
    tuff_client.publish_stored(tuff_topic, transaction=tx)
    tuff_client.transactions.commit(tx)
    tuff_client.publish(tuff_topic, "5", "6")
    stream = streams.open(tuff_topic)
    begin = stream.first()

    middle = stream.next(begin, ReadMaxRows(1))
    end = stream.next(middle, ReadMaxRows(1))

    assert stream.read(begin, middle) == [b"1", b"2", b"3", b"4"]
    assert stream.read(middle, end) == [b"5"]


def test_available_now_ends_at_the_offsets_of_its_start(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, "1", "2")
    stream = streams.open(tuff_topic)
    begin = stream.first()
    stream.planner.prepareForTriggerAvailableNow()
    tuff_client.publish(tuff_topic, "late")

    middle = stream.next(begin, ReadMaxRows(10))

    assert stream.read(begin, middle) == [b"1", b"2"]
    assert stream.next(middle, ReadMaxRows(10)) == middle


def test_a_topic_that_joins_a_pattern_is_read_from_its_beginning(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    options = {"namespace": "tests", "subscribePattern": f"{tuff_topic.name}-.*"}
    stream = streams.open(**options, startingOffsets="latest")
    begin = stream.first()
    joined = tuff.TopicId("tests", f"{tuff_topic.name}-joined")
    tuff_client.topics.create(joined)
    tuff_client.publish(joined, "first")

    assert stream.read(begin, stream.next(begin)) == [b"first"]


def test_a_recreated_topic_is_reported_as_data_loss(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, "1", "2")
    begin = (stream := streams.open(tuff_topic)).first()
    end = stream.next(begin)
    tuff_client.topics.delete(tuff_topic)
    tuff_client.topics.create(tuff_topic)
    tuff_client.publish(tuff_topic, "new")

    lenient = streams.open(tuff_topic, failOnDataLoss="false")
    with pytest.raises(DataLossError, match="deleted and created again: its generation is now 2"):
        stream.next(end)
    with pytest.raises(DataLossError, match="created again before this batch"):
        stream.read(begin, end)
    assert lenient.read(begin, end) == []
    assert lenient.read(end, lenient.next(end)) == [b"new"]


def test_a_deleted_topic_is_reported_as_data_loss(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, "1")
    begin = (stream := streams.open(tuff_topic)).first()
    end = stream.next(begin)
    tuff_client.topics.delete(tuff_topic)

    with pytest.raises(DataLossError, match="was deleted"):
        stream.next(end)
    with pytest.raises(DataLossError, match="was deleted before"):
        stream.read(begin, end)
    assert streams.open(tuff_topic, failOnDataLoss="false").next(end)["topics"] == {}
    available_now = streams.open(tuff_topic, loads=False)
    available_now.planner.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="which was read before, was deleted"):
        available_now.next(end)


def test_a_missing_topic_that_was_never_read_is_not_found(
    streams: Streams, tuff_topic: tuff.TopicId
) -> None:
    mistyped = tuff.TopicId(tuff_topic.namespace, f"{tuff_topic.name}x")
    stream = streams.open(mistyped, loads=False)

    stream.planner.prepareForTriggerAvailableNow()
    for ask in (stream.first, lambda: stream.next({"topics": {}, "v": "1"})):
        with pytest.raises(
            tuff.TopicNotFoundError, match=f"did you mean {tuff_topic.name}[?]"
        ) as told:
            ask()
        assert "failOnDataLoss" not in told.value.detail
    lenient = streams.open(tuff_topic, mistyped, failOnDataLoss="false")
    assert list(lenient.first()["topics"]) == [str(tuff_topic)]


def test_a_topic_that_the_query_no_longer_names_is_no_data_loss(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    other = tuff.TopicId("tests", f"{tuff_topic.name}-other")
    tuff_client.topics.create(other)
    end = (first := streams.open(tuff_topic, other)).next(first.first())
    tuff_client.topics.delete(other)

    assert list(streams.open(tuff_topic).next(end)["topics"]) == [str(tuff_topic)]


def test_a_stream_reports_its_position_and_holds_later_messages(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    ids = [tuff_client.publish(tuff_topic, f"{number}").ids[0] for number in range(2)]
    stream = streams.open(tuff_topic, positionName="copies", holdName="copies", holdMaxAge=60)
    begin = stream.first()

    middle = stream.next(begin, ReadMaxRows(1))
    before = tuff_client.positions.list(tuff_topic)
    stream.next(middle)

    (hold,) = tuff_client.holds.list(tuff_topic)
    assert list(before) == []
    assert tuff_client.positions.get(tuff_topic, "copies").position == ids[0]
    assert (hold.name, hold.first) == ("copies", ids[0])


def test_a_topic_without_messages_for_longer_than_its_ttl_has_no_data_loss(
    streams: Streams, tuff_client: tuff.Client
) -> None:
    topic = tuff.TopicId("tests", "quiet")
    tuff_client.topics.create(topic, ttl=1)
    tuff_client.publish(topic, "old")
    begin = (stream := streams.open(topic)).first()
    middle = stream.next(begin)
    expire(tuff_client, topic)

    stream.next(middle)
    tuff_client.publish(topic, "new")
    end = stream.next(middle)

    assert stream.read(middle, end) == [b"new"]
    expire(tuff_client, topic)
    with pytest.raises(DataLossError, match="may have expired"):
        streams.open(topic).read(middle, end)


def partitioned(client: tuff.Client, topic: tuff.TopicId, count: int) -> None:
    client.topics.update(topic, partitions=count)


def test_partitions_that_are_added_are_read_from_their_beginning(
    streams: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    """Planned while the topic had one partition, a batch is read again when it has three."""
    stream = streams.open(tuff_topic, startingOffsets="latest")
    begin = stream.first()
    tuff_client.publish(tuff_topic, "0")
    middle = stream.next(begin)
    partitioned(tuff_client, tuff_topic, 3)
    for number in range(3):
        tuff_client.publish(tuff_topic.partition(number), f"{number}, new")

    end = stream.next(middle)

    assert list(middle["topics"]) == [str(tuff_topic)]
    names = [str(tuff_topic), f"{tuff_topic}:1", f"{tuff_topic}:2"]
    assert list(end["topics"]) == names
    assert streams.open(tuff_topic).read(begin, middle) == [b"0"]
    assert sorted(stream.read(middle, end)) == [b"0, new", b"1, new", b"2, new"]
    assert json.dumps(stream.next(end)) == json.dumps(end)


def test_a_retired_partition_is_deleted_without_data_loss_if_all_of_it_was_read(
    streams: Streams, tuff_client: tuff.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = tuff.TopicId("tests", "shrinking")
    tuff_client.topics.create(topic, partitions=2)
    tuff_client.publish(topic.partition(1), "1")
    stream = streams.open(topic)
    begin = stream.first()
    end = stream.next(begin)
    partitioned(tuff_client, topic, 1)
    retired = stream.next(end)

    # The server deletes the partition once its messages are gone.
    monkeypatch.setattr("pyspark_tuff.readers.partitions_of", lambda _, of: [of.partition(0)])

    assert (retired, stream.read(begin, end)) == (end, [b"1"])
    assert list(stream.next(end)["topics"]) == [str(topic)]
    for other, start in ((stream, begin), (streams.open(topic), end)):
        with pytest.raises(DataLossError, match=f"{topic}:1, which was read before, was deleted"):
            other.next(start)
