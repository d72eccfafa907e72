"""Bugs to plant in what jobs ask for: columns, parts, holds and named positions."""

from collections.abc import Sequence

from tests.mutants.planted import Mutant

_ARCHIVE_READS = "tests/messaging/test_archive_reads.py"
_HOLDS = "tests/messaging/test_holds_and_positions.py"
_KEEPS_ON_ITS_WAY = f"{_HOLDS}::test_a_pending_hold_or_longer_ttl_counts_for_readers"
_SLEEPING = "tests/messaging/test_long_polls.py"
_ARROW = "tests/messaging/test_arrow_reply.py"
_FAST = "tests/messaging/test_scan_of_chunks.py"
_INSPECTION = "tests/http/test_inspection.py"
_SINKS = "tests/tx/test_sinks.py"

JOB_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "retention ignores holds",
        "messaging/model/expiry.py",
        "                live_from = min(live_from, each.first.offset)\n",
        "                pass\n",
        (f"{_HOLDS}::test_a_held_message_outlives_the_ttl_until_the_hold_expires",),
    ),
    Mutant(
        "a hold never expires",
        "messaging/model/expiry.py",
        "            if now_ms < each.expires_at_ms:\n",
        "            if True:\n",
        (f"{_HOLDS}::test_a_held_message_outlives_the_ttl_until_the_hold_expires",),
    ),
    Mutant(
        "payload rows of a held reference row are deleted",
        "messaging/model/expiry.py",
        "topic.live_from(now_ms=state.now_ms).timestamp_ms\n",
        "max(0, state.now_ms - topic.ttl_s * 1000 + 1)\n",
        (f"{_HOLDS}::test_a_group_is_held_with_its_stored_payloads",),
    ),
    Mutant(
        "a hold brings back expired messages",
        "messaging/retention/holds_and_positions.py",
        "        first=max(first, record.log_start, live_from, keepable),\n",
        "        first=max(first, record.log_start, keepable),\n",
        (
            f"{_HOLDS}::test_a_hold_brings_no_expired_message_back",
            "tests/messaging/test_holds_model.py",
        ),
    ),
    Mutant(
        "a hold counts for readers only once it is durable",
        "messaging/log/topics.py",
        "        return replace(rule, pending=decided.rule)\n",
        "        return rule\n",
        (f"{_KEEPS_ON_ITS_WAY}[hold]",),
    ),
    Mutant(
        "a longer ttl counts for readers only once it is durable",
        "messaging/log/topics.py",
        "        return replace(rule, pending=decided.rule)\n",
        "        return replace(rule, holds=(*rule.holds, *decided.holds.values()))\n",
        (f"{_KEEPS_ON_ITS_WAY}[longer_ttl]",),
    ),
    Mutant(
        "the expiry of a blocking row does not wake its reader",
        "messaging/read/poll.py",
        "min(deadline_s, began_s + left_s)",
        "deadline_s",
        (f"{_SLEEPING}::test_a_blocked_reader_wakes_when_the_row_expires",),
    ),
    Mutant(
        "a truncation ignores holds",
        "messaging/topic_changes.py",
        "    if names and log_start > record.log_start:\n",
        "    if False:\n",
        (f"{_HOLDS}::test_a_truncation_beyond_a_hold_is_refused",),
    ),
    Mutant(
        "region observers get no holds",
        "messaging/model/expiry.py",
        "        return replace(self, ttl_s=max(self.ttl_s, kept_ms // 1000 + 1), holds=(), pending=None)\n",
        "        return replace(self, holds=(), pending=None)\n",
        ("tests/messaging/test_expiry.py",),
    ),
    Mutant(
        "a corrupt hold is skipped silently",
        "messaging/log/loading.py",
        "            if table == HOLDS or isinstance(error, NewerRowError):\n",
        "            if isinstance(error, NewerRowError):\n",
        (f"{_HOLDS}::test_a_damaged_hold_is_reported_and_no_message_of_its_topic_is_deleted",),
    ),
    Mutant(
        "holds and positions outlive their topic",
        "messaging/topic_changes.py",
        "            batch.delete(named_row_key(table, prefix, name))\n",
        "            pass\n",
        (f"{_HOLDS}::test_holds_and_positions_survive_a_restart_and_die_with_the_topic",),
    ),
    Mutant(
        "a split ends inside the messages of one reference row",
        "messaging/read/offsets_and_splits.py",
        "MessageId.from_bytes(before_row(Offset.from_int(cut)))",
        "MessageId(*Offset.from_int(cut), 0, 5)",
        (
            "tests/messaging/test_splits.py::test_a_reference_counts_in_splits_with_its_stored_messages",
        ),
    ),
    Mutant(
        "rows that the files do not hold yet count for nothing",
        "messaging/read/offsets_and_splits.py",
        "    rows, sizes = _scanned(store, prefix, scanned_from, stop)\n",
        "    rows, sizes = [], []\n",
        ("tests/messaging/test_splits.py::test_splits_of_scanned_rows_are_even",),
    ),
    Mutant(
        "a column of pointers tells who was rolled back",
        "messaging/log/scan.py",
        "        pointer = None if pointer is None else abs(pointer)\n",
        "",
        (f"{_ARROW}::test_a_reply_from_memory_names_the_pointers_too",),
    ),
    Mutant(
        "only the first message of a group tells its pointer",
        "messaging/log/arrow_reply.py",
        '        numbers[start:stop] = array("q", [pointer]) * (stop - start)\n',
        "        numbers[start] = pointer\n",
        (f"{_ARROW}::test_a_reply_in_arrow_has_the_messages_of_the_one_in_avro",),
    ),
    Mutant(
        "the fast path returns messages after the last id asked for",
        "messaging/log/scan.py",
        "        if keys[-1][-OFFSET_SIZE:] > rows.through:\n",
        "        if False:\n",
        (f"{_FAST}::test_chunks_of_payload_rows_are_read_as_row_by_row",),
    ),
    Mutant(
        "rows read before an error are dropped with it",
        "messaging/engines/engine_interface.py",
        "            if chunk:\n                yield chunk\n            raise\n",
        "            raise\n",
        (f"{_FAST}::test_rows_that_the_engine_read_before_it_failed_are_delivered",),
    ),
    Mutant(
        "a fenced run takes its sink back",
        "tx/sinks.py",
        "    if asked.run_id in sink.fenced:\n",
        "    if False:\n",
        (f"{_SINKS}::test_a_run_that_was_fenced_never_takes_the_sink_back",),
    ),
    Mutant(
        "a replayed epoch commits twice",
        "tx/sinks.py",
        "has_committed:\n        return Step.NOTHING\n",
        "has_committed:\n        return Step.BEGIN\n",
        (f"{_SINKS}::test_every_run_that_asks_for_a_committed_epoch_learns_that_it_committed",),
    ),
    Mutant(
        "an aborted epoch looks committed",
        "tx/state.py",
        "                state=outcome.state,\n",
        "                state=EndedState.COMMITTED,\n",
        (f"{_SINKS}::test_a_later_epoch_does_not_begin_before_the_recorded_one_committed",),
    ),
    Mutant(
        "an epoch begins beside the transaction of an older run",
        "tx/sinks.py",
        "                await self._runner.invalidate(sink.transaction_id)\n",
        "                await self._start(asked, lease)\n",
        (f"{_SINKS}::test_another_run_ends_the_transaction_before_it_begins_its_own",),
    ),
    Mutant(
        "the answer about a sink is not durable yet",
        "tx/sinks.py",
        "            if lsn <= state.seen:\n                return sink\n",
        "            if lsn >= 0:\n                return sink\n",
        ("tests/tx/test_sink_recovery.py::test_every_answer_about_a_sink_is_durable",),
    ),
    Mutant(
        "a renewed lease is lost in a crash",
        "tx/deadlines_and_leases.py",
        "        for opened in in_progress:\n            self.begin_lease(opened)\n",
        "        for each in in_progress:\n"
        "            begun_ms = each.transaction_id // 1_000_000\n"
        "            self._ends_ms[each.transaction_id] = begun_ms + (each.lease_ms or 0)\n",
        ("tests/tx/test_leases.py::test_after_a_restart_a_lease_is_whole_again",),
    ),
    Mutant(
        "an archive of an older generation is read as the topic's",
        "messaging/read/archive.py",
        "            if row.generation != generation or hour_last <= after:\n",
        "            if hour_last <= after:\n",
        (f"{_ARCHIVE_READS}::test_an_older_generation_of_the_topic_is_not_read",),
    ),
    Mutant(
        "a read passes over a gap in the archive",
        "messaging/read/archive.py",
        "                is_complete = False\n",
        "                pass\n",
        (f"{_ARCHIVE_READS}::test_a_read_ends_before_a_gap_and_the_next_one_is_expired",),
    ),
    Mutant(
        "messages that retention removes during a read are missed, though they are archived",
        "messaging/read/poll.py",
        "        if self._archive is not None and _is_overtaken(topic, query):\n",
        "        if False:\n",
        (
            f"{_ARCHIVE_READS}::test_messages_that_retention_removes_during_a_read_come_from_the_archive",
        ),
    ),
    Mutant(
        "a file of the archive is decoded whatever its checksum is",
        "messaging/read/archive.py",
        "    if found != expected:\n",
        "    if False:\n",
        (f"{_ARCHIVE_READS}::test_another_file_in_place_of_one_is_corrupt",),
    ),
    Mutant(
        "an expired row is shown with the state of its transaction",
        "messaging/read/inspection.py",
        "    if is_expired:\n",
        "    if False:\n",
        (f"{_INSPECTION}::test_each_row_has_the_state_of_its_transaction",),
    ),
    Mutant(
        "a page of topics continues in the order of texts, which is not that of topics",
        "messaging/read/inspection.py",
        "        rest = [each for each in found if (each.namespace, each.name) > (behind, name)]\n",
        "        rest = [each for each in found if f'{each.namespace}:{each.name}' > f'{behind}:{name}']\n",
        (f"{_INSPECTION}::test_the_overview_comes_in_pages_by_name",),
    ),
    Mutant(
        "Spark does not read the partitions that take no more messages",
        "pyspark_tuff/planning.py",
        "    return [topic.partition(number) for number in sorted((*info.partitions, *info.retired))]\n",
        "    return [topic.partition(number) for number in sorted(info.partitions)]\n",
        (
            "tests/spark/test_stream_read.py::test_a_retired_partition_is_deleted_without_data_loss_if_all_of_it_was_read",
        ),
    ),
)
