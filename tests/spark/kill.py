"""Kills a driver with SIGKILL at each point of its work, and starts a new one on its checkpoint.

    python -m tests.spark.kill --kills 20 [--partitions 4]

A proxy before the server sees the requests of the driver and its tasks. The JVM and the driver are
killed at the chosen point: before a request arrives, before its reply returns, or right after.
Their workers run on for a moment, as zombies. In the end the sinks hold each message once, in
order. With --partitions all three topics have so many, messages have keys, and the order is that of
each key.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import tuff
from tests.client.proxy import Losses, losing
from tests.http.process import ENDS_WITH_PARENT
from tests.spark.messages import read_messages
from tests.spark.session import set_up
from tests.spark.stream_driver import BATCH_COUNT, SINKS, SOURCE
from tuff.launch import ServerProcess

RUN_WITHIN_S = 300.0
START_COUNT_MAX = 5  # drivers for one point
# The log of a driver on a machine so busy that a process takes ten seconds to start. No setting
# avoids it, and the next driver continues as after a kill.
TOO_SLOW = "Python worker failed to connect back"
LOG_LENGTH_MAX = 10_000  # characters of a log that a failure shows
MESSAGE_COUNT = 4 * BATCH_COUNT  # published for each driver
KEY_COUNT = 16  # of topics with several partitions
EPOCH = "epoch"
CALLS = (EPOCH, "checkpoint", "store", "commit", "poll", "offsets")


class When(Enum):
    """On which side of a call the driver is killed."""

    BEFORE = "before the request"
    DONE = "before the answer"
    AFTER = "after the answer"


@dataclass(frozen=True, slots=True)
class Point:
    """The n-th time that such a call passes."""

    call: str
    when: When
    number: int

    def __str__(self) -> str:
        return f"{self.when.value} of {self.call} {self.number}"


class Points(Losses):
    """Holds a call at its point, and sets `reached`. `_guard` guards the counts."""

    def __init__(self) -> None:
        super().__init__()
        self.point: Point | None = None
        self.reached = threading.Event()
        self.is_dead = threading.Event()
        self._counts: dict[tuple[str, When], int] = {}
        self._guard = threading.Lock()

    def aim(self, point: Point | None) -> None:
        self.point = point
        self.reached.clear()
        self.is_dead.clear()
        self._counts.clear()

    def takes_request(self, call: str) -> bool:
        return self._passes(call, When.BEFORE)

    def takes_reply(self, call: str) -> bool:
        if self._passes(call, When.DONE):
            return True
        if self._is_at(call, When.AFTER):
            self.reached.set()
        return False

    def _passes(self, call: str, when: When) -> bool:
        if not self._is_at(call, when):
            return False
        self.reached.set()
        self.is_dead.wait(RUN_WITHIN_S)
        return True

    def _is_at(self, call: str, when: When) -> bool:
        # The last part of the path of an epoch is its number.
        key = (EPOCH if call.isdigit() else call, when)
        with self._guard:
            self._counts[key] = self._counts.get(key, 0) + 1
            return self.point == Point(*key, self._counts[key])


class Killer:
    """Runs a program in a process group of its own, and kills the group at a point."""

    def __init__(self, points: Points, log: Path, *, within_s: float) -> None:
        self._points = points
        self._log = log
        self._within_s = within_s

    def run(self, *words: str, point: Point | None = None, after_s: float | None = None) -> bool:
        """Run `python -m WORDS` until the point, or so many seconds, or to its end; returns whether
        it was killed."""
        for _ in range(START_COUNT_MAX):
            code = self._run_once(words, point, after_s)
            if code in (0, -signal.SIGKILL):
                return code != 0
            said = self._log.read_text("utf-8", "replace")[-LOG_LENGTH_MAX:]
            assert TOO_SLOW in said, f"{words[0]} ended with {code}: {said}"
        raise AssertionError(f"{START_COUNT_MAX} starts, one after the other: {TOO_SLOW}")

    def _run_once(self, words: Sequence[str], point: Point | None, after_s: float | None) -> int:
        self._points.aim(point)
        command = [*ENDS_WITH_PARENT, sys.executable, "-m", *words]
        with self._log.open("wb") as said:
            program = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        watch = threading.Thread(target=self._kill, args=(program, after_s))
        watch.start()
        try:
            return program.wait(self._within_s)
        finally:
            self._points.reached.set()
            watch.join()

    def _kill(self, program: subprocess.Popen[bytes], after_s: float | None) -> None:
        self._points.reached.wait(after_s)
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        self._points.is_dead.set()


class Drivers:
    """Drivers that run one after the other against one server, and the messages that they copy."""

    def __init__(
        self, home: Path, url: str, points: Points, client: tuff.Client, *, partition_count: int
    ) -> None:
        self._partition_count = partition_count
        self._words = ("tests.spark.stream_driver", url, str(home))
        self._killer = Killer(points, home / "driver.txt", within_s=RUN_WITHIN_S)
        self._client = client
        self._count = 0

    def publish(self) -> None:
        """Publish messages for the next driver."""
        numbers = range(self._count, self._count + MESSAGE_COUNT)
        messages = [tuff.NewMessage(str(each), key=self._key(each)) for each in numbers]
        self._client.publish(tuff.TopicId(*SOURCE.split(":")), *messages)
        self._count += MESSAGE_COUNT

    def run(self, point: Point | None) -> bool:
        """Run a driver until the point, or to its end; returns whether it was killed."""
        return self._killer.run(*self._words, point=point)

    def check(self, *, is_over: bool) -> int:
        """Returns the number of messages in the sinks. Raises: AssertionError: one is missing,
        duplicated or out of order; at the end (`is_over`) all must be there."""
        found_count = 0
        for parity, name in enumerate(SINKS):
            expected = self._by_key(range(parity, self._count, 2))
            found = self._in_sink(tuff.TopicId("kill", name))
            assert found.keys() <= expected.keys(), f"{name} has keys {found.keys()}"
            for key, there in expected.items():
                some = found.get(key, [])
                assert some == (there if is_over else there[: len(some)]), (
                    f"{name} has {len(some)} messages of key {key!r}, {len(set(some))} of them "
                    f"distinct, and not those of the {len(there)} there should be, in order"
                )
                found_count += len(some)
        return found_count

    def _key(self, number: int) -> bytes | None:
        """The key of a message; without partitions all are in one order, as if of one key."""
        return b"%d" % (number % KEY_COUNT) if self._partition_count > 1 else None

    def _by_key(self, numbers: Iterable[int]) -> dict[bytes | None, list[bytes]]:
        found: dict[bytes | None, list[bytes]] = {}
        for number in numbers:
            found.setdefault(self._key(number), []).append(b"%d" % number)
        return found

    def _in_sink(self, topic: tuff.TopicId) -> dict[bytes | None, list[bytes]]:
        found: dict[bytes | None, list[bytes]] = {}
        for number in range(self._partition_count):
            for message in read_messages(self._client, topic.partition(number)):
                found.setdefault(message.key, []).append(message.payload)
        return found


def points(count: int, *, seed: int) -> list[Point]:
    """Each side of each call in random order, then the same for later batches."""
    chance = random.Random(seed)
    found: list[Point] = []
    number = 1
    while len(found) < count:
        every = [Point(call, when, number) for call in CALLS for when in When]
        found += chance.sample(every, len(every))
        number += 2
    return found[:count]


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--after", type=int, default=0, help="leave out so many points")
    parser.add_argument("--partitions", type=int, default=1, help="of the source and the sinks")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    set_up()
    killed = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        home = Path(name)
        with (
            ServerProcess(home / "data", log=home / "log.txt") as server,
            tuff.Client(server.url) as client,
            losing(server.url, losses=Points()) as (url, losses),
        ):
            assert isinstance(losses, Points)
            for each in (SOURCE, *(f"kill:{sink}" for sink in SINKS)):
                topic = tuff.TopicId(*each.split(":"))
                client.topics.create(topic, partitions=options.partitions)
            drivers = Drivers(home, url, losses, client, partition_count=options.partitions)
            every = points(options.after + options.kills, seed=options.seed)
            for point in every[options.after :]:
                drivers.publish()
                was_killed = drivers.run(point)
                killed += was_killed
                came = f"{drivers.check(is_over=False)} messages"
                print(f"{point}: {'killed' if was_killed else 'not reached'}, {came}", flush=True)
            drivers.run(None)
            message_count = drivers.check(is_over=True)
    print(f"{killed} kills of the driver, {message_count} messages, each once and in order")
    return 0 if 2 * killed >= options.kills else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
