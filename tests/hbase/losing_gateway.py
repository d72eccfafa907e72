"""A proxy before a Thrift gateway that loses the replies of one method."""

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread

PIECE_BYTES = 1 << 16


class LosingGateway:
    """Passes calls on. Of the calls to lose, the client gets a closed connection in place of the
    reply. `_lock` guards what is to be lost, and the open sockets."""

    def __init__(self, listener: socket.socket, gateway: tuple[str, int]) -> None:
        self.port: int = listener.getsockname()[1]
        self.lost_count = 0
        self._listener = listener
        self._gateway = gateway
        self._lock = Lock()
        self._method = b""
        self._left = 0
        self._meanwhile: Callable[[], object] = lambda: None
        self._open: set[socket.socket] = set()

    def lose_replies(
        self, method: str, *, times: int = 1, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """The gateway carries the next calls out, and then `meanwhile` is called, before the client
        can repeat them."""
        with self._lock:
            self._method, self._left, self._meanwhile = method.encode(), times, meanwhile

    def serve(self) -> None:
        """Until `close`."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                gateway = socket.create_connection(self._gateway)
                with self._lock:
                    self._open |= {client, gateway}
                Thread(target=self._pass_on, args=(client, gateway), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, client: socket.socket, gateway: socket.socket) -> None:
        is_losing = False
        with client, gateway, suppress(OSError):
            while True:
                readable, _, _ = select.select([client, gateway], [], [])
                source = readable[0]
                piece = source.recv(PIECE_BYTES)
                if not piece:
                    break
                if source is client:
                    is_losing = is_losing or self._takes(piece)
                    gateway.sendall(piece)
                elif is_losing:
                    self.lost_count += 1
                    self._meanwhile()
                    break
                else:
                    client.sendall(piece)
        with self._lock:
            self._open -= {client, gateway}

    def _takes(self, piece: bytes) -> bool:
        with self._lock:
            if self._left == 0 or self._method not in piece:
                return False
            self._left -= 1
            return True


@contextmanager
def losing_gateway(port: int) -> Iterator[LosingGateway]:
    """A proxy before the gateway at this port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = LosingGateway(listener, ("127.0.0.1", port))
        serving = Thread(target=proxy.serve)
        serving.start()
        try:
            yield proxy
        finally:
            proxy.close()
            serving.join()
