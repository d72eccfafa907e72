"""Flush and compact tables, region by region: `tuff hbase flush|compact`.

No Thrift gateway offers these calls, so they go to the region servers in HBase's own protocol:

    connection := "HBas" 0(1) 0x50(1) size(4) ConnectionHeader      0x50: no authentication
    call       := size(4) (varint size, RequestHeader) (varint size, parameters)
    answer     := size(4) (varint size, ResponseHeader) (varint size, result)

Messages are Protocol Buffers; only varints and bytes are used here. A cluster that requires
Kerberos closes the connection.
"""

import socket
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from messaging.engines.engine_interface import StoreError
from messaging.engines.hbase.connections_and_writes import regions_of
from messaging.engines.hbase.layout import FAMILY, encoded_name
from tuff_storage.hbase_gateway import Gateways, error_text

POLL_S = 0.5  # seconds between two polls of the regions that still compact
IDLE_POLLS = 3  # a compaction that waited for another one begins some time after its end
MOVED = "NotServingRegionException"
ANSWER_BYTES_MAX = 1 << 20  # bytes; answers to these calls have some hundred bytes

_PREAMBLE = b"HBas\x00\x50"
_SIZE = struct.Struct(">I")
_VARINT, _BYTES = 0, 2  # kinds of fields
_REGION_NAME = 1  # a kind of region specifier: table, start and time, not their hash

RegionFields = dict[int, int | bytes]


class RegionServerError(Exception):
    """A region server answered with a Java exception; the text is its stack trace."""


class RegionServer:
    """A connection to one region server; for one thread."""

    def __init__(self, host: str, port: int, *, user: str, timeout_s: float) -> None:
        """`timeout_s`: of one call; a flush writes up to a region's memory, 128 MB, to files.

        Raises: StoreError: no server answers there.
        """
        self._name = f"{host}:{port}"
        self._calls = 0
        with self._as_store_errors():
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
        """Request a major compaction of the region. It runs when this returns, or waits for the end
        of another one. Raises: StoreError."""
        self._call(b"CompactRegion", _field(1, _region(region)) + _field(2, 1))

    def is_compacting(self, region: bytes) -> bool:
        """Raises: StoreError."""
        answer = self._call(b"GetRegionInfo", _field(1, _region(region)) + _field(2, 1))
        return answer.get(2, 0) != 0

    def has_files(self, region: bytes) -> bool:
        """Whether the region has anything to compact. Raises: StoreError."""
        answer = self._call(b"GetStoreFile", _field(1, _region(region)) + _field(2, FAMILY))
        return 1 in answer

    def _call(self, method: bytes, parameters: bytes) -> RegionFields:
        self._calls += 1
        header = _field(1, self._calls) + _field(3, method) + _field(4, 1)
        with self._as_store_errors():
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
                raise RegionServerError(trace.decode("utf-8", "replace"))
        return results[0] if results else {}

    @contextmanager
    def _as_store_errors(self) -> Iterator[None]:
        try:
            yield
        except RegionServerError as error:
            raise StoreError(error_text(error)) from error
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
                raise EOFError("it closed the connection, as a server that requires Kerberos does")
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


def _messages(answer: bytes) -> Iterator[RegionFields]:
    """The messages of an answer, each of which follows its size."""
    at = 0
    while at < len(answer):
        size, at = _number(answer, at)
        yield _fields(answer[at : at + size])
        at += size


def _fields(message: bytes) -> RegionFields:
    """The fields of a message by number; of several with one number the last counts."""
    found: RegionFields = {}
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
    """The varint at this position, and where it ends."""
    number = shift = 0
    while at < len(message):
        number |= (message[at] & 0x7F) << shift
        shift += 7
        at += 1
        if message[at - 1] < 0x80:
            return number, at
    raise EOFError("its answer ends in the middle of a number")


class Region(NamedTuple):
    """A region, and its current server."""

    table: str
    name: bytes
    host: str
    port: int

    @property
    def encoded_name(self) -> str:
        """The hash by which region observers name it."""
        return encoded_name(self.name)


class Regions:
    """The regions of some tables; for one thread."""

    def __init__(
        self, gateways: Gateways, tables: Collection[str], *, user: str, timeout_s: float
    ) -> None:
        self._gateways = gateways
        self._tables = tables
        self._user = user
        self._timeout_s = timeout_s
        self._servers: dict[tuple[str, int], RegionServer] = {}

    def close(self) -> None:
        for server in self._servers.values():
            server.close()

    def flush(self) -> Iterator[Region]:
        """Flush the memory of each region to files; yields each flushed region. Raises:
        StoreError."""
        for region in self._find():
            self._ask(region, RegionServer.flush)
            yield region

    def with_files(self) -> list[Region]:
        """The regions that have anything to compact. Raises: StoreError."""
        return [region for region in self._find() if self._ask(region, RegionServer.has_files)]

    def compact(
        self, sleep: Callable[[float], None], only: Collection[Region] | None = None
    ) -> Iterator[Collection[Region]]:
        """Rewrite all files of each region, or of `only` these, as one file; yields, until all are
        done, the regions that are not. Raises: StoreError."""
        regions = self._find() if only is None else list(only)
        for region in regions:
            self._ask(region, RegionServer.compact)
        idle_polls = dict.fromkeys(regions, 0)
        while waiting := [region for region in regions if idle_polls[region] < IDLE_POLLS]:
            yield waiting
            sleep(POLL_S)
            for region in waiting:
                is_busy = self._ask(region, RegionServer.is_compacting)
                idle_polls[region] = 0 if is_busy else idle_polls[region] + 1

    def _find(self) -> list[Region]:
        return [
            Region(table, info.name, info.serverName.decode(), info.port)
            for table in self._tables
            for info in regions_of(self._gateways, table.encode())
        ]

    def _ask(self, region: Region, what: Callable[[RegionServer, bytes], object]) -> object:
        """Ask the region's server; if the region has moved since, ask its new server."""
        try:
            return what(self._server(region), region.name)
        except StoreError as error:
            if MOVED not in str(error):
                raise
        now = {each.name: each for each in self._find()}
        if region.name not in now:
            return None  # it was split, and HBase rewrites both halves
        return what(self._server(now[region.name]), region.name)

    def _server(self, region: Region) -> RegionServer:
        address = region.host, region.port
        if address not in self._servers:
            self._servers[address] = RegionServer(
                *address, user=self._user, timeout_s=self._timeout_s
            )
        return self._servers[address]
