"""Bugs that the simulation has to find, each planted by itself in a copy of the server.

They are typical of such a server: something is acknowledged too early, lost in a crash, shown too
early, or deleted too early.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "tuff", "tuff_storage", "kernel", "tx", "messaging", "metadata", "cluster", "access",
    "console", "process",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """A text in a file, where it stands exactly once, and its replacement."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug with a name. `history` is the kept history that found it first."""

    name: str
    changes: tuple[Change, ...]
    history: str | None = None


def planted(
    name: str, file: str, before: str, after: str, history: str | None = None
) -> PlantedBug:
    """A bug that is one change."""
    return PlantedBug(name, (Change(file, before, after),), history)


BUGS = (
    planted(
        "commit-acknowledged-before-the-log-is-synced",
        "tx/wal.py",
        "file.append(data, sync=sync)",
        "file.append(data, sync=False)",
    ),
    planted(
        "publish-acknowledged-before-it-is-written",
        "messaging/write/write_queue.py",
        "        self._finish(batch)\n",
        "        self._finish(batch)\n        self._answer(writes)\n",
    ),
    planted(
        "message-ids-follow-a-clock-that-is-set-back",
        "messaging/log/sequencer.py",
        "if now_ms > last.timestamp_ms:",
        "if now_ms != last.timestamp_ms:",
    ),
    planted(
        "high-water-mark-lost-in-a-restart",
        "messaging/log/state_in_memory.py",
        "self.sequencer.raise_above(loaded.last_batch.last)",
        "pass",
    ),
    planted(
        "conflicts-not-checked-at-commit",
        "tx/transaction_decisions.py",
        "(conflict := state.committers.conflict(opened.transaction, changes)) is not None",
        "(conflict := None) is not None",
    ),
    planted(
        "commits-of-one-write-get-the-ids-of-each-other",
        "messaging/write/publish.py",
        "        details = iter(put)\n",
        "        details = iter(put[::-1])\n",
    ),
    planted(
        "commit-recorded-although-its-rows-failed",
        "tx/state_machine.py",
        "        if isinstance(rows, Exception):\n            lsn",
        "        if isinstance(rows, Exception) and (rows := []):\n            lsn",
    ),
    planted(
        "undecided-rows-skipped",
        "messaging/model/visibility.py",
        "else Verdict.BLOCK",
        "else Verdict.SKIP",
    ),
    planted(
        "rolled-back-rows-visible",
        "messaging/model/visibility.py",
        "if pointer < 0 or holds(snapshot.invalids, pointer):",
        "pointer = abs(pointer)\n    if holds(snapshot.invalids, pointer):",
    ),
    planted(
        "pointer-block-used-before-it-is-durable",
        "tx/pointer_reservation.py",
        "await self._durable.synced(self._durable.record(edit))",
        "self._durable.record(edit)",
    ),
    planted(
        "checksum-of-log-records-not-checked",
        "tuff_storage/disk/records.py",
        "if crc32(body, crc32(data[offset : offset + 4])) != expected:",
        "if False:",
    ),
    planted(
        "retention-deletes-the-current-generation",
        "messaging/model/expiry.py",
        "row.generation < abs(topic.generation) or",
        "row.generation <= abs(topic.generation) or",
    ),
    PlantedBug(
        "rollback-marks-rows-of-other-transactions",
        (
            Change(
                "messaging/model/row_format.py",
                "    if not body.startswith(_SIGNED_POINTER.pack(pointer)):\n        return None\n",
                "",
            ),
            Change(
                "messaging/write/publish.py",
                "first, last = max(entry.first, detail.first), min(entry.last, detail.last)",
                "first, last = detail.first, detail.last",
            ),
        ),
    ),
    planted(
        "snapshot-contains-edits-that-are-not-durable",
        "tx/state_machine.py",
        "state.seen, lease, None if",
        "state.lsn, lease, None if",
    ),
    planted(
        "commit-cut-off-by-a-crash-stays-open",
        "tx/state_machine.py",
        "now_ms, has_final_rows = self._now_ms(), self._rows.final_pointers()",
        "now_ms, has_final_rows = self._now_ms(), set[int]()",
    ),
    planted(
        "rename-not-synced",
        "tuff_storage/disk/files.py",
        "    temporary.replace(path)\n    sync_directory(path.parent)\n",
        "    temporary.replace(path)\n",
    ),
    planted(
        "abort-does-not-wait-for-its-rows",
        "tx/transaction_decisions.py",
        "    if opened.is_short and not has_rows:\n",
        "    if opened.is_short:\n",
    ),
    planted(
        "long-polls-not-woken",
        "messaging/log/topics.py",
        "            waiter.set()\n",
        "            pass\n",
    ),
    planted(
        "conflict-recorded-too-late",
        "tx/state_machine.py",
        "        lsn, state = self._records.record(edit), self._records.state\n",
        "        import asyncio\n"
        "        late = partial(self._refuse_late, edit)\n"
        "        asyncio.get_running_loop().call_soon(self._step, late, call)\n\n"
        "    def _refuse_late(self, edit: Refused, call: Call) -> None:\n"
        "        lsn, state = self._records.record(edit), self._records.state\n",
        "refusal-and-ending-at-once",
    ),
    planted(
        "end-of-a-transaction-does-not-wait-for-its-writes",
        "tx/state_machine.py",
        "        if under_way.has_writes(transaction_id):\n            self._begin_end(call)\n",
        "        if False:\n            self._begin_end(call)\n",
    ),
    planted(
        "can-commit-lost-in-a-crash",
        "tx/transaction_decisions.py",
        "opened.survived_crash and opened.is_short",
        "False and opened.is_short",
    ),
    planted(
        "time-outs-not-enforced",
        "tx/deadlines_and_leases.py",
        " for each in state.expired(now_ms)}",
        " for each in state.expired(0)}",
    ),
    planted(
        "max-block-not-enforced",
        "tx/deadlines_and_leases.py",
        "self._rows.published_by(self._now_ms() - self._max_block_ms)",
        "list[int]()",
    ),
    planted(
        "expired-messages-shown",
        "messaging/model/expiry.py",
        "Offset(max(0, now_ms - self.ttl_s * 1000 + 1), 0)",
        "Offset(0, 0)",
    ),
    planted(
        "deleted-topic-keeps-its-generation",
        "messaging/log/topics.py",
        "return TopicRecord(generation=1 - record.generation, properties=properties)",
        "return TopicRecord(generation=-record.generation, properties=properties)",
    ),
    planted(
        "tail-of-a-failed-log-not-written-again",
        "tuff_storage/disk/files.py",
        "        file.write(data)\n        file.flush()\n        os.fdatasync(",
        "        file.flush()\n        os.fdatasync(",
        "power-cut-behind-a-commit-past-its-deadline",
    ),
    planted(
        "two-recoveries-at-once",
        "tx/durable_state.py",
        "            if self.status.state is ServiceState.DOWN and not is_final:\n"
        "                await self._reopen()\n",
        "            pass\n        await self._reopen()\n",
        "two-recoveries-at-once",
    ),
    planted(
        "next-id-of-a-poll-behind-undecided-rows",
        "messaging/model/visibility.py",
        "min(after, past_row(query.high_water_mark))",
        "after",
        "clock-back-behind-an-empty-read",
    ),
    planted(
        "message-ids-below-the-log-start",
        "messaging/log/state_in_memory.py",
        "self.sequencer.raise_above(each.durable.log_start.offset)",
        "pass",
        "log-start-ahead-of-a-clock-set-back",
    ),
    planted(
        "readers-sleep-behind-transactions-of-a-failed-log",
        "tx/rows_of_ended_transactions.py",
        "        self._rows.wake_readers(ended)",
        "        pass",
        "commit-that-a-failed-log-kept",
    ),
    planted(
        "transactions-recovered-before-messages",
        "tx/service.py",
        "self._may_recover = False",
        "self._may_recover = True",
        "service-start-before-messages-are-open",
    ),
    planted(
        "second-can-commit-not-durable",
        "tx/state_machine.py",
        "lsn if opened.changes is not None and edit.changes else 0",
        "0",
        "further-can-commit-lost-alone",
    ),
    planted(
        "clean-stop-loses-transactions-in-progress",
        "tx/state_machine.py",
        "            elif opened.doubt is not None or has_rows or transaction_id in unsure:",
        "            else:",
    ),
    # Prepared transactions
    planted(
        "time-out-invalidates-a-prepared-transaction",
        "tx/state.py",
        "        self._deadlines.discard(transaction_id, opened.expires_at_ms)\n"
        "        self.open[transaction_id] = prepared",
        "        self.open[transaction_id] = prepared",
    ),
    planted(
        "max-block-invalidates-a-prepared-transaction",
        "tx/deadlines_and_leases.py",
        "            if opened.prepared is None:\n",
        "            if True:\n",
    ),
    planted(
        "prepared-transaction-holds-readers-back-for-ever",
        "tx/state_machine.py",
        "                self._run(SetAside(_to_nobody, opened.transaction_id))\n",
        "                pass\n",
    ),
    planted(
        "messages-that-were-set-aside-do-not-return",
        "messaging/write/transaction_rows.py",
        "for entry in ranges if entry.kind == ASIDE_ROWS})\n",
        "for entry in ranges if False})\n",
    ),
    planted(
        "delayed-messages-of-a-transaction-enter-with-the-first-of-them",
        "messaging/write/transaction_rows.py",
        "min(rows.due_ms)",
        "rows.due_ms[0]",
    ),
    planted(
        "delayed-messages-enter-with-the-first-of-their-publish",
        "messaging/write/publish.py",
        "target.topic.id, min(due_ms)",
        "target.topic.id, due_ms[0]",
    ),
    PlantedBug(
        "delayed-messages-enter-a-second-early",
        (
            Change(
                "messaging/write/delayed_messages.py",
                "if delayed_id.due_ms > now_ms or is_full",
                "if delayed_id.due_ms > now_ms + 1_000 or is_full",
            ),
            Change(
                "messaging/log/delayed_due_times.py",
                "if each.due_ms <= self.by_ms:",
                "if each.due_ms <= self.by_ms + 1_000:",
            ),
        ),
    ),
    planted(
        "commit-settled-before-its-delayed-messages-are-moved",
        "messaging/log/rows_by_transaction.py",
        "MOVED_KINDS = frozenset((ASIDE_ROWS, DELAYED_ROWS))",
        "MOVED_KINDS = frozenset((ASIDE_ROWS,))",
    ),
    planted(
        "messages-that-are-aside-are-forgotten-in-a-restart",
        "messaging/write/write_batch.py",
        "        records += [(aside.key, aside.to_bytes(aside.key)) for aside in written.asides]\n",
        "        pass\n",
    ),
    planted(
        "claim-of-a-prepared-transaction-lost-in-a-restart",
        "tx/state.py",
        "            self.prepared.add(opened)\n",
        "            pass\n",
    ),
    planted(
        "resolve-acknowledged-before-it-is-durable",
        "tx/state_machine.py",
        "            self._answer(call, published, lsn)\n            return\n",
        "            is_resolve = isinstance(call, CommitPrepared)\n"
        "            self._answer(call, published, 0 if is_resolve else lsn)\n"
        "            return\n",
    ),
    planted(
        "prepared-transaction-aborted-by-a-plain-abort",
        "tx/state_machine.py",
        "            if found.prepared is not None and not call.may_be_prepared:\n",
        "            if False:\n",
    ),
    planted(
        "interrupted-prepare-committed-by-recovery",
        "tx/state_machine.py",
        "                yield Invalidated(now_ms, transaction_id, reason, topics)\n",
        "                none = frozenset()\n"
        "                yield Committed(now_ms, transaction_id, none, False, (), topics, None)\n",
    ),
    planted(
        "commit-in-doubt-confirmed-without-its-rows",
        "tx/state_machine.py",
        "            if opened.doubt is not None and has_rows and transaction_id not in unsure:\n",
        "            if opened.doubt is not None and transaction_id not in unsure:\n",
    ),
    planted(
        "commit-in-doubt-confirmed-before-its-record-is-durable",
        "tx/state_machine.py",
        "            if call.doubt_lsn > self._records.decided.seen:\n",
        "            if False:\n",
    ),
    planted(
        "index-rows-of-a-commit-in-doubt-ended-before-its-confirmation-is-durable",
        "tx/rows_of_ended_transactions.py",
        "        self._confirmed.append((lsn, pointers))\n",
        "        self._rows.end_committed(pointers)\n",
    ),
    planted(
        "prepared-transaction-undone-by-recovery",
        "tx/state_machine.py",
        "            if opened.prepared is not None:\n                continue\n            has",
        "            has",
    ),
    # Retention holds, named positions, and the epochs and leases of sinks
    planted(
        "retention-ignores-holds",
        "messaging/model/expiry.py",
        "                live_from = min(live_from, each.first.offset)\n",
        "                pass\n",
    ),
    planted(
        "expired-holds-still-hold",
        "messaging/model/expiry.py",
        "            if now_ms < each.expires_at_ms:\n",
        "            if True:\n",
    ),
    planted(
        "hold-brings-back-expired-messages",
        "messaging/retention/holds_and_positions.py",
        "        first=max(first, record.log_start, live_from, keepable),\n",
        "        first=max(first, record.log_start, keepable),\n",
    ),
    planted(
        "holds-lost-in-a-crash",
        "messaging/log/loading.py",
        "replace(record, holds=holds[topic], positions=",
        "replace(record, holds={}, positions=",
    ),
    planted(
        "positions-lost-in-a-crash",
        "messaging/log/loading.py",
        "holds=holds[topic], positions=positions[topic])",
        "holds=holds[topic], positions={})",
    ),
    PlantedBug(
        "position-outlives-its-topic",
        (
            Change(
                "messaging/log/loading.py",
                "isinstance(record, TopicRecord) and record.generation == generation:",
                "isinstance(record, TopicRecord):",
            ),
            Change(
                "messaging/topic_changes.py",
                "            batch.delete(named_row_key(table, prefix, name))\n",
                "            pass\n",
            ),
        ),
    ),
    planted(
        "position-acknowledged-before-it-is-durable",
        "messaging/retention/holds_and_positions.py",
        "        record = require_log(self._store, self._state, topic)[1]\n"
        "        return record.generation, dict(sorted(record.positions.items()))\n",
        "        record = require_log("
        "self._store, self._state, topic)[0].require_decided()\n"
        "        return record.generation, dict(sorted(record.positions.items()))\n",
    ),
    planted(
        "truncation-ignores-holds",
        "messaging/topic_changes.py",
        "    if names and log_start > record.log_start:\n",
        "    if False:\n",
    ),
    planted(
        "payload-rows-of-a-held-reference-row-deleted",
        "messaging/model/expiry.py",
        "topic.live_from(now_ms=state.now_ms).timestamp_ms\n",
        "max(0, state.now_ms - topic.ttl_s * 1000 + 1)\n",
    ),
    planted(
        "deleted-hold-back-after-a-crash",
        "messaging/retention/holds_and_positions.py",
        "batch.delete(named_row_key(HOLDS, log.prefix(record.generation), name))",
        "pass",
    ),
    planted(
        "older-run-of-a-sink-not-fenced",
        "tx/sinks.py",
        "    if asked.run_id in sink.fenced:\n",
        "    if False:\n",
    ),
    planted(
        "older-run-of-a-sink-commits",
        "tx/sinks.py",
        "                await self._runner.invalidate(sink.transaction_id)\n",
        "                await self._start(asked, lease, client)\n",
    ),
    planted(
        "replayed-epoch-commits-twice",
        "tx/sinks.py",
        "    if sink.epoch == asked.epoch and has_committed:\n        return Step.NOTHING\n",
        "    if sink.epoch == asked.epoch and has_committed:\n        return Step.BEGIN\n",
    ),
    planted(
        "aborted-epoch-looks-committed",
        "tx/state.py",
        "                state=outcome.state,\n",
        "                state=EndedState.COMMITTED,\n",
    ),
    planted(
        "lease-renewal-has-no-effect",
        "tx/deadlines_and_leases.py",
        "            )\n        self.begin_lease(opened)\n",
        "            )\n",
    ),
    planted(
        "renewed-lease-lost-in-a-crash",
        "tx/deadlines_and_leases.py",
        "        for opened in in_progress:\n            self.begin_lease(opened)\n",
        "        for opened in in_progress:\n"
        "            one = opened.transaction_id\n"
        "            if opened.lease_ms is not None:\n"
        "                self._ends_ms[one] = one // 1_000_000 + opened.lease_ms\n"
        "                self._lease_deadlines.set(one, self._ends_ms[one])\n",
    ),
    # A disk that fails or hangs
    planted(
        "directory-not-synced-at-recovery",
        "tx/recovery.py",
        "    sync_directory(directory)\n",
        "",
        "log-whose-name-was-never-synced",
    ),
    planted(
        "log-file-of-a-failed-roll-not-removed",
        "tx/wal.py",
        "            await self._in_thread(partial(remove_file, path))\n",
        "            pass\n",
    ),
    planted(
        "snapshot-older-than-the-log-after-it",
        "tx/durable_state.py",
        "        image = self.decided.image()\n",
        "        image = self.decided.image()\n        await asyncio.sleep(0)\n",
    ),
    planted(
        "time-out-during-a-commit-that-writes-rows",
        "tx/state_machine.py",
        "if not self._under_way.has_claim(opened.transaction_id):\n                expired",
        "if True:\n                expired",
    ),
    planted(
        "commit-continues-after-the-log-failed",
        "tx/state_machine.py",
        "if self._records.recovery_count != recovery_count:\n                self._answer",
        "if False:\n                self._answer",
    ),
    # Readers that sleep, and readers of rows that are being marked
    planted(
        "end-of-a-transaction-does-not-wake-its-readers",
        "messaging/write/transaction_rows.py",
        "                    waiter.set()",
        "                    pass",
        "reader-asleep-in-a-transaction-that-ended",
    ),
    planted(
        "read-only-commit-does-not-wake-its-readers",
        "tx/state_machine.py",
        "            self._ended_rows.wake_once_durable(lsn, transaction_id)\n",
        "            pass\n",
    ),
    planted(
        "readers-in-a-lost-transaction-not-woken-after-recovery",
        "tx/rows_of_ended_transactions.py",
        ", *rows.reading_pointers()}",
        "}",
        "reader-asleep-in-what-a-failed-log-lost",
    ),
    planted(
        "expiry-of-a-blocking-row-wakes-no-reader",
        "messaging/read/poll.py",
        "min(deadline_s, began_s + left_s)",
        "deadline_s",
        "reader-asleep-behind-a-row-that-expires",
    ),
    planted(
        "release-of-a-hold-wakes-no-reader",
        "messaging/retention/holds_and_positions.py",
        "        batch.touch(topic)\n",
        "",
        "reader-asleep-behind-a-hold-that-is-let-go",
    ),
    PlantedBug(
        "longer-ttl-applies-only-once-durable",
        (
            Change(
                "messaging/log/topics.py",
                "return replace(rule, pending=decided.rule)",
                "return replace(rule, holds=(*rule.holds, *decided.holds.values()))",
            ),
            # One that sleeps would begin anew, and a reply that was given can't be held against
            # what the time to live is later.
            Change(
                "messaging/read/poll.py",
                "            if query.live_from < live_from:\n",
                "            if False:\n",
            ),
        ),
        "ttl-made-longer-while-messages-expire",
    ),
    planted(
        "splits-leave-rows-out",
        "messaging/read/offsets_and_splits.py",
        "zip([start, *ends], ends, ",
        "zip([start, *ends], [*(MessageId(*each.offset) for each in ends[:-1]), *ends[-1:]], ",
    ),
    planted(
        "end-offset-behind-undecided-rows",
        "messaging/read/offsets_and_splits.py",
        "verdict(query, offset, row) is Verdict.BLOCK",
        "False",
    ),
    planted(
        "publish-marked-rolled-back-in-parts",
        "messaging/read/poll.py",
        "            return replace(snapshot, invalids=PointerList((*snapshot.invalids, *own)))\n",
        "            return snapshot\n",
        "publish-marked-in-two-batches",
    ),
)

