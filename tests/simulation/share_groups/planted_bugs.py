"""Bugs of share groups that the simulation has to find, each planted by itself in a copy."""

from tests.simulation.planted_bugs import planted

_STATE = "messaging/groups/share_decisions.py"
_GROUPS = "messaging/groups/share_coordinator.py"
_READS = "messaging/groups/share_reads.py"
_LOGS = "messaging/groups/group_logs.py"

BUGS = (
    planted(
        "late-acknowledgement-counts",
        _STATE,
        "            return token.number == message.delivery\n",
        "            return True\n",
    ),
    planted(
        "earlier-epoch-counts-after-a-delivery",
        _STATE,
        "return token.epoch < self.epoch and message.delivery == 0",
        "return token.epoch < self.epoch",
    ),
    planted(
        "tokens-repeat-after-a-load",
        _GROUPS,
        "epoch=epoch.to_int())",
        "epoch=1)",
    ),
    planted(
        "release-leaves-the-token",
        _STATE,
        "        message.delivery = self._deliveries_count  # its token is of no use any more\n",
        "",
    ),
    planted(
        "lease-forgotten",
        _STATE,
        "            and message.phase is Phase.AVAILABLE\n            and message_id not in",
        "            and message.phase is not Phase.WAITING\n            and message_id not in",
    ),
    planted(
        "lease-that-never-ends",
        _STATE,
        "        heapq.heappush(self._times, (until_ms, message_id))\n",
        "",
    ),
    planted(
        "summary-without-messages-of-no-key",
        _STATE,
        "            *(WindowRecord(ids=tuple(ids)) for ids in _parts(of_no_key)),\n",
        "",
    ),
    planted(
        "summary-without-what-is-done-behind-the-window",
        _STATE,
        "_parts(sorted(self.ahead))",
        "_parts([])",
    ),
    planted(
        "summary-without-attempts",
        _STATE,
        "_tried_records([*tried, *self._tries.values()])",
        "_tried_records([])",
    ),
    planted(
        "attempts-and-delays-forgotten-at-a-load",
        _STATE,
        "                self._tries[tries.id] = tries\n",
        "",
    ),
    planted(
        "delays-forgotten-at-a-load",
        _STATE,
        "        if tries.due_ms:\n",
        "        if False:\n",
    ),
    planted(
        "release-that-is-not-written",
        _STATE,
        "            *_tried_records(tried),\n",
        "",
    ),
    planted(
        "unbegun-message-counts-as-an-attempt",
        _STATE,
        "        if each.attempt in (AttemptReport.BEGUN, None):\n",
        "        if True:\n",
    ),
    planted(
        "death-of-a-worker-is-no-attempt",
        _STATE,
        "            message.attempts += 1 + message.is_suspect\n",
        "",
    ),
    planted(
        "message-that-may-have-killed-is-given-out-with-others",
        _STATE,
        "                message.is_alone = True\n                message.is_suspect",
        "                message.is_suspect",
    ),
    planted(
        "key-order-broken",
        _STATE,
        "            and self._is_oldest(message_id)\n        )\n",
        "        )\n",
    ),
    planted(
        "key-stays-blocked",
        _STATE,
        "        if of_key.ids:\n            self._note_available(of_key.ids[0])\n"
        "        elif of_key.behind is None:\n            del",
        "        if not of_key.ids and of_key.behind is None:\n            del",
    ),
    planted(
        "further-messages-of-a-key-forgotten",
        _STATE,
        "        elif of_key.behind is None:\n            del self._keys[message.key]\n",
        "        else:\n            del self._keys[message.key]\n"
        "            self._further.discard(message.key)\n",
    ),
    planted(
        "summary-without-further-messages-of-a-key",
        _STATE,
        "        if record.key is not None and record.behind is not None:\n",
        "        if False:\n",
    ),
    planted(
        "what-was-done-of-a-key-after-the-summary-forgotten",
        _STATE,
        "        if message_id not in self._messages and message_id > self._seen_to:\n",
        "        if message_id > self.read_to:\n",
    ),
    planted(
        "undecided-acceptance-given-out",
        _STATE,
        "            and message_id not in self._undecided\n",
        "",
    ),
    planted(
        "acceptance-of-an-open-transaction-forgotten-at-a-load",
        _STATE,
        "            self._undecided |= dict.fromkeys(record.ids, record.pointer)\n",
        "            if self.read_to > record.ids[0]:\n"
        "                self._undecided |= dict.fromkeys(record.ids, record.pointer)\n",
    ),
    planted(
        "aborted-acceptance-counts",
        _LOGS,
        "is_committed=first.to_bytes() in committed)",
        "is_committed=True)",
    ),
    planted(
        "two-transactions-accept",
        _STATE,
        "            is_same = undecided == pointer or each.action is LeaseAction.RENEW\n",
        "            is_same = True\n",
    ),
    planted(
        "second-transaction-repeats-the-first",
        _STATE,
        "if is_repeated and pointer is None else",
        "if is_repeated else",
    ),
    planted(
        "undecided-message-passed",
        _READS,
        "replace(poll, isolation=Isolation.COMMITTED)",
        "poll",
    ),
    planted(
        "message-that-is-not-there-yet-is-forgotten",
        _READS,
        "if each <= result.next_id]",
        "]",
    ),
    planted(
        "log-truncated-before-an-open-transaction",
        _LOGS,
        "min([published.first, *group.undecided.values()])",
        "published.first",
    ),
)
