"""Dispatch of requests: admission, routes, and what is common to all handlers (protocol §1, §8).

A request is refused with 429 above the limit of requests under way, and with 503 during the start
and the stop. The limit on connections is process/listener.py's. The handler of an admitted request
is called, its answer is counted, and every error becomes a problem document.
"""

import asyncio
import itertools
import logging
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from tuff.disk.event_loop import Arrivals
from tuff.log_events import event
from tuff.protocol.errors import (
    InternalError,
    OverloadedError,
    ShuttingDownError,
    StartingError,
    TuffError,
)
from tuff.protocol.exchange import Handler, JointHandler, Reply, Request, Route, problem_reply
from tuff.protocol.sentences import counted

if TYPE_CHECKING:
    from process.metrics import Metrics

log = logging.getLogger(__name__)

UNMATCHED = "unmatched"  # the operation, in metrics, of a request that no route serves
_CALLS = "/v1/"
_ALWAYS_ADMITTED = frozenset(
    f"GET {path}" for path in ("/health/live", "/health/startup", "/health/ready", "/metrics")
)
# Reads that may wait for long. They end with their connection: otherwise nothing would bound their
# number, since they count neither as a connection nor, while they wait, as a request under way.
_ENDS_WITH_CONNECTION = frozenset(
    {
        "POST /v1/namespaces/{ns}/topics/{t}/poll",
        "POST /v1/namespaces/{ns}/topics/{t}/wait",
        "GET /v1/namespaces/{ns}/topics/{t}/messages",
        "POST /v1/namespaces/{ns}/topics/{t}/share-groups/{share}/lease",
    }
)


def ends_with_connection(operation: str) -> bool:
    """Whether a request of this operation ends with its connection. All others run to their end:
    they may have changed something already."""
    return operation in _ENDS_WITH_CONNECTION


class Admission:
    """Counts the requests under way, and refuses requests before the start is done, above the
    limit, and during a stop.

    `waiting` counts the polls among them that only wait, which the limit leaves out.
    """

    def __init__(self, *, pending_max: int, waiting: Callable[[], int], arrivals: Arrivals) -> None:
        self._pending_max = pending_max
        self._waiting = waiting
        self._arrivals = arrivals
        self._is_open = False
        self.is_stopping = False
        self._idle = asyncio.Event()
        self.under_way = 0

    def enter(self, count: int = 1) -> None:
        """Count requests in. Raises: StartingError, ShuttingDownError, OverloadedError."""
        if not self._is_open:
            self._refuse()
        if self.under_way + count > self._pending_max:
            self._require_capacity(count)
        self.under_way += count
        self._arrivals.count += count

    def open(self) -> None:
        """Admit requests, unless it was stopped before."""
        self._is_open = not self.is_stopping

    def _refuse(self) -> None:
        if self.is_stopping:
            raise ShuttingDownError("the server is stopping; try again when it is back")
        raise StartingError("the server is starting, and recovers its stores; try again soon")

    def _require_capacity(self, count: int) -> None:
        pending = self.under_way - self._waiting()
        if pending + count > self._pending_max:
            raise OverloadedError(
                f"{pending} requests are under way, the limit of "
                f"server.max_pending_requests={self._pending_max}; try again"
            )

    def leave(self, count: int = 1) -> None:
        self.under_way -= count
        if self.is_stopping and not self.under_way:
            self._idle.set()

    def stop(self) -> None:
        """Refuse new work from now on."""
        self.is_stopping, self._is_open = True, False
        if not self.under_way:
            self._idle.set()

    async def drained(self, *, within_s: float) -> None:
        """Wait, after `stop`, until nothing is under way, for `within_s` at most."""
        try:
            await asyncio.wait_for(self._idle.wait(), within_s)
        except TimeoutError:
            log.warning(
                "cut off at the stop: %s under way",
                counted(self.under_way, "request"),
                extra=event("requests_cut_off", count=self.under_way),
            )


class _Answer(Protocol):
    @property
    def status(self) -> int: ...


Question = TypeVar("Question")
Answer = TypeVar("Answer", bound=_Answer)


class RequestDispatcher(Protocol):
    """What a connection needs of a dispatcher."""

    def answer(
        self,
        operation: str,
        handler: Callable[[Question], Awaitable[Answer]],
        question: Question,
    ) -> Coroutine[Any, Any, Answer | Reply]:
        """The handler's reply, or a problem document. Raises: ConnectionError: the client has
        closed the connection."""

    def refuse(self, operation: str, error: TuffError) -> Reply:
        """The reply to a request that reached no handler."""


