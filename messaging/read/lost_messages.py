"""Messages that a consumer group or a share group had not read when they expired or were truncated
(protocol §3.11): how many, for the log, for metrics and for explanations.

A loss is a range of positions: from that of the group to the first message that the log still has.
Its rows are counted before retention deletes them. What was counted is counted once: so the end of
the last range is kept for each group and partition. It is in memory: after a start, the ranges
begin where the last retention pass ended.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from kernel.log_events import event
from messaging.log.state_in_memory import OpenStore, StoreState, require_topic
from messaging.log.topics import Topic, TopicRecord
from messaging.model.expiry import NO_LOG_START
from messaging.model.row_format import offset_after, pack_offset
from messaging.model.visibility import as_stored, before_row
from messaging.read.counts import (
    RECORDS_COUNT_MAX,
    MessageCount,
    count_messages,
    maybe_snapshot,
)
from messaging.read.poll import Poll, query_of
from tuff.protocol.attributes import TagFilter
from tuff.protocol.errors import TopicNotFoundError
from tuff.protocol.ids import FIRST_ID, GROUP_LOG, MessageId, Offset, TopicId
from tuff.protocol.sentences import counted

log = logging.getLogger(__name__)

TOTALS_COUNT_MAX = 1_000  # series of a metric; losses of further groups are in the log only
LOSSES_COUNT_MAX = 8  # ranges of one group and partition that explanations know; the newest


class GroupKind(StrEnum):
    CONSUMER = "consumer"
    SHARE = "share"


class LossCause(StrEnum):
    """Why the log has no longer what a group had not read."""

    EXPIRED = "expired"
    TRUNCATED = "truncated"


_SENTENCES = {LossCause.EXPIRED: "expired", LossCause.TRUNCATED: "were truncated"}


class GroupName(NamedTuple):
    kind: GroupKind
    namespace: str
    name: str

    @classmethod
    def of(cls, log: TopicId) -> "GroupName":
        """The group whose log this is."""
        if (share_group := log.share_group) is not None:
            return cls(GroupKind.SHARE, log.namespace, share_group)
        return cls(GroupKind.CONSUMER, log.namespace, log.name.removesuffix(GROUP_LOG))

    @property
    def full_name(self) -> str:
        return f"{self.namespace}:{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} group {self.full_name}"


class LossKey(NamedTuple):
    """What losses are added up by. `topic` is without the number of a partition."""

    group: GroupName
    topic: TopicId
    cause: LossCause


@dataclass(frozen=True, slots=True)
class Loss:
    """A group had read up to the id `after` when all through the id `through` was gone."""

    group: GroupName
    cause: LossCause
    after: bytes
    through: bytes


class _Reader(NamedTuple):
    """`log` is that of the partition."""

    group: GroupName
    log: TopicId


class LostMessages:
    """The losses of the groups that this server coordinates, in partitions that it owns. Lives on
    the event loop; threads read the rows."""

    def __init__(self, store: OpenStore, state: StoreState) -> None:
        self._store = store
        self._state = state
        self.totals: dict[LossKey, int] = {}  # messages since the start, at least
        self._counted_to: dict[_Reader, Offset] = {}
        self._losses: dict[_Reader, list[Loss]] = {}
        self._to_log: dict[LossKey, MessageCount] = {}
        self._counted_at_start: dict[TopicId, Offset] = {}
        self._swept_at_ms: int | None = None

    def start(self) -> None:
        """The store was loaded: what its last retention pass removed is counted."""
        self._swept_at_ms = self._state.metadata.swept_at_ms
        self._counted_at_start = {
            each.id: each.durable.log_start.offset
            for each in self._state.topics
            if each.durable is not None and each.durable.log_start > FIRST_ID
        }

    def begin(self, group: GroupName, partition: TopicId) -> None:
        """The group begins in the partition: what is gone by now is no loss of it."""
        try:
            topic, record = require_topic(self._store, self._state, partition)
        except TopicNotFoundError:
            return
        self._counted_to[_Reader(group, partition.log)] = max(self.stops(topic, record).values())

    def is_behind(self, group: GroupName, partition: TopicId, after: bytes) -> bool:
        """Whether a group that has read up to this id may have lost something that is not counted
        yet. Raises: TopicNotFoundError, OwnershipMovingError."""
        topic, record = require_topic(self._store, self._state, partition)
        live_from = topic.rule_of(record).live_from(now_ms=self._state.expiry_ms())
        if after >= pack_offset(*max(live_from, record.log_start.offset)):
            return False  # the usual case, with each commit
        position = self._position(_Reader(group, partition.log), topic, record, after)
        return position < before_row(max(self.stops(topic, record).values()))

    async def note(
        self,
        group: GroupName,
        partition: TopicId,
        after: bytes,
        *,
        tags: str | None = None,
        done: Collection[bytes] = (),
    ) -> None:
        """Count what the group has lost since the last call. `after`: it has read up to here.
        `tags`: which messages it reads, None for all. `done`: further messages that it has read.

        Raises: TopicNotFoundError, OwnershipMovingError, StorageUnavailableError.
        """
        if not self._state.may_delete():
            return  # by a right clock the messages may be there again
        topic, record = require_topic(self._store, self._state, partition)
        reader = _Reader(group, partition.log)
        position, stops = self._position(reader, topic, record, after), self.stops(topic, record)
        for cause, stop in stops.items():
            through = before_row(stop)
            if position >= through:
                continue
            read = None if tags is None else TagFilter.parse(tags)
            found = await self._count(topic, record, position, through, read)
            known = sum(position < each <= through for each in done)
            if found.count > known:
                found = replace(found, count=found.count - known)
                self.add(reader.log, Loss(group, cause, position, through), found)
            position = through
        self._counted_to[reader] = max(stops.values())

    def add(self, partition: TopicId, loss: Loss, found: MessageCount) -> None:
        """Add messages that a share group had read from the topic, and not given out; or others."""
        if not (found.count and self._state.may_delete()):
            return
        key = LossKey(loss.group, partition.base, loss.cause)
        self._to_log[key] = self._to_log.get(key, MessageCount()).plus(found)
        if key in self.totals or len(self.totals) < TOTALS_COUNT_MAX:
            self.totals[key] = self.totals.get(key, 0) + found.count
        losses = self._losses.setdefault(_Reader(loss.group, partition.log), [])
        last = losses[-1] if losses else None
        if last is not None and (last.cause, last.through) == (loss.cause, loss.after):
            losses[-1] = replace(last, through=loss.through)
        else:
            losses.append(loss)
            del losses[:-LOSSES_COUNT_MAX]

    def end_pass(self, groups: Collection[GroupName]) -> None:
        """Log what was counted since the last pass, and forget groups that are not among these."""
        for key, found in self._to_log.items():
            lost = ("at least " if found.is_lower_bound else "") + counted(found.count, "message")
            log.warning(
                "%s of %s %s before the %s had read them",
                lost,
                key.topic,
                _SENTENCES[key.cause],
                key.group,
                extra=event(
                    "messages_lost",
                    group=key.group.full_name,
                    kind=key.group.kind.value,
                    topic=key.topic,
                    cause=key.cause.value,
                    count=found.count,
                ),
            )
        self._to_log.clear()
        for readers in (self._counted_to, self._losses):
            for each in [reader for reader in readers if reader.group not in groups]:
                del readers[each]

    def of_message(self, partition: TopicId, id: MessageId) -> list[Loss]:
        """The newest losses, one for each group, that had this message in their ranges."""
        found = {
            each.group: each
            for reader, losses in self._losses.items()
            if reader.log == partition.log
            for each in losses
            if each.after < id.to_bytes() <= each.through
        }
        return sorted(found.values(), key=lambda each: each.group)

    def stops(self, topic: Topic, record: TopicRecord) -> dict[LossCause, Offset]:
        """The first offset that is not gone, by the cause."""
        # What the time to live would have taken as well has expired.
        live_from = topic.rule_of(record).live_from(now_ms=self._state.expiry_ms())
        # Time alone must not move it past the high-water mark: a clock that goes back gives the
        # next message an id before it.
        end = offset_after(self._state.high_water_mark)
        return {
            LossCause.EXPIRED: min(live_from, end),
            LossCause.TRUNCATED: record.log_start.offset,
        }

    def _position(self, reader: _Reader, topic: Topic, record: TopicRecord, after: bytes) -> bytes:
        counted_to = self._counted_to.get(reader)
        if counted_to is None:
            counted_to = self._first_counted(topic, record)
        return max(after, before_row(counted_to))

    def _first_counted(self, topic: Topic, record: TopicRecord) -> Offset:
        """Where counting begins in a group that was not looked at since the start: behind what
        others, or this server before the start, may have counted."""
        if self._state.topics.is_shared:
            return max(self.stops(topic, record).values())
        counted_to = self._counted_at_start.get(topic.id, NO_LOG_START)
        if self._swept_at_ms is None:
            return counted_to
        return max(counted_to, topic.rule_of(record).live_from(now_ms=self._swept_at_ms))

    async def _count(
        self,
        topic: Topic,
        record: TopicRecord,
        after: bytes,
        through: bytes,
        tags: TagFilter | None,
    ) -> MessageCount:
        snapshot = await maybe_snapshot(self._state)
        query = query_of(self._state, topic, record, Poll(), after, snapshot)
        gone = replace(as_stored(query), through=through, tags=tags)
        counting = partial(count_messages, query=gone, records_count_max=RECORDS_COUNT_MAX)
        return (await self._store.read(counting))[0]
