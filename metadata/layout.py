"""The layout record of a cluster: what the metadata store contains, and to which tables it belongs
(decision 0042).

    ("layout",) := JSON {format: 1, cluster_id: 32 hex digits, managers: {name: version},
                         messages: text}

Each server requires it at its start. So no server joins a cluster whose metadata it would misread,
and none joins with the message tables of another cluster.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from metadata import topic_owner_records, topic_records
from metadata.json_values import FORMAT, RecordKind
from metadata.store_interface import (
    DamagedEntryError,
    EntryExistsError,
    Expected,
    Key,
    MetadataError,
    MetadataStore,
    MetadataUnavailableError,
)

KEY: Key = ("layout",)

# The managers of this version of the software, by the kind of their keys.
MANAGERS: Mapping[str, int] = {
    topic_owner_records.KIND: FORMAT,
    topic_owner_records.RELEASED_KIND: FORMAT,
    topic_records.KIND: FORMAT,
    "servers": FORMAT,
}

_CLUSTER_ID = re.compile(r"[0-9a-f]{32}")


class LayoutMismatchError(MetadataError):
    """The metadata store belongs to another cluster, or to another version of the software."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A layout. `managers` has the format number of each kind of value; `messages` names the tables
    with the messages, as in "hbase tuff_". Raises ValueError for an id that isn't 32 hex digits."""

    cluster_id: str
    managers: Mapping[str, int]
    messages: str

    def __post_init__(self) -> None:
        if _CLUSTER_ID.fullmatch(self.cluster_id) is None:
            raise ValueError(
                f"the cluster id {self.cluster_id[:80]!r} is not 32 lower-case hex digits"
            )


LAYOUT = RecordKind(
    "layout record",
    members=asdict,
    made=lambda fields: Layout(
        cluster_id=fields.text("cluster_id"),
        managers=fields.nested("managers").all_integers(),
        messages=fields.text("messages"),
    ),
)


def read_layout(store: MetadataStore) -> Layout | None:
    """The layout of the cluster, or None before its first start. Raises: DamagedEntryError."""
    try:
        found = LAYOUT.get(store, KEY)
    except DamagedEntryError as error:
        raise DamagedEntryError(
            f"{error}; start the version of the software that wrote it, or restore the metadata "
            "store from a backup"
        ) from None
    return None if found is None else found.value


def join_layout(store: MetadataStore, proposed: Layout) -> Layout:
    """The layout of the cluster. The first server writes the one that it proposes; a later one
    proposes the same, apart from the cluster id.

    Raises:
        LayoutMismatchError: the store has a layout with other managers or messages.
        DamagedEntryError: it has one that can't be read.
    """
    found = read_layout(store) or _created(store, proposed)
    differences = "; ".join(_differences(found, proposed))
    if differences:
        raise LayoutMismatchError(f"the metadata store does not suit this server: {differences}")
    return found


def _created(store: MetadataStore, wanted: Layout) -> Layout:
    """The wanted layout, or that of another server that was faster."""
    try:
        store.put(KEY, LAYOUT.to_bytes(wanted), Expected.NEW)
    except EntryExistsError:
        found = read_layout(store)
        if found is None:
            raise MetadataUnavailableError(
                "the layout record of the metadata store was removed during this start; start again"
            ) from None
        return found
    return wanted


def _differences(found: Layout, wanted: Layout) -> Iterator[str]:
    if found.messages != wanted.messages:
        yield (
            f"its messages are in {found.messages!r}, and those of this server in "
            f"{wanted.messages!r} (use the same tables in all servers of a cluster)"
        )
    for kind in sorted({*found.managers, *wanted.managers}):
        theirs, ours = found.managers.get(kind), wanted.managers.get(kind)
        if theirs != ours:
            yield (
                f"its {kind} have {_format(theirs)}, and those of this server {_format(ours)} "
                "(run the same version of the software in all servers of a cluster)"
            )


def _format(number: int | None) -> str:
    return "no format" if number is None else f"format {number}"
