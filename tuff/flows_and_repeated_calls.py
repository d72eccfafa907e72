"""Flows: client code with several steps, as generators that two drivers run (design §7); the driver
of threads; and how a call is repeated.

    flow := yields steps, returns its result
    step := Call: send it, once | Hook: run a function of the user's | Pause: wait
          | Unless: a call or a pause that ends when a stop is set

A driver (`Driver`, `tuff.aio.driver`) sends the result of a step into the generator, or throws the
error of the step into it, interrupts and cancellation included, so that a flow can roll back. A
flow that is closed before its end gets a GeneratorExit and must not yield again; so code that
catches BaseException here lets a GeneratorExit pass.

A repetition is safe if the server says that it did not execute the call, or if it has no second
effect (protocol §1, Idempotence). After an attempt with an unknown outcome only a response of the
server settles it: "connection refused" at the second attempt says nothing about the first.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from threading import Thread as _Thread  # noqa: TID251 - it works while the program processes
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from tuff.errors import ConnectionLostError, ServerNotTrustedError, WrongStateError
from tuff.protocol.errors import (
    ForbiddenError,
    InternalError,
    OverloadedError,
    RequestForgottenError,
    TransactionUnknownError,
    TuffError,
    UnauthenticatedError,
    UnavailableError,
    from_problem,
)
from tuff.protocol.operations import Operation
from tuff.requests_and_responses import Query, Request, Response, number_of
from tuff.stop_signals import Stop, StoppedError
from tuff.tracebacks import without_frames, without_own_frames
from tuff.tracing import TRACING

T = TypeVar("T")
OnOutage = Literal["wait", "raise"]  # what a consumer does while the server is away
RETRY_COUNT_MAX = 100  # attempts; with more of them a program seems to hang
RETRY_FIRST_S = 0.1  # seconds; five of them, doubled, take 1.6 to 3.1 seconds
RETRY_S_MAX = 2.0  # seconds
RETRY_AFTER_S_MAX = 5.0  # seconds; the longest Retry-After that is honoured
# Time in which the machine was suspended counts, or the server would have forgotten more than the
# age of a repetition says.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One round trip: the request, and how to read its response.

    `withdrawal`: the call that takes back what the request did, or is still to do, after its caller
    has given it up.
    """

    request: Request
    read: Callable[[Response], T]
    withdrawal: Call[Any] | None = None

    def answer(self, response: Response) -> T:
        """The value of a response.

        Raises:
            TuffError: the class of the problem that the server reports; InternalError if the
                response does not follow the protocol.
        """
        is_fine = HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES
        if not (is_fine or self.is_unready(response)):
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise _refusal(response)
            elsewhere = response.headers.get("location")
            sent_to = "" if elsewhere is None else f" and sent to {elsewhere}"
            raise self._no_server(f"{response.status}{sent_to}, which no Tuff server does")
        try:
            return self.read(response)
        except (TuffError, ValueError, KeyError, AttributeError) as error:
            raise self._no_server(f"in a form that no Tuff server uses ({error})") from error

    def _no_server(self, answered: str) -> InternalError:
        what = f"{self.request.operation.method} {self.request.path}"
        return InternalError(f"{what} was answered {answered}; check the address")

    def is_unready(self, response: Response) -> bool:
        """Whether it is the operation's reply in spite of its status, and comes from the server,
        not a proxy."""
        unready_status = self.request.operation.unready_status
        return response.status == unready_status and "checks" in response.problem


def call(
    operation: Operation,
    parameters: tuple[str, ...],
    read: Callable[[Response], T],
    *,
    query: Query | None = None,
    form: object = None,
) -> Call[T]:
    """A call with a JSON body, or without one, that is answered at once."""
    request = Request(operation=operation, parameters=parameters, query=query or {}, body=form)
    return Call(request, read)


@dataclass(frozen=True, slots=True)
class Hook:
    """A function of the user's; with the asyncio driver it may be a coroutine function."""

    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unless:
    """A wait that ends with StoppedError once `stop` is set. The server may still do the call."""

    stop: Stop
    step: Call[Any] | Pause


# The result type of a step depends on the step, which a generator's type can't express; `ask` can.
Step = Call[Any] | Hook | Pause | Unless
Flow = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt: twice as long each time, with jitter, so that
    clients that failed together do not retry together. `chance` is in [0, 1)."""

    first_s: float
    most_s: float
    chance: Callable[[], float]

    def pause(self, failed_count: int, *, at_least_s: float = 0.0) -> Pause:
        """After so many failed attempts (1, 2, …): from half of the time up to all of it."""
        doubled_s = self.first_s * 2 ** min(failed_count - 1, 32)
        return Pause(max(at_least_s, min(self.most_s, doubled_s) * (1 + self.chance()) / 2))


def ask(call: Call[T]) -> Flow[T]:
    """Send a call, once."""
    answer: T = yield call
    return answer


def paused(pause: Pause) -> Flow[None]:
    """Wait."""
    yield pause


def hook(function: Callable[[], object]) -> Flow[Any]:
    """Run a function of the user's."""
    return (yield Hook(function))


