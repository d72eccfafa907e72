"""A session: an ephemeral znode of a connection of its own (decision 0042).

ZooKeeper gives a timeout to a connection, so sessions with different timeouts have a connection
each. ZooKeeper ends a session when it has heard nothing for the timeout. The holder counts from the
moment before it sent the last request that was answered, so it never believes in the session for
longer than ZooKeeper, also when its process was paused.

A request is a sync, and behind it a read of the znode. So the answer is as new as the leader of the
ZooKeeper servers was when it got the sync. A server that is cut off from the leader confirms
nothing, and neither does a later session of the connection: the znode goes with its own session.
"""

import logging
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, current_thread

from kazoo.exceptions import KazooException, NodeExistsError, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Close, Connect

from kernel.log_events import event
from metadata.store_interface import MetadataError, MetadataUnavailableError
from metadata.zookeeper_connection import (
    HANDSHAKE_S_MAX,
    RECONNECT_S_MIN,
    Connection,
    ask,
    unreachable,
)

REQUESTS_PER_TIMEOUT = 8  # a lost connection leaves time for several after it was made again
STEP_S_MAX = 1.0  # seconds between looks whether the holder has closed it, while there is no answer

_FRAME = struct.Struct(">i")
_CLOSE = struct.pack(">ii", 1, Close.type)

log = logging.getLogger(__name__)


class ZooKeeperSession:
    """A session with the store, and the thread that confirms it.

    Guarded by `_ending`: which of the holder and the loss ended it.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        *,
        timeout_s: float,
        lost: Callable[[], None],
        elapsed_s: Callable[[], float],
    ) -> None:
        """Create its znode at the path, whose last component is its id.

        Raises: MetadataUnavailableError, MetadataError.
        """
        self.id = path.rpartition("/")[2]
        self._connection = connection
        self._path = path
        self._timeout_s = timeout_s
        self._pause_s = timeout_s / REQUESTS_PER_TIMEOUT
        self._lost = lost
        self._elapsed_s = elapsed_s
        self._ending = Lock()
        self._has_ended = Event()
        self._confirmed_s = self._create()
        self._keeper = connection.client.handler.spawn(self._keep)

    @property
    def is_live(self) -> bool:
        left_s = self._confirmed_s + self._timeout_s - self._elapsed_s()
        return not self._has_ended.is_set() and left_s > 0

    @property
    def has_ended(self) -> bool:
        """Whether it was closed, or this process knows of its loss."""
        return self._has_ended.is_set()

    def close(self) -> None:
        if self._end():
            self._connection.close()
        if current_thread() is not self._keeper:
            self._keeper.join()

    def _create(self) -> float:
        """Create the znode. Returns a moment before ZooKeeper last heard of the holder."""
        deadline_s = self._connection.deadline_s()
        # It exists if the reply to an earlier attempt was lost: no other session has this id.
        with suppress(NodeExistsError):
            self._connection.read(
                lambda client: client.create_async(self._path, b"", ephemeral=True), deadline_s
            )
        sent_s = self._elapsed_s()
        if self._connection.read(ask("exists_async", self._path), deadline_s) is None:
            raise MetadataUnavailableError("the new session has ended before it could be used")
        return sent_s

    def _keep(self) -> None:
        """Confirm the session until it has ended; tell of its loss."""
        while not self._has_ended.wait(self._pause_s if self.is_live else RECONNECT_S_MIN):
            try:
                is_confirmed = self._confirm()
            except Exception:
                log.exception("the session %s can't be confirmed", self.id)
                is_confirmed = False  # its holder must not wait for a proof for ever
            if not is_confirmed and self._end():
                extra = event("session_ended", session=self.id)
                log.warning("the session %s with ZooKeeper has ended", self.id, extra=extra)
                try:
                    self._lost()
                except Exception:
                    log.exception("the function that is told of a lost session failed")
                self._connection.close()

    def _confirm(self) -> bool:
        """Ask once whether the session has ended. Returns False if it has."""
        sent_s = self._elapsed_s()
        synced = self._connection.client.sync_async(self._path)
        answer = self._connection.client.exists_async(self._path)
        while not answer.wait(min(self._pause_s, STEP_S_MAX)):
            if self._has_ended.is_set():
                return True  # the holder has closed it
        try:
            synced.get(timeout=STEP_S_MAX)
            znode = answer.get_nowait()
        except SessionExpiredError:
            return False
        except (
            KazooException,
            KazooTimeoutError,
            RuntimeError,
        ):  # the connection is lost, and made again as soon as a server answers
            return True
        if znode is None:
            return False
        self._confirmed_s = sent_s
        return True

    def _end(self) -> bool:
        """Whether this call ended it."""
        with self._ending:
            is_first = not self._has_ended.is_set()
            self._has_ended.set()
        return is_first


def require_granted(hosts: str, timeout_s: float) -> None:
    """Return if ZooKeeper grants sessions with this timeout. kazoo keeps the granted one to itself.

    Raises:
        MetadataUnavailableError: no server answers.
        MetadataError: it grants another one.
    """
    timeout_ms = int(timeout_s * 1_000)
    for host, port in collect_hosts(hosts)[0]:
        try:
            granted_ms = _granted_ms(host, port, timeout_ms)
        except (OSError, struct.error):
            continue
        if granted_ms != timeout_ms:
            raise MetadataError(
                f"ZooKeeper at {hosts} grants a session timeout of {granted_ms / 1_000} s instead "
                f"of {timeout_ms / 1_000} s; it grants 2 to 20 of its ticks (tickTime), or what "
                "its minSessionTimeout and maxSessionTimeout say; correct cluster.session_timeout"
            )
        return
    raise MetadataUnavailableError(unreachable(hosts, HANDSHAKE_S_MAX))


def _granted_ms(host: str, port: int, timeout_ms: int) -> int:
    is_read_only = False
    request = Connect(0, 0, timeout_ms, 0, bytes(16), is_read_only).serialize()
    with socket.create_connection((host, port), HANDSHAKE_S_MAX) as connection:
        connection.sendall(_FRAME.pack(len(request)) + request)
        with connection.makefile("rb") as answer:
            (length,) = _FRAME.unpack(answer.read(_FRAME.size))
            granted, _ = Connect.deserialize(answer.read(length), 0)
        connection.sendall(_FRAME.pack(len(_CLOSE)) + _CLOSE)
    return int(granted.time_out)
