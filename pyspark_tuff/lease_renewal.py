"""Renews the lease of a write's transaction: inside a task, and on the driver's host.

`renewed` renews it from a thread of a task while the task works.

`start` and `stop` control a separate process on the driver's host. Without it the lease would
expire while no task runs: when all tasks wait for a slot, or for an earlier stage that Spark runs
again after an executor was lost. It can't be a thread: Spark ends the idle Python processes in
which it calls a data source on the driver's host. The process ends when the write ends (`stop`
deletes its file), when the Spark process that started it ends, and when the transaction ends.

The process runs this file as a script, and imports only the standard library until it first renews
the lease. A write that is shorter than that costs almost nothing.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from threading import Thread as _Thread  # noqa: TID251 - a task computes while its lease is renewed
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark_tuff.options import Connection
    from pyspark_tuff.write_transactions import Job
    from tuff.blocking.client import Client

RENEWALS_PER_LEASE = 3  # so that the lease survives one lost and one late renewal
CHECK_INTERVAL_S = 1.0  # seconds; the process outlives the write by at most this long
NAME = "pyspark-driver"


class RenewalTask(NamedTuple):
    """The content of the process's file.

    `parent`: the Spark process with which the process ends. `work`: the job and the connection,
    pickled separately, because unpickling them imports this project.
    """

    path: list[str]
    parent: int
    lease_s: float
    work: bytes


@contextmanager
def renewed(client: "Client", transaction: int, *, lease_s: float | None) -> Iterator[None]:
    """Renew a lease from a thread while a `with` block runs; does nothing if `lease_s` is None."""
    if lease_s is None:
        yield
        return
    is_over = Event()
    thread = _Thread(target=_renew_until, args=(is_over, client, transaction, lease_s), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def start(job: "Job", connection: "Connection", *, parent: int) -> str | None:
    """Start a process that renews the lease until the process `parent` ends, or until `stop` is
    called with the returned value. None if the job has no lease to renew."""
    if job.lease_s is None:
        return None
    task = RenewalTask(sys.path, parent, job.lease_s, pickle.dumps((job, connection)))
    handle, file = tempfile.mkstemp(prefix="pyspark-tuff-")
    with os.fdopen(handle, "wb") as out:
        pickle.dump(tuple(task), out)
    # The command forks and returns at once; no process waits for its child.
    command = [sys.executable, "-P", __file__, file]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return file


def stop(file: str | None) -> None:
    """End the process that `start` has started: the write is over, or about to be."""
    if file is not None:
        Path(file).unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    """Fork, so that the caller goes on; renew in the child. Returns the exit code."""
    file = Path(arguments[0])
    task = RenewalTask(*pickle.loads(file.read_bytes()))
    if os.fork() != 0:
        return 0
    # Spark's daemon sends SIGHUP to its process group when it ends.
    signal.signal(signal.SIGHUP, lambda *_: sys.exit())
    sys.path[:] = task.path
    try:
        _renew_while_written(file, task)
    finally:
        file.unlink(missing_ok=True)
    return 0


def _renew_until(is_over: Event, client: "Client", transaction: int, lease_s: float) -> None:
    interval_s = lease_s / RENEWALS_PER_LEASE
    while not is_over.wait(interval_s):
        if not _try_to_renew(lambda: client.transactions.renew(transaction)):
            return  # the server also refuses the next request of the task


def _renew_while_written(file: Path, task: RenewalTask) -> None:
    """Renew the lease at each third of it, until the write, its Spark process or the transaction
    has ended."""
    interval_s = task.lease_s / RENEWALS_PER_LEASE
    step_s = min(CHECK_INTERVAL_S, interval_s)
    waited_s = 0.0
    while file.exists() and _is_alive(task.parent):
        time.sleep(step_s)
        waited_s += step_s
        if waited_s >= interval_s:
            waited_s = 0.0
            if not _try_to_renew(lambda: _renew_job(task)):
                return


def _renew_job(task: RenewalTask) -> None:
    job, connection = pickle.loads(task.work)
    with connection.connect(NAME) as client:
        job.renew(client)


def _is_alive(process: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _try_to_renew(renew: Callable[[], object]) -> bool:
    """Renew once. False if the transaction has ended, so that no further renewal makes sense."""
    from tuff.protocol.errors import TransactionNotInProgressError, TuffError

    try:
        renew()
    except TransactionNotInProgressError:
        return False
    except TuffError:
        return True  # probably temporary: the next attempt comes well before the lease expires
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
