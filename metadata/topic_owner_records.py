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
from metadata.json_values import Fields, decoded, encoded, read_value, topic_key, topic_of
from metadata.store_interface import (
    BadVersionError,
    Condition,
    EntryExistsError,
    Expected,
    Key,
    MetadataStore,
    MetadataUnavailableError,
    NoEntryError,
    Versioned,
)
from tuff.protocol.ids import Offset, TopicId, topic_id

FORMAT = 1
KIND = "owners"
RELEASED_KIND = "released"
RELEASED_COUNT_MAX = 1_000  # topics of one entry, some 300 bytes each at most
CHANGE_ATTEMPTS_MAX = 100  # each failure but the last is a write of another server


class NoTopicOwnerInfoError(NoEntryError):
    """The topic has no owner record. Nothing was written."""


class TopicOwnerInfoExistsError(EntryExistsError):
    """The topic has an owner record already. Nothing was written."""


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
        return read_value(self._store, topic_key(KIND, topic), _decoded)

    def write_owner_info(self, topic: TopicId, owner: OwnerInfo, version: Condition) -> int:
        """Write the record if the condition holds; returns its new version. NEW creates it.

        Raises:
            TopicOwnerInfoExistsError: the condition is NEW, and there is a record.
            NoTopicOwnerInfoError: the condition is a version or ANY, and there is no record.
            BadVersionError: the record has another version.
        """
        try:
            return self._store.put(topic_key(KIND, topic), _encoded(owner), version)
        except EntryExistsError:
            raise TopicOwnerInfoExistsError(f"the topic {topic} has an owner record") from None
        except NoEntryError:
            raise NoTopicOwnerInfoError(f"the topic {topic} has no owner record") from None

    def scan(self) -> Iterator[tuple[TopicId, Versioned[OwnerInfo]]]:
        """All owner records. It is no snapshot. Raises: DamagedEntryError."""
        for key, found in self._store.scan((KIND,)):
            yield topic_of(key), Versioned(_decoded(key, found.value), found.version)

    def note_released(self, server_id: str, topics: Collection[TopicId]) -> list[TopicId]:
        """Tell a server that topics were given to it; returns those for which there is no room
        until it has looked at others. Telling it of any topic is harmless."""
        for _ in range(CHANGE_ATTEMPTS_MAX):
            found = read_value(self._store, (RELEASED_KIND, server_id), _released)
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
            found = read_value(self._store, (RELEASED_KIND, server_id), _released)
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
        forms = [{"namespace": each.namespace, "name": each.name} for each in topics]
        value = encoded({"topics": forms}, format_number=FORMAT)
        expected = Expected.NEW if found is None else found.version
        try:
            self._store.put((RELEASED_KIND, server_id), value, expected)
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


def _encoded(owner: OwnerInfo) -> bytes:
    return encoded(
        {
            "server_id": owner.server_id,
            "incarnation": owner.incarnation,
            **floor_members(owner.floor),
        },
        format_number=FORMAT,
    )


def _decoded(key: Key, data: bytes) -> OwnerInfo:
    return decoded(key, data, _owner_of, format_number=FORMAT, what="owner record")


def _released(key: Key, data: bytes) -> list[TopicId]:
    def topics_of(fields: Fields) -> list[TopicId]:
        return [
            topic_id(each.text("namespace"), each.text("name")) for each in fields.objects("topics")
        ]

    return decoded(key, data, topics_of, format_number=FORMAT, what="list of released topics")


def _too_many_changes(server_id: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"the topics that were given to {server_id} changed during each of {CHANGE_ATTEMPTS_MAX} "
        "attempts to write them; try again later"
    )


def _owner_of(fields: Fields) -> OwnerInfo:
    return OwnerInfo(
        server_id=fields.maybe_text("server_id"),
        incarnation=fields.integer("incarnation"),
        floor=floor_of(fields),
    )
