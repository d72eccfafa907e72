"""What a cluster remembers of its leaders of transactions."""

from pathlib import Path

from cluster.leader import FilesRecord
from metadata.leveldb import LevelDbMetadataStore


def test_transaction_files_are_remembered_by_all_servers_for_ever(tmp_path: Path) -> None:
    """A server whose directory was not mounted led with an empty state."""
    store = LevelDbMetadataStore(tmp_path)
    before = FilesRecord(store).exists()

    for _ in range(2):
        FilesRecord(store).write()
    after = FilesRecord(store).exists()

    store.close()
    assert (before, after) == (False, True)
