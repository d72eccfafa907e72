"""TLS of the listener: the certificate of the server, and the authority of client certificates.

Each handshake uses the files as they were last read (process/watched_files.py), through the
callback for the server name: OpenSSL calls it also where the client names no server.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path

from kernel.event_loop import InThread
from process.health import Check, Status
from process.watched_files import WatchedFileError, WatchedFiles
from tuff_storage.disk.pem_files import pair_failure

HANDSHAKE_S_MAX = 10.0  # seconds; a client that is slower is given up
_KINDS = ("DNS", "URI")  # the kinds of names of a certificate that can name a principal


class ServerTls:
    """The TLS settings of the listener. Lives on one event loop."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        """Reads the files, and blocks. `client_ca` None: no client certificate is asked for.

        Raises:
            WatchedFileError: a file can't be read, or is not valid.
        """

        def read() -> ssl.SSLContext:
            return _context(certificate, key, client_ca)

        files = [certificate, key, *([] if client_ca is None else [client_ca])]
        self._files = WatchedFiles(files, read, name="TLS files")
        # What each handshake begins with. `verify_mode` is not replaced by the callback.
        self.context = read()
        self.context.sni_callback = self._use_current

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
        return Check(Status.OK, "connections use TLS")

    def _use_current(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str, _first: ssl.SSLContext
    ) -> None:
        connection.context = self._files.value


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
