"""The bugs to plant in the messaging room (tests/mutants/planted.py says how)."""

from collections.abc import Sequence

from tests.mutants.planted import Mutant

_LOST = "tests/http/test_lost_message_store.py"
_SHARE = "tests/groups/test_share_coordinator.py"
_WORKER = "tests/client/test_share_consumer.py"
_CONSUMER = "tests/client/test_consumer.py"
_UNREAD = "tests/groups/test_lost_messages.py"
_GROUPS = "tests/groups/test_consumer_coordinator.py"
_HOLDS = "tests/messaging/test_holds_and_positions.py"
_REPEATED = "tests/messaging/test_repeated_publishes.py"

MESSAGE_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "what a group has lost is counted with each look",
        "messaging/read/lost_messages.py",
        "        self._counted_to[reader] = max(stops.values())\n",
        "",
        (f"{_UNREAD}::test_looks_before_the_rows_are_deleted_count_them_once",),
    ),
    Mutant(
        "after a start, what expired before it is no loss",
        "messaging/read/lost_messages.py",
        "        counted_to = self._counted_at_start.get(topic.id, NO_LOG_START)\n",
        "        counted_to = max(self.stops(topic, record).values())\n",
        (f"{_UNREAD}::test_after_a_start_what_expired_since_the_end_is_counted_and_nothing_twice",),
    ),
    Mutant(
        "what a share group loses of partition 0 of several is not counted",
        "messaging/groups/share_coordinator.py",
        "            partition = topic.partition(topic.number or 0)",
        "            partition = topic",
        (f"{_UNREAD}::test_a_share_group_loses_of_each_partition_of_a_topic",),
    ),
    Mutant(
        "a group is deleted while a transaction may commit its offsets",
        "messaging/groups/consumer_coordinator.py",
        "        if state.members or state.undecided:\n",
        "        if state.members:\n",
        (f"{_GROUPS}::test_a_group_whose_offsets_may_still_be_committed_is_kept",),
    ),
    Mutant(
        "a partition that is added has none of its topic's holds",
        "messaging/topic_changes.py",
        "            held = self._holds_of_all([*records.values()])\n",
        "            held = dict[str, Hold]()\n",
        (
            f"{_HOLDS}::test_a_hold_of_a_topic_is_one_of_all_its_partitions_and_of_those_added_later",
        ),
    ),
    Mutant(
        "what waits behind a cancelled delayed message is forgotten",
        "messaging/write/delayed_messages.py",
        "        if row[0].due_ms > due.by_ms and row[0] not in cancelled:\n",
        "        if row[0].due_ms > due.by_ms:\n",
        (
            "tests/messaging/test_delayed.py::test_what_waits_behind_a_cancelled_message_enters_in_time",
        ),
    ),
    Mutant(
        "a partition that is added does not join the share groups of its topic",
        "messaging/groups/share_coordinator.py",
        "        if all(self._logs.exists(each.share_log(group)) for each in partitions):\n            return partitions\n",
        "        if partitions:\n            return [p for p in partitions if self._logs.exists(p.share_log(group))]\n",
        (
            "tests/http/test_share_groups.py::test_an_added_partition_joins_a_group_from_its_beginning",
            "tests/client/test_share_consumer.py::test_a_worker_reads_all_partitions_also_those_that_are_added_while_it_runs[at_least_once]",
        ),
    ),
    Mutant(
        "a member that closes does not wait for the reply to its join",
        "tuff/group_member.py",
        "yield from asking if is_join else unless(self._closing, asking)",
        "yield from unless(self._closing, asking)",
        (
            "tests/client/test_group_member.py::test_a_close_waits_for_a_join_that_was_sent",
            "tests/client/test_consumer.py::test_a_member_that_closes_while_it_joins_is_no_member",
        ),
    ),
    Mutant(
        "a member begins a message before the coordinator knows of it",
        "tuff/consumer_attempts.py",
        "        is_first = partition not in self._reported\n",
        "        is_first = False\n",
        ("tests/client/test_killer_messages.py",),
    ),
    Mutant(
        "a message of which members died is begun again for ever",
        "tuff/group_member.py",
        "        if not self.retries.may_begin(batch):\n",
        "        if False:\n",
        ("tests/client/test_killer_messages.py",),
    ),
    Mutant(
        "a consumer does not follow the preferences of its group",
        "tuff/group_member.py",
        "        self._follow(own.or_else(preferences))\n",
        "        self._follow(own)\n",
        (
            "tests/client/test_preferred_consumers.py::test_a_consumer_begins_and_selects_as_its_group_prefers",
            "tests/client/test_preferred_consumers.py::test_a_message_goes_to_the_dead_letters_that_the_group_prefers",
        ),
    ),
    Mutant(
        "the death of a member is not counted for the message that it had begun",
        "messaging/groups/consumer_decisions.py",
        'self.begun[each.partition] = replace(each, member_id="", lost=each.lost + 1)',
        'self.begun[each.partition] = replace(each, member_id="")',
        (
            "tests/groups/test_lost_beginnings.py::test_the_next_owner_learns_how_many_members_a_message_has_killed",
        ),
    ),
    Mutant(
        "a member that leaves counts as dead by the message that it had begun",
        "messaging/groups/consumer_decisions.py",
        "        draft.add(replace(current, assigned={}, revoking={}))\n",
        "        pass\n",
        (
            "tests/groups/test_lost_beginnings.py::test_a_member_that_leaves_has_lost_nothing[False]",
        ),
    ),
    Mutant(
        "a read in a transaction that ends meanwhile misses its own messages",
        "messaging/read/poll.py",
        "        if waiter.is_set():\n",
        "        if False:\n",
        (
            "tests/messaging/test_long_polls.py::test_a_read_in_a_transaction_that_ends_meanwhile_is_refused",
        ),
    ),
    Mutant(
        "rows are marked before the reads in their transaction know that it ended",
        "messaging/write/transaction_rows.py",
        "        self._wake_readers_in(transaction_pointers)\n        if carried:\n",
        "        if carried:\n",
        (
            "tests/messaging/test_long_polls.py::test_a_read_in_a_transaction_that_ends_meanwhile_is_refused",
        ),
    ),
    Mutant(
        "deleted rows are compacted without the space for it",
        "messaging/retention/compaction.py",
        "        return free_bytes is None or piece.written_bytes + MARGIN_BYTES <= free_bytes\n",
        "        return True\n",
        ("tests/messaging/test_compaction.py::test_nothing_is_compacted_without_the_space_for_it",),
    ),
    Mutant(
        "a compaction meets a damaged table, and all writes fail",
        "messaging/engines/leveldb.py",
        '        if damage is not None:\n            raise StoreDamagedError(f"{damage}; it is not',
        '        if False:\n            raise StoreDamagedError(f"{damage}; it is not',
        ("tests/messaging/test_compaction.py::test_damaged_tables_are_not_compacted",),
    ),
    Mutant(
        "health is ok while a damaged file stops all writes",
        "messaging/service.py",
        "        failing = self.committer.failed_writes.reason\n",
        "        failing = None\n",
        (
            "tests/messaging/test_failing_writes.py::test_a_damaged_file_that_stops_all_writes_is_a_state_and_reads_go_on",
        ),
    ),
    Mutant(
        "what makes room is refused on a full disk",
        "messaging/write/write_queue.py",
        "        lack = self.lack_of_last_space if makes_room else self.lack_of_space\n",
        "        lack = self.lack_of_space\n",
        (
            "tests/messaging/test_making_room.py::test_what_makes_room_is_possible_below_the_reserve",
        ),
    ),
    Mutant(
        "a full disk keeps its spare file while the store can't be opened",
        "messaging/service.py",
        "        await self._make_room()\n        if self.committer.lack_of_last_space is not None or",
        "        if self.committer.lack_of_last_space is not None or",
        (
            "tests/messaging/test_making_room.py::test_a_store_that_is_down_gets_the_space_that_is_kept_to_be_opened_again",
        ),
    ),
    Mutant(
        "a write that may be there is answered as one that is not",
        "messaging/write/write_queue.py",
        "                StorageOutcomeUnknownError(\n",
        "                StorageUnavailableError(\n",
        (
            "tests/messaging/test_failed_writes.py::test_a_batch_in_doubt_is_resolved_when_the_store_opens_again",
        ),
    ),
    Mutant(
        "a group asks another server for no partitions after its clock was set back",
        "messaging/groups/consumer_coordinator.py",
        "now_ms < until_ms <= now_ms + FOREIGN_MS:",
        "now_ms < until_ms:",
        (
            "tests/groups/test_consumer_coordinator.py::test_the_partitions_of_another_server_are_asked_for_again_once_the_clock_was_set_back",
        ),
    ),
    Mutant(
        "an empty read at the end stays cached",
        "messaging/log/tail_cache.py",
        "        if result.messages or not result.caught_up:\n",
        "        if True:\n",
        (
            "tests/messaging/test_tail_cache.py::test_an_empty_read_at_the_end_names_the_end_of_its_time",
        ),
    ),
    Mutant(
        "offsets of groups count for max_block",
        "messaging/log/rows_by_transaction.py",
        "        return self.kind == MESSAGE_ROWS and not _is_of_group(self.topic)\n",
        "        return self.kind == MESSAGE_ROWS\n",
        (
            "tests/messaging/test_rows_by_transaction.py::test_what_holds_no_reader_back_does_not_count_for_max_block",
        ),
    ),
    Mutant(
        "delayed messages of an aborted transaction stay undecided for ever",
        "messaging/log/rows_by_transaction.py",
        "PUBLISHED_KINDS = frozenset((MESSAGE_ROWS, DELAYED_ROWS))",
        "PUBLISHED_KINDS = frozenset((MESSAGE_ROWS,))",
        ("tests/messaging/test_delayed.py::test_the_end_of_a_transaction_leaves_no_undecided_row",),
    ),
    Mutant(
        "outcomes are forgotten by the age that a doubtful clock gives them",
        "tx/service.py",
        "if self._may_forget() else 0",
        "if True else 0",
        ("tests/tx/test_outcomes.py::test_no_outcome_is_forgotten_by_a_doubtful_clock",),
    ),
    Mutant(
        "a large request is decoded on the event loop",
        "kernel/large_bodies.py",
        "        is_large = request.size > LARGE_BODY_BYTES\n",
        "        is_large = False\n",
        ("tests/messaging/test_publish.py::test_a_large_request_is_decoded_in_a_thread",),
    ),
    Mutant(
        "a large reply from memory is encoded on the event loop",
        "messaging/read/poll.py",
        "        if len(result.messages) > ENCODED_COUNT_MAX and ",
        "        if False and ",
        (
            "tests/messaging/test_read_turns.py::test_a_large_reply_from_memory_is_encoded_in_a_thread",
        ),
    ),
    Mutant(
        "one client may occupy all threads that read",
        "messaging/read/read_turns.py",
        "        if turns.under_way < READS_OF_CLIENT_MAX:\n",
        "        if True:\n",
        (
            "tests/messaging/test_read_turns.py::test_the_reads_of_a_client_wait_for_each_other_and_for_no_other_client",
        ),
    ),
    Mutant(
        "the turn of a read that was taken back is lost",
        "messaging/read/read_turns.py",
        "                elif not turn.cancelled():  # it had got its turn\n"
        "                    self._end(client)\n",
        "",
        (
            "tests/messaging/test_read_turns.py::test_a_turn_that_comes_when_its_client_has_gone_is_passed_on",
        ),
    ),
    Mutant(
        "a publish of a session overtakes a large one that is being decoded",
        "kernel/large_bodies.py",
        "            waiting.append((handler, request))\n",
        "            waiting = None\n",
        ("tests/http/test_session.py::test_publishes_behind_a_large_one_keep_their_order",),
    ),
    Mutant(
        "a large commit is decoded on the event loop",
        "tx/routes.py",
        "            if may_wait and self._large.comes_later(\n",
        "            if False and self._large.comes_later(\n",
        ("tests/tx/test_large_commits.py",),
    ),
    Mutant(
        "rows of a large publish are not made",
        "messaging/write/write_batch.py",
        "        batch.make_rows()\n",
        "        batch.unmade.clear()\n",
        (
            "tests/messaging/test_publish.py::test_rows_of_large_publishes_keep_their_places_in_a_batch",
        ),
    ),
    Mutant(
        "a rollback is one batch, however many rows it has",
        "messaging/write/write_batch.py",
        "            if rows_left <= 0 or bytes_left < 0:\n",
        "            if False:\n",
        (
            "tests/messaging/test_transaction_ends.py::test_a_rollback_goes_in_steps_between_which_other_writes_have_their_turn",
        ),
    ),
    Mutant(
        "a read in the snapshot of an ended transaction sees a part of a publish",
        "messaging/read/poll.py",
        "invalids=PointerList((*snapshot.invalids, *own))",
        "invalids=snapshot.invalids",
        (
            "tests/messaging/test_transaction_ends.py::test_a_reader_in_the_snapshot_of_an_ended_transaction_sees_no_part_of_a_publish",
        ),
    ),
    Mutant(
        "a publish gets the rows of another topic's run",
        "messaging/write/write_batch.py",
        "if run is None or run.prefix != prefix or run.last != before:",
        "if run is None or run.last != before:",
        (
            "tests/messaging/test_publish.py::test_concurrent_publishes_of_all_kinds_keep_their_order",
        ),
    ),
    Mutant(
        "publishes that arrive together get ids of each other's messages",
        "messaging/write/publish.py",
        "        number += count\n",
        "        number += 1\n",
        (
            "tests/http/test_session.py::test_publishes_that_arrive_together_get_the_ids_of_their_own_messages",
        ),
    ),
    Mutant(
        "publishes to several topics that arrive together are written to the first one",
        "messaging/write/publish.py",
        "if run and (asked.topic is not run[0].topic or not",
        "if run and (not",
        (
            "tests/http/test_session.py::test_publishes_that_arrive_together_keep_their_order_over_topics_and_other_calls",
        ),
    ),
    Mutant(
        "a batch takes a call before an earlier one of its connection",
        "process/admission_and_dispatch.py",
        "        if index < last.get(client, 0):\n",
        "        if index < 0:\n",
        (
            "tests/process/test_admission_and_dispatch.py::test_the_calls_of_a_connection_keep_their_order",
        ),
    ),
    Mutant(
        "a commit that is refused fails those that are written with it",
        "messaging/write/publish.py",
        "            except TuffError as error:\n                refused[topic] = error\n",
        "            except ZeroDivisionError:\n                pass\n",
        (
            "tests/messaging/test_publish.py::test_a_commit_that_is_refused_in_a_write_of_several_is_refused_by_itself",
        ),
    ),
    Mutant(
        "message ids follow a clock that is set back",
        "messaging/log/sequencer.py",
        "        if now_ms > last.timestamp_ms:\n",
        "        if now_ms != last.timestamp_ms:\n",
        (
            "tests/messaging/test_sequencer.py::test_a_clock_that_goes_back_keeps_the_last_timestamp",
        ),
    ),
    Mutant(
        "an undecided row does not hold a reader",
        "messaging/model/visibility.py",
        "else Verdict.BLOCK\n",
        "else Verdict.SKIP\n",
        (
            "tests/messaging/test_publish.py::test_a_committed_reader_is_held_by_an_undecided_publish",
        ),
    ),
    Mutant(
        "rolled-back rows are shown",
        "messaging/model/visibility.py",
        "    if pointer < 0 or holds(snapshot.invalids, pointer):\n",
        "    if holds(snapshot.invalids, abs(pointer)):\n",
        (
            "tests/messaging/test_transaction_ends.py::test_marked_rows_are_hidden_from_snapshots_and_carry_no_pointer",
        ),
    ),
    Mutant(
        "an exclusive start drops the first row, whichever it is",
        "messaging/model/visibility.py",
        "        return start.to_bytes()\n",
        "        return start.to_bytes()[:_TIME_SIZE] + PAST_ALL[_TIME_SIZE:]\n",
        ("tests/messaging/test_scan.py::test_an_exclusive_start_includes_the_very_next_id",),
    ),
    Mutant(
        "a rollback marks rows outside of its range",
        "messaging/write/publish.py",
        "            first, last = max(entry.first, detail.first), min(entry.last, detail.last)\n",
        "            first, last = entry.first, entry.last\n",
        (
            "tests/messaging/test_publish.py::test_a_rollback_hides_exactly_one_publish_and_can_be_repeated",
        ),
    ),
    Mutant(
        "a row with a write pointer has no index row",
        "messaging/write/publish.py",
        "        batch.put(key, entry.to_bytes(key))\n        self._state.index.add_under(key, entry)\n",
        "        self._state.index.add_under(key, entry)\n",
        (
            "tests/messaging/test_transaction_ends.py::test_the_index_survives_restarts_until_the_outcomes_are_known",
        ),
    ),
    Mutant(
        "a reference row includes payload rows of an earlier one",
        "messaging/write/publish.py",
        "            self._state.index.discard(entry)\n            batch.unindexed.append(entry)\n",
        "            batch.unindexed.append(entry)\n",
        (
            "tests/messaging/test_publish.py::test_a_reference_brings_only_what_was_stored_since_the_one_before",
        ),
    ),
    Mutant(
        "publishes of one id that arrive together are all written",
        "messaging/write/publish.py",
        "not asked.may_join or own in ids):",
        "not asked.may_join):",
        (
            "tests/http/test_session.py::test_publishes_of_one_id_that_arrive_together_are_written_once",
        ),
    ),
    Mutant(
        "the rows of commits that are put by columns have no index rows",
        "messaging/write/publish.py",
        "        batch.puts.update(zip(index_keys, index_values, strict=True))\n",
        "",
        ("tests/messaging/test_commits_by_columns.py",),
    ),
    Mutant(
        "what a lost batch had stored and published comes back as stored",
        "messaging/write/write_batch.py",
        "        state.index.discard_under(key)\n",
        "        pass\n",
        (
            "tests/messaging/test_failed_writes.py::test_what_a_lost_batch_stored_and_published_is_neither",
        ),
    ),
    Mutant(
        "a change of a topic that was lost decides what follows",
        "messaging/write/write_batch.py",
        "        topic.decided = before\n",
        "        pass\n",
        (
            "tests/messaging/test_failed_writes.py::test_a_refusal_based_on_a_pending_change_fails_with_it",
        ),
    ),
    Mutant(
        "a permit is not checked again when ids are assigned",
        "messaging/write/write_queue.py",
        "            write.permit.require_open()\n",
        "            pass\n",
        ("tests/messaging/test_publish.py",),
    ),
    Mutant(
        "a batch whose write failed is reported as not written",
        "messaging/write/write_queue.py",
        "            if is_there:\n",
        "            if False:\n",
        (
            "tests/messaging/test_failed_writes.py::test_a_failed_write_is_answered_by_what_the_reopened_store_contains",
        ),
    ),
    Mutant(
        "another store in the place of a failed one is accepted",
        "messaging/log/loading.py",
        "    if found not in possible:\n",
        "    if False:\n",
        (
            "tests/messaging/test_replaced_store.py::test_an_older_copy_is_refused_while_the_server_runs",
        ),
    ),
    Mutant(
        "readers see rows that are not durable yet",
        "messaging/model/visibility.py",
        "        return min(pack_offset(*self.high_water_mark), self.through[:OFFSET_SIZE])\n",
        "        return self.through[:OFFSET_SIZE]\n",
        ("tests/messaging/test_scan.py::test_no_row_behind_the_high_water_mark_is_shown",),
    ),
    Mutant(
        "a message's own time to live is ignored",
        "messaging/model/expiry.py",
        "    if is_past_own_ttl or row.offset < max(topic.log_start, ",
        "    if row.offset < max(topic.log_start, ",
        ("tests/messaging/test_expiry.py",),
    ),
    Mutant(
        "retention deletes the current generation",
        "messaging/model/expiry.py",
        "    if row.generation < abs(topic.generation) or row.generation == -topic.generation:\n",
        "    if row.generation <= abs(topic.generation):\n",
        ("tests/messaging/test_expiry.py",),
    ),
    Mutant(
        "payload rows expire while a transaction may still publish them",
        "messaging/model/expiry.py",
        "    published_ms = row.offset.timestamp_ms + state.longest_transaction_ms\n",
        "    published_ms = row.offset.timestamp_ms\n",
        ("tests/messaging/test_expiry.py",),
    ),
    Mutant(
        "the log start does not rise with expired messages",
        "messaging/retention/cleaner.py",
        "                raised = with_log_start(record, MessageId(*log_start))\n",
        "                raised = record\n",
        ("tests/messaging/test_retention_pass.py",),
    ),
    Mutant(
        "a deleted topic keeps its generation",
        "messaging/topic_changes.py",
        "    return replace(record, generation=-record.generation, holds={}, positions={})\n",
        "    return record\n",
        (
            "tests/messaging/test_topics.py::test_topics_and_generations_of_deleted_ones_survive_a_restart",
        ),
    ),
    Mutant(
        "the checksum of a row is not compared",
        "messaging/model/row_format.py",
        "    if crc32(body, crc32(value[:1], crc32(key))) != expected:\n",
        "    if False:\n",
        ("tests/messaging/test_row_format.py::test_any_flipped_bit_is_detected",),
    ),
    Mutant(
        "the fast path skips the checksum of a payload",
        "messaging/log/scan.py",
        "    if stored == expected:\n",
        "    if values:\n",
        (
            "tests/messaging/test_scan_of_chunks.py::test_a_flipped_bit_in_the_middle_ends_the_page_before_it",
        ),
    ),
    Mutant(
        "packed rows are read without their checksum",
        "messaging/model/packed_rows.py",
        "    if HEAD.unpack_from(value) != (IS_PACKED, checksum):\n",
        "    if value[0] != IS_PACKED:\n",
        ("tests/messaging/test_packed_rows.py::test_a_flipped_bit_damages_one_packed_row_at_most",),
    ),
    Mutant(
        "a read that begins inside packed rows returns all of them",
        "messaging/log/scan.py",
        "        start = max(0, rows.first - packed.number)\n",
        "        start = 0\n",
        (
            "tests/messaging/test_scan_of_chunks.py::test_packed_rows_are_read_from_and_through_any_of_their_rows",
        ),
    ),
    Mutant(
        "a reader that took a part of packed rows continues after all of them",
        "messaging/log/scan.py",
        "            elif self._messages.extend_packed(part, pointer=rows.pointer) < len(part):\n",
        "            elif not self._messages.extend_packed(part, pointer=rows.pointer):\n",
        (
            "tests/messaging/test_scan_of_chunks.py::test_packed_rows_are_read_from_and_through_any_of_their_rows",
        ),
    ),
    Mutant(
        "a range that ends inside packed rows lacks them",
        "messaging/engines/row_store.py",
        "    return overlap_stop(stop) if start < stop else stop\n",
        "    return stop\n",
        (
            "tests/messaging/test_packed_rows.py::TestTwoStores::runTest",
            "tests/messaging/test_scan_of_chunks.py::test_packed_rows_are_read_from_and_through_any_of_their_rows",
        ),
    ),
    Mutant(
        "corrupt packed rows at the end of a range are skipped silently",
        "messaging/model/packed_rows.py",
        '    return key[:-SEQ_SIZE] + first.to_bytes(SEQ_SIZE, "big") < stop\n',
        "    return False\n",
        (
            "tests/messaging/test_damaged_packed_rows.py::test_a_range_returns_every_row_or_the_damaged_record_that_had_it",
            "tests/messaging/test_damaged_packed_rows.py::test_a_reader_gets_one_error_and_all_other_rows",
        ),
    ),
    Mutant(
        "corrupt packed rows after `through` are left out of the page",
        "messaging/log/scan.py",
        "            if is_before or (is_separated and offset_bytes > rows.through):\n",
        "            if is_before or offset_bytes > rows.through:\n",
        (
            "tests/messaging/test_damaged_packed_rows.py::test_a_reader_gets_one_error_and_all_other_rows",
        ),
    ),
    Mutant(
        "the search for the earliest message stops after one scan",
        "messaging/read/offsets_and_splits.py",
        "            if result.finished:\n",
        "            if not result.messages:\n",
        (
            "tests/messaging/test_offsets.py::test_the_earliest_message_is_found_behind_any_number_of_expired_ones",
        ),
    ),
    Mutant(
        "the end offset counts a message that expired by its own time to live",
        "messaging/model/visibility.py",
        "    if is_past_own_ttl(query, offset, row.ttl_s):\n",
        "    if False:\n",
        (
            "tests/messaging/test_offsets.py::test_a_topic_ends_where_a_reader_of_all_of_it_continues",
        ),
    ),
    Mutant(
        "rows that do not follow each other are packed together",
        "messaging/model/packed_rows.py",
        "        if keys and offset_number(keys[-1]) + 1 != offset_number(rows.keys[0]):\n",
        "        if False:\n",
        ("tests/messaging/test_packed_rows.py",),
    ),
    Mutant(
        "packed rows extend into the next millisecond",
        "messaging/model/packed_rows.py",
        "start + PACKED_COUNT_MAX, start + _SEQ_MAX + 1 - first_seq)",
        "start + PACKED_COUNT_MAX)",
        ("tests/messaging/test_packed_rows.py::test_packed_rows_are_unpacked_unchanged",),
    ),
    Mutant(
        "a share group is not loaded again after the caller of an acknowledgement was cancelled",
        "messaging/groups/group_logs.py",
        "        except BaseException as error:\n",
        "        except TuffError as error:\n",
        (
            f"{_SHARE}::test_after_an_acknowledgement_whose_caller_is_gone_the_state_is_that_of_the_log",
        ),
    ),
    Mutant(
        "messages are leased to a caller that is gone",
        "messaging/groups/share_coordinator.py",
        "            return given, found.state.next_ms()\n",
        "            await asyncio.sleep(0)\n            return given, found.state.next_ms()\n",
        (f"{_SHARE}::test_a_caller_that_goes_before_it_has_its_messages_gets_none",),
    ),
    Mutant(
        "messages that were read for a caller that is gone are never given out",
        "messaging/groups/share_reads.py",
        "            except BaseException as error:\n",
        "            except TuffError as error:\n",
        (f"{_SHARE}::test_a_caller_that_goes_while_its_messages_are_read_gets_none",),
    ),
    Mutant(
        "attempts of a share group are not written when the server stops",
        "messaging/groups/share_coordinator.py",
        "        for found in self._logs.loaded.values():\n            self._write_attempts(found)\n",
        "",
        (f"{_SHARE}::test_what_workers_died_of_outlives_a_restart",),
    ),
    Mutant(
        "what a worker does with a message that is gone is refused",
        "messaging/groups/share_decisions.py",
        "            message = self._gone.get(each.id)\n",
        "            message = None\n",
        (f"{_SHARE}::test_what_a_worker_does_with_a_message_that_is_gone_counts",),
    ),
    Mutant(
        "two transactions accept a message that is gone",
        "messaging/groups/share_decisions.py",
        "            self._tries.pop(message_id, None)\n"
        "        self._undecided.pop(message_id, None)\n"
        "        self._gone.pop(message_id, None)\n",
        "            self._tries.pop(message_id, None)\n"
        "        self._undecided.pop(message_id, None)\n",
        (f"{_SHARE}::test_what_a_worker_does_with_a_message_that_is_gone_counts",),
    ),
    Mutant(
        "a message that expires before its retry is released",
        "messaging/groups/share_decisions.py",
        "        if is_failure and (each.id in expiring or each.id in self._gone):\n",
        "        if is_failure and each.id in self._gone:\n",
        (
            f"{_SHARE}::test_a_message_that_would_expire_before_its_retry_is_not_released",
            f"{_WORKER}::test_a_message_that_expires_before_its_retry_becomes_a_dead_letter",
        ),
    ),
    Mutant(
        "a worker that closes says that it had begun its messages",
        "tuff/share_consumer.py",
        "        unsaid = AttemptReport.NONE\n",
        "        unsaid = AttemptReport.BEGUN\n",
        (f"{_WORKER}::test_a_worker_that_closes_spends_no_attempt_of_what_it_has_not_begun",),
    ),
    Mutant(
        "a server that stops leaves workers of share groups waiting",
        "process/components.py",
        "        self.messaging.stop_waiting()\n",
        "",
        (
            "tests/http/test_share_groups.py::test_a_server_that_stops_answers_a_lease_that_waits_at_once",
        ),
    ),
    Mutant(
        "a message of which workers died is begun again for ever",
        "tuff/share_consumer.py",
        "        yield from self._give_up_killers(found)\n",
        "",
        ("tests/client/test_killer_messages.py",),
    ),
    Mutant(
        "a block that is left within a batch commits all of the batch",
        "tuff/group_member.py",
        "        self._handed.through = None if is_last else batch[index].id\n",
        "        self._handed.through = None\n",
        (f"{_CONSUMER}::test_leaving_a_block_without_an_error_commits_what_was_handed_out",),
    ),
    Mutant(
        "an error that leaves the block of a consumer commits its batch",
        "tuff/blocking/groups.py",
        "            if error is None and commits and self._heartbeats.use.is_possible:\n",
        "            if commits and self._heartbeats.use.is_possible:\n",
        (f"{_CONSUMER}::test_an_error_that_leaves_a_block_commits_nothing_of_its_batch",),
    ),
    Mutant(
        "a reader of what there is ends with the first poll that brings nothing",
        "tuff/subscriptions.py",
        "            if found or self._merge.is_caught_up or self._places() == before:\n",
        "            if found is not None:\n",
        (
            "tests/client/test_subscriptions.py"
            "::test_a_reader_that_does_not_follow_goes_on_while_a_selection_passes_over_messages",
        ),
    ),
    Mutant(
        "a poll of which the reply could not be looked at is not repeated",
        "tuff/subscriptions.py",
        "            self._on_poll(poll)\n",
        '            with __import__("contextlib").suppress(Exception):\n                self._on_poll(poll)\n',
        (
            "tests/client/test_subscriptions.py"
            "::test_a_poll_is_repeated_if_the_server_is_away_when_its_reply_is_looked_at",
        ),
    ),
    Mutant(
        "a subscription of a topic that got partitions begins again with the oldest message",
        "tuff/subscriptions.py",
        "    return MergedSubscription(topic, None, question.start, replace(question, wait_s=0.0))\n",
        "    return MergedSubscription(topic, None, None, replace(question, wait_s=0.0))\n",
        (
            "tests/client/test_subscribe.py::test_a_subscription_goes_on_with_partitions_that_are_added",
        ),
    ),
    # Publishes that are sent again
    Mutant(
        "the ids of publishes are not durable",
        "messaging/write/producers.py",
        "            batch.put(key, ProducerRow(producer.answered, producer.entries).to_bytes(key))\n",
        "",
        (f"{_REPEATED}::test_a_restart_forgets_no_publish",),
    ),
    Mutant(
        "publishes that may be repeated are forgotten by the next one",
        "messaging/write/producers.py",
        "            producer.raise_answered(request.answered)\n            producer.add",
        "            producer.raise_answered(request.number)\n            producer.add",
        (f"{_REPEATED}::test_neighbouring_publishes_are_written_together_and_once",),
    ),
    Mutant(
        "a repetition during the write of the first attempt publishes again",
        "messaging/write/producers.py",
        "            if entry is not None:\n                return _same",
        "            if entry is not None and request.number not in found.added:\n                return _same",
        (
            f"{_REPEATED}::test_a_repetition_during_the_write_of_the_first_attempt_waits_for_it",
            f"{_REPEATED}::test_a_repetition_in_the_batch_of_the_first_attempt_is_written_once",
        ),
    ),
    Mutant(
        "a publish whose batch was lost is answered as published",
        "messaging/write/producers.py",
        "            for number in producer.added:\n                producer.remove(number)\n",
        "            pass\n",
        (f"{_REPEATED}::test_a_publish_whose_write_failed_is_written_by_its_repetition",),
    ),
    Mutant(
        "a producer is forgotten for room without a gap",
        "messaging/write/producers.py",
        "                self._note_gap(producer, batch)\n",
        "                pass\n",
        (f"{_REPEATED}::test_what_was_forgotten_for_room_is_not_published_again",),
    ),
    Mutant(
        "a repetition is refused for what has changed since its first attempt",
        "messaging/write/publish.py",
        "        if request_id is not None and request_id.age_ms is not None:\n",
        "        if False:\n",
        (
            f"{_REPEATED}::test_a_publish_to_several_partitions_is_repeated_after_their_number_has_changed",
        ),
    ),
    Mutant(
        "the new owner of a topic does not know its publishes",
        "messaging/log/loading.py",
        "            producers += _producers(store, found, below=prefix)\n",
        "",
        (f"{_REPEATED}::test_the_new_owner_of_a_topic_remembers_its_publishes",),
    ),
    Mutant(
        "a forked process numbers its publishes as its parent does",
        "tuff/flows_and_repeated_calls.py",
        "        if os.getpid() != self._process_id:\n",
        "        if False:\n",
        ("tests/client/test_retries.py::test_a_forked_process_is_another_producer",),
    ),
    Mutant(
        "a poll takes a server that is away for an empty topic",
        "tuff/server_outages.py",
        "            return False\n        raise error\n",
        "            return False\n        return True\n",
        (f"{_CONSUMER}::test_a_loop_of_polls_does_not_take_an_outage_for_the_end_of_a_topic",),
    ),
    Mutant(
        "a client says that publishes under way are answered",
        "tuff/flows_and_repeated_calls.py",
        "self._lowest < self._next and self._lowest not in self._under_way:",
        "self._lowest < self._next:",
        (
            "tests/client/test_retries.py::test_a_request_id_has_the_lowest_number_that_may_be_repeated",
        ),
    ),
    Mutant(
        "a publish that the server has forgotten counts as not published",
        "tuff/flows_and_repeated_calls.py",
        "        | RequestForgottenError\n",
        "",
        (
            "tests/client/test_retries.py::test_a_lost_publish_that_the_server_does_not_know_stays_unknown",
        ),
    ),
    Mutant(
        "a store that has lost its last batches is continued",
        "messaging/log/store_end.py",
        "found.batch_number >= self.batch_number:",
        "found.batch_number:",
        (
            f"{_LOST}::test_messages_that_are_gone_after_a_clean_stop_keep_the_store_down",
            f"{_LOST}::test_an_older_copy_of_the_messages_is_not_continued",
        ),
    ),
    Mutant(
        "an accepted loss accepts the next one too",
        "messaging/service.py",
        "                await self.record_end()\n",
        "                pass\n",
        (f"{_LOST}::test_a_loss_that_was_accepted_accepts_no_later_one[its end-settings0]",),
    ),
    Mutant(
        "the accepted loss of a whole store accepts the next one too",
        "process/component_link.py",
        "            if found:\n                await self._messaging.record_end()",
        "            if False:\n                await self._messaging.record_end()",
        (
            f"{_LOST}::test_a_loss_that_was_accepted_accepts_no_later_one[all, after a kill-settings0]",
        ),
    ),
    Mutant(
        "messages go on though commits prove that some are lost",
        "process/component_link.py",
        "        if self._transactions.durable.lost_messages is not None:\n",
        "        if False:\n",
        (f"{_LOST}::test_committed_messages_that_are_gone_after_a_kill_keep_the_store_down",),
    ),
)
