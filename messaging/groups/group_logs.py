"""Groups in memory that are made from their logs: turns, loading, appending, summaries.

The log of a group is an internal topic. Its messages are the records of the group, in the order in
which they were decided. The server that owns the topic has the group in memory, and makes it from
the log at the first request. Requests of one group take turns. Each is decided by the state of the
group, its records are written as one batch, and they are applied once they are durable.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from kernel.requests_and_replies import Caller
from messaging.groups.group_log_records import DamagedRecordOfGroupError, RecordFormat
from messaging.log.state_in_memory import StoreState
from messaging.log.topics import Topic
from messaging.model.visibility import Undecided, Verdict, visibility
from messaging.read.poll import Poll, Polls, fresh_snapshot
from messaging.topic_changes import TopicChanges
from messaging.write.publish import Publisher
from messaging.write.write_batch import WriteBatch
from messaging.write.write_queue import Write, WriteQueue
from tuff.protocol.errors import DamagedRecordError, StorageUnavailableError, TuffError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import PublishRequest

log = logging.getLogger(__name__)

SUMMARY_BYTES_MIN = 512 << 10  # bytes of records before the next summary; read in some 100 ms


class StateOfGroup(Protocol):
    """What the records of a log make; each kind of group has its own records, therefore `Any`."""

    def apply(self, record: Any) -> None:
        """Change the state by a record. One of a transaction counts once that has committed."""

    def end_transaction(self, pointer: int, *, is_committed: bool) -> None:
        """The transaction of records that were applied has ended."""

    def summary(self) -> Iterable[Any]:
        """Records that make an equal state, without those of transactions in progress."""


S = TypeVar("S", bound=StateOfGroup)
M = TypeVar("M")
R = TypeVar("R")


@dataclass(slots=True)
class LoadedGroup(Generic[S, M]):
    """A group in memory, made from the log that is this topic, in this generation. `memory` is what
    the log does not have. `undecided` has the id of the first record of each transaction that may
    still commit, by its write pointer."""

    topic: Topic
    generation: int
    state: S
    memory: M = field(init=False)
    undecided: dict[int, MessageId] = field(default_factory=dict)
    unsummarized_bytes: int = 0  # of the records behind the summary
    summary_bytes: int = 0
    first_ms: int | None = None  # the time of the oldest record in the log
    last_ms: int = 0  # the time of the newest record
    loaded_ms: int = 0


class GroupLogs(Generic[S, M, R]):
    """The groups of one kind whose logs this server owns. Lives on the event loop."""

    def __init__(
        self,
        kind: str,
        records: RecordFormat[R],
        begin: Callable[[Topic, WriteBatch], S],
        remember: Callable[[Topic, S], M],
        *,
        state: StoreState,
        committer: WriteQueue,
        publisher: Publisher,
        polls: Polls,
        topics: TopicChanges,
    ) -> None:
        """`begin`: the state before the first record, decided in a batch behind which no earlier
        write is under way. `remember`: the `memory` of a group, once all records are applied."""
        self._kind, self._format = kind, records
        self._begin, self._remember = begin, remember
        self._state = state
        self._committer = committer
        self._publisher = publisher
        self._polls = polls
        self._topics = topics
        self.loaded: dict[TopicId, LoadedGroup[S, M]] = {}
        # A lock is there as long as a request has it, or waits for it.
        self._turns: WeakValueDictionary[TopicId, asyncio.Lock] = WeakValueDictionary()

    def exists(self, log_id: TopicId) -> bool:
        """Whether this log is durably there."""
        topic = self._state.topics.maybe_find(log_id)
        return topic is not None and topic.durable is not None and topic.durable.generation > 0

    @asynccontextmanager
    async def turn(self, find: Callable[[], Topic]) -> AsyncIterator[LoadedGroup[S, M]]:
        """The group of the log that `find` returns, for one request at a time. Raises: what `find`
        raises; DamagedRecordError."""
        log_id = find().id
        turn = self._turns.setdefault(log_id, asyncio.Lock())
        async with turn:
            topic = find()  # it may have been deleted, or have got another owner
            generation = topic.require_durable().generation
            group = self.loaded.get(log_id)
            if group is None or group.topic is not topic or group.generation != generation:
                self.forget(log_id)
                group = self.loaded[log_id] = await self._load(topic, generation)
            yield group

    def forget(self, log_id: TopicId) -> None:
        """Let the next request make the group from its log."""
        self.loaded.pop(log_id, None)

    def forget_moved(self) -> None:
        """Forget the groups whose logs other servers own now."""
        for log_id, group in list(self.loaded.items()):
            if self._state.topics.maybe_find(log_id) is not group.topic:
                self.forget(log_id)

    async def append(
        self,
        group: LoadedGroup[S, M],
        records: Sequence[R],
        *,
        caller: Caller | None = None,
    ) -> None:
        """Write records as one batch, and apply them once they are durable; those of a transaction
        as messages of that transaction of the caller. If they may be written or not, the group is
        forgotten."""
        if not records:
            return
        pointer = self._format.pointer_of(records[0])
        payloads = [self._format.to_bytes(each) for each in records]
        request = PublishRequest(pointer, payloads)
        try:
            published = await self._publisher.publish(group.topic.id, request, caller=caller)
        except BaseException as error:
            if not isinstance(error, TuffError) or isinstance(error, StorageUnavailableError):
                self.forget(group.topic.id)
            raise
        for record, payload in zip(records, payloads, strict=True):
            self._apply(group, record, published.first, len(payload))

    def append_soon(self, group: LoadedGroup[S, M], records: Sequence[R]) -> None:
        """Write records that the state has already with the next batch, and wait for nothing: a
        crash may lose them."""
        payloads = [self._format.to_bytes(each) for each in records]
        if payloads:
            with suppress(TuffError):  # as a crash
                self._publisher.enqueue(group.topic.id, PublishRequest(None, payloads))
                group.unsummarized_bytes += sum(map(len, payloads))

    async def summarize_if_due(self, group: LoadedGroup[S, M]) -> None:
        """Write the state as one batch, and truncate the log before it, if the log is long, or half
        of the time to live of its oldest record is over. Of transactions in progress, the records
        before it are still needed."""
        log_id = group.topic.id
        try:
            if not self._is_summary_due(group):
                return
            await self.end_transactions(group)
            payloads = [self._format.to_bytes(each) for each in group.state.summary()]
            published = await self._publisher.publish(log_id, PublishRequest(None, payloads))
            group.summary_bytes, group.unsummarized_bytes = sum(map(len, payloads)), 0
            group.first_ms = published.first.publish_timestamp_ms
            await self._topics.truncate(log_id, min([published.first, *group.undecided.values()]))
        except TuffError as error:  # what the caller asked for is done
            log.warning("the log of the %s %s has no new summary: %s", self._kind, log_id, error)

    def _is_summary_due(self, group: LoadedGroup[S, M]) -> bool:
        half_ttl_ms = group.topic.require_durable().ttl_s * 500
        age_ms = 0 if group.first_ms is None else self._state.now_ms() - group.first_ms
        is_long = group.unsummarized_bytes >= max(SUMMARY_BYTES_MIN, group.summary_bytes)
        return is_long or age_ms > half_ttl_ms

    async def end_transactions(self, group: LoadedGroup[S, M]) -> None:
        """Let the records of transactions that have committed count, and drop those of others that
        have ended."""
        if not group.undecided:
            return
        snapshot = await fresh_snapshot(self._state)
        ended = {
            pointer: first
            for pointer, first in group.undecided.items()
            if visibility(pointer, snapshot) is not Verdict.BLOCK
        }
        if not ended:
            return
        # By the rows, since the list of invalid transactions forgets those that are rolled back.
        seen = Poll(
            start=min(ended.values()),
            through=max(ended.values()),
            transaction=snapshot,
            undecided=Undecided.SKIP,
        )
        committed = {each async for each, _ in self._records(group.topic.id, seen)}
        for pointer, first in ended.items():
            del group.undecided[pointer]
            group.state.end_transaction(pointer, is_committed=first.to_bytes() in committed)

    async def _records(self, log_id: TopicId, poll: Poll) -> AsyncIterator[tuple[bytes, bytes]]:
        while True:
            result = await self._polls.poll(log_id, poll)
            for each in result.items:
                yield each
            start = MessageId.from_bytes(result.next_id)
            if result.caught_up or (poll.through is not None and start >= poll.through):
                return
            poll = replace(poll, start=start, inclusive=False)

    async def _load(self, topic: Topic, generation: int) -> LoadedGroup[S, M]:
        # A write whose caller is gone may be under way. This one is behind it.
        begin = Write(partial(self._begin, topic), internal=True)
        group = LoadedGroup[S, M](topic, generation, await self._committer.submit(begin))
        group.loaded_ms = self._state.now_ms()
        async for message_id, payload in self._records(topic.id, Poll()):
            try:
                record = self._format.from_bytes(payload)
            except DamagedRecordOfGroupError as error:
                raise damaged_record(topic.id, message_id, error) from None
            self._apply(group, record, MessageId.from_bytes(message_id), len(payload))
        group.memory = self._remember(topic, group.state)
        size_bytes = group.unsummarized_bytes
        log.debug("loaded the %s %s from %d bytes", self._kind, topic.id, size_bytes)
        return group

    def _apply(
        self, group: LoadedGroup[S, M], record: R, message_id: MessageId, size_bytes: int
    ) -> None:
        group.state.apply(record)
        group.unsummarized_bytes += size_bytes
        if group.first_ms is None:
            group.first_ms = message_id.publish_timestamp_ms
        group.last_ms = max(group.last_ms, message_id.publish_timestamp_ms)
        if (pointer := self._format.pointer_of(record)) is not None:
            group.undecided.setdefault(pointer, message_id)


def damaged_record(
    log_id: TopicId, message_id: bytes, error: DamagedRecordOfGroupError
) -> DamagedRecordError:
    """The refusal to read a log that has this record."""
    return DamagedRecordError(
        f"the log {log_id} can't be read at {message_id.hex()}: {error}",
        members={"id": message_id.hex(), "next": None},
    )
