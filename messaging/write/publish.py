"""Publish, store and rollback: from the HTTP request to the rows of a write batch, and back to the
reply (protocol §3.1 to §3.3)."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from messaging.partitions import ONE_PARTITION, Part, divided, selected
from messaging.storage.packed_rows import NewRows
from messaging.storage.pointer_index import MESSAGE_ROWS, PAYLOAD_ROWS, IndexedRange
from messaging.storage.rows import (
    NO_PAYLOADS,
    MessageRow,
    PayloadRange,
    delayed_key,
    index_key,
    inline_values,
    log_message,
    message_key,
    message_keys,
    offset_after,
    payload_keys,
)
from messaging.storage.store_state import StoreState
from messaging.topics import (
    TOPIC_PATH,
    TTL_S_MAX,
    Topic,
    created,
    partition_retired,
    topic_of,
    topic_was_replaced,
)
from messaging.write.group_commit import WRITE_OVERHEAD_BYTES, GroupCommitter, Write, WriteBatch
from tuff.protocol import avro, json_forms
from tuff.protocol.attributes import stored_size
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    InvalidDelayError,
    InvalidTtlError,
    TopicNotFoundError,
    TuffError,
)
from tuff.protocol.exchange import (
    EMPTY_REPLY,
    Caller,
    Joint,
    MediaType,
    Reply,
    Request,
    Route,
    body_form,
    form_reply,
    reply_form,
)
from tuff.protocol.ids import DelayedId, MessageId, Offset, TopicId
from tuff.protocol.json_forms import shown
from tuff.protocol.requests import (
    DELAY_MS_MAX,
    Ack,
    Delay,
    PublishEntry,
    PublishRequest,
    RollbackDetail,
)

ROW_OVERHEAD_BYTES = 64  # bytes; a row's key and head beside its payload

_LOG_PROPERTIES = {"ttl": str(TTL_S_MAX)}  # a log never expires: its log start follows its reader
_STORE_PARAMETERS = frozenset({"ttl"})
_PUBLISH_PARAMETERS = _STORE_PARAMETERS | {"ack", "delay", "at"}


def routes(publisher: "Publisher") -> list[Route]:
    """The HTTP routes of publish, store and rollback."""
    handlers = _Routes(publisher)
    return [
        Route(
            "POST",
            f"{TOPIC_PATH}/publish",
            handlers.publish,
            handlers.publish_jointly,
            joint_by_path=True,
        ),
        Route("POST", f"{TOPIC_PATH}/store", handlers.store),
        Route("POST", f"{TOPIC_PATH}/rollback", handlers.rollback),
    ]


class _Routes:
    def __init__(self, publisher: "Publisher") -> None:
        self._publisher = publisher

    async def publish(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_PUBLISH_PARAMETERS)
        asked_in, publish = _publish_request(request)
        media_type = asked_in
        if request.accept is not None:
            media_type = reply_form(request.accept, asked_in=asked_in).media_type
        ack = _named_ack(request, publish) if request.query else None
        if ack is Ack.NONE:
            self._publisher.enqueue(topic, publish)
            return Reply(headers=(("Tuff-Ack", ack.value),))
        published = await self._publisher.publish(
            topic, publish, ack=ack or Ack.DURABLE, caller=request.caller
        )
        reply = _published(request, published, media_type)
        if ack is None:
            return reply
        return reply._replace(headers=(*reply.headers, ("Tuff-Ack", ack.value)))

    def publish_jointly(self, requests: Sequence[Request]) -> Joint | None:
        """As `publish`, for calls to one topic, which become one write. None: not all of them have
        payloads and nothing else, and the order of their messages is that of the calls."""
        payloads: list[bytes] = []
        counts: list[int] = []
        for request in requests:
            _, publish = _publish_request(request)
            if not _is_plain(publish):
                return None
            payloads += publish.payloads
            counts.append(len(publish.payloads))
        topic = topic_of(requests[0])
        written = self._publisher.publish_jointly(topic, payloads, requests_count=len(counts))
        return None if written is None else Joint(_joint_replies(written, counts))

    async def store(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_STORE_PARAMETERS)
        _, publish = _publish_request(request)
        await self._publisher.store(topic, publish, caller=request.caller)
        return EMPTY_REPLY

    async def rollback(self, request: Request) -> Reply:
        topic = topic_of(request)
        body = request.body
        if body_form(request.content_type, body).media_type is MediaType.AVRO:
            detail = avro.decode_rollback_detail(body)
        else:
            detail = json_forms.rollback_detail_from_json(request.value())
        await self._publisher.rollback(topic, detail, caller=request.caller)
        return EMPTY_REPLY


def _publish_request(request: Request) -> tuple[MediaType, PublishRequest]:
    body = request.body
    asked_in, schema = body_form(request.content_type, body)
    query = dict(request.query) if request.query else {}
    of_all = json_forms.delay_from_json(query) if query else None
    if asked_in is MediaType.AVRO:
        decode = avro.decode_publish_request if schema == 1 else avro.decode_publish_request_2
        publish = decode(body)
        if of_all is not None:
            publish = publish._replace(delays=[of_all] * len(publish.payloads))
    else:
        publish = json_forms.publish_request_from_json(request.value(), of_all=of_all)
    if "ttl" not in query:
        return asked_in, publish
    ttl_s = json_forms.ttl_from_json(query["ttl"])
    own = publish.ttls_s or [None] * len(publish.payloads)
    ttls_s = [ttl_s if each is None else each for each in own]
    return asked_in, publish._replace(ttls_s=ttls_s, ttl_s=ttl_s)


def _is_plain(publish: PublishRequest) -> bool:
    """Whether it has payloads and nothing else."""
    return bool(publish.payloads) and publish == PublishRequest(None, publish.payloads)


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


def _published(request: Request, published: "Published", media_type: MediaType) -> Reply:
    headers = _ids(published) if published.delayed is None else _delayed_ids(published.delayed)
    if published.partitions:
        headers = (*headers, ("Tuff-Partitions", ",".join(map(str, published.partitions))))
    if published.rollback is None:
        return Reply(200, None, b"", headers)
    if media_type is MediaType.AVRO:
        body = avro.encode_rollback_detail(published.rollback)
        return Reply(200, media_type.value, body, headers)
    detail = json_forms.rollback_detail_to_json(published.rollback)
    return form_reply(request, detail)._replace(headers=headers)


async def _joint_replies(
    written: Awaitable[list[tuple[Offset, Offset]]], counts: Sequence[int]
) -> list[Reply]:
    """The replies to publishes with these counts of messages, written one after the other."""
    ((offset, _),) = await written
    number = offset.to_int()
    replies = []
    for count in counts:
        first = _inline_id(number)
        last = first if count == 1 else _inline_id(number + count - 1)
        replies.append(Reply(200, None, b"", (("Tuff-First-Id", first), ("Tuff-Last-Id", last))))
        number += count
    return replies


def _inline_id(number: int) -> str:
    """The hex digits of the message id of a row at the offset with this number."""
    return f"{number:020x}{0:020x}"


def _ids(published: "Published") -> tuple[tuple[str, str], ...]:
    first = published.first.hex()
    last = first if published.last is published.first else published.last.hex()
    return (("Tuff-First-Id", first), ("Tuff-Last-Id", last))


def _delayed_ids(delayed: "DelayedRange") -> tuple[tuple[str, str], ...]:
    return (
        ("Tuff-Delayed", str(delayed.count)),
        ("Tuff-Delayed-First", delayed.first.hex()),
        ("Tuff-Delayed-Last", delayed.last.hex()),
    )


@dataclass(frozen=True, slots=True)
class DelayedRange:
    """The ids of the first and the last message of a delayed publish, in the order of the request,
    and their count."""

    first: DelayedId
    last: DelayedId
    count: int


class Published(NamedTuple):
    """The ids of the first and the last row written; `rollback` is None without a transaction,
    `delayed` if the messages are not delayed. The numbers of the partitions that have the rows, for
    a topic with several."""

    first: MessageId
    last: MessageId
    rollback: RollbackDetail | None
    delayed: DelayedRange | None = None
    partitions: Sequence[int] = ()


class _Target(NamedTuple):
    """One publish of a batch: its topic and generation when the request was accepted, and when its
    messages are due, in ms; None if they are not delayed. `numbers`: if the topic has several
    partitions, an empty list that gets the numbers of those that have the rows, when these are
    made. `places`: of a part, the index of each message in the publish."""

    topic: Topic
    generation: int
    entry: PublishEntry | PublishRequest
    due_ms: Sequence[int] | None = None
    numbers: list[int] | None = None
    places: Sequence[int] | None = None


class Publisher:
    """Checks requests and submits their rows to the group committer. Lives on the event loop."""

    def __init__(self, state: StoreState, committer: GroupCommitter) -> None:
        self._state = state
        self._committer = committer

    async def publish(
        self,
        topic: TopicId,
        request: PublishRequest,
        *,
        ack: Ack = Ack.DURABLE,
        caller: Caller | None = None,
    ) -> Published:
        """Write messages, or the reference to stored ones (§3.1). When it returns they are durable;
        with the ack `RECEIVED` they only have their ids. For `NONE` there is `enqueue`. A
        transaction of the request has to be the caller's."""
        target, pointer = self._checked_target(topic, request), request.pointer
        put = partial(self._put_all, [target], final=False)
        permit = None
        if pointer is not None:
            permit = await self._state.transactions.enter(pointer, target.topic.id, caller)
        ((first, last),) = await self._committer.submit(
            Write(put, size_bytes=_size(request), permit=permit, ack=ack)
        )
        detail = None if pointer is None else RollbackDetail(pointer, first, last)
        first_id = MessageId(*first)
        last_id = first_id if last is first else MessageId(*last)
        if (due_ms := target.due_ms) is None:
            return Published(first_id, last_id, detail, None, target.numbers or ())
        ids = DelayedId(due_ms[0], first), DelayedId(due_ms[-1], last)
        delayed = DelayedRange(*ids, len(due_ms))
        return Published(first_id, last_id, detail, delayed, target.numbers or ())

    def publish_jointly(
        self, topic: TopicId, payloads: Sequence[bytes], *, requests_count: int
    ) -> Awaitable[list[tuple[Offset, Offset]]] | None:
        """Write the messages of several publishes with neighbouring offsets; the first and the last
        one. None: nothing is written, since each publish may go to another partition."""
        request = PublishRequest(None, payloads)
        target = self._checked_target(topic, request)
        if target.numbers is not None:
            return None
        put = partial(self._put_all, [target], final=False)
        write = Write(put, size_bytes=_size(request), requests_count=requests_count)
        return self._committer.submit(write)

    def enqueue(self, topic: TopicId, request: PublishRequest) -> None:
        """Let messages without a transaction be written with the next batch (§3.1). They may be
        lost after this: a crash, a disk that fails, or a topic that is deleted meanwhile."""
        put = partial(self._put_all, [self._checked_target(topic, request)], final=False)
        self._committer.enqueue(Write(put, size_bytes=_size(request), ack=Ack.NONE))

    def _checked_target(self, topic: TopicId, request: PublishRequest) -> _Target:
        if not request.payloads:
            if request.pointer is None:
                raise EmptyPublishError(
                    "messages is empty, which only a publish under a transaction may be"
                )
            if request.ttl_s is not None:
                raise BadRequestError("a publish without messages takes no ttl: store takes it")
            if request.delays is not None:
                raise json_forms.no_delay_of_stored()
        return self._target(topic, request)

    async def store(
        self, topic: TopicId, request: PublishRequest, *, caller: Caller | None = None
    ) -> None:
        """Write payloads, which a later reference row of the same pointer publishes (§3.2)."""
        if request.pointer is None or not request.payloads:
            raise BadRequestError("store takes a transactionWritePointer and at least one message")
        if request.delays is not None:
            raise json_forms.no_delay_of_stored()
        target = self._target(topic, request)
        put = partial(self._put_stored, target)
        permit = await self._state.transactions.enter(request.pointer, target.topic.id, caller)
        await self._committer.submit(Write(put, size_bytes=_size(request), permit=permit))

    async def rollback(
        self, topic: TopicId, detail: RollbackDetail, *, caller: Caller | None = None
    ) -> None:
        """Hide one transactional publish from readers in a snapshot, for ever (§3.3)."""
        self._committer.require_ready()
        found = self._state.topics.find(topic)
        record = found.require_durable()
        logs = [found]
        if record.is_several(topic):
            logs = self._logs(found, record.partitions.readable)
        permit = await self._state.transactions.enter_rollback(detail.pointer, found.id, caller)
        if permit is not None:
            await self._committer.submit(
                Write(partial(self._invert, logs, detail), permit=permit, internal=True)
            )

    async def check_entries(self, entries: Sequence[PublishEntry]) -> None:
        """Raise the error with which `publish_final` would refuse these entries now."""
        self.check_now(entries)

    def check_now(self, entries: Sequence[PublishEntry]) -> bool:
        """As `check_entries`, which waits for nothing here; True."""
        self._committer.require_capacity()
        for target in [self._target(entry.topic, entry) for entry in entries]:
            if not target.entry.payloads:
                for part in self._parts(target):
                    self._require_same(part)
                    self._require_stored_here(part)
        return True

    async def publish_final(
        self, commits: Sequence[Sequence[PublishEntry]]
    ) -> list[list[RollbackDetail] | TuffError]:
        """Write the entries of these commits as one batch, flagged as the last of their
        transactions. A commit that can't be written has its error, and no rows."""
        targets = [[self._target(entry.topic, entry) for entry in commit] for commit in commits]
        size_bytes = sum(_size(entry) for commit in commits for entry in commit)
        put = partial(self._put_commits, targets)
        written = await self._committer.submit(
            Write(put, size_bytes=size_bytes, requests_count=len(commits))
        )
        return [
            offsets if isinstance(offsets, TuffError) else _details(commit, offsets)
            for commit, offsets in zip(commits, written, strict=True)
        ]

    def _put_commits(
        self, commits: Sequence[Sequence[_Target]], batch: WriteBatch
    ) -> list[list[tuple[Offset, Offset]] | TuffError]:
        written: list[list[tuple[Offset, Offset]] | TuffError] = []
        for targets in commits:
            try:
                written.append(self._put_all(targets, batch, final=True))
            except TuffError as error:  # it has put no rows
                written.append(error)
        return written

    def _target(self, topic_id: TopicId, entry: PublishEntry | PublishRequest) -> _Target:
        self._committer.require_ready()
        topic = self._state.topics.find(topic_id)
        record = topic.require_durable()
        if record.is_retired:
            raise partition_retired(topic_id)
        if entry.ttls_s:
            # That of the request is checked even if every message has its own.
            of_request_s = entry.ttl_s if isinstance(entry, PublishRequest) else None
            longest_s = max(filter(None, (of_request_s, *entry.ttls_s)), default=0)
            if longest_s > record.ttl_s:
                raise InvalidTtlError(
                    f"a ttl of {longest_s} s is longer than that of the topic {topic_id}, which is "
                    f"{record.ttl_s} s"
                )
        is_several = record.partitions is not ONE_PARTITION and record.is_several(topic_id)
        due_ms = None
        if entry.delays is not None:
            due_ms = _due_times_ms(entry.delays, now_ms=self._state.now_ms())
            numbers = record.partitions.active if is_several else ()
            self._require_logs_readable(self._logs(topic, numbers) or [topic], entry)
        return _Target(topic, record.generation, entry, due_ms, [] if is_several else None)

    def _require_logs_readable(
        self, topics: Sequence[Topic], entry: PublishEntry | PublishRequest
    ) -> None:
        # Before a row of any entry is put: a commit writes all of its entries or none.
        if entry.pointer is not None:
            for topic in topics:
                log = self._state.topics.maybe_find(topic.id.delayed_log)
                if log is not None:
                    log.require_readable()

    def _put_all(
        self, targets: Sequence[_Target], batch: WriteBatch, *, final: bool
    ) -> list[tuple[Offset, Offset]]:
        parts_of = [self._parts(target) for target in targets]
        for parts in parts_of:
            for part in parts:
                self._require_same(part)
                if not part.entry.payloads:
                    self._require_stored_here(part)
        return [
            self._put_publish(target, batch, final=final)
            if target.numbers is None
            else self._put_parts(target, parts, batch, final=final)
            for target, parts in zip(targets, parts_of, strict=True)
        ]

    def _put_parts(
        self, target: _Target, parts: Sequence[_Target], batch: WriteBatch, *, final: bool
    ) -> tuple[Offset, Offset]:
        assert target.numbers is not None
        target.numbers.extend(part.topic.id.number or 0 for part in parts)
        if len(parts) == 1 or not target.entry.payloads:
            written = [self._put_publish(part, batch, final=final) for part in parts]
            return written[0][0], written[-1][1]
        # Over all partitions the offsets are those of the order in the request. So a reader of all
        # of them gets this order, and the publisher knows the id of each message.
        first, last = batch.next_offsets(len(target.entry.payloads))
        for part in parts:
            if part.due_ms is None:
                self._put_scattered(part, batch, first, final=final)
            else:
                self._put_delayed(part, part.due_ms, batch, first, final=final)
        return first, last

    def _parts(self, target: _Target) -> Sequence[_Target]:
        """A publish by partition. They are those at the time at which it is written."""
        if target.numbers is None:
            return [target]
        self._require_same(target)
        topic, entry = target.topic, target.entry
        partitions = topic.require_decided().partitions
        if entry.payloads:
            parts = divided(entry, partitions.active, turn=topic.turn)
            topic.turn += 1
        else:
            parts = [Part(number, entry) for number in self._stored_in(target)]
        logs = self._logs(topic, [part.number for part in parts])
        return [
            _Target(
                log,
                log.require_decided().generation,
                part.entry,
                selected(target.due_ms, part.places),
                places=part.places,
            )
            for log, part in zip(logs, parts, strict=True)
        ]

    def _stored_in(self, target: _Target) -> Sequence[int]:
        """The partitions for which a transaction stored messages, also those that are gone; the
        first one if there is none."""
        found = self._state.index.stored_in(_pointer_of(target.entry), target.topic.id)
        return sorted(each.number or 0 for each in found) or [0]

    def _logs(self, topic: Topic, numbers: Sequence[int]) -> list[Topic]:
        """These partitions of a topic."""
        find = self._state.topics.find
        return [find(topic.id.partition(number)) if number else topic for number in numbers]

    def _put_publish(
        self, target: _Target, batch: WriteBatch, *, final: bool
    ) -> tuple[Offset, Offset]:
        payloads = target.entry.payloads
        if target.due_ms is not None:
            offsets = batch.next_offsets(len(payloads))
            self._put_delayed(target, target.due_ms, batch, offsets[0], final=final)
            return offsets
        if payloads:
            offsets = _put_messages(target, batch)
            batch.published(target.topic, count=len(payloads), size_bytes=sum(map(len, payloads)))
        else:
            offsets = self._put_reference(target, batch)
        if target.entry.pointer is not None:
            self._index(target, batch, MESSAGE_ROWS, offsets, final=final)
        return offsets

    def _put_scattered(
        self, target: _Target, batch: WriteBatch, start: Offset, *, final: bool
    ) -> None:
        """Put the messages of one partition, with offsets by their places in the publish."""
        entry = target.entry
        assert target.places is not None
        offsets = [offset_after(start, place) for place in target.places]
        keys = [message_key(target.topic.prefix(target.generation), each) for each in offsets]
        values = _values(keys, entry, pointer=entry.pointer)
        for key, value in zip(keys, values, strict=True):
            batch.put(key, value)
        size_bytes = sum(map(len, entry.payloads))
        batch.published(target.topic, count=len(offsets), size_bytes=size_bytes)
        if entry.pointer is not None:
            self._index(target, batch, MESSAGE_ROWS, (offsets[0], offsets[-1]), final=final)

    def _put_delayed(
        self,
        target: _Target,
        due_ms: Sequence[int],
        batch: WriteBatch,
        start: Offset,
        *,
        final: bool,
    ) -> None:
        """Put delayed rows, or under a transaction the messages of the log that contain them, with
        offsets by their places in the publish."""
        entry, prefix = target.entry, target.topic.prefix(target.generation)
        places = range(len(due_ms)) if target.places is None else target.places
        offsets = [offset_after(start, place) for place in places]
        ids = list(map(DelayedId, due_ms, offsets))
        keys = [delayed_key(prefix, each) for each in ids]
        values = _values(keys, entry, pointer=None)
        if entry.pointer is None:
            batch.delayed += zip(keys, values, strict=True)
            note = partial(self._state.look_times.note, target.topic.id, min(due_ms))
            batch.on_durable(note)
            return
        log = self._state.topics.find_or_add(target.topic.id.delayed_log)
        generation = _open_log(log, batch)
        messages = list(map(log_message, ids, values))
        held = PublishEntry(topic=log.id, payloads=messages, pointer=entry.pointer)
        in_log = _Target(log, generation, held, places=places)
        if target.places is not None:
            self._put_scattered(in_log, batch, start, final=final)
            return
        _put_messages(in_log, batch, (offsets[0], offsets[-1]))
        batch.published(log, count=len(messages), size_bytes=sum(map(len, messages)))
        self._index(in_log, batch, MESSAGE_ROWS, (offsets[0], offsets[-1]), final=final)

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
        parts = self._parts(target)
        for part in parts:
            self._require_same(part)
        for part in parts:
            self._put_payloads(part, batch)

    def _put_payloads(self, target: _Target, batch: WriteBatch) -> None:
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

    def _invert(self, logs: Sequence[Topic], detail: RollbackDetail, batch: WriteBatch) -> None:
        for log in logs:
            log.require_decided()
        homes = {log.id for log in logs}
        for entry in self._state.index.message_ranges(detail.pointer):
            first, last = max(entry.first, detail.first), min(entry.last, detail.last)
            if entry.topic.home not in homes or first > last:
                continue
            found = self._state.topics.find(entry.topic)
            if found.decided is not None and found.decided.generation == entry.generation:
                batch.invert(detail.pointer, entry.prefix, first, last)
                batch.touch(found)

    def _require_same(self, target: _Target) -> None:
        record = target.topic.require_decided()
        if record.generation != target.generation:
            raise topic_was_replaced(target.topic.id)
        if record.is_retired:
            raise partition_retired(target.topic.id)

    def _require_stored_here(self, target: _Target) -> None:
        # If the topic was deleted since the store, its messages are gone. A reference to them would
        # appear as an empty publish, and the loss would go unnoticed. Nor may the reference publish
        # only the messages stored since: the earlier store was acknowledged, too. A topic may also
        # have fewer partitions now.
        pointer, topic = _pointer_of(target.entry), target.topic.id
        index = self._state.index
        logs = index.stored_in(pointer, topic) if topic.number is None else [topic]
        if any(self._is_gone(entry) for log in logs for entry in index.stored(pointer, log)):
            raise TopicNotFoundError(
                f"the topic {topic} was deleted after messages had been stored for it under "
                f"{pointer}, and they are gone; abort the transaction, and store all of them again "
                "in a new one"
            )

    def _is_gone(self, entry: IndexedRange) -> bool:
        found = self._state.topics.find(entry.topic).decided
        return found is None or found.generation != entry.generation


