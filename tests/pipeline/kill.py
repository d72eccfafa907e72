"""SIGKILL of the pipeline's jobs at each step of their work, and at random; then they run again.

    python -m tests.pipeline.kill --kills 12
    python -m tests.pipeline.kill --kills 1 --at "before step move 1 of archive"

A run is a process that archives, compacts, replays, audits and retries new messages. It is killed
before or after a step of its own, on either side of a call to the server, which a proxy sees, or at
any moment. After each run the archive and the topic together hold all published messages; in the
end each message is in each place once.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice, zip_longest
from pathlib import Path

import tuff
from kernel.archive_manifest import Archive
from tests.client.proxy import losing
from tests.faults.disk import Shim, build
from tests.http.process import serve
from tests.pipeline.clock import Clock
from tests.pipeline.kill_accounts import (
    Message,
    check_archive,
    check_audit,
    check_files,
    check_replayed,
    event,
    rows_of_files,
)
from tests.pipeline.kill_job import AGAIN, SOURCE, STEPS
from tests.spark.kill import EPOCH, Killer, Point, Points, When
from tests.spark.messages import read
from tests.spark.session import set_up

RUN_WITHIN_S = 900.0
HOUR_COUNT = 2  # new hours for each run, on a day of their own
MESSAGE_COUNT = 7  # of each hour
TTL_S = 2**31 - 1  # seconds; the longest
KILL_COUNT_MAX = 1_000  # in one run

# The calls of each job to the server, those of its tasks included.
CALLS = {
    "archive": ("poll", "offsets", "tuff-archive", "truncate"),
    "replay": (EPOCH, "store", "commit"),
    "audit": (EPOCH, "store", "commit"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """The n-th time that a job takes a step of its own."""

    job: str
    name: str
    when: str
    number: int

    def __str__(self) -> str:
        return f"{self.when} step {self.name} {self.number} of {self.job}"


@dataclass(frozen=True, slots=True)
class Moment:
    """A kill after this fraction of the time that a whole run takes."""

    part: float

    def __str__(self) -> str:
        return f"after {self.part:.0%} of a run"


Kill = Step | Point | Moment


class CallsOfJobs(Points):
    """Calls to the server, by the job that makes them."""

    def __init__(self, job: Path) -> None:
        super().__init__()
        self._job = job

    def takes_request(self, call: str) -> bool:
        return super().takes_request(self._named(call))

    def takes_reply(self, call: str) -> bool:
        return super().takes_reply(self._named(call))

    def _named(self, call: str) -> str:
        job = self._job.read_text() if self._job.exists() else "none"
        # The last part of the path of an epoch is its number.
        return f"{job} {EPOCH if call.isdigit() else call}"


def topic(name: str) -> tuff.TopicId:
    return tuff.TopicId(*name.split(":"))


class JobRuns:
    """Runs of the jobs against one server, and the messages that they process."""

    def __init__(self, home: Path, url: str, client: tuff.Client, clock: Clock) -> None:
        self.points = CallsOfJobs(home / "job")
        self._killer = Killer(self.points, home / "jobs.txt", within_s=RUN_WITHIN_S)
        self.url = url  # of the proxy, once there is one
        self._home, self._client, self._clock = home, client, clock
        self._archive = Archive(home / "archive")
        self._published: list[Message] = []
        self._event_count = 0
        self._whole_s = 60.0
        for name in (SOURCE, f"{SOURCE}.dlq", AGAIN):
            client.topics.create(topic(name), ttl=TTL_S)  # each run takes a day

    @property
    def message_count(self) -> int:
        return len(self._published)

    def publish(self) -> None:
        """Publish work for the next run: hours of a new day, which close those before."""
        self._clock.begin_day()
        for _ in range(HOUR_COUNT):
            self._clock.pass_hours()
            numbers = range(self._event_count, self._event_count + MESSAGE_COUNT)
            self._publish(SOURCE, [event(number) for number in numbers])
            self._event_count += MESSAGE_COUNT
        last = self._published[-1].id if self._published else None
        self._published += self._messages_after(last)

    def _publish(self, name: str, payloads: Sequence[str]) -> None:
        self._client.publish(topic(name), *payloads)

    def _messages_after(self, id: bytes | None) -> Iterator[Message]:
        place = None if id is None else tuff.MessageId.from_bytes(id)
        poll = self._client.poll(topic(SOURCE), place, inclusive=place is None)
        while poll:
            yield from (Message(each.id.to_bytes(), each.payload) for each in poll)
            poll = self._client.poll(topic(SOURCE), poll.next_id, inclusive=False)

    def run(self, kill: Kill | None) -> bool:
        """Run the jobs until that kill, or to their end; returns whether they were killed."""
        words = ["tests.pipeline.kill_job", self.url, str(self._home)]
        if isinstance(kill, Step):
            words += [kill.job, kill.name, kill.when, str(kill.number)]
        point = kill if isinstance(kill, Point) else None
        after_s = kill.part * self._whole_s if isinstance(kill, Moment) else None
        (self._home / "job").unlink(missing_ok=True)
        began_s = time.monotonic()
        was_killed = self._killer.run(*words, point=point, after_s=after_s)
        if not was_killed:
            self._whole_s = time.monotonic() - began_s
        return was_killed

    def check(self, *, is_whole: bool) -> None:
        """Raises: AssertionError: a message is lost or duplicated; after a whole run also: a job is
        incomplete."""
        rows = self._archive.entries(topic(SOURCE))
        left = list(self._messages_after(None))
        files = rows_of_files(self._archive, rows)
        archived = check_archive(rows, files, left, self._published)
        check_replayed(read(self._client, topic(AGAIN)), archived, is_whole=is_whole)
        if is_whole:
            assert len(archived) + MESSAGE_COUNT == len(self._published), "an hour is not archived"
            assert len(left) == MESSAGE_COUNT, "what is archived is still in the topic"
            check_files(self._archive, topic(SOURCE), rows)
            letters = read(self._client, topic(f"{SOURCE}.dlq"))
            check_audit(self._home / "audit", letters, archived)


def kills(*, seed: int) -> Iterator[Kill]:
    """Kills of each job, and at any moment, in turns: at the first time of each step and call, then
    at the second, and so on."""
    chance = random.Random(seed)
    for number in count(1):
        kinds: list[list[Kill]] = [
            [Step(job, step, when, number) for step in steps for when in ("before", "after")]
            for job, steps in STEPS.items()
        ]
        kinds += [
            [Point(f"{job} {call}", when, number) for call in calls for when in When]
            for job, calls in CALLS.items()
        ]
        kinds.append([Moment(chance.uniform(0.3, 1.0)) for _ in range(10)])
        for kind in kinds:
            chance.shuffle(kind)
        yield from filter(None, chain.from_iterable(zip_longest(*kinds)))


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.pipeline.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", default="", help="only kills whose description contains this")
    options = parser.parse_args(arguments)
    every = islice(kills(seed=options.seed), KILL_COUNT_MAX)
    chosen = list(islice((each for each in every if options.at in str(each)), options.kills))
    set_up()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        home = Path(name)
        shim = Shim(build(home), root=home / "home", control=home / "control")
        clock = Clock(shim)
        settings = ("messaging.max_block=86400",)
        server = serve(home / "home", *settings, environment=shim.environment())
        with server, tuff.Client(server.url) as client:
            runs = JobRuns(home, server.url, client, clock)
            with losing(server.url, losses=runs.points) as (runs.url, _):
                killed = run_all(runs, chosen)
        print(f"{killed} kills of running jobs, {runs.message_count} messages, each once")
    return 0 if chosen and 2 * killed >= len(chosen) else 1


def run_all(runs: JobRuns, chosen: Iterable[Kill]) -> int:
    """Run until each of these kills, and once to the end; returns the number of kills."""
    runs.publish()
    assert not runs.run(None)
    runs.check(is_whole=True)
    killed = 0
    for kill in chosen:
        runs.publish()
        was_killed = runs.run(kill)
        runs.check(is_whole=not was_killed)
        killed += was_killed
        print(f"{kill}: {'killed' if was_killed else 'not reached'}", flush=True)
    assert not runs.run(None)
    runs.check(is_whole=True)
    return killed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
