"""Placement and rebalancing. A simulation of a whole cluster shows that rebalancing converges."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.member_records import ServerInfo
from metadata.placement import least_loaded, preferred, topics_to_release

SERVER = ServerInfo(
    server_id="s1",
    address="http://127.0.0.1:7411",
    incarnation=1,
    started_ms=0,
    topics=0,
    is_draining=False,
    reaches_hbase=False,
    reaches_directory=False,
)
LOADS = st.lists(st.integers(0, 300), min_size=1, max_size=12)


def cluster(loads: dict[str, int], draining: str = "") -> dict[str, ServerInfo]:
    return {
        name: replace(SERVER, server_id=name, topics=topics, is_draining=name in draining.split())
        for name, topics in loads.items()
    }


def test_the_server_with_the_fewest_topics_is_the_least_loaded() -> None:
    members = cluster({"a": 3, "b": 1, "c": 2})

    assert least_loaded(members, lambda count: 0) == "b"


def test_each_of_several_least_loaded_servers_has_the_same_chance() -> None:
    members = cluster({"c": 1, "a": 1, "d": 2, "b": 1})
    counts = []

    def chance(count: int) -> int:
        counts.append(count)
        return len(counts) - 1

    assert [least_loaded(members, chance) for _ in range(3)] == ["a", "b", "c"]
    assert counts == [3, 3, 3]


def test_a_draining_server_gets_no_topic() -> None:
    assert least_loaded(cluster({"a": 0, "b": 9}, draining="a"), lambda count: 0) == "b"


def test_a_server_that_does_not_reach_hbase_gets_no_topic_while_another_one_does() -> None:
    members = cluster({"a": 0, "b": 9})
    assert least_loaded(members, lambda count: 0) == "a"
    members["b"] = replace(members["b"], reaches_hbase=True)
    assert least_loaded(members, lambda count: 0) == "b"
    # Not so for topics without an owner: nothing looks for these when a server reaches HBase again.
    assert {preferred(f"t{number}", members) for number in range(20)} == {"a", "b"}


def test_without_a_server_that_takes_topics_there_is_no_least_loaded_one() -> None:
    assert least_loaded({}, lambda count: 0) is None
    assert least_loaded(cluster({"a": 0}, draining="a"), lambda count: 0) is None


@pytest.mark.parametrize(
    ("mine", "loads", "tolerance_percent", "shed_max", "released"),
    [
        (10, [10, 10, 10], 10, 50, 0),
        (11, [11, 10, 9], 10, 50, 0),  # permitted: 11
        (12, [12, 10, 8], 10, 50, 2),  # down to the mean
        (13, [13, 10, 8], 10, 50, 2),  # the mean is 10.3, so down to 11
        (100, [100, 0], 10, 20, 20),  # no more than 20 at a time
        (100, [100, 0], 10, 50, 50),
        (1, [1, 0, 0], 10, 50, 0),  # the only topic stays
        (2, [2, 0, 0], 10, 50, 1),
        (7, [7], 0, 50, 0),
        (100, [100, 0], 10, 0, 0),
    ],
)
def test_a_server_with_more_than_its_share_releases_topics(
    mine: int, loads: list[int], tolerance_percent: int, shed_max: int, released: int
) -> None:
    assert (
        topics_to_release(mine, loads, tolerance_percent=tolerance_percent, shed_max=shed_max)
        == released
    )


@pytest.mark.parametrize(
    ("mine", "loads", "tolerance_percent", "shed_max"),
    [(0, [], 10, 50), (-1, [1], 10, 50), (1, [-1], 10, 50), (1, [1], -1, 50), (1, [1], 10, -1)],
)
def test_loads_that_no_cluster_has_are_refused(
    mine: int, loads: list[int], tolerance_percent: int, shed_max: int
) -> None:
    with pytest.raises(ValueError, match="no topics can be released"):
        topics_to_release(mine, loads, tolerance_percent=tolerance_percent, shed_max=shed_max)


@given(LOADS, st.integers(0, 100), st.integers(1, 60), st.randoms(use_true_random=False))
def test_rebalancing_ends_and_moves_no_topic_twice(
    loads: list[int], tolerance_percent: int, shed_max: int, random: Random
) -> None:
    simulated = Cluster(loads, tolerance_percent, shed_max, random)
    round_count_max = -(-max(loads) // shed_max)

    round_count = 0
    while simulated.rebalance():
        round_count += 1
        assert round_count <= round_count_max

    mean_up = -(-sum(loads) // len(loads))
    permitted = -(-sum(loads) * (100 + tolerance_percent) // (100 * len(loads)))
    assert sum(simulated.loads) == sum(loads)
    assert max(simulated.loads) <= max(1, permitted)
    assert all(simulated.loads[each] <= max(1, mean_up) for each in simulated.receivers)


class Cluster:
    """Servers that all decide at the same time, by the same loads. Each topic that they release
    goes to the least loaded server of that moment."""

    def __init__(
        self, loads: list[int], tolerance_percent: int, shed_max: int, random: Random
    ) -> None:
        self.loads = list(loads)
        self.receivers: set[int] = set()
        self._tolerance_percent = tolerance_percent
        self._shed_max = shed_max
        self._random = random

    def rebalance(self) -> bool:
        """One round. Returns whether a server released anything."""
        released = [
            topics_to_release(
                mine,
                self.loads,
                tolerance_percent=self._tolerance_percent,
                shed_max=self._shed_max,
            )
            for mine in self.loads
        ]
        assert not any(released[each] for each in self.receivers), "a topic moved on"
        self.loads = [load - count for load, count in zip(self.loads, released, strict=True)]
        for _ in range(sum(released)):
            members = cluster({str(index): load for index, load in enumerate(self.loads)})
            chosen = least_loaded(members, self._random.randrange)
            assert chosen is not None
            self.loads[int(chosen)] += 1
            self.receivers.add(int(chosen))
        return any(released)
