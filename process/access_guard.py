"""Checks the principal of each request.

Without an access file none of this is in the path of a request.
"""

from collections.abc import Awaitable
from pathlib import Path

from access.operations import REQUIREMENTS, Requirement, Scope, require
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
from process.watched_files import WatchedFileError, WatchedFiles
from tuff.disk.event_loop import InThread
from tuff.protocol.errors import UnauthenticatedError
from tuff.protocol.exchange import Reply, Request, Route

FILE_BYTES_MAX = 1 << 20  # bytes of the access file; thousands of principals
ALLOWED_COUNT_MAX = 10_000  # calls that are remembered as allowed; some MiB at most
_SCHEME = "bearer "

# Authorization, names in the certificate, operation, namespace, topic.
_Call = tuple[str | None, tuple[str, ...], str, str | None, str | None]


def read_access_file(file: Path) -> Principals:
    """The principals of a file. Blocks.

    Raises:
        WatchedFileError: it can't be read, or is not valid.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise WatchedFileError(f"{file} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise WatchedFileError(f"{file} is not in UTF-8") from None
    if len(content) > FILE_BYTES_MAX:
        raise WatchedFileError(f"{file} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return parse(text)
    except AccessFileError as error:
        raise WatchedFileError(f"{file}: {error}") from None


class AccessGuard:
    """Finds the principal of a request, and refuses what it may not do. Lives on one event loop."""

    def __init__(self, file: Path) -> None:
        """Reads the file, and blocks. Raises: WatchedFileError: it is not valid."""
        self._file = WatchedFiles([file], lambda: read_access_file(file), name="access file")
        # Calls that the principals may do.
        self._allowed: set[_Call] = set()

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
            return self._principal_of(request).may(Right.ADMINISTER, EVERY, EVERY)
        except UnauthenticatedError:
            return False

    async def refresh(self, in_thread: InThread) -> None:
        """Read the file again if it has changed."""
        if await self._file.refresh(in_thread):
            self._allowed.clear()

    def check(self) -> Check:
        """The state of the access file, for `/health/ready`."""
        if self._file.failure is not None:
            return Check(
                Status.DEGRADED, f"the access file is not used as it is now: {self._file.failure}"
            )
        return Check(Status.OK, f"{len(self._file.value.by_name)} principals have access")

    def require_head(self, operation: str, head: Request) -> None:
        """Check what the head of a request says, before its body is read.

        Raises: UnauthenticatedError, ForbiddenError.
        """
        needed = REQUIREMENTS[operation]
        if needed.scope is not Scope.OPEN:
            self._check(operation, head, needed._replace(of_topics=None))

    def _require(self, operation: str, request: Request) -> None:
        """Raises: UnauthenticatedError, ForbiddenError."""
        self._check(operation, request, REQUIREMENTS[operation])

    def _check(self, operation: str, request: Request, needed: Requirement) -> None:
        parameters = request.parameters
        call = (
            request.authorization,
            request.certificate,
            operation,
            parameters.get("ns"),
            parameters.get("t"),
        )
        if call in self._allowed:
            return
        require(self._principal_of(request), needed, parameters, request.body)
        if REQUIREMENTS[operation].of_topics is not None:
            return  # the next body may name other topics
        if len(self._allowed) >= ALLOWED_COUNT_MAX:
            self._allowed.clear()
        self._allowed.add(call)

    def _principal_of(self, request: Request) -> Principal:
        """Raises: UnauthenticatedError."""
        authorization = request.authorization
        if authorization is None:
            return self._of_certificate(request)
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise UnauthenticatedError(
                "the server takes `Authorization: Bearer TOKEN`, and no other scheme"
            )
        found = self._file.value.of_token(authorization[len(_SCHEME) :].strip())
        if found is None:
            raise UnauthenticatedError(
                "the token is not in the access file of the server; `tuff access token NAME` makes "
                "one, and its hash belongs into that file"
            )
        return found

    def _of_certificate(self, request: Request) -> Principal:
        found = self._file.value.of_certificate(request.certificate)
        if found is not None:
            return found
        if request.certificate:
            raise UnauthenticatedError(
                "the names in the client certificate are those of no principal in the access file, "
                "or of several; `certificates` of a principal has one of them"
            )
        raise UnauthenticatedError(
            "the request has no token; send one as `Authorization: Bearer TOKEN` (`token` of "
            "the client, TUFF_TOKEN of the command)"
        )
