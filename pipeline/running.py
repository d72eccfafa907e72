"""What the commands share: the server, the Spark session, how a job tells how far it is."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.manifest import Row
from tuff.cli.options import topic_of
from tuff.client import DEFAULT_URL, Client, connect
from tuff.protocol.errors import BadRequestError, TopicExistsError
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENT_NAME = "tuff-pipeline"
CONF = {
    "spark.sql.session.timeZone": "UTC",
    # What other programs read as a time too; Spark's own old form is read by Spark.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Job:
    """What was said before the command."""

    url: str | None
    master: str

    @property
    def options(self) -> dict[str, str]:
        """The options of the data source that say where the server is."""
        return {"url": self.url or DEFAULT_URL}

    def client(self) -> Client:
        """Raises: BadParameter: the address is none."""
        try:
            return connect(self.options["url"], client=CLIENT_NAME)
        except BadRequestError as error:
            raise click.BadParameter(error.detail) from None

    @contextmanager
    def spark(self) -> "Iterator[SparkSession]":
        """The session that is there, as under `spark-submit` with one's own, and stays; or a new
        one, which ends with the job."""
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        if active is not None:
            yield active
            return
        # With this one Spark looks for data sources, whatever its own settings say.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # noqa: TID251 - it is for the JVM
        builder = SparkSession.builder.master(self.master).appName(CLIENT_NAME)
        for name, value in {**CONF, "spark.pyspark.python": sys.executable}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()

    def tell(self, sentence: str) -> None:
        """How far it is: beside the output, and not in it."""
        click.echo(sentence, err=True)


def report_hours(job: Job) -> Callable[[Row, int | None], None]:
    """Tells of each hour when it is done, and of how many are left where that is known."""

    def report(row: Row, left: int | None) -> None:
        behind = f"; {counted(left, 'hour')} left" if left else ""
        job.tell(f"{row.hour}: {counted(row.summary.count, 'message')}{behind}")

    return report


def counted(count: int, what: str) -> str:
    """A number of things, for people: `1 hour`, `2 hours`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def messages_in_hours(topic: TopicId, rows: Sequence[Row]) -> str:
    """What a job has done, for people."""
    messages = counted(sum(row.summary.count for row in rows), "message")
    return f"{messages} of {topic} in {counted(len(rows), 'hour')}"


def create(client: Client, topic: TopicId) -> None:
    """Create a topic, unless it is there."""
    with suppress(TopicExistsError):
        client.topics.create(topic)


def as_topic(_context: click.Context, _parameter: click.Parameter, value: str) -> TopicId:
    """For an option: `namespace:name`, or `name` in namespace default. Raises: BadParameter."""
    return topic_of(value)


def as_topics(
    _context: click.Context, _parameter: click.Parameter, values: Sequence[str]
) -> list[TopicId]:
    """The same for an option that may be given again. Raises: BadParameter."""
    return [topic_of(value) for value in values]


topic_argument = click.argument("topic", callback=as_topic)
root_option = click.option(
    "--root",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The archive's directory, seen by the driver and all executors.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
