"""The servers of a cluster: which are alive, which incarnations were given, and which are fenced
(decision 0042).

    ("servers", id)      := JSON {format: 1, server_id, address, incarnation, started_ms, topics,
                                  is_draining, reaches_hbase, reaches_directory}     ephemeral
    ("incarnations", id) := JSON {format: 1, incarnation}
    ("fenced", id)       := JSON {format: 1, incarnation, offset_ms, offset_seq, cell_ms,
                                  longest_transaction_ms}
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from kernel.owner_floor import Floor
from metadata.json_values import Fields, RecordKind
from metadata.keys import encode_key
from metadata.server_ids import check_server_id
from metadata.store_interface import (
    BadVersionError,
    Condition,
    DamagedEntryError,
    EntryExistsError,
    Expected,
    Key,
    MetadataError,
    MetadataStore,
    MetadataUnavailableError,
    NoEntryError,
    Session,
    SessionLostError,
)
from metadata.topic_owner_records import floor_members, floor_of

T = TypeVar("T")

TIME_LIMIT_MS = 253_402_300_800_000  # ms; the year 10,000, from which on datetime shows no time
CHANGE_ATTEMPTS_MAX = 1_000  # each failure but the last is a write of another server

_SERVERS, _INCARNATIONS, _FENCED = "servers", "incarnations", "fenced"


class DuplicateServerError(MetadataError):
    """A live server has this id, or this address, already. Nothing was registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """A live server as it describes itself. `topics` is the number of topics that it owns; a
    draining server takes no more. What it reaches of HBase and of the shared directory is what its
    newest checks found; a server that has just started reaches neither."""

    server_id: str
    address: str
    incarnation: int
    started_ms: int
    topics: int
    is_draining: bool
    reaches_hbase: bool
    reaches_directory: bool


@dataclass(frozen=True, slots=True)
class Fenced:
    """A server is fenced up to and including this incarnation, and wrote nothing above the floor
    with them."""

    incarnation: int
    floor: Floor


