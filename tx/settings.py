"""The settings of the transaction room, `tx.*` (protocol §8)."""

from dataclasses import dataclass

DURATION_S_MAX = 10 * 365 * 86_400.0  # seconds; ten years, so that no sum of times overflows
COUNT_MAX = 1 << 31  # of anything that is counted in a setting

# Internal limits.
CLIENT_LENGTH_MAX = 256  # characters of a client's name; it stands in every record and error
REQUEST_ID_LENGTH_MAX = 128  # characters (protocol §5.2)
OPEN_COUNT_MAX = 1_000_000  # transactions in progress; some 1 GiB with their change sets empty
PENDING_EDITS_MAX = 100_000  # edits that wait for the disk; more are refused as overload
BLOCK_COUNT_MIN = 64  # pointers of a reserved block; what a crash may waste
BLOCK_COUNT_MAX = 4096  # pointers; 0.2 s of 20,000 starts a second
BLOCK_SECONDS = 0.2  # of the recent rate of starts; a renewal takes a small part of that
RETRY_INTERVAL_MS = 1_000  # between two attempts to come back from a failed log
PRUNE_INTERVAL_MS = 1_000  # between two looks at the invalid list


class InvalidSettingError(ValueError):
    """A setting is out of range; the sentence names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Durations are in seconds and may be fractions.

    Raises:
        InvalidSettingError: a value is out of range.
    """

    enabled: bool = True
    default_timeout: float = 30.0
    long_timeout: float = 86_400.0
    max_timeout: float = 86_400.0
    snapshot_interval: float = 300.0
    snapshot_retain: int = 10
    change_set_count_max: int = 100_000
    change_set_bytes_max: int = 16_777_216
    outcome_retention: float = 900.0
    ending_timeout: float = 10.0
    prune_invalid: bool = False

    def __post_init__(self) -> None:
        for name in (
            "default_timeout",
            "long_timeout",
            "max_timeout",
            "snapshot_interval",
            "ending_timeout",
        ):
            self._require(name, 0.001)
        self._require("outcome_retention", 0)
        for name in ("snapshot_retain", "change_set_count_max", "change_set_bytes_max"):
            self._require(name, 1, COUNT_MAX)
        if self.default_timeout > self.max_timeout:
            raise InvalidSettingError(
                f"tx.default_timeout is {self.default_timeout:g}, above tx.max_timeout, which is "
                f"{self.max_timeout:g}"
            )

    def _require(self, name: str, minimum: float, maximum: float = DURATION_S_MAX) -> None:
        value = getattr(self, name)
        if not minimum <= value <= maximum:
            raise InvalidSettingError(
                f"tx.{name} is {value!r}: it takes {minimum:g} to {maximum:.0f}"
            )
