"""The owner of each topic: which incarnation of which server serves it (decision 0042).

    key   := ("owners", namespace, name)
    value := JSON {format: 1, server_id: text or null, incarnation, offset_ms, offset_seq, cell_ms,
                   longest_transaction_ms}

The version of an owner record is the epoch of the ownership.

    key   := ("released", server id)
    value := JSON {format: 1, topics: [{namespace, name}]}

These topics were given to the server, and it has not looked at them yet.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from kernel.owner_floor import Floor
from metadata.json_values import Fields, RecordKind, topic_key
from metadata.store_interface import (
    BadVersionError,
    Condition,
    EntryExistsError,
    Expected,
    MetadataStore,
    MetadataUnavailableError,
    Versioned,
)
from tuff.protocol.ids import Offset, TopicId, topic_id

KIND = "owners"
RELEASED_KIND = "released"
RELEASED_COUNT_MAX = 1_000  # topics of one entry, some 300 bytes each at most
CHANGE_ATTEMPTS_MAX = 100  # each failure but the last is a write of another server


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerInfo:
    """An owner record. A topic that was released has no `server_id`; its `incarnation` is then that
    of the server which released it."""

    server_id: str | None
    incarnation: int
    floor: Floor


class OwnerRecords:
    """Owner records in a metadata store. Calls block, and any thread may call.

    Every method also raises MetadataUnavailableError, as the store does.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def read_owner_info(self, topic: TopicId) -> Versioned[OwnerInfo] | None:
        """The owner record, or None if the topic has none. Raises: DamagedEntryError."""
        return OWNER.get(self._store, topic_key(KIND, topic))

    def write_owner_info(self, topic: TopicId, owner: OwnerInfo, version: Condition) -> int:
        """Write the record if the condition holds; returns its new version. Raises: as
        `MetadataStore.put`."""
        return self._store.put(topic_key(KIND, topic), OWNER.to_bytes(owner), version)

    def scan(self) -> Iterator[tuple[TopicId, Versioned[OwnerInfo]]]:
        """All owner records. It is no snapshot. Raises: DamagedEntryError."""
        return OWNER.of_topics(self._store, (KIND,))

    def note_released(self, server_id: str, topics: Collection[TopicId]) -> list[TopicId]:
        """Tell a server that topics were given to it; returns those for which there is no room
        until it has looked at others. Telling it of any topic is harmless."""
        for _ in range(CHANGE_ATTEMPTS_MAX):
            found = RELEASED.get(self._store, (RELEASED_KIND, server_id))
            told = [] if found is None else found.value
            new = sorted(set(topics) - set(told))
            room = max(0, RELEASED_COUNT_MAX - len(told))
            if not new[:room] or self._write_released(server_id, told + new[:room], found):
                return new[room:]
        raise _too_many_changes(server_id)

    def take_released(self, server_id: str) -> list[TopicId]:
        """The topics that were given to a server since the last call. A call whose write has an
        unknown outcome returns them, too: the next one may not find them any more."""
        for _ in range(CHANGE_ATTEMPTS_MAX):
            found = RELEASED.get(self._store, (RELEASED_KIND, server_id))
            if found is None or not found.value:
                return []
            with suppress(MetadataUnavailableError):
                if not self._write_released(server_id, [], found):
                    continue
            return found.value
        raise _too_many_changes(server_id)

    def _write_released(
        self, server_id: str, topics: list[TopicId], found: Versioned[list[TopicId]] | None
    ) -> bool:
        """Whether the entry was written; another server may have changed it."""
        expected = Expected.NEW if found is None else found.version
        try:
            self._store.put((RELEASED_KIND, server_id), RELEASED.to_bytes(topics), expected)
        except (BadVersionError, EntryExistsError):
            return False
        return True


def floor_members(floor: Floor) -> dict[str, object]:
    """The members of a JSON object that contains a floor."""
    return {
        "offset_ms": floor.offset.timestamp_ms,
        "offset_seq": floor.offset.seq_id,
        "cell_ms": floor.cell_ms,
        "longest_transaction_ms": floor.longest_transaction_ms,
    }


def floor_of(fields: Fields) -> Floor:
    """The floor in a JSON object. Raises: ValueError."""
    return Floor(
        Offset(fields.integer("offset_ms"), fields.integer("offset_seq")),
        cell_ms=fields.integer("cell_ms"),
        longest_transaction_ms=fields.integer("longest_transaction_ms"),
    )


def _too_many_changes(server_id: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"the topics that were given to {server_id} changed during each of {CHANGE_ATTEMPTS_MAX} "
        "attempts to write them; try again later"
    )


OWNER = RecordKind(
    "owner record",
    members=lambda owner: {
        "server_id": owner.server_id,
        "incarnation": owner.incarnation,
        **floor_members(owner.floor),
    },
    made=lambda fields: OwnerInfo(
        server_id=fields.maybe_text("server_id"),
        incarnation=fields.integer("incarnation"),
        floor=floor_of(fields),
    ),
)

RELEASED: RecordKind[list[TopicId]] = RecordKind(
    "list of released topics",
    members=lambda topics: {
        "topics": [{"namespace": each.namespace, "name": each.name} for each in topics]
    },
    made=lambda fields: [
        topic_id(each.text("namespace"), each.text("name")) for each in fields.objects("topics")
    ],
)
