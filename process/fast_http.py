"""The fast path of HTTP: plain requests, answered without the objects of an HTTP library.

    request := line CRLF fields CRLF [body]
    line    := (GET | POST | PUT | DELETE) SP path [? query] SP HTTP/1.1
    path    := / with letters, digits, - . _ ~ /      query := the same, less /, with = and &

A connection begins on the fast path. Each request that is plain and has a route is read out of the
bytes, and its reply is written as one piece of bytes. At the first request that is not plain the
general path (process/general_http.py) gets the connection for good, with every byte that was not
served.

A request line with an escape, an absolute address or another version is not plain. Header fields
are judged by the parser of the general path, once for each block of them: a client repeats its
fields byte for byte, so a block that was found plain is looked up from then on. Fields that change
where a request ends (two lengths, a transfer coding, a folded field) are not plain. So both
paths agree about the end of a request. A request that is refused for its host or its origin
(process/allowed_hosts.py) is not plain either.

Requests of one connection are served one after the other, since HTTP wants the replies in order.
What arrives meanwhile is held, up to a bound; beyond it the connection is not read.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from process.allowed_hosts import AllowedHosts
from process.connections import Connections, SlowReader
from process.dispatch import Dispatcher, RouteTree, is_given_up
from tuff.disk.event_loop import LightTask
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.protocol.exchange import Handler, Reply, Request

LINES_COUNT_MAX = (
    4_096  # request lines that are remembered; about as many topics are busy at a time
)
LINE_BYTES_KEPT_MAX = 256  # bytes of such a line; with the count it bounds the memory to 4 MiB

_LINE = re.compile(
    rb"(GET|POST|PUT|DELETE) (/[A-Za-z0-9._~/-]*)(?:\?([A-Za-z0-9._~=&-]*))? HTTP/1\.1"
)
_NUMBER = re.compile(rb"/([0-9]{16,19})(?=[/ ])")  # a pointer, as a whole segment
_NO_NUMBER = b"0"  # replaces it where a line is looked up without its number

Query = tuple[tuple[str, str], ...]

BLOCKS_COUNT_MAX = 1_024  # blocks of fields that are remembered; a client has one or two
BLOCK_BYTES_MAX = 2_048  # bytes of a block; with the count it bounds the memory to 2 MiB
LINE_BYTES_MAX = 8_190  # bytes of the request line or of a header field
FIELDS_COUNT_MAX = 128  # header fields of one request

_LINE_END = b"\r\n"
_END = b"\r\n\r\n"
# Fields that change how a request is read or answered.
_NOT_PLAIN = frozenset({"transfer-encoding", "expect", "upgrade", "content-encoding", "trailer"})
# Fields that a request has once at most (RFC 9110). Two readers might take each another of them.
_SENT_ONCE = frozenset(
    {"content-length", "content-type", "host", "max-forwards", "transfer-encoding", "user-agent"}
)

BODY_BYTES_MAX = 1 << 20  # bytes; larger bodies go to the general path
JOINED_BYTES_MAX = 1 << 16  # bytes of a body; a larger one is not copied behind its head
HELD_BYTES_MAX = 1 << 18  # bytes that wait behind a request under way; then reading pauses
KEEP_ALIVE_S = 75.0  # seconds an idle connection is kept

Work = Coroutine[Any, Any, Reply]

Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer")


class Remembered(dict[Question, Answer]):
    """A cache: a hit costs one dict lookup. A miss calls `answer` and keeps the result if
    `is_kept` says so; when `count_max` are kept, all are dropped."""

    def __init__(
        self,
        answer: Callable[[Question], Answer],
        *,
        is_kept: Callable[[Question], bool],
        count_max: int,
    ) -> None:
        super().__init__()
        self._answer = answer
        self._is_kept = is_kept
        self._count_max = count_max

    def __missing__(self, question: Question) -> Answer:
        found = self._answer(question)
        if self._is_kept(question):
            if len(self) >= self._count_max:
                self.clear()
            self[question] = found
        return found


class Asked(NamedTuple):
    """The route of a request line, its parameters and query."""

    operation: str
    handler: Handler
    parameters: Mapping[str, str]
    query: Query


class _Numbered(NamedTuple):
    """The same, for any number as the only parameter."""

    operation: str
    handler: Handler
    parameter: str
    query: Query


class Lines:
    """Finds the route of a request line; remembers, within bounds, what was found."""

    def __init__(self, tree: RouteTree) -> None:
        self._tree = tree
        self._whole = Remembered(self._read, is_kept=_is_kept, count_max=LINES_COUNT_MAX)
        self._numbered = Remembered(
            self._read_numbered, is_kept=_is_kept, count_max=LINES_COUNT_MAX
        )

    def find(self, line: bytes) -> Asked | None:
        """None when the line is not plain, or has no route."""
        known = self._whole.get(line)
        if known is not None:
            return known
        number = _NUMBER.search(line)
        if number is not None:
            start, stop = number.span(1)
            numbered = self._numbered[line[:start] + _NO_NUMBER + line[stop:]]
            if numbered is not None:
                operation, handler, parameter, query = numbered
                return Asked(operation, handler, {parameter: number[1].decode()}, query)
        return self._whole[line]

    def _read(self, line: bytes) -> Asked | None:
        plain = _LINE.fullmatch(line)
        if plain is None:
            return None
        method, path, query = plain.groups()
        found = self._tree.find(method.decode(), path.decode())
        if found is None:
            return None
        pairs = tuple(parse_qsl(query.decode(), keep_blank_values=True)) if query else ()
        return Asked(*found, pairs)

    def _read_numbered(self, line: bytes) -> _Numbered | None:
        """None, unless the number is the only parameter of the route."""
        asked = self._read(line)
        if asked is None or list(asked.parameters.values()) != [_NO_NUMBER.decode()]:
            return None
        (parameter,) = asked.parameters
        return _Numbered(asked.operation, asked.handler, parameter, asked.query)


def _is_kept(line: bytes) -> bool:
    return len(line) <= LINE_BYTES_KEPT_MAX


class Fields(NamedTuple):
    """The fields of a block that matter."""

    content_length: int
    content_type: str | None
    accept: str | None


class Head(NamedTuple):
    """The head of a plain request that has a route; `size` counts its bytes."""

    asked: Asked
    fields: Fields
    size: int


class Heads:
    """Reads the heads of requests; remembers blocks of fields, within bounds."""

    def __init__(self, lines: Lines, hosts: AllowedHosts) -> None:
        self._lines = lines
        self._blocks = Remembered(
            partial(_plain_fields, hosts=hosts),
            is_kept=lambda block: len(block) <= BLOCK_BYTES_MAX,
            count_max=BLOCKS_COUNT_MAX,
        )

    def read(self, data: bytes) -> Head | None:
        """The head that the bytes begin with; None when it is not whole, not plain, or has no
        route."""
        line_end = data.find(_LINE_END, 0, LINE_BYTES_MAX)
        if line_end < 0:
            return None
        # The blank line may come at once, where there are no fields.
        end = data.find(_END, line_end)
        if end < 0:
            return None
        asked = self._lines.find(data[:line_end])
        if asked is None:
            return None
        fields = self._blocks[data[line_end + 2 : end + 2]]
        if fields is None:
            return None
        return Head(asked, fields, end + len(_END))


HeaderFields = dict[str, list[str]]  # every value of a field, by its name in small letters


def add_field(fields: HeaderFields, name: bytes, value: bytes) -> None:
    """Add a field that the parser found."""
    text = value.strip(b" \t").decode("utf-8", "surrogateescape")
    fields.setdefault(name.decode("latin-1").lower(), []).append(text)


def refusal_of_fields(fields: HeaderFields) -> TuffError | None:
    """Why a request with these header fields is refused by any route; None where it is not."""
    if sum(map(len, fields.values())) > FIELDS_COUNT_MAX:
        return BadRequestError(f"the request has more than {FIELDS_COUNT_MAX} header fields")
    for name, values in fields.items():
        if len(name) + max(map(len, values)) > LINE_BYTES_MAX:
            return BadRequestError(
                f"a header field is longer than {LINE_BYTES_MAX} bytes; send less"
            )
        if len(values) > 1 and name in _SENT_ONCE:
            return BadRequestError(f"the request has {len(values)} {name.title()} fields; send one")
    return None


def accept_of(fields: HeaderFields) -> str | None:
    """The values of all Accept fields; None where there is none."""
    lines = fields.get("accept")
    return ", ".join(lines) if lines else None


class _FieldReader:
    """Receives what the parser finds in one block of header fields."""

    def __init__(self) -> None:
        self.parser = HttpRequestParser(self)
        self.fields: HeaderFields = {}
        self.heads_count = 0
        self.has_body = False
        self.is_kept_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        add_field(self.fields, name, value)

    def on_headers_complete(self) -> None:
        self.heads_count += 1
        self.is_kept_alive = self.parser.should_keep_alive()

    def on_body(self, _part: bytes) -> None:
        self.has_body = True


def _plain_fields(block: bytes, *, hosts: AllowedHosts) -> Fields | None:
    found = _FieldReader()
    try:
        found.parser.feed_data(b"POST / HTTP/1.1\r\n" + block + b"\r\n")
    except (HttpParserError, HttpParserUpgrade):
        return None
    fields = found.fields
    if (
        found.heads_count != 1
        or found.has_body  # the parser saw the end of the fields before their last line
        or not found.is_kept_alive
        or "host" not in fields
        or not _NOT_PLAIN.isdisjoint(fields)
        or refusal_of_fields(fields) is not None
        or hosts.refusal(fields) is not None
    ):
        return None
    length = int(fields.get("content-length", ["0"])[0])
    return Fields(length, fields.get("content-type", [None])[0], accept_of(fields))


class ReplyBytes:
    """Turns replies into bytes. `now_ms` is the wall clock. `elapsed_s` is a cheap monotonic clock:
    the Date field is made anew when a second of it has passed."""

    def __init__(
        self, *, server: str, now_ms: Callable[[], int], elapsed_s: Callable[[], float]
    ) -> None:
        self._server = server
        self._now_ms = now_ms
        self._elapsed_s = elapsed_s
        self._dated_s = -1
        self._close = b""
        self._starts: dict[tuple[int, str | None], bytes] = {}

    def pack(self, reply: Reply) -> bytes:
        """The whole reply, for a connection that stays open."""
        return self.head(reply) + reply.body

    def head(self, reply: Reply) -> bytes:
        """The head of a reply."""
        status, content_type, body, headers = reply
        try:
            start = self._starts[status, content_type]
        except KeyError:
            start = self._starts[status, content_type] = _start(status, content_type)
        if int(self._elapsed_s()) != self._dated_s:
            self._date()
        if not headers:
            return b"%b%d\r\n%b" % (start, len(body), self._close)
        more = "".join([f"{name}: {value}\r\n" for name, value in headers])
        return b"%b%d\r\n%b%b" % (start, len(body), more.encode("ascii"), self._close)

    def stream_head(
        self, status: int, content_type: str, headers: Iterable[tuple[str, str]]
    ) -> bytes:
        """The head of a reply whose length is not known; `headers` say how it ends."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n"
        self._date()
        return f"{start}{lines}".encode("ascii") + self._close

    def _date(self) -> None:
        self._dated_s = int(self._elapsed_s())
        date = formatdate(self._now_ms() / 1000, usegmt=True)
        self._close = f"Date: {date}\r\nServer: {self._server}\r\n\r\n".encode("ascii")


