"""Epochs that are written and repeated without Spark, with the writers that Spark uses."""

from collections.abc import Callable, Sequence

import pytest
from pyspark import SparkFiles
from pyspark.sql.types import StructType

import tuff
from pyspark_tuff import DefaultSource
from pyspark_tuff.errors import UnknownEpochError
from pyspark_tuff.writers import BATCH_ID, QUERY_ID, RUN_ID, BatchWriter, StreamWriter
from tests.spark.replays import FAILURES, read, replay
from tests.spark.without_spark import rows, run_task, source_of, task_properties
from tuff.launch import ServerProcess

ROWS = StructType().add("value", "binary")


@pytest.fixture
def source(tuff_server: ServerProcess, tuff_topic: tuff.TopicId) -> DefaultSource:
    return source_of(url=tuff_server.url, topic=tuff_topic)


def stream_writer(source: DefaultSource) -> StreamWriter:
    return source.streamWriter(ROWS, overwrite=False)


def run_epoch(source: DefaultSource, value: bytes, *, query: str, epoch: int, run: str) -> None:
    properties = task_properties(query=query, epoch=epoch, run=run)
    message = run_task(stream_writer(source), iter([rows(value)]), properties=properties)
    stream_writer(source).commit([message], epoch)


def test_after_any_failure_of_a_run_the_next_one_writes_each_message_once(
    tuff_server: ServerProcess,
) -> None:
    assert replay(tuff_server.url, [*FAILURES, *FAILURES]) == 2 * 2 * 10 * len(FAILURES)


def test_a_checkpoint_that_is_older_than_its_sink_is_refused(
    source: DefaultSource, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    for epoch in (0, 1):
        run_epoch(source, b"%d" % epoch, query="older", epoch=epoch, run="first")

    with pytest.raises(tuff.TuffError) as refused:
        run_epoch(source, b"again", query="older", epoch=0, run="second")

    assert refused.value.code == "sink_epoch_superseded"
    assert read(tuff_client, tuff_topic) == [b"0", b"1"]


@pytest.mark.parametrize("missing", [BATCH_ID, QUERY_ID, RUN_ID])
def test_a_task_without_a_batch_a_query_or_a_run_id_fails(
    source: DefaultSource, missing: str
) -> None:
    properties = task_properties(query="q", epoch=0, run="r")
    del properties[missing]

    with pytest.raises(UnknownEpochError, match=missing):
        run_task(stream_writer(source), iter([rows(b"a")]), properties=properties)


def test_a_commit_of_a_batch_with_results_of_another_batch_is_refused(
    source: DefaultSource,
) -> None:
    properties = task_properties(query="mixed", epoch=3, run="r")
    message = run_task(stream_writer(source), iter([rows(b"a")]), properties=properties)

    with pytest.raises(UnknownEpochError, match="batch 4"):
        stream_writer(source).commit([message], 4)
    with pytest.raises(UnknownEpochError, match="no job"):
        stream_writer(source).commit([], 3)
    stream_writer(source).abort([message], 3)


def test_an_abort_ends_the_transaction_of_this_run_and_of_no_other(
    source: DefaultSource, tuff_client: tuff.Client
) -> None:
    def store(run: str) -> Sequence[object]:
        properties = task_properties(query="aborted", epoch=0, run=run)
        return [run_task(stream_writer(source), iter([rows(b"a")]), properties=properties)]

    first = store("first")
    second = store("second")
    stream_writer(source).abort(first, 0)
    in_progress = tuff_client.sinks.get("aborted").state
    stream_writer(source).abort([*second, None], 0)

    assert (in_progress, tuff_client.sinks.get("aborted").state) == ("in_progress", "invalid")


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this process appear as a worker process of the given driver."""

    def move(driver: str) -> None:
        monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
        monkeypatch.setattr(SparkFiles, "_root_directory", f"/files/spark-{driver}")

    return move


def test_an_abort_without_task_results_ends_only_runs_of_this_driver(
    tuff_server: ServerProcess,
    tuff_client: tuff.Client,
    tuff_topic: tuff.TopicId,
    on_host: Callable[[str], None],
) -> None:
    def begin(query: str) -> DefaultSource:
        options = {"url": tuff_server.url, "topic": tuff_topic}
        source = source_of(**options, checkpointLocation=f"/checkpoints/{query}")
        properties = task_properties(query=query, epoch=0, run="r")
        run_task(stream_writer(source), iter([rows(b"a")]), properties=properties)
        return source

    def states() -> list[str]:
        return [tuff_client.sinks.get(query).state for query in ("orphaned", "beside")]

    on_host("first")
    source, other = begin("orphaned"), begin("beside")
    on_host("second")
    stream_writer(source).abort([None], 0)
    of_another_driver = states()
    on_host("first")
    stream_writer(source).abort([None], 1)
    of_another_batch = states()
    stream_writer(source).abort([None], 0)

    assert of_another_driver == of_another_batch == ["in_progress", "in_progress"]
    assert states() == ["invalid", "in_progress"]
    stream_writer(other).abort([], 0)


def batch_writer(server: ServerProcess, topic: tuff.TopicId, *, version: int) -> BatchWriter:
    source = source_of(url=server.url, topic=topic, txnAppId="nightly/1", txnVersion=version)
    writer = source.writer(ROWS, False)
    assert isinstance(writer, BatchWriter)
    return writer


def test_a_repeated_job_writes_nothing_and_its_next_version_does(
    tuff_server: ServerProcess, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    for version in (1, 1, 2):
        writer = batch_writer(tuff_server, tuff_topic, version=version)
        writer.commit([run_task(writer, iter([rows(b"%d" % version)]))])

    assert read(tuff_client, tuff_topic) == [b"1", b"2"]


def test_a_failed_job_is_completed_by_its_next_run(
    tuff_server: ServerProcess, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    failed = batch_writer(tuff_server, tuff_topic, version=7)
    run_task(failed, iter([rows(b"lost")]))
    failed.abort([None])
    again = batch_writer(tuff_server, tuff_topic, version=7)
    again.commit([run_task(again, iter([rows(b"kept")]))])

    assert read(tuff_client, tuff_topic) == [b"kept"]


def test_an_abort_before_any_task_came_does_nothing(
    tuff_server: ServerProcess, tuff_topic: tuff.TopicId
) -> None:
    job = {"txnAppId": "without-tasks", "txnVersion": 1}
    source = source_of(url=tuff_server.url, topic=tuff_topic, **job)

    source.writer(ROWS, False).abort([])
