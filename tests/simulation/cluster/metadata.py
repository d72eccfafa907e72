"""A metadata store in memory that the simulated servers share (decision 0042).

It makes the decisions of the real stores (metadata/stored_entry.py). Like ZooKeeper, it may answer
reads from the past, but never from before what the same server has read or written. The world ends
sessions, and cuts servers off. During an outage of the store no session ends, and afterwards it
counts the timeouts anew.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from metadata.keys import encode_key
from metadata.store_interface import (
    Condition,
    Key,
    MetadataUnavailableError,
    Session,
    SessionLostError,
    Versioned,
)
from metadata.stored_entry import Entry, Write, live, require_entry, require_timeout

T = TypeVar("T")


class Caller(Protocol):
    """The server that calls, as far as the store needs it."""

    def before_call(self, system: str) -> None:
        """The other servers may run meanwhile. Raises: CutOffError."""

    def loses_request(self) -> bool:
        """Whether a write never arrives."""

    def loses_reply(self) -> bool:
        """Whether the reply of a write that took effect is lost."""

    def lag(self, most: int) -> int:
        """How many changes behind the newest one a read is, up to `most`."""

    def hears_changes(self) -> bool:
        """Whether watches of this server fire now."""


class CutOffError(Exception):
    """The caller can't reach the system now."""


