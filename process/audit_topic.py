"""Writes the audit topic: what principals did and were refused (decision 0046, Audit)."""

import asyncio
import itertools
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from access.audit import END_TRANSACTIONS, OK, Act, ActKind, Failures, changes, is_administrative
from kernel.event_loop import Spawn
from kernel.log_events import event
from kernel.requests_and_replies import PROBLEM_TYPE, Call, Caller, Handler, Reply, Request, Route
from process.access_guard import AccessGuard
from process.health import Check, Status
from process.metrics import Metric, counter, gauge
from tuff.protocol.errors import (
    ForbiddenError,
    InternalError,
    TopicExistsError,
    TopicNotFoundError,
    TuffError,
    UnauthenticatedError,
    from_problem,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.media_types import JSON_REPLY_TYPE
from tuff.protocol.operations import CREATE_TOPIC, PUBLISH, UPDATE_TOPIC, Operation
from tuff.protocol.sentences import counted

log = logging.getLogger(__name__)

WAITING_COUNT_MAX = 10_000  # messages that wait for the topic; some MB. One more is logged instead
BATCH_COUNT_MAX = 500  # messages in one publish
CLOSE_WITHIN_S = 1.0  # seconds in which a stop writes what waits

_REFUSALS = (UnauthenticatedError.code, ForbiddenError.code)
_REDIRECT = 307  # the client calls another server, which records the call
_POINTER = re.compile(r"\A[0-9]{1,19}\Z")
_SERVER = Caller("")  # no principal: other servers of the cluster know the request by their secret

PrincipalOf = Callable[[int], str | None]


class AuditTopic:
    """Records acts in the audit topic. Lives on one event loop.

    A message that can't be written waits, and one that is given up is logged and counted, so that
    no act fails for the topic. `server` is the id of this server in its cluster. `principal_of`:
    the principal of a transaction, as far as this server knows.
    """

    def __init__(
        self,
        topic: TopicId,
        guard: AccessGuard,
        *,
        ttl_s: int,
        server: str,
        now_ms: Callable[[], int],
        spawn: Spawn,
        principal_of: PrincipalOf,
    ) -> None:
        self._topic = topic
        self._guard = guard
        self._ttl_s = ttl_s
        self._server = server
        self._now_ms = now_ms
        self._spawn = spawn
        self._principal_of = principal_of
        self._run_ms = now_ms()
        self._principals, self._file_failure = guard.file.value, guard.file.failure
        self._numbers = itertools.count(1)
        self._failures = Failures(now_ms=self._run_ms)
        self._waiting: deque[str] = deque()
        self._idle = asyncio.Event()  # no publish is under way
        self._idle.set()
        self._is_made = False  # the topic has been created, and has its time to live
        self._failure: str | None = None
        self._handlers: dict[Operation, Handler] = {}
        self.written_count = 0
        self.lost_count = 0

    def connect(self, routes: Iterable[Route]) -> None:
        """Write with these routes, which may lead to another server."""
        self._handlers = {each.operation: each.handler for each in routes}

    # What is recorded.

    def note(self, act: Act) -> None:
        """Record an act. Those of a principal that fail are recorded at a bounded rate."""
        fails = act.kind in (ActKind.ADMINISTRATION, ActKind.REFUSAL) and act.result != OK
        written = self._failures.note(act) if fails else act
        if written is not None:
            self._add(written)

    def note_start(self, settings: Mapping[str, object]) -> None:
        """Record that the server is up, with the settings that differ from the default."""
        self.note(Act(kind=ActKind.START, at_ms=self._now_ms(), more={"settings": settings}))

    def note_access_file(self) -> None:
        """Record what differs in the access file since the last call, if anything does."""
        file = self._guard.file
        principals, failure = file.value, file.failure
        if principals is self._principals and failure == self._file_failure:
            return
        changed = [*changes(self._principals, principals)]
        self._principals, self._file_failure = principals, failure
        self.note(
            Act(
                kind=ActKind.ACCESS_FILE,
                at_ms=self._now_ms(),
                result=OK if failure is None else "not_valid",
                more={"changes": changed, "failure": failure},
            )
        )

    def watch(self, call: Call, operation: Operation, request: Request) -> None:
        """Record the call, if it matters, when it is answered."""
        foreign = self._foreign(operation, request)
        call.watch(partial(self._note_reply, operation, request, foreign))

    def _note_reply(
        self,
        operation: Operation,
        request: Request,
        foreign: Sequence[str],
        reply: Reply | Exception,
    ) -> None:
        result = _result_of(reply)
        is_refused = result in _REFUSALS
        if not is_refused and not foreign and not is_administrative(operation):
            return
        if not result or self._guard.is_of_server(request):
            return  # another server of the cluster has got the call, and records it
        self.note(
            Act(
                kind=ActKind.REFUSAL if is_refused else ActKind.ADMINISTRATION,
                at_ms=self._now_ms(),
                principal=self._guard.principal_name(request),
                operation=str(operation),
                parameters=self._guard.shown_parameters(request),
                result=result,
                address=request.address,
                traceparent=request.traceparent,
                more={"transactions": foreign} if foreign else {},
            )
        )

    def _foreign(self, operation: Operation, request: Request) -> Sequence[str]:
        """The transactions that the request ends, and that do not belong to its principal as far as
        this server knows. Only who may administer can."""
        if operation not in END_TRANSACTIONS or not self._guard.may_administer(request):
            return ()
        name = self._guard.principal_name(request)
        named = _POINTER.findall(request.parameters["tx"])  # none, if it is no number
        return [each for each in named if self._principal_of(int(each)) != name]

    # How it is written.

    def _add(self, act: Act) -> None:
        place = {"server": self._server, "run": self._run_ms, "number": next(self._numbers)}
        message = json.dumps({**place, **act.body()})
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
                await self._call(PUBLISH, {"messages": batch})
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
            await self._call(CREATE_TOPIC, properties)
        except TopicExistsError:
            await self._call(UPDATE_TOPIC, properties)
        self._is_made = True

    async def _call(self, operation: Operation, body: object) -> None:
        """Raises: TuffError: this server or the owner of the topic refuses."""
        handler = self._handlers[operation]
        parameters = {"ns": self._topic.namespace, "t": self._topic.name}
        data = orjson.dumps(body)
        reply = await handler(Request(parameters, (), JSON_REPLY_TYPE, None, data, caller=_SERVER))
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

    def metrics(self) -> Iterator[Metric]:
        """Metrics of the audit topic."""
        yield counter(
            "audit_messages_written",
            "Messages that are durable in the audit topic.",
            self.written_count,
        )
        yield counter(
            "audit_messages_lost",
            "Audit messages that were logged, since the audit topic could not be written.",
            self.lost_count,
        )
        waiting_count = len(self._waiting)
        yield gauge(
            "audit_messages_waiting", "Audit messages that wait to be written.", waiting_count
        )


def _result_of(reply: Reply | Exception) -> str:
    """`OK`, or the code of an error; empty where this server did nothing."""
    if isinstance(reply, Exception):
        return reply.code if isinstance(reply, TuffError) else InternalError.code
    if reply.status == _REDIRECT:
        return ""
    if reply.content_type == PROBLEM_TYPE:  # another server has answered
        return str(_members(reply)["code"])
    return OK


def _members(reply: Reply) -> Any:
    return orjson.loads(reply.body) if reply.value is None else reply.value
