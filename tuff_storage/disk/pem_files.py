"""Certificates in files: when they end, and why one can't be used with its key: which of the two
files is wrong, and how."""

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from os import PathLike

Path = str | PathLike[str]

_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL | re.ASCII
)
# Tags of DER (X.690), and the values before the validity in a TBSCertificate (RFC 5280): serial
# number, signature, issuer. A version, which may be left out, comes first.
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17
_BEFORE_VALIDITY_COUNT = 3


def ends_ms(file: Path) -> list[int]:
    """When each certificate in the file ends, in ms since the epoch, in their order. Blocks.

    Raises: OSError; ValueError: one can't be read.
    """
    with open(file, encoding="ascii", errors="replace") as opened:
        text = opened.read()
    return [_end_ms(ssl.PEM_cert_to_DER_cert(each)) for each in _CERTIFICATE.findall(text)]


def _end_ms(certificate: bytes) -> int:
    try:
        (_, whole), *_ = _values(certificate)
        (_, to_be_signed), *_ = _values(whole)
        fields = [content for tag, content in _values(to_be_signed) if tag != _VERSION]
        _, (tag, end) = _values(fields[_BEFORE_VALIDITY_COUNT])
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        at = datetime.strptime(end.decode("ascii"), form).replace(tzinfo=UTC)
    except IndexError:
        raise ValueError("a certificate is cut off") from None
    return int(at.timestamp()) * 1000


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The tags and contents of the values in DER, one after the other."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        yield tag, data[at : at + size]
        at += size


def pair_failure(error: OSError, certificate: Path, key: Path | None, *, section: str = "") -> str:
    """The reason for which `ssl.SSLContext.load_cert_chain` has failed, as one sentence. Reads the
    files, and blocks. `key` None: the certificate's file has the key, too. `section`: what stands
    before the names of the settings, as `server.`.
    """
    of_certificate = f"{section}tls_certificate_file {certificate}"
    of_key = of_certificate if key is None else f"{section}tls_key_file {key}"
    for name, file in ((of_certificate, certificate), (of_key, key)):
        reason = None if file is None else _unreadable(file)
        if reason is not None:
            return f"{name} can't be read: {reason}"
    if not isinstance(error, ssl.SSLError):
        return f"{of_certificate} can't be used: {error.strerror or error}"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {of_key} is not that of the first certificate in {of_certificate}"
    if not _has_certificate(certificate):
        return f"{of_certificate} has no certificate in PEM"
    return f"{of_key} has no private key in PEM"


def _unreadable(file: Path) -> str | None:
    try:
        with open(file, "rb"):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _has_certificate(file: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError:
        return False
    return True
