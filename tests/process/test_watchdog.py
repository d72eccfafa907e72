"""The end of a server whose event loop hangs."""

import asyncio
from threading import Event, Thread

import pytest

from process.watchdog import watch

WITHIN_S = 20.0


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


def test_a_loop_that_comes_round_goes_on_and_the_watch_ends_with_it() -> None:
    reasons: list[str] = []

    async def work() -> Thread:
        loop = asyncio.get_running_loop()
        thread = Thread(target=watch, args=(loop, reasons.append), kwargs={"check_s": 0.01})
        thread.start()
        await asyncio.sleep(0.1)
        assert thread.is_alive()
        return thread

    thread = asyncio.run(work())

    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert not reasons