class SimSession:
    """A session. It ends for the store at one moment, and its holder may learn of that later."""

    def __init__(
        self,
        shared: "SimMetadata",
        number: int,
        timeout_s: float,
        lost: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.id = f"session-{number}"
        self.timeout_ms = int(timeout_s * 1000)
        self.counted_ms = now_ms()  # the store ends it if the timeout has passed since then
        self.confirmed_ms = now_ms()  # when the holder had the store's word for it last
        self.ended_at: int | None = None  # the change that ended it
        self._is_over = False  # as far as the holder knows
        self._shared = shared
        self._lost = lost
        self._now_ms = now_ms

    @property
    def is_live(self) -> bool:
        return not self._is_over and self._now_ms() - self.confirmed_ms < self.timeout_ms

    def close(self) -> None:
        self._is_over = True
        self._shared.end(self)

    def pass_time(self, *, is_heard: bool, learns: bool) -> bool:
        """The holder asks the store, if it is heard; whether the store has just ended it.
        `learns`: an answer that the session has ended arrives."""
        now_ms = self._now_ms()
        if self.ended_at is None and is_heard:
            self.counted_ms = self.confirmed_ms = now_ms
        elif self.ended_at is None and self._shared.is_away:
            self.counted_ms = now_ms
        elif self.ended_at is None and now_ms - self.counted_ms > self.timeout_ms:
            self._shared.end(self)
            return True
        elif self.ended_at is not None and is_heard and learns and not self._is_over:
            self._is_over = True
            self._lost()
        return False


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    prefix: Key
    changed: Callable[[], None]
    caller: Caller


class SimMetadata:
    """The store. Changes are numbered, and each key keeps all of its entries."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.number = 0  # of the newest change
        self.is_away = False  # no server reaches it
        self._now_ms = now_ms
        self.sessions: dict[str, SimSession] = {}
        self._entries: dict[Key, list[tuple[int, Entry]]] = {}
        self._watches: list[_Watch] = []

    def found(self, key: Key, at: int) -> Entry | None:
        """The stored entry after a change."""
        return next((entry for n, entry in reversed(self._entries.get(key, ())) if n <= at), None)

    def live(self, key: Key, at: int) -> Entry | None:
        """The entry as a reader sees it that knows the changes up to this one."""
        return live(self.found(key, at), lambda session: self._was_live(session, at))

    def now(self, key: Key) -> bytes | None:
        """The newest value, for the checks."""
        entry = self.live(key, self.number)
        return None if entry is None else entry.value

    def leader_count(self) -> int:
        """How many leaders were elected so far."""
        return len(self._entries.get(("leader",), ()))

    def carry_out(self, write: Write) -> int:
        """The new version of the entry."""
        key, is_live = write.key, self.live(write.key, self.number) is not None
        entry = write.next(self.found(key, self.number), is_live=is_live)
        self.number += 1
        self._entries.setdefault(key, []).append((self.number, entry))
        self._report([key])
        return entry.version

    def keys(self, prefix: Key) -> list[Key]:
        size = len(prefix)
        below = [key for key in self._entries if key[:size] == prefix and len(key) > size]
        return sorted(below, key=encode_key)

    def begin(self, timeout_s: float, lost: Callable[[], None]) -> SimSession:
        session = SimSession(self, len(self.sessions) + 1, timeout_s, lost, self._now_ms)
        self.sessions[session.id] = session
        return session

    def end(self, session: SimSession) -> None:
        """End a session for everybody but its holder."""
        if session.ended_at is not None:
            return
        self.number += 1
        session.ended_at = self.number
        self._report(
            [k for k, all_of in self._entries.items() if all_of[-1][1].session == session.id]
        )

    def is_session_live(self, session_id: str) -> bool:
        return self._was_live(session_id, self.number)

    def watch(self, watch: _Watch) -> Callable[[], None]:
        self._watches.append(watch)
        return lambda: self._watches.remove(watch) if watch in self._watches else None

    def _was_live(self, session_id: str, at: int) -> bool:
        ended_at = self.sessions[session_id].ended_at
        return ended_at is None or at < ended_at

    def _report(self, keys: list[Key]) -> None:
        for watch in list(self._watches):
            size = len(watch.prefix)
            if any(key[:size] == watch.prefix for key in keys) and watch.caller.hears_changes():
                watch.changed()


class SimMetadataStore:
    """The store as one server has it (`metadata.store_interface.MetadataStore`)."""

    def __init__(self, shared: SimMetadata, caller: Caller) -> None:
        self._shared = shared
        self._caller = caller
        self._seen = 0
        self.session: SimSession | None = None
        self._closing: list[Callable[[], None]] = []

    def get(self, key: Key) -> Versioned[bytes] | None:
        entry = self._shared.live(key, self._moment_to_read())
        return None if entry is None else Versioned(entry.value, entry.version)

    def put(
        self, key: Key, value: bytes, expected: Condition, *, session: Session | None = None
    ) -> int:
        def write() -> int:
            shared = self._shared
            if session is not None and not shared.is_session_live(session.id):
                raise SessionLostError(f"the session {session.id} has ended")
            session_id = None if session is None else session.id
            return shared.carry_out(Write(key, value, expected, session_id))

        return self._written(write)

    def delete(self, key: Key, expected: Condition) -> None:
        self._written(lambda: self._shared.carry_out(Write(key, None, expected)))

    def scan(self, prefix: Key) -> Iterator[tuple[Key, Versioned[bytes]]]:
        at = self._moment_to_read()
        for key in self._shared.keys(prefix):
            entry = self._shared.live(key, at)
            if entry is not None:
                yield key, Versioned(entry.value, entry.version)

    def require(self, key: Key, version: int) -> None:
        self._reach()
        shared = self._shared
        self._seen = shared.number
        is_live = shared.live(key, shared.number) is not None
        require_entry(key, shared.found(key, shared.number), is_live=is_live, expected=version)

    def watch(self, prefix: Key, changed: Callable[[], None]) -> Callable[[], None]:
        self._reach()
        cancel = self._shared.watch(_Watch(prefix, changed, self._caller))
        self._closing.append(cancel)
        return cancel

    def open_session(self, *, timeout_s: float, lost: Callable[[], None]) -> Session:
        require_timeout(timeout_s)
        self._reach()
        self.session = self._shared.begin(timeout_s, lost)
        return self.session

    def close(self) -> None:
        self.forget_watches()
        if self.session is not None:
            self.session.close()

    def forget_watches(self) -> None:
        """The process of the caller has ended."""
        for cancel in self._closing:
            cancel()
        self._closing.clear()

    def _moment_to_read(self) -> int:
        self._reach()
        newest = self._shared.number
        self._seen = newest - self._caller.lag(newest - self._seen)
        return self._seen

    def _written(self, write: Callable[[], T]) -> T:
        self._reach()
        if self._caller.loses_request():
            raise MetadataUnavailableError(
                "the metadata store does not answer; nothing was written"
            )
        result = write()
        self._seen = self._shared.number
        if self._caller.loses_reply():
            raise MetadataUnavailableError("the metadata store did not answer the write")
        return result

    def _reach(self) -> None:
        try:
            self._caller.before_call("metadata")
        except CutOffError as error:
            raise MetadataUnavailableError(str(error)) from None
