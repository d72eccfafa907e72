"""Batch writes without Spark, with the objects that Spark uses: attempts, commits, aborts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from traceback import extract_tb

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import tuff
from messaging.model.partition_of_key import partition_index
from pyspark_tuff import lease_renewal
from pyspark_tuff.errors import OptionError
from pyspark_tuff.write_transactions import TaskResult
from pyspark_tuff.writers import FLUSH_COUNT, BatchWriter
from tests.spark.messages import read
from tests.spark.without_spark import pickled, rows, run_task, source_of
from tuff.launch import ServerProcess

ROWS = StructType().add("value", "binary")
NAMED_ROWS = StructType().add("topic", "string").add("value", "string")


class Writes:
    """Writes to the tests' server, their tasks run one by one as the test says."""

    def __init__(self, server: ServerProcess) -> None:
        self._url = server.url

    def begin(
        self, schema: StructType = ROWS, *, overwrite: bool = False, **options: object
    ) -> BatchWriter:
        return pickled(source_of(url=self._url, **options).writer(schema, overwrite))

    def attempt(self, writer: BatchWriter, partition: int, *batches: pa.RecordBatch) -> TaskResult:
        return run_task(writer, iter(batches), partition=partition)


@pytest.fixture
def write(tuff_server: ServerProcess) -> Writes:
    return Writes(tuff_server)


def open_transactions(client: tuff.Client) -> Sequence[int]:
    return [each.transaction_id for each in client.transactions.overview().in_progress]


