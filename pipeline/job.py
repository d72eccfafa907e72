"""What all jobs share: the connection, the Spark session, progress reports, common options."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.manifest import Row
from tuff.address import DEFAULT_URL
from tuff.blocking.client import Client
from tuff.cli.options import topic_of
from tuff.protocol.errors import TopicExistsError
from tuff.protocol.ids import TopicId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENT_NAME = "tuff-pipeline"
CONF = {
    "spark.sql.session.timeZone": "UTC",
    # A type that other programs support too; only Spark reads its old default, INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Job:
    """The options of `tuff-pipeline` itself, and what a job gets from them."""

    url: str | None
    master: str
    token_file: Path | None

    @property
    def options(self) -> dict[str, str]:
        """The connection options of the data source."""
        # The file and not the token: Spark shows options in plans and logs.
        token = {} if self.token_file is None else {"tokenFile": str(self.token_file.absolute())}
        return {"url": self.url or DEFAULT_URL, **token}

    def client(self) -> Client:
        """A client of the server. Raises: BadParameter: the URL or the token is invalid."""
        token = None if self.token_file is None else self.token_file.read_text("utf-8").strip()
        try:
            return Client(self.options["url"], client_id=CLIENT_NAME, token=token)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    @contextmanager
    def spark(self) -> "Iterator[SparkSession]":
        """The active session, as under `spark-submit`, which stays open; or a new one, which ends
        with the job."""
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        if active is not None:
            yield active
            return
        # Spark looks up data sources with this interpreter, whatever its settings say.
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
        """Report progress on standard error."""
        click.echo(sentence, err=True)


def report_hours(job: Job) -> Callable[[Row, int | None], None]:
    """Returns a function that reports a finished hour, and how many are left if that is known."""

    def report(row: Row, left: int | None) -> None:
        behind = f"; {counted(left, 'hour')} left" if left else ""
        job.tell(f"{row.hour}: {counted(row.summary.count, 'message')}{behind}")

    return report


def counted(count: int, what: str) -> str:
    """A number with its noun: `1 hour`, `2 hours`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def messages_in_hours(topic: TopicId, rows: Sequence[Row]) -> str:
    """A summary of a job's result: messages and hours."""
    messages = counted(sum(row.summary.count for row in rows), "message")
    return f"{messages} of {topic} in {counted(len(rows), 'hour')}"


def create(client: Client, topic: TopicId) -> None:
    """Create a topic, unless it exists."""
    with suppress(TopicExistsError):
        client.topics.create(topic)


def as_topic(_context: click.Context, _parameter: click.Parameter, value: str) -> TopicId:
    """Parse an option: `namespace:name`, or `name` in namespace default. Raises: BadParameter."""
    return topic_of(value)


def as_topics(
    _context: click.Context, _parameter: click.Parameter, values: Sequence[str]
) -> list[TopicId]:
    """The same for an option that may be repeated. Raises: BadParameter."""
    return [topic_of(value) for value in values]


topic_argument = click.argument("topic", callback=as_topic)
root_option = click.option(
    "--root",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The archive's directory, which the driver and all executors can access.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
