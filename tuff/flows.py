"""What takes several steps is written once, as a generator that two drivers run (design §7).

    flow := yields steps, returns its result
    step := Call: send it, once | Hook: run a function of the user's | Pause: let time pass
          | Unless: a call or a pause that ends when a stop is set

A driver (`tuff.blocking.driver`, `tuff.aio.driver`) puts a step's answer into the generator, or
throws what the step raised into it, interrupts and cancellation included: a flow meets them where
it stands, and can still roll back. A flow that is dropped half-way gets GeneratorExit, and then it
must not yield again; so code that catches BaseException here lets that one pass.

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
    """Set once, it ends every wait that watches it, until it is cleared.

    It is a pipe that contains a byte while it is set. A wait for a socket can watch both at once,
    and `set` takes no lock: `threading.Event.set` takes one, and a signal handler that interrupts a
    wait on the same event would deadlock.

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
    """So many seconds in which nothing is done."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unless:
    """A wait that ends with StoppedError once `stop` is set. What was sent may have been done."""

    stop: Stop
    step: Call[Any] | Pause


# What a step answers depends on the step, which the type of a generator can't say: `ask` can.
Step = Call[Any] | Hook | Pause | Unless
Flow = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt: twice as long each time, and by chance, so that
    those who failed together do not come back together. `chance` is in [0, 1)."""

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
    """Let time pass."""
    yield pause


def run_hook(step: Hook) -> object:
    """What the user's function answers.

    A GeneratorExit of its own becomes a RuntimeError: a flow takes it for its own end, at which it
    may not clean up, and the transaction stayed open. (A coroutine that raises one can't be told
    from a loop that is gone.)
    """
    try:
        return step.run()
    except GeneratorExit as error:
        raise RuntimeError("a hook raised GeneratorExit, which ends only generators") from error


def hook(function: Callable[[], object]) -> Flow[Any]:
    """Run a function of the user's."""
    return (yield Hook(function))


def unless(stop: Stop, flow: Flow[T]) -> Flow[T | None]:
    """What a flow of calls and pauses returns; None where `stop` is set before that.

    Only for a flow that leaves nothing behind, as it ends wherever it waits.
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
        assert not isinstance(step, Hook | Unless), "what is the user's is never given up half-way"
        try:
            answer, error = (yield Unless(stop, step)), None
        except GeneratorExit:
            flow.close()
            raise
        except BaseException as raised:  # noqa: BLE001 - the flow's to answer
            error = raised


def attempt(
    flow: Flow[object], *, cause: BaseException, interrupts: list[BaseException]
) -> Flow[None]:
    """Run a part of the clean-up; what it raises becomes a note on the error that led to it.

    An interrupt, or a cancellation, that becomes a note is put among `interrupts` too: a
    caller that catches the error and would continue has to raise that one.
    """
    try:
        yield from flow
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the cause is raised, and this must not hide it
        _note(error, on=cause, interrupts=interrupts)


def run_all(flows: Sequence[Flow[object]], *, interrupts: list[BaseException]) -> Flow[None]:
    """Run every one, whatever the others do; the first error is raised, later ones are notes, and
    interrupts that become notes are put among `interrupts`."""
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
                _note(error, on=first, interrupts=interrupts)
    if first is not None:
        raise first


def is_under_way(flow: Flow[object]) -> bool:
    """Whether the flow waits for a step's answer, and has not ended."""
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


def _note(error: BaseException, *, on: BaseException, interrupts: list[BaseException]) -> None:
    if error is on:
        return
    if not isinstance(error, Exception):
        interrupts.append(error)
    on.add_note(f"and then: {type(error).__name__}: {error}".rstrip(": "))
    for note in getattr(error, "__notes__", ()):
        on.add_note(note)


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
