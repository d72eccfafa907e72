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
from tests.simulation.server import MESSAGES, SNAPSHOTS, Life, simulated
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


def opened(disk: Disk, settings: tuple[str, ...], chance: random.Random) -> Life:
    """Raises: PowerCut."""
    life = Life(disk, Clock(START_MS), load(None, settings), before_job=lambda: None)
    life.complete(life.rooms.open(), chance)
    return life


def stopped(life: Life, chance: random.Random) -> None:
    life.complete(life.rooms.close(), chance)
    life.vanish()


def require_up(life: Life, settings: tuple[str, ...]) -> None:
    assert life.messaging.status == ("ok", None)
    facts = life.messaging.recorded_metadata()
    assert facts is not None
    assert facts.store_id is not None
    if WITHOUT_TRANSACTIONS not in settings:
        status = life.transactions.status
        assert status.state is ServiceState.RUNNING, status.reason
        assert life.transactions.durable.store_id == facts.store_id


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("loses_power", [True, False])
def test_a_first_start_that_was_cut_off_is_begun_again(
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
def test_messages_that_are_gone_are_never_begun_anew(
    settings: tuple[str, ...], *, is_clean: bool
) -> None:
    chance, disk = random.Random(1), new_disk()
    life = opened(disk, settings, chance)
    if is_clean:
        stopped(life, chance)
    else:
        life.vanish()
    for name in disk.listing(MESSAGES):
        disk.unlink((MESSAGES, name))

    again = opened(disk, settings, chance)

    state, reason = again.messaging.status
    assert state == "down"
    assert f"the transaction files in {SNAPSHOTS} belong to one" in str(reason)
    assert "server.accept_lost_messages=true" in str(reason)
    assert again.transactions.status.state is ServiceState.DOWN
    again.advance(1_000)
    again.tick()
    again.settle(chance)
    assert again.messaging.status[0] == "down"
    again.vanish()
    accepted = opened(disk, (*settings, "server.accept_lost_messages=true"), chance)
    require_up(accepted, settings)
    accepted.vanish()
    last = opened(disk, settings, chance)
    require_up(last, settings)
    last.vanish()
