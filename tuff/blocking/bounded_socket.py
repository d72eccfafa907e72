"""A socket that limits the time of a whole exchange."""

import io
import socket
from collections.abc import Callable
from http.client import HTTPConnection
from ssl import SSLSocket

from tuff.flows import Stop, wait_for


class BoundedSocket:
    """A socket that limits the time of a whole exchange. Belongs to one thread at a time.

    The timeout of a plain socket is for each read, so a server that sends one byte a second would
    never exceed it. This class has the methods that `http.client` uses.
    """

    def __init__(self, sock: socket.socket, *, elapsed_s: Callable[[], float]) -> None:
        self._socket = sock
        self._elapsed_s = elapsed_s
        self._deadline_s = 0.0
        self._stop: Stop | None = None

    def begin(self, seconds: float, *, stop: Stop | None) -> None:
        """Give the next exchange so many seconds in all.

        After that every call raises TimeoutError, and once `stop` is set StoppedError.
        """
        self._deadline_s = self._elapsed_s() + seconds
        self._stop = stop

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._socket.settimeout(self._left_s())
            view = view[self._socket.send(view) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb", "a response is read as bytes"
        raw = self._socket.makefile("rb", buffering=0)
        return io.BufferedReader(_ResponseReader(raw, self._before_reading))

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unbounded(self) -> socket.socket:
        """The socket itself."""
        return self._socket

    def close(self) -> None:
        self._socket.close()

    def _before_reading(self) -> None:
        if self._stop is not None and not self._holds_bytes():
            wait_for(self.fileno(), self._stop, self._left_s())
        self._socket.settimeout(self._left_s())

    def _holds_bytes(self) -> bool:
        # Bytes that TLS has decrypted already don't make the descriptor readable.
        return isinstance(self._socket, SSLSocket) and self._socket.pending() > 0

    def _left_s(self) -> float:
        left_s = self._deadline_s - self._elapsed_s()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


class _ResponseReader(io.RawIOBase):
    """The reading side: before each read it sets the time that is left."""

    def __init__(self, raw: socket.SocketIO, before_reading: Callable[[], None]) -> None:
        super().__init__()
        self._raw = raw
        self._before_reading = before_reading

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray") -> int | None:  # type: ignore[override]  # of all buffers, those it is given
        self._before_reading()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def bounded(connection: HTTPConnection) -> BoundedSocket:
    """The socket of a connection that was made with one."""
    assert isinstance(connection.sock, BoundedSocket), "it was connected with one"
    return connection.sock
