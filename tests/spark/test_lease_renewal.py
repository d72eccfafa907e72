"""The process on the driver's host that renews the lease of a batch write."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tuff
from pyspark_tuff import lease_renewal
from pyspark_tuff.options import Connection
from pyspark_tuff.write_transactions import EpochJob, Job, OwnJob
from tests.http.client import until
from tuff.launch import ServerProcess

LEASE_S = 6.0  # seconds; these tests wait for a third of it
WITHIN_S = 120.0


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is ended."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


class Renewals:
    """Jobs of the tests' server whose lease is renewed for a parent."""

    def __init__(self, server: ServerProcess, parent: subprocess.Popen[bytes]) -> None:
        self._connection = Connection(url=server.url, timeout_s=30, token_file=None)
        self._parent = parent

    def start(self, job: Job) -> str:
        file = lease_renewal.start(job, self._connection, parent=self._parent.pid)
        assert file is not None
        return file


@pytest.fixture
def renewals(tuff_server: ServerProcess, parent: subprocess.Popen[bytes]) -> Renewals:
    return Renewals(tuff_server, parent)


def own_job(client: tuff.Client, lease_s: float = LEASE_S) -> OwnJob:
    transaction = client.transactions.start("long", lease=lease_s)
    return OwnJob(transaction=transaction.transaction_id, lease_s=lease_s)


def lease_end(client: tuff.Client, transaction: int) -> int:
    """Of a transaction in progress, in ms."""
    outcome = client.transactions.get(transaction)
    assert outcome.lease_expires_at_ms is not None, outcome
    return outcome.lease_expires_at_ms


def is_running(file: str) -> bool:
    """Whether a process has this file among its arguments, and has not ended."""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if file.encode() in each.read_bytes():
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False


def is_over(file: str) -> bool:
    return not Path(file).exists() and not is_running(file)


def test_a_lease_is_renewed_while_no_task_works_until_the_write_ends(
    renewals: Renewals, tuff_client: tuff.Client
) -> None:
    job = own_job(tuff_client)
    first = lease_end(tuff_client, job.transaction)
    file = renewals.start(job)

    until(lambda: lease_end(tuff_client, job.transaction) > first, within_s=WITHIN_S)
    lease_renewal.stop(file)

    until(lambda: is_over(file), within_s=WITHIN_S)
    tuff_client.transactions.abort(job.transaction)


def test_the_lease_of_an_epoch_is_renewed_from_its_beginning(
    renewals: Renewals, tuff_client: tuff.Client
) -> None:
    job = EpochJob(sink="renewed", epoch=1, run_id="this", lease_s=LEASE_S)
    file = renewals.start(job)
    begun = job.enter(tuff_client)
    assert begun is not None
    first = lease_end(tuff_client, begun)

    until(lambda: lease_end(tuff_client, begun) > first, within_s=WITHIN_S)

    lease_renewal.stop(file)
    job.abort(tuff_client)


def test_the_lease_of_another_run_is_not_renewed(tuff_client: tuff.Client) -> None:
    ours, theirs = (
        EpochJob(sink="of-theirs", epoch=1, run_id=run, lease_s=LEASE_S) for run in ("1", "2")
    )
    ours.renew(tuff_client)
    begun = theirs.enter(tuff_client)
    assert begun is not None
    first = lease_end(tuff_client, begun)

    ours.renew(tuff_client)

    assert lease_end(tuff_client, begun) == first
    theirs.abort(tuff_client)


def test_renewal_ends_with_the_driver(
    renewals: Renewals, tuff_client: tuff.Client, parent: subprocess.Popen[bytes]
) -> None:
    job = own_job(tuff_client, lease_s=3_600)
    file = renewals.start(job)

    parent.kill()
    parent.wait()

    until(lambda: is_over(file), within_s=WITHIN_S)
    tuff_client.transactions.abort(job.transaction)


def test_renewal_ends_with_the_transaction(renewals: Renewals, tuff_client: tuff.Client) -> None:
    job = own_job(tuff_client)
    file = renewals.start(job)

    tuff_client.transactions.abort(job.transaction)

    until(lambda: is_over(file), within_s=WITHIN_S)
