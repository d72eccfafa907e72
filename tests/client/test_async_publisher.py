"""The publisher on an event loop: what test_publisher.py tests of the one with a thread."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from threading import Event

import pytest

import tuff
from tests.client.proxy import Losses, losing
from tests.client.test_publisher import FILL_COUNT, FILLER, MINUTE_S, SMALL_BATCH_BYTES, ran
from tests.http.process import ServerProcess


@pytest.fixture
async def lossy(server: ServerProcess) -> AsyncIterator[tuple[tuff.AsyncClient, Losses]]:
    """A client behind a proxy that loses the named requests and replies."""
    with losing(server.url) as (url, losses):
        async with tuff.AsyncClient(url, client_id="tests") as through:
            yield through, losses


Lossy = tuple[tuff.AsyncClient, Losses]


async def read(client: tuff.AsyncClient, topic: tuff.TopicId) -> list[tuple[tuff.MessageId, bytes]]:
    return [(message.id, message.payload) for message in await client.poll(topic)]


async def test_each_future_has_the_id_of_its_message_and_the_order_is_kept(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, losses = lossy

    async with client.publisher() as publisher:
        futures = [await publisher.publish(topic, f"{number}") for number in range(2_000)]

    told = [((await future).ids[0], b"%d" % number) for number, future in enumerate(futures)]
    assert told == await read(client, topic)
    assert losses.seen.count("publish") < 200


async def test_after_a_lost_reply_the_batch_is_sent_again_and_published_once(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, losses = lossy
    losses.lose_reply("publish")
    publisher = client.publisher(linger=MINUTE_S)
    repeated = await publisher.publish(topic, "once")

    await publisher.flush()
    kept = await publisher.publish(topic, "it goes on")
    await publisher.close()

    told = [((await repeated).ids[0], b"once"), ((await kept).ids[0], b"it goes on")]
    assert told == await read(client, topic)
    assert losses.seen.count("publish") == 3


async def test_without_ids_the_outcome_after_a_lost_reply_is_unknown_and_nothing_is_sent_again(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, losses = lossy
    losses.lose_reply("publish")
    publisher = client.publisher(linger=MINUTE_S, ack="none")
    lost = await publisher.publish(topic, "whether it is there, nobody told")

    with pytest.raises(tuff.ConnectionLostError) as caught:
        await publisher.flush()
    kept = await publisher.publish(topic, "it goes on")
    await publisher.close()

    assert caught.value.outcome_unknown
    assert lost.exception() is caught.value
    assert await kept == tuff.Published()
    assert losses.seen.count("publish") == 2
    await client.publish(topic, "durable")
    payloads = [payload for _, payload in await read(client, topic)]
    assert payloads == [b"whether it is there, nobody told", b"it goes on", b"durable"]


async def test_publish_waits_while_eight_batches_are_in_memory(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, losses = lossy
    goes_on, is_full = Event(), asyncio.Event()
    losses.delay("publish", until=goes_on)
    futures: list[asyncio.Future[tuff.Published]] = []

    async def send_all(publisher: tuff.AsyncPublisher, name: str) -> None:
        for number in range(FILL_COUNT):
            future = await publisher.publish(topic, f"{name}{number:02}{FILLER}")
            futures.append(future)
            if len(futures) == FILL_COUNT:
                is_full.set()

    async with client.publisher(batch_bytes=SMALL_BATCH_BYTES) as publisher:
        senders = asyncio.gather(*(send_all(publisher, name) for name in "abc"))
        await is_full.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        sent_count = len(futures)
        goes_on.set()
        await senders

    assert sent_count == FILL_COUNT

    payloads = [payload.decode() for _, payload in await read(client, topic)]
    for name in "abc":
        mine = [payload for payload in payloads if payload.startswith(name)]
        assert mine == [f"{name}{number:02}{FILLER}" for number in range(FILL_COUNT)]


async def test_a_large_message_that_waits_for_room_is_not_overtaken_by_a_small_one(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, losses = lossy
    goes_on = Event()
    losses.delay("publish", until=goes_on)

    async with client.publisher(batch_bytes=SMALL_BATCH_BYTES) as publisher:
        for number in range(FILL_COUNT):
            await publisher.publish(topic, f"{number:03}{FILLER}")
        large = asyncio.ensure_future(publisher.publish(topic, b"x" * 5 * SMALL_BATCH_BYTES))
        small = asyncio.ensure_future(publisher.publish(topic, "small"))
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(large, small)

    *_, last_but_one, last = await read(client, topic)
    assert (len(last_but_one[1]), last[1]) == (5 * SMALL_BATCH_BYTES, b"small")


async def test_publish_raises_once_the_buffer_stayed_full_for_max_block(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, losses = lossy
    goes_on = Event()
    losses.delay("publish", until=goes_on)

    async with client.publisher(buffer_messages=2, max_block=0.05) as publisher:
        await publisher.publish(topic, "a")
        await publisher.publish(topic, "b")
        refused = [
            publisher.publish(topic, "no room"),
            publisher.publish(topic, "nor for the next"),
        ]
        errors = await asyncio.gather(*refused, return_exceptions=True)
        goes_on.set()
        await publisher.flush()
        await publisher.publish(topic, "c")

    assert [type(error) for error in errors] == [tuff.errors.BufferFullError] * 2
    assert [payload for _, payload in await read(client, topic)] == [b"a", b"b", b"c"]


async def test_messages_do_not_linger_while_others_wait_for_room(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, _ = lossy
    async with client.publisher(linger=MINUTE_S, buffer_messages=2, max_block=0) as publisher:
        await publisher.publish(topic, "a")
        await publisher.publish(topic, "b")
        with pytest.raises(tuff.errors.BufferFullError):
            await publisher.publish(topic, "no room")
        async with asyncio.timeout(50):
            await publisher.flush()
            future = await publisher.publish(topic, "c")
            await publisher.flush()
            assert (await future).ids

    assert len(await read(client, topic)) == 3


async def test_a_publisher_has_every_acknowledgement_level(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, _ = lossy
    async with client.publisher(ack=tuff.Ack.RECEIVED) as publisher:
        received = [await publisher.publish(topic, f"{number}") for number in range(100)]
    async with client.publisher(ack="none") as without_ids:
        unanswered = [await without_ids.publish(topic, f"{number}") for number in range(100, 200)]
    await client.publish(topic, "durable")

    found = await read(client, topic)
    assert [payload for _, payload in found[:-1]] == [b"%d" % number for number in range(200)]
    assert [(await future).ids[0] for future in received] == [id for id, _ in found[:100]]
    assert {await future for future in unanswered} == {tuff.Published()}


async def test_a_message_can_be_taken_back_until_it_is_on_its_way(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, _ = lossy
    async with client.publisher(linger=MINUTE_S) as publisher:
        await publisher.publish(topic, "a")
        assert (await publisher.publish(topic, "b")).cancel()
        await publisher.publish(topic, "c")

    assert [payload for _, payload in await read(client, topic)] == [b"a", b"c"]


async def test_a_closed_publisher_accepts_no_message(lossy: Lossy, topic: tuff.TopicId) -> None:
    publisher = lossy[0].publisher()
    await publisher.close()
    await publisher.close()

    with pytest.raises(RuntimeError, match="closed"):
        await publisher.publish(topic, "late")


def test_a_message_that_waits_when_the_loop_ends_was_not_sent_and_its_future_says_so(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    async def forgets_to_close() -> "asyncio.Future[tuff.Published]":
        async with tuff.AsyncClient(server.url) as client:
            return await client.publisher(linger=MINUTE_S).publish(topic, "never")

    def run() -> "asyncio.Future[tuff.Published]":
        future = asyncio.run(forgets_to_close())
        gc.collect()
        return future

    with pytest.warns(ResourceWarning, match="1 message of a publisher that was not closed"):
        future = run()

    error = future.exception()
    assert isinstance(error, tuff.ConnectionLostError)
    assert not error.outcome_unknown


def test_another_loop_is_refused_and_never_waits(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    """The task that publishes is of the first one, and so nothing was ever settled."""
    client = tuff.AsyncClient(server.url)
    publisher = client.publisher(linger=60)
    first = asyncio.new_event_loop()
    sent = first.run_until_complete(publisher.publish(topic, "one"))

    for call in (lambda: publisher.publish(topic, "two"), publisher.flush, publisher.close):
        with pytest.raises(RuntimeError, match="event loop"):
            asyncio.run(call())

    first.run_until_complete(publisher.close())
    assert sent.done()
    first.run_until_complete(client.close())
    first.close()


async def test_one_publisher_serves_all_topics_and_each_keeps_its_order(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, losses = lossy
    other = tuff.TopicId(topic.namespace, f"{topic.name}-other")
    await client.topics.create(other)

    async with client.publisher(linger=MINUTE_S) as publisher:
        futures = [(to, await publisher.publish(to, "x")) for to in (topic, other) * 200]

    for each in (topic, other):
        told = [(await future).ids[0] for to, future in futures if to == each]
        assert told == [id for id, _ in await read(client, each)]
    assert losses.seen.count("publish") == 2


async def test_a_topic_that_is_refused_fails_only_its_own_messages(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, _ = lossy
    nowhere = tuff.TopicId("client", "nowhere")
    publisher = client.publisher(linger=MINUTE_S)
    refused = await publisher.publish(nowhere, "a")
    kept = await publisher.publish(topic, "b")

    with pytest.raises(tuff.TopicNotFoundError):
        await publisher.close()

    assert isinstance(refused.exception(), tuff.TopicNotFoundError)
    assert len(kept.result().ids) == 1


NOT_CLOSED = """
import asyncio, sys, tuff

async def main():
    async with tuff.AsyncClient(sys.argv[1]) as client:
        publisher = client.publisher(linger=60)
        for number in range(20):
            await publisher.publish(sys.argv[2], f"{number}")
        await asyncio.sleep(float(sys.argv[3]))

asyncio.run(main())
"""


@pytest.mark.parametrize("pause_s", ["0", "0.1"], ids=["before its first step", "later"])
def test_a_publisher_that_its_loop_ends_counts_what_was_not_sent(
    server: ServerProcess, topic: tuff.TopicId, pause_s: str
) -> None:
    ended = ran(NOT_CLOSED, server.url, str(topic), pause_s)

    assert "ResourceWarning: 20 messages of a publisher that was not closed" in ended.stderr
    assert "the loop has ended" in ended.stderr
    assert "never retrieved" not in ended.stderr


async def test_a_publisher_that_is_not_closed_and_has_nothing_left_warns_of_nothing(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, _ = lossy
    publisher = client.publisher(linger=0)

    await (await publisher.publish(topic, "sent"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del publisher
        gc.collect()
