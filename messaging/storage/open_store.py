"""The open store, or the reason why none is open."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from messaging.storage.engine import Interruptible, Rows, Store, StoreError
from messaging.storage.packed_rows import scan_reporting_corruption
from tuff.disk.event_loop import InThread
from tuff.protocol.errors import StorageUnavailableError

log = logging.getLogger(__name__)
T = TypeVar("T")


class RowView:
    """The rows of one moment, read piece by piece for as long as it takes. Lives on the event loop.

    An engine waits for its readers before it closes. One that reads slowly must not keep it, and
    with it all writes, waiting; so the engine closes its views first.
    """

    def __init__(self, rows: Rows, *, in_thread: InThread) -> None:
        self._rows = rows
        self._in_thread = in_thread
        self._closed_for: str | None = None

    async def read(self, take: Callable[[Rows], T]) -> T:
        """What `take` makes, on a reading thread, of the rows that come next; one at a time.

        Raises:
            StorageUnavailableError: the store was closed, or can't be read.
        """
        if self._closed_for is not None:
            raise StorageUnavailableError(
                f"the message store was closed while it was read: {self._closed_for}"
            )
        try:
            return await self._in_thread(lambda: take(self._rows))
        except StoreError as error:
            raise StorageUnavailableError(f"the message store can't be read: {error}") from error
        finally:
            if self._closed_for is not None:
                self.close(self._closed_for)  # it could not be closed while the thread read it

    def close(self, reason: str) -> None:
        """Let go of the moment; repeating it is harmless."""
        self._closed_for = self._closed_for or reason
        # What a thread reads just now can't be closed under it; that is done when it is back.
        with suppress(ValueError):
            self._rows.close()


class OpenStore:
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
        self.in_thread_read = in_thread_read
        self._store: Store | None = None
        self._views: list[RowView] = []
        self.reason = "the message store is not open yet"

    @property
    def is_up(self) -> bool:
        return self._store is not None

    def has(self, store: Store) -> bool:
        """Whether this very store is the open one."""
        return self._store is store

    def require_up(self) -> Store:
        """The open store. Raises: StorageUnavailableError."""
        if self._store is None:
            raise StorageUnavailableError(
                f"the message store can't be used now: {self.reason}; try again later"
            )
        return self._store

    async def open(self, read: Callable[[Store], T]) -> T:
        """Open the store and read from it before any other caller can; then it is up.

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

    def interrupt(self) -> None:
        """Let calls that hang fail, where the engine can: the process ends, and can't wait."""
        if isinstance(self._open_store, Interruptible):
            self._open_store.interrupt()

    async def close(self, reason: str) -> None:
        """Be down from now on, for this reason; closes the store if one is open."""
        self.reason = reason
        store, self._store = self._store, None
        views, self._views = self._views, []
        for view in views:
            view.close(reason)
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
            return await self.in_thread_read(lambda: read(store))
        except StoreError as error:
            raise StorageUnavailableError(
                f"the message store can't be read: {error}; try again later"
            ) from error

    @contextmanager
    def view(self, start: bytes, stop: bytes) -> Iterator[RowView]:
        """Every stored row of a range of keys, as it is at this very moment; taken without a wait.

        Raises:
            StorageUnavailableError: the store can't be read now, or shows no single moment.
        """
        store = self.require_up()
        if not store.has_views:
            raise StorageUnavailableError(
                "this message store shows no single moment of its rows; copy them by its own means"
            )
        try:
            rows = scan_reporting_corruption(store, start, stop)
        except StoreError as error:
            raise StorageUnavailableError(f"the message store can't be read: {error}") from error
        view = RowView(rows, in_thread=self.in_thread_read)
        self._views.append(view)
        try:
            yield view
        finally:
            view.close("the caller is done with it")
            if view in self._views:
                self._views.remove(view)
