"""The stored form of an entry, and the decisions that every store makes on it (decision 0042).

    entry := format(1) flags(1) version(8) nonce(16) session_bytes(1) session value    big-endian
    flags := 1 if it is a tombstone                       the other bits are for later versions

A deleted entry stays as a tombstone, and so does one whose session has ended: the next write gives
it the next version. The nonce is new for each write. By it a writer whose reply was lost recognises
its own write.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from secrets import token_bytes

from metadata.keys import encode_key
from metadata.store_interface import (
    SESSION_S_MAX,
    SESSION_S_MIN,
    VALUE_BYTES_MAX,
    BadVersionError,
    Condition,
    DamagedEntryError,
    EntryExistsError,
    Expected,
    Key,
    NoEntryError,
)

NONCE_BYTES = 16  # random bytes; two writes never have equal ones
FIRST_VERSION = 1

_FORMAT = 1
_TOMBSTONE = 1
_HEAD = struct.Struct(">BBQ16sB")
assert _HEAD.size == 27


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a store keeps under a key. A tombstone has no value and no session."""

    value: bytes
    version: int
    nonce: bytes
    session: str | None  # the id of the session to which an ephemeral entry belongs
    is_deleted: bool

    def to_bytes(self) -> bytes:
        session = (self.session or "").encode()
        flags = _TOMBSTONE if self.is_deleted else 0
        head = _HEAD.pack(_FORMAT, flags, self.version, self.nonce, len(session))
        return head + session + self.value

    @classmethod
    def from_bytes(cls, data: bytes, key: Key) -> "Entry":
        """The entry with these bytes, which are stored under the key.

        Raises:
            DamagedEntryError: they are not an entry, or a newer version of Tuff wrote them.
        """
        if data and data[0] != _FORMAT:
            raise _newer(key, f"it has the format {data[0]}")
        if len(data) < _HEAD.size:
            raise _damaged(key, f"it has {len(data)} bytes, fewer than the head of an entry")
        _, flags, version, nonce, session_bytes = _HEAD.unpack_from(data)
        if flags & ~_TOMBSTONE:
            raise _newer(key, f"it has the flags {flags:#04x}")
        if version < FIRST_VERSION:
            raise _damaged(key, f"it has the version {version}")
        if flags & _TOMBSTONE and len(data) > _HEAD.size:
            raise _damaged(key, "it is a tombstone with a session or a value")
        return cls(
            value=data[_HEAD.size + session_bytes :],
            version=version,
            nonce=nonce,
            session=_session(data, session_bytes, key),
            is_deleted=bool(flags & _TOMBSTONE),
        )


def live(found: Entry | None, is_session_live: Callable[[str], bool]) -> Entry | None:
    """The stored entry as readers see it: None for a tombstone, and for an ephemeral entry whose
    session has ended. `is_session_live` is called for ephemeral entries only."""
    if found is None or found.is_deleted:
        return None
    if found.session is not None and not is_session_live(found.session):
        return None
    return found


@dataclass(frozen=True, slots=True)
class Write:
    """A put, or the deletion of an entry (no value). `session`: the id of that to which the entry
    belongs from then on. Raises ValueError for a key or value out of range."""

    key: Key
    value: bytes | None
    expected: Condition
    session: str | None = None
    nonce: bytes = field(default_factory=partial(token_bytes, NONCE_BYTES))

    def __post_init__(self) -> None:
        encode_key(self.key)
        if self.value is not None and len(self.value) > VALUE_BYTES_MAX:
            raise ValueError(
                f"the value has {len(self.value)} bytes; at most {VALUE_BYTES_MAX} are allowed"
            )

    def next(self, found: Entry | None, *, is_live: bool) -> Entry:
        """The entry that is stored in place of `found`. `is_live`: `live` returns that.

        Raises: EntryExistsError, NoEntryError, BadVersionError.
        """
        if self.value is None or self.expected is not Expected.NEW:
            require_entry(self.key, found, is_live=is_live, expected=self.expected)
        elif found is not None and is_live:
            raise EntryExistsError(
                f"the entry {encode_key(self.key)} exists, with version {found.version}"
            )
        return Entry(
            value=self.value or b"",
            version=FIRST_VERSION if found is None else found.version + 1,
            nonce=self.nonce,
            session=self.session,
            is_deleted=self.value is None,
        )


def require_entry(key: Key, found: Entry | None, *, is_live: bool, expected: Condition) -> None:
    """Return if the entry has the expected version. Raises: NoEntryError, BadVersionError."""
    if found is None or not is_live:
        raise NoEntryError(f"there is no entry {encode_key(key)}")
    if expected is Expected.NEW:
        raise BadVersionError(
            f"the entry {encode_key(key)} has version {found.version}, and none was expected"
        )
    if expected is not Expected.ANY and found.version != expected:
        raise BadVersionError(
            f"the entry {encode_key(key)} has version {found.version}, not {expected}"
        )


def require_timeout(timeout_s: float) -> None:
    """Raises: ValueError: no session may have this timeout."""
    if not SESSION_S_MIN <= timeout_s <= SESSION_S_MAX:
        raise ValueError(
            f"the session's timeout is {timeout_s} s; it must be between {SESSION_S_MIN} and "
            f"{SESSION_S_MAX} s"
        )


def _session(data: bytes, session_bytes: int, key: Key) -> str | None:
    session = data[_HEAD.size : _HEAD.size + session_bytes]
    if len(session) < session_bytes:
        raise _damaged(key, "it ends within the id of its session")
    try:
        return session.decode() or None
    except UnicodeDecodeError:
        raise _damaged(key, "the id of its session is not UTF-8") from None


def _damaged(key: Key, reason: str) -> DamagedEntryError:
    return DamagedEntryError(f"the stored bytes of {encode_key(key)} are not an entry: {reason}")


def _newer(key: Key, reason: str) -> DamagedEntryError:
    return DamagedEntryError(
        f"the entry {encode_key(key)} can't be read: {reason}, so a newer version of Tuff wrote "
        "it, or it is damaged"
    )
