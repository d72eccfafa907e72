"""The tests of tests/table that hold for every engine, run with tables in HBase (design §2).

They are imported, and find the fixtures `open_table` and `table` of this folder. Not imported are
tests of LevelDB's files and locks, and of code that all engines share.
"""

from pathlib import Path

import pytest

pytest.importorskip("happybase")

from hypothesis import HealthCheck, settings

from tests.hbase.local_hbase import why_missing
from tests.table.conftest import OpenTable
from tests.table.test_compaction import (
    test_a_snapshot_that_joins_after_the_compaction_reads_what_it_would_have_before,
    test_an_open_transaction_keeps_what_it_reads,
    test_the_transactions_of_another_server_are_refused,
    test_who_ended_unknowingly_neither_writes_nor_reads_after_a_compaction,
)
from tests.table.test_current_transaction import (
    test_after_commit_tx_nothing_more_is_read_or_written,
    test_each_task_works_in_its_own_transaction_and_a_child_in_its_parents,
    test_each_thread_works_in_its_own_transaction,
    test_outside_of_a_transaction_a_call_is_refused,
    test_what_committed_can_not_be_rolled_back_by_mistake,
)
from tests.table.test_server import (
    test_a_checkpointed_transaction_commits_all_it_wrote,
    test_a_long_transaction_of_nothing_but_rows_is_not_read_only,
    test_a_row_and_a_message_appear_together_or_not_at_all,
    test_an_update_is_never_lost,
    test_compaction_leaves_a_snapshot_that_joins_later_what_it_reads,
    test_rows_of_one_name_in_two_tables_are_no_conflict,
    test_two_tables_commit_and_roll_back_as_one,
    test_what_a_compaction_answers_may_leave_the_invalid_list,
    test_write_skew_is_possible,
)
from tests.table.test_state_machine import BUFFER_BYTES, TABLE_ID, TableMachine
from tests.table.test_table import (
    test_a_checkpoint_keeps_earlier_writes_and_can_hide_later_ones,
    test_a_committed_row_is_there_and_any_other_is_none,
    test_a_long_transaction_names_one_change_however_much_it_wrote,
    test_a_rollback_takes_back_what_commit_tx_wrote_and_no_more,
    test_a_rolled_back_transaction_leaves_nothing,
    test_a_scan_goes_on_as_it_began_whatever_is_written_meanwhile,
    test_a_scan_is_in_key_order_half_open_and_knows_every_kind_of_key,
    test_a_scan_that_is_left_half_way_does_not_keep_the_table_from_closing,
    test_a_table_is_given_its_id_once,
    test_a_transaction_keeps_its_snapshot_while_others_commit,
    test_a_transaction_reads_its_own_writes_and_nobody_elses,
    test_another_process_goes_on_and_can_still_undo_everything,
    test_another_process_rolls_back_what_a_crash_left,
    test_changes_tell_rows_and_tables_apart,
    test_keys_and_values_are_bytes_of_bounded_size,
    test_rows_outlive_the_object_that_wrote_them,
    test_what_is_written_before_a_table_is_closed_is_refused_and_not_lost_in_silence,
)
from tuff.tables.versioned_table import VersionedTable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.hbase,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
]


def test_every_transaction_reads_its_snapshot_whatever_happens(open_table: OpenTable) -> None:
    class HBaseMachine(TableMachine):
        """A crash loses what is in memory; what HBase holds, the next process finds."""

        def open(self, home: Path) -> VersionedTable:
            self.home = home
            # The first is the process's own: two under one would write over each other's undo rows.
            ids = iter((b"%08d" % self.home_count, TABLE_ID))
            return open_table(home.parent, buffer_bytes=BUFFER_BYTES, new_id=lambda: next(ids))

        def copy_as_crashed(self, home: Path) -> None:
            pass

    class Case(HBaseMachine.TestCase):
        settings = settings(
            max_examples=4,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )

    Case("runTest").runTest()
