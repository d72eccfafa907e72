"""Takes the frames of this library out of the tracebacks of failed calls and handlers.

An error of a call is about the server or the arguments. What leads a programmer to the cause is the
line of the program, and the functions of the program that the library called, such as hooks.

`handled` is the exception that the program was handling when it made the call. Python makes it the
context of every error that is raised meanwhile, and its frames are the program's.
"""

from collections.abc import Iterator
from types import TracebackType


def without_frames(error: BaseException, handled: BaseException | None) -> None:
    """Remove all frames from an error and its causes: no function of the program has run between
    the frames."""
    for each in _chain(error, handled):
        each.__traceback__ = None


def without_own_frames(error: BaseException, handled: BaseException | None) -> None:
    """Remove the frames of this library from an error and its causes."""
    for each in _chain(error, handled):
        each.__traceback__ = _of_others(each.__traceback__)


def from_program(error: BaseException) -> TracebackType | None:
    """The traceback of an error from the first frame on that is not of this library: the function
    of the program that the library has called. If there is none, the whole traceback."""
    traceback = error.__traceback__
    while traceback is not None and _is_own(traceback):
        traceback = traceback.tb_next
    return traceback or error.__traceback__


def _is_own(traceback: TracebackType) -> bool:
    name: str = traceback.tb_frame.f_globals.get("__name__", "")
    return name.startswith("tuff.")


def _of_others(traceback: TracebackType | None) -> TracebackType | None:
    kept = []
    while traceback is not None:
        if not _is_own(traceback):
            kept.append(traceback)
        traceback = traceback.tb_next
    found: TracebackType | None = None
    for each in reversed(kept):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found


def _chain(error: BaseException, handled: BaseException | None) -> Iterator[BaseException]:
    """The error, and what is its cause or context, up to `handled`."""
    found: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and each is not handled and id(each) not in found:
            found.add(id(each))
            yield each
            left += [each.__cause__, each.__context__]
