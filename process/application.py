"""The HTTP application: every route, behind the middlewares."""

import json
from collections.abc import Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from process import openapi
from process.http import MAX_REQUEST_BYTES, Admission, admitting, answering
from process.metrics import Metrics

_UNMATCHED = "unmatched"


def application(
    routes: Iterable[web.RouteDef],
    *,
    admission: Admission,
    metrics: Metrics,
    max_request_bytes: int,
    elapsed_s: Callable[[], float],
) -> web.Application:
    """Every route of the server, and the OpenAPI document of all of them.

    `elapsed_s` is a clock that only goes forward, in seconds.
    """
    app = web.Application(
        middlewares=[_measuring(metrics, elapsed_s), answering(), admitting(admission)],
        client_max_size=max_request_bytes,
    )
    app[MAX_REQUEST_BYTES] = max_request_bytes
    app.add_routes([*routes, _openapi_route()])
    return app


def _openapi_route() -> web.RouteDef:
    document = json.dumps(openapi.document()).encode("utf-8")

    async def show(_request: web.Request) -> web.Response:
        return web.Response(body=document, content_type="application/json")

    return web.get("/openapi.json", show)


def _measuring(metrics: Metrics, elapsed_s: Callable[[], float]) -> Middleware:
    @web.middleware
    async def measure(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = elapsed_s()
        response = await handler(request)
        resource = request.match_info.route.resource
        # The operation, and not the path: names of topics would make a series each.
        operation = resource.canonical if resource is not None else _UNMATCHED
        metrics.observe_request(
            f"{request.method} {operation}", response.status, elapsed_s() - began
        )
        return response

    return measure
