"""A short round of simulations of a cluster, and every history that once found something."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.simulation.cluster.histories import history_of
from tests.simulation.cluster.node import TRANSACTIONS, Process
from tests.simulation.cluster.simulation import play, run
from tests.simulation.cluster.world import World
from tests.simulation.files import mounted
from tests.simulation.limits import limited
from tests.simulation.operations import History
from tests.simulation.simulation import Result
from tx.durable_state import ServiceState

ROOT = Path(__file__).resolve().parents[3]
HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))
ROUND_COUNT = 20  # seeds; some six seconds
LONG_ROUND_COUNT = 2_000


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_kept_history_breaks_no_promise(path: Path) -> None:
    history = History.from_json(path.read_text("utf-8"))

    result = run(history)

    assert result.failure is None, result.trace


@pytest.fixture(scope="module")
def played() -> list[tuple[Result, World]]:
    """A round of random histories, by seed."""
    return [play(history_of(seed)) for seed in range(ROUND_COUNT)]


def test_random_histories_break_no_promise(played: list[tuple[Result, World]]) -> None:
    for seed, (result, _) in enumerate(played):
        assert result.failure is None, f"seed {seed}: {result.trace}"


@pytest.mark.slow
def test_many_random_histories_break_no_promise() -> None:
    for seed in range(ROUND_COUNT, LONG_ROUND_COUNT):
        result = run(history_of(seed))
        assert result.failure is None, f"seed {seed}: {result.trace}"


def test_a_seed_always_gives_the_same_run(played: list[tuple[Result, World]]) -> None:
    again = run(history_of(3)).digest

    assert again == played[3][0].digest
    assert again != played[4][0].digest


def test_a_run_does_not_depend_on_hash_randomization(played: list[tuple[Result, World]]) -> None:
    program = [sys.executable, "-m", "tests.simulation", "--cluster", "--seed", "5"]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, check=True)

    assert f"digest {played[5][0].digest}" in done.stdout.decode()


def test_histories_reach_what_is_dangerous(played: list[tuple[Result, World]]) -> None:
    """Servers are fenced and replaced, topics move, transactions get new leaders; and most messages
    are acknowledged all the same."""
    worlds = [world for _, world in played]

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
        world.late_calls["/v1/namespaces/default/topics/d/publish"] = [3_000]
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


LONG_MS = 60_000  # ms; servers that are replaceable have ended by then


@pytest.fixture
def world() -> Iterator[World]:
    """Two or three servers, and no faults but those of the test."""
    world = World(history_of(3).settings, chance=random.Random(0))
    with mounted(), world.mounted(), limited(small=False):
        world.begin()
        world.is_quiet = True
        world.pass_time(5_000)
        yield world
        for each in world.running:
            each.kill("the test ends")


def leader_of(world: World) -> Process:
    """The server that leads transactions."""
    clusters = ((each, each.components.cluster) for each in world.open)
    return next(each for each, found in clusters if found is not None and found.tenancy())


def test_a_server_that_alone_lost_the_tables_ends(world: World) -> None:
    cut_off, *others = world.open

    cut_off.cut_from.add("tables")
    world.pass_time(LONG_MS)

    assert "does not reach HBase" in str(cut_off.ended_for)
    assert all(each.is_alive for each in others)


def test_no_server_ends_during_and_after_an_outage_of_the_tables(world: World) -> None:
    servers = world.open

    for each in servers:
        each.cut_from.add("tables")
    world.pass_time(LONG_MS)
    for each in servers:  # one after the other
        each.cut_from.clear()
        world.pass_time(3_000)
    world.pass_time(LONG_MS)

    assert [each.ended_for for each in servers] == [None] * len(servers)


def test_a_leader_whose_directory_hangs_ends_and_another_server_leads(world: World) -> None:
    leader = leader_of(world)
    others = [each for each in world.open if each is not leader]
    standby, able = others[0], others[-1]
    if standby is not able:
        standby.threads.hang_named("directory-check")
        world.pass_time(10_000)

    leader.threads.hang_named("directory-check")
    world.pass_time(LONG_MS)

    assert "does not reach the shared directory" in str(leader.ended_for)
    assert all(each.is_alive for each in others)
    assert leader_of(world) is able


def test_a_standby_starts_while_its_directory_hangs(world: World) -> None:
    slot = next(each for each in world.slots if each.process is not leader_of(world))
    assert slot.process is not None
    slot.process.kill()
    world.pass_time(20_000)

    world.start(slot)
    slot.process.threads.hang_named("directory-check", "transaction-files")
    world.pass_time(10_000)

    assert slot.process.is_open
    assert slot.process.is_alive


def files_of(world: World) -> dict[str, bytes]:
    """The content of the shared directory."""
    names = world.disk.listing(TRANSACTIONS)
    found = {name: world.disk.find((TRANSACTIONS, name)) for name in names}
    return {name: bytes(inode.data) for name, inode in found.items() if inode is not None}


def replace_files(world: World, files: dict[str, bytes]) -> None:
    for name in world.disk.listing(TRANSACTIONS):
        world.disk.unlink((TRANSACTIONS, name))
    for name, content in files.items():
        inode = world.disk.begin((TRANSACTIONS, name))
        world.disk.append(TRANSACTIONS, inode, content)
        world.disk.sync(TRANSACTIONS, inode)
    world.disk.sync_names(TRANSACTIONS)


def start_again(world: World) -> Process:
    """Kill all servers, and start them; the new leader."""
    for each in world.running:
        each.kill("the test")
    world.pass_time(20_000)
    for slot in world.slots:
        world.start(slot)
    world.pass_time(LONG_MS)
    return leader_of(world)


def test_an_older_copy_of_the_directory_opens_no_transactions(world: World) -> None:
    """It was used without an error, and commits since the copy were lost."""
    copy = files_of(world)
    for _ in range(3):
        world.require_done(world.clients.start)
        world.pass_time(3_000)
    newest = files_of(world)

    for each in world.running:
        each.kill("the test")
    replace_files(world, copy)
    status = start_again(world).components.transactions.status

    assert status.state is ServiceState.DOWN
    assert "the transaction files are older" in status.reason

    replace_files(world, newest)
    assert start_again(world).components.transactions.status.state is ServiceState.RUNNING
