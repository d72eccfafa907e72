"""Waits of a reader for a server that is away."""

import logging
import random
from collections.abc import Callable
from typing import TypeVar

from tuff.flows_and_repeated_calls import (
    RETRY_AFTER_S_MAX,
    RETRY_FIRST_S,
    RETRY_S_MAX,
    Backoff,
    Flow,
    Pause,
    is_passing,
    paused,
    unless,
)
from tuff.protocol.errors import TuffError
from tuff.stop_signals import Stop

log = logging.getLogger(__name__)
T = TypeVar("T")


class Outages:
    """The waits of one reader for a server that is away. Belongs to one thread or task.

    The waits grow from 0.1 to 2 seconds. One warning is logged when the reader begins to wait, and
    one when it continues. `reader`: what the lines call it. `waits_for`: the errors that end by
    themselves. `count_max`: how many attempts in a row may fail before the error is raised; None:
    any number. `count_min`: how many fail before a reader whose time is over raises the error, if
    there is no such bound. `awaited`: what the reader waits for, in the log.
    """

    def __init__(
        self,
        reader: object,
        *,
        waits_for: Callable[[Exception], bool] = is_passing,
        count_max: int | None = None,
        count_min: int = 0,
        awaited: str = "the server",
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._reader = reader
        self._waits_for = waits_for
        self._count_max, self._count_min = count_max, count_min
        self._awaited = awaited
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_S_MAX, chance)
        self._failed_count = 0  # in a row
        self._error: Exception | None = None  # of the last attempt, if that failed
        self._is_old = False  # that error is from before the last `begin`
        self._at_least_s = 0.0

    def outlasting(self, make: Callable[[], Flow[T]], *, stop: Stop | None = None) -> Flow[T]:
        """The result of such a flow, which can be repeated; however long the server is away.
        A `stop` that is set ends a wait, and then `make` is asked once more."""
        while True:
            try:
                result = yield from make()
            except Exception as error:
                if not self.is_outage(error):
                    raise
            else:
                self.end()
                return result
            yield from self.wait(stop)

    def is_outage(self, error: Exception) -> bool:
        """Count an attempt that failed by this error; whether to wait and try again."""
        if not self._waits_for(error):
            return False
        self._failed_count += 1
        if self._count_max is not None and self._failed_count > self._count_max:
            self._failed_count, self._error = 0, None
            return False
        self._error, self._is_old = error, False
        if self._failed_count == 1:
            log.warning("%s waits for %s: %s", self._reader, self._awaited, _cause(error))
        after_s = error.retry_after_s if isinstance(error, TuffError) else 0.0
        self._at_least_s = min(after_s, RETRY_AFTER_S_MAX)
        return True

    def end(self) -> None:
        """An attempt succeeded."""
        if self._failed_count:
            log.warning("%s continues: %s answers again", self._reader, self._awaited)
            self._failed_count, self._error = 0, None

    @property
    def is_away(self) -> bool:
        """Whether the last attempt failed."""
        return self._error is not None

    @property
    def pause(self) -> Pause:
        """The wait before the next attempt."""
        return self._backoff.pause(self._failed_count, at_least_s=self._at_least_s)

    def wait(self, stop: Stop | None = None) -> Flow[None]:
        """Wait before the next attempt, or until `stop` is set."""
        waiting = paused(self.pause)
        yield from waiting if stop is None else unless(stop, waiting)

    def begin(self) -> None:
        """A reader begins to wait, and needs one attempt more before `is_over` raises."""
        self._is_old = True

    def is_over(self, left_s: float) -> bool:
        """Whether a reader that has so many seconds left has found nothing. While the server is
        away it makes its attempts first.

        Raises: TuffError: the time is over, and these attempts reached no server: the reader does
            not know whether there is nothing.
        """
        if left_s > 0:
            return False
        error = self._error
        if error is None:
            return True
        if self._count_max is None and not is_passing(error):
            return True  # a server answers
        is_enough = self._failed_count > self._count_min and not self._is_old
        if self._count_max is not None or not is_enough:
            return False
        raise error

    def wait_within(self, left_s: float, stop: Stop) -> Flow[None]:
        """`wait`, and no longer than such a reader has."""
        bound_s = left_s if left_s > 0 else RETRY_AFTER_S_MAX
        yield from unless(stop, paused(Pause(min(self.pause.seconds, bound_s))))


def _cause(error: Exception) -> str:
    return error.detail if isinstance(error, TuffError) else f"{type(error).__name__}: {error}"
