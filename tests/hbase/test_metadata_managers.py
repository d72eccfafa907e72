"""The managers above the metadata store in HBase: their tests, on a real HBase."""

from collections.abc import Iterator

import pytest

from metadata.store_interface import MetadataStore
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.hbase.test_metadata import HBaseStores
from tests.metadata.test_layout import *  # noqa: F403 - the tests themselves
from tests.metadata.test_managers import *  # noqa: F403 - likewise
from tests.metadata.test_member_records import *  # noqa: F403 - likewise
from tests.metadata.test_owner_records import *  # noqa: F403 - likewise
from tests.metadata.test_topic_records import *  # noqa: F403 - likewise

pytestmark = NEEDS_HBASE


@pytest.fixture
def store(hbase: LocalHBase) -> Iterator[MetadataStore]:
    stores = HBaseStores(hbase.ports.thrift)
    yield stores.open()
    stores.close()
