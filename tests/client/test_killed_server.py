"""The futures of a publisher are right about each message, although its server is killed often."""

from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

import pytest

import tuff
from tuff.launch import ServerProcess

ROUND_COUNT = 6
SENT_PER_ROUND = 2_000
TOPIC = tuff.TopicId("client", "killed")


def read_all(client: tuff.Client) -> dict[int, tuff.MessageId]:
    """The number in each message, and its id, in their order; no number occurs twice."""
    found: dict[int, tuff.MessageId] = {}
    start = None
    while not (page := client.poll(TOPIC, start, inclusive=start is None)).caught_up or page:
        for message in page:
            assert int(message.payload) not in found
            found[int(message.payload)] = message.id
        start = page.next_id
    return found


@pytest.mark.slow
def test_each_future_agrees_with_the_messages_on_the_server(tmp_path: Path) -> None:
    log, data = tmp_path / "log.txt", tmp_path / "data"
    server = ServerProcess(data, log=log)
    port = server.url.rpartition(":")[2]
    futures: list[Future[tuff.Published]] = []
    client = tuff.Client(server.url)
    client.topics.create(TOPIC)
    publisher = client.publisher(batch_bytes=5_000)

    for _ in range(ROUND_COUNT):
        first = len(futures)
        numbers = range(first, first + SENT_PER_ROUND)
        futures += [publisher.publish(TOPIC, b"%d" % number) for number in numbers]
        wait([futures[first + SENT_PER_ROUND // 2]])
        server.kill()
        server = ServerProcess(data, log=log, arguments=["--port", port])
    wait(futures)

    with suppress(tuff.ConnectionLostError):  # if a server took too long to start
        publisher.close()
    found = read_all(client)
    server.stop()
    client.close()

    assert list(found) == sorted(found), "they are in the order in which they were sent"
    lost_count = 0
    for number, future in enumerate(futures):
        error = future.exception()
        if error is None:
            assert found[number] == future.result().ids[0]
        else:
            is_unknown = isinstance(error, tuff.ConnectionLostError) and error.outcome_unknown
            assert is_unknown or error.retry_safe, "what a starting server refuses is not done"
            assert is_unknown or number not in found
            lost_count += 1
    assert lost_count < len(futures) // 2, "the client publishes nearly all again"
