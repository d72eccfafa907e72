"""Clients that begin a transaction, publish and vanish: how long do they block readers?

    python -m tests.faults.vanishing --clients 10000 --max-block 2

Each vanished client's message blocks every reader with a fresh snapshot, until the server
invalidates its transaction after `messaging.max_block`. Readers record their progress, while
another client publishes without a transaction. For every message and reader this gives the time
from the publish until the reader is past it, which promise 6 bounds by `max_block` and a tick.
"""

import argparse
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from server import TICK_S
from tests.http.calls import Topic, begin
from tests.http.client import Client, ok, until
from tests.http.process import ServerProcess, serve

CONCURRENT_COUNT_MAX = 32  # clients at a time, before they vanish
READER_COUNT = 4
POLL_WAIT_S = 1.0
BETWEEN_S = 0.02  # seconds between two publishes without a transaction
PASSED_WITHIN_S = 60.0
PERCENTILES = (50, 90, 99, 100)


@dataclass(slots=True)
class Observed:
    """Publishes with the time of their reply, and the progress of each reader, all as (message id,
    seconds)."""

    vanished: list[tuple[str, float]] = field(default_factory=list)
    plain: list[tuple[str, float]] = field(default_factory=list)
    readers: list[list[tuple[str, float]]] = field(default_factory=list)
    delivered: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def held_s(self, published: Sequence[tuple[str, float]]) -> list[float]:
        """How long each message blocked each reader, sorted."""
        return sorted(
            max(0.0, progress[bisect_left(progress, (message_id, 0.0))][1] - since_s)
            for progress in self.readers
            for message_id, since_s in published
        )


def topic_of(client: Client) -> Topic:
    return Topic(client, "vanishing", "topic")


def observe(server: ServerProcess, *, clients: int) -> Observed:
    """Let so many clients vanish, until all readers are past their messages."""
    observed = Observed(readers=[[] for _ in range(READER_COUNT)])
    ok(topic_of(server.client()).create())
    threads = ThreadPoolExecutor(READER_COUNT + 1)
    reading = [
        threads.submit(_read, server.port, observed, progress) for progress in observed.readers
    ]
    publishing = threads.submit(_publish, server.port, observed)
    try:
        with ThreadPoolExecutor(CONCURRENT_COUNT_MAX) as vanishing:
            left = vanishing.map(lambda number: _vanish(server.port, number), range(clients))
            observed.vanished = list(left)
        last = max(observed.vanished)[0]
        until(
            lambda: all(progress and progress[-1][0] >= last for progress in observed.readers),
            within_s=PASSED_WITHIN_S,
            what="all readers to get past the last one",
        )
    finally:
        observed.over.set()
        publishing.result()
        for one in reading:
            one.result()
        threads.shutdown()
    return observed


def _vanish(port: int, number: int) -> tuple[str, float]:
    client = Client(port, is_checked=False)
    try:
        tx = begin(client, client=f"vanishing {number}", lists=False)
        reply = ok(topic_of(client).publish(f"of {number}", tx=tx.id))
        return str(reply.header("Tuff-Last-Id")), time.monotonic()
    finally:
        client.close()


def _publish(port: int, observed: Observed) -> None:
    client = Client(port, is_checked=False)
    while not observed.over.wait(BETWEEN_S):
        reply = ok(topic_of(client).publish("plain"))
        observed.plain.append((str(reply.header("Tuff-Last-Id")), time.monotonic()))
    client.close()


def _read(port: int, observed: Observed, progress: list[tuple[str, float]]) -> None:
    client, after = Client(port, is_checked=False), "0" * 40
    # At the end it reads on until it is past all plain messages as well.
    while not (observed.over.is_set() and _is_past(observed.plain, after)):
        body = {"startFrom": after, "inclusive": False}
        reply = ok(topic_of(client).poll(body, isolation="committed", wait=POLL_WAIT_S))
        assert all(message["payload"] == "plain" for message in reply.json), reply
        after = str(reply.header("Tuff-Next"))
        progress.append((after, time.monotonic()))
    client.close()


def _is_past(published: Sequence[tuple[str, float]], after: str) -> bool:
    return not published or after >= published[-1][0]


def distribution(name: str, held_s: Sequence[float]) -> str:
    """One line with the percentiles."""
    shown = (
        f"{percent} %: {held_s[min(len(held_s) - 1, len(held_s) * percent // 100)]:.2f} s"
        for percent in PERCENTILES
    )
    return f"{name:<28} {len(held_s):>7} waits   {'   '.join(shown)}"


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="vanishing", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--max-block", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument(
        "--slack", type=float, default=1.0, metavar="SECONDS",
        help="for the disk, the network and other programs on the machine",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as home,
        serve(Path(home), f"messaging.max_block={options.max_block}") as server,
    ):
        observed = observe(server, clients=options.clients)
    vanished, plain = observed.held_s(observed.vanished), observed.held_s(observed.plain)
    print(distribution("messages of vanished clients", vanished))
    print(distribution("messages published meanwhile", plain))
    bound_s = options.max_block + TICK_S
    longest_s = max(vanished[-1], plain[-1])
    print(
        f"{options.clients} clients vanished; no reader was held longer than {longest_s:.2f} s, "
        f"and the bound is {bound_s:.2f} s and {options.slack:g} s for the machine"
    )
    return 0 if longest_s <= bound_s + options.slack else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
