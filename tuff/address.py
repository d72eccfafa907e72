"""The addresses of the servers, the timeouts, and the errors of a failed connection."""

import os
import re
import socket
from dataclasses import dataclass
from http import HTTPStatus
from ssl import SSLContext
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from tuff.errors import (
    ConnectionLostError,
    ServerNotTrustedError,
    ServerUnreachableError,
)
from tuff.flows_and_repeated_calls import Call
from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.media_types import MediaType
from tuff.requests_and_responses import Request, Response, of_type

T = TypeVar("T")

TransportName = Literal["auto", "http"]
DEFAULT_URL = "http://127.0.0.1:7411"
TIMEOUT_S_MAX = 1_000_000.0  # seconds, eleven days; a C int in ms has room for twice as many

_NOT_IN_A_URL = re.compile(r"[?#\x00-\x20\x7f]")  # a query, a fragment, or what breaks a line
_BETWEEN_URLS = re.compile(r", *(?=https?://)")  # a path may contain a comma of its own
# How a proxy answers if the server does not. The server's own responses have a `code` as well.
_PROXY_STATUSES = {
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
# The errors of both transports where the connection was closed before the first byte came.
_WITHOUT_A_BYTE = ("RemoteDisconnected", "ServerDisconnectedError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The server to use, how long to wait for it, and the token to send; see `tuff.Client`. A call
    may take `timeout_s`, beside the time that the server itself may wait before it answers.
    `with_sessions`: use a session where the server offers one."""

    url: str
    timeout_s: float
    connect_timeout_s: float
    token: str | None = None
    ssl_context: SSLContext | None = None
    with_sessions: bool = False

    def __post_init__(self) -> None:
        """Raises: ValueError: a field is not valid."""
        if _has_credentials(self.url):
            # The value is not shown, since errors end up in logs.
            raise ValueError(
                "the address of a server has no user and no password; give a `token` instead"
            )
        if not _is_address(self.url):
            raise ValueError(
                f"{self.url!r} is no address of a server; use one like http://127.0.0.1:7411, or "
                "those of several servers of a cluster, separated by commas"
            )
        if not (_is_timeout(self.timeout_s) and _is_timeout(self.connect_timeout_s)):
            raise ValueError(
                f"timeouts are seconds above 0, up to {TIMEOUT_S_MAX:,.0f}, and not "
                f"{self.timeout_s} and {self.connect_timeout_s}"
            )
        if self.token == "":
            raise ValueError("the token is empty; give None to send none")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            # The value is not shown, since errors end up in logs.
            raise ValueError("a token is printable ASCII, as it travels in a header")

    def require_no_proxy(self, call: Call[Any], response: Response) -> None:
        """Raises: ConnectionLostError: a proxy answered, as it got no response from the server."""
        if response.status in _PROXY_STATUSES and not (
            "code" in response.problem or call.is_unready(response)
        ):
            error = self._lost(call.request, f"a proxy says {response.status}", was_sent=True)
            error.retry_after_s = response.retry_after_s
            raise error

    def headers(self, request: Request) -> dict[str, str]:
        """The headers of a request."""
        headers = {}
        if request.body is not None:
            headers["Content-Type"] = request.content_type or MediaType.JSON.value
        if request.accept is not None:
            headers["Accept"] = request.accept
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        headers.update(request.trace_headers)
        return headers

    def unreachable(self, error: Exception) -> ServerUnreachableError:
        """No connection: the call was not sent."""
        return ServerUnreachableError(f"{self.url} ({_reason(error)})")

    def not_trusted(self, error: Exception) -> ServerNotTrustedError:
        """TLS failed, most often since this machine does not trust the certificate of the server:
        the call was not sent."""
        if "WRONG_VERSION_NUMBER" in str(error):
            return ServerNotTrustedError(
                f"{self.url} does not speak TLS ({_reason(error)}); an address of a server without "
                "TLS begins with http://"
            )
        if "CERTIFICATE_VERIFY_FAILED" not in str(error):
            return ServerNotTrustedError(
                f"TLS with {self.url} failed ({_reason(error)}); the log and the settings "
                "server.tls_* of the server say what it accepts"
            )
        if "certificate has expired" in str(error):
            return ServerNotTrustedError(
                f"{self.url} has a certificate that has expired ({_reason(error)}); renew it at "
                "the server, or set the clock of this machine if it is wrong"
            )
        return ServerNotTrustedError(
            f"{self.url} has a certificate that is not trusted here ({_reason(error)}); if it is "
            "of an authority of your own, name the authority's file in SSL_CERT_FILE, or as "
            "tls_ca_file (--tls-ca-file of the command)"
        )

    def lost(
        self, request: Request, error: Exception, *, was_sent: bool, never_answered: bool = False
    ) -> ConnectionLostError:
        """The connection broke. A read, or a request that was not sent whole, changed nothing.
        `never_answered`: nothing has answered at this address before, so TLS may be missing."""
        reason = _reason(error)
        is_plain = self.url.startswith("http:")
        if never_answered and is_plain and reason.startswith(_WITHOUT_A_BYTE):
            reason += "; a server with TLS has an address that begins with https://"
        return self._lost(request, reason, was_sent=was_sent)

    def _lost(self, request: Request, reason: str, *, was_sent: bool) -> ConnectionLostError:
        what = f"{request.operation.method} {request.path.partition('?')[0]}"
        if request.is_read or not was_sent:
            return ConnectionLostError(
                f"{self.url} was lost before it answered {what} ({reason}); ask again",
                outcome_unknown=False,
            )
        repeat = "check that before you repeat it"
        if request.is_repeatable:
            repeat = "you can repeat it, which has no second effect"
        return ConnectionLostError(
            f"{self.url} was lost before it answered {what} ({reason}), so it is unknown "
            f"whether the server executed it; {repeat}",
            outcome_unknown=True,
        )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        return (
            _NOT_IN_A_URL.search(url) is None
            and parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and "," not in parts.netloc
            and parts.path.isascii()
            and parts.port != 0
        )
    except ValueError:  # a port that is none, a bracket that is not closed, a label too long
        return False


def _has_credentials(url: str) -> bool:
    try:
        return "@" in urlsplit(url).netloc
    except ValueError:
        return False


def _is_timeout(seconds: float) -> bool:
    return 0 < seconds <= TIMEOUT_S_MAX  # which a NaN is not


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def addresses_of(
    url: str,
    timeout: Duration,
    connect_timeout: Duration,
    *,
    token: str | None,
    ssl_context: SSLContext | None,
    with_sessions: bool = False,
) -> list[Address]:
    """The addresses of a client's servers: one, or several of a cluster, in the order given and
    each once. Raises: ValueError, TypeError: as `tuff.Client`."""
    if ssl_context is not None:
        of_type(ssl_context, SSLContext, "ssl_context")
    if token is not None:
        of_type(token, str, "token")
    return [
        Address(
            url=one,
            timeout_s=seconds_of(timeout, what="timeout"),
            connect_timeout_s=seconds_of(connect_timeout, what="connect_timeout"),
            token=token,
            ssl_context=ssl_context,
            with_sessions=with_sessions,
        )
        for one in dict.fromkeys(_BETWEEN_URLS.split(of_type(url, str, "url")))
    ]


def client_name(given: str | None) -> str:
    """The name that others see: the given one, else host name and process id."""
    if given is None:
        return f"{socket.gethostname()}-{os.getpid()}"
    return of_type(given, str, "client_id")


def checked_transport(transport: T) -> T:
    """The transport that a client was given. Raises: ValueError: it is an unknown name. TypeError:
    it sends no calls."""
    if isinstance(transport, str):
        if transport not in get_args(TransportName):
            names = " or ".join(map(repr, get_args(TransportName)))
            raise ValueError(f"transport is {names}, not {transport!r}")
    elif not hasattr(transport, "send"):
        raise TypeError(f"transport is a name, or an object that sends calls, not {transport!r}")
    return transport
