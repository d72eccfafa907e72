"""Concurrent clients of a server and a table are snapshot isolated (promise 5)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tuff
from tests.faults.checker import check, violations
from tests.faults.checker_anomalies import Anomaly, report
from tests.faults.mixed import mixed_history, skewed_history
from tests.http.conftest import NewServer


@pytest.fixture
def table(tmp_path: Path) -> Iterator[tuff.TransactionalTable]:
    with tuff.TransactionalTable(tmp_path / "table") as made:
        yield made


def test_mixed_clients_are_isolated_except_for_write_skew(
    new_server: NewServer, table: tuff.TransactionalTable
) -> None:
    server = new_server()

    history = mixed_history(server, table, clients=6, attempts=120, seed=1)
    skewed = check(skewed_history(server, table, pairs=3))

    assert violations(history) == []
    assert [one.anomaly for one in skewed] == [Anomaly.WRITE_SKEW] * 3, report(skewed)


@pytest.mark.slow
def test_many_mixed_clients_are_isolated(
    new_server: NewServer, table: tuff.TransactionalTable
) -> None:
    history = mixed_history(new_server(), table, clients=32, attempts=5_000, seed=2)

    assert violations(history) == []
