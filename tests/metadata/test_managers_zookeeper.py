"""The managers above ZooKeeper: their tests, on a real server."""

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest

from metadata.store_interface import MetadataStore
from metadata.zookeeper_store import ZooKeeperStore
from tests.metadata.test_layout import *  # noqa: F403 - the tests themselves
from tests.metadata.test_managers import *  # noqa: F403 - likewise
from tests.metadata.test_member_records import *  # noqa: F403 - likewise
from tests.metadata.test_owner_records import *  # noqa: F403 - likewise
from tests.metadata.test_topic_records import *  # noqa: F403 - likewise
from tests.metadata.zookeeper_server import NEEDS_JAVA, ZooKeeperServer

pytestmark = NEEDS_JAVA

_root = count()  # one for each test, since all use the same server


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    zookeeper = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    yield zookeeper
    zookeeper.stop()


@pytest.fixture
def store(zookeeper: ZooKeeperServer) -> Iterator[MetadataStore]:
    root = f"/managers-{next(_root)}"
    with closing(ZooKeeperStore(zookeeper.address, root=root, elapsed_s=time.monotonic)) as store:
        yield store
