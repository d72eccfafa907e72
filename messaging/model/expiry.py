"""The retention decision for one row (keep, drop or invert): one pure function (design §5,
Retention).

The retention pass calls it. The observers of HBase's region servers, in Java, follow the same
golden cases (tests/golden/retention.json).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from messaging.model.row_format import Hold
from tuff.protocol.ids import Offset

NO_LOG_START = Offset(0, 0)  # nothing was truncated or swept yet


class Decision(Enum):
    """What retention does with a row."""

    KEEP = "keep"
    DROP = "drop"
    INVERT = "invert"


class Table(Enum):
    """Which of the two data tables contains a row."""

    MESSAGE = "message"
    PAYLOAD = "payload"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedRow:
    """What retention must know of a row. `offset` is that of the publish, or of the store of a
    payload row. `tx_pointer` is in the value of a message row, and in the key of a payload row."""

    table: Table
    generation: int
    offset: Offset
    tx_pointer: int | None = None
    ttl_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRule:
    """What retention must know of a topic. `generation` is negative while it is deleted; messages
    before `log_start` are never shown again. `pending` is a changed rule that is still being
    written: until it is durable or lost, a message that either rule keeps is kept."""

    generation: int
    ttl_s: int
    log_start: Offset = NO_LOG_START
    holds: tuple[Hold, ...] = ()
    pending: "TopicRule | None" = None

    def live_from(self, *, now_ms: int) -> Offset:
        """The first offset that has not expired by the topic's time to live, or is kept by a hold.
        The log start and a message's own time to live are not considered."""
        live_from = Offset(max(0, now_ms - self.ttl_s * 1000 + 1), 0)
        for each in self.holds:
            if now_ms < each.expires_at_ms:
                live_from = min(live_from, each.first.offset)
        if self.pending is None:
            return live_from
        return min(live_from, max(self.pending.log_start, self.pending.live_from(now_ms=now_ms)))

    def expires_ms(self, offset: Offset, *, own_ttl_s: int | None) -> int:
        """The time in ms from which a message at this offset, with this time to live of its own,
        has expired, if the rule stays as it is and the log start stays before it."""
        if own_ttl_s is not None:
            own_ms = offset.timestamp_ms + own_ttl_s * 1000
            return min(own_ms, self.expires_ms(offset, own_ttl_s=None))
        kept_ms = [offset.timestamp_ms + self.ttl_s * 1000]
        kept_ms += [each.expires_at_ms for each in self.holds if each.first.offset <= offset]
        if self.pending is not None and self.pending.log_start <= offset:
            kept_ms.append(self.pending.expires_ms(offset, own_ttl_s=None))
        return max(kept_ms)

    def without_holds(self, *, now_ms: int) -> "TopicRule":
        """The rule for region observers, which know no holds. Its time to live is so long that
        at this time it keeps all messages that the holds keep, and less than a second more."""
        kept_ms = now_ms - self.live_from(now_ms=now_ms).timestamp_ms
        return replace(self, ttl_s=max(self.ttl_s, kept_ms // 1000 + 1), holds=(), pending=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionState:
    """What retention must know of time and of transactions, at one moment."""

    now_ms: int
    longest_transaction_ms: int
    in_progress: Collection[int]
    invalid: Collection[int]


def is_expired(timestamp_ms: int, ttl_s: int, *, now_ms: int) -> bool:
    """A message expires at its publish time plus its time to live (protocol §2)."""
    return timestamp_ms + ttl_s * 1000 <= now_ms


def decide(row: RetainedRow, topic: TopicRule | None, state: RetentionState) -> Decision:
    """Keep, drop or invert a row. A row of an unknown topic is kept: losing a metadata
    row must not lose the messages as well."""
    if topic is None:
        return Decision.KEEP
    if row.generation < abs(topic.generation) or row.generation == -topic.generation:
        return Decision.DROP  # the generation was deleted
    if row.table is Table.PAYLOAD:
        return _decide_payload(row, topic, state)
    now_ms, own_ttl_s = state.now_ms, row.ttl_s
    # A hold overrides the topic's time to live, and not the message's own.
    is_past_own_ttl = own_ttl_s is not None and is_expired(
        row.offset.timestamp_ms, own_ttl_s, now_ms=now_ms
    )
    if is_past_own_ttl or row.offset < max(topic.log_start, topic.live_from(now_ms=now_ms)):
        return Decision.DROP
    if row.tx_pointer is not None and row.tx_pointer > 0 and row.tx_pointer in state.invalid:
        return Decision.INVERT
    return Decision.KEEP


def _decide_payload(row: RetainedRow, topic: TopicRule, state: RetentionState) -> Decision:
    assert row.tx_pointer is not None
    if row.tx_pointer in state.in_progress:
        return Decision.KEEP
    # A stored payload may be published at any time in the life of its transaction, and its time to
    # live begins then; but its key has only the time of the store. Dropped at store + ttl, payloads
    # of a message that a long transaction published late were lost while it was live. So a payload
    # is kept until store + longest transaction + ttl. Its reference is published by store + longest
    # transaction at the latest (the publish ensures it), and has then expired, too. Dropping a
    # payload raises the log start to the first live offset. So neither a longer ttl nor a clock
    # that goes back shows a reference without its payloads.
    published_ms = row.offset.timestamp_ms + state.longest_transaction_ms
    is_live = published_ms >= topic.live_from(now_ms=state.now_ms).timestamp_ms
    return Decision.KEEP if is_live else Decision.DROP
