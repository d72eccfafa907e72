"""The interface of a metadata store: a map from keys to versioned values, with compare-and-set,
prefix scans, watches, and sessions with ephemeral entries (decision 0042).

All methods block, and any thread may call them. Two stores have this interface: ZooKeeper
(metadata/zookeeper_store.py) and HBase (metadata/hbase_store.py). Both pass one conformance suite,
and so does the store in memory with which the tests of managers and clusters run.

Versions. Each write of an entry gives it a higher version than it ever had before, also after it
was deleted. So a version that was read once is never the version of another value, and it can serve
as a fencing token.

Sessions. An ephemeral entry belongs to a session and is absent for every reader once that session
has ended. A session ends when it is closed, or when the store has not heard of its holder for the
session's timeout. Its holder may learn of that late, or never (a paused process). So a session says
who is probably alive. It never proves that its holder has stopped, and whatever must not happen
after its end is prevented by a compare-and-set elsewhere.

For its holder, a session is in one of three states. It is live while the store has confirmed it
within the timeout. After that it is unproven: the store may have ended it, or may itself be away.
The holder then continues to ask, for as long as the store is away. The answer makes the session
live again, or lost.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

Key = tuple[str, ...]  # components, none empty; any text without lone surrogates

VALUE_BYTES_MAX = 512 << 10  # bytes; ZooKeeper drops the connection of a client that sends 1 MiB
KEY_BYTES_MAX = 1_024  # bytes of the encoded key
SESSION_S_MIN, SESSION_S_MAX = 0.2, 3_600.0  # seconds; the range of a session's timeout


class Expected(Enum):
    """Conditions of a write besides a version."""

    NEW = "new"  # the entry does not exist
    ANY = "any"  # it exists, with any version


Condition = int | Expected  # a version, or one of `Expected`


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value, and the version with which it was read."""

    value: T
    version: int


class MetadataError(Exception):
    """A metadata store refused a call, or could not carry it out; the message is one sentence."""


class BadVersionError(MetadataError):
    """The entry has another version than the caller expected. Nothing was written."""


class NoEntryError(MetadataError):
    """The caller expected an entry, and there is none. Nothing was written."""


class EntryExistsError(MetadataError):
    """The caller expected no entry, and there is one. Nothing was written."""


class SessionLostError(MetadataError):
    """The session that the call names has ended. Nothing was written."""


class MetadataUnavailableError(MetadataError):
    """The store does not answer. A write may or may not have been carried out."""


class DamagedEntryError(MetadataError):
    """The stored bytes are not an entry of this version of the software."""


class Session(Protocol):
    """A session of this process with the store."""

    id: str  # never used again

    @property
    def is_live(self) -> bool:
        """Whether the session is proven not to have ended: the store has confirmed it within its
        timeout. False while it is unproven, and from its end on. Reading it costs nothing."""

    def close(self) -> None:
        """End it, and so its ephemeral entries, at once. Repeating it is harmless."""


class MetadataStore(Protocol):
    """Entries under keys. Every reader of a key sees its writes in one order.

    `get` and `scan` may be slightly behind other processes. A condition is always checked against
    the newest version.

    Every method raises MetadataUnavailableError when the store does not answer in time, and
    ValueError for keys, values and timeouts out of range.
    """

    def get(self, key: Key) -> Versioned[bytes] | None:
        """The entry, or None. Raises: DamagedEntryError."""

    def put(
        self, key: Key, value: bytes, expected: Condition, *, session: Session | None = None
    ) -> int:
        """Write an entry if the condition holds; returns its new version. With a session it is
        ephemeral from then on, without one it is not.

        Raises:
            EntryExistsError: `expected` is NEW, and the entry exists.
            NoEntryError: `expected` is a version or ANY, and there is no entry.
            BadVersionError: it has another version.
            SessionLostError: the session has ended.
        """

    def delete(self, key: Key, expected: Condition) -> None:
        """Remove an entry if the condition holds.

        Raises:
            NoEntryError: there is no entry, whatever is expected.
            BadVersionError: it has another version, or `expected` is NEW.
        """

    def scan(self, prefix: Key) -> Iterator[tuple[Key, Versioned[bytes]]]:
        """All entries whose keys begin with these components and have more, ordered by the encoded
        key; none is no error. It is no snapshot: an entry that is written or deleted meanwhile is
        in it or not. Raises: DamagedEntryError."""

    def require(self, key: Key, version: int) -> None:
        """Return if the entry has this version at some moment between call and return, whichever
        process wrote last. Raises: NoEntryError, BadVersionError."""

    def watch(self, prefix: Key, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after an entry at or below this prefix may have changed, until the
        returned function is called. Several changes may be one call; a call without a change is
        possible. Changes before the last return of `watch` are not reported. Any thread calls
        `changed`, which must not block."""

    def open_session(self, *, timeout_s: float, lost: Callable[[], None]) -> Session:
        """A new session. `lost` is called once, from any thread, when this process learns that the
        session has ended; not after `Session.close`."""

    def close(self) -> None:
        """Close all sessions and release everything. Repeating it is harmless."""
