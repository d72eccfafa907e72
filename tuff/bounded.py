"""A socket that gives all of an exchange together so many seconds.

A socket's own time-out is for each read: a server that sends a byte a second would be waited for
without end.
"""

import io
import socket
from collections.abc import Callable
from ssl import SSLSocket

from tuff.stopping import Stop, wait_for


class BoundedSocket:
    """What `http.client` needs of a connected socket. Belongs to one thread at a time."""

    def __init__(self, sock: socket.socket, *, elapsed_s: Callable[[], float]) -> None:
        self._socket = sock
        self._elapsed_s = elapsed_s
        self._deadline_s = 0.0
        self._stop: Stop | None = None

    def begin(self, seconds: float, *, stop: Stop | None) -> None:
        """What is sent and received from now on has so many seconds in all.

        Every call after that raises TimeoutError, and StoppedError once `stop` is set.
        """
        self._deadline_s = self._elapsed_s() + seconds
        self._stop = stop

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._socket.settimeout(self._left_s())
            view = view[self._socket.send(view) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb", "an answer is read, and it is bytes"
        raw = self._socket.makefile("rb", buffering=0)
        return io.BufferedReader(_Answer(raw, self._before_reading))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _before_reading(self) -> None:
        if self._stop is not None and not self._holds_bytes():
            wait_for(self.fileno(), self._stop, self._left_s())
        self._socket.settimeout(self._left_s())

    def _holds_bytes(self) -> bool:
        # What TLS has decrypted already is not seen by waiting for the descriptor.
        return isinstance(self._socket, SSLSocket) and self._socket.pending() > 0

    def _left_s(self) -> float:
        left_s = self._deadline_s - self._elapsed_s()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


class _Answer(io.RawIOBase):
    """The reading side, which asks before each read how long it may take."""

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
