"""The managers above the metadata store in HBase: their tests, on a real HBase."""

from collections.abc import Iterator

import pytest

from metadata.store import MetadataStore
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.hbase.test_metadata import HBaseStores
from tests.metadata.test_layout import *  # noqa: F403 - the tests themselves
from tests.metadata.test_managers import *  # noqa: F403 - likewise
from tests.metadata.test_members import *  # noqa: F403 - likewise
from tests.metadata.test_topic_ownership import *  # noqa: F403 - likewise
from tests.metadata.test_topic_persistence import *  # noqa: F403 - likewise

pytestmark = NEEDS_HBASE


@pytest.fixture
def store(hbase: LocalHBase) -> Iterator[MetadataStore]:
    stores = HBaseStores(hbase.ports.thrift)
    yield stores.open()
    stores.close()
