"""Why a certificate and its key can't be used: which of the two files is wrong, and how."""

import ssl
from os import PathLike

Path = str | PathLike[str]


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