def _details(
    commit: Sequence[PublishEntry], offsets: Sequence[tuple[Offset, Offset]]
) -> list[RollbackDetail]:
    return [
        RollbackDetail(_pointer_of(entry), first, last)
        for entry, (first, last) in zip(commit, offsets, strict=True)
    ]


def _pointer_of(entry: PublishEntry | PublishRequest) -> int:
    assert entry.pointer is not None
    return entry.pointer


def _size(entry: PublishEntry | PublishRequest) -> int:
    payloads = entry.payloads
    size = sum(map(len, payloads)) + ROW_OVERHEAD_BYTES * len(payloads) + WRITE_OVERHEAD_BYTES
    if entry.attributes is None:
        return size
    return size + sum(stored_size(each) for each in entry.attributes if each is not None)


def _due_times_ms(delays: Sequence[Delay], *, now_ms: int) -> list[int]:
    """When messages with these delays are due, if they are published now. Raises:
    InvalidDelayError."""
    due_ms = [each.due_ms(now_ms) for each in delays]
    if max(due_ms) > now_ms + DELAY_MS_MAX:
        raise InvalidDelayError(
            f"a message is due within {DELAY_MS_MAX // 1000} seconds, and {max(due_ms)} ms since "
            "the epoch is later"
        )
    return due_ms


