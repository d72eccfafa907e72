"""`python -m benchmarks.groups`: how soon a member of a consumer group gets a message.

    python -m benchmarks.groups [--messages N] [--rounds N] [--pause-ms N] [--tree DIRECTORY]

One message at a time is published, to the members in turns; the time runs from before the publish
until `poll` has returned it. Members differ in what they read: one topic, two topics, or one topic
and its retries. Each is the median over all messages in milliseconds, and a multiple of the median
with one topic.
"""

import argparse
import asyncio
import os
import queue
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import tuff
from benchmarks.processes import ROOT
from benchmarks.processes import tuff as tuff_server
from tuff.address import TransportName

# The number of topics, and the retry policy.
VARIANTS: dict[str, tuple[int, tuff.RetryPolicy | None]] = {
    "one topic": (1, None),
    "two topics": (2, None),
    "one topic, retry": (1, tuff.RetryPolicy()),
}
CLIENTS = ("Client", "AsyncClient")
TRANSPORTS: tuple[TransportName, ...] = ("auto", "http")
WITHIN_S = 30.0  # seconds
WARM_UP_COUNT = 5  # messages of each member, uncounted: it joins, and finds its positions

Handed = queue.SimpleQueue[tuple[bytes, float]]


class Member:
    """A member in a thread of its own, which says when it got each message."""

    def __init__(self, url: str, name: str, variant: str, transport: TransportName) -> None:
        topic_count, self._retry = VARIANTS[variant]
        self._url, self._transport = url, transport
        self._group = name.replace(" ", "-").replace(",", "")
        self.topics = [
            tuff.TopicId("bench", f"{self._group}-{number}") for number in range(topic_count)
        ]
        self.handed: Handed = queue.SimpleQueue()
        self.consumer: tuff.Consumer | tuff.AsyncConsumer | None = None

    def work(self) -> None:
        """Consume with `tuff.Client`, until the consumer stops."""
        with (
            tuff.Client(self._url, transport=self._transport) as client,
            client.consumer(self.topics, group=self._group, retry=self._retry) as consumer,
        ):
            self.consumer = consumer
            while (batch := consumer.poll(WITHIN_S)) is not None:
                self._note(batch)

    def work_async(self) -> None:
        """Consume with `tuff.AsyncClient`, until the consumer stops."""
        asyncio.run(self._work_async())

    async def _work_async(self) -> None:
        async with (
            tuff.AsyncClient(self._url, transport=self._transport) as client,
            client.consumer(self.topics, group=self._group, retry=self._retry) as consumer,
        ):
            self.consumer = consumer
            while (batch := await consumer.poll(WITHIN_S)) is not None:
                self._note(batch)

    def _note(self, batch: Sequence[tuff.Message]) -> None:
        now_s = time.perf_counter()
        for message in batch:
            self.handed.put((message.payload, now_s))


@contextmanager
def working(url: str, name: str, variant: str, transport: TransportName) -> Iterator[Member]:
    """A member that consumes, with the client that its name begins with."""
    member = Member(url, name, variant, transport)
    work = member.work_async if name.startswith("AsyncClient") else member.work
    with tuff.Client(url) as client:
        for topic in member.topics:
            client.topics.create(topic)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield member
    finally:
        if member.consumer is not None:
            member.consumer.stop()
        thread.join()


def latency_ms(client: tuff.Client, member: Member, number: int) -> float:
    """Publish one message, and wait until the member has it."""
    payload = b"%d" % number
    topic = member.topics[number % len(member.topics)]
    began_s = time.perf_counter()
    client.publish(topic, payload)
    found, handed_s = member.handed.get(timeout=WITHIN_S)
    assert found == payload, f"{topic} has messages of others"
    return (handed_s - began_s) * 1000


def measure(options: argparse.Namespace, url: str) -> None:
    """Print a line for each client, transport and variant."""
    names = [
        (f"{client} {transport} {variant}", variant, transport)
        for client in CLIENTS
        for transport in TRANSPORTS
        for variant in VARIANTS
    ]
    found: dict[str, list[float]] = {name: [] for name, *_ in names}
    with ExitStack() as stack:
        client = stack.enter_context(tuff.Client(url))
        members = {
            name: stack.enter_context(working(url, name, variant, transport))
            for name, variant, transport in names
        }
        for number in range(WARM_UP_COUNT + options.messages):
            # Shuffled: what a member does with a message takes time from the next one.
            for name in random.sample(sorted(members), len(members)):
                time.sleep(options.pause_ms / 1000)
                latency = latency_ms(client, members[name], number)
                if number >= WARM_UP_COUNT:
                    found[name].append(latency)
    print(f"{'client':12} {'transport':9} {'reads':17} {'p50 ms':>7} {'p90 ms':>7} {'x one':>6}")
    for name, variant, _ in names:
        one = median(found[name.removesuffix(variant) + "one topic"])
        own = sorted(found[name])
        kind, transport, _ = name.split(maxsplit=2)
        print(
            f"{kind:12} {transport:9} {variant:17} {median(own):7.2f} "
            f"{own[len(own) * 9 // 10]:7.2f} {median(own) / one:6.2f}"
        )


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups")
    parser.add_argument("--messages", type=int, default=100, help="for each member")
    parser.add_argument("--pause-ms", type=float, default=30.0, help="between two messages")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the work tree of the server")
    options = parser.parse_args(arguments)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with (
        tempfile.TemporaryDirectory(prefix="tuff-bench-") as directory,
        tuff_server(Path(directory, "server"), tree=options.tree) as server,
    ):
        measure(options, f"http://{server.addr}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
