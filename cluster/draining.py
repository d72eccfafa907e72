"""The drain of this server: it gives its topics to the other servers before it is stopped."""

import asyncio
import logging

from cluster.topic_claims import TopicClaims
from kernel.event_loop import SharedTimeout, Spawn
from metadata.store_interface import MetadataError
from tuff.protocol.errors import UnavailableError
from tuff.protocol.sentences import counted

log = logging.getLogger(__name__)

ROUND_S = 0.5  # seconds between two rounds; a topic that could not be given away is tried again


class Drain:
    """Goes on until the server takes topics again: another server may not know of the drain yet,
    and give this one a topic. Lives on the event loop."""

    def __init__(self, ownership: TopicClaims, *, spawn: Spawn) -> None:
        self._ownership = ownership
        self._spawn = spawn
        self._is_running = False
        self._waiting: list[asyncio.Future[None]] = []

    async def begin(self, *, wait_s: float) -> int:
        """Start to drain, and wait until no topic is left, for `wait_s` at most; returns the number
        of topics that are left. Repeating it is harmless."""
        self._ownership.is_draining = True
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())
        if wait_s > 0:
            await self._emptied(wait_s)
        return self._ownership.topics_count

    async def end(self) -> int:
        """Take topics again; returns the number of topics. Raises: MetadataError: the other servers
        do not know of it yet."""
        self._end_waits()
        await self._ownership.undrain()
        return self._ownership.topics_count

    async def _run(self) -> None:
        try:
            while self._ownership.is_draining:
                await self._give_all()
                if not self._ownership.topics_count:
                    self._end_waits()
                await asyncio.sleep(ROUND_S)
        finally:
            self._is_running = False

    async def _give_all(self) -> None:
        try:
            await self._ownership.drain()
        except (UnavailableError, MetadataError) as error:
            left = counted(self._ownership.topics_count, "topic")
            log.warning("the drain continues, with %s left: %s", left, error)

    async def _emptied(self, wait_s: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        # `asyncio.timeout` would need a task.
        SharedTimeout(wait_s, too_late=TimeoutError).watch(waiter)
        try:
            await waiter
        except TimeoutError:
            return
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _end_waits(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()
