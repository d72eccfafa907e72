"""The options of reads and writes, checked once, as frozen values.

An option has the name that Spark's Kafka source uses if the meaning is the same (docs/spark.md).
Spark passes the names of options in lower case.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import tuff
from pyspark_tuff.errors import OptionError
from tuff.protocol.attributes import TagFilter
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MessageId, TopicId, check_name
from tuff.tls import TlsFiles

if TYPE_CHECKING:
    from tuff.blocking.client import Client

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:7411"
DEFAULT_NAMESPACE = "default"
DEFAULT_MIN_PARTITIONS = 8  # tasks; a task costs about 30 ms, and with fewer, cores would be idle
# Messages of one poll: the server's limit. Smaller polls cost more per message.
DEFAULT_FETCH_SIZE = 10_000
DEFAULT_LEASE_S = 300.0  # seconds; of a batch write: how long a driver may be suspended
DEFAULT_EPOCH_LEASE_S = 60.0  # seconds; every task of an epoch renews it from its start on
DEFAULT_HOLD_MAX_AGE_S = 86_400.0  # seconds; a query that is stopped for longer loses its hold
RETRY_COUNT = 8  # attempts, about ten seconds: enough for a restart of the server
PARTITION_COUNT_MAX = 10_000
NUMBER_MAX = (1 << 63) - 1  # the largest signed number of 64 bits

CONNECTION_OPTIONS = (
    "url", "namespace", "timeout", "tokenFile", "tlsCaFile", "tlsCertificateFile", "tlsKeyFile",
)  # fmt: skip
READ_OPTIONS = (
    *CONNECTION_OPTIONS, "subscribe", "subscribePattern", "startingOffsets", "startingTimestamp",
    "isolation", "tags", "minPartitions", "fetchSize", "failOnDataLoss", "includeTransaction",
    "includeAttributes",
)  # fmt: skip
BATCH_READ_OPTIONS = (*READ_OPTIONS, "endingOffsets", "endingTimestamp")
STREAM_READ_OPTIONS = (
    *READ_OPTIONS, "maxMessagesPerTrigger", "positionName", "holdName", "holdMaxAge",
)  # fmt: skip
WRITE_OPTIONS = (
    *CONNECTION_OPTIONS, "topic", "lease", "ignoreExtraColumns", "includeAttributes",
)  # fmt: skip
BATCH_WRITE_OPTIONS = (*WRITE_OPTIONS, "transaction", "txnAppId", "txnVersion")
STREAM_WRITE_OPTIONS = (*WRITE_OPTIONS, "sinkId")
# Options that Spark adds to those of a streaming sink.
SPARKS_OWN_OPTIONS = frozenset({"checkpointlocation", "queryname"})


class ReadIsolation(Enum):
    """What a read sees. `SNAPSHOT`: one snapshot over all topics; `COMMITTED`: each topic up to its
    first undecided message; `ALL`: everything, undone messages included."""

    SNAPSHOT = "snapshot"
    COMMITTED = "committed"
    ALL = "all"


class Edge(Enum):
    """The beginning or the end of a topic."""

    EARLIEST = "earliest"
    LATEST = "latest"


# Where a read starts or ends, as users write it: an end of the topic, an id, or a publish time, ms.
Boundary = Edge | MessageId | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Where a read starts, or where it ends: in the topics that the option names, and in others."""

    others: Boundary
    named: Mapping[TopicId, Boundary]

    def of(self, topic: TopicId) -> Boundary:
        """That of a partition: its own, or that of its topic, which is for all partitions."""
        return self.named.get(topic, self.named.get(topic.base, self.others))


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How a process of Spark connects to the server. `token_file`: the file, on every host, that
    holds the token. An option with the token itself would appear in plans and logs. The files of
    `tls_files` are on every host too."""

    url: str
    timeout_s: float
    token_file: str | None
    tls_files: TlsFiles = field(default_factory=TlsFiles)

    def connect(self, name: str) -> "Client":
        """A client that the server knows as `name`. Raises: OptionError: an option is wrong, or the
        token file can't be read."""
        token = self._token()
        try:
            return tuff.Client(
                self.url,
                client_id=name,
                timeout=self.timeout_s,
                retries=RETRY_COUNT,
                token=token,
                ssl_context=self.tls_files.context(),
            )
        except ValueError as error:
            raise OptionError(str(error)) from None

    def _token(self) -> str | None:
        if self.token_file is None:
            return None
        try:
            return Path(self.token_file).read_text("utf-8").strip()
        except OSError as error:
            raise OptionError(f"tokenFile {self.token_file} can't be read: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read. `topics` is empty if `pattern` selects topics of the namespace.
    `tags` None: messages with any tags, and without."""

    connection: Connection
    namespace: str
    topics: tuple[TopicId, ...]
    pattern: str | None
    starting: Boundaries
    ending: Boundaries
    isolation: ReadIsolation
    tags: str | None
    min_partitions: int
    fetch_size: int
    fail_on_data_loss: bool
    include_transaction: bool
    include_attributes: bool
    max_messages: int | None
    position_name: str | None
    hold_name: str | None
    hold_max_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write. `topic` None: a column names it. `include_attributes`: columns with
    attributes are written. `sink` and `version` identify a repeatable batch job. A stream has
    `sink` only, or None for the query's id."""

    connection: Connection
    namespace: str
    topic: TopicId | None
    lease_s: float | None
    ignores_extra_columns: bool
    include_attributes: bool
    transaction: int | None
    sink: str | None
    version: int | None


def batch_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Raises: OptionError: an option is invalid or unknown."""
    return _read_options(Given(given, BATCH_READ_OPTIONS), Edge.EARLIEST, tuple(ReadIsolation))


def stream_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Raises: OptionError: an option is invalid or unknown."""
    allowed = (ReadIsolation.COMMITTED, ReadIsolation.ALL)
    return _read_options(Given(given, STREAM_READ_OPTIONS), Edge.LATEST, allowed)


def load_options(given: Mapping[str, str]) -> ReadOptions:
    """The options at `load()`, before Spark says whether the read is a batch or a stream: accepts
    the options of both. Raises: OptionError: an option is invalid or unknown."""
    known = tuple(dict.fromkeys((*BATCH_READ_OPTIONS, *STREAM_READ_OPTIONS)))
    return _read_options(Given(given, known), Edge.EARLIEST, tuple(ReadIsolation))


def batch_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Raises: OptionError: an option is invalid or unknown."""
    options = Given(given, BATCH_WRITE_OPTIONS)
    sink, version = options.text("txnAppId"), options.number("txnVersion", at_least=0)
    transaction = options.number("transaction", at_least=1)
    if (sink is None) != (version is None):
        raise OptionError("give txnAppId and txnVersion together: they identify one repeatable job")
    if sink is not None and transaction is not None:
        raise OptionError(
            "with the option transaction its owner commits the job, so txnAppId can't record "
            "whether it was done; give only one of the two"
        )
    return _write_options(options, sink=sink, version=version, transaction=transaction)


def stream_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Raises: OptionError: an option is invalid or unknown."""
    options = Given(given, STREAM_WRITE_OPTIONS, ignored=SPARKS_OWN_OPTIONS)
    return _write_options(options, sink=options.text("sinkId"), version=None, transaction=None)


def topic_named(name: str, namespace: str) -> TopicId:
    """`name` in the namespace, or `other:name` in another one; `other:name:3` is a partition.
    Raises: InvalidNameError."""
    head, colon, tail = name.strip().partition(":")
    return TopicId(head, tail) if colon else TopicId(namespace, head)


class Given:
    """The options that a user has given, by their known names."""

    def __init__(
        self,
        given: Mapping[str, str],
        known: Collection[str],
        *,
        ignored: Collection[str] = frozenset(),
    ) -> None:
        names = {name.lower(): name for name in sorted(known)}
        self._values: dict[str, str] = {}
        for key, value in given.items():
            lower = key.lower()
            if lower in names:
                self._values[names[lower]] = value
            elif lower not in ignored:
                raise _unknown(key, names)

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name, str(default)).lower()
        if value not in {"true", "false"}:
            raise OptionError(f"{name} must be true or false, not {value!r}")
        return value == "true"

    def number(self, name: str, *, at_least: int, at_most: int = NUMBER_MAX) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,19}", value) or not at_least <= int(value) <= at_most:
            upper = "" if at_most == NUMBER_MAX else f" to {at_most}"
            raise OptionError(
                f"{name} must be a whole number from {at_least}{upper}, not {value!r}"
            )
        return int(value)

    def seconds(self, name: str) -> float | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value) or float(value) <= 0:
            raise OptionError(f"{name} must be a number of seconds above 0, not {value!r}")
        return float(value)

    def connection(self) -> Connection:
        return Connection(
            url=self.text("url") or DEFAULT_URL,
            timeout_s=self.seconds("timeout") or 30.0,
            token_file=self.text("tokenFile"),
            tls_files=TlsFiles(
                self.text("tlsCaFile"), self.text("tlsCertificateFile"), self.text("tlsKeyFile")
            ),
        )

    def namespace(self) -> str:
        return check_name(self.text("namespace") or DEFAULT_NAMESPACE, what="namespace")


