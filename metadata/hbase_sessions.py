"""Sessions of a metadata store in HBase, which itself has no sessions (decision 0042).

A session is a row: an entry whose version is a heartbeat counter, and whose value is the timeout.

    value := {"timeout_s": seconds}                                                JSON

The holder raises the version by a compare-and-put, several times in each timeout. Every open store
observes the rows of all sessions. A store that finds the same version for a whole timeout ends the
session: it replaces the row by a tombstone, by a compare-and-put on the cell that it found. So of a
heartbeat and an end only one succeeds, and every reader finds the same outcome in the row.

A holder that gets no answer repeats its heartbeat, for as long as HBase is away. If it succeeds,
the session never ended. An observer that read nothing for a whole timeout begins to count again, so
that after an outage of HBase the holders have time for that.

The rows of ended sessions stay. So the ids begin with a rising number, and a poll begins at the
oldest session that is live. A session that was opened slowly may be before it, so every
POLLS_OF_ALL-th poll reads all rows.

No clock is compared with that of another machine: holder and observers measure how long something
takes, each on its own monotonic clock.
"""

import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event, Lock

from kernel.log_events import event
from metadata.hbase_table import PAUSE_S_MIN, SESSIONS, MetadataTable, session_row
from metadata.store_interface import DamagedEntryError, Expected, Key, MetadataUnavailableError
from metadata.stored_entry import Entry, Write

log = logging.getLogger(__name__)

SESSION_ID_BYTES = 16  # random bytes; no two sessions ever have equal ids
BEATS_PER_TIMEOUT = 4  # two heartbeats may fail, with a hanging gateway each
POLLS_PER_TIMEOUT = 4
POLLS_OF_ALL = 20  # reading 10,000 ended sessions takes 40 ms
POLL_S_MIN, POLL_S_MAX = 0.05, 0.5  # seconds between two polls, which read the sessions


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session as its row says."""

    id: str
    cell: bytes
    entry: Entry
    timeout_s: float

    @classmethod
    def from_cell(cls, session_id: str, cell: bytes) -> "SessionState | None":
        """None: the session has ended. Raises: DamagedEntryError."""
        entry = Entry.from_bytes(cell, session_key(session_id))
        if entry.is_deleted:
            return None
        try:
            timeout_s = float(json.loads(entry.value)["timeout_s"])
        except (ValueError, KeyError, TypeError):
            raise DamagedEntryError(
                f"the session {session_id} has {entry.value[:40]!r} in place of its timeout"
            ) from None
        return cls(session_id, cell, entry, timeout_s)


class OldestSession:
    """Where the next poll begins to read sessions. For one thread."""

    def __init__(self) -> None:
        self._start = SESSIONS
        self._poll_count = 0

    def next_start(self) -> bytes:
        """The first row to read."""
        self._poll_count += 1
        return SESSIONS if self._poll_count % POLLS_OF_ALL == 1 else self._start

    def found(self, sessions: Mapping[str, SessionState]) -> None:
        """These sessions are live, of all from that row on."""
        self._start = min(map(session_row, sessions), default=self._start)


def first_entry(*, timeout_s: float) -> Entry:
    """The entry of a new session."""
    value = json.dumps({"timeout_s": timeout_s}).encode()
    return Write(session_key("new"), value, Expected.NEW).next(None, is_live=False)


def next_beat(entry: Entry) -> Entry:
    """The entry of the next heartbeat."""
    return Write(session_key("live"), entry.value, Expected.ANY).next(entry, is_live=True)


def end_of(session: SessionState) -> Entry:
    """The tombstone of a session."""
    key = session_key(session.id)
    return Write(key, None, Expected.ANY).next(session.entry, is_live=True)


def session_key(session_id: str) -> Key:
    """Names a session in errors; no entry has this key."""
    return ("session", session_id)


class SilentSessions:
    """Decides which sessions have ended, from what one observer saw. For one thread."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # version, and when it was found first
        self._answered_s = 0.0  # the last read

    def observe(
        self, sessions: Mapping[str, SessionState], *, asked_s: float, answered_s: float
    ) -> list[SessionState]:
        """The sessions whose version has been the same for their whole timeout, given all sessions
        that were found by a read between these two times of the observer's clock.

        If two reads return the same version, no heartbeat of the holder arrived from the reply of
        the first read until the request of the second one. If this observer read nothing for the
        whole timeout, perhaps no server reached the table, and the time does not count.
        """
        away_s, self._answered_s = asked_s - self._answered_s, answered_s
        seen: dict[str, tuple[int, float]] = {}
        silent = []
        for session in sessions.values():
            version, since_s = self._seen.get(session.id, (0, 0.0))
            if version != session.entry.version or away_s > session.timeout_s:
                version, since_s = session.entry.version, answered_s
            elif asked_s - since_s >= session.timeout_s:
                silent.append(session)
            seen[session.id] = version, since_s
        self._seen = seen
        return silent


