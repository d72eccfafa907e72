"""Runs one history on a simulated cluster."""

import hashlib
import random
import traceback

from tests.simulation.cluster.histories import STEP_COUNTS
from tests.simulation.cluster.runner import OperationRunner
from tests.simulation.cluster.world import World
from tests.simulation.files import mounted
from tests.simulation.limits import limited
from tests.simulation.loop import below
from tests.simulation.operations import History, Operation
from tests.simulation.simulation import Result


def run(history: History) -> Result:
    """Run a history until its end or the first broken promise."""
    return play(history)[0]


def play(history: History) -> tuple[Result, World]:
    """The same, with the world at its end."""
    chance = random.Random(0)
    world = World(history.settings, chance=chance)
    failure, trace = None, ""
    with mounted(), world.mounted(), limited(small=history.small):
        try:
            world.begin()
            for operation in history.operations:
                _play(world, operation, chance, is_calm=history.calm)
            chance.seed(1)
            world.end()
        except Exception as error:  # noqa: BLE001 - any is a finding
            trace = "".join(traceback.format_exception(error))
            failure = f"{type(error).__name__}: {error}"
        finally:
            for process in world.running:
                process.kill("the simulation ends")
    digest = hashlib.sha256("\n".join(world.trace).encode()).hexdigest()
    return Result(failure, trace, digest), world


def _play(world: World, operation: Operation, chance: random.Random, *, is_calm: bool) -> None:
    chance.seed(operation.salt)
    OperationRunner(world, operation, chance).play()
    world.run(2_000 if is_calm else STEP_COUNTS[below(len(STEP_COUNTS), chance)])
    world.trace.append(
        f"{operation.kind} {world.moment()} {world.now_ms()} {world.metadata.number} "
        f"{[each.server_id for each in world.open]}"
    )
