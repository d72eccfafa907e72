"""Members of a consumer group are killed while they work: is a message lost, or processed twice?

    python -m tests.faults.groups [--mode MODE] [--members N] [--partitions N] [--kills N]
        [--pauses N]

Each member is a process. It writes what it processes to an output topic, in `exactly_once` within
the transaction of the batch. After each `kill -9` the program measures how long it takes until the
other members have all partitions, and starts another member. Then it suspends members until others
have their partitions, and lets them go on. At the end it compares the output with what was
published:

    exactly_once    every message once; some fail twice and are tried again, and some always: those
                    are dead letters, each once, after three attempts
    at_least_once   every message; twice only those of the last batch of a killed member, which it
                    had no time to commit, or of a suspended one
    at_most_once    no message twice; missing are only those of a killed member's last batch
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import tuff
from tests.faults.pauses import suspended
from tests.http.client import until
from tests.http.process import ENDS_WITH_PARENT, REPOSITORY, serve
from tuff import retry_or_dead_letter
from tuff.consumer_options import DeliveryMode
from tuff.dead_letters import dead_letter_topic_of, retry_topic_of

INPUT = tuff.TopicId("faults", "input")
OUTPUT = tuff.TopicId("faults", "output")
RETRY, DEAD = retry_topic_of(INPUT), dead_letter_topic_of(INPUT)
GROUP = "workers"
SESSION_S = 1.5  # seconds
HEARTBEAT_S = 0.3  # seconds
TRANSACTION_S = 2.0  # seconds; a successor waits so long for an offset in a killed member's commit
BATCH_COUNT_MAX = 20  # messages of one batch
PUBLISH_EVERY_S = 0.02  # seconds between publishes
BEFORE_A_FAULT_S = (0.2, 1.0)  # seconds of work between two faults
# More than kills hit one message: a member that is killed spends an attempt of what it had begun.
RETRIES = tuff.RetryPolicy(delays=(0.1, 0.1, 0.1, 0.1, 0.2))
WORK_S = 0.01  # seconds of each batch, between its commit and its output, in which kills fall
PAUSE_S = 0.01  # seconds between messages that fail in a row
WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A message that a member processed, in which of its batches."""

    number: int
    member: str
    batch: int


@dataclass(slots=True)
class Run:
    """What happened: the numbers that were published, what was processed, in order, the members
    that were killed or suspended, and after each kill how long it took until others had all
    partitions."""

    published: int = 0
    done: list[Done] = field(default_factory=list)
    given_up: list[tuff.DeadLetter] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    rebalanced_s: list[float] = field(default_factory=list)


def fails(number: int, attempt: int) -> bool:
    """Whether this attempt of a message fails, in exactly_once."""
    return is_given_up(number) or (number % 50 == 13 and attempt < 3)


def is_given_up(number: int) -> bool:
    """Whether every attempt of a message fails."""
    return number % 50 == 27


def judge_dead_letters(run: Run) -> list[str]:
    """What should not have happened to messages that failed, in sentences."""
    attempts = len(RETRIES.delays) + 1
    found = Counter((int(each.message.payload), each.attempts) for each in run.given_up)
    expected = Counter((number, attempts) for number in range(run.published) if is_given_up(number))
    wrong = [f"{number} was given up after {each} attempts" for number, each in found - expected]
    return wrong + [f"{number} was not given up" for number, _ in expected - found]


def judge(run: Run, mode: DeliveryMode) -> list[str]:
    """What should not have happened, in sentences."""
    by_number: defaultdict[int, list[Done]] = defaultdict(list)
    for each in run.done:
        by_number[each.number].append(each)
    retries = mode is DeliveryMode.EXACTLY_ONCE
    missing = [
        number
        for number in range(run.published)
        if number not in by_number and not (retries and is_given_up(number))
    ]
    repeated = {number: found for number, found in by_number.items() if len(found) > 1}
    wrong = [f"{number} was never published" for number in by_number if number >= run.published]
    if mode is DeliveryMode.AT_MOST_ONCE:
        wrong += [f"{number} was processed {len(each)} times" for number, each in repeated.items()]
        most = BATCH_COUNT_MAX * len(run.killed)
        if len(missing) > most:
            wrong.append(f"{len(missing)} messages are missing, more than {most}")
        return wrong
    wrong += [f"{number} was lost" for number in missing]
    if mode is DeliveryMode.EXACTLY_ONCE:
        wrong += [f"{number} was processed {len(each)} times" for number, each in repeated.items()]
        return wrong + judge_dead_letters(run)
    return wrong + _repeated_too_much(run, repeated)