# One seed in some thousand finds these, in 10,000 the last but one, and in 700,000 the last; their
# histories find them each time.
RARE_BUGS = (
    planted(
        "invalid-pointers-pruned-while-rows-have-them",
        "tx/invalid_list.py",
        "if self._rows.is_carried(pointer) or ",
        "if ",
        "invalid-pointer-cleared-while-rows-have-it",
    ),
    planted(
        "rollback-learns-of-a-commit-before-it-is-durable",
        "tx/write_permits.py",
        "        self._require_seen(found.lsn)\n        if may_be_invalid:\n",
        "        if not may_be_invalid:\n"
        "            self._require_seen(found.lsn)\n"
        "        if may_be_invalid:\n",
        "rollback-beside-a-commit-then-kill",
    ),
    planted(
        "prepare-reported-before-it-is-durable",
        "tx/state_machine_runner.py",
        "            await self._durable.synced_in_time(found.prepared.lsn)\n",
        "            pass\n",
        "prepare-asked-for-before-a-power-cut",
    ),
    planted(
        "read-switches-from-the-store-to-the-tail-cache",
        "messaging/read/poll.py",
        "result = self._state.tail_cache.read(query) if may_be_cached else None",
        "result = self._state.tail_cache.read(query)",
        "read-that-began-in-the-store-went-on-in-memory",
    ),
    planted(
        "what-was-rolled-back-returns",
        "messaging/write/write_batch.py",
        "        is_in_run = new_value is not None\n",
        "        if not runs:\n"
        "            runs.append((offset_in(key), offset_in(key)))\n"
        "        is_in_run = True\n",
        "rollback-then-set-aside",
    ),
    planted(
        "pointer-block-recorded-in-the-message-store-before-it-is-durable",
        "process/component_link.py",
        "            await self._messaging.record_store_id(store_id)\n",
        "            self._messaging.rows.note_reserved(\n"
        "                self._transactions.image().highest_reserved\n"
        "            )\n"
        "            await self._messaging.record_store_id(store_id)\n",
        "mark-beside-a-block-that-is-lost",
    ),
)


