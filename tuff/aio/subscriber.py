"""The subscriber; `tuff.exactly_once_subscriber` has its flows."""

from functools import partial
from typing import Any, TypeVar

from tuff.aio.driver import AsyncDriver, AsyncHeartbeats
from tuff.exactly_once_subscriber import SubscriberFlows
from tuff.flows_and_repeated_calls import Flow
from tuff.stop_signals import Stop

T = TypeVar("T")


class AsyncSubscriber:
    """`client.subscriber(…)`: passes every message of a topic to `process`, exactly once with
    respect to the participant that keeps its position. Belongs to one task, except `stop`."""

    def __init__(self, flows: SubscriberFlows[Any], driver: AsyncDriver) -> None:
        if not driver.runs_coroutines:
            flows.refuse_coroutines()
        self._flows = flows
        self._driver = driver

    async def run(self) -> None:
        """Process batches until `stop`; waits while the server can't be reached.

        Raises:
            OutcomeUnknownError: whether the last batch was committed can't be learned now. Call
                `run` again, or restart the program: it loads the position and continues there.
            TuffError: an error that a retry does not cure, such as TopicNotFoundError. Call `run`
                again when its cause is gone.
        """
        await self._renewing(self._flows.run())

    async def step(self) -> int:
        """Process one batch; returns how many messages are done, and 0 if none came within `wait`.

        A message that keeps failing is done when it is in the dead letters. After a `stop` one step
        returns 0, and the next one works again.

        Raises:
            TuffError: the server can't be reached, or refuses; the same step can be tried again.
        """
        return await self._renewing(self._flows.step())

    async def _renewing(self, work: Flow[T]) -> T:
        """Work, and renew the lease of each transaction beside it."""
        renewals, is_done = AsyncHeartbeats(self._driver, what="subscriber"), Stop()
        await renewals.begin(partial(self._flows.renewals, is_done))
        try:
            return await self._driver.run(work)
        finally:
            is_done.set()
            await renewals.join()

    def stop(self) -> None:
        """Let `run` return after its batch, and at once while it waits. Any thread or signal
        handler may call it.

        It ends one run. If none is in progress, or the current one raises, it ends the next run,
        which returns at once and logs a warning; the run after that works again.
        """
        self._flows.stop()
