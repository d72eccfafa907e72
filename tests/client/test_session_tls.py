"""Sessions over TLS, with a real server. TLS can't read and write one connection at once, and keeps
bytes that it has decrypted."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme

import tuff
from tests.http.process import ServerProcess, serve

LARGE = b"x" * 300_000  # bytes; many records of TLS
COUNT = 5  # publishes of each of eight
TOPIC = tuff.TopicId("tls", "orders")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls") / "authority.pem"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Path) -> Iterator[ServerProcess]:
    home = authority.parent
    made = trustme.CA()
    made.cert_pem.write_to_path(authority)
    issued = made.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(home / "key.pem")
    issued.cert_chain_pems[0].write_to_path(home / "certificate.pem")
    settings = [
        f"server.tls_certificate_file={home / 'certificate.pem'}",
        f"server.tls_key_file={home / 'key.pem'}",
    ]
    with serve(tmp_path_factory.mktemp("server"), *settings) as running:
        yield running


def https(server: ServerProcess) -> str:
    return server.url.replace("http:", "https:")


def test_threads_share_a_session_over_tls(server: ServerProcess, authority: Path) -> None:
    with (
        tuff.Client(https(server), tls_ca_file=authority) as client,
        ThreadPoolExecutor(9) as threads,
    ):
        client.topics.create(TOPIC)
        waiting = threads.submit(client.poll, TOPIC, wait=30)

        def publish(thread: int) -> None:
            for _ in range(COUNT):
                client.publish(TOPIC, str(thread))
                client.publish(TOPIC, LARGE)

        list(threads.map(publish, range(8)))
        assert waiting.result()
        read, page = [], client.poll(TOPIC)
        while page:
            read += [message.payload for message in page]
            page = client.poll(TOPIC, page.next_id, inclusive=False)

    assert read.count(LARGE) == 8 * COUNT
    assert [read.count(str(n).encode()) for n in range(8)] == [COUNT] * 8


async def test_tasks_share_a_session_over_tls(server: ServerProcess, authority: Path) -> None:
    topic = tuff.TopicId("tls", "tasks")
    async with tuff.AsyncClient(https(server), tls_ca_file=authority) as client:
        await client.topics.create(topic)
        await asyncio.gather(*(client.publish(topic, LARGE) for _ in range(20)))
        read = await client.poll(topic)

    assert [message.payload for message in read] == [LARGE] * 20
