"""Which route serves a request line.

The target of a line is read once, and paths and queries are cached: a client sends few. A path in
the cache has no escapes. In the calls of a transaction the path is new each time, so it is also
looked up without its number (decision 0030).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl

from kernel.requests_and_replies import Reply, problem_reply
from process.admission_and_dispatch import Callee, unmatched
from process.request_parser import read_target
from tuff.protocol.errors import MethodNotAllowedError, NotFoundError, TuffError

CACHED_COUNT_MAX = 4_096  # paths, and queries; as many topics are busy at a time
CACHED_BYTES_MAX = 256  # bytes of one; with the count it bounds the memory to 4 MiB

_CALLS = "/v1/"
_PATH = re.compile(rb"/[A-Za-z0-9._~/:-]*")
_NUMBER = re.compile(rb"/([0-9]{16,19})(?=/|\Z)")  # a pointer, as a whole segment
_NO_NUMBER = b"0"  # replaces it in the key of the cache
# The id of a publish, which differs for each request, as the last parameter.
_REQUEST_ID = re.compile(rb"(?:\A|&)requestId=([0-9a-f.]{1,64})\Z")

Query = tuple[tuple[str, str], ...]
Key = TypeVar("Key", bound=bytes)
Value = TypeVar("Value")


class BoundedCache(dict[bytes, Value]):
    """A cache: a hit costs one dict lookup. A miss calls `compute` and keeps the value, unless it
    is None or the key is longer than `bytes_max`; when `count_max` values are kept, all are
    dropped."""

    def __init__(
        self, compute: Callable[[bytes], Value], *, bytes_max: int, count_max: int
    ) -> None:
        super().__init__()
        self._compute = compute
        self._bytes_max = bytes_max
        self._count_max = count_max

    def __missing__(self, key: bytes) -> Value:
        value = self._compute(key)
        if value is not None and len(key) <= self._bytes_max:
            if len(self) >= self._count_max:
                self.clear()
            self[key] = value
        return value


class RoutedLine(NamedTuple):
    """The route of a request line, its parameters and query without escapes. `refusal`: what the
    client gets where no route serves the line. `authority` is that of an absolute request target
    (RFC 9112 §3.2.2)."""

    callee: Callee
    parameters: Mapping[str, str]
    query: Query
    refusal: Reply | TuffError | None = None
    authority: str | None = None


class _Node:
    __slots__ = ("callees", "fixed", "names", "parameter", "path")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.callees: dict[str, Callee] = {}  # by the method
        self.names: tuple[str, ...] = ()
        self.path = ""

    def methods(self) -> list[str]:
        """The methods that are answered, sorted: those of the routes, and HEAD."""
        methods = list(self.callees)
        # Probes ask with HEAD. As a call of the protocol it would do a read's work for nothing.
        if "GET" in methods and not self.path.startswith(_CALLS):
            methods.append("HEAD")
        return sorted(methods)


class RouteTree:
    """Every route, by the segments of its path. A fixed segment wins over a parameter: `/run` is
    never a transaction of that name."""

    def __init__(self, callees: Iterable[Callee]) -> None:
        self._root = _Node()
        for callee in callees:
            self._add(callee)
        bounds = {"bytes_max": CACHED_BYTES_MAX, "count_max": CACHED_COUNT_MAX}
        self._paths = BoundedCache(self._read_path, **bounds)
        self._numbered = BoundedCache(self._read_numbered, **bounds)
        self._queries = BoundedCache(_read_query, **bounds)

    def _add(self, callee: Callee) -> None:
        node, names = self._root, []
        method, _, path = callee.operation.partition(" ")
        for segment in path.split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                assert not segment.isdigit(), f"{path} has a number that it does not name"
                node = node.fixed.setdefault(segment, _Node())
        assert node.names in ((), tuple(names)), f"{path} names a segment in two ways"
        node.names, node.path = tuple(names), path
        node.callees[method] = callee

    def find(self, method: bytes, target: bytes) -> RoutedLine:
        """The route of a request line. Raises: BadRequestError: the target can't be read."""
        path, mark, query = target.partition(b"?")
        line = method + b" " + path
        found = self._paths.get(line) or self._find_numbered(line) or self._paths[line]
        if found is None or b"#" in query:
            return self._read(method.decode("ascii"), target)
        if not mark:
            return found
        return RoutedLine(found.callee, found.parameters, self._find_query(query))

    def _find_numbered(self, line: bytes) -> RoutedLine | None:
        number = _NUMBER.search(line)
        if number is None:
            return None
        start, stop = number.span(1)
        found = self._numbered[line[:start] + _NO_NUMBER + line[stop:]]
        if found is None:
            return None
        callee, name = found
        return RoutedLine(callee, {name: number[1].decode()}, ())

    def _read_path(self, line: bytes) -> RoutedLine | None:
        """None: it does not belong in the cache."""
        method, _, path = line.partition(b" ")
        if _PATH.fullmatch(path) is None:
            return None
        found = self._descend(path.decode().split("/")[1:])
        callee = None if found is None else found[0].callees.get(method.decode("ascii"))
        return None if found is None or callee is None else RoutedLine(callee, found[1], ())

    def _read_numbered(self, line: bytes) -> tuple[Callee, str] | None:
        """None, unless the number is the only parameter of the route."""
        found = self._read_path(line)
        if found is None or list(found.parameters.values()) != [_NO_NUMBER.decode()]:
            return None
        (name,) = found.parameters
        return found.callee, name

    def _find_query(self, query: bytes) -> Query:
        request_id = _REQUEST_ID.search(query)
        if request_id is None:
            return self._queries[query]
        before = query[: request_id.start()]
        own = (("requestId", request_id[1].decode()),)
        return (*self._queries[before], *own) if before else own

    def _read(self, method: str, text: bytes) -> RoutedLine:
        """Raises: BadRequestError: the target can't be read."""
        target = read_target(text)
        found = self._descend(target.segments)
        if found is None:
            refusal: Reply | TuffError = NotFoundError(
                f"there is nothing at {target.path}; /openapi.json says what there is"
            )
            return RoutedLine(unmatched(method), {}, target.query, refusal, target.authority)
        node, parameters = found
        if method not in node.methods():
            allowed = ", ".join(node.methods())
            error = MethodNotAllowedError(f"{target.path} answers {allowed}, not {method}")
            refusal = problem_reply(error)._replace(headers=(("Allow", allowed),))
            return RoutedLine(unmatched(method), {}, target.query, refusal, target.authority)
        callee = node.callees["GET" if method == "HEAD" else method]
        return RoutedLine(callee, parameters, target.query, None, target.authority)

    def _descend(self, segments: Sequence[str]) -> tuple[_Node, Mapping[str, str]] | None:
        """The routes of a path and its parameters, by its segments without escapes."""
        values: list[str] = []
        node = _descend(self._root, segments, values)
        return None if node is None else (node, dict(zip(node.names, values, strict=True)))


def _descend(node: _Node, segments: Sequence[str], values: list[str]) -> _Node | None:
    if not segments:
        return node if node.callees else None
    segment, rest = segments[0], segments[1:]
    below = node.fixed.get(segment)
    if below is not None and (found := _descend(below, rest, values)) is not None:
        return found
    if node.parameter is None or not segment:
        return None
    values.append(segment)
    found = _descend(node.parameter, rest, values)
    if found is None:
        values.pop()
    return found


def _read_query(query: bytes) -> Query:
    return tuple(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