def _start(status: int, content_type: str | None) -> bytes:
    named = "" if content_type is None else f"Content-Type: {content_type}\r\n"
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{named}Content-Length: ".encode(
        "ascii"
    )


class FastConnections:
    """Every connection on the fast path, and what they share. Lives on one event loop.

    `general` makes the general path's protocol for one connection.
    """

    def __init__(
        self,
        tree: RouteTree,
        dispatcher: Dispatcher,
        hosts: AllowedHosts,
        *,
        general: Callable[[], asyncio.Protocol],
        replies: ReplyBytes,
        max_request_bytes: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.general = general
        self.heads = Heads(Lines(tree), hosts)
        self.replies = replies
        self.body_bytes_max = min(max_request_bytes, BODY_BYTES_MAX)
        self.connections: Connections[FastConnection] = Connections()
        self._dispatcher = dispatcher

    def work_for(self, head: Head, body: bytes) -> Work:
        """The coroutine that answers this request."""
        (operation, handler, parameters, query), (_, content_type, accept), _ = head
        request = Request(parameters, query, content_type, accept, body)
        return self._dispatcher.answer(operation, handler, request)


class FastConnection(asyncio.Protocol):
    """One connection, until it closes or leaves the fast path."""

    __slots__ = (
        "_held",
        "_is_closing",
        "_is_paused",
        "_needed",
        "_operation",
        "_quiet_s",
        "_shared",
        "_slow_reader",
        "_timer",
        "_transport",
        "_work",
    )  # fmt: skip

    def __init__(self, shared: FastConnections) -> None:
        self._shared = shared
        self._transport: asyncio.Transport | None = None
        self._held = (
            bytearray()
        )  # bytes of a request that is not whole, or behind the one under way
        self._needed = 0  # bytes that must be held before the request is whole
        self._work: LightTask[Reply] | None = None  # the request under way
        self._operation = ""  # of the request under way, or of the last one
        self._is_paused = False  # the client does not read its replies
        self._is_closing = False
        self._quiet_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._slow_reader: SlowReader | None = None  # once the transport has paused

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport
        self._shared.connections.add(self)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget()
        if is_given_up(self._operation):
            self._give_up()

    def data_received(self, data: bytes) -> None:
        if self._held or self._work is not None or self._is_paused:
            self._held += data
            self._go_on()
        else:
            self._take(data)

    def pause_writing(self) -> None:
        self._is_paused = True
        self._watch()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._slow_reader is not None:
            self._slow_reader.taken()
        self._go_on()

    def _watch(self) -> None:
        if self._slow_reader is None and self._transport is not None:
            self._slow_reader = SlowReader(self._transport)
        if self._slow_reader is not None:
            self._slow_reader.watch()

    def close(self) -> None:
        """Close the connection, once the request under way is answered."""
        self._is_closing = True
        if self._work is None and self._transport is not None:
            self._transport.close()
            self._watch()

    def abort(self) -> None:
        """Close the connection now, and cancel the request under way."""
        self._give_up()
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.give_up()

    def _go_on(self) -> None:
        if self._transport is None or self._is_closing:
            return
        if self._work is not None or self._is_paused:
            if len(self._held) > HELD_BYTES_MAX:
                self._transport.pause_reading()
            return
        if not self._held or len(self._held) < self._needed:
            return
        data = bytes(self._held)
        self._held.clear()
        self._needed = 0
        self._transport.resume_reading()
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Serve the request at the start of the bytes, or hold them until it is whole."""
        head = self._shared.heads.read(data)
        if head is None or head.fields.content_length > self._shared.body_bytes_max:
            self._leave(data)
            return
        stop = head.size + head.fields.content_length
        if len(data) < stop:
            self._held += data
            self._needed = stop
            return
        work = self._shared.work_for(head, data[head.size : stop])
        if len(data) > stop:
            self._held += data[stop:]
        self._operation = head.asked.operation
        self._work = LightTask(work, returned=self._answer, failed=self._fail)
        self._work.go_on()

    def _answer(self, reply: Reply) -> None:
        self._work = None
        if self._transport is None:
            return
        if len(reply.body) < JOINED_BYTES_MAX:
            self._transport.write(self._shared.replies.pack(reply))
        else:
            self._transport.writelines((self._shared.replies.head(reply), reply.body))
        if self._is_closing:
            self._transport.close()
            return
        self._quiet_s = self._shared.loop.time()
        if self._held:
            # Not from here: a thousand requests in one segment would nest as deep.
            self._shared.loop.call_soon(self._go_on)

    def _fail(self, error: BaseException) -> None:
        self._work = None
        self.abort()
        if not isinstance(error, ConnectionError | asyncio.CancelledError):
            raise error

    def _leave(self, data: bytes) -> None:
        """Hand the connection over to the general path, with every byte that was not served."""
        transport = self._transport
        assert transport is not None
        self._forget()
        self._transport = None
        general = self._shared.general()
        general.connection_made(transport)
        transport.set_protocol(general)
        general.data_received(data)

    def _forget(self) -> None:
        self._shared.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._slow_reader is not None:
            self._slow_reader.stop()

    def _rest(self) -> None:
        """Close the connection when it was idle for `KEEP_ALIVE_S`."""
        loop = self._shared.loop
        is_new = self._quiet_s == 0.0
        if is_new or self._work is not None:
            self._quiet_s = loop.time()
        elif loop.time() - self._quiet_s >= KEEP_ALIVE_S:
            self.close()
            return
        self._timer = loop.call_at(self._quiet_s + KEEP_ALIVE_S, self._rest)
