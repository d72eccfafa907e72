"""The publisher on an event loop: what test_publisher.py tests of the one with a thread."""

import asyncio
from collections.abc import AsyncIterator
from threading import Event

import pytest

import tuff
from tests.client.proxy import Losses, losing
from tests.client.test_publisher import FILL_COUNT, FILLER, MINUTE_S, SMALL_BATCH_BYTES
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

    async with client.publisher(topic) as publisher:
        futures = [await publisher.send(f"{number}") for number in range(2_000)]

    told = [(await future, b"%d" % number) for number, future in enumerate(futures)]
    assert told == await read(client, topic)
    assert losses.seen.count("publish") < 200


async def test_after_a_lost_reply_the_outcome_is_unknown_and_the_message_is_not_sent_again(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, losses = lossy
    losses.lose_reply("publish")
    publisher = client.publisher(topic, linger=MINUTE_S)
    lost = await publisher.send("whether it is there, nobody told")

    with pytest.raises(tuff.ConnectionLostError) as caught:
        await publisher.flush()
    kept = await publisher.send("it goes on")
    await publisher.close()

    assert caught.value.outcome_unknown
    assert lost.exception() is caught.value
    payloads = [payload for _, payload in await read(client, topic)]
    assert payloads == [b"whether it is there, nobody told", b"it goes on"]
    assert await kept


async def test_send_waits_while_eight_batches_are_in_memory(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, losses = lossy
    goes_on, is_full = Event(), asyncio.Event()
    losses.delay("publish", until=goes_on)
    futures: list[asyncio.Future[tuff.MessageId]] = []

    async def send_all(publisher: tuff.AsyncPublisher, name: str) -> None:
        for number in range(FILL_COUNT):
            future = await publisher.send(f"{name}{number:02}{FILLER}")
            futures.append(future)
            if len(futures) == FILL_COUNT:
                is_full.set()

    async with client.publisher(topic, batch_bytes=SMALL_BATCH_BYTES) as publisher:
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

    async with client.publisher(topic, batch_bytes=SMALL_BATCH_BYTES) as publisher:
        for number in range(FILL_COUNT):
            await publisher.send(f"{number:03}{FILLER}")
        large = asyncio.ensure_future(publisher.send(b"x" * 5 * SMALL_BATCH_BYTES))
        small = asyncio.ensure_future(publisher.send("small"))
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(large, small)

    *_, last_but_one, last = await read(client, topic)
    assert (len(last_but_one[1]), last[1]) == (5 * SMALL_BATCH_BYTES, b"small")


async def test_send_raises_once_the_buffer_stayed_full_for_max_block(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, losses = lossy
    goes_on = Event()
    losses.delay("publish", until=goes_on)

    async with client.publisher(topic, buffer_messages=2, max_block=0.05) as publisher:
        await publisher.send("a")
        await publisher.send("b")
        refused = [publisher.send("no room"), publisher.send("nor for the next")]
        errors = await asyncio.gather(*refused, return_exceptions=True)
        goes_on.set()
        await publisher.flush()
        await publisher.send("c")

    assert [type(error) for error in errors] == [tuff.BufferFullError] * 2
    assert [payload for _, payload in await read(client, topic)] == [b"a", b"b", b"c"]


async def test_messages_do_not_linger_while_others_wait_for_room(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, _ = lossy
    async with client.publisher(
        topic, linger=MINUTE_S, buffer_messages=2, max_block=0
    ) as publisher:
        await publisher.send("a")
        await publisher.send("b")
        with pytest.raises(tuff.BufferFullError):
            await publisher.send("no room")
        async with asyncio.timeout(10):
            await publisher.flush()
            future = await publisher.send("c")
            await publisher.flush()
            assert await future

    assert len(await read(client, topic)) == 3


async def test_a_publisher_has_every_acknowledgement_level(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, _ = lossy
    async with client.publisher(topic, ack=tuff.Ack.RECEIVED) as publisher:
        received = [await publisher.send(f"{number}") for number in range(100)]
    async with client.publisher(topic, ack="none") as without_ids:
        unanswered = [await without_ids.send(f"{number}") for number in range(100, 200)]
    await client.publish(topic, "durable")

    found = await read(client, topic)
    assert [payload for _, payload in found[:-1]] == [b"%d" % number for number in range(200)]
    assert [await future for future in received] == [id for id, _ in found[:100]]
    assert {await future for future in unanswered} == {None}


async def test_a_message_can_be_taken_back_until_it_is_on_its_way(
    lossy: Lossy, topic: tuff.TopicId
) -> None:
    client, _ = lossy
    async with client.publisher(topic, linger=MINUTE_S) as publisher:
        await publisher.send("a")
        assert (await publisher.send("b")).cancel()
        await publisher.send("c")

    assert [payload for _, payload in await read(client, topic)] == [b"a", b"c"]


async def test_a_closed_publisher_accepts_no_message(lossy: Lossy, topic: tuff.TopicId) -> None:
    publisher = lossy[0].publisher(topic)
    await publisher.close()
    await publisher.close()

    with pytest.raises(RuntimeError, match="closed"):
        await publisher.send("late")


def test_a_message_that_waits_when_the_loop_ends_was_not_sent_and_its_future_says_so(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    async def forgets_to_close() -> "asyncio.Future[tuff.MessageId]":
        async with tuff.AsyncClient(server.url) as client:
            return await client.publisher(topic, linger=MINUTE_S).send("never")

    future = asyncio.run(forgets_to_close())

    error = future.exception()
    assert isinstance(error, tuff.ConnectionLostError)
    assert not error.outcome_unknown


def test_another_loop_is_refused_and_never_waits(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    """The task that publishes is of the first one, and so nothing was ever settled."""
    client = tuff.AsyncClient(server.url)
    publisher = client.publisher(topic, linger=60)
    first = asyncio.new_event_loop()
    sent = first.run_until_complete(publisher.send("one"))

    for call in (lambda: publisher.send("two"), publisher.flush, publisher.close):
        with pytest.raises(RuntimeError, match="event loop"):
            asyncio.run(call())

    first.run_until_complete(publisher.close())
    assert sent.done()
    first.run_until_complete(client.close())
    first.close()
