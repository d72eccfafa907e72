"""The znodes of a metadata store, and what is read and written of them in one call (decision 0042).

    ROOT/entries/KEY         below the encoded key: the stored entry (metadata/stored_entry.py), or
                             one zero byte in a znode that is only the parent of others
    ROOT/changes/COMPONENT   the encoded key of the last write below this first component
    ROOT/sessions/ID         ephemeral: a session that has not ended

Entries and changes are never deleted, so their data versions never start again. ZooKeeper's access
lists are open: its network must be a trusted one.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from heapq import heapify, heappop, heappush
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    ZookeeperError,
)
from kazoo.protocol.states import ZnodeStat

from metadata.keys import decode_key, encode_key
from metadata.store_interface import DamagedEntryError, Key, SessionLostError, Versioned
from metadata.stored_entry import Entry, live
from metadata.zookeeper_connection import Connection, ask, refused

SCAN_CALLS_MAX = 256  # calls sent together; 128 MiB, if all values have the greatest size
NO_ZNODE = -1  # the data version before that of a new znode

_ANY_DATA_VERSION = -1  # as ZooKeeper writes it
_PARENT = b"\x00"  # no entry begins with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is stored under a key."""

    entry: Entry | None  # None: it was never written
    is_live: bool  # whether readers see it
    data_version: int  # of the znode; NO_ZNODE if there is none


class ConflictError(Exception):
    """A transaction was refused, because what it was based on has changed."""


