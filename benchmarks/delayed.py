"""`python -m benchmarks.delayed`: how late delayed messages enter, and what many that wait cost.

    python -m benchmarks.delayed [--seconds N] [--rate N] [--waiting N] [--rounds N] [--dir DIR]

Lateness: messages become due one after the other, at a rate, and a long poll reads them. The
lateness of each is the time of its arrival at the reader less its due time.

Waiting: two servers on directories of their own, one with many delayed messages, which are written
to its stopped store in batches. They are started and loaded in turns. Publishing goes over several
connections, and reading polls a topic of 1,000 messages.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles

from benchmarks.processes import Running, tuff
from messaging.engines.leveldb import LevelDbStore
from messaging.model.row_format import MessageRow, delayed_key, prefix_of
from tuff.protocol.ids import DelayedId, Offset, TopicId

TOPIC = TopicId("default", "late")
PATH = "/v1/namespaces/default/topics/late"
CONNECTIONS = 8  # that publish together
MESSAGES_OF_A_READ = 1_000
BATCH_ROWS = 20_000  # delayed rows of one batch of the preparation
LEAD_S = 2.0  # seconds until the first message is due, in which all are published
LATER_MS = 86_400_000  # ms; the messages that wait are due after the measurement


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delayed")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--rate", type=int, default=1_000, help="delayed messages a second")
    parser.add_argument("--waiting", type=int, default=10_000_000, help="messages that wait")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="for the data")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        home = Path(directory)
        say(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        with tuff(home / "lateness") as found:
            measure_lateness(found, seconds=options.seconds, rate=options.rate)
        measure_waiting(home, options.waiting, rounds=options.rounds, seconds=options.seconds)
    return 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def call(connection: HTTPConnection, *, method: str, path: str, body: object = None) -> bytes:
    sent = None if body is None else json.dumps(body).encode()
    headers = {} if sent is None else {"Content-Type": "application/json"}
    connection.request(method, path, sent, headers)
    reply = connection.getresponse()
    found = reply.read()
    assert reply.status == 200, found
    return found


def connected(found: Running) -> "closing[HTTPConnection]":
    return closing(HTTPConnection(found.addr))


def measure_lateness(found: Running, *, seconds: float, rate: int) -> None:
    count = round(seconds * rate)
    late_ms: list[float] = []
    with connected(found) as connection:
        call(connection, method="PUT", path=PATH, body={})
        begin_ms = time.time() * 1000 + LEAD_S * 1000
        due_ms = [round(begin_ms + number * 1000 / rate) for number in range(count)]
        reader = threading.Thread(target=_read, args=(found, count, late_ms))
        reader.start()
        for start in range(0, count, BATCH_ROWS):
            messages = [
                {"payload": str(each), "at": each} for each in due_ms[start : start + BATCH_ROWS]
            ]
            call(connection, method="POST", path=f"{PATH}/publish", body={"messages": messages})
        reader.join()
    cuts = quantiles(late_ms, n=1000)
    say(
        f"lateness of {count} messages at {rate}/s, ms: p50 {cuts[499]:.1f}  p99 {cuts[989]:.1f}  "
        f"max {max(late_ms):.1f}"
    )


def _read(found: Running, count: int, late_ms: list[float]) -> None:
    body: dict[str, object] = {}
    with connected(found) as connection:
        while len(late_ms) < count:
            connection.request(
                "POST",
                f"{PATH}/poll?wait=30",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            reply = connection.getresponse()
            messages = json.loads(reply.read())
            arrived_ms = time.time() * 1000
            body = {"startFrom": reply.headers["Tuff-Next"], "inclusive": False}
            late_ms += [arrived_ms - int(each["payload"]) for each in messages]


def measure_waiting(home: Path, count: int, *, rounds: int, seconds: float) -> None:
    """Compare a server with messages that wait with one without."""
    homes = {"none": home / "none", f"{count:,}": home / "many"}
    for each in homes.values():
        with tuff(each) as found, connected(found) as connection:
            call(connection, method="PUT", path=PATH, body={})
            call(connection, method="PUT", path=f"{PATH}-read", body={})
            body = {"messages": ["x" * 256] * MESSAGES_OF_A_READ}
            call(connection, method="POST", path=f"{PATH}-read/publish", body=body)
    fill(home / "many" / "messages", count)
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in homes}
    for _ in range(rounds):
        for name, each in homes.items():
            with tuff(each) as found:
                publishes = rate_of(found, _publish, seconds)
                polls = rate_of(found, _poll, seconds)
                results[name].append((found.start_s, publishes, polls))
    say(f"{'waiting':>12} {'start s':>9} {'publishes/s':>12} {'polls/s':>9}")
    for name, rows in results.items():
        start_s, publishes, polls = (median(column) for column in zip(*rows, strict=True))
        say(f"{name:>12} {start_s:>9.3f} {publishes:>12.0f} {polls:>9.0f}")


def fill(directory: Path, count: int) -> None:
    """Write messages that wait to a stopped store."""
    began_s = time.perf_counter()
    prefix = prefix_of(TOPIC, 1)
    now_ms = round(time.time() * 1000)
    payload = b"x" * 32
    with closing(LevelDbStore(directory)) as store:
        for start in range(0, count, BATCH_ROWS):
            batch = []
            for number in range(start, min(count, start + BATCH_ROWS)):
                accepted = Offset.from_int(number)
                key = delayed_key(prefix, DelayedId(now_ms + LATER_MS + number // 10, accepted))
                batch.append((key, MessageRow(payload=payload).to_bytes(key)))
            store.write(batch)
    size_mib = sum(each.stat().st_size for each in directory.iterdir()) / (1 << 20)
    say(f"wrote {count:,} rows in {time.perf_counter() - began_s:.0f} s, {size_mib:.0f} MiB")


def rate_of(found: Running, work: Callable[[HTTPConnection], object], seconds: float) -> float:
    """How often a second the connections together did the work."""
    stop_s = time.perf_counter() + seconds

    def repeat() -> int:
        count = 0
        with connected(found) as connection:
            while time.perf_counter() < stop_s:
                work(connection)
                count += 1
        return count

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        counts = [each.result() for each in [pool.submit(repeat) for _ in range(CONNECTIONS)]]
    return sum(counts) / seconds


_publish = partial(call, method="POST", path=f"{PATH}/publish", body={"messages": ["x" * 256]})
_poll = partial(call, method="POST", path=f"{PATH}-read/poll", body={})

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
