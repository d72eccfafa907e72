"""Which route answers a path: one step down a tree for each segment."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tuff.protocol.exchange import Handler, Route


class Found(NamedTuple):
    """A route that matched. `operation` is what figures call it: names in a path would make a
    series each."""

    operation: str
    handler: Handler
    parameters: Mapping[str, str]


class _Node:
    __slots__ = ("handlers", "named", "names", "other")

    def __init__(self) -> None:
        self.named: dict[str, _Node] = {}
        self.other: _Node | None = None
        self.handlers: dict[str, tuple[str, Handler]] = {}
        self.names: tuple[str, ...] = ()


class RouteTree:
    """Every route, by its segments. A segment that a route names goes before one that any value
    matches, and there is no way back from it: what only the other could serve is not found."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node, names = self._root, []
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.other = node.other or _Node()
                node = node.other
            else:
                # A line is looked up without its number (process/lines.py).
                assert not segment.isdigit(), f"{route.path} has a number that it does not name"
                node = node.named.setdefault(segment, _Node())
        assert node.names in ((), tuple(names)), f"{route.path} names a segment in two ways"
        node.names = tuple(names)
        node.handlers[route.method] = (f"{route.method} {route.path}", route.handler)

    def find(self, method: str, path: str) -> Found | None:
        """The route of a method and an unescaped path, which begins with `/`; None without one."""
        node, values = self._root, []
        for segment in path.split("/")[1:]:
            below = node.named.get(segment)
            if below is None:
                below = node.other
                if below is None or not segment:
                    return None
                values.append(segment)
            node = below
        found = node.handlers.get(method)
        if found is None:
            return None
        return Found(*found, dict(zip(node.names, values, strict=True)))
