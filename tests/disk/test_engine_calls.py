"""A close waits for the calls in flight, and refuses later ones."""

from threading import Event, Thread

import pytest

from tuff.disk.locks import CallsInFlight


class TooLateError(Exception):
    """A call came after the close."""


def test_closing_waits_for_the_calls_under_way() -> None:
    users = CallsInFlight(closed=TooLateError)
    steps: list[str] = []
    is_in, may_leave = Event(), Event()

    def use() -> None:
        with users.using():
            is_in.set()
            may_leave.wait()
            steps.append("left")

    def close() -> None:
        users.close()
        steps.append("closed")

    user, closer = Thread(target=use), Thread(target=close)
    user.start()
    is_in.wait()
    closer.start()
    while not users.is_closing:
        pass
    with pytest.raises(TooLateError), users.using():
        pass
    may_leave.set()
    user.join()
    closer.join()

    assert steps == ["left", "closed"]


def test_only_the_first_close_returns_true() -> None:
    users = CallsInFlight(closed=TooLateError)

    assert [users.close(), users.close()] == [True, False]


def test_a_call_that_fails_is_over_too() -> None:
    users = CallsInFlight(closed=TooLateError)

    with pytest.raises(ZeroDivisionError), users.using():
        raise ZeroDivisionError

    assert users.close()
