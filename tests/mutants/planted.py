"""The bugs to plant: where, which text becomes which, and the tests that have to notice.

A text has to stand exactly once in its file, so that a rewrite can't leave a bug out unnoticed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_ADDRESSES = "tests/client/test_several_addresses.py"
_OWNERSHIP = "tests/messaging/test_read_lease.py"
_COMMIT = "tests/tx/test_commit_and_abort.py"
_MACHINE = "tests/tx/test_machine.py"
_REQUESTS = "tests/process/test_http_requests.py"
_BATCHING = "tests/client/test_publisher_batches.py"
_THREADS = "tests/client/test_session_threads.py"
_SECOND = "tests/http/test_directory_locks.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug. `tests` are named as pytest names them; each of them has to fail with it."""

    bug: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]


MUTANTS: Sequence[Mutant] = (
    # Access
    Mutant(
        "a route is not guarded",
        "process/access_guard.py",
        "        if needed.scope is Scope.OPEN:\n",
        "        if operation.endswith('/{t}/publish') or needed.scope is Scope.OPEN:\n",
        (
            "tests/http/test_access.py::test_a_call_without_a_token_of_the_file_is_refused[publish]",
            "tests/http/test_access.py::test_each_principal_may_call_what_the_table_says[publish]",
        ),
    ),
    # Transactions
    Mutant(
        "a pointer block is recorded in the message store before it is durable",
        "process/component_link.py",
        "            await self._messaging.record_store_id(store_id)\n",
        "            self._messaging.note_reserved(self._transactions.durable.decided.image().highest_reserved)\n"
        "            await self._messaging.record_store_id(store_id)\n",
        (
            "tests/process/test_components.py::test_a_block_that_a_crash_can_still_take_is_not_recorded",
        ),
    ),
    Mutant(
        "a commit is acknowledged before its sync",
        "tx/state_machine.py",
        "            self._answer(call, published, lsn)\n            return\n",
        "            self._answer(call, published)\n            return\n",
        (
            f"{_COMMIT}::test_a_commit_waits_for_its_sync_and_a_start_for_nothing",
            f"{_MACHINE}::test_an_answer_waits_until_its_edit_is_durable",
            f"{_MACHINE}::test_no_order_of_calls_and_events_breaks_a_promise",
        ),
    ),
    Mutant(
        "a commit in doubt is confirmed before its record is durable",
        "tx/state_machine.py",
        "            if call.doubt_lsn > self._records.decided.seen:\n",
        "            if False:\n",
        (f"{_MACHINE}::test_a_commit_in_doubt_is_answered_once_both_are_durable",),
    ),
    Mutant(
        "index rows end before the confirmation is durable",
        "tx/rows_of_ended_transactions.py",
        "        self._confirmed.append((lsn, pointers))\n",
        "        self._rows.end_committed(pointers)\n",
        (
            f"{_MACHINE}::test_index_rows_stay_until_the_confirmation_is_durable",
            f"{_MACHINE}::test_a_commit_that_was_answered_survives_without_its_confirmation",
        ),
    ),
    Mutant(
        "recovery confirms a commit in doubt without its rows",
        "tx/state_machine.py",
        "            if opened.doubt is not None and has_rows and transaction_id not in unsure:\n",
        "            if opened.doubt is not None and transaction_id not in unsure:\n",
        (f"{_MACHINE}::test_a_crash_leaves_both_or_nothing",),
    ),
    Mutant(
        "recovery confirms a commit in doubt whose rows are being written",
        "tx/state_machine.py",
        "            if opened.doubt is not None and has_rows and transaction_id not in unsure:\n",
        "            if opened.doubt is not None and has_rows:\n",
        (f"{_MACHINE}::test_a_log_that_fails_ends_a_commit_in_doubt_without_an_answer_of_success",),
    ),
    Mutant(
        "delayed messages of a confirmed commit wait for a tick",
        "tx/state_machine.py",
        "        if self._rows.has_rows_to_move(opened.pointers):\n",
        "        if False:\n",
        (f"{_MACHINE}::test_delayed_messages_wait_for_no_tick_until_they_are_let_go",),
    ),
    Mutant(
        "a refusal names a commit before its sync",
        "tx/state_machine.py",
        "        self._answer(call, refused.error, refused.lsn)\n",
        "        self._answer(call, refused.error)\n",
        (
            f"{_COMMIT}::test_a_refusal_waits_until_the_commit_that_it_names_is_durable",
            f"{_MACHINE}::test_a_refusal_waits_until_the_commit_that_it_names_is_durable",
        ),
    ),
    Mutant(
        "that a transaction has ended is reported before its sync",
        "tx/durable_state.py",
        "            self._timeout.watch(waiter)\n            await waiter\n",
        "            self._timeout.watch(waiter)\n",
        ("tests/tx/test_prepared.py::test_an_answer_waits_until_its_edit_is_durable[outcome]",),
    ),
    Mutant(
        "two calls end one transaction",
        "tx/state_machine.py",
        "        if ending is not None and ending is not call:\n",
        "        if False:\n",
        (f"{_MACHINE}::test_a_second_end_has_the_answer_of_the_first",),
    ),
    Mutant(
        "an abort is answered with what another one has just recorded",
        "tx/state_machine.py",
        "            self._answer(call, refused_end(outcome, EndedState.ABORTED) or outcome, outcome.lsn)\n",
        "            call.finish(refused_end(outcome, EndedState.ABORTED) or outcome)\n",
        (f"{_MACHINE}::test_two_aborts_of_what_has_no_rows_left_are_answered_together",),
    ),
    Mutant(
        "what waits for a prepare that recovery undid is forgotten",
        "tx/state_machine.py",
        "        self._under_way.resume_all()  #",
        "        #",
        (f"{_MACHINE}::test_a_commit_that_waits_for_a_prepare_that_is_lost_passes_after_recovery",),
    ),
    Mutant(
        "an invalidation does not wait for a claim",
        "tx/state_machine.py",
        "        if self._under_way.has_claim(found.transaction_id):\n            self._under_way.park",
        "        if False:\n            self._under_way.park",
        (
            f"{_COMMIT}::test_a_claim_holds_equal_changes_and_every_other_ending",
            f"{_MACHINE}::test_an_invalidation_waits_for_a_claim",
        ),
    ),
    Mutant(
        "rows are rolled back before a write under way is done",
        "tx/rows_of_ended_transactions.py",
        "        if self._under_way.has_writes(transaction_id):\n            self._under_way.await",
        "        if False:\n            self._under_way.await",
        (
            "tests/tx/test_message_rows.py::test_a_rollback_waits_for_the_writes_under_way",
            f"{_MACHINE}::test_rows_are_rolled_back_after_the_writes_under_way",
        ),
    ),
    Mutant(
        "conflicts are not checked",
        "tx/conflicts.py",
        "            and not transaction.is_visible(commit.transaction_id)\n",
        "            and False\n",
        (
            "tests/tx/test_state.py::test_a_commit_that_was_pending_at_a_start_conflicts_and_stays_invisible",
        ),
    ),
    Mutant(
        "a repeated commit passes although it was refused",
        "tx/state.py",
        "            self.open[edit.transaction_id] = replace(opened, conflict=edit.conflict)\n",
        "            pass\n",
        ("tests/tx/test_commit_and_abort.py::test_a_conflict_is_final_for_every_call",),
    ),
    Mutant(
        "a long transaction takes part in conflicts",
        "tx/transaction_decisions.py",
        "    if not opened.is_short:\n        return frozenset()\n    every",
        "    every",
        (
            "tests/http/test_transaction_commit.py::test_long_transactions_take_no_part_in_conflicts",
        ),
    ),
    Mutant(
        "a commit whose rows failed is answered as the others of its write",
        "tx/state_machine.py",
        "            self._answer(call, rows, lsn, partial(self._answer_rolled_back, rows))\n",
        "            self._answer(call, (), lsn)\n",
        (f"{_COMMIT}::test_a_commit_whose_rows_fail_does_not_fail_its_neighbours",),
    ),
    Mutant(
        "a commit ignores its deadline",
        "tx/transaction_decisions.py",
        "    if now_ms >= opened.expires_at_ms:\n",
        "    if False:\n",
        ("tests/tx/test_commit_and_abort.py::test_a_decision_looks_at_the_deadline_itself",),
    ),
    Mutant(
        "a batch of a group is committed by a second transaction, too",
        "tuff/group_member.py",
        "        if any(each.protocol.may_have_committed for each in self.transactions):\n",
        "        if False:\n",
        (
            "tests/client/test_consumer.py::test_a_batch_is_committed_by_one_transaction",
            "tests/client/test_consumer.py::test_a_batch_whose_commit_may_have_counted_is_not_committed_again",
        ),
    ),
    Mutant(
        "a position in a database moves to where it is already",
        "tuff/sql/positions.py",
        "        if max(positions) >= end.next_id:\n",
        "        if False:\n",
        ("tests/sql/test_group.py::test_a_batch_is_committed_by_one_transaction",),
    ),
    Mutant(
        "a commit ignores the claims of others",
        "tx/transaction_decisions.py",
        "    if (claimant := under_way.claimed_by(changes)) is not None:\n",
        "    if (claimant := None) is not None:\n",
        (
            f"{_COMMIT}::test_a_commit_that_waits_or_is_refused_delays_none_that_came_with_it",
            f"{_COMMIT}::test_a_claim_holds_equal_changes_and_every_other_ending",
        ),
    ),
    Mutant(
        "a commit ignores the claims of prepared transactions",
        "tx/transaction_decisions.py",
        "    if (conflict := state.prepared.conflict(changes)) is not None:\n",
        "    if (conflict := None) is not None:\n",
        ("tests/tx/test_prepared.py::test_a_commit_that_waits_too_long_is_refused_for_good",),
    ),
    Mutant(
        "a prepared transaction takes writes",
        "tx/write_permits.py",
        "            if found.prepared is not None:\n",
        "            if False:\n",
        ("tests/tx/test_prepared.py::test_only_a_resolve_ends_it_and_it_takes_no_writes",),
    ),
    Mutant(
        "a commit does not wait for writes that passed before it",
        "tx/state_machine.py",
        "        if under_way.has_writes(transaction_id):\n            self._begin_end(call)\n",
        "        if False:\n            self._begin_end(call)\n",
        ("tests/tx/test_commit_and_abort.py::test_a_commit_waits_for_writes_that_passed_the_gate",),
    ),
    Mutant(
        "a checkpoint does not wait for its sync",
        "tx/state_machine.py",
        "        self._answer(call, self._records.state.open[transaction_id], lsn)\n",
        "        self._answer(call, self._records.state.open[transaction_id])\n",
        ("tests/tx/test_start_and_checkpoint.py::test_a_checkpoint_waits_for_its_sync",),
    ),
    Mutant(
        "a checkpoint does not check its transaction again after waiting for a pointer",
        "tx/state_machine.py",
        "            self._pointers.wait((self._run, call))\n"
        "            return\n"
        "        transaction_id = opened.transaction_id\n",
        "            step = partial(self._step, partial(self._give, opened.transaction_id))\n"
        "            self._pointers.wait((step, call))\n"
        "            return\n"
        "        self._give(opened.transaction_id, call, pointer)\n\n"
        "    def _give(self, transaction_id: int, call: Any, pointer: Any = None) -> None:\n"
        "        pointer = pointer or self._pointers.take(now_ms=self._now_ms())\n",
        (
            "tests/tx/test_start_and_checkpoint.py::test_a_checkpoint_that_waited_for_a_pointer_looks_at_its_transaction_again",
        ),
    ),
    Mutant(
        "a clean restart forgets that a transaction survived a crash",
        "tx/state.py",
        "survived_crash=opened.survived_crash or edit.is_after_crash,",
        "survived_crash=edit.is_after_crash,",
        (
            "tests/tx/test_recovery.py::test_a_clean_restart_after_a_crash_keeps_in_mind_that_there_was_one",
        ),
    ),
    Mutant(
        "pointers are handed out before their block is durable",
        "tx/pointer_reservation.py",
        "            await self._durable.synced(self._durable.record(edit))\n",
        "            self._durable.record(edit)\n",
        (
            "tests/tx/test_pointer_reservation.py::test_a_start_that_finds_no_pointer_waits_for_the_renewal",
        ),
    ),
    Mutant(
        "returned pointers are handed out again",
        "tx/pointer_reservation.py",
        "            self._blocks.clear()\n            none =",
        "            none =",
        (
            "tests/tx/test_pointer_reservation.py::test_pointers_that_were_given_back_are_not_handed_out_when_the_clock_is_set_back",
        ),
    ),
    Mutant(
        "stale pointers are handed out",
        "tx/pointer_reservation.py",
        " or now_ms > self._fresh_until_ms:\n            self.rest",
        ":\n            self.rest",
        (
            "tests/tx/test_pointer_reservation.py::test_after_an_idle_time_pointers_name_the_present",
        ),
    ),
    Mutant(
        "an interrupted start is not withdrawn",
        "tuff/flows_and_repeated_calls.py",
        "            if call.withdrawal is not None:\n",
        "            if False:\n",
        (
            "tests/client/test_cancelled_starts.py::test_a_task_that_is_cancelled_at_any_turn_leaves_no_transaction_in_progress",
        ),
    ),
    Mutant(
        "a withdrawn start that comes late begins a transaction",
        "tx/state_machine.py",
        "            if request.request_id in self._withdrawn:\n",
        "            if False:\n",
        (
            "tests/tx/test_withdrawn_starts.py::test_a_start_that_comes_after_its_withdrawal_begins_nothing",
        ),
    ),
    Mutant(
        "a transaction of messages only is pruned while rows have its pointers",
        "tx/invalid_list.py",
        "all(each in state.view.invalid and not self._is_needed(each) for each in pointers)",
        "all(each in state.view.invalid for each in pointers)",
        (
            "tests/tx/test_invalid_list.py::test_a_transaction_of_messages_only_is_pruned_once_its_rows_are_marked",
        ),
    ),
    Mutant(
        "a join is not durable",
        "tx/state_machine.py",
        "            self._records.record(StoreJoined(self._turn_ms, opened.transaction_id))\n",
        "",
        (
            "tests/tx/test_invalid_list.py::test_a_transaction_that_another_store_has_joined_stays_on_the_list",
        ),
    ),
    Mutant(
        "a participant joins without a word to the server",
        "tuff/commit_protocol.py",
        "            yield from self._let_stores_join(self._current)\n",
        "",
        (
            "tests/client/test_context.py::test_a_participant_that_joins_a_transaction_of_messages_is_announced",
        ),
    ),
    Mutant(
        "a forked process commits the transaction of its parent",
        "tuff/commit_protocol.py",
        "        return self._entry is not None and self._process != os.getpid()\n",
        "        return False\n",
        (
            "tests/client/test_fork.py::test_a_forked_process_is_refused_the_transaction_of_its_parent",
        ),
    ),
    Mutant(
        "a pointer block is returned while it is being written",
        "tx/pointer_reservation.py",
        "        if not self._is_renewing and self._blocks.has_surplus(\n",
        "        if self._blocks.has_surplus(\n",
        (
            "tests/tx/test_pointer_reservation.py::test_a_block_on_its_way_to_the_disk_is_not_given_back",
        ),
    ),
    Mutant(
        "new transactions see commits that are not durable",
        "tx/state.py",
        "            self._pending.append((self.lsn, change))\n\n    def _abort(",
        "            self.view = self.view.after([change])\n\n    def _abort(",
        ("tests/tx/test_state.py::test_an_ending_is_seen_only_once_it_is_durable",),
    ),
    Mutant(
        "a long transaction that became invalid moves the read pointer",
        "tx/state.py",
        "        read_pointer = pointers[-1] if opened.is_short else 0\n",
        "        read_pointer = pointers[-1]\n",
        ("tests/tx/test_state.py::test_the_read_pointer_ignores_long_ones_that_became_invalid",),
    ),
    Mutant(
        "pointers reserved before a crash are not marked lost",
        "tx/state.py",
        "            self.invalid = with_all(self.invalid, lost)\n",
        "",
        (
            "tests/tx/test_state.py::test_what_a_crash_leaves_reserved_is_lost_and_pointers_go_on_above",
        ),
    ),
    Mutant(
        "a commit cut off between its rows and its record stays open",
        "tx/state_machine.py",
        "            elif opened.doubt is not None or has_rows or transaction_id in unsure:\n",
        "            elif False:\n",
        (
            "tests/tx/test_recovery.py::test_a_commit_with_rows_and_without_a_record_is_invalid_after_a_crash",
        ),
    ),
    Mutant(
        "a corrupt tail that was durable is cut off as a torn one",
        "tx/wal.py",
        "            if found.offset < proven:\n"
        "                raise damaged(name, found.offset, found.reason)\n"
        "            break\n",
        "            proven = 0\n            break\n",
        (
            "tests/tx/test_file_headers.py::test_damage_in_an_idle_log_keeps_the_service_down_until_it_is_repaired",
        ),
    ),
    Mutant(
        "missing transaction files are taken for a first start",
        "tx/recovery.py",
        "        if recorded is not None and recorded.has_seen_files:\n            raise DamagedFilesError(\n"
        '                f"{directory} holds no',
        "        if False:\n            raise DamagedFilesError(\n"
        '                f"{directory} holds no',
        (
            "tests/tx/test_file_headers.py::test_missing_files_are_damage_and_never_an_empty_beginning",
        ),
    ),
    Mutant(
        "transaction files older than the messages are accepted",
        "tx/mixed_backups.py",
        "    if recorded.seen_lsn is not None and state.lsn < recorded.seen_lsn:\n",
        "    if False:\n",
        ("tests/admin/test_mixed_backups.py::test_a_transaction_log_that_ends_before_a_commit",),
    ),
    Mutant(
        "messages older than a commit are accepted",
        "tx/mixed_backups.py",
        "        if outcome.state is EndedState.COMMITTED and not is_there:\n",
        "        if False:\n",
        ("tests/admin/test_mixed_backups.py::test_messages_from_before_a_commit[True]",),
    ),
    Mutant(
        "messages from the middle of a commit are accepted",
        "tx/mixed_backups.py",
        "        is_there = is_there and all(detail.last <= last for detail in outcome.published)\n",
        "",
        ("tests/admin/test_mixed_backups.py",),
    ),
    Mutant(
        "a missing LevelDB log is taken for an empty one",
        "tuff_storage/leveldb/opening.py",
        "    _begin(directory)\n    _require_log(directory)\n",
        "    _begin(directory)\n",
        ("tests/leveldb/test_opening.py::test_a_log_that_is_gone_is_not_taken_for_empty[False]",),
    ),
    Mutant(
        "rows of transactions with an unknown outcome are shown",
        "tx/mixed_backups.py",
        "        if not is_known(state, pointer):\n",
        "        if False:\n",
        (
            "tests/admin/test_mixed_backups.py::test_messages_from_before_an_abort_that_is_forgotten",
        ),
    ),
    Mutant(
        "with --data the snapshots directory is not locked",
        "process/directory_locks.py",
        '(data, data / "snapshots"))',
        "(data,))",
        (
            "tests/http/test_directory_locks.py::test_servers_that_share_nothing_but_their_snapshots_do_not_run_together",
        ),
    ),
    Mutant(
        "a pointer leaves the invalid list while rows have it",
        "tx/invalid_list.py",
        "        if self._rows.is_carried(pointer) or not self._rows.is_cleared(pointer):\n",
        "        if not self._rows.is_cleared(pointer):\n",
        ("tests/tx/test_invalid_list.py::test_pruning_takes_off_only_what_no_row_carries",),
    ),
    Mutant(
        "a repeated request id runs again",
        "tx/state_machine.py",
        "            if outcome is not None:\n                self._answer(call, outcome.published",
        "            if False:\n                self._answer(call, outcome.published",
        ("tests/tx/test_run.py::test_a_run_is_one_transaction_and_its_request_id_runs_once",),
    ),
    # Disk
    Mutant(
        "a directory is not synced after a rename",
        "tuff_storage/disk/files.py",
        "    temporary.replace(path)\n    sync_directory(path.parent)\n",
        "    temporary.replace(path)\n",
        (
            "tests/disk/test_files.py::test_a_file_is_synced_before_it_gets_its_name_and_the_name_after",
        ),
    ),
    Mutant(
        "a record's checksum leaves out its length",
        "tuff_storage/disk/records.py",
        "    if crc32(body, crc32(data[offset : offset + 4])) != expected:\n",
        "    if False:\n",
        (
            "tests/disk/test_records.py::test_any_flipped_bit_is_found_at_its_record_and_nothing_behind_it_is_read",
        ),
    ),
    Mutant(
        "a second process may open a directory",
        "tuff_storage/disk/locks.py",
        "        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)\n",
        "        pass\n",
        (
            "tests/disk/test_locks.py::test_another_process_is_refused_with_the_directory_and_the_owner",
        ),
    ),
    # Backups
    Mutant(
        "an incomplete backup archive is accepted",
        "tuff_storage/disk/backup_archive.py",
        "    if content != _COUNT.pack(count):\n",
        "    if False:\n",
        (
            "tests/disk/test_backup_archive.py::test_an_archive_that_lost_or_gained_a_part_is_refused",
        ),
    ),
    Mutant(
        "a backup holds rows that were damaged",
        "process/backup_format.py",
        "        if not is_whole(key, value):\n",
        "        if False:\n",
        ("tests/admin/test_running_backup.py::test_a_damaged_row_is_named_and_ends_the_backup",),
    ),
    Mutant(
        "a store waits for a stalled backup before it closes",
        "messaging/log/state_in_memory.py",
        "        for view in views:\n            view.close(reason)\n",
        "",
        ("tests/messaging/test_row_views.py::test_views_are_closed_before_their_store",),
    ),
    # The client and its table
    Mutant(
        "a transaction does not see its own writes in a table",
        "tuff/tables/open_transactions.py",
        "            if self.transaction.is_visible(pointer):\n",
        "            if False:\n",
        ("tests/table/test_table.py::test_a_transaction_reads_only_its_own_uncommitted_writes",),
    ),
    Mutant(
        "a change of one preference of a group drops the others",
        "messaging/groups/consumer_coordinator.py",
        "            changed = change(_preferences_of(group))\n",
        "            changed = change(GroupPreferences())\n",
        ("tests/groups/test_preferences.py::test_changes_at_once_both_count",),
    ),
    Mutant(
        "members do not get the preferences of their group",
        "messaging/groups/consumer_coordinator.py",
        "            preferences=_preferences_of(group),\n",
        "            preferences=GroupPreferences(),\n",
        ("tests/groups/test_preferences.py::test_members_learn_a_change_by_their_next_heartbeat",),
    ),
    Mutant(
        "the end of a transaction ends the one that was started last on the table",
        "tuff/tables/open_transactions.py",
        "        work = self._works.get(transaction.transaction_id)\n        if work is None:\n",
        "        work = (self._stack.get() or (None,))[-1]\n        if work is None:\n",
        (
            "tests/table/test_interleaved_transactions.py"
            "::test_a_generator_that_ends_inside_a_block_does_not_commit_the_block",
        ),
    ),
    Mutant(
        "what a task writes after the end of its block goes to the outer transaction",
        "tuff/tables/open_transactions.py",
        "        stack = self._stack.get()\n        if not stack:\n",
        "        stack = [one for one in self._stack.get() if not one.has_ended]\n"
        "        if not stack:\n",
        (
            "tests/table/test_current_transaction.py"
            "::test_a_task_that_outlives_its_block_does_not_write_into_the_outer_one",
        ),
    ),
    Mutant(
        "a table shows versions that are not visible",
        "tuff/tables/leveldb_table.py",
        "                if transaction.is_visible(version.pointer):\n                    done",
        "                if True:\n                    done",
        ("tests/table/test_table.py::test_a_transaction_keeps_its_snapshot_while_others_commit",),
    ),
    Mutant(
        "a rollback in a table removes versions of other transactions",
        "tuff/tables/row_format.py",
        "    return undo_key(transaction_id, 0), UNDO_START + _POINTER.pack(transaction_id + 1)\n",
        "    return undo_key(0, 0), UNDO_START + _POINTER.pack(transaction_id + 1)\n",
        ("tests/table/test_row_format.py::test_the_undo_rows_of_a_transaction_are_its_own",),
    ),
    Mutant(
        "the tail cache keeps a row as it was before a rollback",
        "messaging/log/tail_cache.py",
        "            self._remove(index, offset_bytes)\n",
        "            return\n",
        (
            "tests/messaging/test_publish.py::test_a_rollback_hides_exactly_one_publish_and_can_be_repeated",
        ),
    ),
    Mutant(
        "the tail cache answers for rows that it dropped",
        "messaging/log/tail_cache.py",
        "            self.after = self.ids[count - 1][:OFFSET_SIZE]\n",
        "",
        (
            "tests/messaging/test_tail_cache.py::test_rows_that_a_tail_forgot_are_read_from_the_store",
        ),
    ),
    Mutant(
        "the tail cache answers for rows that it dropped before their first read",
        "messaging/log/tail_cache.py",
        "        self.after = self.fresh[count - 1].keys[-1][-OFFSET_SIZE:]\n",
        "",
        (
            "tests/messaging/test_tail_cache.py::test_rows_that_a_tail_forgot_are_read_from_the_store",
        ),
    ),
    # The start
    Mutant(
        "the stores are opened before the port is bound",
        "server.py",
        "        # Steps that can fail come before the stores: opening tables",
        "        await self._open_stores()\n        # Steps that can fail come before the stores: opening tables",
        (f"{_SECOND}::test_a_start_that_finds_its_port_taken_leaves_the_stores_untouched",),
    ),
    Mutant(
        "a start does not check that it can write its files",
        "process/directory_locks.py",
        "            if not os.access(directory, os.W_OK | os.X_OK):\n",
        "            if False:\n",
        (
            f"{_SECOND}::test_a_start_that_could_not_write_transaction_files_leaves_the_messages_untouched",
        ),
    ),
    Mutant(
        "requests are accepted during recovery",
        "process/admission_and_dispatch.py",
        "        self._is_open = False\n        self.is_stopping = False\n",
        "        self._is_open = True\n        self.is_stopping = False\n",
        ("tests/http/test_process.py::test_a_server_that_recovers_its_stores_says_so",),
    ),
    # Who has the tables
    Mutant(
        "a lease begins when its check is answered",
        "messaging/log/read_lease.py",
        "                self._proven_ms = began_ms\n",
        "                self._proven_ms = self._now_ms()\n",
        (f"{_OWNERSHIP}::test_a_lease_starts_with_its_check_and_not_with_the_answer",),
    ),
    Mutant(
        "a read relies on a lease check that began before it",
        "messaging/log/read_lease.py",
        "            for answer in waiting:\n",
        "            for answer in (*waiting, *self._waiting):\n",
        (f"{_OWNERSHIP}::test_a_read_after_the_lease_waits_for_a_check_that_starts_later",),
    ),
    Mutant(
        "reads of a store that others can take over need no lease",
        "messaging/log/read_lease.py",
        "        if not leaves_doubt:\n            await holder_check.require()\n",
        "",
        (f"{_OWNERSHIP}::test_reads_and_refusals_that_rest_on_a_read_need_the_lease",),
    ),
    Mutant(
        "a publish with an unknown outcome is sent again",
        "tuff/flows_and_repeated_calls.py",
        "    is_safe = error.retry_safe or request.is_repeatable\n",
        "    is_safe = True\n",
        (
            "tests/client/test_retries.py"
            "::test_without_an_id_a_publish_that_may_have_been_done_is_not_repeated",
        ),
    ),
    Mutant(
        "an earlier leader raises the record of the files behind the next one's back",
        "cluster/leader_election.py",
        "                    self._put(self._highest)\n",
        "",
        ("tests/cluster/test_leader.py::test_an_earlier_leader_cannot_write_the_record_any_more",),
    ),
    Mutant(
        "a cluster takes an older copy of its transaction files",
        "process/component_link.py",
        "highest_reserved=highest)",
        "highest_reserved=int(highest > 0))",
        (
            "tests/simulation/cluster/test_cluster.py::test_an_older_copy_of_the_directory_opens_no_transactions",
        ),
    ),
    # Clients of a cluster
    Mutant(
        "a publish that was lost on its way is sent to the next address at once",
        "tuff/blocking/transport.py",
        "                if not isinstance(error, ServerUnreachableError):\n"
        "                    raise\n                tried.extend(error.tried)\n",
        "",
        (
            f"{_ADDRESSES}::test_a_publish_without_an_id_whose_server_dies_is_not_sent_to_another[publish_blocking]",
        ),
    ),
    Mutant(
        "a PUT whose server died counts as not sent",
        "tuff/aiohttp_sessions.py",
        "    config.on_connection_create_start.append(connect_once)\n",
        "",
        ("tests/client/test_lost_replies.py::test_a_put_whose_server_dies_may_have_been_executed",),
    ),
    # Sessions of the client
    Mutant(
        "a thread that has its reply lets no other one read",
        "tuff/blocking/transport.py",
        "            self._leader = next(others, None)\n",
        "            self._leader = None\n",
        (f"{_THREADS}::test_another_thread_reads_once_the_one_that_read_has_its_reply",),
    ),
    Mutant(
        "a thread that can't send does not read either",
        "tuff/blocking/transport.py",
        "        if not is_read:\n            self._catch_up()\n",
        "",
        (f"{_THREADS}::test_a_client_that_sends_still_reads",),
    ),
    Mutant(
        "a publish is sent on a session that has ended",
        "tuff/blocking/transport.py",
        "        if not self._is_ended and not self._waiting:\n            self._catch_up()\n",
        "",
        (f"{_THREADS}::test_a_session_that_ended_while_no_call_waited_loses_no_publish",),
    ),
    Mutant(
        "a forked process uses the session of its parent",
        "tuff/blocking/transport.py",
        "        inherited, self._session, self._opening = self._session, None, Lock()\n"
        "        if inherited is not None:\n"
        "            inherited.leave_to_parent()\n",
        "",
        (f"{_THREADS}::test_a_forked_process_has_a_session_of_its_own",),
    ),
    Mutant(
        "a refused session is asked for with each call",
        "tuff/session_offers.py",
        "        self._not_before_s = now_s + for_s\n",
        "",
        (
            "tests/client/test_session_fallback.py::test_without_a_session_each_call_is_executed_once_over_http",
        ),
    ),
    Mutant(
        "a publish is sent on an idle connection that the server has closed",
        "tuff/aio/transport.py",
        "        if session is not None and session.is_idle and not request.is_read:\n",
        "        if session is not None and session.is_idle and not request.is_repeatable:\n",
        (
            "tests/client/test_async_session.py::test_a_publish_finds_an_idle_connection_closed_before_it_is_sent[auto]",
        ),
    ),
    Mutant(
        "a flush counts the messages of any topic",
        "tuff/publisher_batches.py",
        "        return min(oldest, default=number) >= number\n",
        "        return self._added_count - len(oldest) >= number - 1\n",
        (
            f"{_BATCHING}::test_a_flush_is_settled_with_its_own_messages_and_not_with_as_many_others",
        ),
    ),
    Mutant(
        "a program that does not close its publisher loses its messages",
        "tuff/blocking/publisher.py",
        "            atexit.register(self._end_program)\n",
        "",
        (
            "tests/client/test_publisher.py::test_a_program_that_does_not_close_its_publisher_publishes_at_its_end",
        ),
    ),
    Mutant(
        "the lag of a consumer that waits is as old as its long poll",
        "tuff/group_member.py",
        "        if self._passed_over:\n            left_s",
        "        if not self._passed_over:\n            left_s",
        (
            "tests/client/test_group_member.py::test_offsets_of_what_was_passed_over_are_committed_while_the_member_waits",
        ),
    ),
    Mutant(
        "a busy topic keeps the others of a publisher waiting",
        "tuff/publisher_batches.py",
        "        queue = min(due, key=lambda queue: queue.waiting[0].number)\n",
        "        queue = max(due, key=lambda queue: queue.size_bytes)\n",
        (
            f"{_BATCHING}::test_a_batch_is_of_one_topic_and_the_one_with_the_oldest_message_comes_first",
        ),
    ),
    Mutant(
        "a batch has the time to live of its first message",
        "tuff/publisher_batches.py",
        "            if is_full or addition.ttl_s != head.ttl_s or addition.delay != head.delay:\n",
        "            if is_full:\n",
        (f"{_BATCHING}::test_a_batch_has_one_time_to_live_and_one_delay",),
    ),
    Mutant(
        "a block begins in a snapshot of any age",
        "tuff/commit_protocol.py",
        "        if has_joined or self._chain_elapsed_s() >= self._next_until_s:\n",
        "        if False:\n",
        (
            "tests/client/test_chained_transactions.py::test_a_block_that_begins_late_starts_a_transaction_of_its_own",
        ),
    ),
    Mutant(
        "a client stays at a server that died",
        "tuff/server_choice.py",
        "                self.current = (server + 1) % self._count\n",
        "                pass\n",
        (
            "tests/client/test_server_choice.py::test_after_a_failure_the_next_address_is_used_first",
        ),
    ),
    Mutant(
        "an owner is asked for ever, although its topic has moved",
        "tuff/server_choice.py",
        "            self._owners.pop(subject, None)\n        if _is_gone(error):\n",
        "            pass\n        if _is_gone(error):\n",
        (
            "tests/cluster/test_clients.py::test_a_call_that_an_owner_refuses_as_moving_is_sent_to_another_server",
        ),
    ),
    Mutant(
        "an owner that the client was not given gets the next call",
        "tuff/server_choice.py",
        "        owner = self._by_url.get(_normal(owner_url))\n",
        "        owner = self._by_url.get(_normal(owner_url), 1)\n",
        (
            "tests/client/test_server_choice.py::test_an_owner_that_is_no_address_of_the_client_gets_nothing",
        ),
    ),
    # Web pages of other sites
    Mutant(
        "a request is served whatever host it names",
        "process/http_connection.py",
        "        if foreign is not None:\n",
        "        if False:\n",
        (
            "tests/http/test_allowed_hosts.py::test_a_page_neither_publishes_nor_reads",
            "tests/http/test_allowed_hosts.py::test_every_route_refuses[host-stopService]",
            "tests/http/test_allowed_hosts.py::test_every_route_refuses[site-stopService]",
            "tests/http/test_allowed_hosts.py::test_every_route_refuses[host-takeBackup]",
            "tests/http/test_allowed_hosts.py::test_a_web_page_does_not_stop_the_transactions[chunked-a foreign host]",
        ),
    ),
    Mutant(
        "a host is judged by how it begins",
        "process/allowed_hosts.py",
        '        if host == "localhost" or',
        '        if host.startswith("localhost") or',
        (
            "tests/http/test_allowed_hosts.py::test_a_web_page_does_not_stop_the_transactions[without-a name that begins like one of ours]",
        ),
    ),
    Mutant(
        "a page from another port counts as the server's own origin",
        "process/allowed_hosts.py",
        "        return host == bare_host(asked[1]) and is_same_port\n",
        "        return host == bare_host(asked[1])\n",
        (
            "tests/http/test_allowed_hosts.py::test_a_web_page_does_not_stop_the_transactions[without-a page of another port]",
        ),
    ),
    Mutant(
        "idle connections are closed at the begin of a stop",
        "process/listener.py",
        "        await connections.last_requests()\n",
        "",
        (f"{_REQUESTS}::test_a_request_that_arrives_during_a_close_is_answered",),
    ),
    Mutant(
        "a connection is closed before a request that has arrived is read",
        "process/http_connection.py",
        "        if is_idle and not self._has_unread_bytes():\n",
        "        if is_idle:\n",
        (f"{_REQUESTS}::test_a_connection_is_not_closed_while_a_request_waits_to_be_read[close]",),
    ),
)
