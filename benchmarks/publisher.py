"""A publisher beside one publish per message, from one process and with the same client.

    python -m benchmarks.publisher [--seconds S] [--rounds N]

Prints messages per second, and how many times as many as one by one. The ways take turns for N
rounds and the best round of each counts, since what else runs on the machine makes either worse.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import tuff
from tuff.launch import ServerProcess

PAYLOAD = b"x" * 256
TOPIC = tuff.TopicId("benchmarks", "publisher")
LINGERS_MS = (1.0, 2.0, 5.0)

Way = Callable[[str, float], float]


def one_by_one(url: str, seconds: float) -> float:
    with tuff.Client(url) as client:
        client.publish(TOPIC, PAYLOAD)
        count, began = 0, perf_counter()
        while perf_counter() - began < seconds:
            client.publish(TOPIC, PAYLOAD)
            count += 1
        return count / (perf_counter() - began)


def batched(url: str, seconds: float, *, linger_ms: float) -> float:
    with tuff.Client(url) as client:
        publisher = client.publisher(TOPIC, linger=linger_ms / 1000)
        count, began = 0, perf_counter()
        while perf_counter() - began < seconds:
            publisher.send(PAYLOAD)
            count += 1
        publisher.close()
        return count / (perf_counter() - began)


def one_by_one_on_a_loop(url: str, seconds: float) -> float:
    async def main() -> float:
        async with tuff.AsyncClient(url) as client:
            await client.publish(TOPIC, PAYLOAD)
            count, began = 0, perf_counter()
            while perf_counter() - began < seconds:
                await client.publish(TOPIC, PAYLOAD)
                count += 1
            return count / (perf_counter() - began)

    return asyncio.run(main())


def batched_on_a_loop(url: str, seconds: float, *, linger_ms: float) -> float:
    async def main() -> float:
        async with tuff.AsyncClient(url) as client:
            publisher = client.publisher(TOPIC, linger=linger_ms / 1000)
            count, began = 0, perf_counter()
            while perf_counter() - began < seconds:
                await publisher.send(PAYLOAD)
                count += 1
            await publisher.close()
            return count / (perf_counter() - began)

    return asyncio.run(main())


def ways() -> dict[str, tuple[Way, str]]:
    """Each way by its name, and the name of the one it is compared with."""
    found: dict[str, tuple[Way, str]] = {
        "blocking, one by one": (one_by_one, "blocking, one by one"),
        "asyncio, one by one": (one_by_one_on_a_loop, "asyncio, one by one"),
    }
    for linger_ms in LINGERS_MS:
        blocking = partial(batched, linger_ms=linger_ms)
        on_a_loop = partial(batched_on_a_loop, linger_ms=linger_ms)
        found[f"blocking, linger {linger_ms:g} ms"] = (blocking, "blocking, one by one")
        found[f"asyncio, linger {linger_ms:g} ms"] = (on_a_loop, "asyncio, one by one")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="A publisher beside one publish per message.")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    best = dict.fromkeys(ways(), 0.0)
    with (
        tempfile.TemporaryDirectory() as home,
        ServerProcess(Path(home) / "data", log=Path(home) / "log.txt") as server,
    ):
        with tuff.Client(server.url) as client:
            client.topics.create(TOPIC)
        for _ in range(options.rounds):
            for name, (way, _) in ways().items():
                best[name] = max(best[name], way(server.url, options.seconds))
    for name, (_, beside) in ways().items():
        ratio = best[name] / best[beside]
        sys.stdout.write(f"{name:24} {best[name]:10,.0f} messages/s {ratio:8.1f} times\n")


if __name__ == "__main__":
    main()
