"""This server as a member of its cluster, and the fencing of members that ended (decision 0042)."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from kernel.log_events import event
from kernel.owner_floor import NO_FLOOR, Floor, Identity
from messaging.engines.hbase.engine import HBaseOpener
from metadata.json_values import RecordKind
from metadata.keys import encode_key
from metadata.layout import MANAGERS, Layout, join_layout
from metadata.member_records import (
    FENCE,
    FENCED,
    INCARNATION,
    INCARNATIONS,
    SERVER,
    SERVERS,
    Fenced,
    ServerInfo,
)
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

log = logging.getLogger(__name__)
T = TypeVar("T")

CHANGE_ATTEMPTS_MAX = 1_000  # each failure but the last is a write of another server


class DuplicateServerError(MetadataError):
    """A live server has this id, or this address, already. Nothing was registered."""


class Membership:
    """Calls block, and any thread may call.

    Every method raises MetadataError (its kinds) when the metadata store refuses a call or does not
    answer, and `join` and `fence` also StoreError. The constructor raises ValueError for an illegal
    server id.
    """

    metadata_session: Session  # of this server, since `register`
    _incarnation = 0

    def __init__(
        self,
        store: MetadataStore,
        tables: HBaseOpener,
        *,
        server_id: str,
        address: str,
        messages: str,
        now_ms: Callable[[], int],
    ) -> None:
        """`address`: the URL of this server for the others; `messages`: names the tables."""
        self._store = store
        self._tables = tables
        self._server_id = check_server_id(server_id)
        self._messages = messages
        # Incarnations that this server fenced. Two threads at once may count one too few.
        self.fenced_count = 0
        self._address = address
        self._now_ms = now_ms

    def join(self, *, new_cluster_id: str, session_s: float, lost: Callable[[], None]) -> Identity:
        """Become a member. `new_cluster_id` is the id of the cluster if this is its first server.
        `lost` is called once, by any thread, when the membership may have ended.

        Raises:
            LayoutMismatchError: the metadata store belongs to another cluster or version.
            DuplicateServerError: a live server has this id.
        """
        proposed = Layout(cluster_id=new_cluster_id, managers=MANAGERS, messages=self._messages)
        cluster_id = join_layout(self._store, proposed).cluster_id
        self._tables.adopt(cluster_id)
        session = self._store.open_session(timeout_s=session_s, lost=lost)
        try:
            incarnation = self.register(session)
        except BaseException:
            session.close()
            raise
        log.info(
            "joined the cluster %s as %s, incarnation %d",
            cluster_id,
            self._server_id,
            incarnation,
            extra=event("cluster_joined", server=self._server_id, incarnation=incarnation),
        )
        return Identity(cluster_id, self._server_id, incarnation)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed`, from any thread, after members may have come or gone, until the returned
        function is called."""
        return self._store.watch((SERVERS,), changed)

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
        self.metadata_session, self._incarnation = session, info.incarnation
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
        return dict(self._scan(SERVERS, SERVER))

    def is_alive(self, server_id: str, incarnation: int) -> bool:
        """Whether this incarnation of the server is a member, as far as the store knows. One that
        isn't may still run, until it is fenced."""
        found = SERVER.get(self._store, (SERVERS, server_id))
        return found is not None and found.value.incarnation == incarnation

    def incarnations(self) -> dict[str, int]:
        """The highest incarnation that each server ever had, by id."""
        return dict(self._scan(INCARNATIONS, INCARNATION))

    def fenced(self, server_id: str) -> Fenced | None:
        """Up to which incarnation a server is fenced; None if it never was."""
        found = FENCE.get(self._store, (FENCED, server_id))
        return None if found is None else found.value

    def record_fence(self, server_id: str, incarnation: int, floor: Floor) -> Fenced:
        """Record that a server is fenced up to this incarnation, and that it wrote nothing above
        the floor; returns what is recorded now. Incarnation and floor only rise, so any number of
        servers may record a fence at the same time, and repeating it is harmless."""

        key = (FENCED, check_server_id(server_id))
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

    def fence_ended(self) -> None:
        """Fence every incarnation of every server that was registered before and has ended."""
        # In this order: a server that registers between the two reads must not be fenced.
        incarnations = self.incarnations()
        members = self.members()
        for server_id, newest in incarnations.items():
            alive = members.get(server_id)
            last = newest if alive is None else alive.incarnation - 1
            if last > 0:
                self.fence(server_id, last)

    def fence(self, server_id: str, incarnation: int) -> Floor:
        """Make sure that a server can write nothing any more with this incarnation and all before
        it; returns the floor of what it wrote. A server that is fenced already costs one read."""
        found = self.fenced(server_id)
        done, floor = (0, NO_FLOOR) if found is None else (found.incarnation, found.floor)
        # One after the other: the record says that all incarnations up to a number are fenced.
        for each in range(done + 1, incarnation + 1):
            extra = event("server_fenced", server=server_id, incarnation=each)
            log.warning("fencing the server %s, incarnation %d", server_id, each, extra=extra)
            floor = self.record_fence(server_id, each, self._tables.fence(server_id, each)).floor
            self.fenced_count += 1
        return floor

    @property
    def _key(self) -> Key:
        return (SERVERS, self._server_id)

    @property
    def _counter_key(self) -> Key:
        return (INCARNATIONS, self._server_id)

    def _publish(self, changed: Callable[[ServerInfo], ServerInfo]) -> None:
        assert self._incarnation, "register comes first"
        for _ in range(CHANGE_ATTEMPTS_MAX):
            found = SERVER.get(self._store, self._key)
            if found is None or found.value.incarnation != self._incarnation:
                raise self._session_ended()
            data = SERVER.to_bytes(changed(found.value))
            try:
                self._store.put(self._key, data, found.version, session=self.metadata_session)
            except BadVersionError:
                continue  # another thread of this server published as well
            except NoEntryError:
                raise self._session_ended() from None
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

    def _session_ended(self) -> SessionLostError:
        return SessionLostError(
            f"the session of the server {self._server_id} (incarnation {self._incarnation}) has "
            "ended"
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
