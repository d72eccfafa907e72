"""Bugs to plant into a copy of the rooms: each has to be found by simulation.

They are the bugs that such a server has in practice: something is acknowledged too early, forgotten
in a crash, shown too soon, or thrown away too soon.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """What is replaced by what, in which file; it stands there once."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug with a name. `history` is the kept one in which somebody first met it."""

    name: str
    changes: tuple[Change, ...]
    history: str | None = None


BUGS = (
    PlantedBug(
        "the-log-is-not-synced",
        (
            Change(
                "tx/wal.py",
                "file.append(data, sync=sync)",
                "file.append(data, sync=False)",
            ),
        ),
    ),
    PlantedBug(
        "writes-are-answered-before-they-are-written",
        (
            Change(
                "messaging/write/group_commit.py",
                "        self._finish(batch)\n",
                "        self._finish(batch)\n        self._answer(writes)\n",
            ),
        ),
    ),
    PlantedBug(
        "ids-follow-a-clock-that-goes-back",
        (
            Change(
                "messaging/storage/store_state.py",
                "if now_ms > last.timestamp_ms:",
                "if now_ms != last.timestamp_ms:",
            ),
        ),
    ),
    PlantedBug(
        "the-mark-of-ids-is-lost-in-a-restart",
        (
            Change(
                "messaging/storage/store_state.py",
                "self.sequencer.raise_above(loaded.last_batch.last)",
                "pass",
            ),
        ),
    ),
    PlantedBug(
        "conflicts-are-not-checked-at-commit",
        (
            Change(
                "tx/commit_and_abort.py",
                "if conflict is not None:",
                "if False:",
            ),
        ),
    ),
    PlantedBug(
        "undecided-rows-are-skipped",
        (
            Change(
                "messaging/read/visibility.py",
                "else Verdict.HOLD",
                "else Verdict.SKIP",
            ),
        ),
    ),
    PlantedBug(
        "rolled-back-rows-are-visible",
        (
            Change(
                "messaging/read/visibility.py",
                "if pointer < 0 or holds(snapshot.invalids, pointer):",
                "pointer = abs(pointer)\n    if holds(snapshot.invalids, pointer):",
            ),
        ),
    ),
    PlantedBug(
        "pointers-are-pruned-while-rows-carry-them",
        (
            Change(
                "tx/invalid_list.py",
                "if self._rows.is_carried(pointer) or ",
                "if ",
            ),
        ),
    ),
    PlantedBug(
        "a-block-is-used-before-it-is-reserved",
        (
            Change(
                "tx/pointer_blocks.py",
                "await self._durable.synced(self._durable.record(edit))",
                "self._durable.record(edit)",
            ),
        ),
    ),
    PlantedBug(
        "what-was-given-back-is-handed-out",
        (
            Change(
                "tx/pointer_blocks.py",
                "        self.clear()\n        self.add(kept)\n        return kept\n",
                "        return kept\n",
            ),
        ),
    ),
    PlantedBug(
        "a-torn-record-is-taken-for-whole",
        (
            Change(
                "tuff/disk/records.py",
                "if crc32(body, crc32(data[offset : offset + 4])) != expected:",
                "if False:",
            ),
        ),
    ),
    PlantedBug(
        "the-sweep-takes-the-living-generation",
        (
            Change(
                "messaging/retention/decision.py",
                "return generation < abs(current) or",
                "return generation <= abs(current) or",
            ),
        ),
    ),
    PlantedBug(
        "a-rollback-touches-the-rows-of-others",
        (
            Change(
                "messaging/write/group_commit.py",
                "if row.tx_pointer != pointer:",
                "if row.tx_pointer is None:",
            ),
            Change(
                "messaging/write/publish.py",
                "first, last = max(entry.first, detail.first), min(entry.last, detail.last)",
                "first, last = detail.first, detail.last",
            ),
        ),
    ),
    PlantedBug(
        "a-snapshot-holds-what-is-only-decided",
        (
            Change(
                "tx/start_and_checkpoint.py",
                "seen = self._durable.state.seen",
                "seen = self._durable.state.lsn",
            ),
        ),
    ),
    PlantedBug(
        "a-commit-that-was-cut-off-stays-open",
        (
            Change(
                "tx/manager.py",
                "cut_off = self._rows.final_pointers() | self._locks.claimed_pointers()",
                "cut_off: set[int] = set()",
            ),
        ),
    ),
    PlantedBug(
        "a-rename-is-not-synced",
        (
            Change(
                "tuff/disk/files.py",
                "    temporary.replace(path)\n    sync_directory(path.parent)\n",
                "    temporary.replace(path)\n",
            ),
        ),
    ),
    PlantedBug(
        "an-abort-does-not-wait-for-its-rows",
        (
            Change(
                "tx/commit_and_abort.py",
                "    if opened.is_short and not has_rows:\n",
                "    if opened.is_short:\n",
            ),
        ),
    ),
    PlantedBug(
        "waiting-polls-are-not-woken",
        (
            Change(
                "messaging/topics.py",
                "            waiter.set()\n",
                "            pass\n",
            ),
        ),
    ),
    PlantedBug(
        "a-refusal-is-recorded-too-late",
        (
            Change(
                "tx/commit_and_abort.py",
                "            self._record_refusal(edit)\n            refused",
                "            await asyncio.sleep(0)\n"
                "            self._record_refusal(edit)\n"
                "            refused",
            ),
        ),
        "refusal-and-ending-at-once",
    ),
    PlantedBug(
        "an-ending-does-not-wait-for-writes",
        (
            Change(
                "tx/write_gates_and_key_locks.py",
                "            try:\n                await _emptied(gate)\n",
                "            try:\n                pass\n",
            ),
        ),
    ),
    PlantedBug(
        "a-can-commit-is-forgotten-in-a-crash",
        (
            Change(
                "tx/conflicts.py",
                "opened.survived_crash and opened.is_short",
                "False and opened.is_short",
            ),
        ),
    ),
    PlantedBug(
        "time-outs-are-not-enforced",
        (
            Change(
                "tx/commit_and_abort.py",
                "        self._invalidate_soon(state.expired(self._now_ms()), ",
                "        self._invalidate_soon(state.expired(0), ",
            ),
        ),
    ),
    PlantedBug(
        "readers-are-never-released",
        (
            Change(
                "process/components.py",
                "self._messaging.rows.published_by(self._now_ms() - self._max_block_ms)",
                "list[int]()",
            ),
        ),
    ),
    PlantedBug(
        "expired-messages-are-shown",
        (
            Change(
                "messaging/retention/decision.py",
                "return max(0, now_ms - ttl_s * 1000 + 1)",
                "return 0",
            ),
        ),
    ),
    PlantedBug(
        "a-deleted-topic-keeps-its-generation",
        (
            Change(
                "messaging/topic_changes.py",
                "return TopicRecord(generation=1 - record.generation, properties=properties)",
                "return TopicRecord(generation=-record.generation, properties=properties)",
            ),
        ),
    ),
    PlantedBug(
        "the-end-of-a-log-is-not-written-again",
        (
            Change(
                "tuff/disk/files.py",
                "        file.write(data)\n        file.flush()\n        os.fdatasync(",
                "        file.flush()\n        os.fdatasync(",
            ),
        ),
        "failed-sync-then-power-cut",
    ),
    PlantedBug(
        "two-recoveries-run-at-once",
        (
            Change(
                "tx/durable_state.py",
                "        async with self._reopening:\n"
                "            if self.status.state is ServiceState.DOWN and not self._is_closed:\n"
                "                await self._reopen()\n",
                "        await self._reopen()\n",
            ),
        ),
        "two-recoveries-at-once",
    ),
    PlantedBug(
        "the-next-id-lies-behind-what-is-served",
        (
            Change(
                "messaging/read/visibility.py",
                "min(number, past_group(query.high_water_mark).to_int() + 1)",
                "number",
            ),
        ),
        "clock-back-behind-an-empty-read",
    ),
    PlantedBug(
        "ids-may-lie-below-a-floor",
        (
            Change(
                "messaging/storage/store_state.py",
                "self.sequencer.raise_above(each.durable.log_start.offset)",
                "pass",
            ),
        ),
        "log-start-ahead-of-a-clock-set-back",
    ),
    PlantedBug(
        "readers-sleep-behind-what-a-failed-log-held",
        (
            Change(
                "tx/message_rows.py",
                "        self._rows.wake_readers(ended)",
                "        pass",
            ),
        ),
        "commit-that-a-failed-log-kept",
    ),
    PlantedBug(
        "transactions-are-recovered-before-messages",
        (
            Change(
                "tx/manager.py",
                "self._may_recover = False",
                "self._may_recover = True",
            ),
        ),
        "service-start-before-messages-are-open",
    ),
    PlantedBug(
        "a-rollback-is-told-of-a-commit-too-early",
        (
            Change(
                "tx/write_permits.py",
                "        self._require_seen(found.lsn)\n        if may_be_invalid:\n",
                "        if not may_be_invalid:\n"
                "            self._require_seen(found.lsn)\n"
                "        if may_be_invalid:\n",
            ),
        ),
        "rollback-beside-a-commit-then-kill",
    ),
    PlantedBug(
        "a-further-can-commit-waits-for-no-disk",
        (
            Change(
                "tx/commit_and_abort.py",
                "if opened.changes is not None and edit.changes:",
                "if False:",
            ),
        ),
        "further-can-commit-lost-alone",
    ),
    PlantedBug(
        "a-clean-stop-loses-who-is-in-progress",
        (
            Change(
                "tx/manager.py",
                "            if not cut_off.isdisjoint(opened.pointers):",
                "            if True:",
            ),
        ),
    ),
)
