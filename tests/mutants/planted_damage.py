"""Bugs to plant in what is told of damage, and in what a sweep, a poll and a gate do beside others."""

from collections.abc import Sequence

from tests.mutants.planted import Mutant

_CONTRADICTIONS = "tests/tx/test_consistency.py"
_FIRST_START = "tests/simulation/test_first_start.py"
_LOST = "tests/http/test_lost_messages.py"
_LOGS = "tests/process/test_logging_setup.py"
_BLOCKS = "tests/messaging/test_damaged_blocks.py"
_FLIPS = f"{_BLOCKS}::test_a_flipped_bit_is_told_and_hides_nothing_else"

DAMAGE_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "a corrupt block is trusted where no row shows its corruption",
        "messaging/storage/leveldb_corruption.py",
        "    return walk.ended() if is_accounted_for else [whole]\n",
        "    return walk.ended()\n",
        (
            "tests/messaging/test_damaged_entries.py::test_a_block_accounts_for_its_damage_or_is_a_hole[nothing shows what is damaged]",
        ),
    ),
    Mutant(
        "a row that LevelDB leaves out goes unnoticed",
        "messaging/storage/leveldb_corruption.py",
        "        is_hidden = entry.sequence > last_sequence or not (entry.is_value or is_deletion)\n",
        "        is_hidden = False\n",
        (
            "tests/messaging/test_damaged_entries.py::test_a_block_accounts_for_its_damage_or_is_a_hole[a number that no row has]",
        ),
    ),
    Mutant(
        "a table file is checked once and trusted for ever",
        "messaging/storage/leveldb_corruption.py",
        "        if known is None or known.checksum != checksum:\n",
        "        if known is None:\n",
        (f"{_BLOCKS}::test_damage_that_comes_while_the_store_is_open_is_told_too",),
    ),
    Mutant(
        "a table file that was compacted away is reported as corrupt",
        "messaging/storage/leveldb_corruption.py",
        "            if number not in self._manifest().tables:\n",
        "            if False:\n",
        (f"{_BLOCKS}::test_a_table_that_was_compacted_meanwhile_is_no_hole",),
    ),
    Mutant(
        "a corrupt end of a LevelDB store ends the scan silently",
        "tuff/leveldb/scan.py",
        "    return _forward(rows, start, stop)\n",
        "    return source.iterator(start=start, stop=stop, verify_checksums=is_verified)\n",
        (
            f"{_BLOCKS}::test_a_damaged_end_of_the_store_is_not_the_end_of_the_rows",
            "tests/table/test_damage.py::test_a_damaged_end_of_the_table_is_not_the_end_of_its_rows",
        ),
    ),
    Mutant(
        "the next id of a page that ends before corruption leads back into the page",
        "messaging/read/scan.py",
        "        return max(self._passed, self._messages.last_id) if self._messages else self._passed\n",
        "        return self._passed\n",
        (_FLIPS,),
    ),
    Mutant(
        "a backward scan ends at a table file that is gone",
        "messaging/storage/leveldb.py",
        "    with _as_store_errors(), closing(scan_backward(snapshot, start, stop)) as rows:\n",
        "    with _as_store_errors(), closing(snapshot.iterator(start=start, stop=stop, reverse=True)) as rows:\n",
        (f"{_BLOCKS}::test_a_store_whose_only_file_is_gone_is_not_empty",),
    ),
    Mutant(
        "a row in a missing table file counts as never written",
        "messaging/storage/leveldb.py",
        "        if found is not None:\n            return found\n",
        "        return found\n",
        (f"{_BLOCKS}::test_a_row_whose_file_is_gone_is_an_error_and_not_a_missing_row",),
    ),
    Mutant(
        "a range of which all rows are hidden has no splits",
        "messaging/read/offsets.py",
        "            deque(records, maxlen=0)",
        "            deque([], maxlen=0)",
        (f"{_BLOCKS}::test_a_range_in_a_hole_is_a_split_whose_reader_is_told",),
    ),
    Mutant(
        "a patrol that begins inside a publish drops its later rows alone",
        "messaging/retention/cleaner.py",
        "        case Decision.DROP if may_be_cut and row.ttl_s is not None:\n",
        "        case Decision.DROP if False:\n",
        (
            "tests/messaging/test_sweep.py::test_a_patrol_that_begins_in_the_middle_of_a_publish_tears_it_not",
        ),
    ),
    Mutant(
        "a sleeping reader is not woken for messages that are live again",
        "messaging/read/poll.py",
        "    return replace(query, start=asked) if query.live_from < live_from else query\n",
        "    return query\n",
        (
            "tests/messaging/test_sleeping_readers.py::test_what_had_expired_and_is_kept_longer_wakes_who_sleeps_at_the_beginning",
        ),
    ),
    Mutant(
        "whatever waits at a closed write gate closes it again",
        "tx/write_gates_and_key_locks.py",
        "            await gate.reopened.wait()\n",
        "            async with self.ending(transaction_id):\n                pass\n",
        (
            "tests/tx/test_write_gates_and_key_locks.py::test_can_commits_that_wait_for_a_refused_commit_continue[2]",
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
        "a snapshot that contradicts itself is accepted",
        "tx/snapshot_file.py",
        "    reason = inconsistency(reader.image)\n",
        "    reason = None\n",
        (
            f"{_CONTRADICTIONS}::test_a_snapshot_that_contradicts_itself_is_damaged[an open transaction twice]",
        ),
    ),
    Mutant(
        "the first transaction file is made before the message store has its id",
        "process/components.py",
        "        if self._keeps_messages and not await self._has_store_id():\n            return\n",
        "",
        (f"{_FIRST_START}::test_an_interrupted_first_start_is_repeated[True-settings0]",),
    ),
    Mutant(
        "an empty message store beside transaction files is taken for a first start",
        "process/components.py",
        "            if not has_files(snapshots):\n",
        "            if True:\n",
        (
            f"{_FIRST_START}::test_a_lost_message_store_is_never_replaced_by_an_empty_one[True-settings0]",
            f"{_LOST}::test_a_start_without_its_messages_takes_none_and_goes_on_when_they_are_back[settings0]",
        ),
    ),
    Mutant(
        "a start that runs no transaction creates no transaction files",
        "tx/manager.py",
        "                await self.durable.begin_unused(mark)\n",
        "                pass\n",
        (
            f"{_FIRST_START}::test_a_lost_message_store_is_never_replaced_by_an_empty_one[True-settings1]",
        ),
    ),
    Mutant(
        "an empty message store is accepted without a check whether it was lost",
        "messaging/storage/loading.py",
        "    if metadata is None and (reason := why_not_begin()) is not None:\n",
        "    if False and (reason := why_not_begin()) is not None:\n",
        (f"{_LOST}::test_an_empty_store_in_their_place_is_no_beginning[settings0]",),
    ),
    Mutant(
        "fsck accepts an empty message store beside transaction files",
        "admin/fsck.py",
        "    return data.has_messages and is_empty and has_files(data.snapshots)\n",
        "    return False\n",
        (f"{_LOST}::test_an_empty_store_in_their_place_is_no_beginning[settings0]",),
    ),
    Mutant(
        "a change of health is logged only on a request",
        "process/components.py",
        "            self._changes.note(self._checks())\n",
        "            pass\n",
        (
            f"{_LOGS}::test_corrupt_transaction_files_are_logged_with_the_name_of_the_file",
            f"{_LOGS}::test_a_stop_and_a_start_of_the_service_are_logged_at_once",
        ),
    ),
    Mutant(
        "a clock that is set while the server runs goes unnoticed",
        "process/components.py",
        "        if (jumped := jump(offset_ms)) is not None:\n",
        "        if (jumped := jump(offset_ms)) is None and False:\n",
        (f"{_LOGS}::test_a_step_of_the_wall_clock_is_logged[3600000]",),
    ),
)
