"""The bugs to plant in the messaging room (tests/mutants/planted.py says how)."""

from collections.abc import Sequence

from tests.mutants.planted import Mutant

MESSAGE_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "a publish gets the rows of another topic's run",
        "messaging/write/group_commit.py",
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
        "process/session.py",
        "not callee.joint_by_path or first.parameters == request.parameters",
        "True",
        (
            "tests/http/test_session.py::test_publishes_that_arrive_together_keep_their_order_over_topics_and_other_calls",
        ),
    ),
    Mutant(
        "a commit that is refused fails those that are written with it",
        "messaging/write/publish.py",
        "            except TuffError as error:  # it has put no rows\n                written.append(error)\n",
        "            except ZeroDivisionError:\n                pass\n",
        (
            "tests/messaging/test_publish.py::test_a_commit_that_is_refused_in_a_write_of_several_is_refused_by_itself",
        ),
    ),
    Mutant(
        "message ids follow a clock that is set back",
        "messaging/storage/sequencer.py",
        "        if now_ms > last.timestamp_ms:\n",
        "        if now_ms != last.timestamp_ms:\n",
        (
            "tests/messaging/test_sequencer.py::test_a_clock_that_goes_back_keeps_the_last_timestamp",
        ),
    ),
    Mutant(
        "an undecided row does not hold a reader",
        "messaging/read/visibility.py",
        "else Verdict.HOLD\n",
        "else Verdict.SKIP\n",
        (
            "tests/messaging/test_publish.py::test_a_committed_reader_is_held_by_an_undecided_publish",
        ),
    ),
    Mutant(
        "rolled-back rows are shown",
        "messaging/read/visibility.py",
        "    if pointer < 0 or holds(snapshot.invalids, pointer):\n",
        "    if holds(snapshot.invalids, abs(pointer)):\n",
        (
            "tests/messaging/test_transaction_ends.py::test_marked_rows_are_hidden_from_snapshots_and_carry_no_pointer",
        ),
    ),
    Mutant(
        "an exclusive start drops the first row, whichever it is",
        "messaging/read/visibility.py",
        "        return start.to_int() + (0 if inclusive else 1)\n",
        "        return start.to_int() + (0 if inclusive else 1 << 96)\n",
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
        "            self._state.index.discard(entry)\n            batch.on_lost(partial(self._state.index.add, entry))\n",
        "            batch.on_lost(partial(self._state.index.add, entry))\n",
        (
            "tests/messaging/test_publish.py::test_a_reference_brings_only_what_was_stored_since_the_one_before",
        ),
    ),
    Mutant(
        "a permit is not checked again when ids are assigned",
        "messaging/write/group_commit.py",
        "            write.permit.require_open()\n",
        "            pass\n",
        ("tests/messaging/test_publish.py",),
    ),
    Mutant(
        "a batch whose write failed is reported as not written",
        "messaging/write/group_commit.py",
        "            if is_there:\n",
        "            if False:\n",
        (
            "tests/messaging/test_failed_writes.py::test_a_failed_write_is_answered_by_what_the_reopened_store_contains",
        ),
    ),
    Mutant(
        "another store in the place of a failed one is accepted",
        "messaging/storage/loading.py",
        "    if found not in possible:\n",
        "    if False:\n",
        (
            "tests/messaging/test_replaced_store.py::test_an_older_copy_is_refused_while_the_server_runs",
        ),
    ),
    Mutant(
        "readers see rows that are not durable yet",
        "messaging/read/scan.py",
        "        last = min(query.high_water_mark, query.through.offset)\n",
        "        last = query.through.offset\n",
        ("tests/messaging/test_scan.py::test_no_row_behind_the_high_water_mark_is_shown",),
    ),
    Mutant(
        "a message's own time to live is ignored",
        "messaging/retention/expiry.py",
        "    if is_past_own_ttl or row.offset < max(topic.log_start, ",
        "    if row.offset < max(topic.log_start, ",
        ("tests/messaging/test_expiry.py",),
    ),
    Mutant(
        "retention deletes the current generation",
        "messaging/retention/expiry.py",
        "    return generation < abs(current) or generation == -current\n",
        "    return generation <= abs(current)\n",
        ("tests/messaging/test_expiry.py",),
    ),
    Mutant(
        "payload rows expire while a transaction may still publish them",
        "messaging/retention/expiry.py",
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
        "messaging/storage/rows.py",
        "    if crc32(body, crc32(value[:1], crc32(key))) != expected:\n",
        "    if False:\n",
        ("tests/messaging/test_rows.py::test_any_flipped_bit_is_detected",),
    ),
    Mutant(
        "the fast path skips the checksum of a payload",
        "messaging/read/scan.py",
        "        is_whole = [*map(bytes.startswith, values, heads)]\n",
        "        is_whole = [value[0] == PLAIN for value in values]\n",
        (
            "tests/messaging/test_scan_of_chunks.py::test_a_flipped_bit_in_the_middle_ends_the_page_before_it",
        ),
    ),
    Mutant(
        "packed rows are read without their checksum",
        "messaging/storage/packed_rows.py",
        "    if HEAD.unpack_from(value) != (IS_PACKED, checksum):\n",
        "    if value[0] != IS_PACKED:\n",
        ("tests/messaging/test_packed_rows.py::test_a_flipped_bit_damages_one_packed_row_at_most",),
    ),
    Mutant(
        "a read that begins inside packed rows returns all of them",
        "messaging/read/scan.py",
        "        start = max(0, rows.first - packed.number)\n",
        "        start = 0\n",
        (
            "tests/messaging/test_scan_of_chunks.py::test_packed_rows_are_read_from_and_through_any_of_their_rows",
        ),
    ),
    Mutant(
        "a reader that took a part of packed rows continues after all of them",
        "messaging/read/scan.py",
        "            elif self._messages.extend_packed(part, pointer=rows.pointer) < len(part):\n",
        "            elif not self._messages.extend_packed(part, pointer=rows.pointer):\n",
        (
            "tests/messaging/test_scan_of_chunks.py::test_packed_rows_are_read_from_and_through_any_of_their_rows",
        ),
    ),
    Mutant(
        "a range that ends inside packed rows lacks them",
        "messaging/storage/packed_rows.py",
        "    return overlap_stop(stop) if start < stop else stop\n",
        "    return stop\n",
        (
            "tests/messaging/test_packed_rows.py::TestTwoStores::runTest",
            "tests/messaging/test_scan_of_chunks.py::test_packed_rows_are_read_from_and_through_any_of_their_rows",
        ),
    ),
    Mutant(
        "corrupt packed rows at the end of a range are skipped silently",
        "messaging/storage/packed_rows.py",
        '    return key[:-SEQ_SIZE] + first.to_bytes(SEQ_SIZE, "big") < stop\n',
        "    return False\n",
        (
            "tests/messaging/test_damaged_packed_rows.py::test_a_range_returns_every_row_or_the_damaged_record_that_had_it",
            "tests/messaging/test_damaged_packed_rows.py::test_a_reader_gets_one_error_and_all_other_rows",
        ),
    ),
    Mutant(
        "corrupt packed rows after `through` are left out of the page",
        "messaging/read/scan.py",
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
        "messaging/read/visibility.py",
        "    if is_past_own_ttl(query, offset, ttl_s):\n",
        "    if False:\n",
        (
            "tests/messaging/test_offsets.py::test_a_topic_ends_where_a_reader_of_all_of_it_continues",
        ),
    ),
    Mutant(
        "rows that do not follow each other are packed together",
        "messaging/storage/packed_rows.py",
        "        if keys and offset_number(keys[-1]) + 1 != offset_number(rows.keys[0]):\n",
        "        if False:\n",
        ("tests/messaging/test_packed_rows.py",),
    ),
    Mutant(
        "packed rows extend into the next millisecond",
        "messaging/storage/packed_rows.py",
        "start + PACKED_COUNT_MAX, start + _SEQ_MAX + 1 - first_seq)",
        "start + PACKED_COUNT_MAX)",
        ("tests/messaging/test_packed_rows.py::test_packed_rows_are_unpacked_unchanged",),
    ),
)
