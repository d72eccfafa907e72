"""A piece of work in a transaction of its own; in a new one after each conflict."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tuff.commit import CommitProtocol
from tuff.flows import Backoff, Flow, hook
from tuff.protocol.errors import BadRequestError, TransactionConflictError
from tuff.stopping import Stop

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened(Generic[C]):
    """A context as the program sees it, and the protocol behind it."""

    protocol: CommitProtocol
    context: C


def during(protocol: CommitProtocol, work: Flow[T], stop: Stop | None = None) -> Flow[T]:
    """What the flow `work` returns, run in a transaction that is committed after it.

    An interrupt that came while an error was cleaned up after is raised in place of that error,
    since who asks may go on after errors.

    Raises: StoppedError: `stop` was set before it began.
    """
    try:
        yield from protocol.begin(work, stop)
        try:
            result = yield from work
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from protocol.undo(error)
            raise
        yield from protocol.finish()
    except Exception as error:
        if protocol.interrupt is not None:
            raise protocol.interrupt from error
        raise
    return result


def rerun(
    open_one: Callable[[], Opened[C]],
    work: Callable[[C], object],
    *,
    attempts: int,
    backoff: Backoff,
) -> Flow[Any]:
    """What `work` returns in a transaction; in a new one after each conflict, `attempts` in all.

    A conflict that a `post_commit` raises comes too late for that: the work is done.
    """
    if attempts < 1:
        raise BadRequestError(f"attempts is a number from 1 on, not {attempts}")
    failed_count = 0
    while True:
        opened = open_one()
        try:
            return (yield from during(opened.protocol, hook(partial(work, opened.context))))
        except TransactionConflictError:
            failed_count += 1
            if opened.protocol.has_committed or failed_count >= attempts:
                raise
        yield backoff.pause(failed_count)
