"""A proxy between client and server that loses the calls which a test names."""

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

from tuff.protocol.operations import BY_NUMBER
from tuff.protocol.session_frames import PATH, FrameReader, Kind, frame

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
        self.sessions = 0  # that were begun
        self.asked_for_sessions = 0
        self.instead_of_session: bytes | None = None  # what is said to one who asks for a session

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
        if self.path == PATH:
            self.begin_session()
            return
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

    def begin_session(self) -> None:
        """A proxy that answers in the server's place passes no session on, and neither does one
        that stands for a server of a cluster."""
        losses = self.server.losses
        losses.asked_for_sessions += 1
        if self.server.is_dead:
            self.hang_up()
        elif losses.instead_of_session is not None:
            self.wfile.write(losses.instead_of_session)
            self.close_connection = b"Content-Length" not in losses.instead_of_session
        elif losses.says is not None or self.server.owner is not None:
            self.send_error(404)
        else:
            host, _, port = self.server.target.partition(":")
            with socket.create_connection((host, int(port))) as upstream:
                lines = [f"{name}: {value}" for name, value in self.headers.items()]
                head = "\r\n".join([self.requestline, *lines, "", ""])
                upstream.sendall(head.encode())
                _Relay(self, upstream).run()
            self.close_connection = True

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


class _Relay:
    """Passes the frames of a session on, and loses those of the calls to be lost, with all that the
    connection carries."""

    def __init__(self, between: _Between, upstream: socket.socket) -> None:
        self._between = between
        self._losses = between.server.losses
        self._upstream = upstream
        self._client = between.connection
        self._names: dict[object, str] = {}  # of the calls under way, by their id

    def run(self) -> None:
        self._losses.sessions += 1
        back = Thread(target=self._pass_back)
        back.start()
        reader = FrameReader(frame_bytes_max=1 << 30)
        with suppress(OSError):
            while data := self._client.recv(1 << 16):
                for _, elements in reader.feed(data)[0]:
                    if not self._passes(elements):
                        self._hang_up()
                        break
                    if not self._is_held(elements):
                        self._upstream.sendall(frame(*elements))
        with suppress(OSError):
            self._upstream.shutdown(socket.SHUT_RDWR)
        back.join()

    def _passes(self, elements: list[object]) -> bool:
        if elements[0] != Kind.CALL:
            return True
        _, call_id, operation, parameters = elements[:4]
        assert isinstance(operation, int)
        assert isinstance(parameters, list)
        name = BY_NUMBER[operation].path.rpartition("/")[2]
        self._names[call_id] = name = parameters[0] if name == "{tx}" else name
        return not (self._between.server.is_dead or self._losses.takes_request(name))

    def _is_held(self, elements: list[object]) -> bool:
        held = self._losses.held.get(self._names.get(elements[1], "") if elements[1:] else "")
        if held is not None and elements[0] == Kind.CALL:
            held()
            return True
        return False

    def _pass_back(self) -> None:
        reader, head = FrameReader(frame_bytes_max=1 << 30), bytearray()
        with suppress(OSError):
            while data := self._upstream.recv(1 << 16):
                if not head.endswith(b"\r\n\r\n"):
                    head += data
                    first, end, data = bytes(head).partition(b"\r\n\r\n")
                    head[:] = first + end
                    self._client.sendall(head)
                for _, elements in reader.feed(data)[0]:
                    if elements[0] == Kind.REPLY and self._losses.takes_reply(
                        self._names[elements[1]]
                    ):
                        self._hang_up()
                        return
                    self._client.sendall(frame(*elements))
            self._client.shutdown(socket.SHUT_RDWR)

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._between.hang_up()


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
