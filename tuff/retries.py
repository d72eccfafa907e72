"""Repeats a call if that is safe, and remembers that an earlier attempt may have been executed.

It is safe if the server says that it did not execute the call, or if a repetition has no second
effect (protocol §1, Idempotence). After an attempt with an unknown outcome only a response of the
server settles it: "connection refused" at the second attempt says nothing about the first.
"""

import random
from collections.abc import Callable
from typing import TypeVar

from tuff.calls import Call, Request, of_type
from tuff.client_errors import ClientClosedError, ConnectionLostError, ServerNotTrustedError
from tuff.flows import Backoff, Flow, ask
from tuff.protocol.errors import (
    OverloadedError,
    TransactionUnknownError,
    TuffError,
    UnavailableError,
)

T = TypeVar("T")

RETRY_COUNT_MAX = 100  # attempts; with more of them a program seems to hang
RETRY_FIRST_S = 0.1  # seconds; five of them, doubled, take 1.6 to 3.1 seconds
RETRY_S_MAX = 2.0  # seconds
RETRY_AFTER_S_MAX = 5.0  # seconds; the longest Retry-After that is honoured


class Retries:
    """Up to `count` more attempts of a call. Holds no state between calls.

    Raises:
        ValueError: the count is below 0, or absurd.
    """

    def __init__(self, count: int, *, chance: Callable[[], float] = random.random) -> None:
        if not 0 <= of_type(count, int, "retries") <= RETRY_COUNT_MAX:
            raise ValueError(f"retries is a number from 0 to {RETRY_COUNT_MAX}, not {count}")
        self._count = count
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_S_MAX, chance)

    def ask(self, call: Call[T]) -> Flow[T]:
        """The value of the response to a call.

        Raises:
            ConnectionLostError: no response came; `outcome_unknown` is about all attempts together.
            TuffError: the class of the server's refusal.
        """
        doubt: TuffError | None = None
        failed_count = 0
        while True:
            try:
                return (yield from ask(call))
            except TuffError as error:
                failed_count += 1
                if not call.request.is_read and error.outcome_unknown:
                    doubt = doubt or error
                if failed_count > self._count or not _may_repeat(call.request, error):
                    if doubt is None or error is doubt or _settles(error):
                        raise
                    raise _still_unknown(doubt, error) from error
                at_least_s = min(error.retry_after_s, RETRY_AFTER_S_MAX)
            yield self._backoff.pause(failed_count, at_least_s=at_least_s)


def is_passing(error: BaseException) -> bool:
    """Whether the cause is temporary: the server or the connection to it, and not the call."""
    return not isinstance(error, ClientClosedError | ServerNotTrustedError) and isinstance(
        error, ConnectionLostError | UnavailableError | OverloadedError
    )


def _may_repeat(request: Request, error: TuffError) -> bool:
    is_safe = error.retry_safe or request.is_safe_to_repeat
    return is_safe and is_passing(error)


def _settles(error: TuffError) -> bool:
    # After a lost attempt, "unknown transaction" may mean a commit that was forgotten since.
    return error.status < 500 and not isinstance(error, OverloadedError | TransactionUnknownError)


def _still_unknown(doubt: TuffError, last: TuffError) -> ConnectionLostError:
    return ConnectionLostError(
        f"{doubt.detail}; and when it was sent again: {last.detail}", outcome_unknown=True
    )
