"""The general way in: the HTTP library's own application, with every route of the server.

It serves whatever HTTP allows; `process.lane` takes the plain requests past it.
"""

import asyncio
import json
from collections.abc import Iterable
from functools import cache

from aiohttp import web
from aiohttp.streams import StreamReader
from aiohttp.typedefs import Handler, Middleware

from process.front import Front
from process.heads import accept_of
from process.hosts import Hosts
from tuff.protocol.errors import (
    BadRequestError,
    MethodNotAllowedError,
    NotFoundError,
    RequestTooLargeError,
    TuffError,
    UnsupportedMediaTypeError,
)
from tuff.protocol.exchange import Reply, Request, Route, problem_reply
from tuff.protocol.media import read_query, shown

SERVER_NAME = "tuff"  # what every reply calls the server
OPERATION = web.RequestKey("operation", str)  # what figures call that which is under way
UNMATCHED = "unmatched"  # the operation, in figures, of what no route serves
# Seconds without a byte of a body that was announced: a network that lost its way has found it
# again by then, and a client that is gone without a word must not keep a place among the
# `server.max_pending_requests`.
UPLOAD_QUIET_S_MAX = 30.0

_CALLS = "/v1/"


def openapi_route() -> Route:
    """The OpenAPI document of all routes."""

    @cache  # made by the first who asks: a start needs none of it, and loads none of it
    def document() -> Reply:
        from process import openapi_document

        return Reply(
            200, "application/json", json.dumps(openapi_document.document()).encode("utf-8")
        )

    async def show(request: Request) -> Reply:
        read_query(request.query, parameters=())
        return document()

    return Route("GET", "/openapi.json", show)


def application(
    routes: Iterable[Route],
    front: Front,
    hosts: Hosts,
    *,
    max_request_bytes: int,
    streams: Iterable[web.RouteDef] = (),
) -> web.Application:
    """Every route behind the front. `streams` are routes that answer bit by bit, for which a
    `Reply` is too small."""
    app = web.Application(middlewares=[_fronted(front, hosts)], client_max_size=max_request_bytes)
    every = list(routes)
    paths = [route.path for route in every]
    served = (_general(each, _address(each.path, paths), max_request_bytes) for each in every)
    app.add_routes([*served, *streams])
    return app


def break_off(body: StreamReader, error: Exception) -> None:
    """Nothing more comes of this body: whoever reads it is told so."""
    body.set_exception(error)
    body.feed_eof()  # or the library would wait for the rest, to go on with the next request


def response_of(reply: Reply) -> web.Response:
    """The reply as the library has it."""
    headers = {**dict(reply.headers), "Server": SERVER_NAME}
    if reply.content_type is not None:
        headers["Content-Type"] = reply.content_type
    return web.Response(status=reply.status, body=reply.body, headers=headers)


def unserved(error: web.HTTPException, request: web.BaseRequest) -> TuffError:
    """Why no route was asked."""
    if error.status == web.HTTPNotFound.status_code:
        sentence = f"there is nothing at {request.path}; /openapi.json says what there is"
        return NotFoundError(sentence)
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowedError(f"{request.path} answers {allowed}, not {request.method}")
    if error.status == web.HTTPExpectationFailed.status_code:
        expected = shown(request.headers.get("Expect"))
        return BadRequestError(f"the server meets no expectation but 100-continue, not {expected}")
    return BadRequestError(f"the request can't be read: {error.reason}")


def _address(path: str, paths: Iterable[str]) -> str:
    """The path as the library has to match it, so that of two routes for one address the one that
    names it goes before the one that any value matches: else `GET …/run` would ask for a
    transaction of that name, and `Allow` would speak of both."""
    segments = path.split("/")
    others = [found for other in paths if _may_meet(segments, found := other.split("/"))]
    for place, segment in enumerate(segments):
        named = sorted({other[place] for other in others if not other[place].startswith("{")})
        if segment.startswith("{") and named:
            segments[place] = f"{segment[:-1]}:(?!(?:{'|'.join(named)})(?:/|$))[^/]+}}"
    return "/".join(segments)


def _may_meet(segments: list[str], others: list[str]) -> bool:
    """Whether some address has both forms."""
    return len(segments) == len(others) and all(
        one == other or one.startswith("{") or other.startswith("{")
        for one, other in zip(segments, others, strict=True)
    )


def _general(route: Route, address: str, max_request_bytes: int) -> web.RouteDef:
    async def handle(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        asked = Request(
            request.match_info,
            tuple(request.query.items()),
            headers.get("Content-Type"),
            accept_of(headers),
            await _body(request, max_request_bytes) if request.body_exists else b"",
        )
        return response_of(await route.handler(asked))

    # Probes ask with HEAD; as a call of the protocol it would do a read's work for nothing.
    is_head_too = route.method == "GET" and not route.path.startswith(_CALLS)
    options = {"allow_head": is_head_too} if route.method == "GET" else {}
    return web.RouteDef(route.method, address, handle, options)


async def _body(request: web.Request, max_request_bytes: int) -> bytes:
    body, stream = bytearray(), request.content
    stream.set_read_chunk_size(max_request_bytes)  # or a large one is read with many pauses
    while True:
        try:
            async with asyncio.timeout(UPLOAD_QUIET_S_MAX):
                piece = await stream.readany()
        except TimeoutError:
            error = BadRequestError(
                f"no byte of the body came for {UPLOAD_QUIET_S_MAX:g} seconds, after {len(body)} "
                "bytes; send it again"
            )
            break_off(stream, error)
            raise error from None
        if not piece:
            return bytes(body)
        body += piece
        if len(body) > max_request_bytes:
            raise RequestTooLargeError(
                f"the body is larger than server.max_request_bytes={max_request_bytes}; "
                "send it in parts"
            )


def _fronted(front: Front, hosts: Hosts) -> Middleware:
    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        async def translated(asked: web.Request) -> web.StreamResponse:
            _require_no_coding(asked)
            try:
                return await handler(asked)
            except web.HTTPException as error:
                return response_of(_unserved_reply(error, asked))

        resource = request.match_info.route.resource
        # The operation, and not the path: names of topics would make a series each.
        operation = resource.canonical if resource is not None else UNMATCHED
        request[OPERATION] = f"{request.method} {operation}"
        refusal = hosts.refusal(request.headers, authority=_authority(request))
        if refusal is not None:
            return response_of(front.refuse(request[OPERATION], refusal))
        answered = await front.answer(request[OPERATION], translated, request)
        response = response_of(answered) if isinstance(answered, Reply) else answered
        if request.content.exception() is not None:  # where the next request begins is not known
            response.force_close()
        return response

    return answer


def _authority(request: web.Request) -> str | None:
    """Of an absolute request target (RFC 9112 §3.2.2); None where the target has none."""
    is_absolute = not request.raw_path.startswith("/") and request.raw_path != "*"
    return request.url.raw_authority if is_absolute else None


def _require_no_coding(request: web.Request) -> None:
    # One that is taken for the body itself, or unpacked in part, would be stored as what it is not.
    codings = ", ".join(request.headers.getall("Content-Encoding", ()))
    if codings.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaTypeError(
            f"the content encoding is {shown(codings)}; send the body as it is"
        )


def _unserved_reply(error: web.HTTPException, request: web.Request) -> Reply:
    reply = problem_reply(unserved(error, request))
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return reply._replace(headers=(("Allow", allowed),))
    return reply
