"""`python -m benchmarks.ownership`: servers race for topics, by compare-and-set of their owners.

    python -m benchmarks.ownership [--servers N] [--topics N] [--contenders N] [--dir DIR]

Each topic is wanted by several servers, which all read its owner record before one of
them writes it. First no topic has an owner. Then half of the servers count as dead, and the others
race for their topics. The program fails unless each claim has one winner, each loser saw
EntryExistsError or BadVersionError, and the records name the winners. Each server is a
thread with a connection of its own to ZooKeeper.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError

from kernel.owner_floor import NO_FLOOR
from metadata.store_interface import (
    BadVersionError,
    EntryExistsError,
    Expected,
    MetadataStore,
    Versioned,
)
from metadata.topic_owner_records import OwnerInfo, OwnerRecords
from metadata.topic_records import OwnerRange, PersistenceInfo, TopicRecords
from tuff.protocol.ids import Offset, TopicId

SERVERS_MAX = 200  # threads; each has a connection with threads of its own
WINDOW_TOPICS = 100  # topics that are read by all contenders before one of them is written
BARRIER_S = 300.0  # seconds until which all servers have done their part of a window
START = Offset(1, 0)

Winners = dict[TopicId, tuple[str, int]]  # the server and its epoch


@dataclass(slots=True)
class Tally:
    """What one server saw in one race."""

    won: Winners = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)


class Claimer:
    """One server that claims topics, as in decision 0042, without messages and fences."""

    def __init__(self, server_id: str, store: MetadataStore) -> None:
        self.server_id = server_id
        self._ownership = OwnerRecords(store)
        self._persistence = TopicRecords(store)

    def read(self, topic: TopicId) -> Versioned[OwnerInfo] | None:
        return self._ownership.read_owner_info(topic)

    def claim(self, topic: TopicId, found: Versioned[OwnerInfo] | None) -> int:
        """Claim a topic whose owner record is this one; returns the epoch.

        Raises: EntryExistsError, BadVersionError: another server was faster.
        """
        owner = OwnerInfo(server_id=self.server_id, incarnation=1, floor=NO_FLOOR)
        expected = Expected.NEW if found is None else found.version
        epoch = self._ownership.write_owner_info(topic, owner, expected)
        self._append_range(topic, epoch)
        return epoch

    def _append_range(self, topic: TopicId, epoch: int) -> None:
        claimed = OwnerRange(epoch=epoch, server_id=self.server_id, incarnation=1, start=START)
        found = self._persistence.read_topic_persistence_info(topic)
        before = PersistenceInfo(generation=1) if found is None else found.value
        self._persistence.write_topic_persistence_info(
            topic, before.with_claim(claimed), Expected.NEW if found is None else found.version
        )


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    options = _options(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="tuff-ownership-", dir=options.dir) as home,
        opened(Path(home)) as open_store,
        ExitStack() as stack,
    ):
        stores = [stack.enter_context(closing(open_store())) for _ in range(options.servers)]
        claimers = [Claimer(f"s{index:03}", each) for index, each in enumerate(stores)]
        topics = [TopicId("bench", f"topic-{number}") for number in range(options.topics)]
        print(
            f"{options.servers} servers, {options.topics} topics, "
            f"{options.contenders} contenders for each"
        )
        for line in races(claimers, topics, contenders=options.contenders):
            print(line, flush=True)
        require_consistent(stores[0], claimers, topics)
    return 0


def races(
    claimers: Sequence[Claimer], topics: Sequence[TopicId], *, contenders: int
) -> Iterator[str]:
    """The two races; a line for each."""
    yield f"{'':9} {'claims':>7} {'lost':>7} {'of these exists':>15} {'s':>7} {'claims/s':>9}"
    first = race(claimers, topics, contenders=contenders)
    yield _race_line("new", first)
    dead = {each.server_id for each in claimers[::2]}
    orphans = [topic for topic in topics if first.winners[topic][0] in dead]
    survivors = claimers[1::2]
    second = race(survivors, orphans, contenders=min(contenders, len(survivors)))
    yield _race_line("failover", second)
    winners = first.winners | second.winners
    for topic in topics:
        found = claimers[0].read(topic)
        assert found is not None, f"{topic} has no owner"
        assert (found.value.server_id, found.version) == winners[topic], f"{topic}: {found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The outcome of a race."""

    winners: Winners
    lost: Mapping[str, int]  # by the name of the error
    duration_s: float