def has_its_place(bug: PlantedBug) -> bool:
    """Whether each text that it replaces stands exactly once in its file."""
    sources = [(ROOT / change.file).read_text("utf-8") for change in bug.changes]
    return all(
        source.count(change.before) == 1
        for source, change in zip(sources, bug.changes, strict=True)
    )


def plant(bug: PlantedBug, directory: Path) -> None:
    """Copy the server and the simulation, with this bug."""
    assert has_its_place(bug), bug.name
    for name in COPIED:
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        ROOT / "tests/simulation",
        directory / "tests/simulation",
        ignore=shutil.ignore_patterns("__pycache__", "test_*", "histories"),
    )
    (directory / "tests/cluster").mkdir()
    shutil.copy(ROOT / "tests/cluster/shared_store.py", directory / "tests/cluster")
    for change in bug.changes:
        copy = directory / change.file
        source = copy.read_text("utf-8")  # which may have another change of this bug already
        copy.write_text(source.replace(change.before, change.after), "utf-8")


def search_output(directory: Path, *arguments: str, seed_count: int) -> str:
    """The output of the simulation in this copy, which ends at the first seed that fails."""
    return _output(directory, "--until-one-fails", "--seeds", str(seed_count), *arguments)


def replay_output(history: Path, directory: Path) -> str:
    """The output of the simulation in this copy for a history."""
    return _output(directory, "--replay", str(history))


def first_failure(directory: Path, module: str, *, seed_count: int, event_count: int) -> str:
    """The first seed that fails, of a simulation in this copy that has `failures`, and why."""
    program = (
        f"{_ONLY_THE_COPY}from {module} import failures; "
        f"print(next(failures(range({seed_count}), {event_count}), 'nothing'))"
    )
    arguments = [sys.executable, "-P", "-c", program]
    return subprocess.run(
        arguments, cwd=directory, capture_output=True, check=True, text=True
    ).stdout


def _output(directory: Path, *arguments: str) -> str:
    program = [sys.executable, "-P", "-c", _START, *arguments]
    done = subprocess.run(program, cwd=directory, capture_output=True, check=False)
    assert not done.stderr, done.stderr.decode()
    return done.stdout.decode()


# Only the copy is on the path, however the project itself was installed.
_ONLY_THE_COPY = "import sys; sys.path.insert(0, '.'); "
_START = f"{_ONLY_THE_COPY}from tests.simulation.__main__ import main; sys.exit(main(sys.argv[1:]))"
