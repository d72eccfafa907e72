"""Settings and fixtures of the tests of metadata."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata.leveldb import LevelDbMetadataStore
from metadata.store import MetadataStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    """An empty store, for tests of what is above it."""
    store = LevelDbMetadataStore(tmp_path / "metadata")
    yield store
    store.close()
