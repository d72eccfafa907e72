"""Calls, from their admission to their replies: what HTTP and sessions have in common (protocol §1,
§8; decision 0058, §2).

A connection makes a call, which admits it, and begins it when its request is whole. The call is
refused with 429 above the limit of requests under way, and with 503 during the start and the stop.
The limit on connections is process/listener.py's. The reply is counted, and every error becomes a
problem document.

Calls of one operation that arrive in one turn of the event loop, over all connections, go to their
handler together, as a batch. The calls of one connection are begun in the order in which they
arrived.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kernel.event_loop import Arrivals, LightTask
from kernel.log_events import event
from kernel.requests_and_replies import (
    Handler,
    ManyHandler,
    Reply,
    Request,
    Route,
    begin_many,
    problem_reply,
)
from process.access_guard import AccessGuard
from process.metrics import Metrics
from process.streamed_replies import StreamHandler, StreamRoute
from tuff.protocol.errors import (
    InternalError,
    OverloadedError,
    ShuttingDownError,
    StartingError,
    TuffError,
)
from tuff.protocol.operations import (
    CHECK_LIVE,
    CHECK_READY,
    CHECK_STARTUP,
    GET_METRICS,
    OPERATIONS,
    Operation,
)
from tuff.protocol.sentences import counted
from tuff_storage.disk.locks import StoreError

log = logging.getLogger(__name__)

UNMATCHED = "unmatched"  # the operation, in metrics, of a request that no route serves
REFUSALS = (TuffError, StoreError)  # no bug if the client that would be told has disconnected
_ALWAYS_ADMITTED = frozenset(map(str, (CHECK_LIVE, CHECK_STARTUP, CHECK_READY, GET_METRICS)))
# Reads that may wait for long. They end with their connection: otherwise nothing would bound their
# number, since they count neither as a connection nor, while they wait, as a request under way.
# All other requests run to their end: they may have changed something already.
_ENDS_WITH_CONNECTION = frozenset(
    str(each) for each in OPERATIONS if each.waits and not each.leaves_doubt
)


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

    def enter(self) -> None:
        """Count a request in. Raises: StartingError, ShuttingDownError, OverloadedError."""
        if not self._is_open:
            self._refuse()
        if self.under_way >= self._pending_max:
            self._require_capacity()
        self.under_way += 1
        self._arrivals.count += 1

    def open(self) -> None:
        """Admit requests, unless it was stopped before."""
        self._is_open = not self.is_stopping

    def _refuse(self) -> None:
        if self.is_stopping:
            raise ShuttingDownError("the server is stopping; try again when it is back")
        raise StartingError("the server is starting, and recovers its stores; try again soon")

    def _require_capacity(self) -> None:
        pending = self.under_way - self._waiting()
        if pending >= self._pending_max:
            raise OverloadedError(
                f"{pending} requests are under way, the limit of "
                f"server.max_pending_requests={self._pending_max}; try again"
            )

    def stop(self) -> None:
        """Refuse new work from now on."""
        self.is_stopping, self._is_open = True, False
        self.look_if_drained()

    def look_if_drained(self) -> None:
        """Let `drained` return if nothing is under way. Call it during a stop."""
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


class Callee(NamedTuple):
    """The handlers of an operation, and the names of the parameters of its path. `stream` answers
    in the place of `handler`, in parts. `declared` None: no route serves the request.

    `ends_with_connection`: a call ends when its client disconnects. `is_admitted`: its calls count
    among those under way, and are refused above the limit.
    """

    operation: str
    handler: Handler
    many: ManyHandler | None
    names: tuple[str, ...]
    ends_with_connection: bool
    is_admitted: bool
    declared: Operation | None
    stream: StreamHandler | None = None


def callee_of(route: Route) -> Callee:
    operation, handler, many = route
    line = str(operation)
    is_poll = line in _ENDS_WITH_CONNECTION
    assert many is None or not is_poll, "a poll is given up by itself, when its client disconnects"
    is_admitted = line not in _ALWAYS_ADMITTED
    return Callee(line, handler, many, operation.parameters, is_poll, is_admitted, operation)


def stream_callee_of(route: StreamRoute) -> Callee:
    return callee_of(Route(route.operation, _never))._replace(stream=route.handler)


async def _never(_request: Request) -> Reply:
    raise AssertionError("another handler answers")


def unmatched(method: str) -> Callee:
    """In place of the handlers of a request with this method that no route serves. Metrics do not
    name its path: each would have a series of its own."""
    return Callee(f"{method} {UNMATCHED}", _never, None, (), False, True, None)  # noqa: FBT003 - a tuple


class Client(Protocol):
    """A connection with calls under way."""

    def answered(self, call: "Call", reply: Reply, /) -> None:
        """The reply to a call."""

    def fail(self, error: BaseException, /) -> None:
        """A call gets no reply: the client has disconnected, or the server stops."""


class Call:
    """A call under way: from its admission until it is answered or given up. `id` is the client's
    name of it, and `size` what it occupies, in bytes.

    Raises: StartingError, ShuttingDownError, OverloadedError: it is not admitted.
    """

    # Their first values are of the class, since an object is made for every call.
    _watchers: tuple[Callable[[Reply | Exception], None], ...] = ()
    is_answered = False
    is_watched = False  # the watches of the dispatcher have seen its head
    work: LightTask[Reply] | None = None  # of a handler that waits

    def __init__(
        self, dispatcher: "Dispatcher", client: Client, call_id: int, callee: Callee, size: int = 0
    ) -> None:
        if callee.is_admitted:
            dispatcher.admission.enter()
        self._dispatcher = dispatcher
        self.client = client
        self.id = call_id
        self.callee = callee
        self.size = size
        self.began_s = dispatcher.elapsed_s()

    def watch(self, watcher: Callable[[Reply | Exception], None]) -> None:
        self._watchers = (watcher, *self._watchers)

    def reply(self, reply: Reply | Exception) -> None:
        operation, dispatcher = self.callee.operation, self._dispatcher
        assert not self.is_answered, f"a second reply to a call of {operation}: {reply}"
        self._end(reply)
        if isinstance(reply, Exception):
            reply = dispatcher.problem(operation, reply)
        seconds = dispatcher.elapsed_s() - self.began_s
        dispatcher.metrics.observe_request(operation, reply.status, seconds)
        self.client.answered(self, reply)

    def fail(self, error: BaseException) -> None:
        """End the call with what its handler has raised."""
        if isinstance(error, Exception) and not isinstance(error, ConnectionError):
            self.reply(error)
            return
        self._end(ConnectionResetError("the client gets no reply"))
        self.client.fail(error)

    def give_up(self) -> None:
        """End the call without a reply, unless it is in a batch."""
        if self.work is None:
            return
        work = self.work
        self._end(ConnectionResetError("the client has disconnected"))
        work.give_up()

    def _end(self, reply: Reply | Exception) -> None:
        self.is_answered = True
        self.work = None  # it refers to this call
        for watcher in self._watchers:
            watcher(reply)
        if self.callee.is_admitted:
            admission = self._dispatcher.admission
            admission.under_way -= 1
            if admission.is_stopping:
                admission.look_if_drained()


# Looks at the head of a call that is admitted. It may watch the reply.
Watch = Callable[[Call, Operation, Request], None]


class Dispatcher:
    """Admits calls, lets handlers answer them, and turns errors into replies. Lives on one event
    loop.

    `elapsed_s` is a monotonic clock, in seconds. `access` None: every client may do everything. Of
    the `watches`, the first one sees a reply last.
    """

    def __init__(
        self,
        admission: Admission,
        metrics: Metrics,
        *,
        elapsed_s: Callable[[], float],
        access: AccessGuard | None = None,
        watches: Sequence[Watch] = (),
    ) -> None:
        self.admission = admission
        self.metrics = metrics
        self.elapsed_s = elapsed_s
        self._access = access
        self._watches = watches
        self._bugs = itertools.count(1)
        self._collected: list[tuple[ManyHandler, list[Request]]] = []
        self._newest: dict[str, int] = {}  # the index of the newest batch of an operation
        # The index of the last batch with a call of this client, before which it gets no other.
        self._last: dict[Client, int] = {}

    # From a connection.

    def refuse(self, operation: str, error: TuffError) -> Reply:
        """The reply to a request that was not admitted; it is counted."""
        self.metrics.observe_request(operation, error.status, 0.0)
        return problem_reply(error)

    def begin_head(self, call: Call, head: Request) -> None:
        """Look at the head of a call whose body is on its way. Raises: UnauthenticatedError,
        ForbiddenError: no body makes it allowed."""
        self._watch(call, head)
        declared = call.callee.declared
        if self._access is not None and declared is not None:
            self._access.require_head(declared, head)

    def begin(self, call: Call, request: Request) -> None:
        """Let the handler answer a call whose request is whole: at the end of the turn, with
        others, or now. Before a call that is begun now come those of its client that were
        collected."""
        if self._watches and not call.is_watched:
            self._watch(call, request)
        callee = call.callee
        if self._access is not None and callee.declared is not None:
            try:
                request = self._access.admitted(call, callee.declared, request)
            except Exception as error:  # noqa: BLE001 - a refusal, or a bug
                call.reply(error)
                return
        many, client, last = callee.many, call.client, self._last
        if many is None:
            if client in last:
                self._begin_collected()
            self._run(call, request)
            return
        index = self._newest.get(callee.operation, -1)
        if index < last.get(client, 0):
            index = self._newest[callee.operation] = len(self._collected)
            if index == 0:
                asyncio.get_running_loop().call_soon(self._begin_collected)
            self._collected.append((many, []))
        last[client] = index
        self._collected[index][1].append(request)

    def _watch(self, call: Call, head: Request) -> None:
        call.is_watched = True
        declared = call.callee.declared
        assert declared is not None, "the client was told that no route serves the request"
        for watch in self._watches:
            watch(call, declared, head)

    def _run(self, call: Call, request: Request) -> None:
        """Let a handler answer a single call."""
        try:
            work = call.callee.handler(request).__await__()
            awaited = next(work)
        except StopIteration as end:  # it did not wait
            call.reply(end.value)
        except BaseException as error:  # noqa: BLE001 - as in a task
            call.fail(error)
        else:
            call.work = LightTask(work, call.reply, call.fail, REFUSALS)
            call.work.wait_for(awaited)

    def _begin_collected(self) -> None:
        collected, self._collected = self._collected, []
        self._newest.clear()
        self._last.clear()
        for many, requests in collected:
            begin_many(many, requests)

    # From a call.

    def problem(self, operation: str, error: Exception) -> Reply:
        """The reply to a call of this operation that ended with an error. A bug is logged, and the
        reply names the log line."""
        if isinstance(error, TuffError):
            return problem_reply(error)
        bug = next(self._bugs)
        extra = event("bug", number=bug, operation=operation)
        log.error("bug %d in %s", bug, operation, exc_info=error, extra=extra)
        detail = f"the server has a bug, and logged this as bug {bug}; tell the operator"
        return problem_reply(InternalError(detail))
