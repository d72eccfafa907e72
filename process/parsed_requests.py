"""Parsed requests: the route of each, and its body, which may still be on its way.

The plain ones have their routes from process/plain_requests.py, and their whole body.
"""

import asyncio

from process.dispatch import UNMATCHED, RouteTree
from process.request_parser import (
    ParsedRequest,
    Target,
    accept_of,
    authorization_of,
    is_forwarded,
    wants_redirect,
)
from tuff.protocol.errors import BadRequestError, MethodNotAllowedError, NotFoundError
from tuff.protocol.exchange import Handler, Reply, Request, problem_reply

# Seconds without a byte of a body that was announced. An interrupted network is usually back by
# then. A client that is gone must not count among `server.max_pending_requests` for longer.
UPLOAD_QUIET_S_MAX = 30.0


class RoutedRequest:
    """A parsed request and the route that answers it.

    `handler` is None where no route does. `operation` is that of the route, which answers HEAD as
    GET; metrics count the request as that.
    """

    def __init__(self, tree: RouteTree, parsed: ParsedRequest, target: Target) -> None:
        self.parsed = parsed
        self._target = target
        self._resource = resource = tree.find(target.segments)
        self.handler: Handler | None = None
        method, path = parsed.method, UNMATCHED
        if resource is not None and parsed.method in resource.methods():
            method = "GET" if parsed.method == "HEAD" else parsed.method
            self.handler = resource.handlers[method]
            path = resource.path
        # Not the path of the request: each topic would have a series of its own in the metrics.
        self.operation = f"{method} {path}"

    def refuse(self) -> Reply:
        """The reply where no route serves the method. Raises: NotFoundError: none has the path."""
        path = self._target.path
        if self._resource is None:
            raise NotFoundError(f"there is nothing at {path}; /openapi.json says what there is")
        allowed = ", ".join(self._resource.methods())
        error = MethodNotAllowedError(f"{path} answers {allowed}, not {self.parsed.method}")
        return problem_reply(error)._replace(headers=(("Allow", allowed),))

    def head(self, certificate: tuple[str, ...], address: str) -> Request:
        """The request without its body. The names in the client's certificate, and its address,
        are those of the connection."""
        assert self._resource is not None
        fields = self.parsed.fields
        return Request(
            self._resource.parameters,
            self._target.query,
            fields.get("content-type", [None])[0],
            accept_of(fields),
            b"",
            is_forwarded(fields),
            wants_redirect(fields),
            authorization_of(fields),
            certificate,
            address,
            fields.get("traceparent", [None])[0],
            upgrade=fields.get("upgrade", [None])[0] if self.parsed.version == "1.1" else None,
        )


async def whole_body(parsed: ParsedRequest) -> bytes:
    """All of the body, once it is here.

    Raises:
        TuffError: it will never be whole.
        ConnectionError: likewise, since the client has closed the connection.
    """
    if parsed.error is not None:
        raise parsed.error
    if not parsed.is_whole:
        loop = asyncio.get_running_loop()
        parsed.waiter = loop.create_future()
        parsed.last_byte_s = loop.time()
        loop.call_later(UPLOAD_QUIET_S_MAX, _check_upload, parsed)
        try:
            await parsed.waiter
        finally:
            parsed.waiter = None
    return bytes(parsed.body)


def _check_upload(parsed: ParsedRequest) -> None:
    if parsed.waiter is None or parsed.waiter.done():
        return
    loop = asyncio.get_running_loop()
    left_s = parsed.last_byte_s + UPLOAD_QUIET_S_MAX - loop.time()
    if left_s > 0:
        loop.call_later(left_s, _check_upload, parsed)
        return
    parsed.is_kept_alive = False
    parsed.fail(
        BadRequestError(
            f"no byte of the body came for {UPLOAD_QUIET_S_MAX:g} seconds, after "
            f"{len(parsed.body)} bytes; send it again"
        )
    )
