"""The outcome of a Spark write when the reply to its commit is lost."""

from collections.abc import Iterator

import pytest

import tuff
from pyspark_tuff.write_transactions import OwnJob, Part, TaskResult
from tests.client.proxy import Losses, losing
from tests.spark.messages import read
from tuff.launch import ServerProcess


@pytest.fixture(params=[None, 504, 500], ids=["hangs up", "says 504", "says 500"])
def through(
    tuff_server: ServerProcess, request: pytest.FixtureRequest
) -> Iterator[tuple[tuff.Client, Losses]]:
    """A client behind a proxy that loses the chosen requests or replies."""
    losses = Losses(says=request.param)
    with losing(tuff_server.url, losses=losses) as (url, _), tuff.Client(url, retries=0) as client:
        yield client, losses


def stored(client: tuff.Client, topic: tuff.TopicId) -> tuple[OwnJob, list[TaskResult]]:
    """A job, and the result of its task."""
    transaction = client.transactions.start("long", lease=60)
    attempt = client.transactions.checkpoint(transaction)
    client.store(topic, "row 1", "row 2", transaction=attempt)
    part = Part(pointer=attempt.write_pointer, counts={topic: 2})
    job = OwnJob(transaction=transaction.transaction_id, lease_s=60)
    return job, [TaskResult(job=job, partition=0, parts=(part,))]


def test_a_commit_whose_reply_is_lost_is_recognised(
    through: tuple[tuff.Client, Losses], tuff_topic: tuff.TopicId
) -> None:
    """The commit raised although it had succeeded; a repeated job wrote all rows twice."""
    client, losses = through
    job, winners = stored(client, tuff_topic)
    losses.lose_reply("commit")

    job.commit(client, winners)

    assert read(client, tuff_topic) == [b"row 1", b"row 2"]


def test_a_commit_that_never_arrived_is_fenced(
    through: tuple[tuff.Client, Losses], tuff_topic: tuff.TopicId
) -> None:
    client, losses = through
    job, winners = stored(client, tuff_topic)
    losses.lose_request("commit")

    with pytest.raises(tuff.TuffError):
        job.commit(client, winners)
    job.abort(client)

    with pytest.raises(tuff.errors.TransactionInvalidatedError):
        client.transactions.commit(job.transaction)
    assert read(client, tuff_topic) == []
