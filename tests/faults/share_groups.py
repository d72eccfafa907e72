"""Workers of a share group and their server are killed: is a message lost, or processed twice?

    python -m tests.faults.share_groups [--mode MODE] [--workers N] [--kills N] [--restarts N]
        [--pauses N]

Each worker is a process. It writes what it processes to an output topic, in `exactly_once` within
the transaction that accepts the message. Workers are killed by `kill -9`, and suspended for longer
than their leases; the server is killed and started again. At the end the program compares the
output with what was published:

    exactly_once    every message once; some fail twice and are tried again, and some always: those
                    are dead letters, each once
    at_least_once   every message
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import tuff
from tests.faults.pauses import suspended
from tests.http.client import until
from tests.http.process import ENDS_WITH_PARENT, REPOSITORY, ServerProcess, serve
from tuff.consumer_options import DeliveryMode
from tuff.dead_letters import dead_letter_topic_of

INPUT = tuff.TopicId("faults", "input")
OUTPUT = tuff.TopicId("faults", "output")
DEAD = dead_letter_topic_of(INPUT)
GROUP = "workers"
LEASE_S = 1.0  # seconds
BATCH_COUNT_MAX = 10  # messages that a worker has at once
WORK_S = 0.005  # seconds of each message, in which kills fall
BEFORE_A_FAULT_S = (0.3, 1.0)  # seconds of work between two faults
PAUSE_S = 2 * LEASE_S
# A worker that is killed spends an attempt of its message, too: more than faults hit one message.
RETRIES = tuff.RetryPolicy(delays=(0.1,) * 7)
SETTINGS = ("tx.default_timeout=3",)
WITHIN_S = 90.0


@dataclass(slots=True)
class Run:
    """What happened: how many numbers were published, and which were processed and given up."""

    published: int = 0
    done: list[int] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)


def fails(number: int, attempt: int) -> bool:
    """Whether this attempt of a message fails, in exactly_once."""
    return is_given_up(number) or (number % 50 == 13 and attempt < 3)


def is_given_up(number: int) -> bool:
    """Whether every attempt of a message fails."""
    return number % 50 == 27


def judge(run: Run, mode: DeliveryMode) -> list[str]:
    """What should not have happened, in sentences."""
    done, given_up = Counter(run.done), Counter(run.given_up)
    numbers = range(run.published)
    is_exact = mode is DeliveryMode.EXACTLY_ONCE
    wrong = [f"{each} was never published" for each in {**done, **given_up} if each not in numbers]
    wrong += [f"{each} was lost" for each in numbers if not done[each] and not given_up[each]]
    if is_exact:
        both = done + given_up
        wrong += [f"{each} was processed {both[each]} times" for each in both if both[each] > 1]
        wrong += [f"{each} was given up" for each in given_up if not is_given_up(each)]
        wrong += [f"{each} was not given up" for each in done if is_given_up(each)]
    return wrong


def work(url: str, mode: DeliveryMode) -> None:
    """A worker, until it is killed."""
    with (
        tuff.Client(url) as client,
        client.share_consumer(
            INPUT,
            group=GROUP,
            mode=mode,
            lease=LEASE_S,
            batch=BATCH_COUNT_MAX,
            retry=RETRIES if mode is DeliveryMode.EXACTLY_ONCE else None,
        ) as consumer,
    ):

        def process(message: tuff.Message, tx: tuff.TransactionContext) -> None:
            number = int(message.payload)
            tx.publish(OUTPUT, json.dumps(number))
            time.sleep(WORK_S)
            if fails(number, consumer.attempt(message)):
                raise ValueError("it can't be processed")

        def repeat(message: tuff.Message) -> None:
            client.publish(OUTPUT, json.dumps(int(message.payload)))
            time.sleep(WORK_S)

        while True:
            with suppress(tuff.ConnectionLostError):
                consumer.run(process if mode is DeliveryMode.EXACTLY_ONCE else repeat)


class Workers:
    """The processes of the workers, by number."""

    def __init__(self, url: str, mode: DeliveryMode, logs: Path) -> None:
        program = [*ENDS_WITH_PARENT, sys.executable, "-m", "tests.faults.share_groups"]
        self._command = [*program, "--url", url, "--mode", mode.value]
        self._logs = logs
        self._started_count = 0
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._started_count += 1
        with self._log_of(self._started_count).open("wb") as log:
            process = subprocess.Popen(self._command, cwd=REPOSITORY, stderr=log)
        self.running[self._started_count] = process

    def require_running(self) -> None:
        """Raises: AssertionError: a worker has ended by itself."""
        for number, process in self.running.items():
            assert process.poll() is None, self._log_of(number).read_text()

    def kill(self, number: int) -> None:
        process = self.running.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def _log_of(self, number: int) -> Path:
        return self._logs / f"worker-{number}.txt"


@contextmanager
def workers(url: str, mode: DeliveryMode, count: int, logs: Path) -> Iterator[Workers]:
    """So many workers; all are killed at the end."""
    made = Workers(url, mode, logs)
    try:
        for _ in range(count):
            made.start()
        yield made
    finally:
        for number in list(made.running):
            made.kill(number)


class Faults:
    """Publishes, while workers and the server are killed."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home = home
        self.chance = random.Random(seed)
        self.server: ServerProcess = serve(home, *SETTINGS)
        self.client = tuff.Client(self.server.url)
        self.run = Run()

    def publish(self) -> None:
        """Ten messages, again and again, for a while."""
        until_s = time.perf_counter() + self.chance.uniform(*BEFORE_A_FAULT_S)
        while time.perf_counter() < until_s:
            numbers = range(self.run.published, self.run.published + 10)
            self.client.publish(INPUT, *map(str, numbers))
            self.run.published = numbers.stop
            time.sleep(0.05)

    def kill_one(self, group: Workers) -> None:
        group.kill(self.chance.choice(sorted(group.running)))
        group.start()

    def suspend_one(self, group: Workers) -> None:
        with suspended(group.running[self.chance.choice(sorted(group.running))].pid):
            time.sleep(PAUSE_S)

    def restart_server(self, _group: Workers) -> None:
        self.server.kill()
        self.server = serve(self.home, *SETTINGS, port=self.server.port)

    def end(self) -> None:
        self.client.close()
        self.server.end()

    def drain(self, group: Workers) -> None:
        """Wait until the group has processed everything."""

        def is_done() -> bool:
            group.require_running()
            shown = self.client.share_groups.get(INPUT, GROUP)
            left = shown.available + shown.blocked + shown.leased + shown.waiting
            return left + shown.undecided == 0 and shown.behind_ms == 0

        until(is_done, within_s=WITHIN_S, what="the group to have processed everything")

    def judged(self, mode: DeliveryMode) -> Run:
        """What the group has done."""
        self.run.done = [json.loads(each.payload) for each in self._messages(OUTPUT)]
        if mode is DeliveryMode.EXACTLY_ONCE:
            letters = map(tuff.read_dead_letter, self._messages(DEAD))
            self.run.given_up = [int(each.message.payload) for each in letters]
        return self.run

    def _messages(self, topic: tuff.TopicId) -> Iterator[tuff.Message]:
        with suppress(tuff.TopicNotFoundError):
            poll = self.client.poll(topic, isolation="committed")
            while poll or not poll.caught_up:
                yield from poll
                poll = self.client.poll(topic, poll.next_id, inclusive=False, isolation="committed")


