"""Connections to gateways after a fork, with a server that echoes numbers in place of a gateway."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from time import perf_counter

from tuff_storage.hbase_gateway import Addresses, Gateways

CALL_COUNT = 200  # calls of each process; on a shared connection one in sixty got a wrong answer


class Transport:
    """Has the socket of a connection, as Thrift's transports do."""

    sock: socket.socket


class Connection:
    """A connection that sends numbers, with the methods that `Gateways` uses."""

    def __init__(self, host: str, port: int, *, timeout: int) -> None:
        self._address = (host, port)
        self.transport = Transport()

    def open(self) -> None:
        self.transport.sock = socket.create_connection(self._address)

    def close(self) -> None:
        with suppress(OSError):
            self.transport.sock.shutdown(socket.SHUT_RDWR)
        self.transport.sock.close()

    def __del__(self) -> None:  # as happybase's
        self.close()

    def ask(self, number: int) -> int:
        self.transport.sock.sendall(b"%04d" % number)
        return int(self.transport.sock.recv(4))


@contextmanager
def echoing() -> Iterator[tuple[str, int]]:
    def answer(caller: socket.socket) -> None:
        with caller:
            while sent := caller.recv(4):
                caller.sendall(sent)

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            Thread(target=answer, args=(caller,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = Thread(target=serve)
        serving.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()


def test_a_forked_process_opens_its_own_connections() -> None:
    """On a shared connection, each process read answers of the other."""
    with echoing() as address:
        gateways = Gateways(
            Addresses([address]),
            timeout_s=5,
            idle_s=60,
            elapsed_s=perf_counter,
            connect=Connection,
        )

        def asked(number: int) -> int:
            return gateways.call(lambda on: int(on.ask(number)))

        def wrong_count(first: int) -> int:
            return sum(asked(number) != number for number in range(first, first + CALL_COUNT))

        assert wrong_count(0) == 0
        child = os.fork()
        if child == 0:
            os._exit(int(wrong_count(5000) > 0))
        assert wrong_count(1000) == 0
        assert os.waitpid(child, 0)[1] == 0
        assert wrong_count(2000) == 0
        gateways.close()
