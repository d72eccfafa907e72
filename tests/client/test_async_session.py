"""The asyncio client over a session: fallback to HTTP, limits, lost connections, cancellation."""

import asyncio
import threading
from pathlib import Path
from typing import Literal

import pytest

import tuff
from tests.client.played_session import PlayedSession, playing
from tests.client.proxy import Losses, losing
from tests.http.client import until
from tests.http.process import ServerProcess, serve
from tests.secret_values import hash_of_token, token_of
from tuff.address import Address
from tuff.aio.transport import FRAMES_PER_WRITE_MAX, AsyncSession
from tuff.protocol.operations import GET_OUTCOME
from tuff.protocol.session_frames import Kind, frame
from tuff.requests_and_responses import Request

PLAYED = tuff.TopicId("played", "topic")

ADDRESS = Address(url="http://127.0.0.1:1", timeout_s=9, connect_timeout_s=9)
MANY = 200  # more polls than a session takes


async def test_frequent_calls_use_one_session_and_the_others_http(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    with losing(server.url) as (url, losses):
        async with tuff.AsyncClient(url, transport="auto") as client:
            await asyncio.gather(*(client.publish(topic, str(n)) for n in range(20)))
            assert len(await client.poll(topic)) == 20
            assert (await client.topics.get(topic)).topic == topic
            invalids = await client.transactions.invalids()

    assert losses.sessions == 1
    assert invalids.prunable == ()


async def test_lost_replies_of_prepare_and_resolve_are_asked_for_again(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    entry = tuff.connectors.PublishEntry(topic=topic, payloads=[b"one"])
    with losing(server.url) as (url, losses):
        losses.lose_reply("prepare")
        losses.lose_reply("resolve")
        async with tuff.AsyncClient(url, transport="auto") as client:
            tx = await client.transactions.start()
            prepared = await client.transactions.prepare(tx, "shop", publish=[entry])
            state = await client.transactions.resolve(tx, "commit")
            read = await client.poll(topic)

    assert (prepared.database, [each.pointer for each in prepared.published]) == (
        "shop",
        [tx.write_pointer],
    )
    assert (str(state), [each.payload for each in read]) == ("committed", [b"one"])
    assert (losses.seen.count("prepare"), losses.seen.count("resolve")) == (2, 2)
    assert losses.sessions == 3


async def test_without_a_session_all_calls_use_http(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    with losing(server.url, losses=Losses(says=504)) as (url, losses):
        async with tuff.AsyncClient(url, transport="auto") as client:
            await client.publish(topic, "one")
            assert [each.payload for each in await client.poll(topic)] == [b"one"]

    assert losses.sessions == 0


async def test_polls_above_the_limit_of_a_session_wait_over_http(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    async with tuff.AsyncClient(server.url, transport="auto") as client:
        polls = [asyncio.ensure_future(client.poll(topic, wait=60)) for _ in range(MANY)]
        await asyncio.sleep(0)
        await client.publish(topic, "for all")

        read = await asyncio.gather(*polls)

    assert [[each.payload for each in one] for one in read] == [[b"for all"]] * MANY


@pytest.mark.filterwarnings("ignore:Sending a large body")  # of the HTTP library
async def test_a_call_larger_than_a_frame_is_refused_as_over_http(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    async with tuff.AsyncClient(server.url, transport="auto", retries=0) as client:
        with pytest.raises(tuff.errors.RequestTooLargeError):
            await client.publish(topic, b"x" * 17_000_000)
        await client.publish(topic, "small")


async def test_a_cancelled_poll_ends_at_the_server(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    metrics = server.client()

    def waiting() -> bool:
        return b"tuff_polls_waiting 1.0" in metrics.get("/metrics").body

    async with tuff.AsyncClient(server.url, transport="auto") as over_session:
        poll = asyncio.ensure_future(over_session.poll(topic, wait=60))
        await asyncio.to_thread(until, waiting)

        poll.cancel()

        await asyncio.to_thread(until, lambda: not waiting())
        await over_session.publish(topic, "goes on")
    assert len(client.poll(topic)) == 1


async def test_a_call_without_a_reply_fails_in_time_and_the_next_one_has_a_new_session(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    with losing(server.url) as (url, losses):
        losses.hold("publish", lambda: None)
        async with tuff.AsyncClient(url, transport="auto", timeout=1.5, retries=0) as client:
            with pytest.raises(tuff.ConnectionLostError) as caught:
                await client.publish(topic, "never there")
            assert await client.poll(topic) is not None

    assert caught.value.outcome_unknown
    assert losses.sessions == 2


async def test_a_client_gets_a_new_session_after_a_restart(tmp_path: Path) -> None:
    topic = tuff.TopicId("default", "t")
    first = serve(tmp_path)
    async with tuff.AsyncClient(first.url, transport="auto") as client:
        await client.topics.create(topic)
        await client.publish(topic, "before")
        first.terminate()
        with pytest.raises(tuff.errors.ServerUnreachableError) as caught:
            await tuff.AsyncClient(first.url, transport="auto", retries=0).publish(topic, "lost")
        assert not caught.value.outcome_unknown

        with serve(tmp_path, port=first.port):
            await client.publish(topic, "after")
            read = [each.payload for each in await client.poll(topic)]

    assert read == [b"before", b"after"]


async def test_a_wrong_token_is_refused_as_over_http(tmp_path: Path) -> None:
    rights = '[[principals.one.rights]]\nallow = ["create", "publish"]\n'
    file = tmp_path / "access.toml"
    file.write_text(f'[principals.one]\ntokens = ["{hash_of_token("good")}"]\n{rights}')
    topic = tuff.TopicId("default", "t")
    with serve(tmp_path, f"server.access_file={file}") as server:
        async with tuff.AsyncClient(server.url, token=token_of("good"), transport="auto") as good:
            await good.topics.create(topic)
            await good.publish(topic, "m")
            with pytest.raises(tuff.errors.ForbiddenError):
                await good.poll(topic)
        async with tuff.AsyncClient(server.url, token=token_of("bad"), transport="auto") as bad:
            with pytest.raises(tuff.errors.UnauthenticatedError):
                await bad.publish(topic, "m")


async def test_closing_fails_the_calls_that_wait(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    metrics = server.client()
    client = tuff.AsyncClient(server.url, transport="auto", retries=0)
    await client.publish(topic, "m")
    poll = asyncio.ensure_future(client.poll(topic, wait=60, isolation="committed", limit=1))
    assert len(await poll) == 1
    waiting = asyncio.ensure_future(client.poll(topic, start="ff" * 20, wait=60))
    await asyncio.to_thread(
        until, lambda: b"tuff_polls_waiting 1.0" in metrics.get("/metrics").body
    )

    await client.close()

    with pytest.raises(tuff.ConnectionLostError):
        await waiting
    with pytest.raises(tuff.errors.ClientClosedError):
        await client.publish(topic, "m")


@pytest.mark.parametrize("bad", [b"\0\0\0\1\xc1", b"\xff\xff\xff\xff", b"\0\0\0\2\x91\xa0"])
async def test_what_is_no_frame_ends_the_session(bad: bytes) -> None:
    def wrong(played: PlayedSession) -> None:
        played.next_call()
        played.caller.sendall(bad)

    with playing(wrong, PlayedSession.answer_all) as url:
        async with tuff.AsyncClient(url, retries=0) as client:
            with pytest.raises(tuff.ConnectionLostError):
                await client.publish(PLAYED, "lost")
            await client.publish(PLAYED, "over the next session")


async def test_replies_in_any_order_reach_their_tasks_and_a_late_one_is_dropped() -> None:
    def backwards(played: PlayedSession) -> None:
        calls = [played.next_call() for _ in range(20)]
        for call_id in reversed(calls[1:]):
            played.reply(call_id)
        following = played.next_call()
        played.reply(calls[0])
        played.reply(following)

    with playing(backwards) as url:
        async with tuff.AsyncClient(url, timeout=2, retries=0) as client:
            calls = [client.publish(PLAYED, str(n)) for n in range(20)]
            late, *others = await asyncio.gather(*calls, return_exceptions=True)
            await client.publish(PLAYED, "goes on")

    assert isinstance(late, tuff.ConnectionLostError)
    assert [type(each) for each in others] == [tuff.Published] * 19


async def test_a_session_that_ended_while_no_call_waited_loses_no_publish() -> None:
    """Its end is read before the next call is sent on it that can't be repeated."""

    def one(played: PlayedSession) -> None:
        played.reply(played.next_call())
        played.end()
        ended.set()

    ended = threading.Event()
    with playing(one, PlayedSession.answer_all) as url:
        async with tuff.AsyncClient(url, retries=0) as client:
            await client.publish(PLAYED, "one")
            ended.wait()  # it has arrived, and the loop has read nothing
            await client.publish(PLAYED, "over the next session", ack="none")


class Recorder(asyncio.Transport):
    """Notes the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:  # type: ignore[override]  # of one kind of bytes
        self.writes.append(data)

    def abort(self) -> None:
        """Nothing is open."""


async def test_calls_that_tasks_make_at_once_share_writes() -> None:
    transport, session = Recorder(), AsyncSession()
    session.connection_made(transport)
    limits = {"version": "1", "calls": 99, "polls": 9, "frameBytes": 999, "idle": 60}
    begun = asyncio.ensure_future(session.begin(ADDRESS))
    await asyncio.sleep(0)
    session.data_received(b"HTTP/1.1 101 -\r\n\r\n" + frame(int(Kind.GREETING), limits))
    await begun
    transport.writes.clear()
    request = Request(operation=GET_OUTCOME, parameters=("7",))

    count = FRAMES_PER_WRITE_MAX + 4
    calls = [asyncio.ensure_future(session.exchange(request, within_s=9)) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    session.connection_lost(None)

    call = [24, ["7"], None, None, None, None]
    frames = [frame(int(Kind.CALL), number, *call) for number in range(1, count + 1)]
    whole = FRAMES_PER_WRITE_MAX + 1
    assert transport.writes == [frames[0], b"".join(frames[1:whole]), b"".join(frames[whole:])]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in ended} == {ConnectionResetError}


@pytest.mark.parametrize("transport", ["auto", "http"])
async def test_a_publish_finds_an_idle_connection_closed_before_it_is_sent(
    tmp_path: Path, transport: Literal["auto", "http"]
) -> None:
    """Sent on it, the publish was lost with an unknown outcome, and without retries an error."""
    server = serve(tmp_path)
    port = int(server.url.rpartition(":")[2])
    async with tuff.AsyncClient(server.url, retries=0, transport=transport) as client:
        await client.topics.create("shop:orders")
        await client.publish("shop:orders", "a")
        server.end()  # meanwhile the event loop of this test does not run
        server = serve(tmp_path, port=port)

        await client.publish("shop:orders", "b")

        assert [message.payload for message in await client.poll("shop:orders")] == [b"a", b"b"]
    server.end()
