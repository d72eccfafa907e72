"""The limits: the disk, the loopback device, the bare handler and LevelDB, each by itself."""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.generator import Pace, Report, Rows, measure, sink
from benchmarks.processes import bare
from tuff_storage.leveldb.engine import plyvel

PAYLOAD = b"p" * 256  # as in all these programs
SCANNED = 100_000  # rows


def measure_limits(directory: Path, pace: Pace) -> Rows:
    yield "disk fdatasync", _repeated(pace.seconds, _append_and_sync(directory))
    yield "loopback ping-pong", _ping_pong(pace.seconds)
    for count in (1, 100):
        yield f"plyvel batch {count}", _batches(directory, count, pace)
    yield "plyvel scan", _scan(directory, pace)
    with sink(directory) as nothing:
        yield "sink c64", measure(pace.run("post"), nothing)
    with bare(directory, "uvloop") as handler:
        yield "bare-uvloop c64", measure(pace.run("post"), handler)
    with bare(directory) as handler:
        yield "bare start", handler.start_report()
        for connections in (1, 8, 64, 128):
            yield (
                f"bare c{connections}",
                measure(pace.run("post", connections=connections), handler),
            )


def _repeated(seconds: float, once: Callable[[], int]) -> Report:
    """Call `once` until the time is over; it returns the number of messages of a call."""
    calls = messages = 0
    latencies = []
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        messages += once()
        calls += 1
        latencies.append(time.perf_counter() - now)
    took = time.perf_counter() - began
    latencies.sort()
    return {
        "calls": calls,
        "per_s": calls / took,
        "messages_per_s": messages / took,
        "p50_us": latencies[calls // 2] * 1e6,
        "p99_us": latencies[calls * 99 // 100] * 1e6,
    }


def _append_and_sync(directory: Path) -> Callable[[], int]:
    block = os.urandom(4096)
    file = (directory / "appended").open("wb", buffering=0)

    def once() -> int:
        file.write(block)
        os.fdatasync(file.fileno())
        return 1

    return once


def _echo(listener: socket.socket) -> None:
    one, _ = listener.accept()
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while got := one.recv(4096):
        one.sendall(got)


def _ping_pong(seconds: float) -> Report:
    """64 bytes there and back between two processes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = multiprocessing.get_context("fork").Process(target=_echo, args=(listener,))
        other.start()
        with socket.create_connection(listener.getsockname()) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def once() -> int:
                one.sendall(b"x" * 64)
                return len(one.recv(64)) // 64

            report = _repeated(seconds, once)
        other.join()
    return report


def _batches(directory: Path, count: int, pace: Pace) -> Report:
    """Synced batches of rows like those of messages: a rising key and a payload."""
    number = 0
    with plyvel.DB(str(directory / f"plyvel-{count}"), create_if_missing=True) as db:

        def once() -> int:
            nonlocal number
            with db.write_batch(sync=True) as batch:
                for _ in range(count):
                    number += 1
                    batch.put(b"default:bench:0001%010d" % number, PAYLOAD)
            return count

        return _repeated(pace.seconds, once)


def _scan(directory: Path, pace: Pace) -> Report:
    with plyvel.DB(str(directory / "plyvel-scan"), create_if_missing=True) as db:
        for start in range(0, SCANNED, 1000):
            with db.write_batch() as batch:
                for number in range(start, start + 1000):
                    batch.put(b"default:bench:0001%010d" % number, PAYLOAD)
        return _repeated(pace.seconds / 2, lambda: sum(1 for _ in db.iterator()))
