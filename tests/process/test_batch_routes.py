"""A route whose handler gets a list of requests, and answers each of them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from kernel.batch_routes import batch_route
from kernel.event_loop import Arrivals
from kernel.requests_and_replies import Reply, Request, Route, json_reply
from process import session_connection
from process.access_guard import AccessGuard
from process.admission_and_dispatch import Admission, Dispatcher
from process.allowed_hosts import AllowedHosts
from process.audit_topic import AuditTopic
from process.http_connection import HttpService
from process.listener import Listener
from process.metrics import Metrics
from process.request_spans import RequestSpans
from process.session_connection import Sessions
from tests.process.served import connected, until
from tests.secret_values import hash_of_token, token_of
from tuff.protocol.errors import BadRequestError, RequestForgottenError, UnavailableError
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import BY_NUMBER, COMMIT
from tuff.protocol.session_frames import PROTOCOL, FrameReader, Kind, frame

PENDING_MAX = 8
REFUSED = RequestForgottenError("it is too old")


class Handler:
    """Notes the names of the calls of each list; answers those that begin with "now" at once, and
    keeps the others."""

    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.waiting: dict[str, Request] = {}
        self.error: Exception | None = None

    def __call__(self, requests: Sequence[Request]) -> None:
        self.lists.append([each.parameters["tx"] for each in requests])
        for each in requests:
            name = each.parameters["tx"]
            if name.startswith("now"):
                each.reply(json_reply(name))
            elif self.error is None:
                self.waiting[name] = each
        if self.error is not None:
            raise self.error

    def answer(self, name: str, reply: Reply | Exception | None = None) -> None:
        self.waiting.pop(name).reply(json_reply(name) if reply is None else reply)


class World:
    """A server with one batch route, that of a commit, over HTTP and sessions."""

    def __init__(self) -> None:
        self.handler = Handler()
        self.admission = Admission(pending_max=PENDING_MAX, waiting=lambda: 0, arrivals=Arrivals())
        self.admission.open()
        self.metrics = Metrics()

    async def open(
        self,
        *,
        access: AccessGuard | None = None,
        audit: AuditTopic | None = None,
        spans: RequestSpans | None = None,
    ) -> None:
        others = [Route(each, _answer) for each in BY_NUMBER.values() if each != COMMIT]
        routes = [batch_route(COMMIT, self.handler), *others, session_connection.route()]
        watching = [each for each in (spans, audit) if each is not None]
        dispatcher = Dispatcher(
            self.admission,
            self.metrics,
            elapsed_s=lambda: 0.0,
            access=access,
            watches=[each.watch for each in watching],
        )
        service = HttpService(
            routes,
            (),
            dispatcher,
            AllowedHosts(["x"]),
            max_request_bytes=1_000,
            now_ms=lambda: 0,
        )
        sessions = Sessions(
            routes,
            dispatcher,
            service.connections,
            max_request_bytes=1_000,
            refusal=lambda _head: None,
        )
        service.switch = sessions.begin
        self.listener = Listener(service, connections_max=99)
        self.port = await self.listener.listen("127.0.0.1", 0)

    async def close(self) -> None:
        await self.listener.close(within_s=0)

    def counted(self, outcome: str) -> int:
        """How many commits the metrics count with this outcome."""
        found = self.metrics._requests.by_labels.get((str(COMMIT), outcome))
        return 0 if found is None else sum(found.counts)


async def _answer(_request: Request) -> Reply:
    return Reply()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()


def http(*names: str, token: str = "") -> bytes:
    """The bytes of commits with these names."""
    field = f"Authorization: Bearer {token_of(token)}\r\n" if token else ""
    requests = [
        f"POST /v1/transactions/{name}/commit HTTP/1.1\r\nHost: x\r\n{field}Content-Length: 2"
        "\r\n\r\n{}"
        for name in names
    ]
    return "".join(requests).encode()


async def replied(reader: asyncio.StreamReader) -> tuple[int, str]:
    """The status and the body of the next reply."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.split("Content-Length: ")[1].split("\r\n")[0])
    return int(head.split(" ")[1]), (await reader.readexactly(length)).decode()


