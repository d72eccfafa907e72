"""Spark Connect, with a client in a process without a JVM; no data source is registered."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tuff
from tests.spark.connect_client import FIRST, SECOND, THIRD
from tests.spark.messages import read
from tests.spark.session import CONF, missing, spark_class
from tuff.launch import ServerProcess

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "declarative"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
PIPELINES = str(Path(sys.executable).parent / "spark-pipelines")
WITHIN_S = 300


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="module")
def remote(warehouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of Spark Connect."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("connect")
    conf = {
        **CONF,
        "spark.log.level": "INFO",  # it says its port there
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.warehouse.dir": str(warehouse),
    }
    flags = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = ("org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", *flags)
    says = r"Spark Connect server started at: \S*?:([0-9]+)"
    with spark_class(
        home / "server.txt", *command, "--class", SERVER, "spark-internal", says=says
    ) as port:
        yield f"sc://127.0.0.1:{port}"


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ, capture_output=True, text=True, timeout=WITHIN_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_topics_are_read_and_written_through_connect(
    remote: str, tuff_server: ServerProcess, tuff_client: tuff.Client, tmp_path: Path
) -> None:
    first, second, third = (tuff.TopicId(*name.split(":")) for name in (FIRST, SECOND, THIRD))
    for topic in (first, second, third):
        tuff_client.topics.create(topic)
    tuff_client.publish(first, "a", "b", "c")

    said = run(
        sys.executable, "-m", "tests.spark.connect_client",
        remote, tuff_server.url, str(tmp_path / "checkpoint"),
        cwd=tmp_path,
    )  # fmt: skip

    assert said == "3 messages\n"
    assert read(tuff_client, second) == read(tuff_client, third) == [b"a", b"b", b"c"]
    assert tuff_client.transactions.overview().in_progress == ()


def test_a_declarative_pipeline_fills_a_table_a_view_and_a_topic_and_continues(
    remote: str, warehouse: Path, tuff_server: ServerProcess, tuff_client: tuff.Client,
    tmp_path: Path,
) -> None:  # fmt: skip
    orders, large = (tuff.TopicId("default", name) for name in ("orders", "large-orders"))
    for topic in (orders, large):
        tuff_client.topics.create(topic)
    spec = copied(tmp_path, url=tuff_server.url)

    for item, amount in (("apple", 40), ("pear", 250)):
        tuff_client.publish(orders, json.dumps({"item": item, "amount": amount}))
    run(PIPELINES, "run", "--remote", remote, "--spec", spec, cwd=tmp_path)
    tuff_client.publish(orders, json.dumps({"item": "apple", "amount": 100}))
    run(PIPELINES, "run", "--remote", remote, "--spec", spec, cwd=tmp_path)

    found = [json.loads(payload) for payload in read(tuff_client, large)]
    assert found == [{"item": "pear", "amount": 250}, {"item": "apple", "amount": 100}]
    totals = pq.read_table(warehouse / "totals").to_pylist()
    assert sorted((row["item"], row["amount"]) for row in totals) == [("apple", 140), ("pear", 250)]


def copied(home: Path, *, url: str) -> str:
    """The example, with its server and its checkpoints here; the path of its spec."""
    to = home / "declarative"
    shutil.copytree(EXAMPLE, to)
    spec = to / "spark-pipeline.yml"
    text = spec.read_text("utf-8")
    for there, here in (
        ("http://127.0.0.1:7411", url),
        ("file:///var/lib/orders-pipeline", f"file://{home}/checkpoints"),
    ):
        assert there in text
        text = text.replace(there, here)
    spec.write_text(text, "utf-8")
    return str(spec)
