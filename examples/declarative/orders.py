"""Orders, as a declarative pipeline: a topic becomes a table and a view, and large ones a topic.

`spark-pipelines` imports this file (docs/spark.md). Messages of the topic `orders` are JSON objects
with `item` and `amount`.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

LARGE = 100  # the amount from which an order is reviewed

spark = SparkSession.active()
url = spark.conf.get("tuff.url") or ""


@dp.table(comment="every order, once")
def orders() -> DataFrame:
    source = spark.readStream.format("tuff").options(url=url, subscribe="orders")
    return (
        source.option("startingOffsets", "earliest")
        .load()
        .selectExpr("timestamp", "from_json(string(value), 'item string, amount long') as order")
        .select("timestamp", "order.*")
    )


@dp.materialized_view(comment="how much of each item was ordered")
def totals() -> DataFrame:
    return spark.read.table("orders").groupBy("item").agg(expr("sum(amount) as amount"))


# A fixed sink name: a full refresh deletes the checkpoint, but the server still knows the epochs of
# the sink, and refuses to write all messages again.
dp.create_sink(
    "large_orders",
    "tuff",
    {"url": url, "topic": "large-orders", "sinkId": "declarative/large-orders"},
)


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    large_ones = spark.readStream.table("orders").where(f"amount >= {LARGE}")
    return large_ones.selectExpr("to_json(struct(item, amount)) as value")
