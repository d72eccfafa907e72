"""Publish, store and rollback: from the HTTP request to the rows of a write batch, and back to the
reply (protocol §3.1 to §3.3)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, groupby, islice, repeat
from operator import attrgetter
from typing import Any, NamedTuple

from kernel import request_bodies
from kernel.batch_routes import batch_route
from kernel.event_loop import InThread, LightTask
from kernel.large_bodies import LARGE_BODY_BYTES, LargeBodies
from kernel.requests_and_replies import (
    EMPTY_REPLY,
    Caller,
    Reply,
    Request,
    Route,
    body_encoding,
    read_query,
    reply_encoding,
    value_reply,
)
from messaging.log.rows_by_transaction import (
    DELAYED_ROWS,
    MESSAGE_ROWS,
    PAYLOAD_ROWS,
    IndexedRange,
    final_index_rows,
)
from messaging.log.state_in_memory import StoreState
from messaging.log.topics import Topic, partition_retired, topic_of, topic_was_replaced
from messaging.model import avro_bodies
from messaging.model.packed_rows import NewRows
from messaging.model.partitions import ONE_PARTITION, Part, divided, selected
from messaging.model.producer_rows import Written, pack_entry
from messaging.model.row_format import (
    NO_PAYLOADS,
    OFFSET_SIZE,
    MessageRow,
    PayloadRange,
    delayed_key,
    index_key,
    inline_values,
    message_key,
    message_keys,
    offset_after,
    payload_keys,
    transaction_values,
    undecided_key,
    undecided_row,
    unpack_offset,
)
from messaging.write.producers import RequestId, checksum_of, request_id_of
from messaging.write.write_batch import LARGE_COUNT, RUN_BYTES_MAX, WriteBatch
from messaging.write.write_queue import WRITE_OVERHEAD_BYTES, Write, WriteQueue
from tuff.protocol import json_bodies, operations
from tuff.protocol.attributes import stored_size
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    InvalidDelayError,
    InvalidTtlError,
    TopicNotFoundError,
    TuffError,
)
from tuff.protocol.ids import DelayedId, MessageId, Offset, TopicId, topic_id
from tuff.protocol.json_bodies import shown
from tuff.protocol.media_types import MediaType
from tuff.protocol.requests import (
    DELAY_MS_MAX,
    Ack,
    Delay,
    PublishEntry,
    PublishRequest,
    RollbackDetail,
)

_POINTER, _PAYLOADS = attrgetter("pointer"), attrgetter("payloads")
_PUBLISH, _PAYLOADS_OF_REQUEST = attrgetter("publish"), attrgetter("request.payloads")
RUN_COUNT_MAX = 256  # rows of commits that are put together; see RUN_BYTES_MAX
ROW_OVERHEAD_BYTES = 64  # bytes; a row's key and head beside its payload
_STORE_PARAMETERS = frozenset({"ttl"})
_REQUEST_ID = "requestId"
_PUBLISH_PARAMETERS = _STORE_PARAMETERS | {_REQUEST_ID, "age", "ack", "delay", "at"}
_NO_DELAY = _STORE_PARAMETERS | {_REQUEST_ID, "age", "ack"}
_REST_OF_ID = "0" * 20  # of the hex digits of the id of a message that is stored in its row


def routes(publisher: Publisher) -> list[Route]:
    """The HTTP routes of publish, store and rollback."""
    handlers = _PublishRoutes(publisher)
    return [
        batch_route(operations.PUBLISH, handlers.publish),
        Route(operations.STORE, handlers.store),
        Route(operations.ROLLBACK, handlers.rollback),
    ]


class _Asked(NamedTuple):
    """A publish request. `named_ack` is None if the request names none.
    `may_join`: it may be one of several that are written together."""

    request: Request
    topic: TopicId
    publish: NumberedPublish
    named_ack: Ack | None
    may_join: bool


class _PublishRoutes:
    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._large = LargeBodies(lambda decode: self._publisher.in_thread(decode))

    def publish(self, requests: Sequence[Request]) -> None:
        """Publish, those of one client in the order of its requests. Neighbours with plain messages
        for one topic become one write, unless two of them have one id. A large request comes in
        when it is decoded."""
        run: list[_Asked] = []
        ids: set[object] = set()
        for request in requests:
            may_wait = request.size > LARGE_BODY_BYTES or self._large.behind
            if may_wait and self._large.comes_later(
                request, self.publish, decode=_asked_and_size, came_in=self._begin_large
            ):
                continue
            try:
                asked = _asked(request)
            except TuffError as error:
                request.reply(error)
                continue
            request_id = asked.publish.request_id
            own = None if request_id is None else request_id[:2]
            if run and (asked.topic is not run[0].topic or not asked.may_join or own in ids):
                self._begin(run)
                run = []
                ids.clear()
            if not asked.may_join:
                self._begin_alone(asked)
                continue
            run.append(asked)
            if own is not None:
                ids.add(own)
        if run:
            self._begin(run)

    def _begin(self, run: Sequence[_Asked]) -> None:
        publishes = list(map(_PUBLISH, run))
        try:
            if self._publisher.publish_plain(run[0].topic, publishes, partial(_answer, run)):
                return
        except TuffError as error:
            _answer(run, error)
            return
        for each in run:
            self._begin_alone(each)

    def _begin_alone(self, asked: _Asked) -> None:
        self._begin_task(self._publish(asked), asked.request)

    def _begin_task(self, work: Coroutine[Any, Any, Reply], request: Request) -> None:
        LightTask(work, request.reply, partial(_refuse, request), TuffError).go_on()

    def _begin_large(self, request: Request, decoded: tuple[_Asked, int]) -> None:
        asked, size_bytes = decoded
        self._begin_task(self._publish(asked, size_bytes=size_bytes), request)

    async def _publish(self, asked: _Asked, *, size_bytes: int | None = None) -> Reply:
        request, topic, publish, ack, _ = asked
        if ack is Ack.NONE:
            self._publisher.enqueue(topic, publish.request)
            return Reply(headers=(("Tuff-Ack", ack.value),))
        written, is_repeated = await self._publisher.write(
            topic,
            publish,
            ack=ack or Ack.DURABLE,
            caller=request.caller,
            size_bytes=size_bytes,
        )
        return _published(asked, written, is_repeated=is_repeated)

    async def store(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_STORE_PARAMETERS)
        decode = partial(_publish_request, request, dict(request.query))
        is_large = request.size > LARGE_BODY_BYTES
        publish = await self._publisher.in_thread(decode) if is_large else decode()
        await self._publisher.store(topic, publish, caller=request.caller)
        return EMPTY_REPLY

    async def rollback(self, request: Request) -> Reply:
        topic = topic_of(request)
        body = request.body
        if body_encoding(request.content_type, body).media_type is MediaType.AVRO:
            detail = avro_bodies.decode_rollback_detail(body)
        else:
            detail = json_bodies.rollback_detail_from_json(request.value())
        await self._publisher.rollback(topic, detail, caller=request.caller)
        return EMPTY_REPLY


def _asked_and_size(request: Request) -> tuple[_Asked, int]:
    asked = _asked(request)
    return asked, _size(asked.publish.request)


def _asked(request: Request) -> _Asked:
    query = read_query(request.query, parameters=_PUBLISH_PARAMETERS) if request.query else {}
    topic = topic_id(request.parameters["ns"], request.parameters["t"])
    publish = _publish_request(request, query)
    if request.accept is not None:
        asked_in, _ = body_encoding(request.content_type, request.body)
        reply_encoding(request.accept, asked_in=asked_in)
    if not query:
        return _Asked(request, topic, NumberedPublish(publish), None, _is_plain(publish))
    request_id = request_id_of(query.get(_REQUEST_ID), query.get("age"))
    ack = _named_ack(query.get("ack"), publish)
    if ack is Ack.NONE and request_id is not None:
        raise BadRequestError(
            "a publish with ack=none can't be repeated, since its loss is never noticed; "
            "omit requestId, or name another ack"
        )
    checksum = 0 if request_id is None else checksum_of(publish.payloads)
    may_join = (
        _is_plain(publish)
        and (ack is None or ack is Ack.DURABLE)
        and (request_id is None or request_id.age_ms is None)
    )
    return _Asked(request, topic, NumberedPublish(publish, request_id, checksum), ack, may_join)


def _publish_request(request: Request, query: Mapping[str, str]) -> PublishRequest:
    body = request.body
    asked_in, schema = body_encoding(request.content_type, body)
    of_all = None if query.keys() <= _NO_DELAY else request_bodies.delay_from_json(query)
    if asked_in is MediaType.AVRO:
        decode = (
            avro_bodies.decode_publish_request
            if schema == 1
            else avro_bodies.decode_publish_request_2
        )
        publish = decode(body)
        if of_all is not None:
            publish = publish._replace(delays=[of_all] * len(publish.payloads))
    else:
        publish = request_bodies.publish_request_from_json(request.value(), of_all=of_all)
    if "ttl" not in query:
        return publish
    ttl_s = request_bodies.ttl_from_json(query["ttl"])
    own = publish.ttls_s or [None] * len(publish.payloads)
    ttls_s = [ttl_s if each is None else each for each in own]
    return publish._replace(ttls_s=ttls_s, ttl_s=ttl_s)


def _named_ack(text: str | None, publish: PublishRequest) -> Ack | None:
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


def _answer(run: Sequence[_Asked], results: Results | Exception) -> None:
    """Reply to publishes that were written together."""
    if isinstance(results, Exception):
        for asked in run:
            asked.request.reply(results)
        return
    for index, (asked, written) in enumerate(zip(run, results.written, strict=True)):
        if isinstance(written, TuffError):
            asked.request.reply(written)
        else:
            is_repeated = index in results.repeated
            asked.request.reply(_published(asked, written, is_repeated=is_repeated))


def _refuse(request: Request, error: BaseException) -> None:
    assert isinstance(error, Exception)
    request.reply(error)


def _published(asked: _Asked, written: Written, *, is_repeated: bool) -> Reply:
    first, last, due_ms, partitions = written
    request, pointer = asked.request, asked.publish.request.pointer
    if due_ms is None:
        first_id = _inline_id(first)
        last_id = first_id if last is first else _inline_id(last)
        headers: tuple[tuple[str, str], ...]
        headers = (("Tuff-First-Id", first_id), ("Tuff-Last-Id", last_id))
    else:
        headers = (
            ("Tuff-Delayed", str(len(asked.publish.request.payloads))),
            ("Tuff-Delayed-First", DelayedId(due_ms[0], first).hex()),
            ("Tuff-Delayed-Last", DelayedId(due_ms[1], last).hex()),
        )
    if partitions:
        headers = (*headers, ("Tuff-Partitions", ",".join(map(str, partitions))))
    if is_repeated:
        headers = (*headers, ("Tuff-Repeated", "true"))
    if asked.named_ack is not None:
        headers = (*headers, ("Tuff-Ack", asked.named_ack.value))
    if pointer is None:
        return Reply(200, None, b"", headers)
    detail = RollbackDetail(pointer, first, last)
    media_type, _ = body_encoding(request.content_type, request.body)
    if request.accept is not None:
        media_type = reply_encoding(request.accept, asked_in=media_type).media_type
    if media_type is MediaType.AVRO:
        return Reply(200, MediaType.AVRO.value, avro_bodies.encode_rollback_detail(detail), headers)
    reply = value_reply(request, json_bodies.rollback_detail_to_json(detail))
    return reply._replace(headers=headers)


def _inline_id(offset: Offset) -> str:
    """The hex digits of the id of a message that is stored in its row."""
    return f"{offset.timestamp_ms:016x}{offset.seq_id:04x}{_REST_OF_ID}"


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
    a topic with several. `is_repeated`: an earlier attempt of this publish wrote them."""

    first: MessageId
    last: MessageId
    rollback: RollbackDetail | None
    delayed: DelayedRange | None = None
    partitions: Sequence[int] = ()
    is_repeated: bool = False


