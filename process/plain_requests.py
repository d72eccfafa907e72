"""Plain requests, read out of the bytes without a parser.

    request := line CRLF fields CRLF [body]
    line    := (GET | POST | PUT | DELETE) SP path [? query] SP HTTP/1.1
    path    := / with letters, digits, - . _ ~ /      query := the same, less /, with = and &

A plain request costs a fraction of what the parser takes for it (decision 0013). A request line
with an escape, an absolute address or another version is not plain.

A client repeats its header fields byte for byte. So the parser reads each block of fields once, and
the result is cached. Fields that change where a request
ends (two lengths, a transfer coding, a folded field) are not plain. So both ways of reading agree
about the end of a request. A request that is refused for its host or its origin
(process/allowed_hosts.py) is not plain either.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl

from process.allowed_hosts import AllowedHosts
from process.dispatch import RouteTree
from process.request_parser import (
    LINE_BYTES_MAX,
    RequestParser,
    accept_of,
    authorization_of,
    is_forwarded,
    refusal_of_fields,
    wants_redirect,
)
from tuff.protocol.exchange import Handler

LINES_COUNT_MAX = 4_096  # request lines in the cache; as many topics are busy at a time
LINE_BYTES_KEPT_MAX = 256  # bytes of such a line; with the count it bounds the memory to 4 MiB
BLOCKS_COUNT_MAX = 1_024  # blocks of fields in the cache; a client has one or two
BLOCK_BYTES_MAX = 2_048  # bytes of a block; with the count it bounds the memory to 2 MiB

_LINE = re.compile(
    rb"(GET|POST|PUT|DELETE) (/[A-Za-z0-9._~/:-]*)(?:\?([A-Za-z0-9._~=&-]*))? HTTP/1\.1"
)
_NUMBER = re.compile(rb"/([0-9]{16,19})(?=[/ ])")  # a pointer, as a whole segment
_NO_NUMBER = b"0"  # replaces it in the key of the cache
_LINE_END = b"\r\n"
_END = b"\r\n\r\n"
# Fields that change how a request is read or answered.
# A block with the trace context differs for each request, so that the cache would not find it.
_NOT_PLAIN = frozenset(
    {"transfer-encoding", "expect", "upgrade", "content-encoding", "trailer", "traceparent"}
)

Query = tuple[tuple[str, str], ...]

Value = TypeVar("Value")


class BoundedCache(dict[bytes, Value]):
    """A cache: a hit costs one dict lookup. A miss calls `compute` and keeps the value, unless the
    key is longer than `bytes_max`; when `count_max` values are kept, all are dropped."""

    def __init__(
        self, compute: Callable[[bytes], Value], *, bytes_max: int, count_max: int
    ) -> None:
        super().__init__()
        self._compute = compute
        self._bytes_max = bytes_max
        self._count_max = count_max

    def __missing__(self, key: bytes) -> Value:
        value = self._compute(key)
        if len(key) <= self._bytes_max:
            if len(self) >= self._count_max:
                self.clear()
            self[key] = value
        return value


class RoutedLine(NamedTuple):
    """The route of a request line, its parameters and query. Metrics name the route by `operation`:
    with the path instead, each topic would have a series of its own."""

    operation: str
    handler: Handler
    parameters: Mapping[str, str]
    query: Query


class _NumberedLine(NamedTuple):
    """A `RoutedLine` without the number that is its only parameter."""

    operation: str
    handler: Handler
    parameter: str
    query: Query


class RequestLines:
    """Finds the route of a request line, and caches it."""

    def __init__(self, tree: RouteTree) -> None:
        self._tree = tree
        bounds = {"bytes_max": LINE_BYTES_KEPT_MAX, "count_max": LINES_COUNT_MAX}
        self._whole = BoundedCache(self._read, **bounds)
        self._numbered = BoundedCache(self._read_numbered, **bounds)

    def find(self, line: bytes) -> RoutedLine | None:
        """None when the line is not plain, or has no route."""
        known = self._whole.get(line)
        if known is not None:
            return known
        number = _NUMBER.search(line)
        if number is not None:
            start, stop = number.span(1)
            numbered = self._numbered[line[:start] + _NO_NUMBER + line[stop:]]
            if numbered is not None:
                operation, handler, parameter, query = numbered
                return RoutedLine(operation, handler, {parameter: number[1].decode()}, query)
        return self._whole[line]

    def _read(self, line: bytes) -> RoutedLine | None:
        plain = _LINE.fullmatch(line)
        if plain is None:
            return None
        method, path, query = plain[1].decode(), plain[2].decode(), plain[3]
        resource = self._tree.find(path.split("/")[1:])
        if resource is None or (handler := resource.handlers.get(method)) is None:
            return None
        pairs = tuple(parse_qsl(query.decode(), keep_blank_values=True)) if query else ()
        return RoutedLine(f"{method} {resource.path}", handler, resource.parameters, pairs)

    def _read_numbered(self, line: bytes) -> _NumberedLine | None:
        """None, unless the number is the only parameter of the route."""
        routed = self._read(line)
        if routed is None or list(routed.parameters.values()) != [_NO_NUMBER.decode()]:
            return None
        (parameter,) = routed.parameters
        return _NumberedLine(routed.operation, routed.handler, parameter, routed.query)


class Fields(NamedTuple):
    """The fields of a block that matter."""

    content_length: int
    content_type: str | None
    accept: str | None
    is_forwarded: bool
    wants_redirect: bool
    authorization: str | None


class Head(NamedTuple):
    """The head of a plain request that has a route; `size` is in bytes."""

    line: RoutedLine
    fields: Fields
    size: int


class PlainHeads:
    """Reads the heads of plain requests, and caches blocks of fields."""

    def __init__(self, lines: RequestLines, hosts: AllowedHosts) -> None:
        self._lines = lines
        self._blocks = BoundedCache(
            partial(_plain_fields, hosts=hosts),
            bytes_max=BLOCK_BYTES_MAX,
            count_max=BLOCKS_COUNT_MAX,
        )

    def read(self, data: bytes) -> Head | None:
        """The head that the bytes begin with; None when it is not whole, not plain, or has no
        route."""
        line_end = data.find(_LINE_END, 0, LINE_BYTES_MAX)
        if line_end < 0:
            return None
        # The blank line may come at once, where there are no fields.
        end = data.find(_END, line_end)
        if end < 0:
            return None
        line = self._lines.find(data[:line_end])
        if line is None:
            return None
        fields = self._blocks[data[line_end + 2 : end + 2]]
        if fields is None:
            return None
        return Head(line, fields, end + len(_END))


def _plain_fields(block: bytes, *, hosts: AllowedHosts) -> Fields | None:
    # No body fits: there is one only if the fields end before the last line of the block.
    parser = RequestParser(max_request_bytes=0, now_s=lambda: 0.0)
    parser.feed(b"POST / HTTP/1.1\r\n" + block + b"\r\n")
    parser.stop()
    if len(parser.queue) != 1 or parser.refusal is not None:
        return None
    (request,) = parser.queue
    fields = request.fields
    if (
        request.error is not None
        or not request.is_kept_alive
        or "host" not in fields
        or not _NOT_PLAIN.isdisjoint(fields)
        or refusal_of_fields(fields) is not None
        or hosts.refusal(fields) is not None
    ):
        return None
    return Fields(
        int(fields.get("content-length", ["0"])[0]),
        fields.get("content-type", [None])[0],
        accept_of(fields),
        is_forwarded(fields),
        wants_redirect(fields),
        authorization_of(fields),
    )
