"""Bugs of consumer groups that the simulation has to find, each planted by itself in a copy."""

from tests.simulation.planted_bugs import planted

_DECISIONS = "messaging/groups/decisions.py"
_STATE = "messaging/groups/state.py"

BUGS = (
    planted(
        "partition-given-out-before-its-release",
        _DECISIONS,
        "if each not in state.owners]\n",
        "if True]\n",
    ),
    planted(
        "late-heartbeat-releases",
        _DECISIONS,
        "        and reported.group_epoch >= epoch\n",
        "",
    ),
    planted(
        "commit-with-an-epoch-before-the-assignment",
        _DECISIONS,
        "if current.assigned.get(each, epoch + 1) > epoch)",
        "if each not in current.assigned)",
    ),
    planted(
        "offsets-of-open-transactions-forgotten",
        _STATE,
        "self.undecided.setdefault(record.pointer, []).append(record)",
        "pass",
    ),
    planted(
        "late-commit-sets-an-offset-back",
        _STATE,
        "if before is None or before.after < record.after:",
        "if True:",
    ),
    planted(
        "short-sessions",
        _DECISIONS,
        "self.ends_ms[member_id] = now_ms + self.session_timeout_ms",
        "self.ends_ms[member_id] = now_ms + self.session_timeout_ms // 3",
    ),
    planted(
        "new-partitions-not-noticed",
        _DECISIONS,
        "    if state.partitions != _subscribed(state, partitions):\n"
        "        _retarget(draft, partitions)\n",
        "",
    ),
    planted(
        "everything-is-revoked-at-a-rebalance",
        _DECISIONS,
        "    for partition in assigned.keys() - target:\n",
        "    for partition in assigned.keys() if state.epoch > current.epoch else ():\n",
    ),
)