def _open_log(delayed_log: Topic, batch: WriteBatch) -> int:
    """The generation of a topic's delayed log, which the batch creates if there is none. Raises:
    DamagedRecordError, OwnershipMovingError."""
    delayed_log.require_readable()
    record = delayed_log.decided
    if record is None or record.generation < 0:
        record = created(record, delayed_log.id, _LOG_PROPERTIES)
        batch.change_topic(delayed_log, record)
    return record.generation


def _put_messages(
    target: _Target, batch: WriteBatch, offsets: tuple[Offset, Offset] | None = None
) -> tuple[Offset, Offset]:
    """`offsets`: those that are assigned already."""
    prefix, entry = target.topic.prefix(target.generation), target.entry
    if entry.pointer is None and entry.attributes is None and not any(entry.ttls_s or ()):
        return batch.put_plain(prefix, entry.payloads)
    offsets = offsets or batch.next_offsets(len(entry.payloads))
    keys = message_keys(prefix, offsets[0], len(entry.payloads))
    values = _values(keys, entry, pointer=entry.pointer)
    batch.put_rows(NewRows(prefix, keys, values, is_plain=False))
    return offsets


def _values(
    keys: Sequence[bytes], entry: PublishEntry | PublishRequest, *, pointer: int | None
) -> list[bytes]:
    """The rows of the messages of an entry, under these keys."""
    return inline_values(
        keys, entry.payloads, pointer=pointer, ttls_s=entry.ttls_s, attributes=entry.attributes
    )