def test_rows_appear_at_the_commit_in_the_order_of_partitions(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    writer = write.begin(topic=tuff_topic)
    second = write.attempt(writer, 1, rows(b"c"), rows(b"d"))
    first = write.attempt(writer, 0, rows(b"a", b"b"))
    before = read(tuff_client, tuff_topic, isolation="all")

    writer.commit([second, first])

    assert (before, read(tuff_client, tuff_topic)) == ([], [b"a", b"b", b"c", b"d"])
    assert open_transactions(tuff_client) == []


def test_messages_of_a_losing_attempt_are_never_visible(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    writer = write.begin(topic=tuff_topic)
    loser = write.attempt(writer, 0, rows(b"a", b"b"))
    winner = write.attempt(writer, 0, rows(b"a", b"b"))

    writer.commit([winner])

    pointers = {part.pointer for each in (loser, winner) for part in each.parts}
    assert len(pointers) == 2
    assert read(tuff_client, tuff_topic, isolation="all") == [b"a", b"b"]


def test_large_partitions_use_several_requests_and_pointers_and_keep_their_order(
    write: Writes,
    tuff_client: tuff.Client,
    tuff_topic: tuff.TopicId,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark_tuff.writers.PART_COUNT", 2 * FLUSH_COUNT)
    values = [b"%d" % number for number in range(3 * FLUSH_COUNT + 1)]
    writer = write.begin(topic=tuff_topic)

    message = write.attempt(writer, 0, rows(*values[:3]), rows(*values[3:]))
    writer.commit([message])

    assert [sum(part.counts.values()) for part in message.parts] == [10_000, 5_001]
    assert read(tuff_client, tuff_topic) == values


def test_a_column_names_the_topic_and_an_option_wins_over_it(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    other = tuff.TopicId("tests", f"{tuff_topic.name}-other")
    tuff_client.topics.create(other)
    batch = pa.RecordBatch.from_pydict(
        {"topic": [str(tuff_topic), other.name, str(tuff_topic)], "value": ["1", "2", "3"]}
    )

    by_column = write.begin(NAMED_ROWS, namespace="tests")
    by_column.commit([write.attempt(by_column, 0, batch)])
    by_option = write.begin(NAMED_ROWS, topic=other)
    by_option.commit([write.attempt(by_option, 0, batch)])

    assert read(tuff_client, tuff_topic) == [b"1", b"3"]
    assert read(tuff_client, other) == [b"2", b"1", b"2", b"3"]


def test_messages_of_an_aborted_write_are_never_visible(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    writer = write.begin(topic=tuff_topic)
    message = write.attempt(writer, 0, rows(b"a"))

    writer.abort([message, None])

    assert read(tuff_client, tuff_topic, isolation="all") == []
    assert open_transactions(tuff_client) == []
    with pytest.raises(tuff.errors.TransactionInvalidatedError):
        write.attempt(writer, 1, rows(b"late"))


def test_an_abort_after_a_commit_does_nothing(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    writer = write.begin(topic=tuff_topic)
    message = write.attempt(writer, 0, rows(b"a"))
    writer.commit([message])

    writer.abort([message])

    assert read(tuff_client, tuff_topic) == [b"a"]


def test_a_joined_transaction_is_left_to_its_owner(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    kept, undone = (tuff_client.transactions.start("long") for _ in range(2))
    for outer, value in ((kept, b"kept"), (undone, b"undone")):
        writer = write.begin(topic=tuff_topic, transaction=outer.transaction_id)
        message = write.attempt(writer, 0, rows(value))
        writer.commit([message])
        writer.abort([message])
    before = read(tuff_client, tuff_topic)

    tuff_client.transactions.commit(kept)
    tuff_client.transactions.abort(undone)

    assert (before, read(tuff_client, tuff_topic)) == ([], [b"kept"])


def test_an_ended_or_unknown_transaction_is_not_joined(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    ended = tuff_client.transactions.start("long")
    tuff_client.transactions.commit(ended)

    with pytest.raises(OptionError, match="is committed, and a write can only join a transaction"):
        write.begin(topic=tuff_topic, transaction=ended.transaction_id)
    with pytest.raises(tuff.errors.TransactionUnknownError, match="no transaction 12345"):
        write.begin(topic=tuff_topic, transaction=12345)


def test_a_task_without_rows_takes_no_pointer(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    writer = write.begin(topic=tuff_topic)

    message = write.attempt(writer, 0)
    writer.commit([message])

    assert (message.parts, read(tuff_client, tuff_topic)) == ((), [])


def test_a_task_renews_the_lease_while_it_computes(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    writer = write.begin(topic=tuff_topic, lease="6")
    lease_renewal.stop(writer._renewal)  # as the driver does
    transaction = writer._job.transaction
    first = tuff_client.transactions.get(transaction).lease_expires_at_ms

    def slow() -> Iterator[pa.RecordBatch]:
        while tuff_client.transactions.get(transaction).lease_expires_at_ms == first:
            Event().wait(0.05)
        yield rows(b"a")

    writer.commit([run_task(writer, slow())])

    assert read(tuff_client, tuff_topic) == [b"a"]


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        (
            StructType().add("value", "long"),
            {"topic": "a"},
            "column value has the type bigint, and a write takes binary or string",
        ),
        (
            StructType().add("value", "string").add("topic", "long"),
            {},
            "column topic has the type bigint, and a write takes string",
        ),
        (StructType().add("payload", "binary"), {"topic": "a"}, "column value"),
        (ROWS, {}, "option topic"),
        (
            StructType().add("value", "binary").add("offset", "long"),
            {"topic": "a"},
            "messages have no offset",
        ),
        (
            StructType().add("value", "binary").add("key", "binary"),
            {"topic": "a", "includeAttributes": "false"},
            "messages have no key",
        ),
        (
            StructType().add("value", "binary").add("tags", "string"),
            {"topic": "a"},
            "column tags has the type string, and a write takes array<string>",
        ),
    ],
)
def test_rows_with_other_columns_than_messages_are_refused(
    write: Writes, schema: StructType, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        write.begin(schema, **options)


def test_extra_columns_are_ignored_on_request_and_an_overwrite_is_refused(
    write: Writes, tuff_topic: tuff.TopicId
) -> None:
    extra = StructType().add("value", "binary").add("key", "binary")

    write.begin(extra, topic=tuff_topic, ignoreExtraColumns="true").abort([])
    with pytest.raises(
        OptionError, match=r"mode\('overwrite'\) is refused; use \.mode\('append'\)"
    ):
        write.begin(topic=tuff_topic, overwrite=True)


def test_a_write_to_a_missing_topic_fails_before_it_begins_anything(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    open_before = open_transactions(tuff_client)
    mistyped = tuff.TopicId(tuff_topic.namespace, f"{tuff_topic.name}x")

    with pytest.raises(tuff.TopicNotFoundError, match=f"did you mean {tuff_topic.name}[?]"):
        write.begin(topic=mistyped)
    with pytest.raises(tuff.TopicNotFoundError, match="which the option topic names"):
        write.begin(topic=mistyped, txnAppId="job", txnVersion="1")

    assert open_transactions(tuff_client) == open_before


def test_an_error_that_spark_shows_has_no_frames_of_the_client(
    write: Writes, tuff_topic: tuff.TopicId
) -> None:
    """One frame is of the method that Spark calls, and pytest adds the test's own."""
    with pytest.raises(tuff.TopicNotFoundError) as planned:
        write.begin(topic=f"{tuff_topic}x")
    writer = write.begin(NAMED_ROWS)
    with pytest.raises(tuff.TopicNotFoundError) as stored:
        write.attempt(
            writer, 0, pa.RecordBatch.from_pydict({"topic": [f"{tuff_topic}x"], "value": ["1"]})
        )
    writer.abort([])

    for told in (planned, stored):
        files = [Path(frame.filename).name for frame in extract_tb(told.value.__traceback__)]
        assert [
            each for each in files if each not in {"test_batch_write.py", "without_spark.py"}
        ] == ["errors.py"]
        assert (told.value.__cause__, told.value.__context__) == (None, None)


def test_a_null_value_is_refused(write: Writes, tuff_topic: tuff.TopicId) -> None:
    writer = write.begin(topic=tuff_topic)

    with pytest.raises(tuff.errors.BadRequestError, match="has a null"):
        write.attempt(writer, 0, pa.RecordBatch.from_pydict({"value": pa.array([None], "binary")}))
    writer.abort([])


ATTRIBUTES = pa.schema(
    [
        ("value", pa.string()),
        ("key", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)
ATTRIBUTE_ROWS = from_arrow_schema(ATTRIBUTES)
FULL = {"value": "1", "key": "k", "tags": ["eu"], "headers": [{"name": "a", "value": b"\x00"}]}
EMPTY = {"value": "2", "key": None, "tags": [], "headers": None}


def attribute_rows(*given: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(given), schema=ATTRIBUTES)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(b"k", ("eu",), (("a", b"\x00"),)), (None, (), ())]),
        # As before there were attributes.
        ({"ignoreExtraColumns": "true"}, [(None, (), ())] * 2),
    ],
)
def test_columns_with_attributes_are_written(
    write: Writes,
    tuff_client: tuff.Client,
    tuff_topic: tuff.TopicId,
    options: dict[str, str],
    expected: list[object],
) -> None:
    writer = write.begin(ATTRIBUTE_ROWS, topic=tuff_topic, **options)

    writer.commit([write.attempt(writer, 0, attribute_rows(FULL, EMPTY))])

    found = tuff_client.poll(tuff_topic)
    assert [message.payload for message in found] == [b"1", b"2"]
    assert [(each.key, each.tags, each.headers) for each in found] == expected


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"tags": [None]}, "column tags has a null"),
        ({"headers": [{"name": "a", "value": None}]}, "column headers has a null"),
        ({"tags": ["two words"]}, "a tag has 1 to 64 characters"),
    ],
)
def test_attributes_that_no_message_can_have_fail_the_task(
    write: Writes, tuff_topic: tuff.TopicId, wrong: dict[str, object], reason: str
) -> None:
    writer = write.begin(ATTRIBUTE_ROWS, topic=tuff_topic)

    with pytest.raises(tuff.errors.BadRequestError, match=reason):
        write.attempt(writer, 0, attribute_rows(FULL | wrong))

    writer.abort([])


def test_rows_for_a_topic_with_several_partitions_are_divided_by_key(
    write: Writes, tuff_client: tuff.Client
) -> None:
    topic = tuff.TopicId("tests", "divided-rows")
    tuff_client.topics.create(topic, partitions=3)
    writer = write.begin(ATTRIBUTE_ROWS, topic=topic)
    given = [FULL | {"value": str(number), "key": f"k{number % 7}"} for number in range(70)]

    tasks = [write.attempt(writer, at, attribute_rows(*given[at::2])) for at in (0, 1)]
    writer.commit(tasks)

    found = {number: tuff_client.poll(topic.partition(number)) for number in range(3)}
    for number, messages in found.items():
        assert {partition_index(each.key or b"", 3) for each in messages} == {number}
    assert sorted(int(each.payload) for poll in found.values() for each in poll) == [*range(70)]
