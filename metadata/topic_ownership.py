"""The owner of each topic: which incarnation of which server serves it (decision 0042).

    key   := ("owners", namespace, name)
    value := JSON {format: 1, server_id: text or null, incarnation, offset_ms, offset_seq, cell_ms}

The version of an owner record is the epoch of the ownership.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from metadata.json_values import Fields, decoded, encoded, read_value, topic_key, topic_of
from metadata.store import (
    Condition,
    EntryExistsError,
    Key,
    MetadataStore,
    NoEntryError,
    Versioned,
)
from tuff.protocol.ids import Floor, Offset, TopicId

FORMAT = 1
KIND = "owners"


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


class TopicOwnershipManager:
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

    def delete_owner_info(self, topic: TopicId, version: Condition) -> None:
        """Remove the record if the condition holds.

        Raises:
            NoTopicOwnerInfoError: there is no record, whatever the condition.
            BadVersionError: it has another version, or the condition is NEW.
        """
        try:
            self._store.delete(topic_key(KIND, topic), version)
        except NoEntryError:
            raise NoTopicOwnerInfoError(f"the topic {topic} has no owner record") from None

    def scan(self) -> Iterator[tuple[TopicId, Versioned[OwnerInfo]]]:
        """All owner records. It is no snapshot. Raises: DamagedEntryError."""
        for key, found in self._store.scan((KIND,)):
            yield topic_of(key), Versioned(_decoded(key, found.value), found.version)


def floor_members(floor: Floor) -> dict[str, object]:
    """The members of a JSON object that contains a floor."""
    return {
        "offset_ms": floor.offset.timestamp_ms,
        "offset_seq": floor.offset.seq_id,
        "cell_ms": floor.cell_ms,
    }


def floor_of(fields: Fields) -> Floor:
    """The floor in a JSON object. Raises: ValueError."""
    return Floor(
        Offset(fields.integer("offset_ms"), fields.integer("offset_seq")),
        cell_ms=fields.integer("cell_ms"),
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


def _owner_of(fields: Fields) -> OwnerInfo:
    return OwnerInfo(
        server_id=fields.maybe_text("server_id"),
        incarnation=fields.integer("incarnation"),
        floor=floor_of(fields),
    )
