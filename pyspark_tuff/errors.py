"""The errors of the data source, and how Spark shows them: one sentence without stack frames.

Spark sends the traceback of a Python error to the driver as text, and prints it at least twice. The
sentence of a `TuffError` is complete: it names the option or topic, and says what to do. So the
methods that Spark calls raise such an error again with one frame. Any other error is a bug, and
keeps its frames.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from tuff.protocol.errors import TuffError

P = ParamSpec("P")
T = TypeVar("T")


class OptionError(TuffError):
    """An option is invalid; the message names it, and says what to write."""

    code = "bad_option"


class OffsetError(TuffError):
    """A checkpoint holds an offset that this version can't read."""

    code = "bad_offset"


class DataLossError(TuffError):
    """Messages of this read have expired or may have expired. The option `failOnDataLoss` decides
    whether the read fails."""

    code = "data_loss"


class UnknownEpochError(TuffError):
    """Spark has not set the properties that name the query and the micro-batch of a task."""

    code = "unknown_epoch"


def without_traceback(method: Callable[P, T]) -> Callable[P, T]:
    """Decorates a method that Spark calls: raises its `TuffError` without traceback and cause."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except TuffError as error:
            refusal = error
        raise _without_frames(refusal)

    return called


def batches_without_traceback(method: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Raise errors without their traceback from a generator, whose errors occur while Spark
    consumes it."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from method(*args, **kwargs)
        except TuffError as error:
            refusal = error
        else:
            return
        raise _without_frames(refusal)

    return called


def _without_frames(error: TuffError) -> TuffError:
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
