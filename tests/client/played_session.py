"""A server that plays one side of a session as a test says: it answers late, in any order, or not
at all. A real server does none of that at will."""

import fcntl
import socket
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from tests.http.client import until
from tuff.protocol.session_frames import FrameReader, Kind, frame

UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n"
LIMITS = {"version": "0", "calls": 1024, "polls": 64, "frameBytes": 1 << 24, "idle": 75.0}
ID = "0" * 40
PUBLISHED = {"Tuff-First-Id": ID, "Tuff-Last-Id": ID}


class PlayedSession:
    """One connection after the upgrade; for one thread."""

    def __init__(self, caller: socket.socket) -> None:
        self.caller = caller
        self._reader = FrameReader(frame_bytes_max=1 << 30)
        self._calls: list[list[object]] = []

    def next_call(self) -> object:
        """The id of the next call. Raises: EOFError: the client has hung up."""
        while not self._calls:
            data = self.caller.recv(1 << 16)
            if not data:
                raise EOFError
            self._calls += [
                elements for _, elements in self._reader.feed(data)[0] if elements[0] == Kind.CALL
            ]
        return self._calls.pop(0)[1]

    def reply(self, call_id: object) -> None:
        """Answer a publish."""
        self.caller.sendall(frame(int(Kind.REPLY), call_id, 200, PUBLISHED, None))

    def end(self) -> None:
        """Say that the session ends; returns when the client's side has the words."""
        self.caller.sendall(frame(int(Kind.END), None))
        until(self._has_arrived)

    def _has_arrived(self) -> bool:
        """Whether the other end has all that was sent; a busy machine delivers it later."""
        (unacknowledged,) = struct.unpack("i", fcntl.ioctl(self.caller, termios.TIOCOUTQ, bytes(4)))
        return bool(unacknowledged == 0)

    def answer_all(self) -> None:
        """Answer each call, until the client hangs up."""
        while True:
            self.reply(self.next_call())


@contextmanager
def playing(
    *plays: Callable[[PlayedSession], None], greeting: bytes | None = None
) -> Iterator[str]:
    """The address of a server whose sessions do this, one function for each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for play in plays:
                caller, _ = listener.accept()
                with caller, suppress(OSError, EOFError):
                    caller.recv(1 << 16)
                    caller.sendall(UPGRADED + (greeting or frame(int(Kind.GREETING), LIMITS)))
                    play(PlayedSession(caller))

        thread = Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()
