"""Renews the lease of a batch write on the driver's host, while no task of it works.

Tasks renew it themselves. But they may all be waiting: for a place to run, or for an earlier stage
that is run again, since an executor was lost with what it had computed. What Spark calls on the
driver's host runs in processes that it ends whenever they have nothing to do, so the renewing is a
process of its own. It ends with the write, which deletes its file, with Spark's, which started it,
and with the transaction.

It is run as a file, and imports nothing but the standard library before it has to renew something,
so that a write that takes no longer than that costs next to nothing.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark_tuff.jobs import Job
    from pyspark_tuff.options import Connection

BEATS_PER_LEASE = 3  # so that one that is lost, and one that is late, end nothing
LOOK_S = 1.0  # seconds; at most so long the process outlives the write
NAME = "pyspark-driver"


class Task(NamedTuple):
    """What its file tells the process. `parent`: the process of Spark without which it ends;
    `work`: the job and the connection, pickled by themselves, as they are not always needed."""

    path: list[str]
    parent: int
    lease_s: float
    work: bytes


def start(job: "Job", connection: "Connection", *, parent: int) -> str | None:
    """Have the lease renewed until the process `parent` is gone, or `end` is called with what this
    returns; None where there is no lease to renew."""
    if job.lease_s is None:
        return None
    task = Task(sys.path, parent, job.lease_s, pickle.dumps((job, connection)))
    handle, file = tempfile.mkstemp(prefix="pyspark-tuff-")
    with os.fdopen(handle, "wb") as out:
        pickle.dump(tuple(task), out)
    # It forks, and is done: nobody waits for the one that stays.
    command = [sys.executable, "-P", __file__, file]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return file


def end(file: str | None) -> None:
    """The write is over, or about to be."""
    if file is not None:
        Path(file).unlink(missing_ok=True)


def renew_while(goes_on: Callable[[], bool], task: Task) -> None:
    """Renew the lease at each third of it, until it is in vain."""
    beat_s = task.lease_s / BEATS_PER_LEASE
    step_s = min(LOOK_S, beat_s)
    waited_s = 0.0
    while goes_on():
        time.sleep(step_s)
        waited_s += step_s
        if waited_s >= beat_s:
            waited_s = 0.0
            if not _renew(task):
                return


def _renew(task: Task) -> bool:
    """Whether it may have to be done again."""
    from tuff.protocol.errors import TransactionNotInProgressError, TuffError

    job, connection = pickle.loads(task.work)
    try:
        with connection.connect(NAME) as client:
            job.renew(client)
    except TransactionNotInProgressError:
        return False
    except TuffError:
        return True  # the weather: the next beat comes well before the lease is over
    return True


def is_alive(process: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(arguments: Sequence[str]) -> int:
    """Fork, so that whoever started this goes on, and renew; returns the exit code."""
    file = Path(arguments[0])
    task = Task(*pickle.loads(file.read_bytes()))
    if os.fork() != 0:
        return 0
    # Spark's daemon says with it, to all of its group, that it ends.
    signal.signal(signal.SIGHUP, lambda *_: sys.exit())
    sys.path[:] = task.path
    try:
        renew_while(lambda: file.exists() and is_alive(task.parent), task)
    finally:
        file.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
