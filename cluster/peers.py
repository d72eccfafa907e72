"""Requests to the other servers of the cluster: the only module of the server that knows aiohttp.

Each request is sent once. If no answer comes, the caller learns whether the request may have been
executed, and decides what that means for its own caller.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from io import BytesIO
from ssl import SSLContext
from typing import TypeVar

import aiohttp
from yarl import URL

from kernel.event_loop import Spawn
from kernel.requests_and_replies import SERVER_SCHEME, Reply, Request
from tuff.aiohttp_sessions import new_session, notice_closed_connections
from tuff.protocol.errors import TuffError, from_problem

T = TypeVar("T")

CONNECT_S_MAX = 2.0  # seconds; servers of a cluster are near, and a client waits meanwhile
# Connections to one server for requests of clients, as many for long polls, and as many for calls
# of this server: polls that wait must not keep writes out, nor slow writes the end of transactions.
# More requests wait for a free one, for `CONNECT_S_MAX`.
CONNECTIONS_COUNT_MAX = 512
# Less than the time after which a server closes an idle connection (process/http_connection.py): a
# request that is sent while the other end closes is lost with an unknown outcome.
IDLE_S_MAX = 30.0
_JOINED_BYTES_MAX = 1 << 20  # a larger body is sent in parts, so that the event loop runs meanwhile

_JSON = "application/json"
# Fields of a reply that belong to its connection, or that this server writes itself.
_OF_THE_CONNECTION = frozenset(
    {"connection", "content-length", "content-type", "date", "keep-alive", "server",
     "transfer-encoding"}
)  # fmt: skip
# Without these, aiohttp would say on behalf of the client what the client did not say.
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True, slots=True)
class Owner:
    """Another server of the cluster, and the address at which the servers reach it."""

    server_id: str
    url: str


class PeerUnansweredError(Exception):
    """Another server gave no answer. `was_sent` False: it received nothing, and executed nothing.
    True: it may have executed the request, or still will."""

    def __init__(self, sentence: str, *, was_sent: bool) -> None:
        super().__init__(sentence)
        self.was_sent = was_sent


class PeerRefusedError(Exception):
    """Another server has refused a request; `error` says why."""

    def __init__(self, error: TuffError) -> None:
        super().__init__(error.detail)
        self.error = error


class Peers:
    """Connections to the other servers. Lives on one event loop; `spawn` starts a task on it.

    `secret` proves this server to the others; None: there is no access control. `tls` has the
    authorities of their certificates; None: those of the machine.
    """

    def __init__(
        self, *, spawn: Spawn, secret: str | None = None, tls: SSLContext | None = None
    ) -> None:
        self._secret = secret
        self._requests = _Connections(spawn, tls)
        self._polls = _Connections(spawn, tls)
        self._calls = _Connections(spawn, tls)

    async def forward(
        self,
        base_url: str,
        method: str,
        target: str,
        request: Request,
        *,
        within_s: float,
        waits: bool = False,
    ) -> Reply:
        """The reply of another server to a request of a client, with `Tuff-Owner` added.

        `target` is the path and the query with their escapes. `within_s` limits the whole exchange.
        `waits`: the request is a read that may wait for long. If the caller gives up because its
        client has disconnected, the connection is closed, and the other server sees the same.

        Raises: PeerUnansweredError.
        """
        fields = self._forwarded_fields(request)
        sent = _Exchange(base_url, method, target, fields, request.body, within_s)
        connections = self._polls if waits else self._requests
        return _reply(base_url, await connections.answer_of(sent))

    @property
    def polls_count(self) -> int:
        """Long polls under way, which mostly wait."""
        return self._polls.under_way_count

    async def ask(
        self,
        base_url: str,
        method: str,
        path: str,
        body: bytes | Mapping[str, object] | None = None,
        *,
        within_s: float,
    ) -> object:
        """The reply of another server to a request of this one: its JSON value, or its bytes where
        it is not JSON. `path` has its escapes, and `within_s` limits the whole exchange.

        Raises:
            PeerUnansweredError: no answer came in time.
            PeerRefusedError: the other server has refused the request.
        """
        fields = {"Accept": _JSON}
        if self._secret is not None:
            fields["Authorization"] = f"{SERVER_SCHEME} {self._secret}"
        if isinstance(body, bytes):
            fields["Content-Type"] = "application/octet-stream"
        elif body is not None:
            fields["Content-Type"] = _JSON
            body = json.dumps(body).encode("ascii")
        sent = _Exchange(base_url, method, path, fields, body or b"", within_s)
        status, received, answer = await self._calls.answer_of(sent)
        if status >= 300:  # no redirect is followed
            raise PeerRefusedError(_refusal(status, received, answer))
        if not _is_json(received):
            return answer
        try:
            return json.loads(answer)
        except ValueError as error:
            raise PeerUnansweredError(
                f"{base_url} answered {method} {path} with JSON that can't be read: {error}",
                was_sent=True,
            ) from None

    def drop(self, base_url: str) -> None:
        """Another server has left the cluster: give up the requests that it was sent. One that is
        paused would keep them for long, and answers none of them any more."""
        for pool in (self._requests, self._polls, self._calls):
            pool.drop(base_url)

    def _forwarded_fields(self, request: Request) -> dict[str, str]:
        authorization = request.authorization
        if self._secret is not None:
            assert request.caller is not None, "access is checked before a request is forwarded"
            # The other server need not know the token or the certificate of the client.
            authorization = f"{SERVER_SCHEME} {self._secret} {request.caller.principal}"
        return _forwarded_fields(request._replace(authorization=authorization))

    async def close(self) -> None:
        """Close all connections. Requests under way, and later ones, end with
        PeerUnansweredError."""
        for pool in (self._requests, self._polls, self._calls):
            await pool.close()


_Fields = list[tuple[str, str]]
_RawReply = tuple[int, _Fields, bytes]


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request to another server, and its answer."""

    base_url: str
    method: str
    target: str
    fields: Mapping[str, str]
    body: bytes
    within_s: float

    async def answer(self, session: aiohttp.ClientSession) -> _RawReply:
        """Send the request once. Needs a task. Raises: PeerUnansweredError."""
        if self.method != "GET":
            await notice_closed_connections()
        if session.closed:
            raise PeerUnansweredError("this server is stopping", was_sent=False)
        large = len(self.body) > _JOINED_BYTES_MAX
        try:
            async with session.request(
                self.method,
                URL(self.base_url.rstrip("/") + self.target, encoded=True),
                data=BytesIO(self.body) if large else self.body or None,
                headers=self.fields,
                skip_auto_headers=_NOT_ADDED,
                timeout=aiohttp.ClientTimeout(total=self.within_s, connect=CONNECT_S_MAX),
                allow_redirects=False,
            ) as reply:
                body = await reply.read()
                return reply.status, list(reply.headers.items()), body
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise PeerUnansweredError(
                f"server {self.base_url} can't be reached ({_reason(error)})", was_sent=False
            ) from None
        except (aiohttp.ClientError, OSError) as error:  # a timeout is an OSError
            raise PeerUnansweredError(
                f"server {self.base_url} was lost before it answered ({_reason(error)})",
                was_sent=True,
            ) from None