def race(claimers: Sequence[Claimer], topics: Sequence[TopicId], *, contenders: int) -> Race:
    """Claim all topics once, each wanted by so many servers. Raises AssertionError if a topic has
    not one winner, or a loser saw anything but a refused write."""
    barrier = Barrier(len(claimers))
    began = time.perf_counter()
    with ThreadPoolExecutor(len(claimers)) as pool:
        running = [
            pool.submit(_racing, each, index, len(claimers), topics, contenders, barrier)
            for index, each in enumerate(claimers)
        ]
        errors = [each.exception() for each in running]
        for error in errors:
            if error is not None and not isinstance(error, BrokenBarrierError):
                raise error  # the one that broke the barrier for the others
        tallies = [each.result() for each in running]
    duration_s = time.perf_counter() - began
    winners: Winners = {}
    lost: Counter[str] = Counter()
    for tally in tallies:
        assert not winners.keys() & tally.won.keys(), "a topic has two owners"
        winners |= tally.won
        lost += tally.lost
    assert winners.keys() == set(topics), "a topic has no owner"
    assert lost.total() == len(topics) * (contenders - 1), "a loser saw no error"
    return Race(winners=winners, lost=lost, duration_s=duration_s)


def _racing(
    claimer: Claimer,
    index: int,
    servers: int,
    topics: Sequence[TopicId],
    contenders: int,
    barrier: Barrier,
) -> Tally:
    """One server's part. All read a window of topics before any of them writes, so each write but
    one is refused; and each begins at another place, so all win some."""
    tally = Tally()
    try:
        for start in range(0, len(topics), WINDOW_TOPICS):
            window = range(start, min(start + WINDOW_TOPICS, len(topics)))
            wanted = [topics[each] for each in window if (each - index) % servers < contenders]
            found = {topic: claimer.read(topic) for topic in wanted}
            barrier.wait(BARRIER_S)
            turn = index * len(wanted) // servers
            for topic in wanted[turn:] + wanted[:turn]:
                try:
                    epoch = claimer.claim(topic, found[topic])
                except (EntryExistsError, BadVersionError) as error:
                    tally.lost[type(error).__name__] += 1
                else:
                    tally.won[topic] = claimer.server_id, epoch
            barrier.wait(BARRIER_S)
    except BaseException:
        barrier.abort()  # the others would wait
        raise
    return tally


def require_consistent(
    store: MetadataStore, claimers: Sequence[Claimer], topics: Sequence[TopicId]
) -> None:
    """Raises AssertionError unless the owner of each topic is that of its newest range."""
    owners = dict(OwnerRecords(store).scan())
    ranges = {topic: found.value.ranges for topic, found in TopicRecords(store).scan()}
    assert owners.keys() == ranges.keys() == set(topics)
    known = {each.server_id for each in claimers}
    for topic, owner in owners.items():
        newest = ranges[topic][-1]
        assert owner.value.server_id in known, topic
        assert (newest.server_id, newest.epoch) == (owner.value.server_id, owner.version), topic


@contextmanager
def opened(home: Path) -> Iterator[Callable[[], MetadataStore]]:
    """How a server opens the store."""
    from metadata.zookeeper_store import ZooKeeperStore
    from tests.metadata.zookeeper_server import ZooKeeperServer

    server = ZooKeeperServer(home / "zookeeper")
    try:
        yield partial(ZooKeeperStore, server.address, root="/ownership", elapsed_s=time.monotonic)
    finally:
        server.stop()


def _race_line(name: str, found: Race) -> str:
    claims, lost = len(found.winners), sum(found.lost.values())
    exists = found.lost.get("EntryExistsError", 0)
    return (
        f"{name:9} {claims:7} {lost:7} {exists:15} {found.duration_s:7.2f} "
        f"{claims / found.duration_s:9.0f}"
    )


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ownership",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--servers", type=int, default=50)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--contenders", type=int, default=5, help="servers that want a topic")
    parser.add_argument("--dir", type=Path, help="on which disk; default: the temporary directory")
    options = parser.parse_args(arguments)
    if not 2 <= options.servers <= SERVERS_MAX:
        parser.error(f"--servers is from 2 to {SERVERS_MAX}")
    if not 1 <= options.contenders <= options.servers:
        parser.error("--contenders is from 1 to --servers")
    if options.topics < 1:
        parser.error("--topics is 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
