"""Remembers the publishes that a client may repeat, so that a repetition writes nothing (protocol
§3.1, decision 0056).

A *producer* numbers its publishes, and says with each of them up to which number it has all
replies. So what is remembered is bounded by the publishes under way, and not by their rate. A
publish and its entry here are written in one batch. What a batch decides is undone if the batch is
lost, and batches are written one after the other. So a repetition that comes while the first
attempt is being written is decided by it, and answered after it.

Limits of count, memory and time: a producer that was not used for long, or least recently, is
forgotten. A repetition of which the memory may have lost the first attempt is refused.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from messaging.model.producer_rows import (
    PRODUCER_SIZE,
    GapRow,
    ProducerRow,
    Written,
    gap_key,
    producer_key,
    unpack_entry,
)
from tuff.protocol.errors import (
    BadRequestError,
    OverloadedError,
    RequestForgottenError,
    RequestIdReusedError,
)
from tuff.protocol.json_bodies import shown
from tuff_storage.checksum import crc32

if TYPE_CHECKING:
    from messaging.log.topics import Topic
    from messaging.write.write_batch import WriteBatch

WINDOW_MS = 900_000  # ms after its first attempt in which a publish can be repeated; 15 minutes
# Longer than the window, since the server's clock may be slewed, and the first attempt arrives
# later than it was sent.
_KEPT_MS = 1_200_000
_SLACK_MS = 1_000  # by which the time of a first attempt, as the client tells it, may be wrong
PRODUCERS_COUNT_MAX = 10_000  # of all topics; with some publishes under way each, 10 MiB
PRODUCERS_BYTES_MAX = 64 << 20  # bytes of all entries
# Bytes of the entries of one producer in one topic, which each of its batches writes again. Some
# 4,800 publishes; a session has 1,024 under way, and as many replies on their way.
ENTRIES_BYTES_MAX = 128 << 10
ENTRY_OVERHEAD_BYTES = 120  # bytes of memory beside the entry itself

_REQUEST_ID = re.compile(r"([0-9a-f]{16})\.([0-9]{1,18})(?:\.([0-9]{1,18}))?", re.ASCII)
_AGE = re.compile(r"[0-9]{1,15}", re.ASCII)


class RequestId(NamedTuple):
    """Which publish of which producer a request is. The producer has the replies to all numbers
    below `answered`, or has given them up. `age_ms`: of a repetition, the time since the first
    attempt was sent."""

    producer: bytes
    number: int
    answered: int
    age_ms: int | None = None


def request_id_of(text: str | None, age: str | None = None) -> RequestId | None:
    """The request id in a query, and the age; None without an id. Raises: BadRequestError."""
    if text is None:
        if age is not None:
            raise BadRequestError("age belongs to a publish with a requestId, and there is none")
        return None
    found = _REQUEST_ID.fullmatch(text)
    if found is None:
        raise BadRequestError(
            "requestId is PRODUCER.NUMBER or PRODUCER.NUMBER.ANSWERED with a producer of 16 digits "
            f"0-9 a-f, as 8f3a61c2d5e7b904.17.15, not {shown(text)}"
        )
    producer, number_text, answered_text = found.groups()
    number = int(number_text)
    answered = number if answered_text is None else int(answered_text)
    if answered > number:
        raise BadRequestError(
            f"requestId {text} says that its own publish is answered: ANSWERED is the lowest "
            "number that may still be repeated"
        )
    if age is not None and not _AGE.fullmatch(age):
        raise BadRequestError(
            f"age is the time since the first attempt in whole ms, not {shown(age)}"
        )
    return RequestId(bytes.fromhex(producer), number, answered, None if age is None else int(age))


def checksum_of(payloads: Sequence[bytes]) -> int:
    """What tells the messages of one request from those of another one with the same id."""
    return crc32(payloads[0] if len(payloads) == 1 else b"".join(payloads))


class _Producer:
    """What is remembered of one producer in one topic. `added` are the numbers that the batch adds
    that is being built, and `counted_bytes` is its part of the memory of all."""

    __slots__ = (
        "added", "answered", "counted_bytes", "entries", "entries_bytes", "key", "topic", "used_ms",
    )  # fmt: skip

    def __init__(self, key: bytes, topic: "Topic", row: ProducerRow, *, used_ms: int) -> None:
        self.key = key
        self.topic = topic
        self.answered = row.answered
        self.entries = row.entries
        self.entries_bytes = sum(map(len, row.entries.values()))
        self.used_ms = used_ms
        self.added: list[int] = []
        self.counted_bytes = 0

    def add(self, number: int, entry: bytes) -> None:
        self.entries[number] = entry
        self.entries_bytes += len(entry)
        self.added.append(number)

    def remove(self, number: int) -> None:
        entry = self.entries.pop(number, None)
        if entry is not None:
            self.entries_bytes -= len(entry)

    def raise_answered(self, answered: int) -> None:
        """Forget what is answered."""
        if answered <= self.answered:
            return
        passed: Iterable[int] = range(self.answered, answered)
        if answered - self.answered > len(self.entries):
            passed = [number for number in self.entries if number < answered]
        for number in passed:
            self.remove(number)
        self.answered = answered


@dataclass(slots=True)
class ChangedProducers:
    """What a batch changes in memory: producers with new publishes, by key, and the producers and
    gaps of topics that it deletes."""

    added: dict[bytes, _Producer] = field(default_factory=dict)
    deleted: list[_Producer] = field(default_factory=list)
    gaps: "dict[bytes, tuple[Topic, int]]" = field(default_factory=dict)


class Producers:
    """The publishes that the producers of all topics here may repeat. Lives on the event loop."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._producers: OrderedDict[bytes, _Producer] = OrderedDict()  # by key, as they were used
        self._memory_bytes = 0
        # Up to when the memory of a topic has a gap, by the key of its row, the earliest first.
        self._gaps: dict[bytes, tuple[Topic, int]] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def load(
        self, key: bytes, topic: "Topic", prefix: bytes, row: ProducerRow | GapRow | None
    ) -> None:
        """Add a producer from its row, or a gap; None: the row can't be read.

        The clock may have been set while no server ran. So everything counts as used now, and a gap
        as one of this moment.
        """
        now_ms = self._now_ms()
        if isinstance(row, ProducerRow):
            self._keep(_Producer(key, topic, row, used_ms=now_ms))
        else:
            self._gaps[gap_key(prefix)] = topic, now_ms

    def find(self, prefix: bytes, request: RequestId, payloads_crc: int) -> Written | None:
        """The reply to a publish that was written; None: it was not, and is to be written.

        Raises:
            RequestForgottenError: that is not known any more.
            RequestIdReusedError: this publish has other messages.
            OverloadedError: the producer has too many publishes without a reply.
        """
        found = self._producers.get(producer_key(prefix, request.producer))
        if found is not None:
            entry = found.entries.get(request.number)
            if entry is not None:
                return _same(request, entry, payloads_crc)
            if request.number < found.answered:
                raise RequestForgottenError(
                    f"publish {request.number} of this producer is forgotten, since a later one "
                    f"said that all below {found.answered} are answered; whether it was executed "
                    "is unknown"
                )
            if found.entries_bytes > ENTRIES_BYTES_MAX:
                found.raise_answered(request.answered)
            if found.entries_bytes > ENTRIES_BYTES_MAX:
                raise OverloadedError(
                    f"this producer has {len(found.entries)} publishes from number "
                    f"{found.answered} on that it may still repeat, which is the most; wait for "
                    "their replies, and send a higher ANSWERED in the requestId"
                )
        if request.age_ms is not None:
            self._require_memory_of(prefix, request.age_ms)
        return None

    def _require_memory_of(self, prefix: bytes, age_ms: int) -> None:
        _, gap_ms = self._gaps.get(gap_key(prefix), (None, 0))
        if age_ms > WINDOW_MS or (gap_ms and self._now_ms() - age_ms <= gap_ms + _SLACK_MS):
            raise RequestForgottenError(
                f"the first attempt of this publish was sent {age_ms / 1000:.1f} seconds ago, and "
                "the server does not remember that far back; whether it was executed is unknown"
            )

    def remember(
        self,
        topic: "Topic",
        prefix: bytes,
        entries: Iterable[tuple[RequestId, bytes]],
        batch: "WriteBatch",
    ) -> None:
        """Add publishes that this batch writes, by their packed entries."""
        producer = None
        for request, entry in entries:
            key = producer_key(prefix, request.producer)
            if producer is None or producer.key != key:
                producer = batch.producers.added.get(key) or self._begin(key, topic, batch)
            producer.raise_answered(request.answered)
            producer.add(request.number, entry)

    def _begin(self, key: bytes, topic: "Topic", batch: "WriteBatch") -> _Producer:
        found = self._producers.get(key)
        if found is None:
            found = _Producer(key, topic, ProducerRow(0, {}), used_ms=batch.now_ms)
            self._producers[key] = found
        else:
            self._producers.move_to_end(key)
        found.used_ms = batch.now_ms
        found.added = []
        batch.producers.added[key] = found
        return found

    def finish(self, batch: "WriteBatch") -> None:
        """Put the rows of the producers for which this batch publishes, and forget others."""
        for key, producer in batch.producers.added.items():
            if self._producers.get(key) is producer:  # else this batch deletes its topic
                batch.put(key, ProducerRow(producer.answered, producer.entries).to_bytes(key))
                self._keep(producer)
        self._make_room(batch)

    def _make_room(self, batch: "WriteBatch") -> None:
        changed, oldest_ms = batch.producers.added, batch.now_ms - _KEPT_MS
        while self._producers:
            key, producer = next(iter(self._producers.items()))
            is_over = (
                len(self._producers) > PRODUCERS_COUNT_MAX
                or self._memory_bytes > PRODUCERS_BYTES_MAX
            )
            is_in_time = producer.used_ms >= oldest_ms
            if key in changed or (is_in_time and not is_over):
                break
            if producer.topic.is_released:
                self._producers.move_to_end(key)  # its row is about to be another server's
                break
            self._forget(key)
            batch.delete(key)
            if is_in_time:
                self._note_gap(producer, batch)
        key, (topic, until_ms) = next(iter(self._gaps.items()), (b"", (None, oldest_ms)))
        if topic is not None and until_ms < oldest_ms:
            del self._gaps[key]
            if not topic.is_released:
                batch.delete(key)

    def _note_gap(self, producer: _Producer, batch: "WriteBatch") -> None:
        key = gap_key(producer.key[1:-PRODUCER_SIZE])
        self._gaps.pop(key, None)
        self._gaps[key] = producer.topic, producer.used_ms
        batch.put(key, GapRow(producer.used_ms).to_bytes(key))

    def delete(self, prefix: bytes, batch: "WriteBatch") -> None:
        """Forget a generation of a topic that this batch deletes."""
        start = gap_key(prefix)
        for producer in [each for each in self._producers.values() if each.key.startswith(start)]:
            self._forget(producer.key)
            batch.producers.deleted.append(producer)
            batch.delete(producer.key)
        gap = self._gaps.pop(start, None)
        if gap is not None:
            batch.producers.gaps[start] = gap
            batch.delete(start)

    def take_back(self, changed: ChangedProducers) -> None:
        """A batch with these changes is lost."""
        for producer in changed.added.values():
            for number in producer.added:
                producer.remove(number)
        for producer in changed.deleted:
            self._keep(producer)
        self._gaps |= changed.gaps

    def forget_topic(self, topic: "Topic") -> None:
        """Another server owns the topic from now on."""
        for key in [key for key, each in self._producers.items() if each.topic is topic]:
            self._forget(key)
        for key in [key for key, (topic, _) in self._gaps.items() if topic is topic]:
            del self._gaps[key]

    def _keep(self, producer: _Producer) -> None:
        self._producers[producer.key] = producer
        needed = producer.entries_bytes + ENTRY_OVERHEAD_BYTES * (len(producer.entries) + 1)
        self._memory_bytes += needed - producer.counted_bytes
        producer.counted_bytes = needed

    def _forget(self, key: bytes) -> None:
        producer = self._producers.pop(key)
        self._memory_bytes -= producer.counted_bytes
        producer.counted_bytes = 0


def _same(request: RequestId, entry: bytes, payloads_crc: int) -> Written:
    first_crc, written = unpack_entry(entry)
    if first_crc != payloads_crc:
        raise RequestIdReusedError(
            f"publish {request.number} of this producer had other messages; number each publish "
            "once, and repeat it with the same messages"
        )
    return written