class Members:
    """The members of the cluster, and this server among them. Calls block, and any thread may call.

    Every method also raises MetadataUnavailableError, as the store does, and DamagedEntryError for
    entries that it can't read. The constructor raises ValueError for an illegal server id.
    """

    def __init__(
        self, store: MetadataStore, server_id: str, address: str, *, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._server_id = check_server_id(server_id)
        self._address = address
        self._now_ms = now_ms
        self._registered: tuple[ServerInfo, Session] | None = None

    def register(self, session: Session) -> int:
        """Become a member of the cluster until the session ends; returns the incarnation, which no
        server of this id had before.

        Raises:
            DuplicateServerError: a live server has the id, or the address.
            SessionLostError: the session has ended.
        """
        self._require_unused_id()
        self._require_unused_address()
        last = INCARNATION.get(self._store, self._counter_key)
        info = ServerInfo(
            server_id=self._server_id,
            address=self._address,
            incarnation=1 if last is None else last.value + 1,
            started_ms=self._now_ms(),
            topics=0,
            is_draining=False,
            reaches_hbase=False,
            reaches_directory=False,
        )
        try:
            self._store.put(self._key, SERVER.to_bytes(info), Expected.NEW, session=session)
        except EntryExistsError:
            self._require_unused_id()
            raise DuplicateServerError(_duplicate(self._server_id, "another server")) from None
        # The entry is written before the counter, since a new leader fences every incarnation that
        # was counted and has no entry. If two sessions had the entry one after the other, the write
        # of the counter decides which of them has the incarnation.
        counted = INCARNATION.to_bytes(info.incarnation)
        try:
            expected = Expected.NEW if last is None else last.version
            self._store.put(self._counter_key, counted, expected)
        except (BadVersionError, EntryExistsError):
            raise DuplicateServerError(_duplicate(self._server_id, "another server")) from None
        self._registered = info, session
        return info.incarnation

    def publish_load(self, topics: int, *, is_draining: bool) -> None:
        """Tell the others how many topics this server owns, and whether it is draining. Needs a
        `register` before.

        Raises:
            SessionLostError: the session of this server has ended.
        """
        self._publish(lambda info: replace(info, topics=topics, is_draining=is_draining))

    def publish_reach(self, *, hbase: bool, directory: bool) -> None:
        """Tell the others whether this server reaches HBase and the shared directory. Needs a
        `register` before.

        Raises:
            SessionLostError: the session of this server has ended.
        """
        self._publish(lambda info: replace(info, reaches_hbase=hbase, reaches_directory=directory))

    def members(self) -> dict[str, ServerInfo]:
        """The live servers by id, as far as the store knows."""
        return dict(self._scan(_SERVERS, SERVER))

    def is_alive(self, server_id: str, incarnation: int) -> bool:
        """Whether this incarnation of the server is a member, as far as the store knows. One that
        isn't may still run, until it is fenced."""
        found = SERVER.get(self._store, (_SERVERS, server_id))
        return found is not None and found.value.incarnation == incarnation

    def incarnations(self) -> dict[str, int]:
        """The highest incarnation that each server ever had, by id."""
        return dict(self._scan(_INCARNATIONS, INCARNATION))

    def fenced(self, server_id: str) -> Fenced | None:
        """Up to which incarnation a server is fenced; None if it never was."""
        found = FENCE.get(self._store, (_FENCED, server_id))
        return None if found is None else found.value

    def record_fence(self, server_id: str, incarnation: int, floor: Floor) -> Fenced:
        """Record that a server is fenced up to this incarnation, and that it wrote nothing above
        the floor; returns what is recorded now. Incarnation and floor only rise, so any number of
        servers may record a fence at the same time, and repeating it is harmless."""

        key = (_FENCED, check_server_id(server_id))
        for _ in range(CHANGE_ATTEMPTS_MAX):
            found = FENCE.get(self._store, key)
            new = Fenced(incarnation, floor)
            expected: Condition = Expected.NEW
            if found is not None:
                old, expected = found.value, found.version
                new = Fenced(max(old.incarnation, incarnation), old.floor.raised_to(floor))
                if new == old:
                    return new
            try:
                self._store.put(key, FENCE.to_bytes(new), expected)
            except (BadVersionError, EntryExistsError, NoEntryError):
                continue  # another server changed it first
            return new
        raise _too_many_changes(key)

    @property
    def _key(self) -> Key:
        return (_SERVERS, self._server_id)

    @property
    def _counter_key(self) -> Key:
        return (_INCARNATIONS, self._server_id)

    def _publish(self, changed: Callable[[ServerInfo], ServerInfo]) -> None:
        assert self._registered is not None, "register comes first"
        info, session = self._registered
        for _ in range(CHANGE_ATTEMPTS_MAX):
            found = SERVER.get(self._store, self._key)
            if found is None or found.value.incarnation != info.incarnation:
                raise self._session_ended(info.incarnation)
            data = SERVER.to_bytes(changed(found.value))
            try:
                self._store.put(self._key, data, found.version, session=session)
            except BadVersionError:
                continue  # another thread of this server published as well
            except NoEntryError:
                raise self._session_ended(info.incarnation) from None
            return
        raise _too_many_changes(self._key)

    def _require_unused_id(self) -> None:
        found = SERVER.get(self._store, self._key)
        if found is not None:
            raise DuplicateServerError(_duplicate(self._server_id, _described(found.value)))

    def _require_unused_address(self) -> None:
        # Requests for this server would go to the other one, which would refuse them for ever. Of
        # two servers that start at the same time, neither may see the other.
        for found in self.members().values():
            if found.address == self._address:
                raise DuplicateServerError(
                    f"the address {self._address} is already in use by the server "
                    f"{found.server_id}; give this one another cluster.address"
                )

    def _scan(self, name: str, kind: RecordKind[T]) -> Iterator[tuple[str, T]]:
        for key, found in self._store.scan((name,)):
            if len(key) != 2:
                raise DamagedEntryError(f"the key {encode_key(key)} names no server")
            yield key[1], kind.from_bytes(key, found.value)

    def _session_ended(self, incarnation: int) -> SessionLostError:
        return SessionLostError(
            f"the session of the server {self._server_id} (incarnation {incarnation}) has ended"
        )


def _described(info: ServerInfo) -> str:
    started = datetime.fromtimestamp(info.started_ms / 1_000, UTC).isoformat(timespec="seconds")
    return f"{info.address} (incarnation {info.incarnation}, started {started})"


def _duplicate(server_id: str, user: str) -> str:
    return (
        f"the server id {server_id} is already in use by {user}; give this one another "
        "cluster.server_id, or wait until its session ends"
    )


def _too_many_changes(key: Key) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"the entry {encode_key(key)} changed during each of {CHANGE_ATTEMPTS_MAX} attempts to "
        "write it; try again later"
    )


def _time_ms(fields: Fields, name: str) -> int:
    found = fields.integer(name)
    if not 0 <= found < TIME_LIMIT_MS:
        raise ValueError(f"{name} is {found}, which is not a time")
    return found


SERVER = RecordKind(
    "entry of a server",
    members=asdict,
    made=lambda fields: ServerInfo(
        server_id=fields.text("server_id"),
        address=fields.text("address"),
        incarnation=fields.integer("incarnation"),
        started_ms=_time_ms(fields, "started_ms"),
        topics=fields.integer("topics"),
        is_draining=fields.flag("is_draining"),
        reaches_hbase=fields.flag("reaches_hbase"),
        reaches_directory=fields.flag("reaches_directory"),
    ),
)
INCARNATION: RecordKind[int] = RecordKind(
    "incarnation counter",
    members=lambda incarnation: {"incarnation": incarnation},
    made=lambda fields: fields.integer("incarnation"),
)
FENCE = RecordKind(
    "fence record",
    members=lambda fenced: {"incarnation": fenced.incarnation, **floor_members(fenced.floor)},
    made=lambda fields: Fenced(fields.integer("incarnation"), floor_of(fields)),
)
