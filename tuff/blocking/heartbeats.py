"""Sends the heartbeats of a consumer in a thread of its own."""

from collections.abc import Callable
from threading import Thread as _Thread  # noqa: TID251 - it works while the program processes

from tuff.blocking.driver import Driver
from tuff.flows import Flow


class Heartbeats:
    """Runs one flow beside the program."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._thread: _Thread | None = None

    def begin(self, flow: Callable[[], Flow[None]]) -> None:
        """Run the flow; nothing happens if it was begun before."""
        if self._thread is None:
            # A program that ends without `close` ends the thread, too; the session runs out.
            self._thread = _Thread(
                target=lambda: self._driver.run(flow()), name="tuff heartbeats", daemon=True
            )
            self._thread.start()

    def join(self) -> None:
        """Wait until the flow has ended."""
        if self._thread is not None:
            self._thread.join()