async def said(port: int, *requests: bytes) -> list[tuple[int, str]]:
    """The replies to requests, each of a connection of its own, which arrive at once."""

    async def one(sent: bytes) -> tuple[int, str]:
        async with connected(port) as (reader, writer):
            writer.write(sent)
            return await replied(reader)

    return list(await asyncio.gather(*map(one, requests)))


async def test_the_requests_of_a_turn_are_one_list_and_are_answered_in_any_order(
    world: World,
) -> None:
    await world.open()
    async with connected(world.port) as (reader, writer), connected(world.port) as (other, sends):
        replies, calls = await asyncio.open_connection("127.0.0.1", world.port)
        calls.write(
            f"GET /v1/session HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
            f"Upgrade: {PROTOCOL}\r\n\r\n".encode()
        )
        frames = FrameReader(frame_bytes_max=1_000)
        greeting = await replies.readuntil(b"\r\n\r\n")
        assert greeting.startswith(b"HTTP/1.1 101 ")

        writer.write(http("a"))
        sends.write(http("b"))
        calls.write(
            b"".join(
                frame(Kind.CALL, number, COMMIT.number, [name], None, None, None, None)
                for number, name in enumerate(("c", "now", "d"))
            )
        )
        await until(lambda: sum(map(len, world.handler.lists)) == 5)
        assert world.admission.under_way == 4
        for name in ("d", "b", "a", "c"):
            world.handler.answer(name)

        assert await replied(reader) == (200, '"a"')
        assert await replied(other) == (200, '"b"')
        found: list[object] = []
        while len(found) < 4:
            read, error = frames.feed(await replies.read(1_000))
            assert error is None
            found += [elements[1] for _, elements in read]
        assert found[1:] == [1, 2, 0]
        calls.close()
    assert world.admission.under_way == 0
    assert world.counted("2xx") == 5