def kill_workers(
    mode: DeliveryMode,
    *,
    count: int,
    kills: int,
    restarts: int,
    pauses: int,
    seed: int,
    home: Path,
) -> Run:
    """Run workers with their server, and faults in random order."""
    faults = Faults(home, seed)
    try:
        faults.client.topics.create(INPUT)
        faults.client.topics.create(OUTPUT)
        faults.client.share_groups.create(INPUT, GROUP, start="earliest")
        with workers(faults.server.url, mode, count, home) as group:
            kinds = [faults.kill_one] * kills + [faults.restart_server] * restarts
            kinds += [faults.suspend_one] * pauses
            faults.chance.shuffle(kinds)
            for fault in kinds:
                faults.publish()
                fault(group)
            faults.publish()
            faults.drain(group)
        return faults.judged(mode)
    finally:
        faults.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mode", type=DeliveryMode, default=DeliveryMode.EXACTLY_ONCE)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--pauses", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.url is not None:
        work(given.url, given.mode)
        return
    with tempfile.TemporaryDirectory() as home:
        run = kill_workers(
            given.mode,
            count=given.workers,
            kills=given.kills,
            restarts=given.restarts,
            pauses=given.pauses,
            seed=given.seed,
            home=Path(home),
        )
    wrong = judge(run, given.mode)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    repeated = sum(count > 1 for count in Counter(run.done).values())
    print(
        f"{given.mode}: {run.published} messages, {repeated} repeated, {len(run.given_up)} given "
        f"up, {len(wrong)} of that not as promised; {given.kills} kills of workers, "
        f"{given.pauses} pauses, {given.restarts} kills of the server"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
