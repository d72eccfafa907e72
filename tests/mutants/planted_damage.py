"""Bugs to plant in what is told of damage, and in what a sweep, a poll and a gate do beside others."""

from collections.abc import Sequence

from tests.mutants.planted import Mutant

_CONTRADICTIONS = "tests/tx/test_consistency.py"
_FIRST_START = "tests/simulation/test_first_start.py"
_LOST = "tests/http/test_lost_message_store.py"
_LOGS = "tests/process/test_logging_setup.py"
_BLOCKS = "tests/messaging/test_leveldb_corruption.py"
_FLIPS = f"{_BLOCKS}::test_a_flipped_bit_is_reported_and_hides_no_other_row"

DAMAGE_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "a corrupt block is trusted where no row shows its corruption",
        "messaging/engines/leveldb_corruption.py",
        "    return ranges.ended() if is_explained else [all_of_it]\n",
        "    return ranges.ended()\n",
        (
            "tests/messaging/test_leveldb_corruption.py::test_a_damaged_block_is_corrupt_unless_damaged_rows_explain_its_checksum[nothing shows what is damaged]",
        ),
    ),
    Mutant(
        "a row that LevelDB leaves out goes unnoticed",
        "messaging/engines/leveldb_corruption.py",
        "        is_hidden = entry.sequence > last_sequence or not (entry.is_value or is_deletion)\n",
        "        is_hidden = False\n",
        (
            "tests/messaging/test_leveldb_corruption.py::test_a_damaged_block_is_corrupt_unless_damaged_rows_explain_its_checksum[a number that no row has]",
        ),
    ),
    Mutant(
        "a table file is checked once and trusted for ever",
        "messaging/engines/leveldb_corruption.py",
        "        if known is None or known.checksum != checksum:\n",
        "        if known is None:\n",
        (f"{_BLOCKS}::test_corruption_that_appears_while_the_store_is_open_is_reported",),
    ),
    Mutant(
        "a table file that was compacted away is reported as corrupt",
        "messaging/engines/leveldb_corruption.py",
        "            if number not in self._manifest().tables:\n",
        "            if False:\n",
        (f"{_BLOCKS}::test_a_table_that_was_compacted_meanwhile_is_not_corrupt",),
    ),
    Mutant(
        "a corrupt end of a LevelDB store ends the scan silently",
        "tuff_storage/leveldb/scan.py",
        "    return _forward(rows, start, stop)\n",
        "    return source.iterator(start=start, stop=stop, verify_checksums=is_verified)\n",
        (
            f"{_BLOCKS}::test_a_damaged_end_of_the_store_is_not_the_end_of_the_rows",
            "tests/table/test_leveldb_database.py::test_a_damaged_last_block_is_not_the_end_of_the_rows",
        ),
    ),
    Mutant(
        "the next id of a page that ends before corruption leads back into the page",
        "messaging/log/scan.py",
        "        return max(self._skipped_to, self._messages.last_id) if self._messages else self._skipped_to\n",
        "        return self._skipped_to\n",
        (_FLIPS,),
    ),
    Mutant(
        "a backward scan ends at a table file that is gone",
        "messaging/engines/leveldb.py",
        "        yield from scan_backward(snapshot, start, stop)\n",
        "        yield from snapshot.iterator(start=start, stop=stop, reverse=True)\n",
        (f"{_BLOCKS}::test_a_store_whose_only_file_is_gone_is_not_empty",),
    ),
    Mutant(
        "a row in a missing table file counts as never written",
        "messaging/engines/leveldb.py",
        '        with closing(self.scan(key, key + b"\\x00", corruption=Corruption.RAISE)) as chunks:\n'
        "            return next((chunk[0][1] for chunk in chunks), None)\n",
        "        return self._database.db.get(key)\n",
        (f"{_BLOCKS}::test_a_row_whose_file_is_gone_is_an_error_and_not_a_missing_row",),
    ),
    Mutant(
        "a range of which all rows are hidden has no splits",
        "messaging/read/offsets_and_splits.py",
        '        return min(MessageId.from_hex(str(error.members["id"])).offset, last)\n',
        "        return None\n",
        (f"{_BLOCKS}::test_a_corrupt_range_is_a_split_whose_reader_gets_an_error",),
    ),
    Mutant(
        "a patrol that begins inside a publish drops its later rows alone",
        "messaging/retention/cleaner.py",
        "        case Decision.DROP if may_be_cut and row.ttl_s is not None:\n",
        "        case Decision.DROP if False:\n",
        (
            "tests/messaging/test_retention_pass.py::test_a_patrol_that_starts_inside_a_publish_drops_no_part_of_it",
        ),
    ),
    Mutant(
        "a sleeping reader is not woken for messages that are live again",
        "messaging/read/poll.py",
        "            if query.live_from < live_from:\n",
        "            if False:\n",
        (
            "tests/messaging/test_long_polls.py::test_a_longer_ttl_in_a_doubtful_clock_wakes_readers_at_the_beginning",
        ),
    ),
    Mutant(
        "what waited for a refused commit does not continue",
        "tx/claims_and_waits.py",
        "        if activity.write_count or activity.parked:\n",
        "        if activity.write_count:\n",
        (
            "tests/tx/test_claims_and_waits.py::test_what_is_parked_goes_on_in_its_order_when_the_end_is_over",
        ),
    ),
    # What the transaction files say of each other, and of the messages
    Mutant(
        "replay applies an edit that contradicts those before it",
        "tx/recovery.py",
        "            reason = contradiction(state, edit)\n",
        "            reason = None\n",
        (
            f"{_CONTRADICTIONS}::test_a_contradiction_is_reported_with_its_file_edit_and_cause[a start twice]",
        ),
    ),
    Mutant(
        "an edit that can't be applied ends the process",
        "tx/recovery.py",
        "        except Exception as error:\n",
        "        except TimeoutError as error:\n",
        (f"{_CONTRADICTIONS}::test_an_edit_that_can_not_be_applied_is_damage_too",),
    ),
    Mutant(
        "salvage applies an edit that contradicts those before it",
        "admin/salvage_transactions.py",
        "        if contradiction(state, edit) is not None:\n",
        "        if False:\n",
        (
            f"{_CONTRADICTIONS}::test_a_contradiction_is_reported_with_its_file_edit_and_cause[a commit twice]",
        ),
    ),
    Mutant(
        "salvage applies an edit after a gap without checking it",
        "admin/salvage_transactions.py",
        "    if (reason := contradiction(state, edit, has_gap=True)) is not None:\n",
        "    if (reason := contradiction(state, edit, has_gap=True)) is None and False:\n",
        (f"{_CONTRADICTIONS}::test_salvage_leaves_out_a_second_start_of_what_committed",),
    ),
    Mutant(
        "salvage lets messages that were set aside return without a proven commit",
        "admin/salvage_messages.py",
        "        if self._remembers_commit(entry.pointer):\n",
        "        if True:\n",
        (
            "tests/admin/test_salvage_messages.py::test_messages_that_are_aside_without_a_proven_commit_stay_hidden",
        ),
    ),
    Mutant(
        "salvage returns messages that were set aside and are lost",
        "admin/readable_rows.py",
        "                if runs and offset == offset_after(runs[-1][1]):\n",
        "                if runs:\n",
        ("tests/admin/test_salvage_messages.py::test_only_the_messages_that_are_left_return",),
    ),
    Mutant(
        "a snapshot that contradicts itself is accepted",
        "tx/snapshot_file.py",
        "    reason = inconsistency(reader.image)\n",
        "    reason = None\n",
        (
            f"{_CONTRADICTIONS}::test_a_snapshot_that_contradicts_itself_is_damaged[an open transaction is gone]",
        ),
    ),
    Mutant(
        "the first transaction file is made before the message store has its id",
        "process/component_link.py",
        "        if self._keeps_messages and not await self._has_store_id():\n            return\n",
        "",
        (f"{_FIRST_START}::test_an_interrupted_first_start_is_repeated[True-settings0]",),
    ),
    Mutant(
        "an empty message store beside transaction files is taken for a first start",
        "process/engine_choice.py",
        "        if not has_files(snapshots):\n",
        "        if True:\n",
        (
            f"{_FIRST_START}::test_a_lost_message_store_is_never_replaced_by_an_empty_one[True-settings0]",
            f"{_LOST}::test_a_server_without_its_message_store_takes_no_messages_until_it_is_back[settings0]",
        ),
    ),
    Mutant(
        "a start that runs no transaction creates no transaction files",
        "tx/service.py",
        "                await self.durable.begin_unused(recorded)\n",
        "                pass\n",
        (
            f"{_FIRST_START}::test_a_lost_message_store_is_never_replaced_by_an_empty_one[True-settings1]",
        ),
    ),
    Mutant(
        "an empty message store is accepted without a check whether it was lost",
        "messaging/log/loading.py",
        "    if metadata is None and (reason := new_store_refusal()) is not None:\n",
        "    if False and (reason := new_store_refusal()) is not None:\n",
        (f"{_LOST}::test_an_empty_message_store_beside_transaction_files_is_refused[settings0]",),
    ),
    Mutant(
        "fsck accepts an empty message store beside transaction files",
        "admin/fsck.py",
        "    if data.has_messages and is_empty and has_files(data.snapshots):\n",
        "    if False:\n",
        (f"{_LOST}::test_an_empty_message_store_beside_transaction_files_is_refused[settings0]",),
    ),
    Mutant(
        "a change of health is logged only on a request",
        "process/components.py",
        "            self._health_log.note(self._checks())\n",
        "            pass\n",
        (
            f"{_LOGS}::test_corrupt_transaction_files_are_logged_with_the_name_of_the_file",
            f"{_LOGS}::test_a_stop_and_a_start_of_the_service_are_logged_at_once",
        ),
    ),
    Mutant(
        "a clock that is set while the server runs goes unnoticed",
        "process/clock.py",
        "        if (jumped := _jump(offset_ms)) is not None:\n",
        "        if (jumped := _jump(offset_ms)) is None and False:\n",
        (f"{_LOGS}::test_a_step_of_the_wall_clock_is_logged[3600000]",),
    ),
)
