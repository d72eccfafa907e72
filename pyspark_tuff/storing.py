"""What a task of a write does: store its rows under a pointer of its own.

Spark runs a task again, or twice at once, and takes the message of one attempt; what the others did
stays done. So every attempt has a checkpoint of the job's transaction for itself, and what is
stored under it is seen by nobody unless the driver publishes that very pointer (decision 0024).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from pyspark_tuff.columns import TOPIC
from pyspark_tuff.options import OptionError, WriteOptions, topic_named
from tuff.client import Client
from tuff.protocol.errors import BadRequestError
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

VALUE = "value"
FLUSH_COUNT = 5_000  # messages of one store; from there on its cost is that of its messages
# Messages under one pointer. What one reference brings is read by one task, and is counted by the
# server before it delivers any of it.
PART_COUNT = 100_000
FLUSH_BYTES = 4 << 20  # bytes that wait, of all topics; the server takes 16 MiB in one request


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What lies under one pointer: how many messages, by topic."""

    pointer: int
    counts: Mapping[TopicId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What an attempt has stored, in order; nothing where it had no rows."""

    partition: int
    parts: tuple[Part, ...]


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises: OptionError: rows of this schema can't be messages."""
    kinds = {field.name: field.dataType for field in schema}
    if VALUE not in kinds:
        raise OptionError(
            f"a write needs a column value, binary or string; these rows have {', '.join(kinds)}"
        )
    _check_type(VALUE, kinds[VALUE], (BinaryType, StringType))
    if options.topic is None:
        if TOPIC not in kinds:
            raise OptionError(
                "set the option topic, or give rows a column topic, which is a string"
            )
        _check_type(TOPIC, kinds[TOPIC], (StringType,))
    extra = kinds.keys() - {VALUE, TOPIC}
    if extra and not options.ignores_extra_columns:
        raise OptionError(
            f"messages have no {', '.join(sorted(extra))}; leave such columns out, or set "
            "ignoreExtraColumns=true"
        )


def _check_type(name: str, kind: DataType, allowed: tuple[type[DataType], ...]) -> None:
    if not isinstance(kind, allowed):
        known = " or ".join(each().simpleString() for each in allowed)
        raise OptionError(
            f"column {name} has the type {kind.simpleString()}, and a write takes {known}; cast "
            f"it, as in `cast({name} as string) as {name}`"
        )


class Attempt:
    """One attempt of a task: it takes a pointer when rows come, and another one after many."""

    def __init__(
        self, client: Client, transaction: int, options: WriteOptions, *, check: Callable[[], None]
    ) -> None:
        self._client = client
        self._transaction = transaction
        self._options = options
        self._check = check
        self._parts: list[Part] = []
        self._pointer: int | None = None
        self._counts: Counter[TopicId] = Counter()
        self._waiting: dict[TopicId, list[bytes]] = {}
        self._waiting_bytes = 0

    def store(self, batches: Iterator["RecordBatch"], *, partition: int) -> Stored:
        """Store all rows, durably.

        Raises:
            TransactionNotInProgressError: the job is over, or was fenced.
            ConnectionLostError: rows may be there twice under this pointer, so the attempt is over.
        """
        for batch in batches:
            for topic, values in self._by_topic(batch):
                self._add(topic, values)
        self._flush_all()
        self._end_part()
        return Stored(partition=partition, parts=tuple(self._parts))

    def _by_topic(self, batch: "RecordBatch") -> Iterator[tuple[TopicId, list[bytes]]]:
        import pyarrow as pa

        values = batch.column(VALUE)
        _refuse_nulls(values, VALUE)
        payloads: list[bytes] = values.cast(pa.binary()).to_pylist()
        if self._options.topic is not None:
            yield self._options.topic, payloads
            return
        names = batch.column(TOPIC)
        _refuse_nulls(names, TOPIC)
        found: dict[str, list[bytes]] = {}
        for name, payload in zip(names.to_pylist(), payloads, strict=True):
            found.setdefault(name, []).append(payload)
        for name, some in found.items():
            yield topic_named(name, self._options.namespace), some

    def _add(self, topic: TopicId, payloads: list[bytes]) -> None:
        waiting = self._waiting.setdefault(topic, [])
        sums = [*accumulate(map(len, payloads), initial=0)]
        at = 0
        while at < len(payloads):
            # Up to the message with which it is enough: a request may be larger by that one.
            is_enough = sums[at] + FLUSH_BYTES - self._waiting_bytes
            stop = min(at + FLUSH_COUNT - len(waiting), bisect_left(sums, is_enough, lo=at + 1))
            waiting += payloads[at:stop]
            stop = min(stop, len(payloads))
            self._waiting_bytes += sums[stop] - sums[at]
            at = stop
            if len(waiting) >= FLUSH_COUNT:
                self._flush(topic)
            elif self._waiting_bytes >= FLUSH_BYTES:
                self._flush_all()

    def _flush_all(self) -> None:
        for topic in self._waiting:
            self._flush(topic)

    def _flush(self, topic: TopicId) -> None:
        payloads = self._waiting[topic]
        if not payloads:
            return
        self._check()
        self._client.store(topic, payloads, transaction=self._own_pointer())
        self._counts[topic] += len(payloads)
        self._waiting_bytes -= sum(map(len, payloads))
        payloads.clear()
        if self._counts.total() >= PART_COUNT:
            self._end_part()

    def _end_part(self) -> None:
        if self._pointer is not None:
            self._parts.append(Part(pointer=self._pointer, counts=dict(self._counts)))
        self._pointer = None
        self._counts.clear()

    def _own_pointer(self) -> int:
        if self._pointer is None:
            checkpoint = self._client.transactions.checkpoint(self._transaction)
            self._pointer = checkpoint.write_pointer
        return self._pointer


def _refuse_nulls(column: "Array", name: str) -> None:
    if column.null_count:
        raise BadRequestError(f"column {name} has a null, and a message has none; filter it out")
