"""Messages without a transaction are published and read while transactions fail (promise 7).

`python -m tests.faults.independence` measures the throughput.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.independence import TOPIC, Independence
from tests.http.calls import TRANSACTIONS, Topic
from tests.http.client import Client, ok


@pytest.fixture
def independence(tmp_path: Path) -> Iterator[Independence]:
    made = Independence(tmp_path)
    yield made
    made.end()


def test_messages_are_served_while_transactions_stop_hang_crash_or_can_not_start(
    independence: Independence,
) -> None:
    refused: dict[str, int] = {}
    for name, state in independence.states.items():
        with state() as server:
            client = Client(server.port)
            topic = Topic(client, *TOPIC)
            ok(topic.publish(f"while it is {name}"))

            assert topic.read(isolation="all")[-1] == f"while it is {name}"
            if name != "damaged":  # the index still has the last commits before the kill
                assert topic.committed()[-1] == f"while it is {name}"
            if name != "hung":
                refused[name] = client.post(TRANSACTIONS).status
            client.close()

    running = independence.broken.server.client()
    assert refused == {"stopped": 503, "crashed": 503, "damaged": 503}
    ok(
        running.post(
            f"{TRANSACTIONS}/run",
            {"publish": [{"namespace": TOPIC[0], "topic": TOPIC[1], "messages": ["again"]}]},
        )
    )
    assert Topic(running, *TOPIC).committed()[-1] == "again"
