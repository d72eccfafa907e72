"""How an error reaches the user of Spark: as its sentence, without the frames of this project.

Spark sends the traceback of a Python error to the driver as text, and prints it twice or more. What
`TuffError` says is complete: which option, which topic, what to do. So the methods that Spark calls
raise such an error anew, with one frame. An error of any other kind is a bug, and keeps its frames.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from tuff.protocol.errors import TuffError

P = ParamSpec("P")
T = TypeVar("T")


def brief(method: Callable[P, T]) -> Callable[P, T]:
    """For a method that Spark calls: its `TuffError` is raised without traceback and cause."""

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
    """As `brief`, for a generator: an error comes while Spark takes what it yields."""

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
