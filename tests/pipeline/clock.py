"""The clock of a test's server, which tests advance by hours."""

import time

from tests.faults.disk import Shim

HOUR_S, DAY_S = 3_600, 86_400
FIRST_S = 300  # seconds into a day: no hour ends by itself while a test works in it


class Clock:
    """It only goes forward."""

    def __init__(self, shim: Shim) -> None:
        self._shim = shim
        now_s = time.time()
        self._shift_s = (now_s // DAY_S + 1) * DAY_S + FIRST_S - now_s
        self._set()

    def pass_hours(self, number: int = 1) -> None:
        self._shift_s += number * HOUR_S
        self._set()

    def begin_day(self) -> None:
        """Go on to the next day's beginning."""
        now_s = time.time() + self._shift_s
        self._shift_s += (now_s // DAY_S + 1) * DAY_S + FIRST_S - now_s
        self._set()

    def _set(self) -> None:
        self._shim.set_clock(wall_s=self._shift_s, boot_s=self._shift_s)
