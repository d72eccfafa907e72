"""Clocks that a test sets."""

from process.clock import SteadyClock

NS_PER_MS = 1_000_000


class ManualClock:
    """Two clocks that a test sets."""

    def __init__(self, *, wall_ms: int, boot_ms: int = 0) -> None:
        self.wall_ns = wall_ms * NS_PER_MS
        self.boot_ns = boot_ms * NS_PER_MS

    def clock(self) -> SteadyClock:
        return SteadyClock(wall_ns=lambda: self.wall_ns, boot_ns=lambda: self.boot_ns)

    def pass_ms(self, passed_ms: int) -> None:
        self.wall_ns += passed_ms * NS_PER_MS
        self.boot_ns += passed_ms * NS_PER_MS
