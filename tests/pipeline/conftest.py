"""A real server whose clock the tests advance, so that hours are closed."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tuff
from kernel.archive_manifest import Archive, Entry
from pipeline.archive import archive_topic
from tests.faults.conftest import shim_library as shim_library
from tests.faults.disk import Shim
from tests.http.process import serve
from tests.pipeline.clock import Clock
from tests.spark.messages import read
from tests.spark.session import missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "pipeline"

_numbers = count(1)


class DiedError(Exception):
    """A job was ended at a step."""


def die(*_given: object, **_named: object) -> None:
    raise DiedError


class Place:
    """The environment of a job: a client, a topic of its own, an archive."""

    def __init__(self, client: tuff.Client, clock: Clock, home: Path) -> None:
        self.client = client
        self.clock = clock
        self.home = home
        self.archive = Archive(home / "archive")
        self.topic = tuff.TopicId(NAMESPACE, f"orders-{next(_numbers)}")
        client.topics.create(self.topic)

    @property
    def options(self) -> dict[str, str]:
        return {"url": self.client.url}

    @property
    def dead_letters(self) -> list[bytes]:
        """The messages of this topic's dead letter topic."""
        return self.read(tuff.TopicId(NAMESPACE, f"{self.topic.name}.dlq"))

    def other(self, suffix: str) -> tuff.TopicId:
        """Another topic, named after this test's."""
        topic = tuff.TopicId(NAMESPACE, f"{self.topic.name}{suffix}")
        self.client.topics.create(topic)
        return topic

    def publish_hours(self, *hours: list[str]) -> None:
        """Publish each list of messages an hour after the one before, and then a message that
        closes the last hour."""
        for payloads in hours:
            for payload in payloads:
                self.client.publish(self.topic, payload)
            self.clock.pass_hours()
        self.client.publish(self.topic, "open")

    def archive_hours(self, spark: "SparkSession") -> list[Entry]:
        """Archive the topic's closed hours; returns the new rows."""
        return archive_topic(spark, self.client, self.archive, self.topic, self.options)

    def read(self, topic: tuff.TopicId) -> list[bytes]:
        return read(self.client, topic)


@pytest.fixture
def needs_spark() -> None:
    """Without Java the test is skipped; for one that starts Spark in processes of its own."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def clocked(
    shim_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Clock]]:
    home = tmp_path_factory.mktemp("clocked")
    shim = Shim(shim_library, root=home / "home", control=home / "control")
    clock = Clock(shim)
    # Hours pass while transactions are open; by default they would be ended for that.
    settings = ("messaging.max_block=86400",)
    with serve(home / "home", *settings, environment=shim.environment()) as server:
        yield server.url, clock


@pytest.fixture
def place(clocked: tuple[str, Clock], tmp_path: Path) -> Iterator[Place]:
    url, clock = clocked
    with tuff.Client(url, client_id="pipeline-tests") as client:
        yield Place(client, clock, tmp_path)
