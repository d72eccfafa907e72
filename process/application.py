"""The general way in: the HTTP library's own application, with every route of the server.

It serves whatever HTTP allows; `process.lane` takes the plain requests past it.
"""

import json
from collections.abc import Iterable
from functools import cache

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from process.front import Front
from tuff.protocol.errors import (
    BadRequestError,
    MethodNotAllowedError,
    NotFoundError,
    RequestTooLargeError,
)
from tuff.protocol.exchange import Reply, Request, Route, problem_reply

SERVER_NAME = "tuff"  # what every reply calls the server

_UNMATCHED = "unmatched"
_CALLS = "/v1/"


def openapi_route() -> Route:
    """The OpenAPI document of all routes."""

    @cache  # made by the first who asks: a start needs none of it, and loads none of it
    def document() -> Reply:
        from process import openapi_document

        return Reply(
            200, "application/json", json.dumps(openapi_document.document()).encode("utf-8")
        )

    async def show(_request: Request) -> Reply:
        return document()

    return Route("GET", "/openapi.json", show)


def application(
    routes: Iterable[Route],
    front: Front,
    *,
    max_request_bytes: int,
    streams: Iterable[web.RouteDef] = (),
) -> web.Application:
    """Every route behind the front. `streams` are routes that answer bit by bit, for which a
    `Reply` is too small."""
    app = web.Application(
        middlewares=[_fronted(front, max_request_bytes)], client_max_size=max_request_bytes
    )
    every = list(routes)
    paths = [route.path for route in every]
    app.add_routes([*(_general(route, _address(route.path, paths)) for route in every), *streams])
    return app


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


def _general(route: Route, address: str) -> web.RouteDef:
    async def handle(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        asked = Request(
            request.match_info,
            tuple(request.query.items()),
            headers.get("Content-Type"),
            headers.get("Accept"),
            await request.read(),
        )
        return _response(await route.handler(asked))

    # Probes ask with HEAD; as a call of the protocol it would do a read's work for nothing.
    is_head_too = route.method == "GET" and not route.path.startswith(_CALLS)
    options = {"allow_head": is_head_too} if route.method == "GET" else {}
    return web.RouteDef(route.method, address, handle, options)


def _response(reply: Reply) -> web.Response:
    headers = {**dict(reply.headers), "Server": SERVER_NAME}
    if reply.content_type is not None:
        headers["Content-Type"] = reply.content_type
    return web.Response(status=reply.status, body=reply.body, headers=headers)


def _fronted(front: Front, max_request_bytes: int) -> Middleware:
    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        async def translated(asked: web.Request) -> web.StreamResponse:
            try:
                return await handler(asked)
            except web.HTTPException as error:
                return _translated(error, asked, max_request_bytes)

        resource = request.match_info.route.resource
        # The operation, and not the path: names of topics would make a series each.
        operation = resource.canonical if resource is not None else _UNMATCHED
        answered = await front.answer(f"{request.method} {operation}", translated, request)
        return _response(answered) if isinstance(answered, Reply) else answered

    return answer


def _translated(
    error: web.HTTPException, request: web.Request, max_request_bytes: int
) -> web.Response:
    if error.status == web.HTTPNotFound.status_code:
        sentence = f"there is nothing at {request.path}; /openapi.json says what there is"
        return _response(problem_reply(NotFoundError(sentence)))
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        sentence = f"{request.path} answers {allowed}, not {request.method}"
        reply = problem_reply(MethodNotAllowedError(sentence))
        return _response(reply._replace(headers=(("Allow", allowed),)))
    if error.status == web.HTTPRequestEntityTooLarge.status_code:
        return _response(problem_reply(_too_large(max_request_bytes)))
    return _response(problem_reply(BadRequestError(f"the request can't be read: {error.reason}")))


def _too_large(max_request_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"the body is larger than server.max_request_bytes={max_request_bytes}; send it in parts"
    )
