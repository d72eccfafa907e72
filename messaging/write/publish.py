"""Publish, store and rollback: from the HTTP request to the rows of a write batch, and back to the
reply (protocol §3.1 to §3.3)."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from messaging.storage.attributes import encode_attributes
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
from messaging.topics import TOPIC_PATH, Topic, topic_of, topic_was_replaced
from messaging.write.group_commit import WRITE_OVERHEAD_BYTES, GroupCommitter, Write, WriteBatch
from tuff.protocol import avro, json_forms
from tuff.protocol.attributes import stored_size
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    InvalidTtlError,
    TopicNotFoundError,
)
from tuff.protocol.exchange import (
    EMPTY_REPLY,
    MediaType,
    Reply,
    Request,
    Route,
    body_form,
    json_reply,
    reply_form,
)
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.json_forms import parse_json, shown
from tuff.protocol.requests import Ack, PublishEntry, PublishRequest, RollbackDetail

ROW_OVERHEAD_BYTES = 64  # bytes; a row's key and head beside its payload

_PUBLISH_PARAMETERS = frozenset({"ttl", "ack"})
_STORE_PARAMETERS = frozenset({"ttl"})


def routes(publisher: "Publisher") -> list[Route]:
    """The HTTP routes of publish, store and rollback."""
    handlers = _Routes(publisher)
    return [
        Route("POST", f"{TOPIC_PATH}/publish", handlers.publish),
        Route("POST", f"{TOPIC_PATH}/store", handlers.store),
        Route("POST", f"{TOPIC_PATH}/rollback", handlers.rollback),
    ]


class _Routes:
    def __init__(self, publisher: "Publisher") -> None:
        self._publisher = publisher

    async def publish(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_PUBLISH_PARAMETERS)
        asked_in, publish = _publish_request(request)
        form = reply_form(request.accept, asked_in=asked_in)
        ack = _named_ack(request, publish) if request.query else None
        if ack is Ack.NONE:
            self._publisher.enqueue(topic, publish)
            return Reply(headers=(("Tuff-Ack", ack.value),))
        published = await self._publisher.publish(topic, publish, ack=ack or Ack.DURABLE)
        reply = _published(published, form.media_type)
        if ack is None:
            return reply
        return reply._replace(headers=(*reply.headers, ("Tuff-Ack", ack.value)))

    async def store(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_STORE_PARAMETERS)
        _, publish = _publish_request(request)
        await self._publisher.store(topic, publish)
        return EMPTY_REPLY

    async def rollback(self, request: Request) -> Reply:
        topic = topic_of(request)
        body = request.body
        if body_form(request.content_type, body).media_type is MediaType.AVRO:
            detail = avro.decode_rollback_detail(body)
        else:
            detail = json_forms.rollback_detail_from_json(parse_json(body) if body else {})
        await self._publisher.rollback(topic, detail)
        return EMPTY_REPLY


def _publish_request(request: Request) -> tuple[MediaType, PublishRequest]:
    body = request.body
    asked_in, schema = body_form(request.content_type, body)
    if asked_in is MediaType.AVRO:
        decode = avro.decode_publish_request if schema == 1 else avro.decode_publish_request_2
        publish = decode(body)
    else:
        publish = json_forms.publish_request_from_json(parse_json(body) if body else {})
    text = dict(request.query).get("ttl") if request.query else None
    if text is None:
        return asked_in, publish
    ttl_s = json_forms.ttl_from_json(text)
    own = publish.ttls_s or [None] * len(publish.payloads)
    ttls_s = [ttl_s if each is None else each for each in own]
    return asked_in, publish._replace(ttls_s=ttls_s, ttl_s=ttl_s)


def _named_ack(request: Request, publish: PublishRequest) -> Ack | None:
    text = dict(request.query).get("ack")
    if text is None:
        return None
    if text not in tuple(Ack):
        raise BadRequestError(f"ack is none, received or durable, not {shown(text)}")
    ack = Ack(text)
    if publish.pointer is not None and ack is not Ack.DURABLE:
        raise BadRequestError(
            f"ack={ack} is only for a publish without a transaction: a commit promises that the "
            "messages of its transaction are durable; omit ack"
        )
    return ack


def _published(published: "Published", media_type: MediaType) -> Reply:
    first = published.first.hex()
    last = first if published.last is published.first else published.last.hex()
    headers = (("Tuff-First-Id", first), ("Tuff-Last-Id", last))
    if published.rollback is None:
        return Reply(headers=headers)
    if media_type is MediaType.AVRO:
        body = avro.encode_rollback_detail(published.rollback)
        return Reply(200, media_type.value, body, headers)
    return json_reply(json_forms.rollback_detail_to_json(published.rollback), headers=headers)


class Published(NamedTuple):
    """The ids of the first and the last row written; `rollback` is None without a transaction."""

    first: MessageId
    last: MessageId
    rollback: RollbackDetail | None


class _Target(NamedTuple):
    """One publish of a batch: its topic and generation when the request was accepted."""

    topic: Topic
    generation: int
    entry: PublishEntry | PublishRequest


class Publisher:
    """Checks requests and submits their rows to the group committer. Lives on the event loop."""

    def __init__(self, state: StoreState, committer: GroupCommitter) -> None:
        self._state = state
        self._committer = committer

    async def publish(
        self, topic: TopicId, request: PublishRequest, *, ack: Ack = Ack.DURABLE
    ) -> Published:
        """Write messages, or the reference to stored ones (§3.1). When it returns they are durable;
        with the ack `RECEIVED` they only have their ids. For `NONE` there is `enqueue`."""
        put = self._checked_put(topic, request)
        pointer = request.pointer
        permit = None if pointer is None else await self._state.transactions.enter(pointer, topic)
        ((first, last),) = await self._committer.submit(
            Write(put, size_bytes=_size(request), permit=permit, ack=ack)
        )
        detail = None if pointer is None else RollbackDetail(pointer, first, last)
        first_id = MessageId(*first)
        return Published(first_id, first_id if last is first else MessageId(*last), detail)

    def enqueue(self, topic: TopicId, request: PublishRequest) -> None:
        """Let messages without a transaction be written with the next batch (§3.1). They may be
        lost after this: a crash, a disk that fails, or a topic that is deleted meanwhile."""
        put = self._checked_put(topic, request)
        self._committer.enqueue(Write(put, size_bytes=_size(request), ack=Ack.NONE))

    def _checked_put(
        self, topic: TopicId, request: PublishRequest
    ) -> "partial[list[tuple[Offset, Offset]]]":
        if not request.payloads:
            if request.pointer is None:
                raise EmptyPublishError(
                    "messages is empty, which only a publish under a transaction may be"
                )
            if request.ttl_s is not None:
                raise BadRequestError("a publish without messages takes no ttl: store takes it")
        return partial(self._put_all, [self._target(topic, request)], final=False)

    async def store(self, topic: TopicId, request: PublishRequest) -> None:
        """Write payloads, which a later reference row of the same pointer publishes (§3.2)."""
        if request.pointer is None or not request.payloads:
            raise BadRequestError("store takes a transactionWritePointer and at least one message")
        put = partial(self._put_stored, self._target(topic, request))
        permit = await self._state.transactions.enter(request.pointer, topic)
        await self._committer.submit(Write(put, size_bytes=_size(request), permit=permit))

    async def rollback(self, topic: TopicId, detail: RollbackDetail) -> None:
        """Hide one transactional publish from readers in a snapshot, for ever (§3.3)."""
        self._committer.require_ready()
        found = self._state.topics.find(topic)
        found.require_durable()
        permit = await self._state.transactions.enter_rollback(detail.pointer, topic)
        if permit is not None:
            await self._committer.submit(
                Write(partial(self._invert, found, detail), permit=permit, internal=True)
            )

    async def check_entries(self, entries: Sequence[PublishEntry]) -> None:
        """Raise the error with which `publish_final` would refuse these entries now."""
        self._committer.require_capacity()
        for target in [self._target(entry.topic, entry) for entry in entries]:
            if not target.entry.payloads:
                self._require_stored_here(target)

    async def publish_final(self, entries: Sequence[PublishEntry]) -> list[RollbackDetail]:
        """Write all entries as one batch, flagged as the last of their transaction."""
        targets = [self._target(entry.topic, entry) for entry in entries]
        size_bytes = sum(map(_size, entries))
        offsets = await self._committer.submit(
            Write(partial(self._put_all, targets, final=True), size_bytes=size_bytes)
        )
        return [
            RollbackDetail(_pointer_of(entry), first, last)
            for entry, (first, last) in zip(entries, offsets, strict=True)
        ]

    def _target(self, topic_id: TopicId, entry: PublishEntry | PublishRequest) -> _Target:
        self._committer.require_ready()
        topic = self._state.topics.find(topic_id)
        record = topic.require_durable()
        if entry.ttls_s:
            # That of the request is checked even if every message has its own.
            of_request_s = entry.ttl_s if isinstance(entry, PublishRequest) else None
            longest_s = max(filter(None, (of_request_s, *entry.ttls_s)), default=0)
            if longest_s > record.ttl_s:
                raise InvalidTtlError(
                    f"a ttl of {longest_s} s is longer than that of the topic {topic_id}, which is "
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
        payloads = target.entry.payloads
        if payloads:
            offsets = _put_messages(target, batch)
            batch.published(target.topic, count=len(payloads), size_bytes=sum(map(len, payloads)))
        else:
            offsets = self._put_reference(target, batch)
        if target.entry.pointer is not None:
            self._index(target, batch, MESSAGE_ROWS, offsets, final=final)
        return offsets

    def _put_reference(self, target: _Target, batch: WriteBatch) -> tuple[Offset, Offset]:
        """Put a row that publishes the stored messages. It contains their range, so that a later
        store can't change what a reader has already read."""
        pointer = _pointer_of(target.entry)
        stored = self._state.index.stored(pointer, target.topic.id)
        for entry in stored:
            batch.delete(entry.key)
            self._state.index.discard(entry)
            batch.on_lost(partial(self._state.index.add, entry))
        offsets = batch.next_offsets(1)
        offset = offsets[0]
        brings = NO_PAYLOADS
        if stored:
            count = sum(entry.count for entry in stored)
            brings = PayloadRange(stored[0].first, stored[-1].last, count)
            # A transaction may live longer than was ever allowed: the machine slept, or the clock
            # was set. Retention would then drop its payloads while the reference is live. So this
            # batch raises the recorded longest life.
            self._state.raise_longest_transaction(offset.timestamp_ms - brings.first.timestamp_ms)
        key = message_key(target.topic.prefix(target.generation), offset)
        batch.put(key, MessageRow(tx_pointer=pointer, reference=brings).to_bytes(key))
        size_bytes = sum(entry.payload_bytes for entry in stored)
        batch.published(target.topic, count=brings.count, size_bytes=size_bytes)
        return offsets

    def _put_stored(self, target: _Target, batch: WriteBatch) -> None:
        self._require_same(target)
        prefix, entry = target.topic.prefix(target.generation), target.entry
        pointer = _pointer_of(entry)
        offsets = batch.next_offsets(len(entry.payloads))
        keys = payload_keys(prefix, pointer, offsets[0], len(entry.payloads))
        # The pointer is in the key.
        values = _values(keys, entry, pointer=None)
        batch.stored.append((keys, values))
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

    def _require_same(self, target: _Target) -> None:
        if target.topic.require_decided().generation != target.generation:
            raise topic_was_replaced(target.topic.id)

    def _require_stored_here(self, target: _Target) -> None:
        # If the topic was deleted since the store, its messages are gone. A reference to them would
        # appear as an empty publish, and the loss would go unnoticed. Nor may the reference publish
        # only the messages stored since: the earlier store was acknowledged, too.
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


