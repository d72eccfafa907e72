"""Bugs to plant in what the rooms do while a disk fails, or stands still."""

from tests.simulation.planted import Change, PlantedBug

FAILURE_BUGS = (
    PlantedBug(
        "files-go-on-from-a-name-that-is-not-synced",
        (
            Change(
                "tx/recovery.py",
                "    sync_directory(directory)\n",
                "",
            ),
        ),
        "log-whose-name-was-never-synced",
    ),
    PlantedBug(
        "a-log-that-was-given-up-is-left",
        (
            Change(
                "tx/wal.py",
                "            await self._in_thread(partial(remove_file, roll.path))\n",
                "            pass\n",
            ),
        ),
    ),
    PlantedBug(
        "an-image-is-older-than-the-log-behind-it",
        (
            Change(
                "tx/durable_state.py",
                "        image = self.decided.image()\n\n",
                "        image = self.decided.image()\n        await asyncio.sleep(0)\n\n",
            ),
        ),
    ),
    PlantedBug(
        "a-time-out-passes-a-commit-that-writes-rows",
        (
            Change(
                "tx/commit_and_abort.py",
                " if not self._locks.has_claim(one.transaction_id)]",
                "]",
            ),
        ),
    ),
    PlantedBug(
        "a-commit-goes-on-after-the-log-failed",
        (
            Change(
                "tx/commit_and_abort.py",
                "if self._durable.epoch != epoch:",
                "if False:",
            ),
        ),
    ),
)

# One seed in some seven hundred thousand met it. Its history meets it each time.
RARE_BUGS = (
    PlantedBug(
        "a-block-is-told-to-the-messages-before-it-is-durable",
        (
            Change(
                "process/components.py",
                "            await self._messaging.record_store_id(store_id)\n",
                "            self._messaging.rows.note_reserved(\n"
                "                self._transactions.image().highest_reserved\n"
                "            )\n"
                "            await self._messaging.record_store_id(store_id)\n",
            ),
        ),
        "mark-beside-a-block-that-is-lost",
    ),
)
