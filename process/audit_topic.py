"""Writes the audit topic: what principals did and were refused (decision 0046, Audit)."""

import asyncio
import itertools
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from access.audit import OK, Act, Failures, Kind, changes, ends_transaction, is_administrative
from messaging.topics import TOPIC_PATH
from process.access_guard import AccessGuard
from process.health import Check, Status
from process.http_connection import RequireAccess
from process.metrics import Gauge
from process.streamed_replies import ReplyParts, StreamRoute
from tuff.log_events import event
from tuff.protocol.errors import (
    ForbiddenError,
    InternalError,
    TopicExistsError,
    TopicNotFoundError,
    TuffError,
    UnauthenticatedError,
    from_problem,
)
from tuff.protocol.exchange import (
    JSON_REPLY_TYPE,
    PROBLEM_TYPE,
    Caller,
    Handler,
    Joint,
    Reply,
    Request,
    Route,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.sentences import counted

log = logging.getLogger(__name__)

WAITING_COUNT_MAX = 10_000  # messages that wait for the topic; some MB. One more is logged instead
BATCH_COUNT_MAX = 500  # messages in one publish
CLOSE_WITHIN_S = 1.0  # seconds in which a stop writes what waits

_REFUSALS = (UnauthenticatedError.code, ForbiddenError.code)
_REDIRECT = 307  # the client calls another server, which records the call
_BATCH = "POST /v1/transactions/batch"
_POINTER = re.compile(r"/v1/transactions/([0-9]{1,19})/")
_SERVER = Caller("")  # no principal: other servers of the cluster know the request by their secret

OwnerOf = Callable[[int], str | None]


class AuditTopic:
    """Records acts in the audit topic. Lives on one event loop.

    A message that can't be written waits, and one that is given up is logged and counted, so that
    no act fails for the topic. `server` is the id of this server in its cluster. `owner_of`: the
    principal of a transaction, as far as this server knows.
    """

    def __init__(
        self,
        topic: TopicId,
        guard: AccessGuard,
        *,
        ttl_s: int,
        server: str,
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[object, object, None]], None],
        owner_of: OwnerOf,
    ) -> None:
        self._topic = topic
        self._guard = guard
        self._ttl_s = ttl_s
        self._server = server
        self._now_ms = now_ms
        self._spawn = spawn
        self._owner_of = owner_of
        self._run_ms = now_ms()
        self._principals, self._file_failure = guard.principals, guard.failure
        self._numbers = itertools.count(1)
        self._failures = Failures(now_ms=self._run_ms)
        self._waiting: deque[str] = deque()
        self._idle = asyncio.Event()  # no publish is under way
        self._idle.set()
        self._is_made = False  # the topic has been created, and has its time to live
        self._failure: str | None = None
        self._handlers: dict[str, Handler] = {}
        self.written_count = 0
        self.lost_count = 0

    def connect(self, routes: Iterable[Route]) -> None:
        """Write with these routes, which may lead to another server."""
        self._handlers = {f"{each.method} {each.path}": each.handler for each in routes}

    # What is recorded.

    def note(self, act: Act) -> None:
        """Record an act. Those of a principal that fail are recorded at a bounded rate."""
        fails = act.kind in (Kind.ADMINISTRATION, Kind.REFUSAL) and act.result != OK
        written = self._failures.note(act) if fails else act
        if written is not None:
            self._add(written)

    def note_start(self, settings: Mapping[str, object]) -> None:
        """Record that the server is up, with the settings that differ from the default."""
        self.note(Act(kind=Kind.START, at_ms=self._now_ms(), more={"settings": settings}))

    def note_access_file(self) -> None:
        """Record what differs in the access file since the last call, if anything does."""
        principals, failure = self._guard.principals, self._guard.failure
        if principals is self._principals and failure == self._file_failure:
            return
        changed = [*changes(self._principals, principals)]
        self._principals, self._file_failure = principals, failure
        self.note(
            Act(
                kind=Kind.ACCESS_FILE,
                at_ms=self._now_ms(),
                result=OK if failure is None else "not_valid",
                more={"changes": changed, "failure": failure},
            )
        )

    def recorded(self, route: Route) -> Route:
        """The route, with a record of each call that matters."""
        operation, handler = f"{route.method} {route.path}", route.handler

        async def handle(request: Request) -> Reply:
            foreign = self._foreign(operation, request)
            try:
                reply = await handler(request)
            except Exception as error:
                self._note_call(operation, request, _code_of(error), foreign)
                raise
            self._note_call(operation, request, _result_of(operation, reply), foreign)
            return reply

        joint = route.joint

        def handle_jointly(requests: Sequence[Request]) -> Joint | None:
            assert joint is not None
            if any(self._foreign(operation, each) for each in requests):
                return None  # each is recorded
            return joint(requests)

        return route.wrapped(handle, joint=None if joint is None else handle_jointly)

    def recorded_stream(self, route: StreamRoute) -> StreamRoute:
        """As `recorded`."""
        operation, handler = f"{route.method} {route.path}", route.handler

        async def handle(request: Request, stream: ReplyParts) -> Reply | None:
            try:
                reply = await handler(request, stream)
            except Exception as error:
                self._note_call(operation, request, _code_of(error), ())
                raise
            self._note_call(operation, request, OK, ())
            return reply

        return route._replace(handler=handle)

    def recorded_heads(self, require_access: RequireAccess) -> RequireAccess:
        """The check of the heads of requests, with a record of each refusal."""

        def require(operation: str, head: Request) -> None:
            try:
                require_access(operation, head)
            except TuffError as error:
                self._note_call(operation, head, error.code, ())
                raise

        return require

    def _note_call(
        self, operation: str, request: Request, result: str, foreign: Sequence[str]
    ) -> None:
        is_refused = result in _REFUSALS
        if not is_refused and not foreign and not is_administrative(operation):
            return
        if not result or self._guard.is_of_server(request):
            return  # another server of the cluster has got the call, and records it
        self.note(
            Act(
                kind=Kind.REFUSAL if is_refused else Kind.ADMINISTRATION,
                at_ms=self._now_ms(),
                principal=self._guard.principal_name(request),
                operation=operation,
                parameters=self._guard.shown_parameters(request),
                result=result,
                address=request.address,
                traceparent=request.traceparent,
                more={"transactions": foreign} if foreign else {},
            )
        )

    def _foreign(self, operation: str, request: Request) -> Sequence[str]:
        """The transactions that the request ends, and that do not belong to its principal as far as
        this server knows. Only who may administer can."""
        if operation != _BATCH and not ends_transaction(operation):
            return ()
        if not self._guard.may_administer(request):
            return ()
        name = self._guard.principal_name(request)
        named = _transactions_of(operation, request)
        return [each for each in named if self._owner_of(int(each)) != name]

    # How it is written.

    def _add(self, act: Act) -> None:
        form = act.form()
        place = {"server": self._server, "run": self._run_ms, "number": next(self._numbers)}
        message = json.dumps({**place, **form})
        if len(self._waiting) < WAITING_COUNT_MAX:
            self._waiting.append(message)
        else:
            self._lose(message)

    def _lose(self, message: str) -> None:
        self.lost_count += 1
        log.warning("not in the audit topic: %s", message, extra=event("audit_lost"))

    def tick(self) -> None:
        """Write what waits, in the background. Call it several times a second."""
        for act in self._failures.ended(now_ms=self._now_ms()):
            self._add(act)
        if self._waiting and self._idle.is_set():
            self._idle.clear()
            self._spawn(self._write_waiting())

    async def close(self) -> None:
        """Write what waits, and log what can't be written in time."""
        for act in self._failures.rest():
            self._add(act)
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._idle.wait()
                await self._write_waiting()
        except TimeoutError:
            pass
        while self._waiting:
            self._lose(self._waiting.popleft())

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                batch = list(itertools.islice(self._waiting, BATCH_COUNT_MAX))
                await self._require_topic()
                await self._call("POST", "/publish", {"messages": batch})
                for _ in batch:
                    self._waiting.popleft()
                self.written_count += len(batch)
                self._failure = None
        except TuffError as error:
            if isinstance(error, TopicNotFoundError):
                self._is_made = False
            if self._failure is None:
                log.warning(
                    "the audit topic can't be written: %s", error, extra=event("audit_failed")
                )
            self._failure = str(error)
        finally:
            self._idle.set()

    async def _require_topic(self) -> None:
        """Create the topic, or give it the time to live of the settings."""
        if self._is_made:
            return
        properties = {"ttl": self._ttl_s}
        try:
            await self._call("PUT", "", properties)
        except TopicExistsError:
            await self._call("PUT", "/properties", properties)
        self._is_made = True

    async def _call(self, method: str, path: str, body: object) -> None:
        """Raises: TuffError: this server or the owner of the topic refuses."""
        handler = self._handlers[f"{method} {TOPIC_PATH}{path}"]
        parameters = {"ns": self._topic.namespace, "t": self._topic.name}
        form = orjson.dumps(body)
        reply = await handler(Request(parameters, (), JSON_REPLY_TYPE, None, form, caller=_SERVER))
        if reply.status >= 400:
            raise from_problem(orjson.loads(reply.body), status=reply.status)

    # What is shown of it.

    def check(self) -> Check:
        """The state of the audit topic, for `/health/ready`."""
        if self._failure is None:
            return Check(Status.OK, f"{self._topic} takes audit messages")
        return Check(
            Status.DEGRADED,
            f"{counted(len(self._waiting), 'audit message')} waiting, since {self._topic} can't be "
            f"written: {self._failure}",
            "the audit topic can't be written",
        )

    def gauges(self) -> list[Gauge]:
        """Metrics of the audit topic."""
        return [
            Gauge(
                "audit_messages_written",
                "Messages that are durable in the audit topic.",
                lambda: self.written_count,
                is_counter=True,
            ),
            Gauge(
                "audit_messages_lost",
                "Audit messages that were logged, since the audit topic could not be written.",
                lambda: self.lost_count,
                is_counter=True,
            ),
            Gauge(
                "audit_messages_waiting",
                "Audit messages that wait to be written.",
                lambda: len(self._waiting),
            ),
        ]


def _code_of(error: Exception) -> str:
    return error.code if isinstance(error, TuffError) else InternalError.code


def _result_of(operation: str, reply: Reply) -> str:
    """`OK`, or the code of an error; empty where this server did nothing."""
    if reply.status == _REDIRECT:
        return ""
    if reply.content_type == PROBLEM_TYPE:  # another server has answered
        return str(_members(reply)["code"])
    if operation == _BATCH and any(
        each["status"] == ForbiddenError.status for each in _members(reply)["replies"]
    ):
        return ForbiddenError.code
    return OK


def _members(reply: Reply) -> Any:
    return orjson.loads(reply.body) if reply.form is None else reply.form


def _transactions_of(operation: str, request: Request) -> Iterator[str]:
    """The transactions that a request names, where they are numbers."""
    if operation != _BATCH:
        yield from _POINTER.findall(f"/v1/transactions/{request.parameters['tx']}/")
        return
    members = request.value()
    calls = members.get("calls") if isinstance(members, dict) else None
    for call in calls if isinstance(calls, list) else ():
        path = call.get("path") if isinstance(call, dict) else None
        yield from _POINTER.findall(path if isinstance(path, str) else "")
