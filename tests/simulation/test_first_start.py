"""A first start that is cut off at any instant, and what an installation knows of its messages.

The message store has its id before the first transaction file is made. So a transaction file beside
an empty message store always means that messages are lost, and never a first start that was cut off
(decision 0037).
"""

import random
from collections.abc import Iterator
from itertools import count

import pytest

from process.settings import load
from tests.simulation.disk import Disk, PowerCut
from tests.simulation.loop import Clock
from tests.simulation.server import MESSAGES, SNAPSHOTS, SimulatedServer, simulated
from tuff.protocol.ids import TopicId
from tx.durable_state import ServiceState

START_MS = 1_480_000_000_000
TOPIC = TopicId("default", "a")
WITHOUT_TRANSACTIONS = "tx.enabled=false"
SETTINGS = ((), (WITHOUT_TRANSACTIONS,))


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with simulated():
        yield


def new_disk() -> Disk:
    return Disk(("/data", MESSAGES, SNAPSHOTS))


def opened(disk: Disk, settings: tuple[str, ...], chance: random.Random) -> SimulatedServer:
    """Raises: PowerCut."""
    server = SimulatedServer(disk, Clock(START_MS), load(None, settings), before_job=lambda: None)
    server.complete(server.components.open(), chance)
    return server


def stopped(server: SimulatedServer, chance: random.Random) -> None:
    server.complete(server.components.close(), chance)
    server.vanish()


def require_up(server: SimulatedServer, settings: tuple[str, ...]) -> None:
    assert server.messaging.status == ("ok", None)
    metadata = server.messaging.recorded_metadata()
    assert metadata is not None
    assert metadata.store_id is not None
    if WITHOUT_TRANSACTIONS not in settings:
        status = server.transactions.status
        assert status.state is ServiceState.RUNNING, status.reason
        assert server.transactions.durable.store_id == metadata.store_id


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("loses_power", [True, False])
def test_an_interrupted_first_start_is_repeated(
    settings: tuple[str, ...], *, loses_power: bool
) -> None:
    chance = random.Random(1)
    for call in count(1):
        disk = new_disk()
        disk.cut_in = call
        try:
            opened(disk, settings, chance).vanish()
        except PowerCut:
            pass
        else:
            assert call > 10
            return
        if loses_power:
            disk.cut(chance)
        else:
            disk.cut_in, disk.is_cut = None, False

        again = opened(disk, settings, chance)

        require_up(again, settings)
        again.complete(again.messaging.topics.create(TOPIC, {}), chance)
        again.vanish()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_lost_message_store_is_never_replaced_by_an_empty_one(
    settings: tuple[str, ...], *, is_clean: bool
) -> None:
    chance, disk = random.Random(1), new_disk()
    server = opened(disk, settings, chance)
    if is_clean:
        stopped(server, chance)
    else:
        server.vanish()
    for name in disk.listing(MESSAGES):
        disk.unlink((MESSAGES, name))

    again = opened(disk, settings, chance)

    state, reason = again.messaging.status
    assert state == "down"
    assert f"the transaction files in {SNAPSHOTS} belong to one" in str(reason)
    accept = "server.accept_lost_messages=" + str(reason).rpartition("=")[2]
    assert again.transactions.status.state is ServiceState.DOWN
    again.advance(1_000)
    again.tick()
    again.settle(chance)
    assert again.messaging.status[0] == "down"
    again.vanish()
    accepted = opened(disk, (*settings, accept), chance)
    require_up(accepted, settings)
    accepted.vanish()
    last = opened(disk, settings, chance)
    require_up(last, settings)
    last.vanish()
