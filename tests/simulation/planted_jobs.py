"""Bugs to plant in what jobs ask for: retention holds, and epochs of sinks with their leases."""

from tests.simulation.planted import Change, PlantedBug

JOB_BUGS = (
    PlantedBug(
        "nobody-asks-the-holds-what-is-live",
        (
            Change(
                "messaging/retention/decision.py",
                "        live_from = min((by_ttl, *held))\n",
                "        live_from = by_ttl\n",
            ),
        ),
    ),
    PlantedBug(
        "a-hold-ignores-its-age",
        (
            Change(
                "messaging/retention/decision.py",
                "for each in self.holds if now_ms < each.expires_at_ms)\n",
                "for each in self.holds)\n",
            ),
        ),
    ),
    PlantedBug(
        "a-hold-brings-back-what-has-expired",
        (
            Change(
                "messaging/retention/holds_and_positions.py",
                "        first=max(first, record.log_start, live_from, keepable),\n",
                "        first=max(first, record.log_start, keepable),\n",
            ),
        ),
    ),
    PlantedBug(
        "holds-are-forgotten-in-a-crash",
        (
            Change(
                "messaging/storage/loading.py",
                "replace(record, holds=holds[topic], positions=",
                "replace(record, holds={}, positions=",
            ),
        ),
    ),
    PlantedBug(
        "positions-are-forgotten-in-a-crash",
        (
            Change(
                "messaging/storage/loading.py",
                "holds=holds[topic], positions=positions[topic])",
                "holds=holds[topic], positions={})",
            ),
        ),
    ),
    PlantedBug(
        "a-position-outlives-its-topic",
        (
            Change(
                "messaging/storage/loading.py",
                "isinstance(record, TopicRecord) and record.generation == generation:",
                "isinstance(record, TopicRecord):",
            ),
            Change(
                "messaging/topic_changes.py",
                "                    batch.delete(named_row_key(table, prefix, name))\n",
                "                    pass\n",
            ),
        ),
    ),
    PlantedBug(
        "positions-are-told-before-they-are-durable",
        (
            Change(
                "messaging/retention/holds_and_positions.py",
                "        record = require_topic(self._store, self._state, topic)[1]\n"
                "        return record.generation, dict(sorted(record.positions.items()))\n",
                "        record = require_topic("
                "self._store, self._state, topic)[0].require_decided()\n"
                "        return record.generation, dict(sorted(record.positions.items()))\n",
            ),
        ),
    ),
    PlantedBug(
        "a-truncation-takes-what-is-held",
        (
            Change(
                "messaging/topic_changes.py",
                "    if names and log_start > record.log_start:\n",
                "    if False:\n",
            ),
        ),
    ),
    PlantedBug(
        "the-payloads-of-a-held-reference-are-dropped",
        (
            Change(
                "messaging/retention/decision.py",
                "topic.live_from(now_ms=state.now_ms).timestamp_ms\n",
                "live_from_ms(topic.ttl_s, now_ms=state.now_ms)\n",
            ),
        ),
    ),
    PlantedBug(
        "a-deleted-hold-comes-back-in-a-crash",
        (
            Change(
                "messaging/retention/holds_and_positions.py",
                "batch.delete(named_row_key(HOLDS, found.prefix(record.generation), name))",
                "pass",
            ),
        ),
    ),
    PlantedBug(
        "an-older-run-is-not-fenced",
        (
            Change(
                "tx/sinks.py",
                "    if asked.run_id in sink.fenced:\n",
                "    if False:\n",
            ),
        ),
    ),
    PlantedBug(
        "the-older-run-may-still-commit",
        (
            Change(
                "tx/sinks.py",
                "                await self._completion.invalidate(sink.transaction_id, "
                "InvalidReason.INVALIDATED)\n",
                "                await self._start(asked, lease, client)\n",
            ),
        ),
    ),
    PlantedBug(
        "a-replayed-epoch-commits-twice",
        (
            Change(
                "tx/sinks.py",
                "    if sink.epoch == asked.epoch and has_committed:\n"
                "        return Step.NOTHING\n",
                "    if sink.epoch == asked.epoch and has_committed:\n        return Step.BEGIN\n",
            ),
        ),
    ),
    PlantedBug(
        "a-dropped-epoch-looks-committed",
        (
            Change(
                "tx/state.py",
                "                state=outcome.state,\n",
                "                state=EndedState.COMMITTED,\n",
            ),
        ),
    ),
    PlantedBug(
        "a-renewal-changes-nothing",
        (
            Change(
                "tx/timeouts.py",
                "            )\n        self.begin(opened)\n",
                "            )\n",
            ),
        ),
    ),
    PlantedBug(
        "a-renewed-lease-is-forgotten-in-a-crash",
        (
            Change(
                "tx/timeouts.py",
                "        for opened in in_progress:\n            self.begin(opened)\n",
                "        for opened in in_progress:\n"
                "            one = opened.transaction_id\n"
                "            if opened.lease_ms is not None:\n"
                "                self._ends_ms[one] = one // 1_000_000 + opened.lease_ms\n"
                "                self._deadlines.set(one, self._ends_ms[one])\n",
            ),
        ),
    ),
)