class NumberedPublish(NamedTuple):
    """A publish, its id, and what then tells its messages from those of another one."""

    request: PublishRequest
    request_id: RequestId | None = None
    payloads_crc: int = 0


class Results(NamedTuple):
    """What became of publishes: the rows of each, or why it is refused. Those with the indexes
    `repeated` were written by an earlier attempt."""

    written: Sequence[Written | TuffError]
    repeated: Sequence[int] = ()


class _Target(NamedTuple):
    """One publish of a batch: its topic and generation when the request was accepted, and when its
    messages are due, in ms; None if they are not delayed. `numbers`: for a topic with several
    partitions, an empty list; it gets the numbers of the partitions with the rows when these are
    made. `places`: of a part, the index of each message in the publish."""

    topic: Topic
    generation: int
    entry: PublishEntry | PublishRequest
    due_ms: Sequence[int] | None = None
    numbers: list[int] | None = None
    places: Sequence[int] | None = None


# How the entries of a commit are put: one by one, or None by columns; or why it is refused.
_Plan = Sequence[_Target] | TuffError | None
Details = list[RollbackDetail] | TuffError  # of the entries of a commit, or why it is refused


class Publisher:
    """Checks requests and submits their rows to the group committer. Lives on the event loop."""

    def __init__(self, state: StoreState, committer: WriteQueue, *, in_thread: InThread) -> None:
        self._state = state
        self._committer = committer
        self.in_thread = in_thread

    async def publish(
        self,
        topic: TopicId,
        request: PublishRequest,
        *,
        ack: Ack = Ack.DURABLE,
        caller: Caller | None = None,
        request_id: RequestId | None = None,
    ) -> Published:
        """Write messages, as `write` does, and return their ids."""
        checksum = 0 if request_id is None else checksum_of(request.payloads)
        publish = NumberedPublish(request, request_id, checksum)
        written, is_repeated = await self.write(topic, publish, ack=ack, caller=caller)
        return _as_published(request, written, is_repeated=is_repeated)

    async def write(
        self,
        topic: TopicId,
        publish: NumberedPublish,
        *,
        ack: Ack,
        caller: Caller | None,
        size_bytes: int | None = None,
    ) -> tuple[Written, bool]:
        """Write messages, or the reference to stored ones (§3.1): their rows, and whether an
        earlier attempt has written them. When it returns they are durable; with the ack `RECEIVED`
        they only have their ids. For `NONE` there is `enqueue`. A transaction of the request has to
        be the caller's. `size_bytes`: that of the write, if it is known."""
        request, request_id, payloads_crc = publish
        if size_bytes is None:
            size_bytes = _size(request)
        if request_id is not None and request_id.age_ms is not None:
            # Before all checks: what they refuse now may have been written then.
            before = await self._written_before(topic, request_id, payloads_crc)
            if before is not None:
                return before, True
        target, pointer = self._checked_target(topic, request), request.pointer
        put = partial(self._put_publishes, target, [publish])
        permit = None
        if pointer is not None:
            permit = await self._state.transactions.enter(pointer, target.topic.id, caller)
        (written,), repeated = await self._committer.submit(
            Write(put, size_bytes=size_bytes, permit=permit, ack=ack)
        )
        assert isinstance(written, Written), "a single one that is refused raises"
        return written, bool(repeated)

    async def _written_before(
        self, topic: TopicId, request_id: RequestId, payloads_crc: int
    ) -> Written | None:
        """What an earlier attempt wrote, durably; None if there was none."""
        self._committer.require_ready()
        found = self._state.topics.find(topic)

        def find(_batch: WriteBatch) -> Written | None:
            prefix = found.prefix(found.require_decided().generation)
            return self._state.producers.find(prefix, request_id, payloads_crc)

        # As a write, so that it is answered behind the batch that wrote the first attempt.
        return await self._committer.submit(Write(find))

    def publish_plain(
        self,
        topic: TopicId,
        publishes: Sequence[NumberedPublish],
        answer: Callable[[Results | Exception], None],
    ) -> bool:
        """Write publishes that have payloads, different ids and nothing else, one behind the other.
        Returns whether they are written: not so if each may go to another partition. Raises: they
        are refused."""
        target = self._checked_target(topic, publishes[0].request)
        if target.numbers is not None:
            return False
        put = partial(self._put_publishes, target, publishes)
        payloads = _payloads_of(publishes)
        size_bytes = sum(map(len, payloads)) + ROW_OVERHEAD_BYTES * len(payloads)
        size_bytes += WRITE_OVERHEAD_BYTES * len(publishes)
        write = Write(put, size_bytes=size_bytes, requests_count=len(publishes))
        self._committer.enqueue(write, answer)
        return True

    def enqueue(self, topic: TopicId, request: PublishRequest) -> None:
        """Let messages without a transaction be written with the next batch (§3.1). They may be
        lost after this: a crash, a disk that fails, or a topic that is deleted meanwhile."""
        target = self._checked_target(topic, request)
        put = partial(self._put_publishes, target, [NumberedPublish(request)])
        self._committer.enqueue(Write(put, size_bytes=_size(request), ack=Ack.NONE))

    def _checked_target(self, topic: TopicId, request: PublishRequest) -> _Target:
        self._committer.require_ready()
        if not request.payloads:
            if request.pointer is None:
                raise EmptyPublishError(
                    "messages is empty, which only a publish under a transaction may be"
                )
            if request.ttl_s is not None:
                raise BadRequestError("a publish without messages takes no ttl: store takes it")
            if request.delays is not None:
                raise request_bodies.no_delay_of_stored()
        return self._target(topic, request)

    async def store(
        self, topic: TopicId, request: PublishRequest, *, caller: Caller | None = None
    ) -> None:
        """Write payloads, which a later reference row of the same pointer publishes (§3.2)."""
        if request.pointer is None or not request.payloads:
            raise BadRequestError("store takes a transactionWritePointer and at least one message")
        if request.delays is not None:
            raise request_bodies.no_delay_of_stored()
        self._committer.require_ready()
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
        """Check entries without waiting; always True."""
        self._committer.require_ready()
        self._committer.require_capacity()
        for entry in entries:
            target = self._target(entry.topic, entry)
            if not entry.payloads:
                self._checked_parts(target)
        return True

    def publish_final(
        self,
        commits: Sequence[Sequence[PublishEntry]],
        built: Callable[[Sequence[Details]], None],
        written: Callable[[Sequence[Details] | Exception], None],
    ) -> None:
        """Write the entries of these commits as one batch, flagged as the last of their
        transactions. A commit that can't be written has its error, and no rows. `built` gets the
        results when the batch is about to be written, and `written` when it is durable, or why it
        is not."""
        logs: dict[TopicId, _Target] = {}
        planned = list(map(self._plan, commits, repeat(logs)))

        def put(batch: WriteBatch) -> Sequence[Details]:
            details = self._put_commits(commits, planned, logs, batch)
            built(details)
            return details

        size_bytes = sum(map(_size, chain.from_iterable(commits)))
        write = Write(put, size_bytes=size_bytes, requests_count=len(commits))
        try:
            self._committer.enqueue(write, written)
        except TuffError as error:
            written(error)

    def _plan(self, commit: Sequence[PublishEntry], logs: dict[TopicId, _Target]) -> _Plan:
        """By columns, if all entries have payloads and nothing else, and topics with one partition.
        `logs` then has these topics. The rows of large entries are made in a thread."""
        try:
            for entry in commit:
                if not _has_only_payloads(entry) or len(entry.payloads) > LARGE_COUNT:
                    break
                log = logs.get(entry.topic)
                if log is None:
                    log = logs[entry.topic] = self._target(entry.topic, entry)
                if log.numbers is not None:
                    break
            else:
                return None
            return [self._target(entry.topic, entry) for entry in commit]
        except TuffError as error:
            return error

    def _put_commits(
        self,
        commits: Sequence[Sequence[PublishEntry]],
        planned: Sequence[_Plan],
        logs: Mapping[TopicId, _Target],
        batch: WriteBatch,
    ) -> list[Details]:
        refused = self._refused(logs)
        details: list[Details] = []
        plain: list[Sequence[PublishEntry]] = []
        for commit, plan in zip(commits, planned, strict=True):
            if plan is None and refused:
                plan = next((refused[each.topic] for each in commit if each.topic in refused), None)
            if plan is None:
                plain.append(commit)
                continue
            details += self._put_plain_commits(plain, logs, batch)
            plain = []
            details.append(self._put_one_by_one(plan, batch))
        return details + self._put_plain_commits(plain, logs, batch)

    def _refused(self, logs: Mapping[TopicId, _Target]) -> dict[TopicId, TuffError]:
        """The topics that have changed since the commits were planned, so that nothing is put."""
        refused: dict[TopicId, TuffError] = {}
        for topic, log in logs.items():
            try:
                self._require_same(log)
            except TuffError as error:
                refused[topic] = error
        return refused

    def _put_one_by_one(self, plan: Sequence[_Target] | TuffError, batch: WriteBatch) -> Details:
        if isinstance(plan, TuffError):
            return plan
        try:
            offsets = self._put_all(plan, batch, final=True)
        except TuffError as error:  # it has put no rows
            return error
        return [
            RollbackDetail(_pointer_of(target.entry), first, last)
            for target, (first, last) in zip(plan, offsets, strict=True)
        ]

    def _put_plain_commits(
        self,
        commits: Sequence[Sequence[PublishEntry]],
        logs: Mapping[TopicId, _Target],
        batch: WriteBatch,
    ) -> list[Details]:
        """Put commits by columns: the rows of neighbouring entries for one topic together."""
        put: list[RollbackDetail] = []
        for topic, run in groupby(chain.from_iterable(commits), key=attrgetter("topic")):
            put += self._put_run(logs[topic], list(run), batch)
        details = iter(put)
        return [list(islice(details, len(commit))) for commit in commits]

    def _put_run(
        self, log: _Target, entries: Sequence[PublishEntry], batch: WriteBatch
    ) -> list[RollbackDetail]:
        payloads = list(chain.from_iterable(map(_PAYLOADS, entries)))
        size_bytes = sum(map(len, payloads))
        if len(entries) > 1 and (len(payloads) > RUN_COUNT_MAX or size_bytes > RUN_BYTES_MAX):
            middle = len(entries) // 2
            put = self._put_run(log, entries[:middle], batch)
            return put + self._put_run(log, entries[middle:], batch)
        topic, prefix = log.topic, log.topic.prefix(log.generation)
        pointers = list(map(_POINTER, entries))
        first, _ = batch.next_offsets(len(payloads))
        keys = message_keys(prefix, first, len(payloads))
        if len(payloads) == len(entries):
            of_rows: Sequence[int] = pointers
            firsts = lasts = [key[-OFFSET_SIZE:] for key in keys]
        else:
            counts = [len(entry.payloads) for entry in entries]
            of_rows = [*chain.from_iterable(map(repeat, pointers, counts))]
            stops = [*accumulate(counts)]
            firsts = [keys[at - n][-OFFSET_SIZE:] for at, n in zip(stops, counts, strict=True)]
            lasts = [keys[at - 1][-OFFSET_SIZE:] for at in stops]
        values = transaction_values(keys, payloads, of_rows)
        batch.put_rows(NewRows(prefix, keys, values, is_plain=False))
        batch.published(topic, count=len(payloads), size_bytes=size_bytes)
        index_keys, index_values = final_index_rows(
            prefix, pointers, firsts, lasts, written_ms=batch.now_ms
        )
        batch.puts.update(zip(index_keys, index_values, strict=True))
        batch.indexed += index_keys
        self._state.index.add_final(
            pointers, index_keys, index_values, topic=topic.id, written_ms=batch.now_ms
        )
        return [
            RollbackDetail(pointer, Offset(*unpack_offset(first)), Offset(*unpack_offset(last)))
            for pointer, first, last in zip(pointers, firsts, lasts, strict=True)
        ]

    def _target(self, topic_id: TopicId, entry: PublishEntry | PublishRequest) -> _Target:
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
            self._state.note_named(entry.delays, due_ms)
        return _Target(topic, record.generation, entry, due_ms, [] if is_several else None)

    def _put_publishes(
        self, target: _Target, publishes: Sequence[NumberedPublish], batch: WriteBatch
    ) -> Results:
        """Put publishes to one topic, unless an earlier attempt has written them. Several are
        plain. A single one that is refused raises."""
        self._require_same(target)
        for _, request_id, _ in publishes:
            if request_id is not None:
                return self._put_numbered(target, publishes, batch)
        return Results(self._put_new(target, publishes, batch))

    def _put_numbered(
        self, target: _Target, publishes: Sequence[NumberedPublish], batch: WriteBatch
    ) -> Results:
        prefix = target.topic.prefix(target.generation)
        found: list[Written | TuffError | None] = []
        for _, request_id, payloads_crc in publishes:
            before: Written | TuffError | None = None
            if request_id is not None:
                try:
                    before = self._state.producers.find(prefix, request_id, payloads_crc)
                except TuffError as error:
                    if len(publishes) == 1:
                        raise
                    before = error
            found.append(before)
        new = [each for each, before in zip(publishes, found, strict=True) if before is None]
        written = self._put_new(target, new, batch) if new else ()
        entries = [
            (request_id, pack_entry(request_id.number, payloads_crc, each))
            for (_, request_id, payloads_crc), each in zip(new, written, strict=True)
            if request_id is not None
        ]
        if entries:
            self._state.producers.remember(target.topic, prefix, entries, batch)
        rows = iter(written)
        repeated = [index for index, before in enumerate(found) if isinstance(before, Written)]
        return Results([next(rows) if each is None else each for each in found], repeated)

    def _put_new(
        self, target: _Target, publishes: Sequence[NumberedPublish], batch: WriteBatch
    ) -> Sequence[Written]:
        written: list[Written] = []
        if target.numbers is None and _is_plain(target.entry):
            payloads = _payloads_of(publishes)
            prefix = target.topic.prefix(target.generation)
            first, last = batch.put_plain(prefix, payloads)
            size_bytes = sum(map(len, payloads))
            batch.published(target.topic, count=len(payloads), size_bytes=size_bytes)
            if len(publishes) == 1:
                written.append(Written(first, last))
            else:
                written += _neighbours(first, [len(each.request.payloads) for each in publishes])
        else:
            ((first, last),) = self._put_all([target], batch, final=False)
            due_ms = None if target.due_ms is None else (target.due_ms[0], target.due_ms[-1])
            written.append(Written(first, last, due_ms, tuple(target.numbers or ())))
        return written

    def _put_all(
        self, targets: Sequence[_Target], batch: WriteBatch, *, final: bool
    ) -> list[tuple[Offset, Offset]]:
        """Put publishes, all or none of them."""
        parts_of = [self._checked_parts(target) for target in targets]
        return [
            self._put_parts(target, parts, batch, final=final)
            for target, parts in zip(targets, parts_of, strict=True)
        ]

    def _checked_parts(self, target: _Target) -> Sequence[_Target]:
        """The publish by partition. Raises: it can't be put."""
        parts = self._parts(target)
        for part in parts:
            self._require_same(part)
            if not part.entry.payloads:
                self._require_stored_here(part)
        return parts

    def _put_parts(
        self, target: _Target, parts: Sequence[_Target], batch: WriteBatch, *, final: bool
    ) -> tuple[Offset, Offset]:
        if target.numbers is None:
            return self._put_publish(target, batch, final=final)
        target.numbers.extend(part.topic.id.number or 0 for part in parts)
        if len(parts) == 1 or not target.entry.payloads:
            written = [self._put_publish(part, batch, final=final) for part in parts]
            return written[0][0], written[-1][1]
        # Over all partitions the offsets are those of the order in the request. So a reader of all
        # of them gets this order, and the publisher knows the id of each message.
        first, last = batch.next_offsets(len(target.entry.payloads))
        for part in parts:
            assert part.places is not None
            offsets = [offset_after(first, place) for place in part.places]
            if part.due_ms is None:
                self._put_scattered(part, batch, offsets, final=final)
            else:
                self._put_delayed(part, part.due_ms, batch, offsets, final=final)
        return first, last

    def _parts(self, target: _Target) -> Sequence[_Target]:
        """A publish divided by the partitions that the topic has when the batch is built."""
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
            every = [offset_after(offsets[0], place) for place in range(len(payloads))]
            self._put_delayed(target, target.due_ms, batch, every, final=final)
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
        self, target: _Target, batch: WriteBatch, offsets: Sequence[Offset], *, final: bool
    ) -> None:
        """Put the messages of one partition, between which others have rows."""
        entry = target.entry
        keys = [message_key(target.topic.prefix(target.generation), each) for each in offsets]
        batch.puts.update(zip(keys, _values(keys, entry, pointer=entry.pointer), strict=True))
        size_bytes = sum(map(len, entry.payloads))
        batch.published(target.topic, count=len(offsets), size_bytes=size_bytes)
        if entry.pointer is not None:
            self._index(target, batch, MESSAGE_ROWS, (offsets[0], offsets[-1]), final=final)

    def _put_delayed(
        self,
        target: _Target,
        due_ms: Sequence[int],
        batch: WriteBatch,
        offsets: Sequence[Offset],
        *,
        final: bool,
    ) -> None:
        """Put delayed rows, or under a transaction the undecided rows that contain them."""
        entry, prefix = target.entry, target.topic.prefix(target.generation)
        ids = list(map(DelayedId, due_ms, offsets))
        keys = [delayed_key(prefix, each) for each in ids]
        values = _values(keys, entry, pointer=None)
        if entry.pointer is None:
            batch.delayed += zip(keys, values, strict=True)
            batch.look_times_ms.append((target.topic.id, min(due_ms)))
            return
        for delayed_id, value in zip(ids, values, strict=True):
            key = undecided_key(prefix, delayed_id.offset)
            row = undecided_row(entry.pointer, delayed_id, value)
            batch.delayed.append((key, row.to_bytes(key)))
        self._index(target, batch, DELAYED_ROWS, (offsets[0], offsets[-1]), final=final)

    def _put_reference(self, target: _Target, batch: WriteBatch) -> tuple[Offset, Offset]:
        """Put a row that publishes the stored messages. It contains their range, so that a later
        store can't change what a reader has already read."""
        pointer = _pointer_of(target.entry)
        stored = self._state.index.stored(pointer, target.topic.id)
        for entry in stored:
            batch.delete(entry.key)
            self._state.index.discard(entry)
            batch.unindexed.append(entry)
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
        batch.indexed.append(key)

    def _invert(self, logs: Sequence[Topic], detail: RollbackDetail, batch: WriteBatch) -> None:
        for log in logs:
            log.require_decided()
        homes = {log.id for log in logs}
        for entry in self._state.index.published_ranges(detail.pointer):
            first, last = max(entry.first, detail.first), min(entry.last, detail.last)
            if entry.topic.home not in homes or first > last:
                continue
            found = self._state.topics.find(entry.topic)
            if found.decided is None or found.decided.generation != entry.generation:
                continue
            if entry.kind == DELAYED_ROWS:
                batch.drop_undecided(entry.prefix, first, last)
            else:
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


