"""`python -m benchmarks.tags`: reading one message in a hundred by its tag, beside reading all.

    python -m benchmarks.tags [--messages N] [--rounds N] [--dir DIRECTORY]

Every message has one tag and 100 bytes of payload. The server starts anew before the reads: they
come from LevelDB and not from the tail cache. The reads take turns, and this program decodes none
of the replies. Exits 1 when a filter is not `RATIO_MIN` times as fast as reading everything, in the
form in which that is fastest.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.processes import processor_s, tuff
from tuff.protocol.attributes import Attributes
from tuff.protocol.avro import encode_publish_request_2
from tuff.protocol.requests import PublishRequest

RATIO_MIN = 5.0
SHARE = 100  # one message in so many has the rare tag
REQUEST_COUNT = 1_000  # messages of a publish
PAYLOAD = b"p" * 100
RARE, COMMON = Attributes(tags=("rare",)), Attributes(tags=("common",))
TOPIC = "/v1/namespaces/default/topics/tagged"
FORMS = ("avro/binary", "avro/binary; schema=2", "application/vnd.apache.arrow.stream; schema=2")


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="on which disk; default: the temporary directory")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tuff-bench-", dir=options.dir) as directory:
        data = Path(directory) / "data"
        with tuff(data) as server:
            _publish(server.addr, options.messages)
        with tuff(data) as server:
            best = _measure(server.addr, server.pid, options.messages, options.rounds)
    everything = min(taken for (query, _), taken in best.items() if not query)
    filtered = min(taken for (query, _), taken in best.items() if query)
    print(f"ratio {everything / filtered:.1f}, in the fastest form of each")
    return 0 if everything / filtered >= RATIO_MIN else 1


def _publish(addr: str, count: int) -> None:
    connection = HTTPConnection(addr)
    _send(connection, "PUT", TOPIC, b"", {})
    attributes = [COMMON] * REQUEST_COUNT
    attributes[::SHARE] = [RARE] * (REQUEST_COUNT // SHARE)
    request = PublishRequest(None, [PAYLOAD] * REQUEST_COUNT, attributes=attributes)
    body = encode_publish_request_2(request)
    for _ in range(count // REQUEST_COUNT):
        fields = {"Content-Type": "avro/binary; schema=2"}
        _send(connection, "POST", f"{TOPIC}/publish", body, fields)


def _measure(addr: str, pid: int, count: int, rounds: int) -> dict[tuple[str, str], float]:
    """The seconds that reading the topic took at best, by the query and the form of the replies."""
    best: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        for read in ((query, form) for form in FORMS for query in ("", "?tags=rare")):
            cpu_s, began_s = processor_s(pid), time.perf_counter()
            received = sum(_pages(addr, *read))
            taken_s = time.perf_counter() - began_s
            best[read] = min(taken_s, best.get(read, taken_s))
            used_us = (processor_s(pid) - cpu_s) * 1e6 / count
            print(
                f"{read[1]:52} {read[0]:12} {taken_s:6.2f} s, {count / taken_s:9.0f} messages/s "
                f"looked at, {used_us:5.2f} us of the server each, {received:10} bytes",
                flush=True,
            )
    return best


def _pages(addr: str, query: str, form: str) -> Iterator[int]:
    """The size of the body of each reply."""
    connection = HTTPConnection(addr)
    body, is_caught_up = b"{}", False
    while not is_caught_up:
        fields = {"Content-Type": "application/json", "Accept": form}
        size, headers = _send(connection, "POST", f"{TOPIC}/poll{query}", body, fields)
        yield size
        is_caught_up = headers["tuff-caught-up"] == "true"
        body = b'{"startFrom": "%s", "inclusive": false}' % headers["tuff-next"].encode()


def _send(
    connection: HTTPConnection, method: str, path: str, body: bytes, fields: dict[str, str]
) -> tuple[int, dict[str, str]]:
    connection.request(method, path, body, fields)
    with connection.getresponse() as response:
        received = response.read()
        assert response.status == 200, received
        return len(received), {name.lower(): value for name, value in response.getheaders()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
