"""The store that is open now, or why none is."""

import logging
from collections.abc import Callable
from typing import TypeVar

from messaging.storage.seam import Store, StoreError
from tuff.disk.group import InThread
from tuff.protocol.errors import StorageUnavailableError

log = logging.getLogger(__name__)
T = TypeVar("T")


class Engine:
    """Opens, closes and opens again. Lives on the event loop; the engine's calls run in threads."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        *,
        in_thread_write: InThread,
        in_thread_read: InThread,
    ) -> None:
        self._open_store = open_store
        self._in_thread_write = in_thread_write
        self._in_thread_read = in_thread_read
        self._store: Store | None = None
        self.reason = "the message store is not open yet"

    @property
    def is_up(self) -> bool:
        return self._store is not None

    def require_up(self) -> Store:
        """The open store. Raises: StorageUnavailableError."""
        if self._store is None:
            raise StorageUnavailableError(
                f"the message store can't be used now: {self.reason}; try again later"
            )
        return self._store

    async def open(self, read: Callable[[Store], T]) -> T:
        """Open the store, read something from it before anybody else can, and be up.

        Raises: StoreError, and what opening raises: then it is not up.
        """

        def open_and_read() -> tuple[Store, T]:
            store = self._open_store()
            try:
                return store, read(store)
            except BaseException:
                store.close()
                raise

        self._store, found = await self._in_thread_write(open_and_read)
        return found

    async def close(self, reason: str) -> None:
        """Be down from now on, for this reason; closes the store if one is open."""
        self.reason = reason
        store, self._store = self._store, None
        if store is not None:
            await self._in_thread_write(store.close)

    async def write(self, write: Callable[[Store], None]) -> None:
        """Run a write on the writing thread. Raises: StoreError, StorageUnavailableError."""
        store = self.require_up()
        await self._in_thread_write(lambda: write(store))

    async def read(self, read: Callable[[Store], T]) -> T:
        """Run a read on a reading thread.

        Raises:
            StorageUnavailableError: the store can't be read now.
        """
        store = self.require_up()
        try:
            return await self._in_thread_read(lambda: read(store))
        except StoreError as error:
            raise StorageUnavailableError(
                f"the message store can't be read: {error}; try again later"
            ) from error