def _unknown(key: str, names: Mapping[str, str]) -> OptionError:
    nearest = get_close_matches(key.lower(), names, n=1, cutoff=0.5)
    advice = f"did you mean {names[nearest[0]]}?" if nearest else "no known option is similar."
    return OptionError(
        f"there is no option {key} here; {advice} Known: {', '.join(names.values())}"
    )


def _read_options(options: Given, first: Edge, allowed: Collection[ReadIsolation]) -> ReadOptions:
    namespace = options.namespace()
    topics, pattern = _topics(options, namespace)
    starting = _boundaries(options, "starting", first, namespace)
    ending = _boundaries(options, "ending", Edge.LATEST, namespace)
    if pattern is None:
        _check_named(starting, topics, "startingOffsets")
        _check_named(ending, topics, "endingOffsets")
    return ReadOptions(
        connection=options.connection(),
        namespace=namespace,
        topics=topics,
        pattern=pattern,
        starting=starting,
        ending=ending,
        isolation=_isolation(options, allowed),
        tags=_tags(options),
        min_partitions=options.number("minPartitions", at_least=1, at_most=PARTITION_COUNT_MAX)
        or DEFAULT_MIN_PARTITIONS,
        fetch_size=options.number("fetchSize", at_least=1) or DEFAULT_FETCH_SIZE,
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        include_transaction=options.flag("includeTransaction", default=False),
        include_attributes=options.flag("includeAttributes", default=False),
        max_messages=options.number("maxMessagesPerTrigger", at_least=1),
        position_name=options.text("positionName"),
        hold_name=options.text("holdName"),
        hold_max_age_s=options.seconds("holdMaxAge") or DEFAULT_HOLD_MAX_AGE_S,
    )


