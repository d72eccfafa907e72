"""Which topics exist, and which servers wrote the ranges of their offsets (decision 0042).

    key   := ("persistence", namespace, name)
    value := JSON {format: 1, generation, ranges: [range*]}
    range := {epoch, server_id, incarnation, start_ms, start_seq}

The record of a deleted topic stays, with a negative generation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from metadata.json_values import RecordKind, topic_key
from metadata.store_interface import Condition, MetadataError, MetadataStore, Versioned
from tuff.protocol.ids import SEQ_ID_LIMIT, TIMESTAMP_LIMIT, Offset, TopicId

KIND = "persistence"
RANGES_MAX = 32  # ranges of one topic; each is some 100 bytes, and only the newest ones are read
GENERATION_LIMIT = 1 << 31  # a topic row has a signed generation of 32 bits


class StaleClaimError(MetadataError):
    """The topic was claimed with a higher epoch. So this claim is over, and nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRange:
    """The offsets from `start` on were assigned by this incarnation of this server, up to the start
    of the next range. `epoch` is the version of the owner record that the claim wrote."""

    epoch: int
    server_id: str
    incarnation: int
    start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceInfo:
    """A persistence record. `generation` is 0 before the topic was ever created, positive while it
    exists, and negative while it is deleted. `ranges` has the newest claims, oldest first.

    Raises:
        ValueError: the epochs don't rise, a start is below the one before it or no offset, there
            are more than RANGES_MAX ranges, or the generation has more than 32 bits.
    """

    generation: int
    ranges: tuple[OwnerRange, ...] = ()

    def __post_init__(self) -> None:
        if not -GENERATION_LIMIT < self.generation < GENERATION_LIMIT:
            raise ValueError(f"the generation {self.generation} has more than 32 bits")
        if len(self.ranges) > RANGES_MAX:
            raise ValueError(f"{len(self.ranges)} ranges are more than {RANGES_MAX}")
        for each in self.ranges:
            if not (
                0 <= each.start.timestamp_ms < TIMESTAMP_LIMIT
                and 0 <= each.start.seq_id < SEQ_ID_LIMIT
            ):
                raise ValueError(f"{tuple(each.start)} is not an offset")
        for older, newer in pairwise(self.ranges):
            if newer.epoch <= older.epoch:
                raise ValueError(f"the epoch {newer.epoch} follows the epoch {older.epoch}")
            # An owner that wrote nothing leaves its start to its successor.
            if newer.start < older.start:
                raise ValueError(
                    f"the start {tuple(newer.start)} follows the start {tuple(older.start)}"
                )

    def with_claim(self, claimed: OwnerRange) -> "PersistenceInfo":
        """The record with one more range, and at most the RANGES_MAX newest ones. Repeating it is
        harmless.

        Raises:
            StaleClaimError: another server has claimed the topic later.
            ValueError: the start is below that of the newest range, or is not an offset.
        """
        if claimed in self.ranges[-1:]:
            return self
        if self.ranges and claimed.epoch <= self.ranges[-1].epoch:
            raise StaleClaimError(
                f"the claim with the epoch {claimed.epoch} is behind that of the server "
                f"{self.ranges[-1].server_id} with the epoch {self.ranges[-1].epoch}"
            )
        checked = replace(self, ranges=(*self.ranges[-1:], claimed))
        return replace(checked, ranges=(*self.ranges, claimed)[-RANGES_MAX:])


class TopicRecords:
    """Persistence records in a metadata store. Calls block, and any thread may call.

    Every method also raises MetadataUnavailableError, as the store does.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def read_topic_persistence_info(self, topic: TopicId) -> Versioned[PersistenceInfo] | None:
        """The record, or None if there was never a topic of this name. Raises:
        DamagedEntryError."""
        return PERSISTENCE.get(self._store, topic_key(KIND, topic))

    def write_topic_persistence_info(
        self, topic: TopicId, info: PersistenceInfo, version: Condition
    ) -> int:
        """Write the record if the condition holds; returns its new version. Raises: as
        `MetadataStore.put`."""
        return self._store.put(topic_key(KIND, topic), PERSISTENCE.to_bytes(info), version)

    def scan(self) -> Iterator[tuple[TopicId, Versioned[PersistenceInfo]]]:
        """The records of all topics, also of deleted ones. It is no snapshot. Raises:
        DamagedEntryError."""
        return PERSISTENCE.of_topics(self._store, (KIND,))

    def live(self, namespace: str | None) -> list[TopicId]:
        """The topics that exist in a namespace, or in all, in order; none is no error. It is no
        snapshot. Raises: DamagedEntryError."""
        prefix = (KIND,) if namespace is None else (KIND, namespace)
        records = PERSISTENCE.of_topics(self._store, prefix)
        return sorted(topic for topic, found in records if found.value.generation > 0)


PERSISTENCE = RecordKind(
    "persistence record",
    members=lambda info: {
        "generation": info.generation,
        "ranges": [
            {
                "epoch": each.epoch,
                "server_id": each.server_id,
                "incarnation": each.incarnation,
                "start_ms": each.start.timestamp_ms,
                "start_seq": each.start.seq_id,
            }
            for each in info.ranges
        ],
    },
    made=lambda fields: PersistenceInfo(
        generation=fields.integer("generation"),
        ranges=tuple(
            OwnerRange(
                epoch=each.integer("epoch"),
                server_id=each.text("server_id"),
                incarnation=each.integer("incarnation"),
                start=Offset(each.integer("start_ms"), each.integer("start_seq")),
            )
            for each in fields.objects("ranges")
        ),
    ),
)