def poll_pause_s(sessions: Mapping[str, SessionState]) -> float:
    """Seconds until the sessions are read again."""
    timeouts_s = [session.timeout_s for session in sessions.values()]
    shortest_s = min(timeouts_s, default=POLL_S_MAX * POLLS_PER_TIMEOUT)
    return max(POLL_S_MIN, min(POLL_S_MAX, shortest_s / POLLS_PER_TIMEOUT))


class HBaseSession:
    """A session of this process (`Session`). `keep_alive` needs a thread of its own.

    `_lock` guards the changes of `_is_over` and `_is_closing`, so that `lost` is called at most
    once, and not after `close`.
    """

    def __init__(
        self,
        table: MetadataTable,
        beats: MetadataTable,
        *,
        timeout_s: float,
        elapsed_s: Callable[[], float],
        lost: Callable[[], None],
    ) -> None:
        """A new session, with its row. `beats`: the same table, for heartbeats; its calls take a
        part of the timeout at most.

        Raises: MetadataUnavailableError.
        """
        number = table.next_session_number()
        self.id = f"{number:012}-{secrets.token_hex(SESSION_ID_BYTES)}"
        self._table = table
        self._beats = beats
        self._row = session_row(self.id)
        self._timeout_s = timeout_s
        self._pause_s = timeout_s / BEATS_PER_TIMEOUT
        self._elapsed_s = elapsed_s
        self._lost = lost
        self._lock = Lock()
        self._is_over = False
        self._is_ended = False  # in the table
        self._is_closing = Event()  # wakes the thread that waits for its next heartbeat
        self._entry = first_entry(timeout_s=timeout_s)
        self._heard_s = elapsed_s()  # the store heard of this session then, or later
        refused = table.replace(self._row, None, self._entry)
        assert refused is None, "a random id was used twice"

    @property
    def is_live(self) -> bool:
        return not self._is_over and self._elapsed_s() - self._heard_s < self._timeout_s

    def close(self) -> None:
        """Raises: MetadataUnavailableError: the session ends after its timeout instead."""
        with self._lock:
            self._is_over = True
        self._is_closing.set()
        # A heartbeat may be on its way. Then either it comes too late, or the end is repeated.
        while not self._is_ended:
            cell = self._table.cell(self._row)
            session = None if cell is None else SessionState.from_cell(self.id, cell)
            self._is_ended = (
                session is None or self._table.replace(self._row, cell, end_of(session)) is None
            )

    def keep_alive(self) -> None:
        """Send heartbeats until the session has ended."""
        while not self._is_closing.wait(self._pause_s if self.is_live else PAUSE_S_MIN):
            try:
                is_confirmed = self._beat()
            except Exception:
                log.exception("the session %s can't be confirmed", self.id)
                is_confirmed = False  # its holder must not wait for a proof for ever
            if not is_confirmed:
                self._end()
                return

    def _beat(self) -> bool:
        """Whether the session has not ended, after one heartbeat, which is repeated until it has an
        answer."""
        sent_s = self._elapsed_s()
        entry = next_beat(self._entry)
        cell = self._entry.to_bytes()
        while not self._is_closing.is_set():
            try:
                refused = self._beats.replace(self._row, cell, entry)
            except MetadataUnavailableError:
                # Repeated with the same bytes: each of the attempts may be the one that succeeds.
                self._is_closing.wait(PAUSE_S_MIN)
                continue
            if refused is not None:
                return False  # only the end of the session is another version
            # Perhaps the first attempt succeeded. So after an outage, it is the next heartbeat that
            # renews the lease.
            self._entry, self._heard_s = entry, sent_s
            return True
        return True

    def _end(self) -> None:
        with self._lock:
            is_first, self._is_over = not self._is_over, True
        if is_first:
            extra = event("session_ended", session=self.id)
            log.warning(
                "the session %s with the metadata store in HBase has ended", self.id, extra=extra
            )
            self._lost()
