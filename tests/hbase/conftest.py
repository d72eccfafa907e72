"""One real HBase for all tests of this folder: each uses tables of its own."""

from collections.abc import Iterator

import pytest

from tests.hbase.local import LocalHBase, why_missing


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHBase]:
    if reason := why_missing():
        pytest.skip(reason)
    running = LocalHBase(tmp_path_factory.mktemp("hbase"))
    yield running
    running.stop()
