"""Sinks over HTTP (protocol §5.3)."""

from itertools import count
from typing import Any
from urllib.parse import quote

import pytest

from tests.http.calls import Topic, Tx, entry
from tests.http.client import Client, Reply, ok, refused

_numbers = count()


class Sink:
    """A sink, by a name of its own."""

    def __init__(self, client: Client, name: str = "") -> None:
        self.client = client
        self.name = name or f"sink-{next(_numbers)}"
        self.path = f"/v1/sinks/{quote(self.name, safe='')}"

    def ask(self, epoch: object, run_id: object = "a", **body: object) -> Reply:
        return self.client.post(f"{self.path}/epochs/{epoch}", {"runId": run_id, **body})

    def begin(self, epoch: int, run_id: str = "a", **body: object) -> Tx:
        found = ok(self.ask(epoch, run_id, **body)).json
        assert (found["sink"], found["epoch"]) == (self.name, epoch)
        assert (found["runId"], found["state"]) == (run_id, "begun")
        return Tx(self.client, found["transaction"])

    def show(self) -> Any:
        return ok(self.client.get(self.path)).json


@pytest.fixture
def sink(client: Client) -> Sink:
    return Sink(client)


def test_an_epoch_is_written_once_however_often_it_is_replayed(sink: Sink, topic: Topic) -> None:
    for run_id in ("a", "b", "c"):
        for epoch in range(3):
            found = ok(sink.ask(epoch, run_id)).json if run_id == "a" or epoch == 2 else None
            if found is None or found["transaction"] is None:
                continue
            tx = Tx(sink.client, found["transaction"])
            pointer = ok(tx.checkpoint()).json["writePointer"]
            ok(topic.store(f"{epoch}", tx=pointer))
            ok(tx.commit(publish=[entry(topic, pointer=pointer)]))

    assert topic.committed() == ["0", "1", "2"]
    assert ok(sink.ask(2, "d")).json == {
        "sink": sink.name, "epoch": 2, "runId": "a", "state": "committed", "transaction": None,
    }  # fmt: skip


def test_all_tasks_of_a_run_get_the_same_transaction(sink: Sink) -> None:
    first = sink.begin(1, lease=60, client="etl")

    second = sink.begin(1, lease=5, client="other")

    assert second.id == first.id
    assert second.object["type"] == "long"
    assert (second.object["lease"], second.object["client"]) == (60, "etl")
    assert sink.show() == {
        "sink": sink.name, "epoch": 1, "runId": "a", "state": "in_progress",
        "transactionId": first.id, "updatedAt": first.object["startedAt"],
    }  # fmt: skip
    assert sink.show() in ok(sink.client.get("/v1/sinks")).json["sinks"]


def test_an_older_run_is_fenced_with_all_it_wrote(sink: Sink, topic: Topic) -> None:
    first = sink.begin(1, "a")
    ok(topic.publish("of the first", tx=first.id))

    second = sink.begin(1, "b")
    ok(topic.publish("of the second", tx=second.id))

    refused(first.commit(), 409, "transaction_invalidated")
    refused(topic.publish("late", tx=first.id), 409, "transaction_invalidated")
    refused(sink.ask(1, "a"), 409, "sink_fenced", naming="'b'")
    ok(second.commit())
    assert topic.committed() == ["of the second"]


def test_the_refusal_of_an_epoch_names_the_recorded_one(sink: Sink) -> None:
    ok(sink.begin(4).commit())
    lost = sink.begin(5)

    assert refused(sink.ask(3, "b"), 409, "sink_epoch_superseded")["epoch"] == 5
    assert refused(sink.ask(6, "b"), 409, "sink_epoch_open")["epoch"] == 5
    refused(sink.client.delete(sink.path), 409, "sink_in_use", naming=lost.id)
    ok(lost.invalidate())
    problem = refused(sink.ask(5, "a"), 409, "transaction_invalidated", naming="start another run")
    assert problem["reason"] == "invalidated"
    assert sink.show()["state"] == "invalid"


@pytest.mark.parametrize("name", ["a/b", "replay/ns:t/2026-11-22", "x" * 128, "0.-_"])
def test_a_sink_is_forgotten_by_its_percent_decoded_name(client: Client, name: str) -> None:
    sink = Sink(client, name)
    ok(sink.begin((1 << 63) - 1).invalidate())
    assert (sink.show()["sink"], sink.show()["epoch"]) == (name, (1 << 63) - 1)
    refused(client.call("DELETE", sink.path, {"foo": 1}), 400, "bad_request", naming="foo")

    ok(client.call("DELETE", sink.path, {}))

    for reply in (client.delete(sink.path), client.get(sink.path)):
        refused(reply, 404, "sink_not_found", naming=name)


def test_a_malformed_epoch_is_refused_and_not_recorded(client: Client, sink: Sink) -> None:
    for name in ("a b", "x" * 129, "a%b"):
        bad = Sink(client, name)
        for reply in (bad.ask(0), client.get(bad.path), client.delete(bad.path)):
            refused(reply, 400, "invalid_name")
    for epoch in ("-1", "x", "9223372036854775808", "+1"):
        refused(sink.ask(epoch), 400, "bad_request")
    bodies: list[object] = [
        None, {}, {"runId": 1}, {"runId": ""}, {"runId": "r" * 129}, {"runId": "a", "lease": "1"},
        {"runId": "a", "epoch": 1}, [],
    ]  # fmt: skip
    for body in bodies:
        refused(client.post(f"{sink.path}/epochs/1", body), 400, "bad_request")
    refused(sink.ask(1, lease=3601), 400, "invalid_timeout")
    refused(client.get(sink.path), 404, "sink_not_found")
