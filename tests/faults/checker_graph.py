"""The dependency graph of transactions, and the cycles that snapshot isolation forbids.

Adya's edges: *ww* (wrote the next version), *wr* (read what the other wrote) and *rw* (read a state
that the other's write replaced). An execution is snapshot isolated exactly if every cycle has two
consecutive rw edges. A forbidden cycle is searched in a graph with two nodes for each transaction,
one entered by rw and one by ww or wr, where the first has no outgoing rw edge: every cycle of that
graph is forbidden, and Tarjan's algorithm finds all of them in one pass.
"""

from collections import deque
from collections.abc import Iterator, Sequence

Adjacency = Sequence[Sequence[int]]


class Dependencies:
    """Edges between transactions 0 … count-1.

    A *tail* stands for all transactions that published after one place of a topic, so that a reader
    that saw none of them needs one edge instead of one to each.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.ww: list[list[int]] = [[] for _ in range(count)]
        self.wr: list[list[int]] = [[] for _ in range(count)]
        self.rw: list[list[int]] = [[] for _ in range(count)]
        self._tails: list[list[int]] = []

    def wrote_next(self, before: int, after: int) -> None:
        if before != after:
            self.ww[before].append(after)

    def was_read(self, writer: int, reader: int) -> None:
        if writer != reader:
            self.wr[writer].append(reader)

    def was_missed(self, reader: int, writer: int) -> None:
        if reader != writer:
            self.rw[reader].append(writer)

    def missed_tail(self, reader: int, tail: int) -> None:
        self.rw[reader].append(tail)

    def add_tails(self, writers: Sequence[int]) -> list[int]:
        """A tail for each of these writers, with it and all after it."""
        first = self.count + len(self._tails)
        made = list(range(first, first + len(writers)))
        self._tails += [
            [writer, node + 1] if node + 1 < first + len(writers) else [writer]
            for writer, node in zip(writers, made, strict=True)
        ]
        return made

    def missed_by(self, reader: int) -> Iterator[int]:
        """The transactions at the ends of a reader's rw edges."""
        waiting, seen = list(self.rw[reader]), set[int]()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node >= self.count:
                waiting += self._tails[node - self.count]
            elif node != reader:
                yield node

    def whole(self) -> Adjacency:
        """All edges, whatever their kind."""
        each = ([*ww, *wr, *rw] for ww, wr, rw in zip(self.ww, self.wr, self.rw, strict=True))
        return [*each, *self._tails]

    def layered(self) -> Adjacency:
        """The graph with two nodes for each transaction: 2i is transaction i entered by ww or wr,
        2i + 1 the same entered by rw."""
        adjacency: list[list[int]] = []
        for ww, wr, rw in zip(self.ww, self.wr, self.rw, strict=True):
            depends = [2 * node for node in (*ww, *wr)]
            adjacency += [[*depends, *map(self._missed_node, rw)], depends]
        adjacency += [list(map(self._missed_node, tail)) for tail in self._tails]
        return adjacency

    def _missed_node(self, node: int) -> int:
        return 2 * node + 1 if node < self.count else node + self.count


def components(adjacency: Adjacency) -> list[list[int]]:
    """The strongly connected components of more than one node."""
    return _Search(adjacency).components()


class _Search:
    """Tarjan's depth-first search, with a stack of its own instead of recursion."""

    def __init__(self, adjacency: Adjacency) -> None:
        self._adjacency = adjacency
        self._index = [0] * len(adjacency)  # 0: not visited yet
        self._low = [0] * len(adjacency)
        self._on_stack = bytearray(len(adjacency))
        self._stack: list[int] = []
        self._work: list[tuple[int, Iterator[int]]] = []
        self._visited = 0
        self._found: list[list[int]] = []

    def components(self) -> list[list[int]]:
        for root, index in enumerate(self._index):
            if not index:
                self._visit(root)
                while self._work:
                    self._step(*self._work[-1])
        return self._found

    def _visit(self, node: int) -> None:
        self._visited += 1
        self._index[node] = self._low[node] = self._visited
        self._stack.append(node)
        self._on_stack[node] = 1
        self._work.append((node, iter(self._adjacency[node])))

    def _step(self, node: int, successors: Iterator[int]) -> None:
        index, low = self._index, self._low
        for successor in successors:
            if not index[successor]:
                self._visit(successor)
                return
            if self._on_stack[successor] and index[successor] < low[node]:
                low[node] = index[successor]
        self._work.pop()
        if self._work:
            above = self._work[-1][0]
            low[above] = min(low[above], low[node])
        if low[node] == index[node]:
            self._pop(node)

    def _pop(self, root: int) -> None:
        component: list[int] = []
        while not component or component[-1] != root:
            component.append(self._stack.pop())
            self._on_stack[component[-1]] = 0
        if len(component) > 1:
            self._found.append(component)


def path(adjacency: Adjacency, start: int, stop: int, *, within: set[int]) -> list[int] | None:
    """A shortest path of at least one edge, both ends included; None if there is none."""
    came_from: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for successor in adjacency[node]:
            if successor not in within or (successor in came_from and successor != stop):
                continue
            came_from.setdefault(successor, node)
            if successor == stop:
                way = [stop, node]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            waiting.append(successor)
    return None
