"""What access control costs: single publishes with a token beside publishes without one.

    python -m benchmarks.access [--rounds N] [--calls N]

Two servers with their messages in memory, so that no disk is measured, get the same publishes in
turns, over one connection each. Prints the server's processor time per call, which other load on
the machine changes least. Exits 1 when the ratio (without / with) is under its target.
"""

import argparse
import socket
import sys
import tempfile
from pathlib import Path
from statistics import median

from access.principals import hash_of
from benchmarks.processes import Running, processor_s, tuff

TOKEN = "benchmark"
RATIO_MIN = 0.95  # of the processor times per call, without and with a token
_FILE = f"""
[principals.benchmark]
tokens = ["sha256:{hash_of(TOKEN)}"]
[[principals.benchmark.rights]]
allow = ["create", "publish"]
"""
_PATH = "/v1/namespaces/default/topics/access"


class Publisher:
    """One connection that publishes to a server."""

    def __init__(self, server: Running, token: str | None) -> None:
        self._server = server
        host, _, port = server.addr.partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._token = token
        self._send("PUT", _PATH, "{}")
        self._publish = self._bytes("POST", f"{_PATH}/publish", '{"messages": ["hello"]}')
        self.seconds: list[float] = []  # of the server's processor, per call

    def round(self, count: int) -> None:
        """Publish so often, one after the other."""
        began_s = processor_s(self._server.pid)
        for _ in range(count):
            self._exchange(self._publish)
        self.seconds.append((processor_s(self._server.pid) - began_s) / count)

    def close(self) -> None:
        self._socket.close()

    def _send(self, method: str, path: str, body: str) -> None:
        self._exchange(self._bytes(method, path, body))

    def _bytes(self, method: str, path: str, body: str) -> bytes:
        token = "" if self._token is None else f"Authorization: Bearer {self._token}\r\n"
        return (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"{token}Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode("ascii")

    def _exchange(self, request: bytes) -> None:
        self._socket.sendall(request)
        reply = self._socket.recv(65_536)
        assert reply.startswith(b"HTTP/1.1 200 "), reply


def main(arguments: list[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=5_000, help="of each round")
    options = parser.parse_args(arguments)
    memory = "messaging.store=memory"
    with tempfile.TemporaryDirectory(prefix="tuff-access-") as home:
        file = Path(home) / "access.toml"
        file.write_text(_FILE)
        guarded = [memory, f"server.access_file={file}"]
        with (
            tuff(Path(home) / "open", settings=[memory]) as free,
            tuff(Path(home) / "guarded", settings=guarded) as checked,
        ):
            publishers = [Publisher(free, None), Publisher(checked, TOKEN)]
            for _ in range(options.rounds):
                for each in publishers:
                    each.round(options.calls)
            for each in publishers:
                each.close()
    without, with_token = (median(each.seconds) * 1e6 for each in publishers)
    ratio = without / with_token
    sys.stdout.write(
        f"server µs/call: {without:.1f} without access control, {with_token:.1f} with a token; "
        f"ratio {ratio:.3f} (at least {RATIO_MIN})\n"
    )
    return 0 if ratio >= RATIO_MIN else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
