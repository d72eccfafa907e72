"""`python -m benchmarks.stalls`: how long others wait while one client makes one large request, or
many large polls over one session.

    python -m benchmarks.stalls [--messages N] [--rounds N] [--dir DIRECTORY] [--tree DIRECTORY]
        [--only WORDS]

One connection publishes and another polls, one small message of its own topic at a time, while a
third makes the request. The bodies are made before. `idle` is the row to compare with: the longest
wait without a large request.
"""

import argparse
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email.message import Message
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.processes import ROOT, tuff
from tuff.protocol import operations
from tuff.protocol.session_frames import PATH, PROTOCOL, FrameReader, Kind, call_frame

TOPICS = "/v1/namespaces/default/topics"
JSON = {"Content-Type": "application/json"}
IDLE_S = 1.0
SETTINGS = ("tx.ending_timeout=60",)  # an abort on a busy machine is measured to its end
PARTITIONS = 100
KEYS = 1_000
POLLS = 60  # of one session
POLLED = 10_000  # messages of each; so many are in a reply at most
PUBLISHES = 5  # of so many messages
DISK_CHARACTERS, MEMORY_CHARACTERS = 500, 100  # of each message
ENTRY = 10_000  # messages of each entry of a large commit
Large = Callable[[], object]


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="on which disk; default: the temporary directory")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the work tree of the server")
    parser.add_argument("--only", default="", help="only rows whose names have these words")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="tuff-bench-", dir=options.dir) as directory,
        tuff(Path(directory) / "data", tree=options.tree, settings=SETTINGS) as server,
    ):
        client = _Client(server.addr)
        client.call("PUT", f"{TOPICS}/small")
        client.call("PUT", f"{TOPICS}/large")
        client.call("PUT", f"{TOPICS}/parts", {"partitions": str(PARTITIONS)})
        for name, large in _requests(client, server.addr, options.messages):
            if options.only not in name:
                continue
            rounds = [_measured(server.addr, prepared=large()) for _ in range(options.rounds)]
            taken_s, publish_s, poll_s = (min(each) for each in zip(*rounds, strict=True))
            print(
                f"{name:40} {taken_s * 1000:8.0f} ms; others waited at most "
                f"{publish_s * 1000:7.0f} ms for a publish, {poll_s * 1000:7.0f} ms for a poll",
                flush=True,
            )
    return 0


class _Client:
    def __init__(self, addr: str) -> None:
        self._connection = HTTPConnection(addr)
        self.headers: Message = Message()  # of the last reply

    def call(self, method: str, path: str, body: object = None) -> bytes:
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        self._connection.request(method, path, data, JSON)
        with self._connection.getresponse() as response:
            received = response.read()
            self.headers = response.headers
            assert response.status in (200, 201), (path, received)
            return received


def _requests(client: _Client, addr: str, count: int) -> Iterator[tuple[str, Callable[[], Large]]]:
    """The large requests by their names: what prepares one returns what makes it."""
    plain = _body(["x"] * count)
    keyed = _body([{"payload": "x", "key": str(at % KEYS), "tags": ["t"]} for at in range(count)])

    def publish(call: str, body: bytes) -> Callable[[], Large]:
        return lambda: partial(client.call, "POST", f"{TOPICS}/{call}", body)

    def ended(how: str) -> Callable[[], Large]:
        def prepare() -> Large:
            started = json.loads(client.call("POST", "/v1/transactions"))
            pointer = started["transactionId"]
            client.call("POST", f"{TOPICS}/large/publish", _in_transaction(plain, pointer))
            return partial(client.call, "POST", f"/v1/transactions/{pointer}/{how}")

        return prepare

    yield "idle", lambda: lambda: time.sleep(IDLE_S)
    yield f"publish of {count}", publish("large/publish", plain)
    yield f"publish of {count} with key and tag", publish("large/publish", keyed)
    yield f"publish of {count} over {PARTITIONS} partitions", publish("parts/publish", keyed)
    yield f"delayed publish of {count}", publish("large/publish?delay=3600", plain)
    yield f"commit of a publish of {count}", ended("commit")
    yield f"abort of a publish of {count}", ended("abort")
    yield f"commit that brings {count}", partial(_commit, client, count, "x")
    with_key = {"payload": "x", "key": "k", "tags": ["t"]}
    yield f"commit that brings {count} with key and tag", partial(_commit, client, count, with_key)
    yield from _session_polls(_Client(addr), addr)


