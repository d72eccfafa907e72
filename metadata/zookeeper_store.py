"""The metadata store in ZooKeeper (decision 0042, metadata/store_interface.py).

A write reads the entry, decides on it, and stores the next one if the znode still has the data
version that was read. metadata/zookeeper_znodes.py says which znodes there are.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from secrets import token_hex
from threading import Lock

from metadata.keys import encode_key
from metadata.store_interface import (
    BadVersionError,
    Condition,
    EntryExistsError,
    Key,
    MetadataError,
    MetadataUnavailableError,
    NoEntryError,
    Session,
    Versioned,
)
from metadata.stored_entry import Write, require_entry, require_timeout
from metadata.zookeeper_connection import Connection, ReplyLostError, split_hosts
from metadata.zookeeper_session import ZooKeeperSession, require_granted
from metadata.zookeeper_watches import Watches
from metadata.zookeeper_znodes import ConflictError, Found, Znodes

CALL_S = 10.0  # seconds until which a call must be answered
START_S_MAX = 5.0  # seconds until which the first connection must be made
TIMEOUT_PER_CALL = 0.5  # of the connection: it leaves a hanging server in time to ask another one
SESSION_ID_BYTES = 16  # random bytes; no two sessions ever have equal ids


class ZooKeeperStore:
    """A metadata store below one path of a ZooKeeper (`MetadataStore`). Its threads are kazoo's.

    `_opening` guards the list of sessions, and that none is added when they were closed.
    """

    def __init__(
        self, hosts: str, *, root: str, elapsed_s: Callable[[], float], call_s: float = CALL_S
    ) -> None:
        """Connect, and create the root if there is none.

        hosts: HOST:PORT,HOST:PORT, and optionally a path, below which the root is.
        root: a path; stores of one ZooKeeper have different roots.
        elapsed_s: seconds by a clock that never runs backwards.
        call_s: seconds until which a call must be answered.

        Raises: ValueError, MetadataUnavailableError, MetadataError.
        """
        self._hosts, parent = split_hosts(hosts)
        self._elapsed_s = elapsed_s
        self._call_s = call_s
        self._opening = Lock()
        self._sessions: list[ZooKeeperSession] = []
        self._is_closed = False
        self._connection = Connection(
            self._hosts, timeout_s=call_s * TIMEOUT_PER_CALL, call_s=call_s, elapsed_s=elapsed_s
        )
        try:
            self._znodes = Znodes(self._connection, parent + root)
            self._watches = Watches(self._connection, self._znodes.sessions)
            self._connection.open(min(START_S_MAX, call_s))
            self._znodes.create_root()
        except BaseException:
            self._connection.close()
            raise

    def get(self, key: Key) -> Versioned[bytes] | None:
        found = self._znodes.find(key, self._connection.deadline_s())
        if found.entry is None or not found.is_live:
            return None
        return Versioned(found.entry.value, found.entry.version)

    def put(
        self, key: Key, value: bytes, expected: Condition, *, session: Session | None = None
    ) -> int:
        write = Write(key, value, expected, None if session is None else session.id)
        return _Writing(self._znodes, write, self._connection.deadline_s()).carry_out()

    def delete(self, key: Key, expected: Condition) -> None:
        write = Write(key, None, expected)
        _Writing(self._znodes, write, self._connection.deadline_s()).carry_out()

    def scan(self, prefix: Key) -> Iterator[tuple[Key, Versioned[bytes]]]:
        return self._znodes.scan(encode_key(prefix))

    def require(self, key: Key, version: int) -> None:
        deadline_s = self._connection.deadline_s()
        is_newest = False
        while True:
            found = self._znodes.find(key, deadline_s, is_newest=is_newest)
            try:
                require_entry(key, found.entry, is_live=found.is_live, expected=version)
            except (NoEntryError, BadVersionError):
                if is_newest:
                    raise
            else:
                with suppress(ConflictError, ReplyLostError):
                    self._znodes.check(key, found, deadline_s)
                    return
            is_newest = True

    def watch(self, prefix: Key, changed: Callable[[], None]) -> Callable[[], None]:
        encode_key(prefix)
        return self._watches.add(self._znodes.create_changes(prefix), prefix, changed)

    def open_session(self, *, timeout_s: float, lost: Callable[[], None]) -> ZooKeeperSession:
        """Open a session; see `MetadataStore.open_session`.

        Raises: MetadataError: also for a timeout that this ZooKeeper does not grant.
        """
        require_timeout(timeout_s)
        self._znodes.create_root()
        require_granted(self._hosts, timeout_s)
        connection = Connection(
            self._hosts, timeout_s=timeout_s, call_s=self._call_s, elapsed_s=self._elapsed_s
        )
        try:
            connection.open(min(START_S_MAX, self._call_s))
            session = ZooKeeperSession(
                connection,
                self._znodes.session_path(token_hex(SESSION_ID_BYTES)),
                timeout_s=timeout_s,
                lost=lost,
                elapsed_s=self._elapsed_s,
            )
        except BaseException:
            connection.close()
            raise
        with self._opening:
            if not self._is_closed:
                self._sessions = [*(each for each in self._sessions if not each.has_ended), session]
                return session
        session.close()
        raise MetadataUnavailableError("the metadata store is closed")

    def close(self) -> None:
        with self._opening:
            self._is_closed = True
            sessions, self._sessions = self._sessions, []
        for each in sessions:
            each.close()
        self._connection.close()


class _Writing:
    """Carries one write out.

    A transaction whose reply was lost is in doubt: it may still be carried out, later than any
    answer that is read meanwhile. So it is sent again, for the same data version. At most one of
    the two is carried out, and both have the same nonce.
    """

    def __init__(self, znodes: Znodes, write: Write, deadline_s: float) -> None:
        self._znodes = znodes
        self._write = write
        self._deadline_s = deadline_s
        self._is_newest = False  # whether a refusal would be one by the newest state
        self._in_doubt: int | None = None  # the data version of a transaction in doubt

    def carry_out(self) -> int:
        """Returns the new version. Raises: as `MetadataStore.put`."""
        try:
            while True:
                found = self._znodes.find(
                    self._write.key, self._deadline_s, is_newest=self._is_newest
                )
                if found.entry is not None and found.entry.nonce == self._write.nonce:
                    return found.entry.version
                self._settle_doubt(found)
                version = self._attempt(found)
                if version is not None:
                    return version
                self._is_newest = True
        except MetadataError as error:
            if self._in_doubt is None:
                raise
            raise MetadataUnavailableError(
                f"the write of {encode_key(self._write.key)} may or may not have been carried out: "
                f"{error}"
            ) from error

    def _attempt(self, found: Found) -> int | None:
        """The new version; None if the newest state decides, or the outcome is unknown."""
        try:
            entry = self._write.next(found.entry, is_live=found.is_live)
            self._znodes.commit(self._write.key, found, entry, self._deadline_s)
        except (EntryExistsError, NoEntryError, BadVersionError):
            if self._is_newest:
                raise
        except ReplyLostError:
            self._in_doubt = found.data_version
        except ConflictError:
            pass
        else:
            return entry.version
        return None

    def _settle_doubt(self, found: Found) -> None:
        """The found entry is not that of the transaction in doubt, which may be carried out as long
        as the znode has the data version before it.

        Raises: MetadataUnavailableError: later writes hide whether it was.
        """
        if self._in_doubt is None or found.data_version == self._in_doubt:
            return
        if found.data_version > self._in_doubt + 1:
            raise MetadataUnavailableError("others have written since")
        self._in_doubt = None
