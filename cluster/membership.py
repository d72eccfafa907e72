"""This server as a member of its cluster, and the fencing of members that ended (decision 0042)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kernel.log_events import event
from kernel.owner_floor import NO_FLOOR, Floor
from metadata.layout import MANAGERS, Layout, join_layout
from metadata.member_records import Members, ServerInfo
from metadata.store_interface import MetadataStore, Session

log = logging.getLogger(__name__)


class SharedTables(Protocol):
    """The tables of the messages, as far as membership needs them. All calls block."""

    def adopt(self, cluster_id: str) -> None:
        """Make sure that the tables belong to this cluster; new tables are adopted. Raises:
        StoreError."""

    def fence(self, server_id: str, incarnation: int) -> Floor:
        """Make sure that this incarnation of a server can write nothing any more; returns the floor
        of what it wrote. Repeating it is harmless. Raises: StoreError."""


@dataclass(frozen=True, slots=True)
class Identity:
    """This server since its start. No other start of any server has the same."""

    cluster_id: str
    server_id: str
    incarnation: int


class Membership:
    """Calls block, and any thread may call.

    Every method raises MetadataError (its kinds) when the metadata store refuses a call or does not
    answer, and `join` and `fence` also StoreError.
    """

    metadata_session: Session  # of this server, since `join`

    def __init__(
        self,
        store: MetadataStore,
        tables: SharedTables,
        *,
        server_id: str,
        address: str,
        messages: str,
        now_ms: Callable[[], int],
    ) -> None:
        """`address`: the URL of this server for the others; `messages`: names the tables."""
        self._store = store
        self._tables = tables
        self._server_id = server_id
        self._messages = messages
        # Incarnations that this server fenced. Two threads at once may count one too few.
        self.fenced_count = 0
        self._members = Members(store, server_id, address, now_ms=now_ms)

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
            incarnation = self._members.register(session)
        except BaseException:
            session.close()
            raise
        self.metadata_session = session
        log.info(
            "joined the cluster %s as %s, incarnation %d",
            cluster_id,
            self._server_id,
            incarnation,
            extra=event("cluster_joined", server=self._server_id, incarnation=incarnation),
        )
        return Identity(cluster_id, self._server_id, incarnation)

    def members(self) -> dict[str, ServerInfo]:
        """The live servers by id, as far as the metadata store knows."""
        return self._members.members()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed`, from any thread, after members may have come or gone, until the returned
        function is called."""
        return self._store.watch(("servers",), changed)

    def publish_load(self, topics: int, *, is_draining: bool) -> None:
        """Tell the others how many topics this server has, and whether it takes more."""
        self._members.publish_load(topics, is_draining=is_draining)

    def publish_reach(self, *, hbase: bool, directory: bool) -> None:
        """Tell the others whether this server reaches HBase and the shared directory."""
        self._members.publish_reach(hbase=hbase, directory=directory)

    def is_alive(self, server_id: str, incarnation: int) -> bool:
        """Whether this incarnation is a member, as far as the metadata store knows."""
        return self._members.is_alive(server_id, incarnation)

    def incarnations(self) -> dict[str, int]:
        """The highest incarnation of each server that ever started, by id."""
        return self._members.incarnations()

    def fence_ended(self) -> None:
        """Fence every incarnation of every server that was registered before and has ended."""
        # In this order: a server that registers between the two reads must not be fenced.
        incarnations = self._members.incarnations()
        members = self._members.members()
        for server_id, newest in incarnations.items():
            alive = members.get(server_id)
            last = newest if alive is None else alive.incarnation - 1
            if last > 0:
                self.fence(server_id, last)

    def fence(self, server_id: str, incarnation: int) -> Floor:
        """Make sure that a server can write nothing any more with this incarnation and all before
        it; returns the floor of what it wrote. A server that is fenced already costs one read."""
        found = self._members.fenced(server_id)
        done, floor = (0, NO_FLOOR) if found is None else (found.incarnation, found.floor)
        # One after the other: the record says that all incarnations up to a number are fenced.
        for each in range(done + 1, incarnation + 1):
            extra = event("server_fenced", server=server_id, incarnation=each)
            log.warning("fencing the server %s, incarnation %d", server_id, each, extra=extra)
            floor = self._members.record_fence(
                server_id, each, self._tables.fence(server_id, each)
            ).floor
            self.fenced_count += 1
        return floor
