"""Batch reads without Spark, with the readers that Spark uses."""

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

import tuff
from pyspark_tuff.errors import DataLossError, OptionError
from pyspark_tuff.readers import BatchReader
from tests.spark.messages import expire
from tests.spark.without_spark import pickled, source_of
from tuff.connectors import PublishEntry
from tuff.launch import ServerProcess


class Reads:
    """Batch reads of topics of the tests' server."""

    def __init__(self, server: ServerProcess) -> None:
        self._url = server.url

    def reader(self, *topics: tuff.TopicId, **options: object) -> BatchReader:
        names = ",".join(map(str, topics))
        source = source_of(**{"url": self._url, "subscribe": names, **options})
        return pickled(source.reader(schema=source.schema()))

    def of(self, *topics: tuff.TopicId, **options: object) -> list[bytes]:
        return values(self.reader(*topics, **options))


def values(reader: BatchReader) -> list[bytes]:
    found: list[bytes] = []
    for partition in pickled(reader.partitions()):
        for batch in reader.read(partition):
            found += batch.column("value").to_pylist()
    return found


@pytest.fixture
def read(tuff_server: ServerProcess) -> Reads:
    return Reads(tuff_server)


def test_filters_are_never_pushed() -> None:
    """With pushed filters Spark 4.3 returns wrong rows if a DataFrame is used twice."""
    assert BatchReader.pushFilters is DataSourceReader.pushFilters


