"""A server whose clock jumps an hour ahead at each SIGUSR1, to try out jobs that wait for hours.

    python3 examples/hours_server.py --data tryout/data --port 7411 &
    kill -USR1 $!

Flags are those of `server.py`. Use a data directory for this purpose only: its messages have times
in the future, and a server with the right clock does not expire them before these have passed.
"""

import runpy
import signal
import time

from tuff.launch import server_file

HOUR_NS = 3_600_000_000_000


class Clock:
    """The clocks of this process, which run ahead of the right time."""

    def __init__(self) -> None:
        self._ahead_ns = 0
        self._wall_ns, self._clock_ns = time.time_ns, time.clock_gettime_ns

    def wall_ns(self) -> int:
        return self._wall_ns() + self._ahead_ns

    def clock_ns(self, clock: int) -> int:
        return self._clock_ns(clock) + self._ahead_ns

    def pass_hour(self, *_signal: object) -> None:
        self._ahead_ns += HOUR_NS


if __name__ == "__main__":
    clock = Clock()
    time.time_ns, time.clock_gettime_ns = clock.wall_ns, clock.clock_ns
    signal.signal(signal.SIGUSR1, clock.pass_hour)
    runpy.run_path(str(server_file()), run_name="__main__")
