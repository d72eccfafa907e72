"""TLS of the listener: the certificate of the server, and the authority of client certificates.

Each handshake uses the files as they were last read (process/watched_files.py), through the
callback for the server name: OpenSSL calls it also where the client names no server.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kernel.event_loop import InThread
from process.health import Check, Status
from process.settings import ServerSettings
from process.watched_files import WatchedFileError, WatchedFiles
from tuff_storage.disk.pem_files import ends_ms, pair_failure

HANDSHAKE_S_MAX = 10.0  # seconds; a client that is slower is given up
_DAY_MS = 86_400_000
_KINDS = ("DNS", "URI")  # the kinds of names of a certificate that can name a principal


@dataclass(frozen=True, slots=True)
class _Current:
    """What handshakes use, and when the first certificate of the server's file ends, and the last
    authority of clients (None: there are none)."""

    context: ssl.SSLContext
    ends_ms: int
    client_ca_ends_ms: int | None


class ServerTls:
    """The TLS settings of the listener. Lives on one event loop.

    An expired certificate is refused when the files are read again, so that it does not take the
    place of a valid one. A start takes it, since the clock may be wrong; and one may expire while
    the server runs: then `check` is degraded.
    """

    def __init__(self, settings: ServerSettings, *, now_ms: Callable[[], int]) -> None:
        """Reads the files of the settings, and blocks.

        Raises:
            WatchedFileError: a file can't be read, or is not valid.
        """

        def read() -> _Current:
            context = _context(certificate, key, client_ca)
            current = _Current(
                context,
                min(_ends_ms(certificate)),
                None if client_ca is None else max(_ends_ms(client_ca)),
            )
            if is_started and (expired := self._expired(current)) is not None:
                raise WatchedFileError(expired)
            return current

        certificate, key = Path(settings.tls_certificate_file), Path(settings.tls_key_file)
        authority = settings.tls_client_ca_file
        client_ca = Path(authority) if authority else None  # None: no client is asked for one
        is_started = False
        self._names = f"server.tls_certificate_file {certificate}", client_ca
        self._now_ms = now_ms
        files = [certificate, key, *([] if client_ca is None else [client_ca])]
        self._files = WatchedFiles(files, read, name="TLS files")
        # What each handshake begins with. `verify_mode` is not replaced by the callback.
        self.context = read().context
        self.context.sni_callback = self._use_current
        is_started = True

    async def refresh(self, in_thread: InThread) -> None:
        """Read the files again if one has changed. Open connections go on."""
        await self._files.refresh(in_thread)

    def check(self) -> Check:
        """The state of the files, for `/health/ready`."""
        if self._files.failure is not None:
            return Check(
                Status.DEGRADED,
                f"the TLS files are not used as they are now: {self._files.failure}",
            )
        if (expired := self._expired(self._files.value)) is not None:
            return Check(
                Status.DEGRADED,
                f"{expired}, so clients refuse the connection, or are refused; replace the file, "
                "which is read again within a second",
            )
        return Check(Status.OK, "connections use TLS")

    def certificate_days(self) -> float:
        """In how many days the certificate of the server ends; negative once it has."""
        return (self._files.value.ends_ms - self._now_ms()) / _DAY_MS

    def _expired(self, current: _Current) -> str | None:
        """A sentence about what has expired; None if nothing has."""
        certificate, client_ca = self._names
        authority_ms = current.client_ca_ends_ms
        if self._now_ms() >= current.ends_ms:
            return f"the certificate in {certificate} expired on {_day(current.ends_ms)}"
        if authority_ms is not None and self._now_ms() >= authority_ms:
            name = f"server.tls_client_ca_file {client_ca}"
            return f"each authority in {name} has expired, the last on {_day(authority_ms)}"
        return None

    def _use_current(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str, _first: ssl.SSLContext
    ) -> None:
        connection.context = self._files.value.context


def names_of(certificate: Mapping[str, object] | None) -> tuple[str, ...]:
    """The names in a client certificate, as `ssl.SSLSocket.getpeercert` returns it, that can name a
    principal: its subject alternative names for DNS, and those for URIs. Without a certificate
    none."""
    names = (certificate or {}).get("subjectAltName", ())
    assert isinstance(names, tuple)
    return tuple(name for kind, name in names if kind in _KINDS)


def _context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session would skip the check of a client certificate against a new authority.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    try:
        # Without this, OpenSSL would ask on the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except ValueError:
        raise WatchedFileError(
            f"server.tls_key_file {key} is encrypted; store the key without a password"
        ) from None
    except OSError as error:
        raise WatchedFileError(pair_failure(error, certificate, key, section="server.")) from None
    if client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        _load_authority(context, client_ca)
    return context


def _ends_ms(file: Path) -> list[int]:
    try:
        return ends_ms(file)
    except (OSError, ValueError) as error:
        raise WatchedFileError(f"{file} has a certificate that can't be read: {error}") from None


def _day(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d}"


def _load_authority(context: ssl.SSLContext, client_ca: Path) -> None:
    try:
        context.load_verify_locations(client_ca)
    except ssl.SSLError as error:
        reason = f"has no certificate in PEM: {error.reason}"
        raise WatchedFileError(f"server.tls_client_ca_file {client_ca} {reason}") from None
    except OSError as error:
        reason = f"can't be read: {error.strerror}"
        raise WatchedFileError(f"server.tls_client_ca_file {client_ca} {reason}") from None


def _refuse_password() -> str:
    raise ValueError
