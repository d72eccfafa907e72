"""The tests of tests/table for every engine, run with tables in HBase (design §2).

They are imported, and use the fixtures `open_table` and `table` of this folder. Tests of LevelDB's
files and locks, and of code that all engines share, are not imported.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.hbase.marks import NEEDS_HBASE
from tests.table.conftest import OpenTable
from tests.table.test_compaction import (
    test_a_compaction_keeps_the_snapshot_of_an_open_transaction,
    test_a_compaction_refuses_transactions_of_another_server,
    test_after_a_compaction_an_ended_transaction_can_neither_read_nor_write,
)
from tests.table.test_current_transaction import (
    test_a_committed_transaction_can_not_be_rolled_back,
    test_after_commit_tx_reads_and_writes_are_refused,
    test_each_task_works_in_its_own_transaction_and_a_child_in_its_parents,
    test_each_thread_works_in_its_own_transaction,
    test_outside_of_a_transaction_a_call_is_refused,
)
from tests.table.test_server import (
    test_a_checkpointed_transaction_commits_all_writes,
    test_a_compaction_keeps_a_snapshot_of_the_server,
    test_a_long_transaction_with_rows_is_not_read_only,
    test_a_row_and_a_message_appear_together_or_not_at_all,
    test_an_update_is_never_lost,
    test_equal_keys_of_two_tables_do_not_conflict,
    test_pointers_that_a_compaction_returns_can_be_truncated,
    test_two_tables_commit_and_roll_back_together,
    test_write_skew_is_possible,
)
from tests.table.test_state_machine import BUFFER_BYTES, TABLE_ID, TableMachine
from tests.table.test_table import (
    test_a_change_is_the_id_of_the_table_and_the_key,
    test_a_checkpoint_keeps_earlier_writes_and_can_hide_later_ones,
    test_a_commit_on_a_closed_table_raises,
    test_a_long_transaction_has_one_change_for_all_writes,
    test_a_rollback_removes_only_what_commit_tx_stored,
    test_a_scan_returns_any_keys_in_order_without_its_stop,
    test_a_scan_shows_no_later_writes,
    test_a_table_keeps_its_first_id,
    test_a_transaction_keeps_its_snapshot_while_others_commit,
    test_a_transaction_reads_only_its_own_uncommitted_writes,
    test_an_unfinished_scan_does_not_delay_close,
    test_another_process_can_continue_a_transaction_and_undo_all_of_it,
    test_another_process_can_roll_back_after_a_crash,
    test_get_returns_a_committed_row_or_none,
    test_keys_and_values_are_bytes_of_bounded_size,
    test_rows_are_there_after_opening_again,
)
from tuff.tables.versioned_table import VersionedTable

pytestmark = NEEDS_HBASE


def test_every_transaction_reads_its_snapshot(open_table: OpenTable) -> None:
    class HBaseMachine(TableMachine):
        """A crash loses writes in memory; the next process finds the stored ones in HBase."""

        def open(self, home: Path) -> VersionedTable:
            self.home = home
            # The first is the id of the writer: with equal ids, processes would overwrite each
            # other's undo rows.
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