def _write_options(
    options: Given, *, sink: str | None, version: int | None, transaction: int | None
) -> WriteOptions:
    namespace, topic = options.namespace(), options.text("topic")
    ignores_extra_columns = options.flag("ignoreExtraColumns", default=False)
    return WriteOptions(
        connection=options.connection(),
        namespace=namespace,
        topic=None if topic is None else topic_named(topic, namespace),
        lease_s=options.seconds("lease"),
        ignores_extra_columns=ignores_extra_columns,
        # A frame with such columns could be written with `ignoreExtraColumns` only, before there
        # were attributes. What it writes stays the same.
        include_attributes=options.flag("includeAttributes", default=not ignores_extra_columns),
        transaction=transaction,
        sink=sink,
        version=version,
    )


def _topics(options: Given, namespace: str) -> tuple[tuple[TopicId, ...], str | None]:
    names, pattern = options.text("subscribe"), options.text("subscribePattern")
    if (names is None) == (pattern is None):
        raise OptionError("give either subscribe (topics, with commas) or subscribePattern")
    if names is not None:
        topics = {topic_named(name, namespace) for name in names.split(",")}
        for topic in topics:
            if topic != topic.base and topic.base in topics:
                raise OptionError(
                    f"subscribe names the topic {topic.base}, which is all of its partitions, and "
                    f"the partition {topic}; leave one of the two out"
                )
        return tuple(sorted(topics)), None
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise OptionError(
            f"subscribePattern {pattern!r} is not a regular expression: {error}"
        ) from None
    return (), pattern


def _tags(options: Given) -> str | None:
    value = options.text("tags")
    if value is not None:
        try:
            TagFilter.parse(value)
        except BadRequestError as error:
            raise OptionError(f"tags {value!r}: {error.detail}") from None
    return value


def _isolation(options: Given, allowed: Collection[ReadIsolation]) -> ReadIsolation:
    value = options.text("isolation") or ReadIsolation.COMMITTED.value
    for each in allowed:
        if each.value == value.lower():
            return each
    known = ", ".join(each.value for each in allowed)
    raise OptionError(f"isolation must be one of {known} here, not {value!r}")


def _boundaries(options: Given, which: str, default: Edge, namespace: str) -> Boundaries:
    offsets, time = options.text(f"{which}Offsets"), options.text(f"{which}Timestamp")
    if offsets is not None and time is not None:
        raise OptionError(f"give {which}Offsets or {which}Timestamp, not both")
    if time is not None:
        return Boundaries(others=_ms(time, f"{which}Timestamp"), named={})
    if offsets is None:
        return Boundaries(others=default, named={})
    if offsets.lstrip().startswith("{"):
        return _boundaries_of_json(offsets, f"{which}Offsets", default, namespace)
    return Boundaries(others=_boundary(offsets.strip(), f"{which}Offsets"), named={})


def _check_named(boundaries: Boundaries, topics: Collection[TopicId], what: str) -> None:
    """Raises: OptionError: an offset is given for a topic that is not read. Without this check, a
    typing error would silently make the intended topic be read from another offset."""
    for topic in boundaries.named:
        if topic not in topics and topic.base not in topics:
            read = ", ".join(map(str, topics))
            raise OptionError(f"{what} names the topic {topic}, but subscribe has {read}")


def _boundaries_of_json(text: str, what: str, default: Edge, namespace: str) -> Boundaries:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{what} is not JSON: {error}") from None
    named = {
        topic_named(name, namespace): _boundary(boundary, what) for name, boundary in value.items()
    }
    return Boundaries(others=default, named=named)


def _boundary(value: object, what: str) -> Boundary:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if value in ("earliest", "latest"):
        return Edge(value)
    return _as(MessageId.from_hex, str(value), f"{what} takes earliest, latest, an id, or ms")


def _ms(text: str, what: str) -> int:
    if re.fullmatch(r"[0-9]{1,19}", text):
        return int(text)
    moment = _as(datetime.fromisoformat, text, f"{what} takes ms since the epoch, or ISO 8601")
    if moment.tzinfo is None:
        raise OptionError(f"{what} {text!r} has no time zone; add one, as in {text}Z")
    return round(moment.timestamp() * 1000)


def _as(read: Callable[[str], T], text: str, what: str) -> T:
    try:
        return read(text)
    except ValueError:
        raise OptionError(f"{what}, not {text!r}") from None
