"""Members of a consumer group are killed while they work: is a message lost, or processed twice?

    python -m tests.faults.groups [--mode MODE] [--members N] [--partitions N] [--kills N]
        [--pauses N]

Each member is a process. It writes what it processes to an output topic, in `exactly_once` within
the transaction of the batch. After each `kill -9` the program measures how long it takes until the
other members have all partitions, and starts another member. Then it suspends members until others
have their partitions, and lets them go on. At the end it compares the output with what was
published:

    exactly_once    every message once
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import tuff
from tests.faults.pauses import suspended
from tests.http.client import until
from tests.http.process import ENDS_WITH_PARENT, REPOSITORY, serve
from tuff.consumer_flows import DeliveryMode

INPUT = tuff.TopicId("faults", "input")
OUTPUT = tuff.TopicId("faults", "output")
GROUP = "workers"
SESSION_S = 1.5  # seconds
HEARTBEAT_S = 0.3  # seconds
TRANSACTION_S = 2.0  # seconds; a successor waits so long for an offset in a killed member's commit
BATCH_COUNT_MAX = 20  # messages of one batch
BEFORE_A_FAULT_S = (0.2, 1.0)  # seconds of work between two faults
WORK_S = 0.01  # seconds of each batch, between its commit and its output, in which kills fall
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
    killed: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    rebalanced_s: list[float] = field(default_factory=list)


def judge(run: Run, mode: DeliveryMode) -> list[str]:
    """What should not have happened, in sentences."""
    by_number: defaultdict[int, list[Done]] = defaultdict(list)
    for each in run.done:
        by_number[each.number].append(each)
    missing = [number for number in range(run.published) if number not in by_number]
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
        return wrong
    last_batch = {each.member: each.batch for each in run.done}
    for number, found in repeated.items():
        for each in found[:-1]:
            is_last = each.member in run.killed and each.batch == last_batch[each.member]
            if not is_last and each.member not in run.paused:
                wrong.append(f"{number} was processed again after {each}, which had committed it")
    return wrong


def work(url: str, name: str, mode: DeliveryMode) -> None:
    """A member, until it is killed."""
    number_of_batch = 0

    def outputs(batch: tuff.Batch) -> list[str]:
        return [
            json.dumps({"number": int(each.payload), "member": name, "batch": number_of_batch})
            for each in batch
        ]

    with (
        tuff.Client(url, client_id=name) as client,
        client.consumer(GROUP, INPUT, mode=mode, batch=BATCH_COUNT_MAX) as consumer,
    ):
        if mode is not DeliveryMode.EXACTLY_ONCE:
            for batch in consumer:
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

        consumer.run(process)


class Members:
    """The processes of the members, by name."""

    def __init__(self, url: str, mode: DeliveryMode) -> None:
        self._command = [*ENDS_WITH_PARENT, sys.executable, "-m", "tests.faults.groups"]
        self._arguments = ["--url", url, "--mode", mode.value]
        self._started_count = 0
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        name = f"member-{self._started_count}"
        self._started_count += 1
        command = [*self._command, *self._arguments, "--name", name]
        self.running[name] = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def members(url: str, mode: DeliveryMode, count: int) -> Iterator[Members]:
    """So many members; all are killed at the end."""
    made = Members(url, mode)
    try:
        for _ in range(count):
            made.start()
        yield made
    finally:
        for name in list(made.running):
            made.kill(name)


def is_divided(client: tuff.Client, names: Sequence[str]) -> bool:
    """Whether exactly these members have all partitions."""
    group = client.groups.show(INPUT.namespace, GROUP)
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
) -> Run:
    """Run the members with their server."""
    chance, run = random.Random(seed), Run()
    settings = (
        f"groups.session_timeout={SESSION_S}",
        f"groups.heartbeat_interval={HEARTBEAT_S}",
        f"tx.default_timeout={TRANSACTION_S}",
    )
    with serve(home, *settings) as server, tuff.Client(server.url) as client:
        client.topics.create(INPUT, partitions=partitions)
        client.topics.create(OUTPUT)
        with members(server.url, mode, count) as group:
            until(
                lambda: (
                    GROUP in client.groups.list(INPUT.namespace)
                    and is_divided(client, list(group.running))
                ),
                within_s=WITHIN_S,
                what="all members to have partitions",
            )
            for _ in range(kills):
                _publish(client, run, for_s=chance.uniform(*BEFORE_A_FAULT_S))
                name = chance.choice(sorted(group.running))
                killed_s = time.perf_counter()
                group.kill(name)
                run.killed.append(name)
                _publish_until_divided(client, run, list(group.running))
                run.rebalanced_s.append(time.perf_counter() - killed_s)
                group.start()
                _publish_until_divided(client, run, list(group.running))
            for _ in range(pauses):
                _publish(client, run, for_s=chance.uniform(*BEFORE_A_FAULT_S))
                name = chance.choice(sorted(group.running))
                run.paused.append(name)
                with suspended(group.running[name].pid):
                    others = [each for each in group.running if each != name]
                    _publish_until_divided(client, run, others)
                    _publish(client, run, for_s=0.3)
                _publish_until_divided(client, run, list(group.running))
            _publish(client, run, for_s=0.5)
            until(
                lambda: _is_behind(client) == 0,
                within_s=WITHIN_S,
                what="the group to have processed everything",
            )
        run.done = list(_outputs(client))
    return run


def _outputs(client: tuff.Client) -> Iterator[Done]:
    poll = client.poll(OUTPUT)
    while poll or not poll.caught_up:
        for message in poll:
            yield Done(**json.loads(message.payload))
        poll = client.poll(OUTPUT, poll.next_id, inclusive=False)


def _publish_until_divided(client: tuff.Client, run: Run, names: Sequence[str]) -> None:
    until_s = time.perf_counter() + WITHIN_S
    while not is_divided(client, names):
        assert time.perf_counter() < until_s, "the members do not agree"
        _publish(client, run, for_s=0.02)


def _publish(client: tuff.Client, run: Run, *, for_s: float) -> None:
    until_s = time.perf_counter() + for_s
    while time.perf_counter() < until_s:
        numbers = range(run.published, run.published + 10)
        client.publish(INPUT, *(tuff.NewMessage(str(each), key=str(each)) for each in numbers))
        run.published = numbers.stop
        time.sleep(0.02)


def _is_behind(client: tuff.Client) -> int:
    """How many partitions have messages that the group has not committed."""
    group = client.groups.show(INPUT.namespace, GROUP)
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
    times = Counter(each.number for each in run.done)
    repeated = sum(count > 1 for count in times.values())
    rebalanced = " ".join(f"{each:.2f}" for each in run.rebalanced_s)
    print(f"{given.mode}: {run.published} messages, {run.published - len(times)} missing")
    print(f"{repeated} processed more than once; {len(run.killed)} kills, {len(run.paused)} pauses")
    print(f"seconds from a kill until the others had all partitions: {rebalanced}")
    print("\n".join(wrong) or "as promised")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