def _as_published(request: PublishRequest, written: Written, *, is_repeated: bool) -> Published:
    first, last, due_ms, partitions = written
    pointer = request.pointer
    detail = None if pointer is None else RollbackDetail(pointer, first, last)
    first_id = MessageId(*first)
    last_id = first_id if last is first else MessageId(*last)
    delayed = None
    if due_ms is not None:
        ids = DelayedId(due_ms[0], first), DelayedId(due_ms[1], last)
        delayed = DelayedRange(*ids, len(request.payloads))
    return Published(first_id, last_id, detail, delayed, partitions, is_repeated)


def _payloads_of(publishes: Sequence[NumberedPublish]) -> list[bytes]:
    return list(chain.from_iterable(map(_PAYLOADS_OF_REQUEST, publishes)))


def _neighbours(first: Offset, counts: Sequence[int]) -> Iterator[Written]:
    """Publishes with these counts of messages, one behind the other."""
    number = first.to_int()
    for count in counts:
        first = Offset.from_int(number)
        last = first if count == 1 else Offset.from_int(number + count - 1)
        yield Written(first, last)
        number += count


def _has_only_payloads(entry: PublishEntry | PublishRequest) -> bool:
    return bool(
        entry.payloads
        and entry.attributes is None
        and entry.delays is None
        and entry.ttls_s is None
    )