def _size(entry: PublishEntry | PublishRequest) -> int:
    payloads = entry.payloads
    size = sum(map(len, payloads)) + ROW_OVERHEAD_BYTES * len(payloads) + WRITE_OVERHEAD_BYTES
    if entry.attributes is None:
        return size
    return size + sum(stored_size(each) for each in entry.attributes if each is not None)


def _put_messages(target: _Target, batch: WriteBatch) -> tuple[Offset, Offset]:
    prefix, entry = target.topic.prefix(target.generation), target.entry
    offsets = batch.next_offsets(len(entry.payloads))
    keys = message_keys(prefix, offsets[0], len(entry.payloads))
    values = _values(keys, entry, pointer=entry.pointer)
    is_plain = entry.pointer is None and not any(entry.ttls_s or ()) and entry.attributes is None
    batch.new_rows.append(NewRows(prefix, keys, values, is_plain))
    return offsets


def _values(
    keys: Sequence[bytes], entry: PublishEntry | PublishRequest, *, pointer: int | None
) -> list[bytes]:
    attributes = entry.attributes
    stored = None
    if attributes is not None:
        stored = [None if each is None else encode_attributes(each) for each in attributes]
    return inline_values(
        keys, entry.payloads, pointer=pointer, ttls_s=entry.ttls_s, attributes=stored
    )