class Znodes:
    """The znodes below one root. All methods raise MetadataUnavailableError and MetadataError."""

    def __init__(self, connection: Connection, root: str) -> None:
        """Raises: ValueError: ZooKeeper can't have this root, or needs it for itself."""
        _require_root(root)
        self._connection = connection
        self._entries = f"{root}/entries"
        self._changes = f"{root}/changes"
        self.sessions = f"{root}/sessions"

    def create_root(self) -> None:
        """Create the root, where there is none."""
        for path in (self._entries, self._changes, self.sessions):
            self._connection.read(ask("ensure_path_async", path), self._connection.deadline_s())

    def create_changes(self, key: Key) -> str:
        """The znode of changes of a key, which exists at return."""
        path = self._changes_path(key)
        self._connection.read(ask("ensure_path_async", path), self._connection.deadline_s())
        return path

    def session_path(self, session_id: str) -> str:
        return f"{self.sessions}/{session_id}"

    def find(self, key: Key, deadline_s: float, *, is_newest: bool = False) -> Found:
        """What is stored. `is_newest`: it is not behind any write before the call.

        Raises: DamagedEntryError.
        """
        path = self._path(key)
        if is_newest:
            self._connection.read(ask("sync_async", path), deadline_s)
        try:
            data, stat = self._connection.read(ask("get_async", path), deadline_s)
        except NoNodeError:
            return Found(entry=None, is_live=False, data_version=NO_ZNODE)
        entry = None if data == _PARENT else Entry.from_bytes(data, key)
        seen = live(entry, partial(self._is_session_live, deadline_s))
        return Found(entry=entry, is_live=seen is not None, data_version=stat.version)

    def commit(self, key: Key, found: Found, entry: Entry, deadline_s: float) -> None:
        """Store an entry if the session, if any, has not ended, and the znode is as it was found.

        Raises: ConflictError, SessionLostError, ReplyLostError.
        """
        path, session_id = self._path(key), entry.session
        transaction = self._connection.client.transaction()
        if session_id is not None:
            transaction.check(self.session_path(session_id), _ANY_DATA_VERSION)
        if found.data_version == NO_ZNODE:
            transaction.create(path, entry.to_bytes())
        else:
            transaction.set_data(path, entry.to_bytes(), found.data_version)
        transaction.set_data(self._changes_path(key), encode_key(key).encode())
        index, error = self._failure(transaction, deadline_s)
        if isinstance(error, NoNodeError) and session_id is not None and index == 0:
            raise SessionLostError(f"the session {session_id} has ended")
        if isinstance(error, NoNodeError):
            self._create_parents(key)
        if isinstance(error, NoNodeError | NodeExistsError | BadVersionError):
            raise ConflictError
        if error is not None:
            raise refused(error)

    def check(self, key: Key, found: Found, deadline_s: float) -> None:
        """Return if the entry is as it was found. A transaction answers from the newest state,
        also one that changes nothing.

        Raises: ConflictError, ReplyLostError.
        """
        transaction = self._connection.client.transaction()
        transaction.check(self._path(key), found.data_version)
        if found.entry is not None and found.entry.session is not None:
            transaction.check(self.session_path(found.entry.session), _ANY_DATA_VERSION)
        _, error = self._failure(transaction, deadline_s)
        if isinstance(error, NoNodeError | BadVersionError):
            raise ConflictError
        if error is not None:
            raise refused(error)

    def scan(self, encoded: str) -> Iterator[tuple[Key, Versioned[bytes]]]:
        """The live entries below an encoded prefix, in the order of their encoded keys.

        Raises: DamagedEntryError.
        """

        @cache  # no session begins again
        def is_session_live(session_id: str) -> bool:
            return self._is_session_live(self._connection.deadline_s(), session_id)

        for found, data in self._scan_znodes(encoded):
            if data == _PARENT:
                continue
            key = _decoded(found)
            entry = live(Entry.from_bytes(data, key), is_session_live)
            if entry is not None:
                yield key, Versioned(entry.value, entry.version)

    def _scan_znodes(self, encoded: str) -> Iterator[tuple[str, bytes]]:
        """The znodes below this one with their data. ("a-b" is before what is below "a".)"""
        unread = self._children([encoded])
        heapify(unread)
        answers: dict[str, Any] = {}  # of what was read before it was its turn
        while unread:
            window = [heappop(unread) for _ in range(min(SCAN_CALLS_MAX, len(unread)))]
            new = [each for each in window if each not in answers]
            answers.update(zip(new, self._ask_all("get_async", new), strict=True))
            for child in self._children([each for each in new if _has_children(answers[each])]):
                heappush(unread, child)
            for each in window:
                if unread and unread[0] < each:
                    heappush(unread, each)
                elif (answer := answers.pop(each)) is not None:
                    yield each, answer[0]

    def _children(self, parents: Sequence[str]) -> list[str]:
        answers = self._ask_all("get_children_async", parents)
        return [
            f"{parent}/{name}"
            for parent, names in zip(parents, answers, strict=True)
            for name in names or ()
        ]

    def _ask_all(self, method: str, encoded_keys: Sequence[str]) -> list[Any]:
        asks = [ask(method, f"{self._entries}/{encoded}") for encoded in encoded_keys]
        return self._connection.read_all(asks, self._connection.deadline_s())

    def _is_session_live(self, deadline_s: float, session_id: str) -> bool:
        path = self.session_path(session_id)
        return self._connection.read(ask("exists_async", path), deadline_s) is not None

    def _create_parents(self, key: Key) -> None:
        """Create what a write of this key needs, where there is none."""
        self.create_root()
        self.create_changes(key)
        for depth in range(1, len(key)):
            # It exists also if the reply to an earlier attempt was lost.
            with suppress(NodeExistsError):
                self._connection.read(
                    ask("create_async", self._path(key[:depth]), _PARENT),
                    self._connection.deadline_s(),
                )

    def _failure(self, transaction: Any, deadline_s: float) -> tuple[int, ZookeeperError | None]:
        """The operation that failed, and why; None if the transaction was carried out. kazoo
        returns errors, one for each operation, also for those that did not fail themselves."""
        results = self._connection.write(lambda _: transaction.commit_async(), deadline_s)
        for index, result in enumerate(results):
            is_error = isinstance(result, ZookeeperError)
            if is_error and not isinstance(result, RolledBackError | RuntimeInconsistency):
                return index, result
        return 0, None

    def _path(self, key: Key) -> str:
        return f"{self._entries}/{encode_key(key)}"

    def _changes_path(self, key: Key) -> str:
        return f"{self._changes}/{encode_key(key[:1])}"


def _has_children(answer: tuple[bytes, ZnodeStat] | None) -> bool:
    return answer is not None and answer[1].numChildren > 0


def _decoded(encoded: str) -> Key:
    try:
        return decode_key(encoded)
    except ValueError as error:
        raise DamagedEntryError(f"another program has a znode among the entries: {error}") from None


def _require_root(root: str) -> None:
    slash, *components = root.split("/")
    with suppress(ValueError):
        if (
            not slash
            and components[:1] != ["zookeeper"]
            and f"/{encode_key(tuple(components))}" == root
        ):
            return
    raise ValueError(
        f"{root!r} is not a root for a store in ZooKeeper: it must be a path like /tuff, of "
        "letters, digits and the characters - . _ ~, and not below /zookeeper"
    )
