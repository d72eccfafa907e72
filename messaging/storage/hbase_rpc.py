"""What no gateway can do, asked of region servers in HBase's own protocol: flush and compact.

    connection := "HBas" 0(1) 0x50(1) size(4) ConnectionHeader      0x50: nobody proves anything
    call       := size(4) (varint size, RequestHeader) (varint size, parameters)
    answer     := size(4) (varint size, ResponseHeader) (varint size, result)

Messages are Protocol Buffers, of which only numbers and bytes are used here. A cluster that wants
Kerberos ends the connection.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from messaging.storage.hbase_layout import FAMILY
from messaging.storage.seam import StoreError
from tuff.hbase_gateway import sentence

ANSWER_BYTES_MAX = 1 << 20  # bytes; those that are asked for here have some hundred

_PREAMBLE = b"HBas\x00\x50"
_SIZE = struct.Struct(">I")
_VARINT, _BYTES = 0, 2  # kinds of fields
_REGION_NAME = 1  # a region is named by table, start and time, not by their hash

Fields = dict[int, int | bytes]


class RefusedError(Exception):
    """A region server answered with an exception of Java's; the text is its stack trace."""


class RegionServer:
    """A connection to one region server; for one thread."""

    def __init__(self, host: str, port: int, *, user: str, timeout_s: float) -> None:
        """`timeout_s`: of one call; a flush writes up to a region's memory, 128 MB, to files.

        Raises: StoreError: nobody answers there.
        """
        self._name = f"{host}:{port}"
        self._calls = 0
        with self._errors():
            self._socket = socket.create_connection((host, port), timeout_s)
        header = _field(1, _field(1, user.encode())) + _field(2, b"AdminService")
        self._send(_PREAMBLE, header)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def flush(self, region: bytes) -> None:
        """Write what the region has in memory to files. Raises: StoreError."""
        self._call(b"FlushRegion", _field(1, _region(region)))

    def compact(self, region: bytes) -> None:
        """Ask for a major compaction of the region; it has begun when this returns, or waits for
        another one to end. Raises: StoreError."""
        self._call(b"CompactRegion", _field(1, _region(region)) + _field(2, 1))

    def is_compacting(self, region: bytes) -> bool:
        """Raises: StoreError."""
        answer = self._call(b"GetRegionInfo", _field(1, _region(region)) + _field(2, 1))
        return answer.get(2, 0) != 0

    def has_files(self, region: bytes) -> bool:
        """Whether the region has anything to compact. Raises: StoreError."""
        answer = self._call(b"GetStoreFile", _field(1, _region(region)) + _field(2, FAMILY))
        return 1 in answer

    def _call(self, method: bytes, parameters: bytes) -> Fields:
        self._calls += 1
        header = _field(1, self._calls) + _field(3, method) + _field(4, 1)
        with self._errors():
            self._send(b"", _delimited(header) + _delimited(parameters))
            (size,) = _SIZE.unpack(self._read(_SIZE.size))
            if size > ANSWER_BYTES_MAX:
                raise StoreError(f"the region server at {self._name} answered {size} bytes")
            answer = self._read(size)
            (found, *results) = _messages(answer)
            if (refusal := found.get(2)) is not None:
                assert isinstance(refusal, bytes)
                trace = _fields(refusal).get(2, b"")
                assert isinstance(trace, bytes)
                raise RefusedError(trace.decode("utf-8", "replace"))
        return results[0] if results else {}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            raise StoreError(sentence(error)) from error
        except (OSError, EOFError) as error:
            raise StoreError(
                f"the HBase region server at {self._name} did not answer: {error}"
            ) from error

    def _send(self, prefix: bytes, message: bytes) -> None:
        self._socket.sendall(prefix + _SIZE.pack(len(message)) + message)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            if not piece:
                raise EOFError("it ended the connection, as one does that wants Kerberos")
            found += piece
        return found


def _region(name: bytes) -> bytes:
    return _field(1, _REGION_NAME) + _field(2, name)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    return _varint(number << 3 | _BYTES) + _delimited(value)


def _delimited(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _messages(answer: bytes) -> Iterator[Fields]:
    """The messages of an answer, each behind its size."""
    at = 0
    while at < len(answer):
        size, at = _number(answer, at)
        yield _fields(answer[at : at + size])
        at += size


def _fields(message: bytes) -> Fields:
    """The fields of a message; the last one of a number counts."""
    found: Fields = {}
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        kind = tag & 7
        if kind == _VARINT:
            found[tag >> 3], at = _number(message, at)
        elif kind == _BYTES:
            size, at = _number(message, at)
            found[tag >> 3], at = message[at : at + size], at + size
        else:
            raise EOFError(f"it answered with a field of kind {kind}")
    return found


def _number(message: bytes, at: int) -> tuple[int, int]:
    """The varint at this place, and where it ends."""
    number = shift = 0
    while at < len(message):
        number |= (message[at] & 0x7F) << shift
        shift += 7
        at += 1
        if message[at - 1] < 0x80:
            return number, at
    raise EOFError("its answer ends in the middle of a number")
