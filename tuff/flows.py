"""Flows: client code with several steps, as generators that two drivers run (design §7).

    flow := yields steps, returns its result
    step := Call: send it, once | Hook: run a function of the user's | Pause: wait
          | Unless: a call or a pause that ends when a stop is set

A driver (`tuff.blocking.driver`, `tuff.aio.driver`) sends the result of a step into the generator,
or throws the error of the step into it, interrupts and cancellation included, so that a flow can
roll back. A flow that is closed before its end gets a GeneratorExit and must not yield again; so
code that catches BaseException here lets a GeneratorExit pass.

A `Stop` ends waits at once, from any thread or from a signal handler.
"""

import os
import select
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tuff.calls import Call

T = TypeVar("T")

_READ_BYTES = 4096  # bytes; one for each call of `set`
_WAIT_MS_MAX = 1 << 30  # milliseconds; poll accepts a C int


class StoppedError(Exception):
    """A wait ended because its `Stop` is set."""


class Stop:
    """While it is set, every wait that watches it ends at once.

    It is a pipe that contains a byte while it is set, so a wait for a socket can watch both. `set`
    takes no lock: with a `threading.Event`, a signal handler that interrupts a wait on it would
    deadlock.

    A forked process has a pipe of its own, which is not set: it inherits the signal handlers, and
    its termination must not stop its parent.
    """

    def __init__(self) -> None:
        self._pipes: dict[int, _Pipe] = {}  # by process id; a process uses only its own
        self._own()

    @property
    def is_set(self) -> bool:
        poller = select.poll()
        poller.register(self, select.POLLIN)
        return bool(poller.poll(0))

    def set(self) -> None:
        """End all current and later waits. It can be repeated."""
        with suppress(BlockingIOError):  # full, so it is set
            os.write(self._own().write, b"!")

    def clear(self) -> None:
        """Let later waits wait again."""
        with suppress(BlockingIOError):  # empty, so it is not set
            while True:
                os.read(self._own().read, _READ_BYTES)

    def fileno(self) -> int:
        """A descriptor that is readable while it is set."""
        return self._own().read

    def check(self) -> None:
        """Raises: StoppedError: it is set."""
        if self.is_set:
            raise StoppedError

    def wait(self, seconds: float) -> None:
        """Sleep. Raises: StoppedError: it is set, or is set meanwhile."""
        wait_for(None, self, seconds)

    def _own(self) -> "_Pipe":
        process = os.getpid()
        found = self._pipes.get(process)
        # In one step: a signal handler may interrupt this and create it too.
        return self._pipes.setdefault(process, _Pipe()) if found is None else found


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


def hook(function: Callable[[], object]) -> Flow[Any]:
    """Run a function of the user's."""
    return (yield Hook(function))


def unless(stop: Stop, flow: Flow[T]) -> Flow[T | None]:
    """Run a flow of calls and pauses; returns its result, or None if `stop` is set before that.

    Only for a flow that needs no clean-up, as it ends wherever it waits.
    """
    answer: object = None
    error: BaseException | None = None
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
            answer, error = (yield Unless(stop, step)), None
        except GeneratorExit:
            flow.close()
            raise
        except BaseException as raised:  # noqa: BLE001 - thrown into the flow
            error = raised


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


def is_under_way(flow: Flow[object]) -> bool:
    """Whether the flow waits for the result of a step."""
    return getattr(flow, "gi_frame", None) is not None


def wait_for(descriptor: int | None, stop: Stop, seconds: float) -> bool:
    """Wait until a descriptor is readable, at most `seconds`; returns whether it is.

    Raises:
        StoppedError: `stop` is set, or is set meanwhile.
    """
    poller = select.poll()
    poller.register(stop.fileno(), select.POLLIN)
    if descriptor is not None:
        poller.register(descriptor, select.POLLIN)
    ready = poller.poll(min(seconds * 1000, _WAIT_MS_MAX))
    stop.check()
    return bool(ready)


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


class _Pipe:
    """The two ends of a pipe, both non-blocking; closed when this object is garbage."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        os.set_blocking(self.write, False)
        weakref.finalize(self, _close, self.read, self.write)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
