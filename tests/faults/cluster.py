"""Three servers that share one namespace of topics, under faults of every part between them.

    python -m tests.faults.cluster --minutes 2 --seed 1
    python -m tests.faults.cluster --metadata hbase --only kill --only pause

A real HBase, a real ZooKeeper (or its sessions in HBase) and three servers; publishers, consumers
and transactions of many clients; and faults by seed, one or two at a time. At the end everything is
polled through each server, and judged with all that the clients saw (promises 1, 2, 3, 5, 9):
`cluster_judge.py`. Outages are measured by the clients, and reported for each kind of fault.

HBase needs `make hbase` once. Each server runs in a network namespace (`cluster_network.py`), whose
link is cut. Where that is impossible, `--loopback` runs the faults of everything but the network.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import tuff
from tests.faults import cluster_network
from tests.faults.cluster_judge import Counted, Did, Final, Outage, outages, torn, violations
from tests.faults.cluster_network import EVERYWHERE, HBASE, LOSSY, MODES, ZOOKEEPER, Machine
from tests.faults.cluster_run import ClusterServer, RunningCluster
from tests.faults.disk import build, has_compiler
from tests.faults.workload_cluster import (
    LEADER,
    NAMESPACE,
    PAIR,
    PAIRED_TOPICS,
    Load,
    Recorded,
    final_state,
    read_all,
)
from tests.hbase.local_hbase import why_missing

CALM_S = (1.0, 4.0)  # seconds without a fault, so that all topics have owners before the next one
RESTART_S = (0.0, 6.0)  # seconds until a killed server is started again
SKEW_S = 5.0
SETTLES_WITHIN_S = 120.0  # a cluster that takes longer than that is broken
STOP_WITHIN_S = 20.0  # what conf/systemd/tuff@.service and the protocol allow a server of a cluster
TWO_AT_ONCE = 0.25  # the probability of a second fault during the first
SHOWN_COUNT_MAX = 10
NOT_JUDGED = {"loss", "narrow"}  # the owner keeps its session, and its topics wait
# Seconds until a server that alone lost HBase begins to count the timeout of its session, and until
# it looks again after that (docs/cluster.md, Servers that can't do their work).
NOTICED_S = 7.0
INSIDE = "--inside-namespace"  # the argument of the program that runs itself again there
OUTAGE_S_MIN = 0.3  # shorter ones are single refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """One fault that was injected. `reference_s`: from when on the cluster can serve again by
    itself: the begin of the fault, or the end if all servers need what failed."""

    name: str
    detail: str
    reference_s: float
    settled_s: float
    outages: Sequence[Outage]


class Faults:
    """The kinds of faults, each a context that lasts as long as it does."""

    def __init__(
        self,
        cluster: RunningCluster,
        chance: random.Random,
        *,
        topics: Sequence[str],
        has_clocks: bool,
        has_network: bool,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._chance = chance
        self._session_s = cluster.session_s
        of_one: dict[str, Callable[[ClusterServer], AbstractContextManager[str]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "move": self._move,
        }
        self.of_all: dict[str, Callable[[], AbstractContextManager[str]]] = {}
        if has_network:
            of_one |= {
                "cut-hbase": self._cut_hbase,
                "cut-peers": self._cut_peers,
                "cut-all": self._cut_all,
                "unplug": self._unplug,
                "loss": self._lose,
                "narrow": self._narrow,
            }
        if has_network and cluster.zookeeper is not None:
            of_one |= {"session": self._lose_session, "blink": self._blink}
        if cluster.zookeeper is not None:
            self.of_all["zookeeper-restart"] = self._restart_zookeeper
            self.of_all["zookeeper-pause"] = self._pause_zookeeper
        if has_clocks:
            of_one["clock"] = self._skew
        self.of_one = of_one

    def names(self) -> list[str]:
        return [*self.of_one, *self.of_all]

    def victims(self, count: int) -> list[ClusterServer]:
        return self._chance.sample(self._cluster.servers, count)

    def _seconds(self, least: float, most: float) -> float:
        """Times the session's timeout."""
        return self._chance.uniform(least, most) * self._session_s

    @contextmanager
    def _kill(self, server: ClusterServer) -> Iterator[str]:
        seconds = self._chance.uniform(*RESTART_S)
        server.is_held = True
        server.kill()
        try:
            yield f"SIGKILL of {server.id}, for {seconds:.1f} s"
            self._cluster.wait(seconds)
        finally:
            server.is_held = False

    @contextmanager
    def _stop(self, server: ClusterServer) -> Iterator[str]:
        """An orderly stop: its topics are handed over."""
        server.is_held = True
        code = server.process.terminate(within_s=STOP_WITHIN_S)
        try:
            assert code == 0, f"{server.id} stopped with {code}: {server.process.stderr()[-2_000:]}"
            yield f"SIGTERM of {server.id}"
            self._cluster.wait(self._chance.uniform(0, 1))
        finally:
            server.is_held = False

    @contextmanager
    def _pause(self, server: ClusterServer) -> Iterator[str]:
        seconds = self._seconds(0.3, 3)
        with self._cluster.paused(server):
            yield f"SIGSTOP of {server.id}, for {seconds:.1f} s"
            self._cluster.wait(seconds)

    def _lose_session(self, server: ClusterServer) -> AbstractContextManager[str]:
        """Cut from ZooKeeper until its session is lost."""
        return self._cut(server, [ZOOKEEPER], "ZooKeeper", seconds=self._seconds(1.5, 3))

    def _blink(self, server: ClusterServer) -> AbstractContextManager[str]:
        """Cut from ZooKeeper for less than the timeout of its session."""
        return self._cut(server, [ZOOKEEPER], "ZooKeeper", seconds=self._seconds(0.1, 0.5))

    def _cut_hbase(self, server: ClusterServer) -> AbstractContextManager[str]:
        return self._cut(server, [HBASE], "HBase", seconds=self._seconds(0.3, 3))

    def _cut_peers(self, server: ClusterServer) -> AbstractContextManager[str]:
        """Cut from one or all of the other servers."""
        others = [each for each in self._cluster.servers if each is not server]
        others = self._chance.sample(others, self._chance.randint(1, len(others)))
        what = " and ".join(each.id for each in others)
        return self._cut(
            server, [each.host for each in others], what, seconds=self._seconds(0.3, 3)
        )

    def _cut_all(self, server: ClusterServer) -> AbstractContextManager[str]:
        """Cut from everything but the clients."""
        others = [each.host for each in self._cluster.servers if each is not server]
        addresses = [HBASE, ZOOKEEPER, *others]
        return self._cut(server, addresses, "all but clients", seconds=self._seconds(0.3, 3))

    @contextmanager
    def _cut(
        self, server: ClusterServer, addresses: Sequence[str], what: str, *, seconds: float
    ) -> Iterator[str]:
        mode = self._chance.choice(list(MODES))
        with _machine(server).cut(addresses, mode):
            yield f"{server.id} without {what}, {mode}, for {seconds:.1f} s"
            self._cluster.wait(seconds)

    @contextmanager
    def _unplug(self, server: ClusterServer) -> Iterator[str]:
        """Cut from everything."""
        seconds = self._seconds(0.3, 3)
        with _machine(server).unplugged():
            yield f"{server.id} unplugged, for {seconds:.1f} s"
            self._cluster.wait(seconds)

    @contextmanager
    def _lose(self, server: ClusterServer) -> Iterator[str]:
        seconds = self._seconds(1, 4)
        with _machine(server).cut([EVERYWHERE], LOSSY):
            yield f"{server.id} {LOSSY}, for {seconds:.1f} s"
            self._cluster.wait(seconds)

    @contextmanager
    def _narrow(self, server: ClusterServer) -> Iterator[str]:
        seconds = self._seconds(1, 4)
        with _machine(server).narrowed():
            yield f"{server.id} with a narrow link, for {seconds:.1f} s"
            self._cluster.wait(seconds)

    @contextmanager
    def _skew(self, server: ClusterServer) -> Iterator[str]:
        """Its clock stays wrong, until it is set again."""
        shift_s = self._chance.uniform(-SKEW_S, SKEW_S)
        server.set_clock(shift_s)
        yield f"the clock of {server.id} is off by {shift_s:.1f} s"

    @contextmanager
    def _move(self, server: ClusterServer) -> Iterator[str]:
        """Topics move to this server, one after the other."""
        moved = Counter(
            self._move_one(self._chance.choice(self._topics), server) for _ in range(20)
        )
        yield f"20 topics moved to {server.id}: {dict(sorted(moved.items()))}"

    def _move_one(self, topic: str, server: ClusterServer) -> int:
        client = self._chance.choice(self._cluster.servers).client()
        path = f"/v1/cluster/topics/{NAMESPACE}/{topic}/move"
        try:
            return client.post(path, {"server": server.id}).status
        except OSError:
            return 0
        finally:
            client.close()

    @contextmanager
    def _restart_zookeeper(self) -> Iterator[str]:
        zookeeper, seconds = self._cluster.zookeeper, self._seconds(0, 1.5)
        assert zookeeper is not None
        kills = self._chance.random() < 0.5
        if kills:
            zookeeper.kill()
        else:
            zookeeper.stop()
        try:
            yield f"ZooKeeper {'killed' if kills else 'stopped'}, for {seconds:.1f} s"
            self._cluster.wait(seconds)
        finally:
            zookeeper.start()

    @contextmanager
    def _pause_zookeeper(self) -> Iterator[str]:
        zookeeper, seconds = self._cluster.zookeeper, self._seconds(0.3, 2)
        assert zookeeper is not None
        zookeeper.pause()
        try:
            yield f"ZooKeeper paused, for {seconds:.1f} s"
            self._cluster.wait(seconds)
        finally:
            zookeeper.resume()


