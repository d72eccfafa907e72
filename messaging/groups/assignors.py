"""Assignors: which member of a group shall have which partitions. Pure and deterministic.

Each returns a target for every member, in which every partition of a subscribed topic has exactly
one member. The names are those of Kafka's assignors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

# Topics of each member, in any order; members by id.
Subscriptions = Mapping[str, Sequence[str]]
# Partitions of each topic, in the order of their numbers.
Partitions = Mapping[str, Sequence[str]]
Target = dict[str, tuple[str, ...]]


def range_assignor(
    subscriptions: Subscriptions, partitions: Partitions, _previous: Mapping[str, Iterable[str]]
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
    subscriptions: Subscriptions, partitions: Partitions, _previous: Mapping[str, Iterable[str]]
) -> Target:
    """The partitions of all topics in turn to the members that subscribed to them."""
    found: dict[str, list[str]] = {member: [] for member in sorted(subscriptions)}
    order, turn = list(found), 0
    for topic, members in _members_of(subscriptions, partitions):
        for partition in partitions[topic]:
            while order[turn % len(order)] not in members:
                turn += 1
            found[order[turn % len(order)]].append(partition)
            turn += 1
    return {member: tuple(owned) for member, owned in found.items()}


def sticky_assignor(
    subscriptions: Subscriptions, partitions: Partitions, previous: Mapping[str, Iterable[str]]
) -> Target:
    """A balanced target that moves as few partitions as possible from `previous`. Members with the
    same subscriptions differ by one partition at most."""
    members_of = dict(_members_of(subscriptions, partitions))
    topic_of = {each: topic for topic in members_of for each in partitions[topic]}
    # The partitions of each member by topic.
    found: dict[str, dict[str, list[str]]] = {member: {} for member in sorted(subscriptions)}
    sizes = dict.fromkeys(found, 0)

    def give(partition: str, member: str) -> None:
        found[member].setdefault(topic_of[partition], []).append(partition)
        sizes[member] += 1

    taken: set[str] = set()
    for member in found:
        for partition in previous.get(member, ()):
            members = members_of.get(topic_of.get(partition, ""), ())
            if member in members and partition not in taken:
                give(partition, member)
                taken.add(partition)
    for partition, topic in topic_of.items():
        if partition not in taken:
            give(partition, _least(members_of[topic], sizes))
    while move := _next_move(members_of, found, sizes):
        topic, member, other = move
        give(found[member][topic].pop(), other)
        sizes[member] -= 1
    rank = {partition: index for index, partition in enumerate(topic_of)}
    return {
        member: tuple(sorted(chain(*owned.values()), key=rank.__getitem__))
        for member, owned in found.items()
    }


Assignor = Callable[[Subscriptions, Partitions, Mapping[str, Iterable[str]]], Target]
ASSIGNORS: Mapping[str, Assignor] = {
    "range": range_assignor,
    "round_robin": round_robin_assignor,
    "sticky": sticky_assignor,
}
DEFAULT_ASSIGNOR = "sticky"


def _members_of(
    subscriptions: Subscriptions, partitions: Partitions
) -> list[tuple[str, list[str]]]:
    """Each topic that has partitions with the members that subscribed to it, by name."""
    found: dict[str, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in set(subscriptions[member]):
            found.setdefault(topic, []).append(member)
    return [(topic, found[topic]) for topic in sorted(found) if partitions.get(topic)]


def _least(members: Iterable[str], sizes: Mapping[str, int]) -> str:
    return min(members, key=lambda member: (sizes[member], member))


def _next_move(
    members_of: Mapping[str, Sequence[str]],
    found: Mapping[str, Mapping[str, Sequence[str]]],
    sizes: Mapping[str, int],
) -> tuple[str, str, str] | None:
    """A topic, a member that has a partition of it, and a member with at least two fewer partitions
    that shall get one; None if there is none. Each move makes the sum of the squares smaller, so
    they end."""
    best, best_difference = None, 1
    for topic, members in members_of.items():
        owners = [member for member in members if found[member].get(topic)]
        most, least = max(owners, key=sizes.__getitem__), _least(members, sizes)
        if sizes[most] - sizes[least] > best_difference:
            best, best_difference = (topic, most, least), sizes[most] - sizes[least]
    return best
