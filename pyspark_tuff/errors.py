"""Shows errors to the user of Spark as one sentence, without the stack frames of this project.

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


def brief(method: Callable[P, T]) -> Callable[P, T]:
    """Decorates a method that Spark calls: raises its `TuffError` without traceback and cause."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except TuffError as error:
            refusal = error
        refusal.__cause__ = refusal.__context__ = None
        raise refusal.with_traceback(None)

    return called


def brief_batches(method: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """As `brief`, for a generator, whose errors occur while Spark consumes it."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from method(*args, **kwargs)
        except TuffError as error:
            refusal = error
        else:
            return
        refusal.__cause__ = refusal.__context__ = None
        raise refusal.with_traceback(None)

    return called
