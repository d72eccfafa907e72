"""A proxy between a client and ZooKeeper that loses one transaction, and with it the connection.

request := length(4) xid(4) type(4) …        reply := length(4) xid(4) …        big-endian
"""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread

TRANSACTION = 14  # the type of a request

_HEAD = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")


class _Connection:
    """A client's connection and that to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.lost_xid: int | None = None  # of the transaction whose reply is to be lost

    def end(self) -> None:
        for each in (self.client, self.server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class ZooKeeperProxy:
    """Passes everything on until a transaction is to be lost. `_lock` guards which one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = Lock()
        self._lost: str | None = None
        self._meanwhile: Callable[[], object] = lambda: None
        self.has_lost = Event()
        self._threads: list[Thread] = []
        self._connections: list[_Connection] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def lose(self, part: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Lose the "request" of the next transaction, or its "reply". `meanwhile` is called before
        the client can notice it."""
        with self._lock:
            self._lost, self._meanwhile = part, meanwhile

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                connection = _Connection(client, server)
                self._connections.append(connection)
                for pass_on in (self._pass_requests, self._pass_replies):
                    self._start(Thread(target=pass_on, args=(connection,)))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for connection in self._connections:
            connection.end()
        for thread in self._threads:
            thread.join()
        for connection in self._connections:
            connection.client.close()
            connection.server.close()
        self._listener.close()

    def _start(self, thread: Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def _pass_requests(self, connection: _Connection) -> None:
        is_first = True
        for frame in _frames(connection.client):
            xid, kind = _HEAD.unpack_from(frame, _LENGTH.size)
            lost = self._take() if kind == TRANSACTION and not is_first else None
            is_first = False  # the first one opens the session, and has another form
            if lost == "request":
                self._lose(connection)
                break
            if lost == "reply":
                connection.lost_xid = xid
            connection.server.sendall(frame)
        connection.end()

    def _pass_replies(self, connection: _Connection) -> None:
        for frame in _frames(connection.server):
            (xid,) = _LENGTH.unpack_from(frame, _LENGTH.size)
            if xid == connection.lost_xid:
                self._lose(connection)
                break
            connection.client.sendall(frame)
        connection.end()

    def _take(self) -> str | None:
        with self._lock:
            lost, self._lost = self._lost, None
        return lost

    def _lose(self, connection: _Connection) -> None:
        self._meanwhile()
        self.has_lost.set()
        connection.end()


@contextmanager
def proxy_before(port: int) -> Iterator[ZooKeeperProxy]:
    """A proxy before the server at this port."""
    proxy = ZooKeeperProxy(port)
    proxy._start(Thread(target=proxy.serve))
    try:
        yield proxy
    finally:
        proxy.close()


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Whole messages with their lengths, until the connection ends."""
    unread = b""
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            unread += piece
            while len(unread) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(unread)[0]
                if len(unread) < end:
                    break
                yield unread[:end]
                unread = unread[end:]
