"""Assignors: who shall have which partitions (decision 0043, section 4)."""

from heapq import heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.groups import assignors
from messaging.groups.assignors import (
    ASSIGNORS,
    Assignor,
    range_assignor,
    round_robin_assignor,
    sticky_assignor,
)

TOPICS = ("a", "b", "c")
MEMBERS = ("m1", "m2", "m3", "m4", "m5")


def names(topic: str, count: int) -> tuple[str, ...]:
    return tuple(topic if number == 0 else f"{topic}:{number}" for number in range(count))


counts = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS})
same_topics = st.sets(st.sampled_from(MEMBERS), min_size=1).map(
    lambda members: dict.fromkeys(members, TOPICS)
)
mixed_topics = st.dictionaries(
    st.sampled_from(MEMBERS), st.sets(st.sampled_from(TOPICS)).map(tuple), min_size=1
)
previous = st.dictionaries(
    st.sampled_from(MEMBERS), st.sets(st.sampled_from(names("a", 12) + names("b", 12))).map(sorted)
)


def test_range_gives_neighbours_and_the_first_members_one_more() -> None:
    found = range_assignor({"m1": ["a"], "m2": ["a"]}, {"a": names("a", 5)}, {})

    assert found == {"m1": ("a", "a:1", "a:2"), "m2": ("a:3", "a:4")}


def test_range_gives_partitions_of_one_number_to_one_member() -> None:
    partitions = {"a": names("a", 3), "b": names("b", 3)}

    found = range_assignor(dict.fromkeys(("m1", "m2", "m3"), ("a", "b")), partitions, {})

    assert found == {"m1": ("a", "b"), "m2": ("a:1", "b:1"), "m3": ("a:2", "b:2")}


def test_round_robin_takes_turns_over_all_topics() -> None:
    partitions = {"a": names("a", 3), "b": names("b", 3)}

    found = round_robin_assignor(dict.fromkeys(("m1", "m2"), ("a", "b")), partitions, {})

    assert found == {"m1": ("a", "a:2", "b:1"), "m2": ("a:1", "b", "b:2")}


def test_sticky_moves_nothing_but_what_a_new_member_needs() -> None:
    before = {"m1": names("a", 2), "m2": ("a:2", "a:3")}
    partitions = {"a": names("a", 4)}

    found = sticky_assignor(dict.fromkeys(("m1", "m2", "m3"), ("a",)), partitions, before)

    assert sorted(map(len, found.values())) == [1, 1, 2]
    assert len(found["m3"]) == 1
    assert set(found["m1"]) <= set(before["m1"])
    assert set(found["m2"]) <= set(before["m2"])


@pytest.mark.parametrize("assignor", ASSIGNORS.values())
@given(subscriptions=mixed_topics, sizes=counts, before=previous)
def test_every_partition_of_a_subscribed_topic_has_exactly_one_member(
    assignor: Assignor,
    subscriptions: dict[str, tuple[str, ...]],
    sizes: dict[str, int],
    before: dict[str, list[str]],
) -> None:
    partitions = {topic: names(topic, count) for topic, count in sizes.items()}

    found = assignor(subscriptions, partitions, before)

    assert found.keys() == subscriptions.keys()
    given_out = sorted(each for owned in found.values() for each in owned)
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert given_out == sorted(each for topic in wanted for each in partitions[topic])
    for member, owned in found.items():
        assert {each.partition(":")[0] for each in owned} <= set(subscriptions[member])


@given(subscriptions=same_topics, sizes=counts, before=previous)
def test_members_with_the_same_subscriptions_differ_by_one_at_most(
    subscriptions: dict[str, tuple[str, ...]],
    sizes: dict[str, int],
    before: dict[str, list[str]],
) -> None:
    partitions = {topic: names(topic, count) for topic, count in sizes.items()}
    found = sticky_assignor(subscriptions, partitions, before)
    in_turns = round_robin_assignor(subscriptions, partitions, before)

    for each in (found, in_turns):
        sizes_of_members = [len(owned) for owned in each.values()]
        assert max(sizes_of_members) - min(sizes_of_members) <= 1


@given(subscriptions=same_topics, sizes=counts, before=previous)
def test_sticky_moves_as_few_partitions_as_a_balanced_target_needs(
    subscriptions: dict[str, tuple[str, ...]],
    sizes: dict[str, int],
    before: dict[str, list[str]],
) -> None:
    partitions = {topic: names(topic, count) for topic, count in sizes.items()}
    everything = {each for topic in TOPICS for each in partitions[topic]}
    held: dict[str, set[str]] = {}
    for member in sorted(subscriptions):  # the first one of two that claim a partition has it
        others = {each for owned in held.values() for each in owned}
        held[member] = (set(before.get(member, ())) & everything) - others

    found = sticky_assignor(subscriptions, partitions, before)

    least, more = divmod(len(everything), len(subscriptions))
    most_first = sorted(map(len, held.values()), reverse=True)
    quotas = [least + (index < more) for index in range(len(most_first))]
    needed = sum(max(0, has - quota) for has, quota in zip(most_first, quotas, strict=True))
    assert sum(len(owned - set(found[member])) for member, owned in held.items()) == needed


@pytest.mark.parametrize("assignor", ASSIGNORS.values())
@given(subscriptions=mixed_topics, sizes=counts, before=previous)
def test_the_order_of_members_does_not_matter(
    assignor: Assignor,
    subscriptions: dict[str, tuple[str, ...]],
    sizes: dict[str, int],
    before: dict[str, list[str]],
) -> None:
    partitions = {topic: names(topic, count) for topic, count in sizes.items()}
    turned = dict(reversed(subscriptions.items()))

    assert assignor(subscriptions, partitions, before) == assignor(turned, partitions, before)


def test_many_members_join_at_once_without_a_look_at_all_of_them_for_each_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """990 members that joined ten others took minutes of the event loop."""
    pushes = 0

    def push(heap: list[tuple[int, str]], item: tuple[int, str]) -> None:
        nonlocal pushes
        pushes += 1
        heappush(heap, item)

    monkeypatch.setattr(assignors, "heappush", push)
    partitions = {f"t{number}": names(f"t{number}", 10) for number in range(20)}
    members = [f"m{number:03}" for number in range(200)]
    everything = [each for some in partitions.values() for each in some]

    found = sticky_assignor(
        dict.fromkeys(members, tuple(partitions)), partitions, {"m000": everything}
    )

    assert {len(each) for each in found.values()} == {1}
    assert pushes <= 4 * len(everything)
