"""Quotas of principals: requests and bytes in a second (decision 0046); time is an argument."""

from dataclasses import dataclass, field

WAIT_S_MIN = 0.001  # seconds; a bucket that is just empty has no debt to wait for
BURST_S = 1.0  # seconds of unused quota that a principal may use at once


@dataclass(frozen=True, slots=True)
class Quota:
    """What a principal may use; None: as much as it wants. `bytes_per_second` counts the bodies of
    requests and replies together."""

    requests_per_second: float | None = None
    bytes_per_second: float | None = None
    open_transactions: int | None = None

    @property
    def limits_rates(self) -> bool:
        """Whether there is a limit of requests or bytes."""
        return self.requests_per_second is not None or self.bytes_per_second is not None


@dataclass(slots=True)
class TokenBucket:
    """A limit of `rate` units in a second. It takes a unit while it is not in debt, whatever its
    size, so a request of more than a second's worth passes, and later ones wait for it."""

    rate: float
    level: float = field(init=False)
    _at_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.level = self.rate * BURST_S

    def wait_s(self, *, now_s: float) -> float:
        """Seconds until it is out of debt; 0 if it is not in debt. `now_s` is monotonic."""
        earned = (now_s - self._at_s) * self.rate
        self.level = min(self.level + earned, self.rate * BURST_S)
        self._at_s = now_s
        return 0.0 if self.level > 0 else max(-self.level / self.rate, WAIT_S_MIN)

    def take(self, amount: float) -> None:
        """Use so many units."""
        self.level -= amount


class Usage:
    """What one principal has used of its quota."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self._requests = _bucket(quota.requests_per_second)
        self._bytes = _bucket(quota.bytes_per_second)

    def exceeded(self, *, now_s: float) -> tuple[str, float] | None:
        """The quota that a request would exceed, and the seconds until it would not; None if there
        is none."""
        for name, bucket in (
            ("requests_per_second", self._requests),
            ("bytes_per_second", self._bytes),
        ):
            if bucket is not None and (wait_s := bucket.wait_s(now_s=now_s)) > 0:
                return name, wait_s
        return None

    def take_request(self, size_bytes: int) -> None:
        """A request was admitted, with a body of this size."""
        if self._requests is not None:
            self._requests.take(1)
        self.take_bytes(size_bytes)

    def take_bytes(self, size_bytes: int) -> None:
        """So many bytes were received or sent."""
        if self._bytes is not None:
            self._bytes.take(size_bytes)


def _bucket(rate: float | None) -> TokenBucket | None:
    return None if rate is None else TokenBucket(rate)
