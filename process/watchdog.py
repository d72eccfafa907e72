"""Ends a server of a cluster whose event loop hangs (decision 0042, A server that can't do its
work).

Threads of the metadata client keep the session, so a hung server stays a member: its topics and the
lead would stay with it, and nothing would be answered.
"""

import faulthandler
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from threading import Event

CHECK_S = 1.0
HANGS_COUNT = 30  # checks; longer than any work on the event loop takes


def watch(
    loop: AbstractEventLoop,
    die: Callable[[str], None],
    *,
    check_s: float = CHECK_S,
    hangs_count: int = HANGS_COUNT,
) -> None:
    """Call `die`, with a reason, once the running loop has not come round for so many checks in a
    row. Before that, the stacks of all threads are written to standard error. Blocks, in a thread
    of its own, until the loop ends.

    Checks are counted, and not seconds: in a process that was stopped as a whole, this thread may
    run before the loop does.
    """
    while loop.is_running():
        has_turned, missed_count = Event(), 0
        try:
            loop.call_soon_threadsafe(has_turned.set)
        except RuntimeError:  # it was closed
            return
        while not has_turned.wait(check_s) and loop.is_running():
            missed_count += 1
            if missed_count == hangs_count:
                faulthandler.dump_traceback(all_threads=True)
                die(
                    f"the event loop has hung for {hangs_count * check_s:.0f} s, so this server "
                    "answers nothing, and keeps its topics"
                )
                return
        time.sleep(check_s)
