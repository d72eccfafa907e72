"""Clients that vanish in a transaction block readers for a bounded time (promise 6)."""

import pytest

from tests.faults.vanishing import Observed, observe, topic_of
from tests.http.client import ok
from tests.http.conftest import NewServer


@pytest.mark.slow
def test_readers_get_past_the_messages_of_vanished_clients(new_server: NewServer) -> None:
    server = new_server("messaging.max_block=1")

    observed = observe(server, clients=500)

    client = server.client()
    assert len(observed.vanished) == 500
    assert topic_of(client).committed() == ["plain"] * len(observed.plain)
    assert ok(client.get("/v1/transactions")).json["inProgress"] == []
    assert len(ok(client.get("/v1/transactions/invalid")).json["invalids"]) == 500


def test_a_wait_lasts_until_each_reader_is_past_the_message() -> None:
    observed = Observed(readers=[[("05", 1.0), ("20", 4.0)], [("10", 2.0), ("20", 3.0)]])

    assert observed.held_s([("10", 1.5)]) == [0.5, 2.5]
