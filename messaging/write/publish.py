"""Publish, store and rollback: from a request to the rows of a batch (protocol §3.1 to §3.3)."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from messaging.storage.packed_rows import NewRows
from messaging.storage.pointer_index import MESSAGE_ROWS, PAYLOAD_ROWS, IndexedRange
from messaging.storage.rows import (
    NO_PAYLOADS,
    MessageRow,
    PayloadRange,
    index_key,
    inline_values,
    message_key,
    message_keys,
    payload_keys,
)
from messaging.storage.store_state import StoreState
from messaging.topics import Topic, TopicRecord, topic_was_replaced
from messaging.write.group_commit import WRITE_OVERHEAD_BYTES, GroupCommitter, Write, WriteBatch
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    InvalidTtlError,
    TopicNotFoundError,
)
from tuff.protocol.ids import MessageId, Offset, TopicId
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
    """Checks requests and hands their rows to the group committer. Lives on the event loop."""

    def __init__(self, state: StoreState, committer: GroupCommitter) -> None:
        self._state = state
        self._committer = committer

    async def publish(self, topic: TopicId, request: PublishRequest) -> Published:
        """Write messages, or the reference to stored ones; durable when it returns (§3.1)."""
        if request.pointer is None and not request.payloads:
            raise EmptyPublishError(
                "messages is empty, which only a publish under a transaction may be"
            )
        target = self._target(topic, request)
        permit = (
            None if request.pointer is None else self._state.transactions.enter(request.pointer)
        )
        offsets = await self._committer.submit(
            Write(
                partial(self._put_all, [target], final=False),
                size_bytes=_size(request.payloads),
                permit=permit,
            )
        )
        first, last = offsets[0]
        detail = None if request.pointer is None else RollbackDetail(request.pointer, first, last)
        first_id = MessageId(*first)
        return Published(first_id, first_id if last is first else MessageId(*last), detail)

    async def store(self, topic: TopicId, request: PublishRequest) -> None:
        """Write payloads that a later reference row of the same pointer brings (§3.2)."""
        if request.pointer is None or not request.payloads:
            raise BadRequestError("store takes a transactionWritePointer and at least one message")
        target = self._target(topic, request)
        permit = self._state.transactions.enter(request.pointer)
        size_bytes = _size(request.payloads)
        await self._committer.submit(
            Write(partial(self._put_stored, target), size_bytes=size_bytes, permit=permit)
        )

    async def rollback(self, topic: TopicId, detail: RollbackDetail) -> None:
        """Hide one transactional publish from readers in a snapshot, for ever (§3.3)."""
        self._committer.require_ready()
        found = self._state.topics.find(topic)
        found.require_durable()
        permit = self._state.transactions.enter_rollback(detail.pointer)
        if permit is not None:
            await self._committer.submit(
                Write(partial(self._invert, found, detail), permit=permit, internal=True)
            )

    def check_entries(self, entries: Sequence[PublishEntry]) -> None:
        """Raise what `publish_final` of these would be refused with."""
        self._committer.require_capacity()
        for target in [self._target(entry.topic, entry) for entry in entries]:
            if not target.entry.payloads:
                self._require_stored_here(target)

    async def publish_final(self, entries: Sequence[PublishEntry]) -> list[RollbackDetail]:
        """Write all entries as one batch, flagged as the last of their transaction."""
        targets = [self._target(entry.topic, entry) for entry in entries]
        size_bytes = sum(_size(entry.payloads) for entry in entries)
        offsets = await self._committer.submit(
            Write(partial(self._put_all, targets, final=True), size_bytes=size_bytes)
        )
        return [
            RollbackDetail(_pointer_of(entry), first, last)
            for entry, (first, last) in zip(entries, offsets, strict=True)
        ]

    def _target(self, topic_id: TopicId, entry: PublishEntry | PublishRequest) -> _Target:
        named: list[int] = []
        if entry.ttls_s:
            named = [each for each in entry.ttls_s if each is not None]
            if isinstance(entry, PublishRequest) and entry.ttl_s is not None:
                named.append(entry.ttl_s)  # right or wrong whether or not a message goes by it
            _check_ttls(named, entry.payloads)
        self._committer.require_ready()
        topic = self._state.topics.find(topic_id)
        record = topic.require_durable()
        if named and max(named) > record.ttl_s:
            raise InvalidTtlError(
                f"a ttl of {max(named)} s is longer than that of the topic {topic_id}, which is "
                f"{record.ttl_s} s"
            )
        return _Target(topic, record.generation, entry)

    def _put_all(
        self, targets: Sequence[_Target], batch: WriteBatch, *, final: bool
    ) -> list[tuple[Offset, Offset]]:
        for target in targets:
            self._require_same(target)
            if not target.entry.payloads:
                self._require_stored_here(target)
        return [self._put_publish(target, batch, final=final) for target in targets]

    def _put_publish(
        self, target: _Target, batch: WriteBatch, *, final: bool
    ) -> tuple[Offset, Offset]:
        entry, payloads = target.entry, target.entry.payloads
        if payloads:
            offsets = _put_messages(target, batch)
            count, size_bytes = len(payloads), sum(map(len, payloads))
        else:
            offsets, count, size_bytes = self._put_reference(target, batch)
        if entry.pointer is not None:
            self._index(target, batch, MESSAGE_ROWS, offsets, final=final)
        batch.count_published(target.topic, messages=count, payload_bytes=size_bytes)
        return offsets

    def _put_reference(
        self, target: _Target, batch: WriteBatch
    ) -> tuple[tuple[Offset, Offset], int, int]:
        """A reference row, and the count and bytes of what it brings. It stores the range of that,
        so that a later store can't change what a reader has already read."""
        pointer = _pointer_of(target.entry)
        stored = self._state.index.stored(pointer, target.topic.id)
        brings = NO_PAYLOADS
        if stored:
            count = sum(entry.count for entry in stored)
            brings = PayloadRange(stored[0].first, stored[-1].last, count)
        for entry in stored:
            batch.delete(entry.key)
            self._state.index.discard(entry)
            batch.on_lost(partial(self._state.index.add, entry))
        offset = batch.next_offset()
        if stored:
            # Should a transaction outlive what was ever allowed (a machine that slept, a clock that
            # was set), its payloads would go while the reference is live. So this batch raises the
            # longest life.
            self._state.note_longest_transaction(offset.timestamp_ms - brings.first.timestamp_ms)
        key = message_key(target.topic.prefix(target.generation), offset)
        batch.put(key, MessageRow(tx_pointer=pointer, reference=brings).to_bytes(key))
        return (offset, offset), brings.count, sum(entry.payload_bytes for entry in stored)

    def _put_stored(self, target: _Target, batch: WriteBatch) -> None:
        self._require_same(target)
        prefix, entry = target.topic.prefix(target.generation), target.entry
        pointer = _pointer_of(entry)
        offsets = batch.next_offsets(len(entry.payloads))
        keys = payload_keys(prefix, pointer, offsets[0], len(entry.payloads))
        # The pointer stands in the key.
        values = inline_values(keys, entry.payloads, pointer=None, ttls_s=entry.ttls_s)
        batch.put_stored(keys, values)
        size_bytes = sum(map(len, entry.payloads))
        self._index(target, batch, PAYLOAD_ROWS, offsets, final=False, payload_bytes=size_bytes)

    def _index(
        self,
        target: _Target,
        batch: WriteBatch,
        kind: bytes,
        offsets: tuple[Offset, Offset],
        *,
        final: bool,
        payload_bytes: int = 0,
    ) -> None:
        first, last = offsets
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
        self._state.index.add_under(key, entry)
        batch.on_lost(partial(self._state.index.discard, entry))

    def _invert(self, topic: Topic, detail: RollbackDetail, batch: WriteBatch) -> None:
        generation = topic.require_decided().generation
        for entry in self._state.index.message_ranges(detail.pointer):
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
        # nothing, and its messages would be gone without notice. Nor does it bring only what was
        # stored since: the caller that stored the rest was told that a publish brings all of it.
        pointer, topic = _pointer_of(target.entry), target.topic.id
        stored = self._state.index.stored(pointer, topic)
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


def _put_messages(target: _Target, batch: WriteBatch) -> tuple[Offset, Offset]:
    prefix, entry = target.topic.prefix(target.generation), target.entry
    offsets = batch.next_offsets(len(entry.payloads))
    keys = message_keys(prefix, offsets[0], len(entry.payloads))
    values = inline_values(keys, entry.payloads, pointer=entry.pointer, ttls_s=entry.ttls_s)
    is_plain = entry.pointer is None and not any(entry.ttls_s or ())
    batch.put_new_rows(NewRows(prefix, keys, values, is_plain))
    return offsets