def _commit(client: _Client, count: int, message: object) -> Large:
    """A commit whose messages are in its body."""
    entries = [
        {
            "namespace": "default",
            "topic": "large",
            "messages": [message] * min(ENTRY, count - start),
        }
        for start in range(0, count, ENTRY)
    ]
    started = json.loads(client.call("POST", "/v1/transactions"))
    body = json.dumps({"changes": [], "publish": entries}).encode()
    path = f"/v1/transactions/{started['transactionId']}/commit"
    return partial(client.call, "POST", path, body)


def _session_polls(client: _Client, addr: str) -> Iterator[tuple[str, Callable[[], Large]]]:
    """Polls of the newest messages of a topic, which are in memory, and of the oldest messages of
    another one, which are not."""
    bodies = {
        "disk": _body(["x" * DISK_CHARACTERS] * POLLED),
        "memory": _body(["x" * MEMORY_CHARACTERS] * POLLED),
    }
    starts: dict[str, str | None] = {}
    for topic, body in bodies.items():
        client.call("PUT", f"{TOPICS}/{topic}")
        for _ in range(PUBLISHES):
            client.call("POST", f"{TOPICS}/{topic}/publish", body)
        starts[topic] = client.headers["Tuff-First-Id"] if topic == "memory" else None
    for topic, start in starts.items():
        for encoding, accept in (("Avro", "avro/binary"), ("JSON", "application/json")):
            name = f"{POLLS} polls of one session from {topic}, in {encoding}"
            yield name, partial(_Polls, addr, topic, start, accept)


class _Polls:
    """Makes polls over a session, all at once, and reads the replies."""

    def __init__(self, addr: str, topic: str, start: str | None, accept: str) -> None:
        host, _, port = addr.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._reader = FrameReader(frame_bytes_max=1 << 30)
        fields = f"Host: {addr}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n"
        self._socket.sendall(f"GET {PATH} HTTP/1.1\r\n{fields}".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._socket.recv(1 << 16)
        self._reader.feed(head.partition(b"\r\n\r\n")[2])
        number = operations.POLL.number
        assert number is not None
        # Replies with different limits share no bytes.
        bodies = [{"startFrom": start, "limit": POLLED - at} for at in range(POLLS)]
        frames = [
            call_frame(at, number, ["default", topic], {}, body, None, accept)
            for at, body in enumerate(bodies)
        ]
        self._calls = b"".join(each for each in frames if each is not None)

    def __call__(self) -> None:
        self._socket.sendall(self._calls)
        answered_count = 0
        while answered_count < POLLS:
            for _, elements in self._reader.feed(self._socket.recv(1 << 20))[0]:
                if elements[0] == Kind.REPLY:
                    assert elements[2] == 200, elements
                    answered_count += 1
        self._socket.close()


def _body(messages: Sequence[object]) -> bytes:
    return json.dumps({"messages": messages}).encode()


def _in_transaction(body: bytes, pointer: str) -> bytes:
    return body[:-1] + f', "transactionWritePointer": "{pointer}"}}'.encode()


def _measured(addr: str, *, prepared: Large) -> tuple[float, float, float]:
    """The seconds that the request took, and the longest that others waited meanwhile."""
    with (
        _probing(addr, "publish", {"messages": ["x"]}) as publishes,
        _probing(addr, "poll", {"limit": 1}) as polls,
    ):
        began_s = time.perf_counter()
        prepared()
        taken_s = time.perf_counter() - began_s
    return taken_s, max(publishes), max(polls)


@contextmanager
def _probing(addr: str, call: str, body: object) -> Iterator[list[float]]:
    """Make this call again and again; the seconds that each took, complete at the end."""
    waits: list[float] = []
    is_over = threading.Event()

    def probe() -> None:
        client = _Client(addr)
        while not is_over.is_set():
            began_s = time.perf_counter()
            client.call("POST", f"{TOPICS}/small/{call}", body)
            waits.append(time.perf_counter() - began_s)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield waits
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
