"""A short round of simulations of a cluster, and every history that once found something."""

import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.simulation.cluster.histories import history_of
from tests.simulation.cluster.simulation import play, run
from tests.simulation.cluster.world import World
from tests.simulation.files import mounted
from tests.simulation.limits import limited
from tests.simulation.operations import History

ROOT = Path(__file__).resolve().parents[3]
HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))
ROUND_COUNT = 60  # seeds; some three seconds
LONG_ROUND_COUNT = 2_000


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_kept_history_breaks_no_promise(path: Path) -> None:
    history = History.from_json(path.read_text("utf-8"))

    result = run(history)

    assert result.failure is None, result.trace


@pytest.mark.parametrize("first", range(0, ROUND_COUNT, 20))
def test_random_histories_break_no_promise(first: int) -> None:
    _play(range(first, first + 20))


@pytest.mark.slow
def test_many_random_histories_break_no_promise() -> None:
    _play(range(ROUND_COUNT, LONG_ROUND_COUNT))


def test_a_seed_always_gives_the_same_run() -> None:
    digests = [run(history_of(seed)).digest for seed in (3, 3, 4)]

    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_a_run_does_not_depend_on_hash_randomization() -> None:
    here = run(history_of(5)).digest

    program = [sys.executable, "-m", "tests.simulation", "--cluster", "--seed", "5"]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, check=True)

    assert f"digest {here}" in done.stdout.decode()


def test_histories_reach_what_is_dangerous() -> None:
    """Servers are fenced and replaced, topics move, transactions get new leaders; and most messages
    are acknowledged all the same."""
    worlds = [play(history_of(seed))[1] for seed in range(20)]

    topics = [topic for world in worlds for topic in world.topics]
    epochs = [len({ack.owner for ack in topic.acks}) for topic in topics]
    assert sum(sum(world.tables.fence_counts.values()) for world in worlds) >= 20
    assert sum(count > 1 for count in epochs) >= 20
    assert sum(world.metadata.leader_count() > 1 for world in worlds) >= 5
    assert sum(len(world.transactions.by_id) for world in worlds) >= 40


def test_a_fenced_server_ends_while_its_metadata_store_does_not_answer() -> None:
    """Calls to the metadata store hang, and the end does not wait for them."""
    world = World(history_of(3).settings, chance=random.Random(0))
    with mounted(), world.mounted(), limited(small=False):
        world.begin()
        process = world.open[0]
        process.threads.hang_named("metadata")
        world.pass_time(2_000)

        process.opener.was_replaced = True
        world.pass_time(2_000)
        world.settle()

        assert process.ended_for == "another server has fenced this one"
        for each in world.running:
            each.kill("the test ends")


def test_a_publish_whose_reply_was_lost_may_arrive_after_a_deletion() -> None:
    world = World(history_of(3).settings, chance=random.Random(0))
    with mounted(), world.mounted(), limited(small=False):
        world.begin()
        world.is_quiet = True
        topic = world.topics[-1]
        owner = next(each for each in world.open if topic.id in each.ownership.topics())
        other = next(each for each in world.open if each is not owner)
        world.late_calls["/v1/namespaces/default/topics/d/publish"] = 3_000
        world.request(other, world.clients.publish(other, topic))
        world.settle()
        world.request(owner, world.clients.delete(owner, topic))
        world.settle()
        world.require_done(partial(world.clients.create, topic=topic))
        world.pass_time(4_000)
        world.settle()

        world.require_done(partial(world.clients.read, topic=topic, start=b""))

        assert [each.id is None for each in topic.publishes.values()] == [False]
        for each in world.running:
            each.kill("the test ends")


def _play(seeds: range) -> None:
    for seed in seeds:
        result = run(history_of(seed))
        assert result.failure is None, f"seed {seed}: {result.trace}"
