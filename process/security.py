"""What protects the server: the access file and TLS, as far as they are set."""

from pathlib import Path
from typing import Protocol

from process.access_guard import AccessGuard
from process.health import Check
from process.settings import ServerSettings, SettingsError
from process.tls import ServerTls
from process.watched_files import WatchedFileError
from tuff.disk.event_loop import InThread


class Threads(Protocol):
    """Makes worker threads, and returns a function that runs a call on one of them."""

    def __call__(self, name: str, count: int, /, *, is_joined: bool = True) -> InThread:
        """`is_joined`: the process waits for them when it ends."""


class Security:
    """The access guard and the TLS settings; None where they are not set. Lives on one event loop.

    `threads` makes the thread that reads the files again.
    """

    def __init__(self, settings: ServerSettings, *, threads: Threads) -> None:
        """Reads the files, and blocks. Raises: SettingsError: one is not valid."""
        # No other work waits for a file system that hangs.
        self._in_thread = threads("file-reader", 1, is_joined=False)
        self.access = _access_guard(settings)
        self.tls = _server_tls(settings)

    async def refresh(self) -> None:
        """Read the files again that have changed. One that is not valid changes nothing."""
        if self.access is not None:
            await self.access.refresh(self._in_thread)
        if self.tls is not None:
            await self.tls.refresh(self._in_thread)

    def checks(self) -> dict[str, Check]:
        """The state of the files, for `/health/ready`."""
        parts = {"access": self.access, "tls": self.tls}
        return {name: part.check() for name, part in parts.items() if part is not None}


def _access_guard(settings: ServerSettings) -> AccessGuard | None:
    if not settings.access_file:
        return None
    try:
        return AccessGuard(Path(settings.access_file))
    except WatchedFileError as error:
        raise SettingsError(f"server.access_file: {error}") from None


def _server_tls(settings: ServerSettings) -> ServerTls | None:
    if not settings.has_tls:
        return None
    authority = settings.tls_client_ca_file
    try:
        return ServerTls(
            Path(settings.tls_certificate_file),
            Path(settings.tls_key_file),
            Path(authority) if authority else None,
        )
    except WatchedFileError as error:
        raise SettingsError(f"server.tls_certificate_file: {error}") from None