class _Connections:
    """Connections to the other servers, up to a number for each. `spawn` starts a task."""

    def __init__(self, spawn: Spawn, tls: SSLContext | None) -> None:
        self._spawn = spawn
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False
        self._under_way: defaultdict[str, set[asyncio.Future[_RawReply]]] = defaultdict(set)

    async def answer_of(self, sent: _Exchange) -> _RawReply:
        """Raises: PeerUnansweredError."""
        if self._is_closed:
            raise PeerUnansweredError("this server is stopping", was_sent=False)
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                limit_per_host=CONNECTIONS_COUNT_MAX,
                keepalive_timeout=IDLE_S_MAX,
                ssl=self._tls or True,
            )
            self._session = new_session(connector, auto_decompress=False)
        done: asyncio.Future[_RawReply] = asyncio.get_running_loop().create_future()
        self._spawn(_run(sent, self._session, done))
        under_way = self._under_way[sent.base_url]
        under_way.add(done)
        try:
            return await done
        finally:
            done.cancel()  # if the caller gave up
            under_way.discard(done)

    @property
    def under_way_count(self) -> int:
        return sum(map(len, self._under_way.values()))

    def drop(self, base_url: str) -> None:
        for done in self._under_way.pop(base_url, ()):
            if not done.done():
                done.set_exception(
                    PeerUnansweredError(
                        f"server {base_url} left the cluster before it answered", was_sent=True
                    )
                )

    async def close(self) -> None:
        self._is_closed = True
        if self._session is not None:
            await self._session.close()


async def _run(
    sent: _Exchange, session: aiohttp.ClientSession, done: "asyncio.Future[_RawReply]"
) -> None:
    """What the task of an exchange runs: aiohttp needs one, and a handler runs without
    (`kernel.event_loop.LightTask`). The task ends when `done` has ended otherwise."""
    task = asyncio.current_task()
    assert task is not None
    if done.done():  # the caller gave up before the task began
        return
    done.add_done_callback(lambda _: task.cancel())
    await resolve_future(done, sent.answer(session))


async def resolve_future(future: "asyncio.Future[T]", work: Awaitable[T]) -> None:
    """Give the result of the work, or its exception, to a future that others wait for."""
    try:
        result = await work
    except Exception as error:  # noqa: BLE001 - the callers get it
        if not future.done():
            future.set_exception(error)
            if isinstance(error, TuffError):
                future.exception()  # so that it is not reported if no caller waits
    except BaseException:
        future.cancel()
        raise
    else:
        if not future.done():
            future.set_result(result)


def _forwarded_fields(request: Request) -> dict[str, str]:
    fields = {"Tuff-Forwarded": "1"}
    given = (
        ("Content-Type", request.content_type),
        ("Accept", request.accept),
        ("Authorization", request.authorization),
    )
    for name, value in given:
        if value is not None:
            # Bytes that are no UTF-8 are no text that aiohttp could send. No field needs them.
            raw = value.encode("utf-8", "surrogateescape")
            fields[name] = raw.decode("utf-8", "replace")
    return fields


def _reply(base_url: str, answer: _RawReply) -> Reply:
    status, fields, body = answer
    kept = tuple(each for each in fields if each[0].lower() not in _OF_THE_CONNECTION)
    return Reply(status, _content_type(fields), body, (*kept, ("Tuff-Owner", base_url)))


def _content_type(fields: _Fields) -> str | None:
    return next((value for name, value in fields if name.lower() == "content-type"), None)


def _is_json(fields: _Fields) -> bool:
    essence = (_content_type(fields) or "").partition(";")[0].strip().lower()
    return essence == _JSON or essence.endswith("+json")


def _refusal(status: int, fields: _Fields, body: bytes) -> TuffError:
    """The error of a refusal, also where it is no problem document of a server."""
    problem: object = None
    if _is_json(fields):
        try:
            problem = json.loads(body)
        except ValueError:
            problem = None
    return from_problem(problem if isinstance(problem, dict) else {}, status=status)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