async def test_each_request_may_be_refused_by_itself(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.open()
    replies = asyncio.ensure_future(said(world.port, http("a"), http("b"), http("c")))
    await until(lambda: len(world.handler.waiting) == 3)

    with caplog.at_level(logging.ERROR):
        world.handler.answer("b", REFUSED)
        world.handler.answer("c", ValueError("on purpose"))
        world.handler.answer("a")

        (one, first), (two, second), (three, third) = await replies
    assert (one, first) == (200, '"a"')
    assert (two, REFUSED.code in second) == (REFUSED.status, True)
    assert (three, "bug 1" in third) == (500, True)
    assert [each.message for each in caplog.records] == [f"bug 1 in {COMMIT}"]
    assert world.admission.under_way == 0


async def test_requests_above_the_limit_leave_the_list(world: World) -> None:
    await world.open()
    names = [f"x{number}" for number in range(PENDING_MAX)]
    first = asyncio.ensure_future(said(world.port, *map(http, names[1:])))
    await until(lambda: len(world.handler.waiting) == PENDING_MAX - 1)

    second = asyncio.ensure_future(said(world.port, http("a"), http("b"), http("now")))
    await until(lambda: len(world.handler.waiting) == PENDING_MAX)
    for name in tuple(world.handler.waiting):
        world.handler.answer(name)

    assert [status for status, _ in await second] == [200, 429, 429]
    assert {status for status, _ in await first} == {200}
    assert world.handler.lists[-1] == ["a"]
    assert world.admission.under_way == 0
    assert (world.counted("2xx"), world.counted("4xx")) == (PENDING_MAX, 2)


@pytest.mark.parametrize(
    ("error", "status"), [(UnavailableError("down"), 503), (ValueError("on purpose"), 500)]
)
async def test_an_error_of_the_handler_is_the_reply_to_each_that_has_none(
    world: World, error: Exception, status: int
) -> None:
    await world.open()
    world.handler.error = error

    replies = await said(world.port, http("a"), http("now"), http("b"))

    assert [each for each, _ in replies] == [status, 200, status]
    assert world.admission.under_way == 0


async def test_a_reply_to_a_client_that_has_disconnected_is_dropped(world: World) -> None:
    await world.open()
    async with connected(world.port) as (_, writer):
        writer.write(http("a"))
        await until(lambda: "a" in world.handler.waiting)
    await until(lambda: len(world.listener._service.connections) == 0)
    assert world.admission.under_way == 1

    world.handler.answer("a")

    assert world.admission.under_way == 0
    assert world.counted("2xx") == 1


async def test_a_call_by_itself_is_a_list_of_one() -> None:
    handler = Handler()
    route = batch_route(COMMIT, handler)
    one, two = [
        asyncio.ensure_future(route.handler(Request({"tx": name}, (), None, None, b"")))
        for name in ("a", "b")
    ]
    await until(lambda: len(handler.waiting) == 2)

    handler.answer("a")
    handler.answer("b", REFUSED)

    assert await one == json_reply("a")
    with pytest.raises(RequestForgottenError):
        await two
    assert handler.lists == [["a"], ["b"]]


async def test_a_call_is_answered_once() -> None:
    handler = Handler()
    route = batch_route(COMMIT, handler)
    waiting = asyncio.ensure_future(route.handler(Request({"tx": "a"}, (), None, None, b"")))
    await until(lambda: len(handler.waiting) == 1)
    request = handler.waiting["a"]
    request.reply(Reply())

    with pytest.raises(AssertionError, match="a second reply"):
        request.reply(Reply())

    await waiting


ACCESS = f"""
[principals.a]
tokens = ["{hash_of_token("a")}"]
bytes_per_second = 20
[[principals.a.rights]]
allow = ["transact"]

[principals.b]
tokens = ["{hash_of_token("b")}"]
"""


def guard_of(tmp_path: Path) -> AccessGuard:
    file = tmp_path / "access.toml"
    file.write_text(ACCESS)
    return AccessGuard(file, now_s=lambda: 0.0)


async def test_refused_requests_leave_the_list_and_replies_count_in_the_quota(
    world: World, tmp_path: Path
) -> None:
    guard = guard_of(tmp_path)
    await world.open(access=guard)
    sent = [http("a", token="a"), http("b", token="b"), http("c")]
    replies = asyncio.ensure_future(said(world.port, *sent))
    await until(lambda: "a" in world.handler.waiting)

    world.handler.answer("a", Reply(200, "text/plain", b"x" * 100))

    assert [status for status, _ in await replies] == [200, 403, 401]
    assert world.handler.lists == [["a"]]
    ((status, _),) = await said(world.port, http("now", token="a"))
    assert status == 429


async def test_refusals_of_a_list_are_in_the_audit_topic(world: World, tmp_path: Path) -> None:
    guard = guard_of(tmp_path)
    audit = AuditTopic(
        TopicId("system", "audit"),
        guard,
        ttl_s=60,
        server="s1",
        now_ms=lambda: 7,
        spawn=asyncio.ensure_future,
        principal_of=lambda _pointer: None,
    )
    await world.open(access=guard, audit=audit)

    replies = await said(world.port, http("now", token="a"), http("now", token="b"))

    assert [status for status, _ in replies] == [200, 403]
    (message,) = audit._waiting
    assert '"principal": "b"' in message
    assert '"result": "forbidden"' in message


class Ended(SpanProcessor):
    """Notes the spans that end."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


async def test_each_request_of_a_list_is_a_span(world: World) -> None:
    spans, ended = RequestSpans("http://127.0.0.1:1"), Ended()
    spans._provider._active_span_processor._span_processors = (ended,)
    await world.open(spans=spans)
    world.handler.error = BadRequestError("all of them")

    replies = await said(world.port, http("now"), http("a"))

    assert [status for status, _ in replies] == [200, 400]
    found = [
        (each.name, (each.attributes or {})["http.response.status_code"]) for each in ended.spans
    ]
    assert found == [(str(COMMIT), 200), (str(COMMIT), 400)]