def run_hook(step: Hook) -> object:
    """The result of the user's function.

    Its own GeneratorExit becomes a RuntimeError: a flow would take it for its own end, at which it
    must not clean up, and the transaction would stay open. (A coroutine that raises one can't be
    distinguished from a closed event loop.)
    """
    try:
        return step.run()
    except GeneratorExit as error:
        raise RuntimeError("a hook raised GeneratorExit, which ends only generators") from error


def unless(stop: Stop, flow: Flow[T]) -> Flow[T | None]:
    """Run a flow of calls and pauses; returns its result, or None if `stop` is set before that.

    Only for a flow of calls and pauses, as it ends wherever it waits; its clean-up then runs to its
    end.
    """
    answer: object = None
    error: BaseException | None = None
    is_stopped = False
    while True:
        try:
            step = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        except StoppedError:
            return None
        assert not isinstance(step, Hook | Unless), (
            "a function of the user's always runs to its end"
        )
        try:
            answer, error = (yield step if is_stopped else Unless(stop, step)), None
        except GeneratorExit:
            flow.close()
            raise
        except BaseException as raised:  # noqa: BLE001 - thrown into the flow
            error = raised
            is_stopped = is_stopped or isinstance(raised, StoppedError)


def attempt(
    flow: Flow[object], *, cause: BaseException, interrupts: list[BaseException]
) -> Flow[None]:
    """Run a part of the clean-up after the error `cause`; its own error becomes a note on that one.

    An interrupt or a cancellation that becomes a note is also appended to `interrupts`: a caller
    that catches `cause` and would continue has to raise it.
    """
    try:
        yield from flow
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the cause is raised, and this must not hide it
        note(error, on=cause, interrupts=interrupts)


def run_all(flows: Sequence[Flow[object]], *, interrupts: list[BaseException]) -> Flow[None]:
    """Run each flow, even if others raise. The first error is raised with the later ones as notes;
    interrupts that become notes are also appended to `interrupts`."""
    first: BaseException | None = None
    for flow in flows:
        try:
            yield from flow
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below, after all have run
            if first is None:
                first = error
            else:
                note(error, on=first, interrupts=interrupts)
    if first is not None:
        raise first


def note(
    error: BaseException, *, on: BaseException, interrupts: list[BaseException], when: str = "then"
) -> None:
    """Make an error a note on another one, which is raised; as `attempt`. The note says `when` the
    error was raised."""
    if error is on:
        return
    if not isinstance(error, Exception):
        interrupts.append(error)
    on.add_note(f"and {when}: {type(error).__name__}: {error}".rstrip(": "))
    for each in getattr(error, "__notes__", ()):
        on.add_note(each)


class Sender(Protocol):
    """Sends a call once."""

    @property
    def url(self) -> str: ...
    def send(self, call: Call[T], *, stop: Stop | None = None) -> T: ...
    def close(self) -> None: ...


