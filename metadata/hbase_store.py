"""The metadata store of a cluster in HBase (decision 0042).

Each method is one or two calls to a Thrift gateway; an ephemeral entry takes one more, which reads
the row of its session. A write is a read and a compare-and-put of one cell, with the durability of
HBase's default, `SYNC_WAL`.

HBase neither reports changes nor knows sessions. So a background thread of each open store polls:
it reads the rows of the sessions, ends those without heartbeats (metadata/hbase_sessions.py), and
reads every entry at and below each watched prefix. The pause between two polls is a quarter of the
shortest timeout of a session, between 0.05 and 0.5 seconds. So a watch of a prefix with many or
large entries is expensive: each poll transfers all of them.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Lock

from metadata.hbase_sessions import (
    BEATS_PER_TIMEOUT,
    POLL_S_MAX,
    HBaseSession,
    OldestSession,
    SessionState,
    SilentSessions,
    end_of,
    poll_pause_s,
)
from metadata.hbase_table import (
    SESSIONS,
    HBaseMetadataSettings,
    MetadataTable,
    entry_row,
    key_of,
    rows_below,
    session_row,
)
from metadata.store_interface import (
    Condition,
    DamagedEntryError,
    Key,
    MetadataError,
    MetadataUnavailableError,
    Session,
    SessionLostError,
    Versioned,
)
from metadata.stored_entry import Entry, Write, live, require_entry, require_timeout
from tuff_storage.hbase_gateway import Addresses, Gateways

log = logging.getLogger(__name__)

CREATE_S = 60.0  # seconds; a busy master takes many
POLL_CALL_S = 2.0  # seconds; behind a hanging gateway, a poll is late by this time
BEHIND_SESSIONS = b"s0"  # the first row behind those of the sessions

Background = Callable[[Callable[[], None]], object]  # runs the callable in a thread of its own
# What a watch compares: row -> version, and whether the entry is live; None: it is damaged.
Watched = Mapping[bytes, tuple[int, bool] | None]


def create_table(settings: HBaseMetadataSettings, *, elapsed_s: Callable[[], float]) -> None:
    """Create the table of the metadata store if there is none. Several servers may do so at once.

    Raises: MetadataUnavailableError.
    """
    patient = replace(settings, call_s=CREATE_S, answer_s=CREATE_S)
    gateways = patient.gateways(
        call_s=CREATE_S, addresses=Addresses(settings.addresses), elapsed_s=elapsed_s
    )
    table = MetadataTable(settings.table, gateways, answer_s=CREATE_S, elapsed_s=elapsed_s)
    try:
        table.create()
        table.require_exists()
    finally:
        gateways.close()


class HBaseMetadataStore:
    """One table in HBase (`MetadataStore`), for any number of processes.

    `_lock` guards the sessions, the watches, and whether the polls have begun. Callbacks are called
    without it, by the thread that polls.
    """

    def __init__(
        self,
        settings: HBaseMetadataSettings,
        *,
        elapsed_s: Callable[[], float],
        in_background: Background,
    ) -> None:
        """`elapsed_s`: a monotonic clock; `in_background`: one thread polls, from the first use of
        a session or watch on, and one more sends the heartbeats of each session.

        Raises: MetadataUnavailableError: also if the table is missing.
        """
        self._settings = settings
        self._elapsed_s = elapsed_s
        self._in_background = in_background
        self._addresses = Addresses(settings.addresses)
        self._lock = Lock()
        self._opened: list[Gateways] = []
        self._sessions: list[HBaseSession] = []
        self._watches: dict[_Watch, Watched] = {}
        self._is_polling = False
        self._is_closing = Event()
        self._oldest = OldestSession()
        self._silent = SilentSessions()
        self._table = self._opened_table(settings.answer_s, settings.call_s, self._addresses)
        self._polled = self._opened_table(settings.answer_s, POLL_CALL_S, self._addresses)
        try:
            self._table.require_exists()
        except MetadataUnavailableError:
            self.close()
            raise

    def get(self, key: Key) -> Versioned[bytes] | None:
        entry = live(self._stored(key)[1], self._is_session_live)
        return None if entry is None else Versioned(entry.value, entry.version)

    def put(
        self, key: Key, value: bytes, expected: Condition, *, session: Session | None = None
    ) -> int:
        write = Write(key, value, expected, None if session is None else session.id)
        if session is not None:
            self._require_live(session)
        return self._carry_out(write)

    def delete(self, key: Key, expected: Condition) -> None:
        self._carry_out(Write(key, None, expected))

    def scan(self, prefix: Key) -> Iterator[tuple[Key, Versioned[bytes]]]:
        start, stop = rows_below(prefix)
        return self._scan(start, stop)

    def require(self, key: Key, version: int) -> None:
        while True:
            cell, found = self._stored(key)
            # The session is read after the write: if it is live then, it was live when the entry
            # had this version.
            if cell is not None and not self._table.touch(entry_row(key), cell):
                continue  # it was replaced meanwhile
            is_live = live(found, self._is_session_live) is not None
            require_entry(key, found, is_live=is_live, expected=version)
            return

    def watch(self, prefix: Key, changed: Callable[[], None]) -> Callable[[], None]:
        watch = _Watch(prefix, changed)
        before = self._watched(self._table, prefix)
        with self._lock:
            self._watches[watch] = before
        self._poll_from_now_on()
        return partial(self._cancel, watch)

    def open_session(self, *, timeout_s: float, lost: Callable[[], None]) -> Session:
        require_timeout(timeout_s)
        beat_s = timeout_s / BEATS_PER_TIMEOUT
        session = HBaseSession(
            self._table,
            # With addresses of its own: after a hanging gateway, it is the turn of another one.
            self._opened_table(beat_s, beat_s, Addresses(self._settings.addresses)),
            timeout_s=timeout_s,
            elapsed_s=self._elapsed_s,
            lost=lost,
        )
        with self._lock:
            if self._is_closing.is_set():  # its heartbeats would never stop
                raise MetadataUnavailableError("the metadata store is closed")
            self._sessions.append(session)
        self._begin(session.keep_alive)
        self._poll_from_now_on()
        return session

    def close(self) -> None:
        """Close the store and its sessions. If the end of a session can't be written, it ends after
        its timeout."""
        self._is_closing.set()
        with self._lock:
            sessions, opened = list(self._sessions), list(self._opened)
            self._watches.clear()
        for session in sessions:
            try:
                session.close()
            except MetadataUnavailableError as error:
                log.warning("the session %s ends after its timeout: %s", session.id, error)
        for gateways in opened:
            gateways.close()

    def _opened_table(self, answer_s: float, call_s: float, addresses: Addresses) -> MetadataTable:
        gateways = self._settings.gateways(
            call_s=call_s, addresses=addresses, elapsed_s=self._elapsed_s
        )
        with self._lock:
            self._opened.append(gateways)
        return MetadataTable(
            self._settings.table, gateways, answer_s=answer_s, elapsed_s=self._elapsed_s
        )

    def _stored(self, key: Key) -> tuple[bytes | None, Entry | None]:
        return self._decoded(key, self._table.cell(entry_row(key)))

    def _decoded(self, key: Key, cell: bytes | None) -> tuple[bytes | None, Entry | None]:
        return cell, None if cell is None else Entry.from_bytes(cell, key)

    def _carry_out(self, write: Write) -> int:
        """The new version. A writer that was overtaken decides again, on the entry of the writer
        that overtook it."""
        cell, found = self._stored(write.key)
        while True:
            is_live = live(found, self._is_session_live) is not None
            entry = write.next(found, is_live=is_live)
            refused = self._table.replace(entry_row(write.key), cell, entry)
            if refused is None:
                return entry.version
            cell, found = self._decoded(write.key, refused.found)

    def _scan(self, start: bytes, stop: bytes) -> Iterator[tuple[Key, Versioned[bytes]]]:
        for rows in self._table.scan(start, stop, tombstones=False):
            entries = [(key, Entry.from_bytes(cell, key)) for key, cell in map(_with_key, rows)]
            sessions = {entry.session for _, entry in entries if entry.session is not None}
            live_sessions = self._live_of(sessions, self._table)
            for key, entry in entries:
                if live(entry, live_sessions.__contains__) is not None:
                    yield key, Versioned(entry.value, entry.version)

    def _is_session_live(self, session_id: str) -> bool:
        return session_id in self._live_of({session_id}, self._table)

    def _live_of(self, session_ids: set[str], table: MetadataTable) -> set[str]:
        """Which of these sessions are live. From then on, this store observes all sessions."""
        if not session_ids:
            return set()
        self._poll_from_now_on()
        rows = {session_row(session_id): session_id for session_id in session_ids}
        return {
            rows[row]
            for row, cell in table.cells(sorted(rows)).items()
            if SessionState.from_cell(rows[row], cell) is not None
        }

    def _require_live(self, session: Session) -> None:
        if not self._is_session_live(session.id):
            raise SessionLostError(f"the session {session.id} has ended")

    def _begin(self, work: Callable[[], None]) -> None:
        """Do it in a thread of its own."""

        def work_and_close() -> None:
            try:
                work()
            finally:
                with self._lock:
                    opened = list(self._opened)
                for gateways in opened:  # callbacks may have used any of them
                    gateways.close_own()

        self._in_background(work_and_close)

    def _poll_from_now_on(self) -> None:
        with self._lock:
            is_first, self._is_polling = not self._is_polling, True
        if is_first:
            self._begin(self._poll_until_closed)

    def _poll_until_closed(self) -> None:
        pause_s = 0.0
        is_available = True
        while not self._is_closing.wait(pause_s):
            try:
                pause_s = self._poll()
            except MetadataError as error:
                if is_available and not self._is_closing.is_set():
                    log.warning("the sessions of the cluster are not observed: %s", error)
                is_available, pause_s = False, POLL_S_MAX
            else:
                is_available = True

    def _poll(self) -> float:
        """End silent sessions, and report changes; returns the seconds until the next poll."""
        asked_s = self._elapsed_s()
        sessions = self._live_sessions(self._polled, self._oldest.next_start())
        self._oldest.found(sessions)
        silent = self._silent.observe(sessions, asked_s=asked_s, answered_s=self._elapsed_s())
        for session in silent:
            # Refused: its holder was faster, or another observer.
            if self._polled.replace(session_row(session.id), session.cell, end_of(session)) is None:
                log.warning("the session %s had no heartbeat for its timeout: ended", session.id)
        self._report()
        return poll_pause_s(sessions)

    def _report(self) -> None:
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            now = self._watched(self._polled, watch.prefix)
            with self._lock:
                # It may have been cancelled meanwhile.
                is_changed = self._watches.get(watch, now) != now
                if is_changed:
                    self._watches[watch] = now
            if is_changed:
                watch.changed()

    def _live_sessions(self, table: MetadataTable, start: bytes) -> dict[str, SessionState]:
        sessions = {}
        for rows in table.scan(start, BEHIND_SESSIONS, tombstones=False):
            for row, cell in rows:
                session_id = row.removeprefix(SESSIONS).decode()
                try:
                    session = SessionState.from_cell(session_id, cell)
                except DamagedEntryError as error:
                    # The others must be observed all the same.
                    log.warning("a session is ignored: %s", error)
                else:
                    if session is not None:
                        sessions[session_id] = session
        return sessions

    def _watched(self, table: MetadataTable, prefix: Key) -> Watched:
        """What a watch compares: the entry at the prefix, and all entries below it."""
        at = entry_row(prefix)
        cell = table.cell(at)
        entries = {} if cell is None else {at: _maybe_entry(at, cell)}
        for rows in table.scan(*rows_below(prefix), tombstones=True):
            entries.update((row, _maybe_entry(row, data)) for row, data in rows)
        sessions = {entry.session for entry in entries.values() if entry and entry.session}
        live_sessions = self._live_of(sessions, table)
        return {row: _compared(entry, live_sessions) for row, entry in entries.items()}

    def _cancel(self, watch: "_Watch") -> None:
        with self._lock:
            self._watches.pop(watch, None)


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    """Each is another one, also with an equal prefix."""

    prefix: Key
    changed: Callable[[], None]


def _with_key(row: tuple[bytes, bytes]) -> tuple[Key, bytes]:
    return key_of(row[0]), row[1]


def _compared(entry: Entry | None, live_sessions: set[str]) -> tuple[int, bool] | None:
    if entry is None:
        return None
    return entry.version, live(entry, live_sessions.__contains__) is not None


def _maybe_entry(row: bytes, cell: bytes) -> Entry | None:
    """None: it is damaged, which a read of it reports."""
    try:
        return Entry.from_bytes(cell, key_of(row))
    except DamagedEntryError:
        return None
