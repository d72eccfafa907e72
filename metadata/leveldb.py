"""The metadata store of a single process, in LevelDB (decision 0042).

A write is synced at its return. Each row is an entry (metadata/entry.py) under its encoded key.

A session lives in memory, and its holder is this process: so it ends when it is closed, or with the
process. Its id is random, so an ephemeral entry of an earlier process names no live session.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock

import plyvel

from metadata.entry import (
    NONCE_BYTES,
    Entry,
    live,
    next_entry,
    next_tombstone,
    require_timeout,
    require_value,
    require_version,
)
from metadata.keys import decode_key, encode_key, is_at_or_below, range_below
from metadata.store import (
    Condition,
    DamagedEntryError,
    Key,
    MetadataUnavailableError,
    Session,
    SessionLostError,
    Versioned,
)
from tuff.disk.locks import DirectoryLockedError
from tuff.leveldb.database import Database, error_text
from tuff.leveldb.scan import scan as scan_database

WRITE_BUFFER_BYTES = 1 << 20  # bytes; entries are few, and most are small
BLOCK_CACHE_BYTES = 4 << 20  # bytes; the entries that are read again and again
OPEN_FILES_MAX = 64  # files; the messages beside it need most of a usual limit of 1,024
PAGE_ENTRIES_MAX = 64  # entries read at a time by a scan; 32 MiB, if all have the greatest size
SESSION_ID_BYTES = 16  # random bytes; no two sessions ever have equal ids


class LevelDbMetadataStore:
    """One LevelDB directory, locked for this process until `close` (`MetadataStore`).

    `_lock` guards the sessions, the watches and the failure, and makes the check and the put of a
    write one step. Reads do not take it. Callbacks are called without it, by the thread whose call
    made the change.
    """

    def __init__(self, directory: Path) -> None:
        """Raises: MetadataUnavailableError: another process has it open, or LevelDB can't open
        it."""
        self._directory = directory
        self._lock = Lock()
        self._sessions: dict[str, _Session] = {}  # the live ones
        self._watches: set[_Watch] = set()
        self._failure: str | None = None  # why nothing more is written
        try:
            self._database = Database(
                directory,
                closed=lambda why: MetadataUnavailableError(f"the metadata store {why}"),
                write_buffer_size=WRITE_BUFFER_BYTES,
                lru_cache_size=BLOCK_CACHE_BYTES,
                max_open_files=OPEN_FILES_MAX,
                compression=None,  # one flipped bit destroys a whole compressed block
            )
        except DirectoryLockedError as error:
            raise MetadataUnavailableError(
                f"the metadata store can't be opened: {error}"
            ) from error
        except (plyvel.Error, OSError) as error:
            raise MetadataUnavailableError(
                f"LevelDB can't open the metadata store {directory}: {error_text(error)}; check "
                "the disk and the permissions of the directory, or restore it from a backup"
            ) from error

    def get(self, key: Key) -> Versioned[bytes] | None:
        entry = live(self._stored(key), self._is_session_live)
        return None if entry is None else Versioned(entry.value, entry.version)

    def put(
        self, key: Key, value: bytes, expected: Condition, *, session: Session | None = None
    ) -> int:
        require_value(value)
        with self._lock:
            if session is not None and not self._is_session_live(session.id):
                raise SessionLostError(f"the session {session.id} has ended")
            found = self._stored(key)
            entry = next_entry(
                key,
                found,
                is_live=live(found, self._is_session_live) is not None,
                value=value,
                expected=expected,
                session=None if session is None else session.id,
                nonce=secrets.token_bytes(NONCE_BYTES),
            )
            self._replace(key, found, entry)
        self._report([key])
        return entry.version

    def delete(self, key: Key, expected: Condition) -> None:
        with self._lock:
            found = self._stored(key)
            tombstone = next_tombstone(
                key,
                found,
                is_live=live(found, self._is_session_live) is not None,
                expected=expected,
                nonce=secrets.token_bytes(NONCE_BYTES),
            )
            self._replace(key, found, tombstone)
        self._report([key])

    def scan(self, prefix: Key) -> Iterator[tuple[Key, Versioned[bytes]]]:
        start, stop = range_below(prefix)
        return self._scan(start.encode(), stop.encode())

    def require(self, key: Key, version: int) -> None:
        found = self._stored(key)
        is_live = live(found, self._is_session_live) is not None
        require_version(key, found, is_live=is_live, version=version)

    def watch(self, prefix: Key, changed: Callable[[], None]) -> Callable[[], None]:
        encode_key(prefix)  # refuses what is no key
        watch = _Watch(prefix, changed)
        with self._using(), self._lock:
            self._watches.add(watch)
        return partial(self._cancel, watch)

    def open_session(self, *, timeout_s: float, lost: Callable[[], None]) -> Session:
        require_timeout(timeout_s)
        session = _Session(secrets.token_hex(SESSION_ID_BYTES), lost=lost, end=self._end)
        with self._using(), self._lock:
            self._sessions[session.id] = session
        return session

    def expire(self, session_id: str) -> None:
        """End a session as a store does that has not heard of its holder: for tests, and for
        simulations of several servers. Of a session that has ended, nothing changes."""
        session = self._end(session_id)
        if session is not None:
            session.lost()

    def close(self) -> None:
        self._database.close()
        with self._lock:
            for session in self._sessions.values():
                session.is_live = False
            self._sessions.clear()
            self._watches.clear()

    def _stored(self, key: Key) -> Entry | None:
        encoded = encode_key(key).encode()
        # Not by LevelDB's Get: it answers "not found" also when the file with the entry is missing.
        rows = self._page(encoded, encoded + b"\x00")
        return Entry.from_bytes(rows[0][1], key) if rows else None

    def _replace(self, key: Key, found: Entry | None, entry: Entry) -> None:
        """Store the entry, and note which session it belongs to. The caller holds the lock."""
        self._write(encode_key(key).encode(), entry.to_bytes())
        if found is not None and found.session in self._sessions:
            self._sessions[found.session].keys.discard(key)
        if entry.session is not None:
            self._sessions[entry.session].keys.add(key)

    def _write(self, encoded: bytes, data: bytes) -> None:
        with self._using():
            if self._failure is not None:
                raise MetadataUnavailableError(self._failure)
            # LevelDB would continue to write to its open files in a moved directory, and create new
            # files in the one that has its name now.
            if not self._database.lock.is_in_place:
                raise MetadataUnavailableError(
                    f"the metadata store {self._directory} was moved, or is another one now"
                )
            try:
                self._database.write([(encoded, data)])
            except (plyvel.Error, OSError) as error:
                # Behind a half-written record of the log, LevelDB drops everything when it reads
                # the log again, acknowledged writes included. So nothing more is written.
                self._failure = (
                    f"writing to the metadata store {self._directory} failed: {error_text(error)}; "
                    "nothing more is written until it is opened again"
                )
                raise MetadataUnavailableError(self._failure) from error

    def _scan(self, start: bytes, stop: bytes) -> Iterator[tuple[Key, Versioned[bytes]]]:
        # Not one iterator: it would have to be closed before LevelDB is.
        while rows := self._page(start, stop):
            for encoded, data in rows:
                key = _decoded(encoded)
                entry = live(Entry.from_bytes(data, key), self._is_session_live)
                if entry is not None:
                    yield key, Versioned(entry.value, entry.version)
            start = rows[-1][0] + b"\x00"

    def _page(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        with self._using() as db, closing(scan_database(db, start, stop)) as rows:
            return list(islice(rows, PAGE_ENTRIES_MAX))

    @contextmanager
    def _using(self) -> Iterator[plyvel.DB]:
        try:
            with self._database.calls.using():
                yield self._database.db
        except plyvel.CorruptionError as error:
            raise DamagedEntryError(
                f"the metadata store {self._directory} is damaged: {error_text(error)}; restore it "
                "from a backup"
            ) from error
        except (plyvel.Error, OSError) as error:
            raise MetadataUnavailableError(
                f"the metadata store {self._directory} can't be read: {error_text(error)}"
            ) from error

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
    """A session of a LevelDbMetadataStore, whose lock guards all of it."""

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


def _decoded(encoded: bytes) -> Key:
    try:
        return decode_key(encoded.decode())
    except ValueError as error:
        raise DamagedEntryError(f"the metadata store has a key that is none: {error}") from None
