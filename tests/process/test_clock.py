"""Time within a run follows the boot clock, and a doubtful clock deletes nothing (design §5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.log.delayed_due_times import NOTHING_DUE, Due
from process.clock import SLEW_DIVISOR, ClockGuard, ClockTrust
from process.health import Status
from tests.process.manual_clock import NS_PER_MS, ManualClock

DAY_MS = 86_400_000


def test_it_starts_at_the_wall_clock_and_goes_on_with_the_boot_clock() -> None:
    manual = ManualClock(wall_ms=1_000_000, boot_ms=77)
    clock = manual.clock()

    manual.pass_ms(250)

    assert clock.now_ms() == 1_000_250


# Followed blindly, the step would give ids ten years ahead, behind which every later message would
# have to stand, and would expire everything that is stored.
def test_a_step_of_the_wall_clock_changes_nothing_at_once() -> None:
    manual = ManualClock(wall_ms=1_000_000)
    clock = manual.clock()

    manual.wall_ns += 3650 * DAY_MS * NS_PER_MS

    assert clock.now_ms() == 1_000_000


def test_a_step_is_followed_by_a_millisecond_in_a_second() -> None:
    manual = ManualClock(wall_ms=1_000_000)
    clock = manual.clock()
    manual.wall_ns += 3_600_000 * NS_PER_MS

    manual.pass_ms(60_000)

    assert clock.now_ms() == 1_000_000 + 60_000 + 60_000 // SLEW_DIVISOR


def test_a_small_error_is_corrected_and_no_more() -> None:
    manual = ManualClock(wall_ms=1_000_000)
    clock = manual.clock()
    manual.wall_ns -= 5 * NS_PER_MS

    for _ in range(100):
        manual.pass_ms(1000)
        clock.now_ms()

    assert clock.now_ms() == manual.wall_ns // NS_PER_MS


def test_reading_it_often_does_not_lose_the_correction() -> None:
    manual = ManualClock(wall_ms=1_000_000)
    clock = manual.clock()
    manual.wall_ns += 5 * NS_PER_MS

    for _ in range(10_000):
        manual.pass_ms(1)
        clock.now_ms()

    assert clock.now_ms() == manual.wall_ns // NS_PER_MS


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(-(10**9), 10**9)), max_size=30))
def test_it_never_goes_back_whatever_the_wall_clock_does(steps: list[tuple[int, int]]) -> None:
    manual = ManualClock(wall_ms=10**12)
    clock = manual.clock()
    before = clock.now_ms()
    for passed_ms, jump_ms in steps:
        manual.pass_ms(passed_ms)
        manual.wall_ns += jump_ms * NS_PER_MS

        now = clock.now_ms()

        bound_ms = passed_ms // SLEW_DIVISOR + 1
        assert before + passed_ms - bound_ms <= now <= before + passed_ms + bound_ms
        assert now >= before
        before = now


def test_a_wall_clock_set_back_counts_once() -> None:
    manual = ManualClock(wall_ms=1_000_000)
    clock = manual.clock()
    manual.wall_ns -= 10_000 * NS_PER_MS

    assert [clock.offset_ms(), clock.offset_ms()] == [-10_000, -10_000]

    assert clock.regressions == 1


class Guarded:
    """A guard, and the time by which it judges."""

    def __init__(self, *, recorded_ms: int | None, start_ms: int, is_accepted: bool = False):
        self.now_ms = start_ms
        self.guard = ClockGuard(
            lambda: self.now_ms, jump_ms_max=30 * DAY_MS, is_accepted=is_accepted
        )
        self.guard.compare(recorded_ms)

    def may_delete(self, now_ms: int) -> bool:
        self.now_ms = now_ms
        return self.guard.may_delete()


def test_before_the_recorded_time_is_known_nothing_is_deleted() -> None:
    guard = ClockGuard(lambda: 5, jump_ms_max=30 * DAY_MS, is_accepted=True)

    assert (guard.may_delete(), guard.is_compared) == (False, False)
    assert guard.check(0, newest_ms=0).detail == "the clock was not compared with the store yet"


def test_a_new_store_trusts_the_clock() -> None:
    assert Guarded(recorded_ms=None, start_ms=5).may_delete(5)


def test_a_short_pause_is_no_jump() -> None:
    start_ms = 10**12 + 30 * DAY_MS

    assert Guarded(recorded_ms=10**12, start_ms=start_ms).may_delete(start_ms)


# Trusted, a clock that is a year ahead would expire and delete every message at the first sweep.
def test_far_ahead_of_the_mark_nothing_is_deleted_for_the_whole_run() -> None:
    far = Guarded(recorded_ms=10**12, start_ms=10**12 + 365 * DAY_MS)

    assert not far.may_delete(10**12 + 366 * DAY_MS)
    assert far.guard.trust is ClockTrust.AHEAD
    assert "365 days ahead" in far.guard.check(0, newest_ms=0).detail


def test_behind_the_mark_nothing_is_deleted_until_it_is_passed() -> None:
    behind = Guarded(recorded_ms=10**12, start_ms=10**12 - 5000)

    assert [behind.may_delete(10**12 - 1), behind.may_delete(10**12)] == [False, True]


@pytest.mark.parametrize(
    ("recorded_ms", "start_ms", "due"),
    [
        (10**12, 10**12 - 3_600_000, Due(10**12 - 3_600_000 + 7)),
        (10**12, 10**12 + 31 * DAY_MS, Due(10**12 + 7, 10**12 + 31 * DAY_MS)),
        (None, 10**12, Due(10**12 + 7)),
    ],
)
def test_by_a_clock_that_is_ahead_the_time_since_the_start_counts(
    recorded_ms: int | None, start_ms: int, due: Due
) -> None:
    guarded = Guarded(recorded_ms=recorded_ms, start_ms=start_ms)
    guarded.now_ms += 7

    assert guarded.guard.due() == due


def test_a_clock_that_is_ahead_by_hours_says_what_stands_still_and_what_to_do() -> None:
    guard = ClockGuard(lambda: 10**12, jump_ms_max=1_000, is_accepted=False)
    guard.compare(10**12 - 3 * 3_600_000)

    detail = guard.check(0, newest_ms=0).detail

    assert detail.startswith("the clock is 3 hours ahead of the last recorded time")
    assert "delayed messages and retries" in detail
    assert "`--set server.accept_clock=true`" in detail


def test_before_the_recorded_time_is_known_no_delayed_message_enters() -> None:
    assert ClockGuard(lambda: 5, jump_ms_max=1, is_accepted=False).due() == NOTHING_DUE


def test_a_clock_that_every_start_accepts_is_named() -> None:
    check = Guarded(recorded_ms=None, start_ms=5, is_accepted=True).guard.check(0, newest_ms=0)

    assert check.status is Status.DEGRADED
    assert "remove it from the settings" in check.detail


@pytest.mark.parametrize("is_accepted", [False, True])
def test_messages_of_a_wrong_clock_that_stop_the_ids_are_named(is_accepted: bool) -> None:
    """It said that the clock agrees, and every message had a time 400 days ahead."""
    right = Guarded(recorded_ms=10**12, start_ms=10**12 + 5, is_accepted=is_accepted)

    check = right.guard.check(0, newest_ms=10**12 + 5 + 400 * DAY_MS)

    assert check.status is Status.DEGRADED
    assert check.detail.startswith("the newest message has a publish time that is 400 days ahead")
    assert right.may_delete(10**12 + 5)


def test_a_message_of_a_server_whose_clock_differs_a_little_is_not_ahead() -> None:
    right = Guarded(recorded_ms=10**12, start_ms=10**12 + 5)

    assert right.guard.check(0, newest_ms=10**12 + 30_000).status is Status.OK


def test_a_confirmed_clock_is_trusted() -> None:
    confirmed = Guarded(recorded_ms=10**12, start_ms=10**12 + 365 * DAY_MS, is_accepted=True)

    assert confirmed.may_delete(0)
