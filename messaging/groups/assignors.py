"""Assignors: which member of a group shall have which partitions. Pure and deterministic.

Each returns a target for every member, in which every partition of a subscribed topic has exactly
one member. The names are those of Kafka's assignors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain

# Topics of each member, in any order; members by id.
Subscriptions = Mapping[str, Sequence[str]]
# The partitions of each topic that have messages to be read, in the order of their numbers.
PartitionNames = Mapping[str, Sequence[str]]
Target = dict[str, tuple[str, ...]]


def range_assignor(
    subscriptions: Subscriptions, partitions: PartitionNames, _previous: Mapping[str, Iterable[str]]
) -> Target:
    """Neighbouring partitions of each topic to each member. Topics with equally many partitions and
    the same members are divided alike, so their partitions of one number have one member."""
    found: dict[str, list[str]] = {member: [] for member in sorted(subscriptions)}
    for topic, members in _members_of(subscriptions, partitions):
        each, more = divmod(len(partitions[topic]), len(members))
        start = 0
        for index, member in enumerate(members):
            stop = start + each + (index < more)
            found[member] += partitions[topic][start:stop]
            start = stop
    return {member: tuple(owned) for member, owned in found.items()}


def round_robin_assignor(
    subscriptions: Subscriptions, partitions: PartitionNames, _previous: Mapping[str, Iterable[str]]
) -> Target:
    """The partitions of all topics in turn to the members that subscribed to them."""
    found: dict[str, list[str]] = {member: [] for member in sorted(subscriptions)}
    order, turn = list(found), 0
    for topic, members in _members_of(subscriptions, partitions):
        subscribed = set(members)
        for partition in partitions[topic]:
            while order[turn % len(order)] not in subscribed:
                turn += 1
            found[order[turn % len(order)]].append(partition)
            turn += 1
    return {member: tuple(owned) for member, owned in found.items()}


def sticky_assignor(
    subscriptions: Subscriptions, partitions: PartitionNames, previous: Mapping[str, Iterable[str]]
) -> Target:
    """A balanced target that moves as few partitions as possible from `previous`. Members with the
    same subscriptions differ by one partition at most."""
    members_of = dict(_members_of(subscriptions, partitions))
    topic_of = {each: topic for topic in members_of for each in partitions[topic]}
    loads = {member: _Load({}) for member in sorted(subscriptions)}
    taken: set[str] = set()
    for member, load in loads.items():
        topics = set(subscriptions[member])
        for partition in previous.get(member, ()):
            topic = topic_of.get(partition)
            if topic is not None and topic in topics and partition not in taken:
                load.add(topic, partition)
                taken.add(partition)
    pools = _pools(members_of, loads)
    for partition, topic in topic_of.items():
        if partition not in taken:
            loads[pools[topic].least()].add(topic, partition)
    distinct = list(dict.fromkeys(pools.values()))
    while distinct and (pool := max(distinct, key=_Pool.difference)).difference() > 1:
        pool.move()
    rank = {partition: index for index, partition in enumerate(topic_of)}
    return {
        member: tuple(sorted(chain(*load.by_topic.values()), key=rank.__getitem__))
        for member, load in loads.items()
    }


@dataclass(slots=True, eq=False)
class _Load:
    """The partitions of one member by topic, none of them empty. `changed` is called with each
    change."""

    by_topic: dict[str, list[str]]
    size: int = 0
    changed: list[Callable[[], None]] = field(default_factory=list)

    def add(self, topic: str, partition: str) -> None:
        self.by_topic.setdefault(topic, []).append(partition)
        self._resize(1)

    def remove(self, topic: str) -> str:
        """A partition of a topic of which the member has some."""
        partition = self.by_topic[topic].pop()
        if not self.by_topic[topic]:
            del self.by_topic[topic]
        self._resize(-1)
        return partition

    def _resize(self, change: int) -> None:
        self.size += change
        for tell in self.changed:
            tell()


class _Pool:
    """Topics that have the same members. The members with the fewest and with the most partitions
    are found by heaps, to which each change adds an entry; entries of earlier sizes are dropped
    when they come to the top."""

    def __init__(self, members: Sequence[str], loads: Mapping[str, _Load]) -> None:
        self.topics: set[str] = set()
        self._loads = loads
        self._by_least = [(loads[member].size, member) for member in members]
        self._by_most = [(-loads[member].size, member) for member in members]
        heapify(self._by_least)
        heapify(self._by_most)
        for member in members:
            loads[member].changed.append(partial(self._note, member))

    def _note(self, member: str) -> None:
        size = self._loads[member].size
        heappush(self._by_least, (size, member))
        heappush(self._by_most, (-size, member))

    def least(self) -> str:
        """The member with the fewest partitions, the first by name among several."""
        while self._loads[self._by_least[0][1]].size != self._by_least[0][0]:
            heappop(self._by_least)
        return self._by_least[0][1]

    def _most(self) -> str | None:
        """The member with the most partitions, among those that have one of these topics."""
        while self._by_most:
            size, member = self._by_most[0]
            load = self._loads[member]
            if load.size == -size and not self.topics.isdisjoint(load.by_topic):
                return member
            heappop(self._by_most)  # it is noted again when it gets a partition
        return None

    def difference(self) -> int:
        """How many more partitions the one has than the other."""
        most = self._most()
        return 0 if most is None else self._loads[most].size - self._loads[self.least()].size

    def move(self) -> None:
        """Move a partition from the one to the other. While they differ by 2 or more, each move
        makes the sum of the squares of all sizes smaller, so moves come to an end."""
        most = self._most()
        assert most is not None, "there is a difference"
        load = self._loads[most]
        # Of each topic some, so that all members get their share of the retries, too.
        topics = self.topics.intersection(load.by_topic)
        topic = max(sorted(topics), key=lambda each: len(load.by_topic[each]))
        self._loads[self.least()].add(topic, load.remove(topic))


def _pools(members_of: Mapping[str, Sequence[str]], loads: Mapping[str, _Load]) -> dict[str, _Pool]:
    """The pool of each topic."""
    found: dict[tuple[str, ...], _Pool] = {}
    pools = {}
    for topic, members in members_of.items():
        key = tuple(members)
        pool = found.get(key) or found.setdefault(key, _Pool(members, loads))
        pool.topics.add(topic)
        pools[topic] = pool
    return pools


Assignor = Callable[[Subscriptions, PartitionNames, Mapping[str, Iterable[str]]], Target]
ASSIGNORS: Mapping[str, Assignor] = {
    "range": range_assignor,
    "round_robin": round_robin_assignor,
    "sticky": sticky_assignor,
}
DEFAULT_ASSIGNOR = "sticky"


def _members_of(
    subscriptions: Subscriptions, partitions: PartitionNames
) -> list[tuple[str, list[str]]]:
    """Each topic that has partitions with the members that subscribed to it, by name."""
    alike: dict[frozenset[str], list[str]] = {}
    for member, topics in subscriptions.items():
        alike.setdefault(frozenset(topics), []).append(member)
    found: dict[str, list[str]] = {}
    for subscribed, members in alike.items():
        for topic in subscribed:
            found.setdefault(topic, []).extend(members)
    return [(topic, sorted(found[topic])) for topic in sorted(found) if partitions.get(topic)]
