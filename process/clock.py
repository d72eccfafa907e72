"""Time inside one run of the server, and whether its clock can be trusted (design §5).

The wall clock can be set. A step must neither move ids into the future nor expire messages early.
So the time of a run starts at the wall clock and follows the boot-time clock, which counts
suspended time and can't be set. A small bounded slew corrects it towards the wall clock.
"""

from collections.abc import Callable
from enum import Enum

from messaging.log.delayed_due_times import NOTHING_DUE, Due
from process.health import Check, Status

SLEW_DIVISOR = 1_000  # of the time that passed: at most 1 ms correction in a second
JUMP_MS_MIN = 1_000  # ms; a wall clock this far from us was set, and does not only run fast or slow
IDS_AHEAD_MS_MIN = 60_000  # ms; servers of a cluster take topics of others whose clocks differ
REGRESSION_MS_MIN = 100  # ms; a wall clock this far behind us was set back, it is no jitter

_NS_PER_MS = 1_000_000


class SteadyClock:
    """Milliseconds since the epoch that never go back and never jump within a run.

    May be read from any thread; two reads at once may both apply the slew of the same stretch of
    time. The bound of the slew allows for that.
    """

    def __init__(self, *, wall_ns: Callable[[], int], boot_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._boot_ns = boot_ns
        self._state = (boot_ns(), wall_ns())
        self._behind = False
        self.regressions = 0

    def now_ms(self) -> int:
        """The time of this run, in ms."""
        boot_before, ours_before = self._state
        boot = self._boot_ns()
        passed = boot - boot_before if boot > boot_before else 0
        ours = ours_before + passed
        # A slew smaller than a nanosecond would be lost if every call stored its state.
        if bound := passed // SLEW_DIVISOR:
            ours += max(-bound, min(bound, self._wall_ns() - ours))
            self._state = (boot, ours)
        return ours // _NS_PER_MS

    def offset_ms(self) -> int:
        """How far the wall clock is ahead of this run's time, in ms; negative when behind.

        Counts a regression each time the wall clock falls behind.
        """
        offset_ms = self._wall_ns() // _NS_PER_MS - self.now_ms()
        behind = offset_ms < -REGRESSION_MS_MIN
        self.regressions += behind and not self._behind
        self._behind = behind
        return offset_ms


_ACCEPTED = (
    "server.accept_clock=true is set, and no start doubts its clock: remove it from the settings"
)


class ClockTrust(Enum):
    """How the clock at the start compares with the last recorded time."""

    UNKNOWN = "unknown"
    TRUSTED = "ok"
    AHEAD = "ahead"
    BEHIND = "behind"


class ClockGuard:
    """Prevents deletion while the clock of this start is doubtful.

    A clock that is wrongly far ahead would expire everything at once, for ever. With one that is
    behind the recorded time, log starts would rise by guesswork. So nothing is deleted until the
    jump is confirmed (`accept_clock`), or the recorded time is passed.

    By a clock that is behind delayed messages enter late, and never early. By one that may be ahead
    they enter as far as the time since the start is enough: when they are due by the recorded time
    and what has passed since, or have waited as long as they were to since they were accepted.
    """

    def __init__(self, now_ms: Callable[[], int], *, jump_ms_max: int, is_accepted: bool) -> None:
        self._now_ms = now_ms
        self._jump_ms_max = jump_ms_max
        self._is_accepted = is_accepted
        self._recorded_ms: int | None = None
        self._start_ms: int | None = None

    @property
    def is_compared(self) -> bool:
        """Whether the recorded time is known."""
        return self._start_ms is not None

    def compare(self, recorded_ms: int | None) -> None:
        """Compare the clock with the last recorded time; None if none was recorded."""
        self._recorded_ms = recorded_ms
        self._start_ms = self._now_ms()

    @property
    def trust(self) -> ClockTrust:
        if self._start_ms is None:
            return ClockTrust.UNKNOWN
        if self._recorded_ms is None or self._is_accepted:
            return ClockTrust.TRUSTED
        if self._start_ms - self._recorded_ms > self._jump_ms_max:
            return ClockTrust.AHEAD
        return ClockTrust.BEHIND if self._now_ms() < self._recorded_ms else ClockTrust.TRUSTED

    def may_delete(self) -> bool:
        """Whether retention may delete rows and raise log starts now."""
        return self.trust is ClockTrust.TRUSTED

    def due(self) -> Due:
        """Which delayed messages may enter their topics."""
        trust = self.trust
        if trust is ClockTrust.UNKNOWN:
            return NOTHING_DUE
        now_ms = self._now_ms()
        if trust is not ClockTrust.AHEAD:
            return Due(now_ms)
        assert self._start_ms is not None
        assert self._recorded_ms is not None
        return Due(self._recorded_ms + now_ms - self._start_ms, self._start_ms)

    def check(self, offset_ms: int, *, newest_ms: int) -> Check:
        """The health of the clock. `offset_ms` is how far the wall clock is ahead of the time of
        this run, `newest_ms` the publish time of the newest message of the server."""
        trust = self.trust
        if trust is not ClockTrust.TRUSTED:
            return Check(Status.DEGRADED, self._detail(trust), trust.value)
        if (jumped := _jump(offset_ms)) is not None:
            return Check(Status.DEGRADED, jumped, "set ahead" if offset_ms > 0 else "set back")
        if newest_ms - self._now_ms() >= IDS_AHEAD_MS_MIN:
            return Check(Status.DEGRADED, _stuck(newest_ms, self._now_ms()), "ids ahead")
        if self._is_accepted:
            return Check(Status.DEGRADED, _ACCEPTED, "accepted")
        return Check(Status.OK, self._detail(trust))

    def _detail(self, trust: ClockTrust) -> str:
        recorded_ms = self._recorded_ms or 0
        match trust:
            case ClockTrust.UNKNOWN:
                return "the clock was not compared with the store yet"
            case ClockTrust.TRUSTED:
                return "the clock agrees with what was recorded"
            case ClockTrust.AHEAD:
                ahead = _duration((self._start_ms or 0) - recorded_ms)
                return (
                    f"the clock is {ahead} ahead of the last recorded time; nothing is deleted, "
                    "and delayed messages and retries that were accepted before this start wait "
                    "for longer than they should. If the clock is right, start the server once "
                    "with `--set server.accept_clock=true`; else set it right "
                    "(`chronyc makestep`), and start the server again"
                )
            case ClockTrust.BEHIND:
                return (
                    f"the clock is {(recorded_ms - self._now_ms()) // 1000} s behind the last "
                    "recorded time; nothing is deleted, and ids stay at that time, until it is "
                    "passed, or the server is started once with server.accept_clock=true"
                )


def _duration(ms: int) -> str:
    """A time in the largest unit of which it has two."""
    for name, unit_ms in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000)):
        if ms >= 2 * unit_ms:
            return f"{ms // unit_ms} {name}"
    return f"{ms // 1000} seconds"


def _stuck(newest_ms: int, now_ms: int) -> str:
    """A sentence about messages with times that are ahead of a clock that is trusted."""
    ahead = _duration(newest_ms - now_ms)
    return (
        f"the newest message has a publish time that is {ahead} ahead of the clock, since it was "
        "published while the clock was wrong; until that time is reached each new message of "
        "every topic has that time, too, and its time to live counts from there. To end it "
        "before, restore a backup from before that, or copy the messages to a new server"
    )


def _jump(offset_ms: int) -> str | None:
    """A sentence about a wall clock that is this far ahead of ours; None where the two agree."""
    if abs(offset_ms) < JUMP_MS_MIN:
        return None
    way = "ahead of" if offset_ms > 0 else "behind"
    return (
        f"the wall clock was set while the server runs: it is {abs(offset_ms) / 1000:.1f} s {way} "
        "the server's time, which goes on as before and follows by 1 ms a second; if the wall "
        "clock is right now, start the server again"
    )
