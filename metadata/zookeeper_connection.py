"""A connection to ZooKeeper whose calls have a deadline, on kazoo's client (decision 0042).

kazoo connects again by itself, and chooses another server if there are several. While it is not
connected, its calls fail, or wait in its queue without a limit.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
    ZookeeperError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.retry import KazooRetry

from metadata.store_interface import MetadataError, MetadataUnavailableError

CLOSE_S_MAX = 2.0  # seconds; a server that hangs does not delay the end of the process for longer
RECONNECT_S_MIN, RECONNECT_S_MAX = 0.05, 1.0  # seconds between attempts to connect
RECONNECTS_PER_TIMEOUT = 8  # a session is not lost because the next attempt comes too late
HANDSHAKE_S_MAX = 1.5  # seconds; a server may accept a connection and never answer while it starts
HANDSHAKES_PER_TIMEOUT = 3  # likewise, for short timeouts: two servers may hang

REPLY_LOST = (
    ConnectionLoss,
    KazooTimeoutError,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
)

Call = Callable[[KazooClient], Any]  # begins a call; returns kazoo's asynchronous result

log = logging.getLogger(__name__)


class ReplyLostError(Exception):
    """ZooKeeper may or may not have carried out a call."""


class Connection:
    """One client of kazoo, with a session of ZooKeeper and three threads of its own."""

    def __init__(
        self, hosts: str, *, timeout_s: float, call_s: float, elapsed_s: Callable[[], float]
    ) -> None:
        """Begin to connect to one of the hosts.

        timeout_s: of ZooKeeper's session; a server that is silent for two thirds of it is left.
        call_s: until when a call must be answered.
        """
        self.hosts = hosts
        self.client = KazooClient(
            hosts=hosts,
            timeout=timeout_s,
            handler=_handler(min(HANDSHAKE_S_MAX, timeout_s / HANDSHAKES_PER_TIMEOUT)),
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=RECONNECT_S_MIN,
                max_delay=min(RECONNECT_S_MAX, timeout_s / RECONNECTS_PER_TIMEOUT),
            ),
        )
        self.call_s = call_s
        self._elapsed_s = elapsed_s
        self._is_closed = False
        self._connected = self.client.start_async()

    def open(self, within_s: float) -> None:
        """Return once there is a connection. Raises: MetadataUnavailableError."""
        if not self._connected.wait(within_s):
            raise MetadataUnavailableError(unreachable(self.hosts, within_s))

    def deadline_s(self) -> float:
        """Until when a call that begins now must be answered."""
        return self._elapsed_s() + self.call_s

    def read(self, call: Call, deadline_s: float) -> Any:
        """The result of a call that may be repeated, and is until it has an answer.

        Raises: MetadataUnavailableError, NoNodeError, NodeExistsError, MetadataError.
        """
        while True:
            try:
                return self.write(call, deadline_s)
            except ReplyLostError:
                continue

    def write(self, call: Call, deadline_s: float) -> Any:
        """The result of a call that is made once, as soon as there is a connection.

        Raises:
            ReplyLostError: there is no answer.
            MetadataUnavailableError: there is no connection until the deadline; nothing was asked.
            NoNodeError, NodeExistsError: the answers of ZooKeeper that callers expect.
            MetadataError: another refusal of ZooKeeper.
        """
        left_s = self._left_s(deadline_s)
        try:
            return call(self.client).get(timeout=left_s)
        except REPLY_LOST as error:
            raise ReplyLostError from error
        except (NoNodeError, NodeExistsError):
            raise
        except ZookeeperError as error:
            raise refused(error) from error

    def read_all(self, calls: Sequence[Call], deadline_s: float) -> list[Any]:
        """The results of calls that may be repeated, in their order, None instead of NoNodeError.
        The calls are sent together."""
        while True:
            left_s = self._left_s(deadline_s)
            try:
                return [
                    _maybe_node(result, left_s) for result in [call(self.client) for call in calls]
                ]
            except REPLY_LOST:
                continue
            except ZookeeperError as error:
                raise refused(error) from error

    def close(self) -> None:
        """End ZooKeeper's session and the threads. Repeating it is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        closing = self.client.handler.spawn(self._stop)
        closing.join(CLOSE_S_MAX)
        if closing.is_alive():
            log.warning("ZooKeeper at %s does not answer; its session will time out", self.hosts)

    def _stop(self) -> None:
        self.client.stop()
        self.client.close()

    def _left_s(self, deadline_s: float) -> float:
        """How long the call may still take, once there is a connection."""
        if self._is_closed:
            raise MetadataUnavailableError("the metadata store is closed")
        if not self._connected.wait(max(0.0, deadline_s - self._elapsed_s())):
            raise self._unavailable()
        left_s = deadline_s - self._elapsed_s()
        if left_s <= 0:
            raise self._unavailable()
        return left_s

    def _unavailable(self) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"ZooKeeper at {self.hosts} did not answer within {self.call_s} s"
        )


def ask(method: str, *arguments: object) -> Call:
    """The call of this method of the client."""
    return lambda client: getattr(client, method)(*arguments)


def unreachable(hosts: str, within_s: float) -> str:
    """The sentence that there is no ZooKeeper."""
    return (
        f"no ZooKeeper answers at {hosts} within {within_s} s; start it, or correct its addresses "
        "in the settings"
    )


def split_hosts(hosts: str) -> tuple[str, str]:
    """The addresses of a connection string, and its path, which is empty or begins with "/".

    Raises: ValueError.
    """
    addresses, slash, path = hosts.partition("/")
    try:
        collect_hosts(addresses)
    except ValueError:
        raise ValueError(
            f"{hosts!r} are not addresses of ZooKeeper: they have the form HOST:PORT,HOST:PORT/PATH"
        ) from None
    return addresses, slash + path


def refused(error: ZookeeperError) -> MetadataError:
    """The error for an answer of ZooKeeper that the store has no use for."""
    return MetadataError(f"ZooKeeper refused the call: {type(error).__name__}")


def _handler(handshake_s: float) -> SequentialThreadingHandler:
    """kazoo's handler of threads and sockets, which waits for one connection, and for one piece of
    an answer, for this time at most. kazoo itself waits for as long as the session's timeout: one
    silent server would cost the session."""
    handler = SequentialThreadingHandler()
    create_connection, select = handler.create_connection, handler.select

    def create_in_time(*arguments: Any, timeout: float, **options: Any) -> Any:
        return create_connection(*arguments, timeout=min(timeout, handshake_s), **options)

    def select_in_time(
        reads: list[Any], writes: list[Any], errors: list[Any], timeout: float
    ) -> Any:
        is_idle = len(reads) > 1  # it waits for answers and for requests
        within_s = timeout if is_idle else min(timeout, handshake_s)
        return select(reads, writes, errors, within_s)

    handler.create_connection = create_in_time
    handler.select = select_in_time
    return handler


def _maybe_node(result: Any, left_s: float) -> Any:
    try:
        return result.get(timeout=left_s)
    except NoNodeError:
        return None
