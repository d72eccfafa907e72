"""An HTTP exchange as values: what a route is asked, and what it answers (protocol §1).

The rooms of the server say what they do with a `Request` and know no HTTP library; how a request
gets in and a reply gets out is the process's business.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import orjson

from tuff.protocol.errors import TuffError
from tuff.protocol.media import PROBLEM_TYPE

JSON_REPLY_TYPE = "application/json; charset=utf-8"
RETRY_AFTER_S = 1  # seconds a client should wait after one of these
RETRIED_STATUSES = (429, 503)

# Tuples, and no dataclasses: one of each is made for every request, and a tuple is made in a third
# of the time.


class Request(NamedTuple):
    """One request, whole. `parameters` are the names in the route's path, `query` is as it came:
    in order, unknown and repeated ones included. Absent headers are None."""

    parameters: Mapping[str, str]
    query: tuple[tuple[str, str], ...]
    content_type: str | None
    accept: str | None
    body: bytes


class Reply(NamedTuple):
    """One answer. `content_type` None: there is no body, and nothing to say about it."""

    status: int = 200
    content_type: str | None = None
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


EMPTY_REPLY = Reply()

Handler = Callable[[Request], Awaitable[Reply]]


class Route(NamedTuple):
    """Who answers a method of a path. A `{name}` in the path matches one whole segment."""

    method: str
    path: str
    handler: Handler


def json_reply(
    form: object, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> Reply:
    """The reply that says this in JSON, whose numbers have at most 64 bits."""
    return Reply(status, JSON_REPLY_TYPE, orjson.dumps(form), headers)


def problem_reply(error: TuffError) -> Reply:
    """The `application/problem+json` reply that an error becomes."""
    headers = (("Retry-After", str(RETRY_AFTER_S)),) if error.status in RETRIED_STATUSES else ()
    body = json.dumps(error.problem()).encode("ascii")
    return Reply(error.status, PROBLEM_TYPE, body, headers)