class Driver:
    """Runs flows, and blocks meanwhile. Safe to share between threads."""

    runs_coroutines: ClassVar[bool] = False  # as a step of a flow

    def __init__(self, transport: Sender, retries: Retries) -> None:
        self._transport = transport
        self.retries = retries

    def ask(self, call: Call[T]) -> T:
        """Send a call, and repeat it if that is safe; returns the value of the response."""
        return self.run(self.retries.ask(call))

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; returns its result.

        An interrupt between two steps is thrown into the flow, like one within a step: otherwise
        the flow would not roll back. An error of Tuff is raised without the frames of the flow.
        """
        handled = sys.exception()
        answer: object = None
        error: BaseException | None = None
        while True:
            try:
                # An inner loop, since Python raises an interrupt at the jump back to the head of a
                # loop.
                while True:
                    step = flow.send(answer) if error is None else flow.throw(error)
                    answer, error = self._attempt(step)
            except BaseException as raised:
                if getattr(flow, "gi_frame", None) is not None:  # it waits for a result
                    error = raised
                elif isinstance(raised, StopIteration):
                    result: T = raised.value
                    return result
                else:
                    if isinstance(raised, TuffError):
                        without_own_frames(raised, handled)
                    raise

    def _pause(self, seconds: float, stop: Stop | None) -> None:
        if stop is None:
            time.sleep(seconds)
        else:
            stop.wait(seconds)

    def _attempt(self, step: Step) -> tuple[object, BaseException | None]:
        try:
            return self._do(step), None
        except BaseException as error:  # noqa: BLE001 - thrown into the flow
            return None, error

    def _do(self, step: Step) -> object:
        match step:
            case Hook():
                return _no_coroutine(run_hook(step))
            case Unless(stop, within):
                return self._wait(within, stop)
            case _:
                return self._wait(step, None)

    def _wait(self, step: Call[Any] | Pause, stop: Stop | None) -> object:
        if isinstance(step, Pause):
            self._pause(step.seconds, stop)
            return None
        tracer, handled = TRACING.tracer, sys.exception()
        try:
            if tracer is None:
                return self._transport.send(step, stop=stop)
            with tracer.sending(step, self._transport.url) as traced:
                answer: object = self._transport.send(traced.call, stop=stop)
                traced.answered(answer)
                return answer
        except TuffError as error:
            without_frames(error, handled)
            raise


def _no_coroutine(result: object) -> object:
    if hasattr(result, "__await__"):
        # It has not run, so the hook did nothing, which would look like a success.
        getattr(result, "close", lambda: None)()
        raise TypeError(
            "a participant of a blocking client has a coroutine function; use tuff.AsyncClient"
        )
    return result


class Heartbeats:
    """Runs one flow beside the program, for the object `what`, as long as it is used."""

    def __init__(self, driver: Driver, *, what: str) -> None:
        self.use = Use(what)
        self._driver = driver
        self._thread: _Thread | None = None

    def begin(self, flow: Callable[[], Flow[None]]) -> None:
        """Run the flow; nothing happens if it was begun before.

        Raises: WrongStateError: the object is closed, or of another process.
        """
        self.use.require()
        if self._thread is None:
            # A program that ends without `close` ends the thread, too; the session runs out.
            self._thread = _Thread(
                target=lambda: self._driver.run(flow()), name="tuff heartbeats", daemon=True
            )
            self._thread.start()

    def join(self) -> None:
        """Wait until the flow has ended."""
        if self._thread is not None:
            self._thread.join()


class Use:
    """The use of the object `what`, which is closed once, and belongs to one process."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._process_id = os.getpid()
        self._is_closed = self._has_begun = False

    @property
    def is_possible(self) -> bool:
        """Whether it is not closed, and of this process."""
        return not self._is_closed and os.getpid() == self._process_id

    def require(self) -> None:
        """Raises: WrongStateError: it is closed, or of another process."""
        if self._is_closed:
            raise WrongStateError(f"the {self.what} is closed; make another one")
        require_own_process(self._process_id, what=self.what)
        self._has_begun = True

    def forget(self, close: Callable[[], None]) -> None:
        """The program has dropped the object: end what works beside it, and warn if it was used and
        not closed."""
        close()
        if self._has_begun and self.is_possible:
            warnings.warn(
                f"a {self.what} was not closed, so others get what it has only when its session, "
                "or a lease, is over; use it in a `with` block, or close it",
                ResourceWarning,
                stacklevel=2,
            )

    def end(self) -> bool:
        """Close it; returns False if it can't be used any more."""
        if not self.is_possible:
            return False
        self._is_closed = True
        return True


def require_own_process(process_id: int, *, what: str) -> None:
    """Raises: WrongStateError: what has a thread or a task is of another process."""
    if os.getpid() != process_id:
        raise WrongStateError(
            f"the {what} was made before this process was forked, and works in its parent alone; "
            "make another one here"
        )


class MakePublish(Protocol[T]):
    """Makes a publish with this request id."""

    def __call__(self, *, request_id: str) -> Call[T]: ...


