"""A proxy between client and server that loses the calls which a test names."""

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive"}


class Losses:
    """The calls to be lost, by the end of their path. Guarded by `_lock`.

    `says`: the status with which the proxy answers a lost call; None: it closes the connection.
    """

    def __init__(self, *, says: int | None = None) -> None:
        self.says = says
        self._lock = Lock()
        self._replies: dict[str, int] = {}
        self._meanwhile: dict[str, Callable[[], object]] = {}
        self._requests: dict[str, int] = {}
        self.held: dict[str, Callable[[], object]] = {}
        self._delayed: dict[str, Event] = {}
        self.seen: list[str] = []

    def lose_reply(
        self, call: str, *, times: int = 1, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """The server executes it, and the client gets no response; `meanwhile` is called before the
        client can repeat it."""
        self._replies[call] = times
        self._meanwhile[call] = meanwhile

    def lose_request(self, call: str, *, times: int = 1) -> None:
        """The request never reaches the server."""
        self._requests[call] = times

    def hold(self, call: str, on_held: Callable[[], object]) -> None:
        """The call is never answered; `on_held` is called when it has arrived."""
        self.held[call] = on_held

    def delay(self, call: str, *, until: Event) -> None:
        """The call is passed on when the event is set."""
        self._delayed[call] = until

    def takes_request(self, call: str) -> bool:
        with self._lock:
            self.seen.append(call)
        if call in self._delayed:
            self._delayed[call].wait()
        return self._takes(self._requests, call)

    def takes_reply(self, call: str) -> bool:
        if not self._takes(self._replies, call):
            return False
        self._meanwhile[call]()
        return True

    def _takes(self, losses: dict[str, int], call: str) -> bool:
        with self._lock:
            left = losses.get(call, 0)
            losses[call] = left - 1
            return left > 0


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, target: str, losses: Losses, *, owner: str | None, dies: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Between)
        self.target = target
        self.losses = losses
        self.owner = owner
        self.dies = dies
        self.is_dead = False

    def die(self) -> None:
        self.is_dead = True
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """The end of a killed client is not reported."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Between(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def pass_on(self) -> None:
        call = self.path.partition("?")[0].rpartition("/")[2]
        losses = self.server.losses
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.is_dead or losses.takes_request(call):
            self.hang_up()
            return
        if call in losses.held:
            losses.held[call]()
            self.connection.recv(1)  # until the client hangs up
            self.close_connection = True
            return
        reply, content = self.ask(body)
        if losses.takes_reply(call):
            self.hang_up()
            return
        self.hand_back(reply, content)

    do_GET = do_POST = do_PUT = do_DELETE = pass_on  # noqa: N815 - what http.server looks for

    def ask(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection(self.server.target)
        kept = {k: v for k, v in self.headers.items() if k.lower() not in HOP_HEADERS}
        connection.request(self.command, self.path, body, kept)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        return reply, content

    def hang_up(self) -> None:
        if self.server.dies:
            self.server.die()
        elif self.server.losses.says is not None:
            self.send_error(self.server.losses.says)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def hand_back(self, reply: HTTPResponse, content: bytes) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in HOP_HEADERS | {"content-length"}:
                self.send_header(name, value)
        if self.server.owner is not None:
            self.send_header("Tuff-Owner", self.server.owner)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def losing(
    url: str,
    *,
    context: SSLContext | None = None,
    losses: Losses | None = None,
    owner: str | None = None,
    dies: bool = False,
) -> Iterator[tuple[str, Losses]]:
    """The address of a proxy before the server at `url`, and the calls that it loses.

    With a `context` the client has to speak TLS with it. With an `owner` every reply names that
    one, like a reply that a server of a cluster has forwarded. A proxy that `dies` does so with the
    first call that it loses: nothing listens at its address any more.
    """
    losses = losses or Losses()
    with _Proxy(urlsplit(url).netloc, losses, owner=owner, dies=dies) as proxy:
        if context is not None:
            proxy.socket = context.wrap_socket(proxy.socket, server_side=True)
        thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            scheme = "http" if context is None else "https"
            yield f"{scheme}://127.0.0.1:{proxy.server_address[1]}", losses
        finally:
            proxy.shutdown()
            thread.join()
