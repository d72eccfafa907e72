"""Runs one history on a simulated server."""

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
from tests.simulation.runner import OperationRunner
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.server import simulated
from tests.simulation.world import World

LAST_WAIT_MS = 90_000_000  # longer than any transaction of any history may live
CLAIM_WAIT_MS = 6_000  # longer than a commit waits for a prepared transaction


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a history. `failure` is the first error, `trace` its stack trace; two runs with
    the same `digest` went the same way."""

    failure: str | None
    trace: str
    digest: str

    @property
    def kind(self) -> str | None:
        """The failure without its numbers, which differ between histories."""
        return None if self.failure is None else re.sub(r"[0-9]+|b'.*?'|\(.*?\)", "#", self.failure)


def run(history: History) -> Result:
    """Run a history until its end or the first broken promise."""
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
            self.world.server.vanish()
        return None

    def _play(self, operation: Operation) -> None:
        world, chance = self.world, self._chance
        chance.seed(operation.salt)
        runner = OperationRunner(world, operation, chance)
        SCENARIOS.get(operation.kind, OperationRunner.play)(runner)
        if self._history.calm:
            world.run(chance, None)
        else:
            world.run(chance, STEP_COUNTS[below(len(STEP_COUNTS), chance)])
        seen = world.observed
        world.trace.append(
            f"{operation.kind} {seen.moment()} {seen.highest_pointer} {seen.start_count} "
            f"{world.clock.boot_ms()} {len(world.tasks)}"
        )

    def _end(self, chance: random.Random) -> None:
        """When the server is idle and all timeouts are over, no transaction is open, and a later
        server knows every outcome."""
        world = self.world
        world.read_everything(chance)
        world.disk.cut_in = None
        world.clock.thaw()
        world.server.messaging.polls.stop_waiting()
        world.run(chance, None)
        world.advance(CLAIM_WAIT_MS)
        world.run(chance, None)
        world.require_answers()
        world.advance(LAST_WAIT_MS)
        world.read_everything(chance)
        world.crash(chance, cuts_power=False)
        world.ask_everything(chance)
        world.resolve_everything(chance)
        for tx in world.observed.transactions.values():
            if not tx.is_over:
                raise BrokenPromiseError(f"promise 9: {tx.id} is still {tx.state} after its time")
        world.require_prepared_messages(chance)
        for topic in world.observed.topics.values():
            for read in topic.reads[-2:]:
                world.trace.append(f"{read.kind} {read.items} {read.next_id.hex()}")
