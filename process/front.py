"""What happens around every handler, whichever way its request came in (protocol §1, §8).

A request is admitted or refused, its answer is counted, and every error becomes a problem document.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from process.metrics import Metrics
from tuff.disk.group import Arrivals
from tuff.protocol.errors import (
    InternalError,
    OverloadedError,
    ShuttingDownError,
    StartingError,
    TuffError,
)
from tuff.protocol.exchange import Reply, problem_reply

log = logging.getLogger(__name__)

DRAIN_S_MAX = 5.0  # seconds; what is under way at a stop gets this long

_PROBES = ("/health/live", "/health/startup", "/health/ready", "/metrics")
_ALWAYS_ANSWERED = frozenset(f"{method} {path}" for method in ("GET", "HEAD") for path in _PROBES)
# They change nothing, and may wait for long: nobody has to end them once the client is gone, and
# until then they would be neither a connection nor, while they wait, a request under way.
_GIVEN_UP = frozenset(
    {
        "POST /v1/namespaces/{ns}/topics/{t}/poll",
        "GET /v1/namespaces/{ns}/topics/{t}/messages",
    }
)


def is_given_up(operation: str) -> bool:
    """Whether what is under way ends with its connection. All others go on: what they do is done
    whether or not somebody hears of it."""
    return operation in _GIVEN_UP


class _Answer(Protocol):
    @property
    def status(self) -> int: ...


Question = TypeVar("Question")
Answer = TypeVar("Answer", bound=_Answer)


class Admission:
    """Counts the requests under way, and refuses what is too early, too much or too late.

    `waiting` tells how many of them are polls that only wait; those do not count.
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
        """Raises: StartingError, ShuttingDownError, OverloadedError."""
        if not self._is_open:
            self._refuse()
        if self.under_way >= self._pending_max:
            self._require_room()
        self.under_way += 1
        self._arrivals.count += 1

    def open(self) -> None:
        """Let requests in, unless it was stopped before."""
        self._is_open = not self.is_stopping

    def _refuse(self) -> None:
        if self.is_stopping:
            raise ShuttingDownError("the server is stopping; try again when it is back")
        raise StartingError("the server is starting, and recovers its stores; try again soon")

    def _require_room(self) -> None:
        pending = self.under_way - self._waiting()
        if pending >= self._pending_max:
            raise OverloadedError(
                f"{pending} requests are under way, which is all that "
                f"server.max_pending_requests={self._pending_max} allows; try again"
            )

    def leave(self) -> None:
        self.under_way -= 1
        if self.is_stopping and not self.under_way:
            self._idle.set()

    def stop(self) -> None:
        """Refuse new work from now on."""
        self.is_stopping, self._is_open = True, False
        if not self.under_way:
            self._idle.set()

    async def drained(self) -> None:
        """Wait, after `stop`, until nothing is under way, for `DRAIN_S_MAX` at most."""
        try:
            await asyncio.wait_for(self._idle.wait(), DRAIN_S_MAX)
        except TimeoutError:
            log.warning("%d requests were still under way at the stop", self.under_way)


class Front:
    """Asks handlers, and answers for them. Lives on one event loop.

    `elapsed_s` is a clock that only goes forward, in seconds.
    """

    def __init__(
        self, admission: Admission, metrics: Metrics, *, elapsed_s: Callable[[], float]
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
        """What the handler answers, or the problem document that says why not.

        Raises:
            ConnectionError: the client is gone, and there is nobody to answer.
        """
        began_s = self._elapsed_s()
        answered: Answer | Reply
        try:
            if operation in _ALWAYS_ANSWERED:
                answered = await handler(question)
            else:
                self._admission.enter()
                try:
                    answered = await handler(question)
                finally:
                    self._admission.leave()
        except TuffError as error:
            answered = problem_reply(error)
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001 - it is logged, and the process goes on
            answered = self._bug(operation)
        self._metrics.observe_request(operation, answered.status, self._elapsed_s() - began_s)
        return answered

    def refuse(self, operation: str, error: TuffError) -> Reply:
        """The answer to what reached no handler."""
        self._metrics.observe_request(operation, error.status, 0.0)
        return problem_reply(error)

    def fail(self, operation: str) -> Reply:
        """The answer to what ended with the exception that is being handled."""
        reply = self._bug(operation)
        self._metrics.observe_request(operation, reply.status, 0.0)
        return reply

    def _bug(self, operation: str) -> Reply:
        # The client gets the place in the log.
        bug = next(self._bugs)
        log.exception("bug %d in %s", bug, operation)
        detail = f"the server has a bug, and logged this as bug {bug}; tell who runs it"
        return problem_reply(InternalError(detail))