def test_messages_come_in_order_however_small_the_polls_are(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    numbers = [b"%d" % number for number in range(100)]
    tuff_client.publish(tuff_topic, *numbers)

    assert read.of(tuff_topic, fetchSize=7) == numbers


def test_a_topic_is_cut_into_tasks_that_have_each_message_once_and_in_order(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    for first in range(0, 200, 10):
        tuff_client.publish(tuff_topic, *[b"%d" % number for number in range(first, first + 10)])

    reader = read.reader(tuff_topic, minPartitions=4)

    assert len(reader.partitions()) == 4
    assert values(reader) == [b"%d" % number for number in range(200)]


def test_many_topics_share_tasks(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    topics = [tuff.TopicId("tests", f"{tuff_topic.name}-{number}") for number in range(10)]
    for topic in topics:
        tuff_client.topics.create(topic)
        tuff_client.publish(topic, topic.name)

    reader = read.reader(*topics, minPartitions=1)

    assert len(reader.partitions()) == 4
    assert values(reader) == [topic.name.encode() for topic in topics]


def test_a_row_has_the_write_pointer_if_the_option_asks_for_it(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tx = tuff_client.transactions.start()
    tuff_client.publish(tuff_topic, "with", transaction=tx)
    tuff_client.transactions.commit(tx)
    tuff_client.publish(tuff_topic, "without")

    reader = read.reader(tuff_topic, includeTransaction="true")
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]

    pointers = [pointer for batch in batches for pointer in batch.column("write_pointer")]
    assert [each.as_py() for each in pointers] == [tx.write_pointer, None]


def test_messages_published_after_planning_are_not_read(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, "before")
    reader = read.reader(tuff_topic)
    partitions = reader.partitions()

    tuff_client.publish(tuff_topic, "after")

    assert [b.column("value").to_pylist() for b in reader.read(partitions[0])] == [[b"before"]]


def test_a_transaction_that_commits_between_view_and_plan_is_in_no_topic(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    reader = read.reader(tuff_topic, isolation="snapshot")
    tuff_client.transactions.run([PublishEntry(topic=tuff_topic, payloads=[b"late"])])

    assert values(reader) == []


def test_each_isolation_has_its_messages_and_waits_for_no_transaction(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    transactions = tuff_client.transactions
    committed, undone, undecided = (transactions.start() for _ in range(3))
    tuff_client.publish(tuff_topic, "committed", transaction=committed)
    tuff_client.publish(tuff_topic, "undone", transaction=undone)
    tuff_client.publish(tuff_topic, "undecided", transaction=undecided)
    tuff_client.publish(tuff_topic, "behind")
    transactions.commit(committed)
    transactions.abort(undone)

    # In one task: a task that waited before the undecided message would miss the last one.
    names = ("snapshot", "committed", "all")
    found = [read.of(tuff_topic, isolation=each, minPartitions=1) for each in names]
    transactions.abort(undecided)

    assert found == [
        [b"committed", b"behind"],
        [b"committed"],
        [b"committed", b"undone", b"undecided", b"behind"],
    ]


def test_a_read_includes_its_starting_timestamp_and_excludes_its_ending_timestamp(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    ids = [tuff_client.publish(tuff_topic, f"{number}").ids[0] for number in range(3)]
    first, last = (ids[at].publish_timestamp_ms for at in (0, 2))

    between = read.of(tuff_topic, startingTimestamp=first, endingTimestamp=last)
    from_last = read.of(tuff_topic, startingTimestamp=last)

    expected = [b"%d" % at for at in range(3) if first <= ids[at].publish_timestamp_ms < last]
    assert between == expected
    assert b"2" in from_last


def test_the_end_of_one_read_is_the_start_of_the_next(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, "1", "2")
    middle = tuff_client.offsets(tuff_topic).end
    tuff_client.publish(tuff_topic, "3")
    place = f'{{"{tuff_topic}": "{middle.hex()}"}}'

    assert read.of(tuff_topic, endingOffsets=place) == [b"1", b"2"]
    assert read.of(tuff_topic, startingOffsets=place) == [b"3"]
    assert read.of(tuff_topic, startingOffsets="latest") == []


def test_topics_of_a_pattern_are_those_whose_whole_name_matches(
    read: Reads, tuff_server: ServerProcess, tuff_client: tuff.Client
) -> None:
    for name in ("p-1", "p-2", "p-22"):
        topic = tuff.TopicId("patterns", name)
        tuff_client.topics.create(topic)
        tuff_client.publish(topic, name)
    source = source_of(url=tuff_server.url, namespace="patterns", subscribePattern="p-.")

    assert sorted(values(source.reader(source.schema()))) == [b"p-1", b"p-2"]


def test_a_missing_topic_is_reported_when_spark_asks_for_the_schema(
    tuff_server: ServerProcess, tuff_topic: tuff.TopicId
) -> None:
    options = {"url": tuff_server.url, "subscribe": f"{tuff_topic},{tuff_topic}x"}

    with pytest.raises(
        tuff.TopicNotFoundError,
        match=f"no topic {tuff_topic}x, which the option subscribe names; did you mean "
        f"{tuff_topic.name}[?]",
    ):
        source_of(**options).schema()
    lenient = source_of(**options, failOnDataLoss="false")
    assert "value" in lenient.schema().fieldNames()


def test_an_invalid_option_is_reported_when_spark_asks_for_the_schema() -> None:
    source = source_of(subscribe="a", minPartitions="many")

    with pytest.raises(OptionError, match="minPartitions must be a whole number"):
        source.schema()


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (StructType().add("offset", "string"), "no column offset"),
        (StructType().add("key", "binary"), "no column key; set includeAttributes=true for it"),
        (
            StructType().add("value", "string"),
            "column value has the type string in this schema, but a read returns it as binary",
        ),
    ],
)
def test_a_schema_that_is_no_projection_is_refused(
    tuff_server: ServerProcess, schema: StructType, sentence: str
) -> None:
    source = source_of(url=tuff_server.url, subscribe="a")

    with pytest.raises(OptionError, match=sentence):
        source.reader(schema)


def test_messages_that_expire_before_they_are_read_are_reported_as_data_loss(
    read: Reads, tuff_client: tuff.Client
) -> None:
    topic = tuff.TopicId("tests", "expired-before-the-read")
    tuff_client.topics.create(topic, ttl=1)
    partitions: list[list[object]] = [[]]
    while not all(partitions):  # a slow machine may not plan within the second they live
        first = tuff_client.publish(topic, "1", "2").ids[0]
        planned = [read.reader(topic, failOnDataLoss=fails) for fails in ("true", "false")]
        partitions = [list(each.partitions()) for each in planned]
    expire(tuff_client, topic)
    tuff_client.publish(topic, "3")

    with pytest.raises(DataLossError, match="expired after the read was planned"):
        list(planned[0].read(partitions[0][0]))
    assert list(planned[1].read(partitions[1][0])) == []
    with pytest.raises(DataLossError, match="may have expired before"):
        read.of(topic, startingOffsets=f'{{"{topic}": "{first.hex()}"}}')
    assert read.of(topic) == [b"3"]


WITH_ATTRIBUTES = tuff.NewMessage(
    "1", key=b"k\xff", tags=["eu", "paid"], headers=[("a", b"\x00"), ("a", b"")]
)


def test_attributes_are_columns_if_they_are_included(
    read: Reads, tuff_server: ServerProcess, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, WITH_ATTRIBUTES, "2")
    options = {"url": tuff_server.url, "subscribe": tuff_topic}
    names = source_of(**options).schema().fieldNames()
    source = source_of(**options, includeAttributes="true")
    schema = StructType().add("headers", source.schema()["headers"].dataType).add("key", "binary")

    rows = tables(read.reader(tuff_topic, includeAttributes="true"))
    projected = tables(source.reader(schema))

    assert names == ["topic", "id", "value", "timestamp", "generation"]
    assert [(each["key"], each["tags"], each["headers"]) for each in rows] == [
        (
            b"k\xff",
            ["eu", "paid"],
            [{"name": "a", "value": b"\x00"}, {"name": "a", "value": b""}],
        ),
        (None, None, None),
    ]
    assert projected == [{name: row[name] for name in ("headers", "key")} for row in rows]


def tables(reader: BatchReader) -> list[dict[str, object]]:
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def test_tags_select_the_messages_of_a_read(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, *["other"] * 50, WITH_ATTRIBUTES, *["other"] * 50)

    assert read.of(tuff_topic, tags="us|eu,paid", fetchSize=7) == [b"1"]
    assert read.of(tuff_topic, tags="us") == []
    with pytest.raises(OptionError, match="tags 'a b': a tag has 1 to 64 characters"):
        read.of(tuff_topic, tags="a b")


def test_a_topic_is_read_with_all_its_partitions(read: Reads, tuff_client: tuff.Client) -> None:
    topic = tuff.TopicId("tests", "in-partitions")
    tuff_client.topics.create(topic, partitions=3)
    ids = [tuff_client.publish(topic.partition(n), f"{n}").ids[0] for n in range(3)]
    tuff_client.topics.update(topic, partitions=2)
    of_one, start = f"{topic}:1", f'{{"{topic}:1": "{ids[1].hex()}"}}'

    rows = tables(read.reader(topic, namespace="tests"))

    assert sorted((row["topic"], row["value"]) for row in rows) == [
        (topic.name, b"0"), (topic.name, b"1"), (topic.name, b"2"),
    ]  # fmt: skip
    assert [row["topic"] for row in tables(read.reader(topic.partition(1)))] == [of_one]
    assert sorted(read.of(topic, startingOffsets=start)) == [b"0", b"2"]
    with pytest.raises(OptionError, match=f"and the partition {of_one}; leave one of the two out"):
        read.of(topic, topic.partition(1))
