"""A minimal client of the session protocol, written from docs/session.md."""

import socket
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import msgpack

GREETING, CALL, REPLY, CANCEL, PING, PONG, END = range(7)
PUBLISH, STORE, ROLLBACK, POLL = range(1, 5)
START, CAN_COMMIT, COMMIT, RUN, ABORT, INVALIDATE, CHECKPOINT, RENEW, OUTCOME = range(16, 25)
POLLS_MAX = 64  # that a session takes at a time
REPLY_S_MAX = 90.0  # longer than any wait that a test asks for


class ClosedError(Exception):
    """The server has closed the connection."""


class SessionClient:
    """One session; for one thread."""

    def __init__(
        self,
        port: int,
        *,
        headers: Mapping[str, str] | None = None,
        path: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        if path is None:
            self.socket = socket.create_connection(("127.0.0.1", port), REPLY_S_MAX)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(REPLY_S_MAX)
            self.socket.connect(path)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        fields = {
            "Host": "localhost",
            "Connection": "Upgrade",
            "Upgrade": "tuff-session/1",
            **(headers or {}),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.socket.sendall(f"GET /v1/session HTTP/1.1\r\n{lines}\r\n".encode())
        self._in = self.socket.makefile("rb")
        self.head = b"".join(iter(self._in.readline, b"\r\n"))
        assert self.head.startswith(b"HTTP/1.1 101 "), self.head
        self.greeting = self.read()
        self._next_id = 1
        self._replies: dict[int, list[Any]] = {}

    def __enter__(self) -> "SessionClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._in.close()
        self.socket.close()

    def write(self, *frames: list[Any]) -> None:
        """Send frames, as one write."""
        self.socket.sendall(b"".join(map(packed, frames)))

    def read(self) -> list[Any]:
        """The next frame. Raises: ClosedError."""
        length = self._in.read(4)
        if len(length) < 4:
            raise ClosedError
        frame: list[Any] = msgpack.unpackb(self._in.read(int.from_bytes(length, "big")))
        return frame

    def frame(self, operation: int, *parameters: object, **rest: object) -> list[Any]:
        """The frame of a call with the next id; `rest` has query, body, content_type, accept."""
        call_id, self._next_id = self._next_id, self._next_id + 1
        names = ("query", "body", "content_type", "accept")
        return [CALL, call_id, operation, list(parameters), *(rest.get(name) for name in names)]

    def reply_to(self, call_id: int) -> list[Any]:
        """The status, the fields and the body of the reply to a call."""
        while call_id not in self._replies:
            frame = self.read()
            assert frame[0] == REPLY, frame
            self._replies[frame[1]] = frame[2:]
        return self._replies.pop(call_id)

    def call(self, operation: int, *parameters: object, **rest: object) -> list[Any]:
        """Make a call, and wait for its reply."""
        frame = self.frame(operation, *parameters, **rest)
        self.write(frame)
        return self.reply_to(frame[1])


def packed(frame: list[Any]) -> bytes:
    """The bytes of a frame."""
    data: bytes = msgpack.packb(frame)
    return len(data).to_bytes(4, "big") + data
