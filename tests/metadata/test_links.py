"""A link passes everything on; a silent cut keeps it back, a loud one resets connections."""

import socket
from collections.abc import Iterator
from contextlib import closing
from threading import Thread

import pytest

from tests.metadata.links import Links

SHORT_S = 0.2  # seconds in which nothing may arrive


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            while piece := connection.recv(1_000):
                connection.sendall(piece)

    thread = Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


@pytest.fixture
def links() -> Iterator[Links]:
    with closing(Links()) as links:
        yield links


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20)


def test_a_link_passes_both_ways(links: Links, echo: int) -> None:
    with connected(links.to(echo).port) as client:
        client.sendall(b"hello")

        assert client.recv(10) == b"hello"


def test_what_is_sent_during_a_silent_cut_arrives_after_it(links: Links, echo: int) -> None:
    link = links.to(echo)
    with connected(link.port) as client:
        with links.cut(link, silently=True):
            client.sendall(b"hello")
            client.settimeout(SHORT_S)
            with pytest.raises(TimeoutError):
                client.recv(10)
        client.settimeout(20)

        assert client.recv(10) == b"hello"


def test_a_loud_cut_resets_connections_and_ends_new_ones(links: Links, echo: int) -> None:
    link = links.to(echo)
    with connected(link.port) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        with links.cut(link, silently=False):
            assert is_ended(client)
            with connected(link.port) as another:
                assert is_ended(another)
    with connected(link.port) as client:
        client.sendall(b"b")
        assert client.recv(1) == b"b"


def test_a_link_to_nothing_hangs_up(links: Links, echo: int) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with connected(links.to(unused.getsockname()[1]).port) as client:
            assert is_ended(client)


def is_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
