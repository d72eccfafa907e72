"""Watches of prefixes on ZooKeeper (decision 0042).

A watch of ZooKeeper is for one znode and one change. So each write also puts its key into the znode
of changes of the key's first component, in the same transaction, and one watch of that znode is
enough for all keys with this component. The end of a session is a change of the children of the
znode of sessions.
"""

import logging
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

from kazoo.client import KazooState
from kazoo.protocol.states import EventType

from metadata.keys import decode_key, is_at_or_below
from metadata.store_interface import Key
from metadata.zookeeper_connection import Connection

Changed = Callable[[], None]

log = logging.getLogger(__name__)


class _Watched:
    """A znode of changes, and the functions to be called."""

    def __init__(self) -> None:
        self.functions: list[tuple[Key, Changed]] = []
        self.data_version: int | None = None  # of the last change that was seen

    def called(self, data: bytes, data_version: int) -> list[Changed]:
        """The functions to be called for a change: one change says which key it was, and of several
        only the last one does."""
        is_next = self.data_version is not None and data_version == self.data_version + 1
        self.data_version = data_version
        key = _maybe_key(data) if is_next else None
        return [
            changed
            for prefix, changed in self.functions
            if key is None or is_at_or_below(key, prefix)
        ]


class Watches:
    """The functions to be called after changes.

    kazoo's threads call them, and make the watches again: none of it may block. A lost connection
    loses all watches. They are made again with the next one, and as changes may have been missed,
    all functions are called.

    `_lock` guards the znodes that are watched.
    """

    def __init__(self, connection: Connection, sessions: str) -> None:
        """sessions: the znode whose children are the sessions."""
        self._connection = connection
        self._sessions = sessions
        self._lock = Lock()
        self._watched: dict[str, _Watched] = {}
        # kazoo keeps one watch for a znode and a function: it must be the same object each time.
        self._on_events: dict[str, Callable[[Any], None]] = {}
        connection.client.add_listener(self._on_state)

    def add(self, znode: str, prefix: Key, changed: Changed) -> Callable[[], None]:
        """Call the function after changes at or below the prefix, whose znode of changes this is,
        until the returned function is called. Raises: MetadataUnavailableError."""
        deadline_s = self._connection.deadline_s()
        function = (prefix, changed)
        with self._lock:
            watched = self._watched.setdefault(znode, _Watched())
            watched.functions.append(function)
        remove = partial(self._remove, znode, function)
        try:
            _, stat = self._connection.read(partial(self._ask, znode), deadline_s)
            self._connection.read(partial(self._ask, self._sessions), deadline_s)
        except BaseException:
            remove()
            raise
        with self._lock:
            if watched.data_version is None:
                watched.data_version = stat.version
        return remove

    def _remove(self, znode: str, function: tuple[Key, Changed]) -> None:
        with self._lock:
            watched = self._watched.get(znode, _Watched())
            watched.functions = [each for each in watched.functions if each is not function]
            if not watched.functions:
                self._watched.pop(znode, None)

    def _ask(self, znode: str, client: Any) -> Any:
        """Read the znode, and watch it for its next change."""
        with self._lock:
            on_event = self._on_events.setdefault(znode, partial(self._on_event, znode))
        if znode == self._sessions:
            return client.get_children_async(znode, watch=on_event)
        return client.get_async(znode, watch=on_event)

    def _on_event(self, znode: str, event: Any) -> None:
        if event.type != EventType.NONE:  # the connection was lost
            self._watch_again(znode)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            with self._lock:
                znodes = list(self._watched)
            for znode in [*znodes, self._sessions]:
                self._watch_again(znode)

    def _watch_again(self, znode: str) -> None:
        """Watch it for the next change, and then report the last one: a function reads what has
        changed before the watch. If this fails, the connection was lost, and the next one does the
        same."""
        with self._lock:
            is_wanted = znode in self._watched or (znode == self._sessions and self._watched)
        if is_wanted:
            on_answer = self._on_sessions if znode == self._sessions else self._on_change
            self._ask(znode, self._connection.client).rawlink(partial(on_answer, znode))

    def _on_change(self, znode: str, answer: Any) -> None:
        if not answer.successful():
            return
        data, stat = answer.value
        with self._lock:
            watched = self._watched.get(znode)
            called = [] if watched is None else watched.called(data, stat.version)
        _call(called)

    def _on_sessions(self, _: str, answer: Any) -> None:
        """Any entry may be one of a session that ended."""
        if not answer.successful():
            return
        with self._lock:
            called = [each for one in self._watched.values() for _, each in one.functions]
        _call(called)


def _maybe_key(data: bytes) -> Key | None:
    """The key in a znode of changes; None if another program has set it."""
    try:
        return decode_key(data.decode())
    except ValueError:
        return None


def _call(functions: list[Changed]) -> None:
    for changed in functions:
        try:
            changed()
        except Exception:
            log.exception("a function that is told of changes failed")
