"""A proxy that records every request, so that a test can deliver it again, far too late.

A network may deliver a request twice, or long after its sender gave up. `delaying` runs a proxy
between a client and the server; a withheld request arrives only when `Request.late` sends it.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.http.client import Client, Reply

HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive", "content-length"}


@dataclass(frozen=True, slots=True)
class Request:
    """One recorded request."""

    method: str
    target: str
    content_type: str | None
    body: bytes

    @property
    def call(self) -> str:
        """The last part of its path."""
        return self.target.partition("?")[0].rpartition("/")[2]

    def late(self, client: Client) -> Reply:
        """Send the same bytes now; the reply."""
        return client.send(
            self.method, self.target, self.body or None, content_type=self.content_type
        )


@dataclass(slots=True)
class Delayed:
    """The recorded requests, in order; while it `withholds`, they are not forwarded."""

    port: int = 0
    withholds: bool = False
    requests: list[Request] = field(default_factory=list)


@contextmanager
def delaying(port: int) -> Iterator[Delayed]:
    """Run a proxy in front of the server at this local port."""
    delayed = Delayed()

    class Between(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Request("POST", self.path, self.headers.get("Content-Type"), body)
            delayed.requests.append(request)
            if delayed.withholds:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            connection = HTTPConnection("127.0.0.1", port)
            kept = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in HOP_HEADERS
            }
            connection.request("POST", self.path, body or None, kept)
            reply = connection.getresponse()
            content = reply.read()
            connection.close()
            self.send_response_only(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in HOP_HEADERS:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Between) as proxy:
        proxy.daemon_threads = True
        delayed.port = proxy.server_address[1]
        thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield delayed
        finally:
            proxy.shutdown()
            thread.join()