class Retries:
    """Up to `count` more attempts of a call. Numbers the publishes of a client, and holds no other
    state between calls.

    Raises:
        ValueError: the count is below 0, or absurd.
    """

    def __init__(self, count: int, *, chance: Callable[[], float] = random.random) -> None:
        self.count = number_of(count, "retries", at_least=0, at_most=RETRY_COUNT_MAX)
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_S_MAX, chance)
        self._numbers = Numbers()

    def publish(self, make: MakePublish[T]) -> Flow[T]:
        """The value of the response to a publish, which is repeated also if it may have been
        executed: the server recognises it. Raises as `ask`."""
        since_s = clock_s()
        number, request_id = self._numbers.begin()
        try:
            return (yield from self._asked(make(request_id=request_id), since_s=since_s))
        finally:
            self._numbers.end(number)

    def bound(self, on_outage: OnOutage) -> int | None:
        """How many attempts of a reader may fail in a row; None: any number, as it waits.

        Raises: ValueError: there is no such choice.
        """
        if on_outage not in ("wait", "raise"):
            raise ValueError(f"on_outage is wait or raise, not {on_outage!r}")
        return self.count if on_outage == "raise" else None

    def ask(self, call: Call[T]) -> Flow[T]:
        """The value of the response to a call. If an interrupt, a cancellation or a stop ends the
        wait for it, the call is withdrawn.

        Raises:
            ConnectionLostError: no response came; `outcome_unknown` is about all attempts together.
            TuffError: the class of the server's refusal.
        """
        try:
            return (yield from self._asked(call))
        except (GeneratorExit, TuffError):
            raise
        except BaseException as error:
            if call.withdrawal is not None:
                yield from self._withdraw(call.withdrawal, error)
            raise

    def _withdraw(self, withdrawal: Call[object], cause: BaseException) -> Flow[None]:
        interrupts: list[BaseException] = []
        # The caller wants to go on, so a server that is gone gets no third attempt.
        asked = Retries(min(self.count, 1)).ask(withdrawal)
        yield from attempt(asked, cause=cause, interrupts=interrupts)
        if interrupts and isinstance(cause, Exception):
            raise interrupts[0] from cause

    def _asked(self, call: Call[T], *, since_s: float | None = None) -> Flow[T]:
        """`since_s`: when a publish was first sent, by `clock_s`."""
        doubt: TuffError | None = None
        failed_count = 0
        while True:
            try:
                answer: T = yield call
            except TuffError as error:
                failed_count += 1
                if not call.request.is_read and error.outcome_unknown:
                    doubt = doubt or error
                if failed_count > self.count or not _may_repeat(call.request, error):
                    if doubt is None or error is doubt or _settles(error):
                        raise
                    raise _still_unknown(doubt, error) from error
                at_least_s = min(error.retry_after_s, RETRY_AFTER_S_MAX)
            else:
                return answer
            yield self._backoff.pause(failed_count, at_least_s=at_least_s)
            if since_s is not None:
                call = repeated(call, since_s=since_s)


class Numbers:
    """One producer: its publishes that are under way. Safe to share between threads; a forked
    process is another producer."""

    def __init__(self) -> None:
        self._begin_producer()

    def _begin_producer(self) -> None:
        self._process_id = os.getpid()
        # Also after a fork, in which a thread of the parent may have held it.
        self._lock = threading.Lock()
        self._producer = os.urandom(8).hex()
        self._next = 1
        self._lowest = 1  # that may be repeated
        self._under_way: set[int] = set()

    def begin(self) -> tuple[int, str]:
        """The number of the next publish, and its request id. Pass the number to `end`."""
        if os.getpid() != self._process_id:
            self._begin_producer()
        with self._lock:
            number = self._next
            self._next += 1
            self._under_way.add(number)
            return number, f"{self._producer}.{number}.{self._lowest}"

    def end(self, number: int) -> None:
        """This publish will not be sent again."""
        with self._lock:
            self._under_way.discard(number)
            while self._lowest < self._next and self._lowest not in self._under_way:
                self._lowest += 1


def repeated(call: Call[T], *, since_s: float) -> Call[T]:
    """A publish as the repetition of one that was sent at `since_s`, by `clock_s`; one without an
    id stays as it is."""
    if not call.request.has_id:
        return call
    query = {**call.request.query, "age": int((clock_s() - since_s) * 1000) + 1}
    # The id is the last parameter, by which the server finds the route of such a request.
    query["requestId"] = query.pop("requestId")
    return Call(replace(call.request, query=query), call.read)


def clock_s() -> float:
    """Seconds of a clock that is never set and never stands still."""
    return time.clock_gettime(_CLOCK)


def is_passing(error: BaseException) -> bool:
    """Whether the cause is temporary: the server or the connection to it, and not the call."""
    return not isinstance(error, ServerNotTrustedError) and isinstance(
        error, ConnectionLostError | UnavailableError | OverloadedError
    )


def _refusal(response: Response) -> TuffError:
    error = from_problem(response.problem, status=response.status)
    error.retry_after_s = response.retry_after_s
    return error


def _may_repeat(request: Request, error: TuffError) -> bool:
    is_safe = error.retry_safe or request.is_repeatable
    return is_safe and is_passing(error)


def _settles(error: TuffError) -> bool:
    # After a lost attempt, "unknown transaction" may mean a commit that was forgotten since, and a
    # refused principal may have had its right before.
    return error.status < HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(
        error,
        OverloadedError
        | TransactionUnknownError
        | RequestForgottenError
        | UnauthenticatedError
        | ForbiddenError,
    )


def _still_unknown(doubt: TuffError, last: TuffError) -> ConnectionLostError:
    return ConnectionLostError(
        f"{doubt.detail}; and when it was sent again: {last.detail}", outcome_unknown=True
    )