class Dispatcher:
    """Calls handlers, and turns their errors into replies. Lives on one event loop.

    `elapsed_s` is a monotonic clock, in seconds.
    """

    def __init__(
        self, admission: Admission, metrics: "Metrics", *, elapsed_s: Callable[[], float]
    ) -> None:
        self._admission = admission
        self._metrics = metrics
        self._elapsed_s = elapsed_s
        self._bugs = itertools.count(1)

    async def answer(
        self,
        operation: str,
        handler: Callable[[Question], Awaitable[Answer]],
        question: Question,
    ) -> Answer | Reply:
        """The handler's reply, or a problem document.

        Raises:
            ConnectionError: the client has closed the connection.
        """
        began_s = self._elapsed_s()
        answered: Answer | Reply
        try:
            if operation in _ALWAYS_ADMITTED:
                answered = await handler(question)
            else:
                self._admission.enter()
                try:
                    answered = await handler(question)
                finally:
                    self._admission.leave()
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - a refusal, or it is logged and the process goes on
            answered = self._failed(operation, error)
        self._metrics.observe_request(operation, answered.status, self._elapsed_s() - began_s)
        return answered

    def begin_jointly(
        self, operation: str, handler: JointHandler, requests: Sequence[Request]
    ) -> tuple[Coroutine[Any, Any, Sequence[Reply]], Collection[int]] | None:
        """Begin calls that are handled at once: the replies, for which the caller waits at once,
        and the indexes of the calls that are to be answered by themselves. None: all are."""
        count = len(requests)
        try:
            self._admission.enter(count)
        except TuffError:
            return None  # there may be room for some of them
        joint = None
        try:
            joint = handler(requests)
        except TuffError:
            pass  # each call will say by itself what is wrong
        except Exception as error:  # noqa: BLE001 - it is logged, and each goes on by itself
            self._bug(operation, error)
        left_count = count if joint is None else len(joint.left)
        self._admission.leave(left_count)
        if joint is None or left_count == count:
            return None
        return self._replies(operation, joint.replies, count - left_count), joint.left

    async def _replies(
        self, operation: str, answers: Awaitable[Sequence[Reply | Exception]], count: int
    ) -> Sequence[Reply]:
        began_s = self._elapsed_s()
        try:
            answered = await answers
        except Exception as error:  # noqa: BLE001 - of all of them
            answered = [error] * count
        finally:
            self._admission.leave(count)
        seconds = self._elapsed_s() - began_s
        replies = [
            self._failed(operation, each) if isinstance(each, Exception) else each
            for each in answered
        ]
        for reply in replies:
            self._metrics.observe_request(operation, reply.status, seconds)
        return replies

    def _failed(self, operation: str, error: Exception) -> Reply:
        """The reply to a call that raised this: a refusal, or a bug."""
        return problem_reply(error) if isinstance(error, TuffError) else self._bug(operation, error)

    def refuse(self, operation: str, error: TuffError) -> Reply:
        """The reply to a request that reached no handler; it is counted."""
        self.count(operation, error.status, 0.0)
        return problem_reply(error)

    def count(self, operation: str, status: int, seconds: float) -> None:
        """Count a request that was answered elsewhere, in so many seconds."""
        self._metrics.observe_request(operation, status, seconds)

    def _bug(self, operation: str, error: Exception) -> Reply:
        # The reply names the log line.
        bug = next(self._bugs)
        extra = event("bug", number=bug, operation=operation)
        log.error("bug %d in %s", bug, operation, exc_info=error, extra=extra)
        detail = f"the server has a bug, and logged this as bug {bug}; tell the operator"
        return problem_reply(InternalError(detail))


class Resource(NamedTuple):
    """All routes of the path that matched, by their method."""

    path: str
    handlers: Mapping[str, Handler]
    parameters: Mapping[str, str]

    def methods(self) -> list[str]:
        """The methods that are answered, sorted: those of the routes, and HEAD."""
        methods = list(self.handlers)
        # Probes ask with HEAD. As a call of the protocol it would do a read's work for nothing.
        if "GET" in methods and not self.path.startswith(_CALLS):
            methods.append("HEAD")
        return sorted(methods)


class _Node:
    __slots__ = ("fixed", "handlers", "names", "parameter", "path")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.handlers: dict[str, Handler] = {}
        self.names: tuple[str, ...] = ()
        self.path = ""


class RouteTree:
    """Every route, by the segments of its path. A fixed segment wins over a parameter: `/run` is
    never a transaction of that name."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node, names = self._root, []
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                # A line is looked up without its number (process/plain_requests.py).
                assert not segment.isdigit(), f"{route.path} has a number that it does not name"
                node = node.fixed.setdefault(segment, _Node())
        assert node.names in ((), tuple(names)), f"{route.path} names a segment in two ways"
        node.names, node.path = tuple(names), route.path
        node.handlers[route.method] = route.handler

    def find(self, segments: Sequence[str]) -> Resource | None:
        """The routes of a path, by its segments without escapes; None without one."""
        values: list[str] = []
        node = _descend(self._root, segments, values)
        if node is None:
            return None
        return Resource(node.path, node.handlers, dict(zip(node.names, values, strict=True)))


def _descend(node: _Node, segments: Sequence[str], values: list[str]) -> _Node | None:
    if not segments:
        return node if node.handlers else None
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