def _machine(server: ClusterServer) -> Machine:
    assert server.machine is not None, "faults of the network need one"
    return server.machine


class Program:
    """The run: load, faults one after the other, and the judgement."""

    def __init__(
        self, cluster: RunningCluster, load: Load, faults: Faults, chance: random.Random
    ) -> None:
        self._cluster = cluster
        self._load = load
        self._faults = faults
        self._chance = chance
        self.injected: list[Injected] = []

    def run(self, *, seconds: float, only: Sequence[str]) -> None:
        """Inject faults for so long, each after the cluster has recovered from the one before."""
        self._load.start()
        self._settle(time.monotonic())
        end_s = time.monotonic() + seconds
        names = [each for each in self._faults.names() if not only or each in only]
        assert names, f"there are only these faults: {self._faults.names()}"
        left: list[str] = []
        while time.monotonic() < end_s:
            self._cluster.wait(self._chance.uniform(*CALM_S))
            left = left or self._chance.sample(names, len(names))
            self._inject(left.pop(), names)

    def _inject(self, name: str, names: Sequence[str]) -> None:
        began_s = reference_s = time.monotonic()
        first_attempt = len(self._load.recorded.attempts)
        with ExitStack() as lasting:
            chosen = [name]
            # Not two faults of one ZooKeeper: it can't be paused while it is killed.
            is_of_all = name in self._faults.of_all
            others = [each for each in names if not (is_of_all and each in self._faults.of_all)]
            if others and self._chance.random() < TWO_AT_ONCE:
                chosen.append(self._chance.choice(others))
            victims = self._faults.victims(len(chosen))
            details = []
            for each, victim in zip(chosen, victims, strict=True):
                if each in self._faults.of_all:
                    fault = self._faults.of_all[each]()
                else:
                    fault = self._faults.of_one[each](victim)
                details.append(lasting.enter_context(fault))
        if len(chosen) > 1 or is_of_all:
            reference_s = time.monotonic()
        self._settle(reference_s)
        settled_s = time.monotonic()
        attempts = self._load.recorded.attempts[first_attempt:]
        found = [
            replace(each, began_s=max(each.began_s, reference_s))
            for each in outages([each for each in attempts if each[2] >= began_s])
            if each.ended_s > reference_s + OUTAGE_S_MIN
            and each.ended_s - each.began_s > OUTAGE_S_MIN
        ]
        injected = Injected(
            name="+".join(sorted(chosen)),
            detail=" and ".join(details),
            reference_s=reference_s,
            settled_s=settled_s,
            outages=[each for each in found if each.ended_s < float("inf")],
        )
        self.injected.append(injected)
        self._explain(injected)
        print(f"{began_s - START_S:7.1f} s  {injected.detail}: {_shown(injected)}", flush=True)

    def _explain(self, injected: Injected) -> None:
        """Print what the clients were told in the longest outage, if it was too long."""
        longest = max(injected.outages, key=lambda each: each.seconds, default=None)
        if longest is None or longest.seconds <= bound_s(injected.name, self._cluster.session_s):
            return
        print(f"          in the longest outage, of {longest.subject}:")
        told = [
            (at_s, sentence)
            for subject, at_s, sentence in self._load.recorded.errors
            if subject == longest.subject and longest.began_s <= at_s <= longest.ended_s
        ]
        for at_s, sentence in told[:: max(1, len(told) // SHOWN_COUNT_MAX)]:
            print(f"{at_s - START_S:12.1f} s  {sentence[:240]}")

    def _settle(self, reference_s: float) -> None:
        """Until all servers are ready, and each topic and the leader took a write."""
        self._cluster.until_ready()
        expected = {*self._load.topics, LEADER}
        recorded = self._load.recorded

        def missing() -> set[str]:
            return expected - recorded.acknowledged_since(reference_s)

        def has_settled() -> bool:
            assert not recorded.failures, recorded.failures[:SHOWN_COUNT_MAX]
            return not missing()

        try:
            self._cluster.until(has_settled, within_s=SETTLES_WITHIN_S, what="all take writes")
        except AssertionError as error:
            raise AssertionError(f"{error}; missing: {sorted(missing())[:20]}") from None

    def finish(self) -> tuple[Recorded, Final, list[str]]:
        """Stop the clients; what they recorded, all messages, and how servers disagree about
        them."""
        self._load.stop()
        for server in self._cluster.servers:
            server.tend()
        self._cluster.until_ready()
        disagreements = []
        final: dict[str, list[tuple[str, str]]] = {}
        for server in self._cluster.servers:
            with tuff.Client(server.url, retries=10) as client:
                for topic in self._load.topics:
                    rows = read_all(client, topic)
                    if final.setdefault(topic, rows) != rows:
                        disagreements.append(f"topic {topic}: {server.id} has other messages")
        recorded = self._load.recorded
        with tuff.Client(self._cluster.servers[0].url, retries=10) as client:
            committed = {topic: read_all(client, topic, "committed") for topic in PAIRED_TOPICS}
            disagreements += torn(recorded.pairs, committed)
            recorded.counted = [
                replace(each, final=final_state(client, each.pointer)) for each in recorded.counted
            ]
        return recorded, final, disagreements


def bound_s(name: str, session_s: float) -> float:
    """The longest outage by this fault, in seconds, that is no finding."""
    if name == "cut-hbase":
        # The server ends after `session_s + NOTICED_S`, and its session as long as a timeout later.
        # If the cut ends just before, TCP can take as long again as the cut took.
        return 2 * (session_s + NOTICED_S)
    return 2 * session_s


def _shown(injected: Injected) -> str:
    topics = [each.seconds for each in injected.outages if each.subject not in (LEADER, PAIR)]
    leader = [each.seconds for each in injected.outages if each.subject == LEADER]
    parts = []
    if topics:
        parts.append(f"{len(topics)} outages of topics, {_distribution(topics)}")
    if leader:
        parts.append(f"the leader {max(leader):.2f} s")
    return "; ".join(parts) or "no outage"


def _distribution(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s"


def report(
    injected: Sequence[Injected], recorded: Recorded, cluster: RunningCluster
) -> tuple[float, float, list[str]]:
    """Print the outages by kind of fault; the longest of a topic and of the leader, and which kinds
    took too long, without faults that came in pairs."""
    by_name: dict[str, list[Injected]] = defaultdict(list)
    for each in injected:
        by_name[each.name].append(each)
    print(
        f"\n{'fault':<34}{'times':>6}{'topics out':>12}{'median s':>10}{'max s':>8}{'leader s':>10}"
    )
    longest, late = [0.0, 0.0], []
    for name, of_name in sorted(by_name.items()):
        found = [outage for each in of_name for outage in each.outages]
        topics = [each.seconds for each in found if each.subject not in (LEADER, PAIR)]
        leader = [each.seconds for each in found if each.subject == LEADER]
        middle = statistics.median(topics) if topics else 0.0
        most, its = max(topics, default=0.0), max(leader, default=0.0)
        print(
            f"{name:<34}{len(of_name):>6}{len(topics):>12}{middle:>10.2f}{most:>8.2f}{its:>10.2f}"
        )
        if "+" not in name and name not in NOT_JUDGED:
            longest = [max(longest[0], most), max(longest[1], its)]
            if max(most, its) > (bar_s := bound_s(name, cluster.session_s)):
                late.append(f"{name}: an outage of {max(most, its):.1f} s (bound {bar_s:g} s)")
    exits = {server.id: dict(Counter(server.exits)) for server in cluster.servers}
    print(f"exits of servers by code: {exits}")
    for reason, count in sum((server.reasons for server in cluster.servers), Counter()).items():
        print(f"  {count} times: {reason}")
    print(f"refusals and failures that clients saw: {dict(sorted(recorded.reasons.items()))}")
    return longest[0], longest[1], late


def _count(counted: Sequence[Counted]) -> int:
    return sum(each.final == "committed" for each in counted)


def _acknowledged(recorded: Recorded) -> int:
    return sum(each.did is Did.IT for each in recorded.pairs)


START_S = time.monotonic()


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--topics", type=int, default=300)
    parser.add_argument("--consumers", type=int, default=60)
    parser.add_argument("--rate", type=float, default=0.2, help="publishes a second to each topic")
    parser.add_argument("--session", type=float, default=3.0, help="seconds")
    parser.add_argument("--metadata", choices=("zookeeper", "hbase"), default="zookeeper")
    parser.add_argument("--pairs", action="store_true", help="transactions publish, too")
    parser.add_argument("--only", action="append", default=[], metavar="FAULT")
    parser.add_argument("--judge-outages", action="store_true", help="fail if one is too long")
    parser.add_argument(
        "--loopback", action="store_true", help="without network namespaces and their faults"
    )
    parser.add_argument(INSIDE, action="store_true", dest="is_inside", help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help="keeps all files there")
    options = parser.parse_args(arguments)
    if (missing := why_missing()) is not None:
        print(missing)
        return 1
    if not options.loopback and not options.is_inside:
        if (missing := cluster_network.why_missing()) is not None:
            print(f"{missing}; `--loopback` runs the faults of everything but the network")
            return 1
        again = [sys.executable, "-m", "tests.faults.cluster", *arguments, INSIDE]
        os.execvp("unshare", [*cluster_network.entering(), *again])
    with ExitStack() as ends:
        home = options.home or Path(ends.enter_context(tempfile.TemporaryDirectory()))
        home.mkdir(exist_ok=True, parents=True)
        return _run(home, options)


def _run(home: Path, options: argparse.Namespace) -> int:
    chance = random.Random(options.seed)
    library = build(home) if has_compiler() else None
    with RunningCluster(
        home,
        metadata=options.metadata,
        session_s=options.session,
        has_network=not options.loopback,
        library=library,
    ) as cluster:
        load = Load(
            list(permutations(each.url for each in cluster.servers)),
            topics=options.topics,
            consumers=options.consumers,
            rate_per_s=options.rate,
            seed=options.seed,
            has_pairs=options.pairs,
        )
        faults = Faults(
            cluster,
            chance,
            topics=load.topics,
            has_clocks=library is not None,
            has_network=not options.loopback,
        )
        program = Program(cluster, load, faults, chance)
        try:
            program.run(seconds=options.minutes * 60, only=options.only)
        finally:
            load.stop()
        recorded, final, found = program.finish()
        topic_s, leader_s, late = report(program.injected, recorded, cluster)
    found += violations(recorded.publishes, recorded.reads, recorded.counted, final)
    for each in [*found, *late]:
        print(each)
    print(
        f"{len(program.injected)} faults, {len(recorded.publishes)} publishes, "
        f"{len(recorded.reads)} polls, {_count(recorded.counted)} commits, "
        f"{_acknowledged(recorded)} of {len(recorded.pairs)} pairs, longest outage of a "
        f"topic {topic_s:.1f} s and of transactions {leader_s:.1f} s, {len(late)} too long, "
        f"{len(found)} violations"
    )
    is_late = options.judge_outages and bool(late)
    return 1 if found or is_late or not program.injected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
