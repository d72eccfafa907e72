"""Both clients where there is no session: what is between them and the server refuses the upgrade,
or drops it. Each call is executed once, over HTTP, and the question is not repeated for a while."""

import asyncio
from collections.abc import Callable

import pytest

import tuff
from tests.client.played_session import LIMITS, UPGRADED
from tests.client.proxy import losing
from tests.http.process import ServerProcess
from tuff.protocol.session_frames import Kind, frame
from tuff.session_offers import ASK_AGAIN_S, ASK_AGAIN_WHEN_BUSY_S, NoSessionError, Offers

Publish = Callable[[str, tuff.TopicId], None]


def blocking(url: str, topic: tuff.TopicId) -> None:
    with tuff.Client(url, retries=0, connect_timeout=0.5) as client:
        for n in range(3):
            client.publish(topic, str(n))


def on_a_loop(url: str, topic: tuff.TopicId) -> None:
    async def main() -> None:
        async with tuff.AsyncClient(url, retries=0, connect_timeout=0.5) as client:
            for n in range(3):
                await client.publish(topic, str(n))

    asyncio.run(main())


BOTH = pytest.mark.parametrize("publish", [blocking, on_a_loop])
BAD_GREETINGS = {
    "of another version": frame(int(Kind.GREETING), {"calls": "many"}),
    "a reply": frame(int(Kind.REPLY), 1, 200, {}, None),
    "no frame": b"HTTP/1.1 200 OK\r\n\r\n",
    "cut short": frame(int(Kind.GREETING), LIMITS)[:20],
}


@BOTH
@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\nbad",
        b"",
        b"\x16\x03\x01",
        *[UPGRADED + bad for bad in BAD_GREETINGS.values()],
    ],
    ids=["refused", "passed over", "bad gateway", "hung up", "another protocol", *BAD_GREETINGS],
)
def test_without_a_session_each_call_is_executed_once_over_http(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId, publish: Publish, said: bytes
) -> None:
    with losing(server.url) as (url, losses):
        losses.instead_of_session = said
        publish(url, topic)

    assert [message.payload for message in client.poll(topic)] == [b"0", b"1", b"2"]
    assert (losses.asked_for_sessions, losses.sessions) == (1, 0)


def test_a_server_that_is_busy_is_asked_again_soon() -> None:
    offers = Offers()

    assert offers.refused(NoSessionError(503, "it starts"), 100.0) == ASK_AGAIN_WHEN_BUSY_S
    assert not offers.is_worth_asking(100.9)
    assert offers.is_worth_asking(101.0)
    assert offers.refused(NoSessionError(404, "a cluster"), 100.0) == ASK_AGAIN_S
    assert not offers.is_worth_asking(159.9)
    assert offers.is_worth_asking(160.0)
