"""The settings `tx.*` of the transaction service (protocol §8), and its internal limits."""

from dataclasses import dataclass, fields

DURATION_S_MAX = 10 * 365 * 86_400.0  # seconds; ten years, so that no sum of times overflows
COUNT_MAX = 1 << 31  # the highest count that a setting takes
_MAY_BE_ZERO = frozenset({"outcome_retention_s", "prepared_alarm_s"})

# Internal limits.
CLIENT_LENGTH_MAX = 256  # characters of a client's name; it stands in every record and error
REQUEST_ID_LENGTH_MAX = 128  # characters (protocol §5.2)
WITHDRAWN_COUNT_MAX = 10_000  # starts that are remembered as withdrawn; some 1.5 MiB
OPEN_COUNT_MAX = 1_000_000  # transactions in progress; some 1 GiB with their change sets empty
BATCH_COUNT_MAX = 8_192  # edits of one log batch; bounds the memory and the time of one write
UNWANTED_S_MAX = 0.005  # seconds until an edit that no caller waits for is written, without a sync
PENDING_EDITS_MAX = 100_000  # edits that wait for the disk; more are refused as overload
BLOCK_COUNT_MIN = 4  # pointers of a reserved block; each may become invalid by a crash
BLOCK_COUNT_MAX = 4096  # pointers; 0.2 s of 20,000 starts a second
BLOCK_GROWTH_MAX = 4  # times the pointers handed out since the previous block was reserved
BLOCK_STALE_MS = 1_000  # after an idle time, pointers reserved that long ago are passed over
BLOCK_SECONDS = 0.2  # of the recent rate of starts; a renewal takes a small part of that
RETRY_INTERVAL_MS = 1_000  # before the first attempt to come back from a failed disk; doubles
RETRY_INTERVAL_MS_MAX = 30_000  # between two attempts; each leaves a file or two behind
LOGGED_COUNT_MAX = 250_000  # edits behind a snapshot; a start replays some 50,000 of them a second
FULL_LOG_INTERVAL_MS = 10_000  # between two snapshots that are taken because of that count
PRUNE_INTERVAL_MS = 1_000  # between two prunings of the invalid list
PRUNED_COUNT_MAX = 10_000  # transactions that one pruning looks at; some 20 ms


class InvalidSettingError(ValueError):
    """A setting is out of range; the sentence names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Durations are in seconds and may be fractions; a key is the name of a field, less the `_s`.

    Raises:
        InvalidSettingError: a value is out of range.
    """

    enabled: bool = True
    default_timeout_s: float = 30.0
    long_timeout_s: float = 86_400.0
    max_timeout_s: float = 86_400.0
    lease_max_s: float = 3_600.0
    sinks_max: int = 10_000
    snapshot_interval_s: float = 300.0
    snapshot_retain: int = 10
    change_set_count_max: int = 100_000
    change_set_bytes_max: int = 16_777_216
    outcome_retention_s: float = 900.0
    ending_timeout_s: float = 10.0
    prune_invalid: bool = False
    prepared_max: int = 10_000
    prepared_alarm_s: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.type is float:
                self._require(each.name, 0 if each.name in _MAY_BE_ZERO else 0.001, DURATION_S_MAX)
            elif each.type is int:
                self._require(each.name, 1, COUNT_MAX)
        if self.default_timeout_s > self.max_timeout_s:
            raise InvalidSettingError(
                f"tx.default_timeout is {self.default_timeout_s:g}, above tx.max_timeout, which is "
                f"{self.max_timeout_s:g}"
            )

    def _require(self, name: str, minimum: float, maximum: float) -> None:
        value = getattr(self, name)
        if not minimum <= value <= maximum:
            raise InvalidSettingError(
                f"tx.{name.removesuffix('_s')} is {value!r}: it takes {minimum:g} to {maximum:.0f}"
            )
