"""Settings and fixtures of the tests of metadata."""

from collections.abc import Iterator

import pytest

from tests.metadata.memory_store import MemoryMetadataStore


@pytest.fixture
def store() -> Iterator[MemoryMetadataStore]:
    """An empty store, for tests of what is above it."""
    store = MemoryMetadataStore()
    yield store
    store.close()
