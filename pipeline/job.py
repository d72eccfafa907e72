"""What all jobs share: settings, common options, the hours that a job has completed, its output.

A job writes hour after hour of an archive to a sink, with the number of the hour as the epoch
(protocol §5.3). So the server records the last completed hour in the transaction that writes it,
and no local file can disagree. One number is enough, because hours are archived in order.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernel.archive_manifest import Archive, Entry
from pipeline.frames import archived, check
from tuff.address import DEFAULT_URL
from tuff.blocking.client import Client
from tuff.protocol.errors import SinkNotFoundError, TopicExistsError
from tuff.protocol.ids import SINK_NAME_LENGTH_MAX, TopicId
from tuff.protocol.sentences import counted
from tuff.tls import TlsFiles
from tuff_cli.options import PathType, topic_of
from tuff_cli.output import print_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLIENT_NAME = "tuff-pipeline"
HASH_LENGTH = 32  # hex digits; no two long names share a hash
CONF = {
    "spark.sql.session.timeZone": "UTC",
    # A type that other programs support too; only Spark reads its old default, INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `tuff-pipeline` itself, from which jobs get a client and a Spark session."""

    url: str | None
    master: str
    token_file: Path | None
    tls_files: TlsFiles = field(default_factory=TlsFiles)

    @property
    def options(self) -> dict[str, str]:
        """The connection options of the data source."""
        # The file and not the token: Spark shows options in plans and logs.
        token = {} if self.token_file is None else {"tokenFile": str(self.token_file.absolute())}
        files = {
            "tlsCaFile": self.tls_files.ca_file,
            "tlsCertificateFile": self.tls_files.certificate_file,
            "tlsKeyFile": self.tls_files.key_file,
        }
        of_tls = {name: str(Path(file).absolute()) for name, file in files.items() if file}
        return {"url": self.url or DEFAULT_URL, **token, **of_tls}

    def client(self) -> Client:
        """A client of the server. Raises: BadParameter: the URL or the token is invalid."""
        token = None if self.token_file is None else self.token_file.read_text("utf-8").strip()
        try:
            return Client(
                self.options["url"],
                client_id=CLIENT_NAME,
                token=token,
                ssl_context=self.tls_files.context(),
            )
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


def sink_of(job: str, *topics: TopicId) -> str:
    """The default name of a job's sink: `JOB/TOPIC` or `JOB/TOPIC/TARGET`.

    A name above the limit of a sink's name is cut, and ends in `::` and a hash of the whole name;
    no shorter name contains `::`.
    """
    return _sink_named("/".join((job, *map(str, topics))))


def sink_of_partition(sink: str, topic: TopicId, log: TopicId) -> str:
    """The sink for an archived log of a topic: `sink` itself for that of the name of the topic, and
    with the number of the partition for others. Each counts its own hours."""
    return sink if log == topic.log else _sink_named(f"{sink}:{log.number}")


def _sink_named(name: str) -> str:
    if len(name) <= SINK_NAME_LENGTH_MAX:
        return name
    end = "::" + hashlib.sha256(name.encode("ascii")).hexdigest()[:HASH_LENGTH]
    return name[: SINK_NAME_LENGTH_MAX - len(end)] + end


def hours_left(
    spark: "SparkSession",
    client: Client,
    archive: Archive,
    topic: TopicId,
    *,
    sink: str,
) -> "Iterator[tuple[Entry, DataFrame]]":
    """Each hour that `sink` has not committed, oldest first, with its messages. Reports progress
    when the caller asks for the next hour, and has written the one before.

    Raises: ArchiveError: the files of an hour differ from its row; later hours do not follow.
    """
    rows = _rows_left(client, sink, archive.entries(topic))
    for behind, row in zip(reversed(range(len(rows))), rows, strict=True):
        frame = archived(spark, archive, row)
        check(frame, row, what=f"hour {row.hour} of {topic}")
        yield row, frame
        report_hour(row, left_count=behind)


def _rows_left(client: Client, sink: str, rows: Sequence[Entry]) -> Sequence[Entry]:
    try:
        found = client.sinks.get(sink)
    except SinkNotFoundError:
        return rows
    first = found.epoch + 1 if found.state == "committed" else found.epoch
    return [row for row in rows if row.hour.number >= first]


def epoch_options(sink: str, row: Entry) -> dict[str, str]:
    """Options that make a write of this row's hour idempotent."""
    return {"txnAppId": sink, "txnVersion": str(row.hour.number)}


def report_hour(row: Entry, *, left_count: int = 0) -> None:
    """Report a finished hour on standard error, and how many are left."""
    left = f"; {counted(left_count, 'hour')} left" if left_count else ""
    report(f"{row.hour}: {counted(row.summary.count, 'message')}{left}")


def report(sentence: str) -> None:
    """Report progress on standard error."""
    click.echo(sentence, err=True)


def print_hours(
    topic: TopicId, rows: Sequence[Entry], *, done: str, sink: str, as_json: bool
) -> None:
    """Print the result of a job that has processed these hours of `sink`."""
    if not rows:
        report(f"nothing to do: the sink {sink} has committed all archived hours")
    form = {"hours": len(rows), "messages": message_count(rows)}
    print_result(form, f"{messages_in_hours(topic, rows)} {done}", as_json=as_json)


def print_result(form: Mapping[str, object], sentence: str, *, as_json: bool) -> None:
    """Print the result of a job on standard output, for programs or for people."""
    if as_json:
        print_json(form)
    else:
        click.echo(sentence)


def messages_in_hours(topic: TopicId, rows: Sequence[Entry]) -> str:
    """A summary of a job's result: messages and hours."""
    return f"{counted(message_count(rows), 'message')} of {topic} in {counted(len(rows), 'hour')}"


def message_count(rows: Sequence[Entry]) -> int:
    return sum(row.summary.count for row in rows)


def create(client: Client, topic: TopicId) -> None:
    """Create a topic, unless it exists."""
    with suppress(TopicExistsError):
        client.topics.create(topic)


topic_argument = click.argument("topic", type=topic_of)
root_option = click.option(
    "--root",
    required=True,
    type=PathType(file_okay=False, path_type=Path),
    help="The archive's directory, which the driver and all executors can access.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
