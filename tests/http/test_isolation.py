"""Snapshot isolation end to end: topics as registers that clients read and write (promise 5)."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.http.calls import Topic, Tx, begin, entry
from tests.http.client import Client, ok
from tests.http.conftest import NewTopic
from tests.http.process import ServerProcess

ACCOUNTS = 4
START = 100


@pytest.fixture
def clients(server: ServerProcess) -> Iterator[list[Client]]:
    made = [server.client() for _ in range(6)]
    yield made
    for one in made:
        one.close()


def value(register: Topic, tx: Tx) -> int:
    """The last value that this transaction sees; rows that are not decided for it don't count."""
    own = Topic(tx.client, register.namespace, register.name)
    return int(own.read(None, tx=tx.id, undecided="skip")[-1])


def key(register: Topic) -> str:
    return f"{register.namespace}:{register.name}"


def test_money_that_moves_between_accounts_is_never_more_or_less(
    clients: list[Client], new_topic: NewTopic
) -> None:
    accounts = [new_topic() for _ in range(ACCOUNTS)]
    for account in accounts:
        ok(account.publish(str(START)))

    def move(seed: int) -> None:
        client, chance = clients[seed], random.Random(seed)
        for _ in range(12):
            source, target = chance.sample(accounts, 2)
            tx = begin(client)
            moved = [
                entry(source, str(value(source, tx) - 1)), entry(target, str(value(target, tx) + 1))
            ]  # fmt: skip
            reply = tx.commit(changes=[key(source), key(target)], publish=moved)
            if reply.status == 409:
                ok(tx.abort())

    def audit(client: Client) -> None:
        for _ in range(15):
            tx = begin(client)
            assert sum(value(account, tx) for account in accounts) == ACCOUNTS * START
            ok(tx.commit(readOnly=True))

    with ThreadPoolExecutor(6) as threads:
        jobs = [threads.submit(move, seed) for seed in range(4)]
        jobs += [threads.submit(audit, client) for client in clients[4:]]
        for job in jobs:
            job.result()


def test_readers_of_a_busy_topic_agree_on_one_order(clients: list[Client], topic: Topic) -> None:
    def write(number: int) -> None:
        client = clients[number]
        own = Topic(client, topic.namespace, topic.name)
        for step in range(20):
            tx = begin(client)
            ok(own.publish(f"{number} {step}", tx=tx.id))
            ok(tx.abort() if step % 4 == 3 else tx.commit())

    def follow(number: int) -> list[tuple[str, str]]:
        own = Topic(clients[number], topic.namespace, topic.name)
        found: list[tuple[str, str]] = []
        start = "0" * 40
        while len(found) < 4 * 15:
            body = {"startFrom": start, "inclusive": False, "limit": 7}
            reply = ok(own.poll(body, isolation="committed", wait=1))
            found += [(message["id"], message["payload"]) for message in reply.json]
            start = str(reply.header("Tuff-Next"))
        return found

    with ThreadPoolExecutor(6) as threads:
        followers = [threads.submit(follow, number) for number in (4, 5)]
        writers = [threads.submit(write, number) for number in range(4)]
        for writer in writers:
            writer.result()
        first, second = (follower.result() for follower in followers)

    assert first == second
    assert [payload for _, payload in first] == topic.committed()
    assert [one for one, _ in first] == sorted({one for one, _ in first})
