"""`client.sinks`: a replayed epoch is a no-op, an older run is fenced (protocol §5.3)."""

import pytest

import tuff
from tuff import transaction_calls
from tuff.requests_and_responses import Response


def write(client: tuff.Client, topic: tuff.TopicId, epoch: int, run_id: str) -> bool:
    """Whether this run has written the epoch; it may have been written before."""
    begun = client.sinks.begin("writer/1", epoch, run_id, lease=60)
    assert (begun.sink, begun.epoch) == ("writer/1", epoch)
    if begun.transaction is None:
        return False
    entry = tuff.connectors.PublishEntry(topic=topic, payloads=(b"epoch %d" % epoch,))
    client.transactions.commit(begun.transaction, publish=[entry])
    return True


def test_epochs_are_written_once(client: tuff.Client, topic: tuff.TopicId) -> None:
    written = [write(client, topic, epoch, run) for epoch, run in (
        (0, "a"), (0, "a"), (1, "a"), (1, "b"), (2, "b"), (2, "c"),
    )]  # fmt: skip

    found = [message.payload for message in client.poll(topic, isolation="committed")]
    assert written == [True, False, True, False, True, False]
    assert found == [b"epoch 0", b"epoch 1", b"epoch 2"]


def test_each_refusal_of_a_sink_has_its_own_class(client: tuff.Client) -> None:
    begin = client.sinks.begin
    first = begin("refuses", 5, "a")
    assert begin("refuses", 5, "a") == first
    second = begin("refuses", 5, "b")
    assert second.transaction is not None

    with pytest.raises(tuff.errors.SinkFencedError):
        begin("refuses", 5, "a")
    with pytest.raises(tuff.errors.SinkEpochOpenError) as early:
        begin("refuses", 6, "b")
    with pytest.raises(tuff.errors.SinkEpochSupersededError) as late:
        begin("refuses", 4, "b")
    with pytest.raises(tuff.errors.SinkInUseError):
        client.sinks.delete("refuses")
    client.transactions.invalidate(second.transaction)
    with pytest.raises(tuff.errors.TransactionInvalidatedError):
        begin("refuses", 5, "b")
    shown = client.sinks.get("refuses")
    client.sinks.delete("refuses")
    with pytest.raises(tuff.errors.SinkNotFoundError):
        client.sinks.get("refuses")

    assert early.value.members == late.value.members == {"epoch": 5}
    assert (shown.epoch, shown.run_id, shown.state) == (5, "b", "invalid")
    assert shown.transaction_id == second.transaction.transaction_id
    assert "refuses" not in [sink.sink for sink in client.sinks.list()]


def test_a_response_that_is_no_epoch_is_an_internal_error() -> None:
    call = transaction_calls.begin_epoch("s", 7, "r", lease_s=None, client="c")
    body = b'{"sink":"s","epoch":7,"runId":"r","state":"begun","transaction":7}'

    with pytest.raises(tuff.errors.InternalError):
        call.answer(Response(200, {}, body))
