"""Sends the heartbeats of a consumer in a task of its own."""

import asyncio
from collections.abc import Callable

from tuff.aio.driver import AsyncDriver
from tuff.flows import Flow


class AsyncHeartbeats:
    """Runs one flow beside the program. Belongs to one event loop."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._task: asyncio.Task[None] | None = None

    async def begin(self, flow: Callable[[], Flow[None]]) -> None:
        """Run the flow; nothing happens if it was begun before."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._driver.run(flow()))

    async def join(self) -> None:
        """Wait until the flow has ended."""
        if self._task is not None:
            await self._task
