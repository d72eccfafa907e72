"""The election of the server that leads transactions (decision 0042, One leader for transactions).

    ("leader",)       := JSON {format: 1, server_id, incarnation, address}         ephemeral
    ("transactions",) := JSON {format: 1, highest_pointer}     see `FilesRecord`

The version of the leader record is the epoch of the leader.
"""

import logging
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass

from cluster.peers import Owner
from kernel.log_events import event
from kernel.owner_floor import Identity
from metadata.json_values import RecordKind
from metadata.store_interface import (
    BadVersionError,
    EntryExistsError,
    Expected,
    Key,
    MetadataError,
    MetadataStore,
    NoEntryError,
    Session,
    Versioned,
)
from tuff.protocol.errors import TransactionsUnavailableError
from tx.leadership import NotLeaderError

log = logging.getLogger(__name__)

KEY: Key = ("leader",)
FILES_KEY: Key = ("transactions",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderInfo:
    """The server that leads. The version of its record is the epoch in which it does."""

    server_id: str
    incarnation: int
    address: str


_LEADER = RecordKind(
    "leader record",
    members=asdict,
    made=lambda fields: LeaderInfo(
        server_id=fields.text("server_id"),
        incarnation=fields.integer("incarnation"),
        address=fields.text("address"),
    ),
)
_HIGHEST_POINTER: RecordKind[int] = RecordKind(
    "record of transaction files",
    members=lambda pointer: {"highest_pointer": pointer},
    # Records of the first version say only that there were files.
    made=lambda fields: fields.integer("highest_pointer") if fields.has("highest_pointer") else 1,
)


class Tenancy:
    """The proof that this server leads in an epoch (`tx.leadership.Leadership`)."""

    def __init__(self, store: MetadataStore, epoch: int) -> None:
        self._store = store
        self.epoch = epoch

    def require(self) -> None:
        """Raises: NotLeaderError: another server leads, or none does; OSError: the metadata store
        does not answer."""
        try:
            self._store.require(KEY, self.epoch)
        except (BadVersionError, NoEntryError):
            raise NotLeaderError(
                f"this server led transactions in the epoch {self.epoch}, which has ended"
            ) from None
        except MetadataError as error:
            raise OSError(f"it is not known whether this server still leads: {error}") from error


class FilesRecord:
    """The highest write pointer that the cluster's transaction files have reserved durably; 0
    before the first files. Beside it, an empty directory is one that is not mounted, and files that
    know fewer pointers are an older copy. Their leader would lack commits, or lead with an empty
    state, in which every message of a rolled-back transaction is visible.

    The leader that has taken the record last writes it. Calls block, each in any thread. Every
    method raises MetadataError (its kinds)."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._highest = 0
        self._version: Expected | int = Expected.NEW

    def take(self) -> int:
        """The pointer. From now on no earlier leader can write it, so the files, if they are read
        behind this, know at least as many pointers."""
        with self._lock:
            while True:
                found = _HIGHEST_POINTER.get(self._store, FILES_KEY)
                self._highest = 0 if found is None else found.value
                self._version = Expected.NEW if found is None else found.version
                with suppress(BadVersionError, EntryExistsError):  # an earlier leader was quicker
                    self._put(self._highest)
                    return self._highest

    def note(self, highest_pointer: int) -> None:
        """The files have durably reserved pointers up to this one. Raises: BadVersionError,
        EntryExistsError: another leader has taken the record."""
        with self._lock:
            if highest_pointer > self._highest:
                self._put(highest_pointer)

    def _put(self, highest_pointer: int) -> None:
        value = _HIGHEST_POINTER.to_bytes(highest_pointer)
        self._version = self._store.put(FILES_KEY, value, self._version)
        self._highest = highest_pointer


class Election:
    """Finds the leader, and makes this server the leader if there is none. `elect` and `find`
    block; the rest belongs to the event loop."""

    def __init__(
        self, store: MetadataStore, session: Session, identity: Identity, address: str
    ) -> None:
        self._store = store
        self._metadata_session = session
        self._me = LeaderInfo(
            server_id=identity.server_id, incarnation=identity.incarnation, address=address
        )
        self.found: Versioned[LeaderInfo] | None = None  # what `elect` or `find` found last

    def elect(self) -> Versioned[LeaderInfo] | None:
        """The current leader, which is this server if there was none. None: another server was just
        elected. Blocks. Raises: MetadataError (its kinds)."""
        if (found := self.find()) is not None:
            return found
        value = _LEADER.to_bytes(self._me)
        try:
            epoch = self._store.put(KEY, value, Expected.NEW, session=self._metadata_session)
        except EntryExistsError:
            return None
        extra = event("leader_elected", epoch=epoch)
        log.info("elected to lead transactions in the epoch %d", epoch, extra=extra)
        return Versioned(self._me, epoch)

    def find(self) -> Versioned[LeaderInfo] | None:
        """The current leader; None if there is none. Blocks. Raises: MetadataError (its kinds)."""
        return _LEADER.get(self._store, KEY)

    @property
    def is_mine(self) -> bool:
        """Whether this server led when it last looked."""
        found = self.found
        return found is not None and (found.value.server_id, found.value.incarnation) == (
            self._me.server_id,
            self._me.incarnation,
        )

    @property
    def my_epoch(self) -> int | None:
        """The epoch in which this server led when it last looked; None if it did not."""
        return self.found.version if self.found is not None and self.is_mine else None

    def tenancy(self) -> Tenancy:
        """The leadership of this server, which leads."""
        assert self.found is not None
        return Tenancy(self._store, self.found.version)

    def leader(self) -> Owner | None:
        """The server that leads; None if it is this one. Raises: TransactionsUnavailableError."""
        if self.found is None:
            raise TransactionsUnavailableError(
                "no server leads transactions now: one is being elected; try again"
            )
        found = self.found.value
        return None if self.is_mine else Owner(found.server_id, found.address)
