"""TLS of a client: the authorities that it trusts, and its own certificate."""

import ssl
from dataclasses import dataclass
from os import PathLike

from tuff_storage.disk.pem_files import pair_failure

Path = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM; see `tuff.Client`. None: the authorities of the machine; no certificate."""

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None  # None: the certificate's file has the key too

    def context(self) -> ssl.SSLContext | None:
        """The settings of each connection; None without files. Reads the files, and blocks.

        Raises:
            ValueError: a file can't be read, or is not valid; or there is a key and no certificate.
        """
        if self.ca_file is None and self.certificate_file is None and self.key_file is None:
            return None
        context = _trusting(self.ca_file)
        if self.certificate_file is not None:
            _add_certificate(context, self.certificate_file, self.key_file)
        elif self.key_file is not None:
            raise ValueError("tls_key_file needs a tls_certificate_file")
        return context

    def context_or(self, other: ssl.SSLContext | None) -> ssl.SSLContext | None:
        """The context of these files; without files the other one. Raises: ValueError: there are
        both."""
        own = self.context()
        if own is not None and other is not None:
            raise ValueError("give either an ssl_context or files for TLS, not both")
        return other if own is None else own


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise ValueError(
            f"tls_ca_file {ca_file} has no certificate in PEM: {error.reason or error}"
        ) from None
    except OSError as error:
        raise ValueError(f"tls_ca_file {ca_file} can't be read: {error.strerror}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _add_certificate(
    context: ssl.SSLContext, certificate_file: Path, key_file: Path | None
) -> None:
    try:
        context.load_cert_chain(certificate_file, key_file)
    except OSError as error:
        raise ValueError(pair_failure(error, certificate_file, key_file)) from None
