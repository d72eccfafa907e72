"""The end of a server whose event loop hangs."""

import asyncio
from collections.abc import Callable
from threading import Event, Thread

import pytest

from process.watchdog import watch

WITHIN_S = 60.0


def test_a_hung_loop_ends_the_process_with_the_stacks_of_all_threads(
    capfd: pytest.CaptureFixture[str],
) -> None:
    reasons: list[str] = []
    has_died = Event()

    def die(reason: str) -> None:
        reasons.append(reason)
        has_died.set()

    async def hang() -> None:
        loop = asyncio.get_running_loop()
        Thread(target=watch, args=(loop, die), kwargs={"check_s": 0.01, "hangs_count": 5}).start()
        assert has_died.wait(WITHIN_S)  # blocks the loop

    asyncio.run(hang())

    assert len(reasons) == 1
    assert "the event loop has hung" in reasons[0]
    assert "in hang" in capfd.readouterr().err


class Loop:
    """A loop that comes round at once, and ends after so many times."""

    def __init__(self, turns_count: int) -> None:
        self.left_count = turns_count

    def is_running(self) -> bool:
        return self.left_count > 0

    def call_soon_threadsafe(self, call: Callable[[], None], /) -> None:
        self.left_count -= 1
        call()


def test_a_loop_that_comes_round_goes_on_and_the_watch_ends_with_it() -> None:
    reasons: list[str] = []

    watch(Loop(5), reasons.append, check_s=0.001, hangs_count=1)

    assert not reasons
