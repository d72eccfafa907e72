"""Mutants that mean the same as what they change: no test can tell them apart.

Each is named by its file, its function, and the lines of the function that differ, as `ast.unparse`
writes them; so it stays found while code around it moves. A test fails when one is not there any
more.
"""

from collections.abc import Mapping

EQUIVALENT: Mapping[tuple[str, str, str, str], str] = {
    (
        "messaging/log/tail_cache.py",
        "TailCache._limit",
        "if tail.size_bytes > most:",
        "if tail.size_bytes >= most:",
    ): "one of exactly its share is cut, and its rows are read from the store",
    (
        "tx/durable_state.py",
        "DurableState._begin",
        "self._next_sequence = sequence + 2",
        "self._next_sequence = sequence + 3",
    ): "numbers of files only rise; each log names the one before it",
    (
        "tx/durable_state.py",
        "DurableState._write_snapshot",
        "self._next_sequence += 2",
        "self._next_sequence += 3",
    ): "numbers of files only rise; each log names the one before it",
    (
        "tx/wal.py",
        "WriteAheadLog.sync_soon",
        "return",
        "pass",
    ): "a sync is asked for once more; nobody asks for less than what is durable",
    (
        "tuff/exactly_once_subscriber.py",
        "SubscriberFlows._try",
        "partition.question = None  # number 2 of the function",
        "pass",
    ): "where the position moved, the next attempt finds that before it processes anything",
    (
        "tuff/tables/open_transactions.py",
        "OpenTransactions.resolve_doubt",
        "self._in_doubt.pop(work.transaction_id, None)",
        "pass",
    ): "who starts it again deletes a version that is gone once more",
    (
        "messaging/log/tail_cache.py",
        "TailCache._limit",
        "if tail.size_bytes > most:\nself._cut(tail, int(most * KEPT_SHARE))",
        "self._cut(tail, int(most * KEPT_SHARE))",
    ): "a tail keeps less than it may, and what it forgot is read from the store",
    (
        "messaging/log/rows_by_transaction.py",
        "PointerIndex._note_ended",
        "while len(self._ended_topics) > ENDED_COUNT_MAX:",
        "if len(self._ended_topics) > ENDED_COUNT_MAX:",
    ): "each call adds one pointer, so that never more than one is too many",
    (
        "messaging/retention/cleaner.py",
        "RetentionCleaner._run_chunks",
        "passed = 0",
        "passed = 1",
    ): "stretches are counted in tens of thousands, and the most is a multiple of that",
    (
        "tx/rows_of_ended_transactions.py",
        "EndedRows.synced",
        "continue",
        "pass",
    ): "it wakes readers on account of truncated pointers, and they find what they had found",
    (
        "tx/pointer_reservation.py",
        "PointerBlocks.__init__",
        "self._next = self._stop = 0",
        "self._next = self._stop = 1",
    ): "a block is empty where both are the same, and nothing of an empty one is told",
    (
        "tx/conflicts.py",
        "Committers.conflict",
        "if self._last.keys().isdisjoint(changes):\nreturn None",
        "pass",
    ): "without the short way the list of conflicts is empty",
    (
        "tx/conflicts.py",
        "Committers.conflict",
        "return None",
        "pass",
    ): "without the short way the list of conflicts is empty",
    (
        "tuff/tables/open_transactions.py",
        "OpenTransactions.resolve_doubt",
        "with self._joining:\nself._in_doubt.pop(work.transaction_id, None)",
        "self._in_doubt.pop(work.transaction_id, None)",
    ): "one step of a dictionary: whoever reads it under the lock sees it before or after that",
    (
        "tx/wal.py",
        "WriteAheadLog.append",
        "if self._alarm is None:\nloop = asyncio.get_running_loop()\n"
        "self._alarm = loop.call_later(UNWANTED_S_MAX, self._writer.wake)",
        "loop = asyncio.get_running_loop()\n"
        "self._alarm = loop.call_later(UNWANTED_S_MAX, self._writer.wake)",
    ): "each edit then has an alarm of its own, and one too many only writes sooner",
    (
        "tx/durable_state.py",
        "DurableState.__init__",
        "self._next_sequence = 1",
        "self._next_sequence = 0",
    ): "the first recovery sets it, and until then a snapshot is refused",
    (
        "messaging/retention/cleaner.py",
        "RetentionCleaner._run_older",
        "if rules.may_delete and self._state.may_delete():",
        "if rules.may_delete:",
    ): "`rules.may_delete` falls with the first row that may not be deleted",
    (
        "tx/rows_of_ended_transactions.py",
        "EndedRows.synced",
        "elif change.state is EndedState.INVALID:",
        "else:",
    ): "an abort is recorded where no row is carried, so that none is left to mark",
    (
        "tx/wal.py",
        "WriteAheadLog.prove",
        "if self._failure is None and self._durable_length > self._proven_length:",
        "if self._failure is None:",
    ): "a batch of nothing writes nothing where the length is proven",
    (
        "tuff/tables/leveldb_database.py",
        "TableDatabase.get",
        "return found",
        "pass",
    ): "the scan finds the same value; only the cost differs",
    (
        "tx/recovery.py",
        "recover",
        "length, proven = (contents.length, contents.proven_length) if contents else (0, 0)",
        "length, proven = (contents.length, contents.proven_length) if contents else (0, 1)",
    ): "without a log there is none whose end is written again",
    (
        "messaging/retention/cleaner.py",
        "_PatrolStart.reaches",
        "self.next_key = None",
        "pass",
    ): "keys rise, so that a key that was passed does not come again",
    (
        "messaging/retention/cleaner.py",
        "RetentionCleaner._apply",
        "if record is not None and record.generation == generation:",
        "if record.generation == generation:",
    ): "a topic that was durable once has a record for ever",
    (
        "tx/invalid_list.py",
        "_started_at_ms",
        "return state.find(pointer).started_at_ms if known is None else known",
        "return state.find(pointer).started_at_ms",
    ): "the outcome that `find` unpacks has the same start; only the cost differs",
    (
        "tx/state.py",
        "TransactionState.last_pending_lsn",
        "ended = self._pending[-1][0] if self._pending else 0",
        "ended = self._pending[-1][0] if self._pending else -1",
    ): "edits are counted from 1, so each is above both",
    (
        "tx/wal.py",
        "_proven_behind",
        "return max((_proof(frame, store_id) or 0 for frame in proofs_behind(data, damage)), default=0)",
        "return max((_proof(frame, store_id) or 0 for frame in proofs_behind(data, damage)), default=1)",
    ): "it is compared with the length of the header, which is more than both",
    (
        "tx/service.py",
        "TransactionManager.__init__",
        "self._snapshot_tried_at_ms = 0",
        "self._snapshot_tried_at_ms = -1",
    ): "1970 is longer ago than any interval",
    (
        "tuff/tables/leveldb_table.py",
        "LevelDbVersionStore.note_committed",
        "count = work.next_number or 0",
        "count = work.next_number or 1",
    ): "the next batch deletes an undo row that is not there; only the cost differs",
    (
        "tuff/tables/open_transactions.py",
        "Work.forget_writes",
        "self.size_bytes = 0",
        "self.size_bytes = 1",
    ): "one byte of a bound on memory, beyond which writes are stored early; only the cost differs",
    (
        "messaging/retention/cleaner.py",
        "_scan_chunk",
        "chunk.left = [(key, stop), *ranges[index + 1:]]",
        "chunk.left = [(key, stop), *ranges[index - 1:]]",
    ): "what was passed is gone, or is looked at once more; only the cost differs",
    (
        "tuff/commit_protocol.py",
        "Block._begin_anew",
        "self._interrupts = []",
        "pass",
    ): "only `during` asks for an interrupt, and has a new context for each transaction",
    (
        "messaging/retention/cleaner.py",
        "RetentionCleaner._older_rows",
        "first = self._swept_generations.get(topic.id, 0)",
        "first = self._swept_generations.get(topic.id, 1)",
    ): "generations are counted from 1",
    (
        "tx/state.py",
        "TransactionState._commit",
        "self._forget_commits()",
        "pass",
    ): "they are forgotten with the next edit that is durable; only the cost differs",
    (
        "tx/wal.py",
        "WriteAheadLog.sync_soon",
        "if lsn <= self._wanted_lsn or self._failure is not None:",
        "if lsn <= self._wanted_lsn and self._failure is not None:",
    ): "a sync is asked for once more; nobody asks for less than what is durable",
    (
        "messaging/log/read_result.py",
        "_json_of",
        "text = encode_basestring_ascii(shown) if isinstance(shown, str) else json.dumps(shown)",
        "text = json.dumps(shown)",
    ): "`json.dumps` encodes a text with the same function; only the cost differs",
    (
        "messaging/log/tail_cache.py",
        "_TopicTail.cut",
        "self._known = None",
        "pass",
    ): "new rows reset both before the next read, unless none is left; this only frees memory",
    (
        "tx/state.py",
        "View.after",
        "if change.cleared:\ninvalid = invalid.without(change.cleared)",
        "invalid = invalid.without(change.cleared)",
    ): "taking nothing off a list gives the list itself; only the cost differs",
    (
        "tx/state.py",
        "SinkTable.__init__",
        "self._of_transaction = {sink.transaction_id: sink.name for sink in self._by_name.values() "
        "if sink.state is None}",
        "self._of_transaction = {sink.transaction_id: sink.name for sink in self._by_name.values()}",
    ): "it is asked for transactions that end, and one that has ended does not end again",
    (
        "messaging/log/sequencer.py",
        "IdleIntervals.add_batch",
        "if since_ms - self._last.timestamp_ms >= IDLE_MS_MIN:",
        "if since_ms - self._last.timestamp_ms > IDLE_MS_MIN:",
    ): "which of the short intervals are kept is a choice; one that is not counts as rows",
}
