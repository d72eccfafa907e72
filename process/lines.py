"""What the first line of a plain request asks for: a route, and what fills in its names.

    line := (GET | POST | PUT | DELETE) SP path [? query] SP HTTP/1.1
    path := / with letters, digits, - . _ ~ /        query := the same, less /, with = and &

Whoever publishes repeats one line, byte for byte, so that lines are looked up. The calls of a
transaction have a number in theirs that never comes again; there the line without its number is
what is looked up.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from process.remembered import Remembered
from process.routing import RouteTree
from tuff.protocol.exchange import Handler

LINES_COUNT_MAX = 4_096  # lines that are remembered; about as many topics are busy at a time
LINE_BYTES_KEPT_MAX = 256  # bytes of such a line; with the count it bounds the memory to 4 MiB

_LINE = re.compile(
    rb"(GET|POST|PUT|DELETE) (/[A-Za-z0-9._~/-]*)(?:\?([A-Za-z0-9._~=&-]*))? HTTP/1\.1"
)
_NUMBER = re.compile(rb"/([0-9]{16,19})(?=[/ ])")  # a pointer, as a whole segment
_NO_NUMBER = b"0"  # what stands in its place where a line is looked up without it

Query = tuple[tuple[str, str], ...]


class Asked(NamedTuple):
    """What a line asks for."""

    operation: str
    handler: Handler
    parameters: Mapping[str, str]
    query: Query


class _Numbered(NamedTuple):
    """The same, for every number that the one parameter may be."""

    operation: str
    handler: Handler
    parameter: str
    query: Query


class Lines:
    """Finds the route of a line; remembers, within bounds, what was found."""

    def __init__(self, tree: RouteTree) -> None:
        self._tree = tree
        self._whole = Remembered(self._read, is_kept=_is_kept, count_max=LINES_COUNT_MAX)
        self._numbered = Remembered(
            self._read_numbered, is_kept=_is_kept, count_max=LINES_COUNT_MAX
        )

    def find(self, line: bytes) -> Asked | None:
        """What the line asks for; None when it is not plain, or no route answers it."""
        known = self._whole.get(line)
        if known is not None:
            return known
        number = _NUMBER.search(line)
        if number is not None:
            start, stop = number.span(1)
            numbered = self._numbered[line[:start] + _NO_NUMBER + line[stop:]]
            if numbered is not None:
                operation, handler, parameter, query = numbered
                return Asked(operation, handler, {parameter: number[1].decode()}, query)
        return self._whole[line]

    def _read(self, line: bytes) -> Asked | None:
        plain = _LINE.fullmatch(line)
        if plain is None:
            return None
        method, path, query = plain.groups()
        found = self._tree.find(method.decode(), path.decode())
        if found is None:
            return None
        pairs = tuple(parse_qsl(query.decode(), keep_blank_values=True)) if query else ()
        return Asked(*found, pairs)

    def _read_numbered(self, line: bytes) -> _Numbered | None:
        """None, unless the number is all that the route leaves open."""
        asked = self._read(line)
        if asked is None or list(asked.parameters.values()) != [_NO_NUMBER.decode()]:
            return None
        (parameter,) = asked.parameters
        return _Numbered(asked.operation, asked.handler, parameter, asked.query)


def _is_kept(line: bytes) -> bool:
    return len(line) <= LINE_BYTES_KEPT_MAX
