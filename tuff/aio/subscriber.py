"""A subscriber as a program holds it; `tuff.subscriber` does the work."""

from tuff.aio.context import AsyncTransactionContext
from tuff.aio.driver import AsyncDriver
from tuff.subscriber import SubscriberFlows


class AsyncSubscriber:
    """`client.subscriber(…)`: takes every message of a topic through `process`, exactly once with
    respect to the participant that keeps its position. Belongs to one task, but for `stop`."""

    def __init__(
        self, flows: SubscriberFlows[AsyncTransactionContext], driver: AsyncDriver
    ) -> None:
        if not driver.runs_coroutines:
            flows.refuse_coroutines()
        self._flows = flows
        self._driver = driver

    async def run(self) -> None:
        """Work until `stop`; while the server is away it waits for it, and then goes on.

        Raises:
            OutcomeUnknownError: whether the last batch was committed can't be learned now. Start
                the program again, or run it again: it goes on with whatever is true then.
            TuffError: what no repeating helps with, as TopicNotFoundError. It can run again, once
                the reason is gone.
        """
        await self._driver.run(self._flows.run())

    async def step(self) -> int:
        """Do one batch; returns how many messages are done, and 0 if none came within `wait`.

        A message that keeps failing is one that is done when it is in the dead letters.

        Raises:
            TuffError: the server is away, or refuses; the same step can be tried again.

        After a `stop` one step returns 0, and the next one works again.
        """
        return await self._driver.run(self._flows.step())

    def stop(self) -> None:
        """Have `run` return after its batch, from any thread or a signal handler; at once where it
        waits for messages, or for a server that is away.

        It ends one run. Where none is under way, or the one that is raises, that is the next one,
        which returns at once and logs a warning; the run after it works again.
        """
        self._flows.stop()
