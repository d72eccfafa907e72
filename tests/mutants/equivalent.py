"""Mutants that mean the same as what they change: no test can tell them apart.

Each is named by its file, its function, and the lines of the function that differ, as `ast.unparse`
writes them; so it stays found while code around it moves. A test fails when one is not there any
more.
"""

from collections.abc import Mapping

EQUIVALENT: Mapping[tuple[str, str, str, str], str] = {
    (
        "messaging/tail.py",
        "Tails.read",
        "last = pack_place(*min(query.served, query.through.place))",
        "last = pack_place(*min(query.through.place, query.served))",
    ): "the lesser of two places does not depend on their order",
    (
        "messaging/reader.py",
        "_Read.run",
        "last = min(query.served, query.through.place)",
        "last = min(query.through.place, query.served)",
    ): "the lesser of two places does not depend on their order",
    (
        "messaging/tail.py",
        "Tails.read",
        "if number > LAST_NUMBER:",
        "if number >= LAST_NUMBER:",
    ): "the store is asked, and says the same of a read that begins at the last id there can be",
    (
        "messaging/tail.py",
        "Tails._limit",
        "if tail.size_bytes > most:",
        "if tail.size_bytes >= most:",
    ): "one of exactly its share is cut, and its rows are read from the store",
    (
        "tx/ledger.py",
        "Ledger._begin",
        "self._next_sequence = 3",
        "self._next_sequence = 4",
    ): "numbers of files only rise; each log names the one before it",
    (
        "tx/ledger.py",
        "Ledger._write_snapshot",
        "self._next_sequence += 2",
        "self._next_sequence += 3",
    ): "numbers of files only rise; each log names the one before it",
    (
        "tuff/subscriber.py",
        "Consumption._wait_for_messages",
        "asked = replace(self._question or question, limit=limit, wait_s=piece_s)",
        "asked = replace(self._question, limit=limit, wait_s=piece_s)",
    ): "there is a question by then: without one the place is asked for first",
    (
        "messaging/tail.py",
        "_Tail.settle",
        "self._plain = self._general = None",
        "pass",
    ): "settling adds rows behind all items, and a page that was kept names the items it is of",
    (
        "messaging/tail.py",
        "_Tail.__init__",
        "self.has_ttl = False",
        "self.has_ttl = True",
    ): "it only keeps a page from being handed out again at a later time",
    (
        "tx/endings.py",
        "Endings._ready",
        "return None if is_over else found",
        "return None",
    ): "without the short way a commit asks the same by the long one",
    (
        "tx/log.py",
        "Log.want",
        "return",
        "pass",
    ): "a sync is asked for once more; nobody asks for less than what is durable",
    (
        "tuff/subscriber.py",
        "Consumption._try",
        "self._question = None  # number 2 of the function",
        "pass",
    ): "where the position moved, the next attempt finds that before it processes anything",
    (
        "tuff/table_current.py",
        "Current.settle",
        "self._doubtful.pop(work.transaction_id, None)",
        "pass",
    ): "who starts it again deletes a version that is gone once more",
    (
        "messaging/tail.py",
        "_Tail.read",
        "if items and items[-1][_PLACE] > last:",
        "if items:",
    ): "where no item lies behind the place, the search for it ends at the same item",
    (
        "messaging/tail.py",
        "Tails._limit",
        "if tail.size_bytes > most:\nself._cut(tail, int(most * KEPT_SHARE))",
        "self._cut(tail, int(most * KEPT_SHARE))",
    ): "a tail keeps less than it may, and what it forgot is read from the store",
    (
        "messaging/index.py",
        "PointerIndex._note_ended",
        "while len(self._ended_topics) > ENDED_COUNT_MAX:",
        "if len(self._ended_topics) > ENDED_COUNT_MAX:",
    ): "each call adds one pointer, so that never more than one is too many",
    (
        "messaging/sweep.py",
        "Sweeper._swept",
        "passed = 0",
        "passed = 1",
    ): "stretches are counted in tens of thousands, and the most is a multiple of that",
    (
        "tx/markings.py",
        "Markings.ended",
        "continue",
        "pass",
    ): "it wakes readers on account of truncated pointers, and they find what they had found",
    (
        "tx/blocks.py",
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
        "tuff/table_current.py",
        "Current.settle",
        "with self._joining:\nself._doubtful.pop(work.transaction_id, None)",
        "self._doubtful.pop(work.transaction_id, None)",
    ): "one step of a dictionary: whoever reads it under the lock sees it before or after that",
}
