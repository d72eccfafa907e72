"""A transaction of its own in one call (protocol §5.2, `run`)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, begin, entry, ids
from tests.http.client import Client, Reply, ok, problem_of, refused
from tests.http.conftest import NewTopic
from tests.http.process import ServerProcess


def run(client: Client, /, *publish: object, **more: object) -> Reply:
    return client.post(f"{TRANSACTIONS}/run", {"publish": list(publish), **more})


def test_a_run_publishes_to_several_topics_at_once(client: Client, new_topic: NewTopic) -> None:
    here, there = new_topic(), new_topic()
    before = begin(client)

    reply = ok(run(client, entry(here, "a", "b"), entry(there, "c"), client="me"))

    assert reply.json["state"] == "committed"
    first, second = reply.json["published"]
    assert first["transactionWritePointer"] == second["transactionWritePointer"]
    assert here.committed() == ["a", "b"]
    assert there.committed() == ["c"]
    assert (here.read(tx=before.id), there.read(tx=before.id)) == ([], [])
    assert first["startTimestamp"] == int(ids(here.poll())[0][:16], 16)
    shown = ok(client.get(f"{TRANSACTIONS}/{first['transactionWritePointer']}")).json
    assert (shown["state"], shown["client"]) == ("committed", "me")
    assert ok(run(client, entry(there, "c"))).body != ok(run(client, entry(there, "c"))).body


def test_a_run_that_is_refused_publishes_nothing(
    client: Client, topic: Topic, missing: Topic
) -> None:
    refused(run(client, entry(topic, "a"), entry(missing, "b")), 404, "topic_not_found")
    bad: tuple[dict[str, Any], ...] = (
        entry(topic, 7), {"namespace": "a"}, {**entry(topic, "a"), "topic": "a b"},
        entry(topic, "a", pointer="1"), entry(topic, {"payload": "x", "ttl": 0}),
    )  # fmt: skip
    for one in bad:
        assert problem_of(run(client, entry(topic, "a"), one))["status"] == 400

    assert topic.read() == []
    assert not any(
        f"{topic.namespace}:{topic.name}" in one["topics"]
        for one in ok(client.get(TRANSACTIONS)).json["inProgress"]
    )


@pytest.mark.parametrize(
    "more", [{"client": 7}, {"requestId": 7}, {"requestId": "x" * 129}, {"changes": ["k"]}]
)
def test_a_malformed_run_is_refused(client: Client, topic: Topic, more: dict[str, object]) -> None:
    refused(run(client, entry(topic, "a"), **more), 400, "bad_request")

    assert topic.read() == []


def test_a_request_id_is_taken_by_the_first_run_that_commits(
    client: Client, missing: Topic
) -> None:
    request_id = f"{missing.namespace} " + "x" * (127 - len(missing.namespace))
    refused(run(client, entry(missing, "a"), requestId=request_id), 404, "topic_not_found")
    ok(missing.create())

    replies = [ok(run(client, entry(missing, one), requestId=request_id)) for one in "aab"]

    assert len({reply.body for reply in replies}) == 1
    assert missing.read() == missing.committed() == ["a"]


def test_equal_requests_at_the_same_time_run_once(server: ServerProcess, topic: Topic) -> None:
    clients = [server.client() for _ in range(8)]
    request_id = f"together {topic.namespace}"

    with ThreadPoolExecutor(8) as threads:
        replies = list(
            threads.map(lambda one: run(one, entry(topic, "a"), requestId=request_id), clients)
        )

    assert len({ok(reply).body for reply in replies}) == 1
    assert topic.read() == ["a"]
    for one in clients:
        one.close()


def test_a_run_is_atomic_for_readers_of_both_topics_under_load(
    server: ServerProcess, client: Client, new_topic: NewTopic
) -> None:
    here, there = new_topic(), new_topic()
    clients = [server.client() for _ in range(3)]

    def work(number: int) -> None:
        for step in range(10):
            name = f"{number} {step}"
            ok(run(clients[number], entry(here, name), entry(there, name)))

    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(work, number) for number in range(3)]
        while not all(one.done() for one in running):
            reader = begin(client)
            skip = {"tx": reader.id, "undecided": "skip"}
            assert sorted(here.read(None, **skip)) == sorted(there.read(None, **skip))
            ok(reader.commit(readOnly=True))
        for work_done in running:
            work_done.result()

    assert len(here.committed()) == len(there.committed()) == 30
    for one in clients:
        one.close()
