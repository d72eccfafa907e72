"""Settings of the message store and of consumer groups (protocol §8, `messaging.*`, `groups.*`)."""

from dataclasses import dataclass, fields

from messaging.log.topics import TTL_S_MAX
from tuff.protocol.errors import InvalidNameError
from tuff.protocol.ids import TopicId

SYSTEM_NAMESPACE = "system"
STORES = ("leveldb", "hbase", "memory")
NUMBERED_COUNT_MAX = 10_000  # topics that one `name:N` may make; more is a typing error


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagingSettings:
    """The `messaging` section; durations are seconds.

    Raises:
        ValueError: a value out of range; one sentence that names the key.
    """

    store: str = "leveldb"  # which engine
    default_ttl: int = 604_800  # seconds; of a topic whose properties name no ttl
    max_ttl: int = TTL_S_MAX  # seconds; no topic may name a longer one
    cleanup_interval_s: float = 60.0  # between two retention passes
    poll_limit_max: int = 10_000  # messages; keeps a JSON reply under 16 MiB at 1 KiB payloads
    poll_bytes_max: int = (
        8_388_608  # bytes of payloads and attributes of one reply; its first message always fits
    )
    tail_bytes_max: int = 16_777_216  # bytes of newest rows kept in memory; 0 keeps none
    max_block_s: float = 30.0  # a transaction may block readers for so long
    hold_max_s: float = 2_592_000.0  # longest life of a retention hold, unless it is renewed
    system_topics: tuple[str, ...] = ()  # created at the start; `name:3` makes name0 to name2
    archive_directory: str = ""  # reads that start before the log continue there; empty: nowhere
    observer_directory: str = ""  # where region observers find the state; empty: no observers

    def __post_init__(self) -> None:
        _require("store", " or ".join(STORES), self.store, is_met=self.store in STORES)
        _require(
            "max_ttl",
            f"whole seconds from 1 to {TTL_S_MAX}",
            self.max_ttl,
            is_met=1 <= self.max_ttl <= TTL_S_MAX,
        )
        _require(
            "default_ttl",
            f"whole seconds from 1 to messaging.max_ttl, {self.max_ttl}",
            self.default_ttl,
            is_met=1 <= self.default_ttl <= self.max_ttl,
        )
        for name in ("cleanup_interval_s", "max_block_s", "hold_max_s"):
            value = getattr(self, name)
            key = name.removesuffix("_s")
            _require(key, "more than 0 seconds", value, is_met=0 < value < float("inf"))
        for name in ("poll_limit_max", "poll_bytes_max"):
            value = getattr(self, name)
            _require(name, "1 or more", value, is_met=value >= 1)
        _require(
            "observer_directory",
            "for messaging.store=hbase, since no other store has region observers",
            self.observer_directory,
            is_met=not self.observer_directory or self.store == "hbase",
        )
        _require(
            "tail_bytes_max", "0 or more", self.tail_bytes_max, is_met=self.tail_bytes_max >= 0
        )
        self.system_topic_ids()

    @property
    def kept_s_max(self) -> float:
        """The most seconds that a message is kept, by time to live and holds together."""
        return self.max_ttl + self.hold_max_s

    def system_topic_ids(self) -> list[TopicId]:
        """The topics to create at the start, in the order they were named."""
        return [topic for entry in self.system_topics for topic in _expanded(entry.strip())]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The `groups` section; durations are seconds. `share_window`: how many messages of a share
    group may be leased, wait for a retry or be blocked by their key. A group in memory takes some
    400 bytes for each.

    Raises:
        ValueError: a value out of range; one sentence that names the key.
    """

    session_timeout_s: float = 45.0  # a member that is not heard of for so long is fenced
    heartbeat_interval_s: float = 5.0  # between two heartbeats of a member
    rebalance_timeout_s: float = 300.0  # within which a member has to release partitions
    share_window: int = 100_000  # messages; 40 MB
    # A consumer group without members is deleted after so long; Kafka has seven days, too.
    retention_s: float = 604_800.0

    def __post_init__(self) -> None:
        if self.share_window < 1:
            raise ValueError(f"groups.share_window is 1 or more, not {self.share_window}")
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 < value < float("inf"):
                key = each.name.removesuffix("_s")
                raise ValueError(f"groups.{key} is more than 0 seconds, not {value!r}")
        if self.heartbeat_interval_s >= self.session_timeout_s:
            raise ValueError(
                "groups.heartbeat_interval is less than groups.session_timeout, "
                f"{self.session_timeout_s} s, not {self.heartbeat_interval_s}"
            )


def _expanded(entry: str) -> list[TopicId]:
    name, colon, count = entry.rpartition(":")
    try:
        if not colon:
            return [TopicId(SYSTEM_NAMESPACE, entry)]
        number = int(count) if count.isascii() and count.isdigit() and len(count) <= 9 else 0
        rule = f"a name, or name:N with N from 1 to {NUMBERED_COUNT_MAX}, for each entry"
        _require("system_topics", rule, entry, is_met=1 <= number <= NUMBERED_COUNT_MAX)
        return [TopicId(SYSTEM_NAMESPACE, f"{name}{index}") for index in range(number)]
    except InvalidNameError as error:
        raise ValueError(f"messaging.system_topics: {error.detail}") from None


def _require(key: str, rule: str, value: object, *, is_met: bool) -> None:
    if not is_met:
        raise ValueError(f"messaging.{key} is {rule}, not {value!r}")