def _repeated_too_much(run: Run, repeated: Mapping[int, Sequence[Done]]) -> list[str]:
    """The repetitions that at_least_once excludes."""
    wrong = []
    last_batch = {each.member: each.batch for each in run.done}
    for number, found in repeated.items():
        for each in found[:-1]:
            is_last = each.member in run.killed and each.batch == last_batch[each.member]
            if not is_last and each.member not in run.paused:
                wrong.append(f"{number} was processed again after {each}, which had committed it")
    return wrong


def work(url: str, name: str, mode: DeliveryMode) -> None:
    """A member, until it is killed."""
    # At the end all that is left fails, in a row, which is no reason to wait here.
    retry_or_dead_letter.PAUSE_FIRST_S = retry_or_dead_letter.PAUSE_S_MAX = PAUSE_S
    number_of_batch = 0

    def outputs(batch: tuff.Batch) -> list[str]:
        return [
            json.dumps({"number": int(each.payload), "member": name, "batch": number_of_batch})
            for each in batch
        ]

    retry = RETRIES if mode is DeliveryMode.EXACTLY_ONCE else None
    with (
        tuff.Client(url, client_id=name) as client,
        client.consumer(
            INPUT, group=GROUP, mode=mode, batch=BATCH_COUNT_MAX, retry=retry
        ) as consumer,
    ):
        if mode is not DeliveryMode.EXACTLY_ONCE:
            for batch in consumer.batches():
                if mode is DeliveryMode.AT_MOST_ONCE:
                    time.sleep(WORK_S)
                client.publish(OUTPUT, *outputs(batch))
                number_of_batch += 1
                if mode is DeliveryMode.AT_LEAST_ONCE:
                    time.sleep(WORK_S)

        def process(batch: tuff.Batch, tx: tuff.TransactionContext) -> None:
            nonlocal number_of_batch
            tx.publish(OUTPUT, *outputs(batch))
            time.sleep(WORK_S)
            number_of_batch += 1
            if any(fails(int(each.payload), batch.attempt) for each in batch):
                raise ValueError("a message of the batch can't be processed")

        consumer.run(process)


class Members:
    """The processes of the members, by name."""

    def __init__(self, url: str, mode: DeliveryMode, logs: Path) -> None:
        self._logs = logs
        self._command = [*ENDS_WITH_PARENT, sys.executable, "-m", "tests.faults.groups"]
        self._arguments = ["--url", url, "--mode", mode.value]
        self._started_count = 0
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        name = f"member-{self._started_count}"
        self._started_count += 1
        command = [*self._command, *self._arguments, "--name", name]
        with (self._logs / f"{name}.txt").open("wb") as log:
            self.running[name] = subprocess.Popen(command, cwd=REPOSITORY, stderr=log)

    def require_running(self) -> None:
        """Raises: AssertionError: a member has ended by itself."""
        for name, process in self.running.items():
            assert process.poll() is None, (self._logs / f"{name}.txt").read_text()

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def members(url: str, mode: DeliveryMode, count: int, logs: Path) -> Iterator[Members]:
    """So many members; all are killed at the end."""
    made = Members(url, mode, logs)
    try:
        for _ in range(count):
            made.start()
        yield made
    finally:
        for name in list(made.running):
            made.kill(name)


def is_divided(client: tuff.Client, names: Collection[str]) -> bool:
    """Whether exactly these members have all partitions."""
    if GROUP not in client.groups.list(INPUT.namespace):
        return False
    group = client.groups.get(INPUT.namespace, GROUP)
    present = {each.client: each for each in group.members}
    has_all = all(each.member_id is not None for each in group.partitions)
    return group.state == "stable" and sorted(present) == sorted(names) and has_all


def kill_members(
    mode: DeliveryMode,
    *,
    count: int,
    partitions: int,
    kills: int,
    pauses: int,
    seed: int,
    home: Path,
    publish_every_s: float = PUBLISH_EVERY_S,
) -> Run:
    """Run the members with their server, and publish ten messages at this interval."""
    chance, run = random.Random(seed), Run()
    settings = (
        f"groups.session_timeout={SESSION_S}",
        f"groups.heartbeat_interval={HEARTBEAT_S}",
        f"tx.default_timeout={TRANSACTION_S}",
    )
    with serve(home, *settings) as server, tuff.Client(server.url) as client:
        client.topics.create(INPUT, partitions=partitions)
        client.topics.create(OUTPUT)
        with members(server.url, mode, count, home) as group:
            load = Load(client, run, group, publish_every_s)
            load.publish_until_divided(group.running)
            for fault in [load.kill_one] * kills + [load.suspend_one] * pauses:
                load.publish(for_s=chance.uniform(*BEFORE_A_FAULT_S))
                fault(chance.choice(sorted(group.running)))
                load.publish_until_divided(group.running)
            load.publish(for_s=0.5)
            _drain(client, mode)
        run.done = list(_outputs(client))
        if mode is DeliveryMode.EXACTLY_ONCE:
            run.given_up = list(map(tuff.read_dead_letter, _messages(client, DEAD)))
    return run


