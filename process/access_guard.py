"""Checks the principal of each request, and reads the access file again when it changes.

Without an access file none of this is in the path of a request.
"""

import logging
from collections.abc import Awaitable
from pathlib import Path

from access.operations import REQUIREMENTS, Scope, require
from access.principals import (
    EVERY,
    AccessFileError,
    Principal,
    Principals,
    Right,
    parse,
)
from process.health import Check, Status
from process.http_connection import ReplyStream, StreamRoute
from tuff.protocol.errors import UnauthenticatedError
from tuff.protocol.exchange import Reply, Request, Route

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 1 << 20  # bytes of the access file; thousands of principals
ALLOWED_COUNT_MAX = 10_000  # calls that are remembered as allowed; some MiB at most
_SCHEME = "bearer "

Stamp = tuple[int, int, int]  # of a file: it differs after each change


def read_access_file(file: Path) -> Principals:
    """The principals of a file. Blocks.

    Raises:
        AccessFileError: it can't be read, or is not valid.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise AccessFileError(f"{file} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AccessFileError(f"{file} is not in UTF-8") from None
    if len(content) > FILE_BYTES_MAX:
        raise AccessFileError(f"{file} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return parse(text)
    except AccessFileError as error:
        raise AccessFileError(f"{file}: {error}") from None


class AccessGuard:
    """Finds the principal of a request, and refuses what it may not do. Lives on one event loop."""

    def __init__(self, file: Path) -> None:
        """Raises: AccessFileError: the file is not valid."""
        self._file = file
        self._stamp = _stamp(file)
        self._principals = read_access_file(file)
        # Calls that the principals may do: Authorization, operation, namespace and topic.
        self._allowed: set[tuple[str | None, str, str | None, str | None]] = set()
        self._failure: str | None = None

    def guarded(self, route: Route) -> Route:
        """The route, for principals that may call it. Raises: KeyError: its right is not known."""
        operation, handler = f"{route.method} {route.path}", route.handler
        if REQUIREMENTS[operation].scope is Scope.OPEN:
            return route

        def handle(request: Request) -> Awaitable[Reply]:
            self._require(operation, request)
            return handler(request)

        return route._replace(handler=handle)

    def guarded_stream(self, route: StreamRoute) -> StreamRoute:
        """As `guarded`."""
        operation, handler = f"{route.method} {route.path}", route.handler

        def handle(request: Request, stream: ReplyStream) -> Awaitable[None]:
            self._require(operation, request)
            return handler(request, stream)

        return route._replace(handler=handle)

    def may_administer(self, request: Request) -> bool:
        """Whether the principal of a request may administer the server; False without one."""
        try:
            return self._principal_of(request.authorization).may(Right.ADMINISTER, EVERY, EVERY)
        except UnauthenticatedError:
            return False

    def refusal(self, authorization: str | None) -> UnauthenticatedError | None:
        """Why this Authorization field names no principal; None where it names one."""
        try:
            self._principal_of(authorization)
        except UnauthenticatedError as error:
            return error
        return None

    def reload_if_changed(self) -> bool:
        """Read the file again if it has changed; returns whether the principals may have changed.
        A file that is not valid changes nothing. Reads the disk; call it from a thread, or
        seldom."""
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            principals = read_access_file(self._file)
        except AccessFileError as error:
            self._failure = str(error)
            return False  # the check of the health says so, and its change is logged
        self._principals, self._failure = principals, None
        self._allowed.clear()
        log.info("read the access file: %d principals", len(principals.by_name))
        return True

    def check(self) -> Check:
        """The state of the access file, for `/health/ready`."""
        if self._failure is not None:
            return Check(
                Status.DEGRADED, f"the access file is not used as it is now: {self._failure}"
            )
        return Check(Status.OK, f"{len(self._principals.by_name)} principals have access")

    def _require(self, operation: str, request: Request) -> None:
        """Raises: UnauthenticatedError, ForbiddenError."""
        parameters = request.parameters
        call = (request.authorization, operation, parameters.get("ns"), parameters.get("t"))
        if call in self._allowed:
            return
        needed = REQUIREMENTS[operation]
        body = request.body if request.members is None else request.members
        require(self._principal_of(request.authorization), needed, parameters, body)
        if needed.of_topics is not None:
            return  # the next body may name other topics
        if len(self._allowed) >= ALLOWED_COUNT_MAX:
            self._allowed.clear()
        self._allowed.add(call)

    def _principal_of(self, authorization: str | None) -> Principal:
        """Raises: UnauthenticatedError."""
        if authorization is None:
            raise UnauthenticatedError(
                "the request has no token; send one as `Authorization: Bearer TOKEN` (`token` of "
                "the client, TUFF_TOKEN of the command)"
            )
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise UnauthenticatedError(
                "the server takes `Authorization: Bearer TOKEN`, and no other scheme"
            )
        found = self._principals.of_token(authorization[len(_SCHEME) :].strip())
        if found is None:
            raise UnauthenticatedError(
                "the token is not in the access file of the server; `tuff access token NAME` makes "
                "one, and its hash belongs into that file"
            )
        return found


def _stamp(file: Path) -> Stamp | None:
    """Identifies a version of the file; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
