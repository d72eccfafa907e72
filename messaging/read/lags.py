"""How far readers are behind the ends of partitions: consumer groups and named positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from messaging.read.counts import MessageCount, MessageCounts
from messaging.read.offsets_and_splits import TopicOffsets
from tuff.protocol.ids import MessageId, TopicId

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """`end`: the last message of the partition. `behind_ms`: the time between that and the position
    of the reader, or the oldest live message if that is later; 0 if nothing is unread. `unread`:
    the messages behind the position."""

    end: MessageId | None
    behind_ms: int
    unread: MessageCount

    @classmethod
    def of(
        cls,
        after: MessageId | None,
        end: MessageId | None,
        unread: MessageCount,
        *,
        live_from_ms: int,
    ) -> Lag:
        """The lag of a reader that has read up to the id `after`."""
        behind_ms = 0
        # What was rolled back or has expired does not wait for the reader.
        if after is not None and end is not None and end > after and _is_any(unread):
            behind_ms = end.publish_timestamp_ms - max(after.publish_timestamp_ms, live_from_ms)
        return cls(end=end, behind_ms=behind_ms, unread=unread)


async def lags_of(
    offsets: TopicOffsets,
    counts: MessageCounts,
    readers: Sequence[Mapping[K, tuple[TopicId, MessageId | None]]],
) -> list[dict[K, Lag]]:
    """The lags of readers in the partitions that exist. Of each partition the reader has read up to
    the id, or nothing. The partitions of one reader share a limit of records that are counted.

    Raises: StorageUnavailableError.
    """
    bounds = await offsets.bounds({each for afters in readers for each, _ in afters.values()})
    found: list[dict[K, Lag]] = []
    for afters in readers:
        lags: dict[K, Lag] = {}
        unread = zip(afters.items(), await counts.counts_of([*afters.values()]), strict=True)
        for (key, (partition, after)), count in unread:
            if partition not in bounds:
                continue
            live_from_ms, end = bounds[partition]
            if after is None and end is not None and _is_any(count):
                after = await offsets.earliest(partition)
            lags[key] = Lag.of(after, end, count, live_from_ms=live_from_ms)
        found.append(lags)
    return found


def _is_any(unread: MessageCount) -> bool:
    return unread.count > 0 or unread.is_lower_bound
