"""Transactions of which each is started by the commit before it (`chain=True`)."""

import asyncio
from collections.abc import Callable

import pytest

import tuff
from tests.client.proxy import losing
from tests.http.process import ServerProcess
from tuff import commit_protocol

Publish = Callable[[str, tuff.TopicId], list[list[bytes]]]


def blocking(url: str, topic: tuff.TopicId) -> list[list[bytes]]:
    """Three transactions that publish a message each; what each of them sees when it begins."""
    seen = []
    with tuff.Client(url) as client:
        chained = client.transaction(chain=True)
        for n in range(3):
            with chained as tx:
                seen.append([message.payload for message in tx.poll(topic)])
                tx.publish(topic, str(n))
        chained.end_chain()
    return seen


def on_a_loop(url: str, topic: tuff.TopicId) -> list[list[bytes]]:
    async def main() -> list[list[bytes]]:
        seen = []
        async with tuff.AsyncClient(url) as client:
            chained = client.transaction(chain=True)
            for n in range(3):
                async with chained as tx:
                    seen.append([message.payload for message in await tx.poll(topic)])
                    await tx.publish(topic, str(n))
            await chained.end_chain()
        return seen

    return asyncio.run(main())


@pytest.mark.parametrize("publish", [blocking, on_a_loop])
def test_each_commit_starts_the_next_transaction_whose_snapshot_has_the_commit(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId, publish: Publish
) -> None:
    with losing(server.url) as (url, losses):
        seen = publish(url, topic)

    assert seen == [[], [b"0"], [b"0", b"1"]]
    assert losses.seen == ["transactions", *["poll", "commit"] * 3, "abort"]
    assert client.transactions.overview().in_progress == ()


def close_early_blocking(url: str, topic: tuff.TopicId) -> None:
    with tuff.Client(url) as client:
        chained, other = client.transaction(chain=True), client.transaction(chain=True)
        for each in (chained, other):
            with each as tx:
                tx.publish(topic, "a")
        client.transactions.abort(client.transactions.overview().in_progress[0].transaction_id)


def close_early_on_a_loop(url: str, topic: tuff.TopicId) -> None:
    async def main() -> None:
        async with tuff.AsyncClient(url) as client:
            chained, other = client.transaction(chain=True), client.transaction(chain=True)
            for each in (chained, other):
                async with each as tx:
                    await tx.publish(topic, "a")
            opened = (await client.transactions.overview()).in_progress
            await client.transactions.abort(opened[0].transaction_id)

    asyncio.run(main())


@pytest.mark.parametrize("close_early", [close_early_blocking, close_early_on_a_loop])
def test_a_client_that_is_closed_ends_what_its_chains_have_started(
    server: ServerProcess,
    client: tuff.Client,
    topic: tuff.TopicId,
    close_early: Callable[[str, tuff.TopicId], None],
) -> None:
    """They timed out, and were on the list of invalid transactions then."""
    close_early(server.url, topic)

    assert client.transactions.overview().in_progress == ()


def test_a_client_whose_server_is_gone_closes_without_a_second_attempt(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    with losing(server.url) as (url, losses), tuff.Client(url) as through:
        chained, other = through.transaction(chain=True), through.transaction(chain=True)
        for each in (chained, other):
            with each as tx:
                tx.publish(topic, "a")
        losses.lose_request("abort", times=5)

    assert losses.seen.count("abort") == 1
    for left in client.transactions.overview().in_progress:
        client.transactions.abort(left.transaction_id)


def test_the_last_block_can_end_the_chain(client: tuff.Client, topic: tuff.TopicId) -> None:
    chained = client.transaction(chain=True)
    with chained as tx:
        tx.publish(topic, "last")
        chained.end_chain()
    in_between = client.transactions.overview().in_progress
    with chained as tx:  # begins a chain again
        tx.publish(topic, "more")
    again = client.transactions.overview().in_progress
    chained.end_chain()

    assert (len(in_between), len(again)) == (0, 1)
    assert [each.payload for each in client.poll(topic)] == [b"last", b"more"]


def test_a_block_that_begins_late_starts_a_transaction_of_its_own(
    server: ServerProcess,
    client: tuff.Client,
    topic: tuff.TopicId,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_protocol, "CHAINED_AGE_S_MAX", 0.0)
    with losing(server.url) as (url, losses):
        publish = blocking(url, topic)

    assert publish == [[], [b"0"], [b"0", b"1"]]
    one = ["transactions", "poll", "commit", "abort"]
    assert losses.seen == one * 3
    assert client.transactions.overview().in_progress == ()


def test_after_a_block_that_failed_the_next_one_starts_a_transaction(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    with losing(server.url) as (url, losses), tuff.Client(url) as through:
        chained = through.transaction(chain=True)
        with pytest.raises(ZeroDivisionError), chained as tx:
            tx.publish(topic, str(1 // 0))
        with chained as tx:
            tx.publish(topic, "counts")
        chained.end_chain()
        chained.end_chain()

    assert [message.payload for message in client.poll(topic)] == [b"counts"]
    assert losses.seen == ["transactions", "abort", "transactions", "commit", "abort"]


def test_a_lost_reply_starts_no_chain_and_loses_no_commit(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    with losing(server.url) as (url, losses), tuff.Client(url, retries=0) as through:
        chained = through.transaction(chain=True)
        losses.lose_reply("commit")
        for n in range(2):
            with chained as tx:
                tx.publish(topic, str(n))

    assert [message.payload for message in client.poll(topic)] == [b"0", b"1"]
    assert losses.seen == [
        "transactions", "commit", "invalidate", "transactions", "commit", "abort",
    ]  # fmt: skip
