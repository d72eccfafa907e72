"""A metadata store of a single process, in memory: the fast store of the tests (decision 0042).

It makes the decisions of the real stores (metadata/stored_entry.py), and keeps the bytes that they
store.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Lock

from metadata.keys import decode_key, encode_key, is_at_or_below, range_below
from metadata.store_interface import (
    Condition,
    Key,
    MetadataUnavailableError,
    Session,
    SessionLostError,
    Versioned,
)
from metadata.stored_entry import Entry, Write, live, require_entry, require_timeout


class MemoryMetadataStore:
    """Entries in a dictionary (`MetadataStore`), which another store may continue with.

    `_lock` guards the sessions and the watches, and makes the check and the put of a write one
    step. Callbacks are called without it, by the thread whose call made the change.
    """

    def __init__(self, rows: dict[str, bytes] | None = None) -> None:
        self.rows = {} if rows is None else rows  # stored entries by their encoded keys
        self.is_closed = False
        self._lock = Lock()
        self._sessions: dict[str, _Session] = {}  # the live ones
        self._watches: set[_Watch] = set()

    def get(self, key: Key) -> Versioned[bytes] | None:
        entry = live(self._stored(key), self._is_session_live)
        return None if entry is None else Versioned(entry.value, entry.version)

    def put(
        self, key: Key, value: bytes, expected: Condition, *, session: Session | None = None
    ) -> int:
        write = Write(key, value, expected, None if session is None else session.id)
        with self._lock:
            if session is not None and not self._is_session_live(session.id):
                raise SessionLostError(f"the session {session.id} has ended")
            entry = self._carry_out(write)
        self._report([key])
        return entry.version

    def delete(self, key: Key, expected: Condition) -> None:
        with self._lock:
            self._carry_out(Write(key, None, expected))
        self._report([key])

    def scan(self, prefix: Key) -> Iterator[tuple[Key, Versioned[bytes]]]:
        start, stop = range_below(prefix)
        self._require_open()
        return self._scan(start, stop)

    def require(self, key: Key, version: int) -> None:
        found = self._stored(key)
        is_live = live(found, self._is_session_live) is not None
        require_entry(key, found, is_live=is_live, expected=version)

    def watch(self, prefix: Key, changed: Callable[[], None]) -> Callable[[], None]:
        encode_key(prefix)  # refuses what is not a key
        self._require_open()
        watch = _Watch(prefix, changed)
        with self._lock:
            self._watches.add(watch)
        return partial(self._cancel, watch)

    def open_session(self, *, timeout_s: float, lost: Callable[[], None]) -> Session:
        require_timeout(timeout_s)
        self._require_open()
        session = _Session(secrets.token_hex(16), lost=lost, end=self._end)
        with self._lock:
            self._sessions[session.id] = session
        return session

    def expire(self, session_id: str) -> None:
        """End a session as a store does that has not heard of its holder. Of a session that has
        ended, nothing changes."""
        session = self._end(session_id)
        if session is not None:
            session.lost()

    def close(self) -> None:
        self.is_closed = True
        with self._lock:
            for session in self._sessions.values():
                session.is_live = False
            self._sessions.clear()
            self._watches.clear()

    def _require_open(self) -> None:
        if self.is_closed:
            raise MetadataUnavailableError("the metadata store is closed")

    def _stored(self, key: Key) -> Entry | None:
        encoded = encode_key(key)
        self._require_open()
        data = self.rows.get(encoded)
        return None if data is None else Entry.from_bytes(data, key)

    def _carry_out(self, write: Write) -> Entry:
        """Store the entry, and note which session it belongs to. The caller holds the lock."""
        found = self._stored(write.key)
        entry = write.next(found, is_live=live(found, self._is_session_live) is not None)
        self.rows[encode_key(write.key)] = entry.to_bytes()
        if found is not None and found.session in self._sessions:
            self._sessions[found.session].keys.discard(write.key)
        if entry.session is not None:
            self._sessions[entry.session].keys.add(write.key)
        return entry

    def _scan(self, start: str, stop: str) -> Iterator[tuple[Key, Versioned[bytes]]]:
        for encoded in sorted(each for each in list(self.rows) if start <= each < stop):
            self._require_open()
            key = decode_key(encoded)
            entry = live(Entry.from_bytes(self.rows[encoded], key), self._is_session_live)
            if entry is not None:
                yield key, Versioned(entry.value, entry.version)

    def _is_session_live(self, session_id: str) -> bool:
        return session_id in self._sessions

    def _end(self, session_id: str) -> "_Session | None":
        """End a session, and report its entries as changed; None if it had ended already."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
            if session is None:
                return None
            session.is_live = False
        self._report(session.keys)
        return session

    def _report(self, keys: Iterable[Key]) -> None:
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            # An earlier callback may have cancelled it.
            if watch in self._watches and any(is_at_or_below(key, watch.prefix) for key in keys):
                watch.changed()

    def _cancel(self, watch: "_Watch") -> None:
        with self._lock:
            self._watches.discard(watch)


class _Session:
    """A session of a MemoryMetadataStore, whose lock guards all of it."""

    def __init__(
        self,
        session_id: str,
        *,
        lost: Callable[[], None],
        end: Callable[[str], object],
    ) -> None:
        self.id = session_id
        self.is_live = True
        self.keys: set[Key] = set()  # its ephemeral entries
        self.lost = lost
        self._end = end

    def close(self) -> None:
        self._end(self.id)


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    """Each is another one, also with an equal prefix."""

    prefix: Key
    changed: Callable[[], None]
