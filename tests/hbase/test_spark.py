"""Spark over topics whose messages are in HBase, and over HBase's rows themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tuff
from messaging.engines.hbase.settings import HBaseSettings
from tests.hbase.deployments import SALTS, deploy, server_settings, settings_of
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.http.process import ServerProcess, serve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = NEEDS_HBASE

ORDERS, COPIES = (tuff.TopicId("spark", name) for name in ("orders", "copies"))


@pytest.fixture(scope="module")
def place(hbase: LocalHBase) -> HBaseSettings:
    return deploy(settings_of(hbase.ports))


@pytest.fixture(scope="module")
def hbase_server(
    place: HBaseSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("server"), *server_settings(place)) as running:
        yield running


@pytest.fixture
def hbase_client(hbase_server: ServerProcess) -> Iterator[tuff.Client]:
    with tuff.Client(hbase_server.url) as client:
        yield client


def test_spark_reads_and_writes_topics_in_hbase(
    spark: "SparkSession", hbase_server: ServerProcess, hbase_client: tuff.Client, tmp_path: Path
) -> None:
    payloads = [b"order %d" % number for number in range(3_000)]
    for topic in (ORDERS, COPIES):
        hbase_client.topics.create(topic)
    hbase_client.publish(ORDERS, *payloads)
    options = {"url": hbase_server.url, "namespace": ORDERS.namespace}

    read = spark.read.format("tuff").options(**options, subscribe="orders").load()
    values = read.select("value")
    for _ in range(2):  # the same job twice: the second is known, and writes nothing
        writer = values.write.format("tuff").mode("append").options(**options, topic="copies")
        writer.options(txnAppId="copy", txnVersion="1").save()

    assert [bytes(row.value) for row in read.orderBy("id").collect()] == payloads
    copied = hbase_client.poll(COPIES, isolation="committed", limit=10_000)
    assert sorted(message.payload for message in copied) == sorted(payloads)


def rows(spark: "SparkSession", place: HBaseSettings, **options: str) -> "DataFrame":
    reader = spark.read.format("tuff-table").options(prefix=place.prefix, **options)
    return reader.options(gateways=",".join(place.gateways)).load()


def test_spark_reads_rows_of_hbase_with_a_task_for_each_region(
    spark: "SparkSession", place: HBaseSettings, hbase_client: tuff.Client
) -> None:
    topic = tuff.TopicId("spark", "looked-at")
    hbase_client.topics.create(topic, ttl=500)
    hbase_client.publish(topic, *[b"%d" % number for number in range(300)])
    undone = hbase_client.transactions.start()
    hbase_client.publish(topic, "undone", transaction=undone)
    hbase_client.transactions.abort(undone)

    messages = rows(spark, place, tables="message")
    found = messages.where(f"topic = '{topic}'").orderBy("timestamp", "seq_id").collect()

    assert [bytes(row.payload) for row in found] == [b"%d" % n for n in range(300)] + [b"undone"]
    assert found[-1].tx_pointer == -undone.write_pointer
    assert {row.kind for row in messages.select("kind").distinct().collect()} == {"message"}
    assert messages.rdd.getNumPartitions() == SALTS
    topics = rows(spark, place, tables="metadata").where("kind = 'topic'").collect()
    assert str(topic) in {row.topic for row in topics}


def test_a_prefix_without_tables_is_reported(spark: "SparkSession", place: HBaseSettings) -> None:
    with pytest.raises(Exception, match=r"no table nobody_message; is the prefix right\?"):
        spark.read.format("tuff-table").options(
            gateways=place.gateways[0], prefix="nobody_"
        ).load().collect()
