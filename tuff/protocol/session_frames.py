"""The frames of a session: many calls over one connection (docs/session.md has the grammar).

A frame is its length in four bytes, big-endian, and an array in MessagePack. The first element is
its kind. Server and client use the same code for both directions.
"""

import threading
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import msgpack

from tuff.protocol.errors import BadRequestError, RequestTooLargeError, TuffError
from tuff.protocol.json_bodies import shown
from tuff.protocol.operations import OPERATIONS

PROTOCOL = "tuff-session/1"  # the value of the field Upgrade
PATH = "/v1/session"
LENGTH_BYTES = 4
# The numbers of the reads that may wait, whose calls can be cancelled.
POLLS = frozenset(each.number for each in OPERATIONS if each.waits and not each.leaves_doubt)


class Kind(IntEnum):
    """The kinds of frames."""

    GREETING = 0
    CALL = 1
    REPLY = 2
    CANCEL = 3
    PING = 4
    PONG = 5
    END = 6


class Greeting(NamedTuple):
    """The first frame of the server: its version, and the limits of the session."""

    version: str
    calls_max: int
    polls_max: int
    frame_bytes_max: int
    idle_s: float


_CALL, _REPLY = int(Kind.CALL), int(Kind.REPLY)  # faster than the members of an enumeration
_NO_BYTES, _BYTES_32 = b"\xc4\x00", b"\xc6"  # no bytes; bytes whose length has four bytes
_unpack = partial(msgpack.unpackb, raw=False, strict_map_key=True)


class _Packer(threading.local):
    """The packer of a thread. To make one takes as long as to pack a reply."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer().pack


_PACKER = _Packer()


def frame(*elements: object) -> bytes:
    """A frame with these elements.

    Raises: UnicodeEncodeError, OverflowError, TypeError: MessagePack can't carry one of them.
    """
    packed: bytes = _PACKER.pack(elements)
    return len(packed).to_bytes(LENGTH_BYTES, "big") + packed


def frame_before(body: bytes, *elements: object) -> bytes:
    """The part before `body` of the frame with these elements and, as the last one, `body`, of
    64 KiB or more. So the body can be written without being copied."""
    packed: bytes = _PACKER.pack((*elements, b""))
    before = packed[: -len(_NO_BYTES)] + _BYTES_32 + len(body).to_bytes(4, "big")
    return (len(before) + len(body)).to_bytes(LENGTH_BYTES, "big") + before


def call_frame(
    call_id: int,
    operation: int,
    parameters: Sequence[str],
    query: Mapping[str, str | float | None],
    body: object,
    content_type: str | None,
    accept: str | None,
) -> bytes | None:
    """The frame of a call; None if it has a value that MessagePack can't carry: half a surrogate
    pair, or a number of more than 64 bits. Over HTTP the server refuses it. What is None of the
    query is not sent."""
    pairs = {name: value for name, value in query.items() if value is not None} or None
    try:
        return frame(_CALL, call_id, operation, parameters, pairs, body, content_type, accept)
    except (UnicodeEncodeError, OverflowError):
        return None


class FrameReader:
    """Splits a stream of bytes into frames, each a list whose first element is its kind."""

    def __init__(self, *, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._held = bytearray()  # the beginning of a frame that is not whole
        self._needed = LENGTH_BYTES  # bytes that must be held before there is anything to read

    @property
    def is_within_frame(self) -> bool:
        """Whether a part of a frame was received, and its end was not."""
        return bool(self._held)

    def feed(self, data: bytes) -> tuple[list[tuple[int, list[object]]], TuffError | None]:
        """The frames that these bytes complete, each with its size in bytes, and why the rest can't
        be read, if so.

        After an error nothing more can be read: where the next frame begins is unknown.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return [], None
            data = bytes(self._held)
            self._held.clear()
        frames: list[tuple[int, list[object]]] = []
        start, end = 0, len(data)
        while end - start >= LENGTH_BYTES:
            first = start + LENGTH_BYTES
            size = int.from_bytes(data[start:first], "big")
            if size > self._frame_bytes_max:
                most = self._frame_bytes_max
                return frames, RequestTooLargeError(
                    f"a frame has {size} bytes; a session takes at most {most}"
                )
            if first + size > end:
                self._needed = LENGTH_BYTES + size
                break
            try:
                elements = _unpack(data[first : first + size])
            # The library raises ValueError, and for a byte that no value begins with, its own.
            except (ValueError, msgpack.UnpackException, RecursionError) as error:
                # Two errors of it have no text: a byte that begins no value, and deep nesting.
                reason = str(error) or type(error).__name__
                return frames, BadRequestError(f"a frame is not MessagePack: {reason}")
            if not isinstance(elements, list) or not elements or type(elements[0]) is not int:
                return frames, BadRequestError(
                    f"a frame is an array that begins with its kind, not {shown(elements)}"
                )
            frames.append((size, elements))
            start = first + size
        else:
            self._needed = LENGTH_BYTES
        self._held += data[start:]
        return frames, None


def reply_of(elements: list[object]) -> tuple[int, int, dict[str, str], bytes, object]:
    """The id of the call, the status, the fields with names in lower case, and the body as bytes or
    as a value, of the frame of a reply. Raises: BadRequestError."""
    match elements:
        case [_, int(call_id), int(status), dict(fields), body] if elements[0] == _REPLY:
            headers = {str(name).lower(): str(value) for name, value in fields.items()}
            if body is None or isinstance(body, bytes):
                return call_id, status, headers, body or b"", None
            return call_id, status, headers, b"", body
        case _:
            pass
    raise BadRequestError(f"this is no reply of a session: {shown(elements)}")


def greeting_of(elements: list[object]) -> Greeting:
    """The greeting of a frame. Raises: BadRequestError: it is none."""
    match elements:
        case [
            Kind.GREETING,
            {
                "version": str(version),
                "calls": int(calls),
                "polls": int(polls),
                "frameBytes": int(size),
                "idle": int() | float() as idle,
            },
        ]:
            return Greeting(version, calls, polls, size, idle)
        case _:
            pass
    raise BadRequestError(f"the server's first frame is no greeting: {shown(elements)}")
