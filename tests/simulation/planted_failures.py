"""Bugs to plant in what the rooms do while a disk fails, or stands still."""

from tests.simulation.planted import Change, PlantedBug

FAILURE_BUGS = (
    PlantedBug(
        "files-go-on-from-a-name-that-is-not-synced",
        (
            Change(
                "tx/filestore.py",
                "        sync_directory(self._directory)\n",
                "",
            ),
        ),
        "log-whose-name-was-never-synced",
    ),
)
