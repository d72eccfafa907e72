"""Publish, store and rollback: what a request becomes in a batch (protocol §3.1 to §3.3)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from messaging.batch import Batch, Run
from messaging.index import MESSAGE_ROWS, PAYLOAD_ROWS, IndexedRange
from messaging.keys import index_key, message_key, message_keys, payload_keys
from messaging.live import Live
from messaging.rows import NO_PAYLOADS, MessageRow, PayloadRange, inline_values
from messaging.topics import Topic, TopicRecord, topic_was_replaced
from messaging.transactions import TransactionView
from messaging.writer import WRITE_OVERHEAD_BYTES, Write, Writer
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    InvalidTtlError,
    TopicNotFoundError,
)
from tuff.protocol.ids import MessageId, Place
from tuff.protocol.names import TopicId
from tuff.protocol.requests import PublishEntry, PublishRequest, RollbackDetail

ROW_OVERHEAD_BYTES = 64  # bytes; a row's key and head beside its payload


class Published(NamedTuple):
    """The ids of the first and the last row written; `rollback` is None without a transaction."""

    first: MessageId
    last: MessageId
    rollback: RollbackDetail | None


class _Target(NamedTuple):
    """One publish of a batch: to whom, as it was when the request was taken."""

    topic: Topic
    generation: int
    entry: PublishEntry | PublishRequest


class Publisher:
    """Takes requests in, checks them, and hands their rows to the writer. Lives on the loop."""

    def __init__(self, live: Live, writer: Writer, transactions: TransactionView) -> None:
        self._live = live
        self._writer = writer
        self._transactions = transactions

    async def publish(self, topic: TopicId, request: PublishRequest) -> Published:
        """Write messages, or the reference to stored ones; durable when it returns (§3.1)."""
        if request.pointer is None and not request.payloads:
            raise EmptyPublishError(
                "messages is empty, which only a publish under a transaction may be"
            )
        target = self._target(topic, request)
        permit = None if request.pointer is None else self._transactions.enter(request.pointer)
        places = await self._writer.submit(
            Write(
                partial(self._put_all, [target], final=False),
                size_bytes=_size(request.payloads),
                permit=permit,
            )
        )
        first, last = places[0]
        detail = None if request.pointer is None else RollbackDetail(request.pointer, first, last)
        first_id = MessageId(*first)
        return Published(first_id, first_id if last is first else MessageId(*last), detail)

    async def store(self, topic: TopicId, request: PublishRequest) -> None:
        """Write payloads that a later reference row of the same pointer brings (§3.2)."""
        if request.pointer is None or not request.payloads:
            raise BadRequestError("store takes a transactionWritePointer and at least one message")
        target = self._target(topic, request)
        permit = self._transactions.enter(request.pointer)
        size_bytes = _size(request.payloads)
        await self._writer.submit(
            Write(partial(self._put_stored, target), size_bytes=size_bytes, permit=permit)
        )

    async def rollback(self, topic: TopicId, detail: RollbackDetail) -> None:
        """Hide one transactional publish from readers in a snapshot, for ever (§3.3)."""
        self._writer.require_ready()
        found = self._live.topics.find(topic)
        found.require_durable()
        permit = self._transactions.enter_rollback(detail.pointer)
        if permit is not None:
            await self._writer.submit(
                Write(partial(self._invert, found, detail), permit=permit, internal=True)
            )

    def check_entries(self, entries: Sequence[PublishEntry]) -> None:
        """Raise what `publish_final` of these would be refused with."""
        self._writer.require_room()
        for target in [self._target(entry.topic, entry) for entry in entries]:
            if not target.entry.payloads:
                self._require_stored_here(target)

    async def publish_final(self, entries: Sequence[PublishEntry]) -> list[RollbackDetail]:
        """Write all entries as one batch, flagged as the last of their transaction."""
        targets = [self._target(entry.topic, entry) for entry in entries]
        size_bytes = sum(_size(entry.payloads) for entry in entries)
        places = await self._writer.submit(
            Write(partial(self._put_all, targets, final=True), size_bytes=size_bytes)
        )
        return [
            RollbackDetail(_pointer_of(entry), first, last)
            for entry, (first, last) in zip(entries, places, strict=True)
        ]

    def _target(self, topic_id: TopicId, entry: PublishEntry | PublishRequest) -> _Target:
        named: list[int] = []
        if entry.ttls_s:
            named = [each for each in entry.ttls_s if each is not None]
            if isinstance(entry, PublishRequest) and entry.ttl_s is not None:
                named.append(entry.ttl_s)  # right or wrong whether or not a message goes by it
            _check_ttls(named, entry.payloads)
        self._writer.require_ready()
        topic = self._live.topics.find(topic_id)
        record = topic.require_durable()
        if named and max(named) > record.ttl_s:
            raise InvalidTtlError(
                f"a ttl of {max(named)} s is longer than that of the topic {topic_id}, which is "
                f"{record.ttl_s} s"
            )
        return _Target(topic, record.generation, entry)

    def _put_all(
        self, targets: Sequence[_Target], batch: Batch, *, final: bool
    ) -> list[tuple[Place, Place]]:
        for target in targets:
            self._require_same(target)
            if not target.entry.payloads:
                self._require_stored_here(target)
        return [self._put_publish(target, batch, final=final) for target in targets]

    def _put_publish(self, target: _Target, batch: Batch, *, final: bool) -> tuple[Place, Place]:
        entry, payloads = target.entry, target.entry.payloads
        if payloads:
            places = _put_messages(target, batch)
            count, size_bytes = len(payloads), sum(map(len, payloads))
        else:
            places, count, size_bytes = self._put_reference(target, batch)
        if entry.pointer is not None:
            self._index(target, batch, MESSAGE_ROWS, places, final=final)
        batch.count_published(target.topic, messages=count, payload_bytes=size_bytes)
        return places

    def _put_reference(self, target: _Target, batch: Batch) -> tuple[tuple[Place, Place], int, int]:
        """A reference row, and the count and bytes of what it brings. It stores the range of that,
        so that a later store can't make grow what somebody has read."""
        pointer = _pointer_of(target.entry)
        stored = self._live.index.stored(pointer, target.topic.id)
        brings = NO_PAYLOADS
        if stored:
            count = sum(entry.count for entry in stored)
            brings = PayloadRange(stored[0].first, stored[-1].last, count)
        for entry in stored:
            batch.delete(entry.key)
            self._live.index.discard(entry)
            batch.on_lost(partial(self._live.index.add, entry))
        place = batch.next_place()
        if stored:
            self._note_wait(place.timestamp_ms - brings.first.timestamp_ms)
        key = message_key(target.topic.prefix(target.generation), place)
        batch.put(key, MessageRow(tx_pointer=pointer, reference=brings).to_bytes(key))
        return (place, place), brings.count, sum(entry.payload_bytes for entry in stored)

    def _note_wait(self, waited_ms: int) -> None:
        # Retention keeps a payload for the topic's time to live and the longest transaction on top.
        # Should one outlive what was ever allowed (a machine that slept, a clock that was set), its
        # payloads would go while the reference is live; so the same batch raises the longest.
        facts = self._live.facts
        longest_ms = max(facts.longest_transaction_ms, waited_ms)
        self._live.facts = replace(facts, longest_transaction_ms=longest_ms)

    def _put_stored(self, target: _Target, batch: Batch) -> None:
        self._require_same(target)
        prefix, entry = target.topic.prefix(target.generation), target.entry
        pointer = _pointer_of(entry)
        places = batch.next_places(len(entry.payloads))
        keys = payload_keys(prefix, pointer, places[0], len(entry.payloads))
        # The pointer stands in the key.
        values = inline_values(keys, entry.payloads, pointer=None, ttls_s=entry.ttls_s)
        batch.put_stored(keys, values)
        size_bytes = sum(map(len, entry.payloads))
        self._index(target, batch, PAYLOAD_ROWS, places, final=False, payload_bytes=size_bytes)

    def _index(
        self,
        target: _Target,
        batch: Batch,
        kind: bytes,
        places: tuple[Place, Place],
        *,
        final: bool,
        payload_bytes: int = 0,
    ) -> None:
        first, last = places
        pointer, topic = _pointer_of(target.entry), target.topic
        entry = IndexedRange(
            pointer=pointer,
            kind=kind,
            topic=topic.id,
            generation=target.generation,
            first=first,
            last=last,
            final=final,
            written_ms=batch.now_ms,
            payload_bytes=payload_bytes,
        )
        key = index_key(pointer, kind, topic.prefix(target.generation), first)
        batch.put(key, entry.to_bytes(key))
        self._live.index.add_under(key, entry)
        batch.on_lost(partial(self._live.index.discard, entry))

    def _invert(self, topic: Topic, detail: RollbackDetail, batch: Batch) -> None:
        generation = topic.require_decided().generation
        for entry in self._live.index.message_ranges(detail.pointer):
            first, last = max(entry.first, detail.first), min(entry.last, detail.last)
            if (entry.topic, entry.generation) == (topic.id, generation) and first <= last:
                batch.invert(detail.pointer, topic.prefix(generation), first, last)
                batch.touch(topic)

    def _require_same(self, target: _Target) -> TopicRecord:
        record = target.topic.require_decided()
        if record.generation != target.generation:
            raise topic_was_replaced(target.topic.id)
        return record

    def _require_stored_here(self, target: _Target) -> None:
        # A reference to what was stored for a topic that is deleted would appear as a publish of
        # nothing, and its messages would be gone without anybody being told. Nor does it bring only
        # what was stored since: whoever stored the rest was told that a publish brings all of it.
        pointer, topic = _pointer_of(target.entry), target.topic.id
        stored = self._live.index.stored(pointer, topic)
        if any(entry.generation != target.generation for entry in stored):
            raise TopicNotFoundError(
                f"the topic {topic} was deleted after messages had been stored for it under "
                f"{pointer}, and they are gone; abort the transaction, and store all of them again "
                "in a new one"
            )


def _pointer_of(entry: PublishEntry | PublishRequest) -> int:
    assert entry.pointer is not None
    return entry.pointer


def _size(payloads: Sequence[bytes]) -> int:
    return sum(map(len, payloads)) + ROW_OVERHEAD_BYTES * len(payloads) + WRITE_OVERHEAD_BYTES


def _check_ttls(named: Sequence[int], payloads: Sequence[bytes]) -> None:
    if not named:
        return
    if not payloads:
        raise InvalidTtlError("a publish without messages takes no ttl; store takes it")
    if min(named) < 1:
        raise InvalidTtlError(f"a ttl is whole seconds from 1 on, not {min(named)}")


def _put_messages(target: _Target, batch: Batch) -> tuple[Place, Place]:
    prefix, entry = target.topic.prefix(target.generation), target.entry
    places = batch.next_places(len(entry.payloads))
    keys = message_keys(prefix, places[0], len(entry.payloads))
    values = inline_values(keys, entry.payloads, pointer=entry.pointer, ttls_s=entry.ttls_s)
    is_plain = entry.pointer is None and not any(entry.ttls_s or ())
    batch.put_run(Run(prefix, keys, values, is_plain))
    return places
