"""Bugs of consumer groups that the simulation has to find, each planted by itself in a copy."""

from tests.simulation.planted_bugs import planted

_DECISIONS = "messaging/groups/consumer_decisions.py"

BUGS = (
    planted(
        "members-that-vanish-with-a-message-not-counted",
        _DECISIONS,
        'replace(each, member_id="", lost=each.lost + 1)',
        'replace(each, member_id="")',
    ),
    planted(
        "lost-beginnings-forgotten-by-the-next-member",
        _DECISIONS,
        "lost = before.lost if message == before.after else 0",
        "lost = 0",
    ),
    planted(
        "summary-forgets-beginnings",
        _DECISIONS,
        "        yield from self.begun.values()\n",
        "",
    ),
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
        _DECISIONS,
        "self.undecided.setdefault(pointer, []).append(record)",
        "pass",
    ),
    planted(
        "late-commit-sets-an-offset-back",
        _DECISIONS,
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
    planted(
        "start-decided-again-at-each-join",
        _DECISIONS,
        "return sorted({*request.topics} - state.started)",
        "return sorted({*request.topics})",
    ),
    planted(
        "summary-forgets-the-start",
        _DECISIONS,
        "yield StartRecord(topics=tuple(sorted(self.started)), offsets={}, at_ms=0)",
        "pass",
    ),
    planted(
        "start-not-stored",
        _DECISIONS,
        "        for partition, after in record.offsets.items():\n",
        "        for partition, after in ():\n",
    ),
    planted(
        "start-of-partitions-and-not-of-topics",
        _DECISIONS,
        "    return [StartRecord(topics=tuple(topics), offsets=offsets, at_ms=now_ms)] "
        "if topics else []",
        "    return [StartRecord(topics=tuple(topics) if offsets else (), offsets=offsets, "
        "at_ms=now_ms)]",
    ),
)
