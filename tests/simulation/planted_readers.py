"""Bugs to plant in what readers meet who sleep, and who read what is being marked."""

from tests.simulation.planted import Change, PlantedBug

READER_BUGS = (
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
                "        if decided.ttl_s > record.ttl_s:\n",
                "        if False:\n",
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
