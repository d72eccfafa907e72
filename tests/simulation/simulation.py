"""Runs one history on a simulated server, and says what it found."""

import hashlib
import random
import re
import traceback
from dataclasses import dataclass

from tests.simulation.disk import PowerCut
from tests.simulation.invariants import BrokenPromiseError
from tests.simulation.limits import limited
from tests.simulation.loop import below
from tests.simulation.operations import STEP_COUNTS, History, Operation
from tests.simulation.runner import Player
from tests.simulation.scenarios import SCENES
from tests.simulation.server import simulated
from tests.simulation.world import World

LAST_WAIT_MS = 90_000_000  # longer than any transaction of any history may live


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a history. `failure` is the first thing that was wrong, with its trace; `digest`
    is the same exactly if everything went the same way."""

    failure: str | None
    trace: str
    digest: str

    @property
    def kind(self) -> str | None:
        """What went wrong, less the numbers that differ from history to history."""
        return None if self.failure is None else re.sub(r"[0-9]+|b'.*?'|\(.*?\)", "#", self.failure)


def run(history: History) -> Result:
    """Play a history from its beginning, until its end or the first broken promise."""
    with simulated(), limited(small=history.small):
        simulation = _Simulation(history)
        failure = simulation.run()
    digest = hashlib.sha256("\n".join(simulation.world.trace).encode()).hexdigest()
    return Result(failure, simulation.error, digest)


class _Simulation:
    def __init__(self, history: History) -> None:
        self._history = history
        self.world = World(history.settings)
        self._chance = random.Random()
        self.error = ""

    def run(self) -> str | None:
        try:
            self.world.begin(random.Random(0))
            for operation in self._history.operations:
                self._play(operation)
            self._end(random.Random(1))
        except (Exception, PowerCut) as error:  # noqa: BLE001 - any is a finding
            self.error = "".join(traceback.format_exception(error))
            return f"{type(error).__name__}: {error}"
        finally:
            self.world.life.vanish()
        return None

    def _play(self, operation: Operation) -> None:
        world, chance = self.world, self._chance
        chance.seed(operation.salt)
        player = Player(world, operation, chance)
        SCENES.get(operation.kind, Player.play)(player)
        if self._history.calm:
            world.run(chance, None)
        else:
            world.run(chance, STEP_COUNTS[below(len(STEP_COUNTS), chance)])
        state = world.facts
        world.trace.append(
            f"{operation.kind} {state.moment()} {state.highest_pointer} {state.life} "
            f"{world.clock.boot_ms()} {len(world.tasks)}"
        )

    def _end(self, chance: random.Random) -> None:
        """When everything has come to rest, and all time is over, nothing is open or held; and a
        later server knows all of it."""
        world = self.world
        world.read_everything(chance)
        world.disk.cut_in = None
        world.clock.thaw()
        world.life.messaging.polls.stop_waiting()
        world.run(chance, None)
        world.require_answers()
        world.advance(LAST_WAIT_MS)
        world.read_everything(chance)
        world.crash(chance, cuts_power=False)
        world.ask_everything(chance)
        for tx in world.facts.transactions.values():
            if not tx.is_over:
                raise BrokenPromiseError(f"promise 9: {tx.id} is still {tx.state} after its time")
        for topic in world.facts.topics.values():
            for read in topic.reads[-2:]:
                world.trace.append(f"{read.kind} {read.items} {read.next_id.hex()}")
