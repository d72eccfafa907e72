"""A minimal client that keeps the status, the headers and the bytes of every reply."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, TypeVar
from urllib.parse import urlencode

from tests.http import contract

JSON = "application/json"
AVRO = "avro/binary"
PROBLEM = "application/problem+json"
REPLY_TIMEOUT_S = 90.0  # longer than any wait a test asks for, so a hung server fails its test
CONDITION_STEP_S = 0.01
CONDITION_WITHIN_S = 60.0  # what any condition may take on a busy machine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Header names are in lower case."""

    request: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return self.headers.get(name.lower())


class Client:
    """One kept-alive connection to a server; for one thread.

    `is_checked`: every reply is compared with the OpenAPI document, which costs more than the call.
    `token`: sent with each request; None: none.
    """

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        timeout_s: float = REPLY_TIMEOUT_S,
        is_checked: bool = True,
        token: str | None = None,
    ) -> None:
        self.port = port
        self._authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._is_checked = is_checked
        self._connection = HTTPConnection(host, port, timeout=timeout_s)

    def close(self) -> None:
        self._connection.close()

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Reply:
        """Send these very bytes."""
        target = f"{path}?{urlencode(query)}" if query else path
        sent = {**self._authorization, **(headers or {})}
        if content_type is not None:
            sent["Content-Type"] = content_type
        try:
            self._connection.request(method, target, body, sent)
            response = self._connection.getresponse()
            received = response.read()
        except BaseException:
            # A connection that broke in the middle of a call is of no use to the next one.
            self._connection.close()
            raise
        found = {name.lower(): value for name, value in response.getheaders()}
        if self._is_checked:
            contract.check(method, target, response.status, found.get("content-type"), received)
        return Reply(f"{method} {target} {_shown(body)}", response.status, found, received)

    def call(self, method: str, path: str, body: object = None, **query: object) -> Reply:
        """Send a JSON body (None: no body at all) and query parameters."""
        data = None if body is None else json.dumps(body).encode()
        kind = None if body is None else JSON
        return self.send(method, path, data, content_type=kind, query=query)

    def get(self, path: str, **query: object) -> Reply:
        return self.call("GET", path, None, **query)

    def post(self, path: str, body: object = None, **query: object) -> Reply:
        return self.call("POST", path, body, **query)

    def put(self, path: str, body: object = None, **query: object) -> Reply:
        return self.call("PUT", path, body, **query)

    def delete(self, path: str, **query: object) -> Reply:
        return self.call("DELETE", path, None, **query)


def ok(reply: Reply) -> Reply:
    """The reply, which must be a success."""
    assert reply.status in {200, 201}, f"{reply.request}\n-> {reply.status} {reply.body!r}"
    return reply


def refused(reply: Reply, status: int, code: str, *, naming: str = "") -> Any:
    """The problem document of a refusal (protocol §1, Errors): one plain sentence, a stable code,
    no stack trace. `naming`: what the sentence has to name."""
    problem = problem_of(reply)
    shown = f"{reply.request}\n-> {reply.status} {reply.body!r}"
    assert (reply.status, problem.get("code")) == (status, code), shown
    assert naming in problem["detail"], shown
    return problem


def problem_of(reply: Reply) -> Any:
    """The body of a refusal, whichever it is, after checking its form."""
    shown = f"{reply.request}\n-> {reply.status} {reply.body!r}"
    assert reply.status >= 400, shown
    assert (reply.header("Content-Type") or "").startswith(PROBLEM), shown
    problem = reply.json
    assert problem["type"] == "about:blank", shown
    assert problem["status"] == reply.status, shown
    assert problem["title"], shown
    assert problem["detail"].strip(), shown
    assert "\n" not in problem["detail"], shown
    assert "Traceback" not in reply.body.decode(), shown
    return problem


def until(condition: Callable[[], T], *, within_s: float = CONDITION_WITHIN_S, what: str = "") -> T:
    """What `condition` gives as soon as it is true; an assertion fails when the time is over."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what or condition}"
        time.sleep(CONDITION_STEP_S)
    return found


def _shown(body: bytes | None) -> str:
    return "" if body is None else repr(body[:500])
