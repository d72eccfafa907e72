"""What a cluster remembers of its leaders of transactions."""

from collections.abc import Iterator

import pytest

from cluster.leader_election import FILES_KEY, FilesRecord
from metadata.store_interface import BadVersionError, Expected
from tests.metadata.memory_store import MemoryMetadataStore


@pytest.fixture
def store() -> Iterator[MemoryMetadataStore]:
    opened = MemoryMetadataStore()
    yield opened
    opened.close()


def test_the_next_leader_knows_how_many_pointers_were_reserved(store: MemoryMetadataStore) -> None:
    """A server whose directory was not mounted led with an empty state, and one with an older copy
    of the directory without the commits since then."""
    first = FilesRecord(store)
    before = first.take()
    first.note(7)
    first.note(12)
    first.note(9)

    assert (before, FilesRecord(store).take(), FilesRecord(store).take()) == (0, 12, 12)


def test_an_earlier_leader_cannot_write_the_record_any_more(store: MemoryMetadataStore) -> None:
    """What it reserves then may be in no file that the next leader has read, which would be refused
    as an older copy."""
    first, second = FilesRecord(store), FilesRecord(store)
    first.take()
    first.note(7)
    assert second.take() == 7

    with pytest.raises(BadVersionError):
        first.note(9)

    second.note(8)
    assert FilesRecord(store).take() == 8


def test_a_leader_that_made_no_files_cannot_write_the_record_later(
    store: MemoryMetadataStore,
) -> None:
    first, second = FilesRecord(store), FilesRecord(store)
    first.take()
    second.take()

    with pytest.raises(BadVersionError):
        first.note(9)


def test_a_record_without_a_pointer_says_that_there_were_files(store: MemoryMetadataStore) -> None:
    store.put(FILES_KEY, b'{"format":1}', Expected.NEW)

    assert FilesRecord(store).take() == 1


def test_without_the_record_an_older_copy_is_taken(store: MemoryMetadataStore) -> None:
    """How an operator goes on with an older copy in spite of the loss (docs/cluster.md)."""
    first = FilesRecord(store)
    first.take()
    first.note(7)
    found = store.get(FILES_KEY)
    assert found is not None

    store.delete(FILES_KEY, found.version)

    assert FilesRecord(store).take() == 0
