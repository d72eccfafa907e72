"""Bugs to plant in what readers meet who sleep, and who read what is being marked."""

from tests.simulation.planted import Change, PlantedBug

READER_BUGS = (
    PlantedBug(
        "an-ending-wakes-nobody-who-reads-in-it",
        (
            Change(
                "messaging/write/settle_and_mark.py",
                "        self._readers.wake(transaction_pointers)",
                "        pass",
            ),
        ),
        "reader-asleep-in-a-transaction-that-ended",
    ),
    PlantedBug(
        "a-read-only-commit-wakes-nobody-who-reads-in-it",
        (
            Change(
                "tx/commit_and_abort.py",
                "            self._spawn(self._wake_once_durable(pointers, lsn))",
                "            pass",
            ),
        ),
    ),
    PlantedBug(
        "a-log-that-comes-up-forgets-who-reads-in-what-it-lost",
        (
            Change(
                "tx/message_rows.py",
                ", *rows.reading_pointers()}",
                "}",
            ),
        ),
        "reader-asleep-in-what-a-failed-log-lost",
    ),
    PlantedBug(
        "a-row-that-expires-wakes-nobody",
        (
            Change(
                "messaging/read/poll.py",
                "alarm_s = min(deadline_s, loop.time() + left_s)",
                "pass",
            ),
        ),
        "reader-asleep-behind-a-row-that-expires",
    ),
    PlantedBug(
        "a-hold-that-is-let-go-wakes-nobody",
        (
            Change(
                "messaging/retention/holds_and_positions.py",
                "        batch.touch(topic)\n",
                "",
            ),
        ),
        "reader-asleep-behind-a-hold-that-is-let-go",
    ),
    PlantedBug(
        "a-longer-ttl-counts-only-once-it-is-on-the-disk",
        (
            Change(
                "messaging/topics.py",
                "return replace(rule, coming=decided.rule)",
                "return replace(rule, holds=(*rule.holds, *decided.holds.values()))",
            ),
            # One that sleeps would begin anew, and a reply that was given can't be held against
            # what the time to live is later.
            Change(
                "messaging/read/poll.py",
                "return replace(query, start=asked) if query.live_from < live_from else query",
                "return query",
            ),
        ),
        "ttl-made-longer-while-messages-expire",
    ),
    PlantedBug(
        "a-read-that-began-in-the-store-goes-on-in-memory",
        (
            Change(
                "messaging/read/poll.py",
                "result = None if goes_on else self._state.tail_cache.read(query)",
                "result = self._state.tail_cache.read(query)",
            ),
        ),
        "read-that-began-in-the-store-went-on-in-memory",
    ),
    PlantedBug(
        "parts-of-a-topic-leave-rows-out",
        (
            Change(
                "messaging/read/offsets.py",
                "starts, ends = [start, *bounds], [*bounds, ",
                "starts, ends = [start, *bounds], [*(MessageId(*each.offset) for each in bounds), ",
            ),
        ),
    ),
    PlantedBug(
        "a-topic-ends-behind-what-is-undecided",
        (
            Change(
                "messaging/read/offsets.py",
                "_verdict(query, offset, row) is Verdict.HOLD",
                "False",
            ),
        ),
    ),
    PlantedBug(
        "a-publish-is-marked-in-parts",
        (
            Change(
                "messaging/write/settle_and_mark.py",
                "        batches = list(_batches(entries)) or [[]]\n",
                """        from dataclasses import replace
        from messaging.storage.rows import offset_after
        parts = []
        for entry in entries:
            first = entry.first
            while entry.kind == MESSAGE_ROWS and first <= entry.last:
                last = min(entry.last, offset_after(first, MARK_ROWS_MAX - 1))
                parts.append(replace(entry, first=first, last=last))
                first = offset_after(last)
        batches = list(_batches(parts)) or [[]]
""",
            ),
        ),
        "publish-marked-in-two-batches",
    ),
)