def _is_plain(entry: PublishEntry | PublishRequest) -> bool:
    """Whether its rows are plain: they have payloads and nothing else."""
    return entry.pointer is None and _has_only_payloads(entry)


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


def _put_messages(target: _Target, batch: WriteBatch) -> tuple[Offset, Offset]:
    prefix, entry = target.topic.prefix(target.generation), target.entry
    if entry.pointer is None and entry.attributes is None and not any(entry.ttls_s or ()):
        return batch.put_plain(prefix, entry.payloads)
    offsets = batch.next_offsets(len(entry.payloads))
    make = partial(_message_rows, prefix, offsets[0], entry)
    batch.put_made(len(entry.payloads), make)
    return offsets


def _message_rows(prefix: bytes, first: Offset, entry: PublishEntry | PublishRequest) -> NewRows:
    keys = message_keys(prefix, first, len(entry.payloads))
    values = _values(keys, entry, pointer=entry.pointer)
    return NewRows(prefix, keys, values, is_plain=False)


def _values(
    keys: Sequence[bytes], entry: PublishEntry | PublishRequest, *, pointer: int | None
) -> list[bytes]:
    """The rows of the messages of an entry, under these keys."""
    return inline_values(
        keys, entry.payloads, pointer=pointer, ttls_s=entry.ttls_s, attributes=entry.attributes
    )
