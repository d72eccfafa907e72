"""The bugs to plant: where, which text becomes which, and the tests that have to notice.

A text has to stand exactly once in its file, so that a rewrite can't leave a bug out unnoticed.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug. `tests` are named as pytest names them; each of them has to fail with it."""

    bug: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]


MUTANTS: Sequence[Mutant] = (
    # Transactions
    Mutant(
        "a commit is acknowledged before its sync",
        "tx/log.py",
        "        if lsn <= self.durable_lsn:\n            return\n",
        "        if lsn <= self._last_lsn:\n            self.want(lsn)\n            return\n",
        ("tests/tx/test_endings.py::test_a_commit_waits_for_its_sync_and_a_start_for_nothing",),
    ),
    Mutant(
        "conflicts are not looked for",
        "tx/conflicts.py",
        "            and not transaction.is_visible(commit.transaction_id)\n",
        "            and False\n",
        (
            "tests/tx/test_state.py::test_a_commit_that_was_pending_at_a_start_conflicts_and_stays_invisible",
        ),
    ),
    Mutant(
        "a commit that was refused passes when it is repeated",
        "tx/state.py",
        "            self.open[edit.transaction_id] = replace(opened, conflict=edit.conflict)\n",
        "            pass\n",
        ("tests/tx/test_endings.py::test_a_conflict_is_final_for_every_call",),
    ),
    Mutant(
        "a long transaction takes part in conflicts",
        "tx/decisions.py",
        "    if not opened.is_short:\n        return frozenset()\n    every",
        "    every",
        (
            "tests/http/test_transaction_commit.py::test_long_transactions_take_no_part_in_conflicts",
        ),
    ),
    Mutant(
        "a deadline is not looked at by a commit",
        "tx/endings.py",
        "        is_late = self._now_ms() >= found.expires_at_ms\n",
        "        is_late = False\n",
        ("tests/tx/test_endings.py::test_a_decision_looks_at_the_deadline_itself",),
    ),
    Mutant(
        "claims of others are not waited for",
        "tx/endings.py",
        "            if holder is None:\n                break\n",
        "            break\n",
        ("tests/tx/test_endings.py::test_a_claim_holds_equal_changes_and_every_other_ending",),
    ),
    Mutant(
        "a commit does not wait for writes that passed the gate",
        "tx/gates.py",
        "            try:\n                await _emptied(gate)\n",
        "            try:\n                pass\n",
        ("tests/tx/test_endings.py::test_a_commit_waits_for_writes_that_passed_the_gate",),
    ),
    Mutant(
        "a checkpoint does not wait for its sync",
        "tx/starts.py",
        "        await self._endings.durable_soon(lsn)\n        return checkpointed\n",
        "        return checkpointed\n",
        ("tests/tx/test_starts.py::test_a_checkpoint_waits_for_its_sync",),
    ),
    Mutant(
        "pointers are handed out before their block is durable",
        "tx/starts.py",
        "            await self._ledger.durable(self._ledger.record(edit))\n",
        "            self._ledger.record(edit)\n",
        ("tests/tx/test_starts.py::test_a_start_that_finds_no_pointer_waits_for_the_renewal",),
    ),
    Mutant(
        "snapshots read what was decided and is not durable",
        "tx/state.py",
        "            self._pending.append((self.lsn, change))\n\n    def _abort_invalid",
        "            self.view = self.view.after([change])\n\n    def _abort_invalid",
        ("tests/tx/test_state.py::test_an_ending_is_seen_only_once_it_is_durable",),
    ),
    Mutant(
        "a long transaction that became invalid moves the read pointer",
        "tx/state.py",
        "            read_pointer=0 if invalidated and not opened.is_short else pointers[-1],\n",
        "            read_pointer=pointers[-1],\n",
        ("tests/tx/test_state.py::test_the_read_pointer_ignores_long_ones_that_became_invalid",),
    ),
    Mutant(
        "pointers that a crash left reserved are not lost",
        "tx/state.py",
        "            self.invalid = with_all(self.invalid, lost)\n",
        "",
        (
            "tests/tx/test_state.py::test_what_a_crash_leaves_reserved_is_lost_and_pointers_go_on_above",
        ),
    ),
    Mutant(
        "a commit that was cut off between its rows and its record stays open",
        "tx/resumption.py",
        "            if not cut_off.isdisjoint(opened.pointers):\n",
        "            if False:\n",
        (
            "tests/tx/test_recovery.py::test_a_commit_with_rows_and_without_a_record_is_invalid_after_a_crash",
        ),
    ),
    Mutant(
        "a tail that was durable is taken for a torn one",
        "tx/logfile.py",
        "            if found.offset < proven:\n"
        "                raise damaged(name, found.offset, found.reason)\n"
        "            break\n",
        "            proven = 0\n            break\n",
        (
            "tests/tx/test_files.py::test_damage_in_an_idle_log_keeps_the_service_down_until_it_is_repaired",
        ),
    ),
    Mutant(
        "missing files are an empty beginning",
        "tx/recovery.py",
        "        if mark is not None:\n            raise DamagedFilesError(\n"
        '                f"{directory} holds no',
        "        if False:\n            raise DamagedFilesError(\n"
        '                f"{directory} holds no',
        ("tests/tx/test_files.py::test_missing_files_are_damage_and_never_an_empty_beginning",),
    ),
    Mutant(
        "a pointer leaves the invalid list while rows carry it",
        "tx/inquiries.py",
        "        return self._rows.is_carried(pointer) or self._gates.has_writes(owner)\n",
        "        return self._gates.has_writes(owner)\n",
        ("tests/tx/test_runs.py::test_pruning_takes_off_only_what_no_row_carries",),
    ),
    Mutant(
        "a run with a request id that ran before runs again",
        "tx/runs.py",
        "            if outcome is not None:\n                await",
        "            if False:\n                await",
        ("tests/tx/test_runs.py::test_a_run_is_one_transaction_and_its_request_id_runs_once",),
    ),
    # Messages
    Mutant(
        "a clock that goes back takes the ids with it",
        "messaging/sequence.py",
        "        if now_ms > last.timestamp_ms:\n",
        "        if now_ms != last.timestamp_ms:\n",
        ("tests/messaging/test_sequence.py::test_a_clock_that_goes_back_keeps_the_last_timestamp",),
    ),
    Mutant(
        "an undecided row does not hold a reader",
        "messaging/visibility.py",
        "else Verdict.HOLD\n",
        "else Verdict.SKIP\n",
        (
            "tests/messaging/test_publishing.py::test_a_committed_reader_is_held_by_an_undecided_publish",
        ),
    ),
    Mutant(
        "rows that were rolled back are shown",
        "messaging/visibility.py",
        "    if tx_pointer < 0 or holds(snapshot.invalids, tx_pointer):\n",
        "    if holds(snapshot.invalids, abs(tx_pointer)):\n",
        (
            "tests/messaging/test_endings.py::test_marked_rows_are_hidden_from_snapshots_and_carry_no_pointer",
        ),
    ),
    Mutant(
        "an exclusive start drops the first row, whichever it is",
        "messaging/query.py",
        "        return start.to_int() + (0 if inclusive else 1)\n",
        "        return start.to_int() + (0 if inclusive else 1 << 96)\n",
        (
            "tests/messaging/test_reader.py::test_an_exclusive_start_lets_the_very_next_message_through",
            "tests/messaging/test_reader.py::test_reading_on_after_any_id_leaves_out_nothing",
        ),
    ),
    Mutant(
        "a rollback touches rows outside of its range",
        "messaging/publishing.py",
        "            first, last = max(entry.first, detail.first), min(entry.last, detail.last)\n",
        "            first, last = entry.first, entry.last\n",
        (
            "tests/messaging/test_publishing.py::test_a_rollback_hides_exactly_one_publish_and_can_be_repeated",
        ),
    ),
    Mutant(
        "a row under a pointer has no index row",
        "messaging/publishing.py",
        "        batch.put(key, entry.to_bytes(key))\n        self._live.index.add_under(key, entry)\n",
        "        self._live.index.add_under(key, entry)\n",
        (
            "tests/messaging/test_endings.py::test_the_index_survives_a_restart_until_the_outcome_is_told",
        ),
    ),
    Mutant(
        "a reference brings what an earlier one brought",
        "messaging/publishing.py",
        "            self._live.index.discard(entry)\n            batch.on_lost(partial(self._live.index.add, entry))\n",
        "            batch.on_lost(partial(self._live.index.add, entry))\n",
        (
            "tests/messaging/test_publishing.py::test_a_reference_brings_only_what_was_stored_since_the_one_before",
        ),
    ),
    Mutant(
        "a permit is not asked once more when ids are given",
        "messaging/writer.py",
        "            write.permit.require_open()\n",
        "            pass\n",
        ("tests/messaging/test_publishing.py",),
    ),
    Mutant(
        "a batch whose write failed is told as if it were not there",
        "messaging/writer.py",
        "            if is_there:\n",
        "            if False:\n",
        ("tests/messaging/test_recovery.py::test_a_failed_write_is_answered_by_what_is_found",),
    ),
    Mutant(
        "readers are shown what is not durable yet",
        "messaging/reader.py",
        "        last = min(query.served, query.through.place)\n",
        "        last = query.through.place\n",
        ("tests/messaging/test_reader.py::test_nothing_behind_the_served_mark_is_shown",),
    ),
    Mutant(
        "a message's own time to live is ignored",
        "messaging/retention.py",
        "    if is_over or row.place < max(topic.floor, ",
        "    if row.place < max(topic.floor, ",
        ("tests/messaging/test_retention.py",),
    ),
    Mutant(
        "the sweep takes the generation that lives",
        "messaging/retention.py",
        "    return generation < abs(current) or generation == -current\n",
        "    return generation <= abs(current)\n",
        ("tests/messaging/test_retention.py",),
    ),
    Mutant(
        "payloads are dropped at their time to live, whenever they are published",
        "messaging/retention.py",
        "    published_ms = row.place.timestamp_ms + state.longest_transaction_ms\n",
        "    published_ms = row.place.timestamp_ms\n",
        ("tests/messaging/test_retention.py",),
    ),
    Mutant(
        "the floor does not rise with what expired",
        "messaging/sweep.py",
        "                raised = with_floor(record, MessageId(*floor))\n",
        "                raised = record\n",
        ("tests/messaging/test_sweep.py",),
    ),
    Mutant(
        "a deleted topic keeps its generation",
        "messaging/topics.py",
        "    return replace(record, generation=-record.generation, holds={}, positions={})\n",
        "    return record\n",
        (
            "tests/messaging/test_topics.py::test_topics_survive_a_restart_deleted_ones_with_their_generation",
        ),
    ),
    Mutant(
        "the checksum of a row is not compared",
        "messaging/rows.py",
        "    if crc32(body, crc32(value[:1], crc32(key))) != expected:\n",
        "    if False:\n",
        ("tests/messaging/test_rows.py::test_any_flipped_bit_is_damage",),
    ),
    # Disk
    Mutant(
        "a directory is not synced after a rename",
        "tuff/disk/files.py",
        "    temporary.replace(path)\n    sync_directory(path.parent)\n",
        "    temporary.replace(path)\n",
        (
            "tests/ground/test_files.py::test_a_file_is_synced_before_it_gets_its_name_and_the_name_after",
        ),
    ),
    Mutant(
        "a record's checksum leaves out its length",
        "tuff/disk/records.py",
        "    if crc32(body, crc32(data[offset : offset + 4])) != expected:\n",
        "    if False:\n",
        (
            "tests/ground/test_records.py::test_any_flipped_bit_is_found_at_its_record_and_nothing_behind_is_served",
        ),
    ),
    Mutant(
        "a second process may open a directory",
        "tuff/disk/lock.py",
        "        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)\n",
        "        pass\n",
        (
            "tests/ground/test_lock.py::test_another_process_is_refused_with_the_directory_and_the_owner",
        ),
    ),
    # Backups
    Mutant(
        "an archive that lost a part is believed",
        "tuff/disk/archive.py",
        "    if content != _COUNT.pack(count):\n",
        "    if False:\n",
        ("tests/ground/test_archive.py::test_an_archive_that_lost_or_gained_a_part_is_refused",),
    ),
    Mutant(
        "a backup holds rows that were damaged",
        "process/backup_form.py",
        "        if not is_whole(key, value):\n",
        "        if False:\n",
        ("tests/repair/test_running_backup.py::test_a_damaged_row_is_named_and_ends_the_backup",),
    ),
    Mutant(
        "a store waits for a backup that nobody reads before it closes",
        "messaging/engine.py",
        "        for view in views:\n            view.close(reason)\n",
        "",
        (
            "tests/messaging/test_views.py::test_a_store_closes_at_once_beside_a_view_that_nobody_reads",
        ),
    ),
    # The client and its table
    Mutant(
        "a transaction does not see its own writes in a table",
        "tuff/table_work.py",
        "            if self.transaction.is_visible(pointer):\n",
        "            if False:\n",
        ("tests/table/test_table.py::test_a_transaction_reads_its_own_writes_and_nobody_elses",),
    ),
    Mutant(
        "a table shows versions that are not visible",
        "tuff/table_versions.py",
        "                if transaction.is_visible(version.pointer):\n                    done",
        "                if True:\n                    done",
        ("tests/table/test_table.py::test_a_transaction_keeps_its_snapshot_while_others_commit",),
    ),
    Mutant(
        "a rollback in a table removes everybody's versions",
        "tuff/table_rows.py",
        "    return undo_key(transaction_id, 0), UNDO_START + _POINTER.pack(transaction_id + 1)\n",
        "    return undo_key(0, 0), UNDO_START + _POINTER.pack(transaction_id + 1)\n",
        ("tests/table/test_rows.py::test_the_undo_rows_of_a_transaction_are_its_own",),
    ),
    Mutant(
        "a tail keeps a row as it was before a rollback",
        "messaging/tail.py",
        "            self._remove(at, place_bytes)\n",
        "            return\n",
        (
            "tests/messaging/test_publishing.py::test_a_rollback_hides_exactly_one_publish_and_can_be_repeated",
        ),
    ),
    Mutant(
        "a tail answers for rows that it forgot",
        "messaging/tail.py",
        "            self.after = self.items[count - 1][_PLACE]\n",
        "",
        ("tests/messaging/test_tail.py::test_what_a_tail_forgot_is_read_from_the_store",),
    ),
    Mutant(
        "a tail answers for rows that it forgot before anybody read them",
        "messaging/tail.py",
        "        self.after = self.fresh[count - 1].keys[-1][-PLACE_SIZE:]\n",
        "",
        ("tests/messaging/test_tail.py::test_what_a_tail_forgot_is_read_from_the_store",),
    ),
    Mutant(
        "the fast way believes a payload without its checksum",
        "messaging/plain.py",
        "        is_whole = [*map(bytes.startswith, values, heads)]\n",
        "        is_whole = [value[0] == PLAIN for value in values]\n",
        (
            "tests/messaging/test_fast_ways.py::test_a_flipped_bit_in_the_middle_ends_the_page_before_it",
        ),
    ),
    Mutant(
        "a run is believed without its checksum",
        "messaging/runs.py",
        "    if HEAD.unpack_from(value) != (IS_RUN, checksum):\n",
        "    if value[0] != IS_RUN:\n",
        ("tests/messaging/test_runs.py::test_a_flipped_bit_takes_no_row_but_its_own",),
    ),
    Mutant(
        "a read that begins inside a run is handed all of it",
        "messaging/plain.py",
        "        start, stop = max(0, first - run.number), run.length\n",
        "        start, stop = 0, run.length\n",
        (
            "tests/messaging/test_fast_ways.py::test_runs_are_read_from_and_through_any_of_their_rows",
        ),
    ),
    Mutant(
        "a reader goes on behind a run of which it took a part",
        "messaging/plain.py",
        "        self.is_full = fits < stop\n",
        "        self.is_full = False\n",
        (
            "tests/messaging/test_fast_ways.py::test_runs_are_read_from_and_through_any_of_their_rows",
        ),
    ),
    Mutant(
        "a range that ends inside a run lacks its rows",
        "messaging/run_table.py",
        "    return overlap_stop(stop) if start < stop else stop\n",
        "    return stop\n",
        (
            "tests/messaging/test_runs.py::TestTwoStores::runTest",
            "tests/messaging/test_fast_ways.py::test_runs_are_read_from_and_through_any_of_their_rows",
        ),
    ),
    Mutant(
        "rows that do not follow each other are put into one run",
        "messaging/batch.py",
        "        if keys and _number(keys[-1]) + 1 != _number(run.keys[0]):\n",
        "        if False:\n",
        ("tests/messaging/test_batch_runs.py",),
    ),
    Mutant(
        "a run goes over into the next millisecond",
        "messaging/runs.py",
        "start + RUN_COUNT_MAX, start + _SEQ_MAX + 1 - first_seq)",
        "start + RUN_COUNT_MAX)",
        ("tests/messaging/test_runs.py::test_the_rows_of_runs_are_those_that_were_joined",),
    ),
    Mutant(
        "a publish that may have been done is sent again",
        "tuff/retries.py",
        "    is_safe = error.retry_safe or request.is_read or request.is_repeatable\n",
        "    is_safe = True\n",
        ("tests/client/test_retries.py::test_a_publish_that_may_have_been_done_is_not_sent_again",),
    ),
)