def _drain(client: tuff.Client, mode: DeliveryMode) -> None:
    """Wait until the group has processed everything, retries included.

    Between two attempts a message is delayed, in none of the partitions. One observation misses it
    if it becomes due between the two calls, and the next one only after another delay.
    """
    retries = RETRIES.delays if mode is DeliveryMode.EXACTLY_ONCE else ()
    still_count, still_s = 0, time.monotonic()

    def is_still() -> bool:
        nonlocal still_count, still_s
        if _is_behind(client) or (retries and client.delayed.list(RETRY)):
            still_count, still_s = 0, time.monotonic()
            return False
        still_count += 1
        return still_count > len(retries) and time.monotonic() - still_s >= sum(retries)

    until(is_still, within_s=WITHIN_S, what="the group to have processed everything")


class Load:
    """Publishes, while members are killed and suspended."""

    def __init__(
        self, client: tuff.Client, run: Run, group: Members, publish_every_s: float
    ) -> None:
        self._client = client
        self._run = run
        self._group = group
        self._publish_every_s = publish_every_s

    def publish(self, *, for_s: float) -> None:
        """Ten messages, again and again."""
        until_s = time.perf_counter() + for_s
        while time.perf_counter() < until_s:
            numbers = range(self._run.published, self._run.published + 10)
            messages = [tuff.NewMessage(str(each), key=str(each)) for each in numbers]
            self._client.publish(INPUT, *messages)
            self._run.published = numbers.stop
            time.sleep(self._publish_every_s)

    def publish_until_divided(self, names: Collection[str]) -> None:
        """Until exactly these members have all partitions."""
        until_s = time.perf_counter() + WITHIN_S
        while not is_divided(self._client, names):
            self._group.require_running()
            assert time.perf_counter() < until_s, "the members do not agree"
            self.publish(for_s=0.02)

    def kill_one(self, name: str) -> None:
        """Kill this member; start another one once the others have all partitions."""
        killed_s = time.perf_counter()
        self._group.kill(name)
        self._run.killed.append(name)
        self.publish_until_divided(self._group.running)
        self._run.rebalanced_s.append(time.perf_counter() - killed_s)
        self._group.start()

    def suspend_one(self, name: str) -> None:
        """Suspend this member until others have its partitions, and work on them."""
        self._run.paused.append(name)
        with suspended(self._group.running[name].pid):
            self.publish_until_divided(self._group.running.keys() - {name})
            self.publish(for_s=0.3)


def _outputs(client: tuff.Client) -> Iterator[Done]:
    for message in _messages(client, OUTPUT):
        yield Done(**json.loads(message.payload))


def _messages(client: tuff.Client, topic: tuff.TopicId) -> Iterator[tuff.Message]:
    poll = client.poll(topic, isolation="committed")
    while poll or not poll.caught_up:
        yield from poll
        poll = client.poll(topic, poll.next_id, inclusive=False, isolation="committed")


def _is_behind(client: tuff.Client) -> int:
    """How many partitions have messages that the group has not committed."""
    group = client.groups.get(INPUT.namespace, GROUP)
    return sum(
        each.end is not None and (each.after is None or each.after < each.end)
        for each in group.partitions
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mode", type=DeliveryMode, default=DeliveryMode.EXACTLY_ONCE)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--pauses", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.url is not None:
        work(given.url, given.name, given.mode)
        return
    with tempfile.TemporaryDirectory() as home:
        run = kill_members(
            given.mode,
            count=given.members,
            partitions=given.partitions,
            kills=given.kills,
            pauses=given.pauses,
            seed=given.seed,
            home=Path(home),
        )
    wrong = judge(run, given.mode)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    times = Counter(each.number for each in run.done)
    repeated = sum(count > 1 for count in times.values())
    missing = run.published - len(times) - len(run.given_up)
    print(
        f"{given.mode}: {run.published} messages, {missing} missing, {repeated} repeated, "
        f"{len(run.given_up)} given up, {len(wrong)} of that not as promised; "
        f"{len(run.paused)} pauses, and {len(run.killed)} kills, after which others had all "
        f"partitions within {max(run.rebalanced_s, default=0.0):.2f} s"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
