"""Settings of consumer groups (protocol §8, `groups.*`)."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The `groups` section; durations are seconds. `share_window`: how many messages of a share
    group may be between the oldest that is not done and the newest that was given out. A group in
    memory takes some 300 bytes for each.

    Raises:
        ValueError: a value out of range; one sentence that names the key.
    """

    session_timeout_s: float = 45.0  # a member that is not heard of for so long is fenced
    heartbeat_interval_s: float = 5.0  # between two heartbeats of a member
    rebalance_timeout_s: float = 300.0  # within which a member has to release partitions
    share_window: int = 100_000  # messages; 30 MB, and 15 minutes of 100 messages a second

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
