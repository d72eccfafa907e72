"""Bugs to plant in what readers meet who sleep, and who read what is being marked."""

from tests.simulation.planted import Change, PlantedBug

READER_BUGS = (
    PlantedBug(
        "an-ending-wakes-nobody-who-reads-in-it",
        (
            Change(
                "messaging/service.py",
                "        self._polls.insiders.wake(transaction_pointers)",
                "        pass",
            ),
        ),
        "reader-asleep-in-a-transaction-that-ended",
    ),
    PlantedBug(
        "a-read-only-commit-wakes-nobody-who-reads-in-it",
        (
            Change(
                "tx/markings.py",
                "            self._spawn(self._wake_when(durable, pointers))",
                "            pass",
            ),
        ),
    ),
    PlantedBug(
        "a-log-that-comes-up-forgets-who-reads-in-what-it-lost",
        (
            Change(
                "tx/markings.py",
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
                "messaging/polls.py",
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
                "messaging/bookmark_changes.py",
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
                "messaging/polls.py",
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
                "messaging/polls.py",
                "reading = None if goes_on else self._live.tails.read(query)",
                "reading = self._live.tails.read(query)",
            ),
        ),
        "read-that-began-in-the-store-went-on-in-memory",
    ),
    PlantedBug(
        "parts-of-a-topic-leave-rows-out",
        (
            Change(
                "messaging/splits.py",
                "starts, ends = [start, *bounds], [*bounds, ",
                "starts, ends = [start, *bounds], [*(MessageId(*each.place) for each in bounds), ",
            ),
        ),
    ),
    PlantedBug(
        "a-topic-ends-behind-what-is-undecided",
        (
            Change(
                "messaging/survey.py",
                "verdict(row.tx_pointer, query.snapshot) is Verdict.HOLD",
                "False",
            ),
        ),
    ),
    PlantedBug(
        "a-publish-is-marked-in-parts",
        (
            Change(
                "messaging/endings.py",
                "        batches = list(_batches(entries)) or [[]]\n",
                """        from dataclasses import replace
        from messaging.keys import place_after
        parts = []
        for entry in entries:
            first = entry.first
            while entry.kind == MESSAGE_ROWS and first <= entry.last:
                last = min(entry.last, place_after(first, MARK_ROWS_MAX - 1))
                parts.append(replace(entry, first=first, last=last))
                first = place_after(last)
        batches = list(_batches(parts)) or [[]]
""",
            ),
        ),
        "publish-marked-in-two-batches",
    ),
)
