"""The batch write: all topics of a job appear at once, each row exactly once (decision 0024)."""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_tuff import lease_renewal
from pyspark_tuff.errors import brief
from pyspark_tuff.options import (
    DEFAULT_EPOCH_LEASE_S,
    DEFAULT_LEASE_S,
    OptionError,
    batch_write_options,
)
from pyspark_tuff.task_write import (
    DRIVER_NAME,
    TaskResult,
    check_columns,
    require_topic,
    results,
    write_task,
)
from pyspark_tuff.write_transactions import EpochJob, Job, JoinedJob, OwnJob

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from tuff.blocking.client import Client

RUN_ID_BYTES = 16  # random bytes; two runs of a job never draw the same


class BatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame. Spark makes it once, and pickles it for tasks and commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = batch_write_options(options)
        if overwrite:
            raise OptionError(
                "a write only adds messages to a topic, so mode('overwrite') is refused; use "
                ".mode('append'), and a new topic if it must hold no older messages"
            )
        check_columns(schema, self._options)
        with self._options.connection.connect(DRIVER_NAME) as client:
            require_topic(client, self._options)
            self._job = self._begin(client)
        # This process ends soon. Its parent, Spark's daemon or Spark itself, lives on.
        self._renewal = lease_renewal.start(
            self._job, self._options.connection, parent=os.getppid()
        )

    @brief
    def write(self, iterator: Iterator["RecordBatch"]) -> TaskResult:
        return write_task(self._job, self._options, iterator)

    @brief
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with self._options.connection.connect(DRIVER_NAME) as client:
            self._job.commit(client, [each.stored for each in results(messages)])
        lease_renewal.stop(self._renewal)

    @brief
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        lease_renewal.stop(self._renewal)
        with self._options.connection.connect(DRIVER_NAME) as client:
            self._job.abort(client)

    def _begin(self, client: "Client") -> Job:
        options = self._options
        if options.transaction is not None:
            _require_in_progress(client, options.transaction)
            return JoinedJob(transaction=options.transaction)
        if options.sink is not None and options.version is not None:
            return EpochJob(
                sink=options.sink,
                epoch=options.version,
                run_id=secrets.token_hex(RUN_ID_BYTES),
                lease_s=options.lease_s or DEFAULT_EPOCH_LEASE_S,
            )
        lease_s = options.lease_s or DEFAULT_LEASE_S
        transaction = client.transactions.start("long", lease=lease_s)
        return OwnJob(transaction=transaction.transaction_id, lease_s=lease_s)


def _require_in_progress(client: "Client", transaction: int) -> None:
    """Raises: OptionError: it has ended; TransactionUnknownError: the server does not know it."""
    state = client.transactions.outcome(transaction).state
    if state != "in_progress":
        raise OptionError(
            f"transaction {transaction}, which the option transaction names, is {state}, and a "
            "write can only join a transaction that is in progress; start another one"
        )
