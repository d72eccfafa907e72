"""Sessions: many calls over one connection, answered in any order (docs/session.md).

A session begins with an HTTP request that asks for it. From then on the connection carries frames.
Each call goes to the handler that the HTTP request with the same operation would get, through the
same dispatcher. So admission, rights, limits, errors and metrics are those of HTTP.

The calls of one read are begun one after the other, until one of the limits of a turn is reached:
then other connections have their turn. Replies that are ready at the end of a turn are one write,
and so are the replies of all calls that one sync has made durable, unless they are large.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import orjson

from kernel.requests_and_replies import (
    PROBLEM_TYPE,
    Reply,
    Request,
    Route,
    read_query,
)
from process.admission_and_dispatch import UNMATCHED, Call, Callee, Dispatcher, callee_of
from process.http_connection import KEEP_ALIVE_S, UPLOAD_QUIET_S_MAX
from process.open_connections import Connections
from process.session_requests import FRAME_OVERHEAD_BYTES, call_of, request_of
from process.slow_readers import CHECK_INTERVAL_S, SlowReader
from tuff.protocol import operations
from tuff.protocol.errors import (
    BadRequestError,
    NotFoundError,
    OverloadedError,
    TuffError,
    UpgradeRequiredError,
)
from tuff.protocol.json_bodies import shown
from tuff.protocol.media_types import JSON_REPLY_TYPE
from tuff.protocol.operations import BY_NUMBER
from tuff.protocol.session_frames import PROTOCOL, FrameReader, Kind, frame, frame_before
from tuff.version import __version__

CALLS_MAX = 1_024  # calls under way in one session; more would only wait for the same disk
POLLS_MAX = 64  # of them; each may have a reply of `messaging.poll_bytes_max`
# Bytes of the calls under way above which a session is not read: two of the largest calls, by the
# default of `server.max_request_bytes`.
UNDER_WAY_BYTES_MAX = 32 << 20
# Bytes of replies that the client has not read, above which a poll is made again later: eight of
# `messaging.poll_bytes_max`. All polls under way may be answered at once.
UNREAD_BYTES_MAX = 64 << 20
# Of one turn. One read can bring ten thousand calls, and a call that is answered at once takes some
# 0.1 ms, and more if its reply is large. The bodies of publishes are decoded together, behind the
# turn: so many bytes of messages with keys take some 10 ms.
TURN_FRAMES_MAX = 128
TURN_CALL_BYTES_MAX = 64 << 10
TURN_REPLY_BYTES_MAX = 1 << 20
TURN_S_MAX = 0.01
# A reply with a larger body is written at once, and its bytes are not copied: to copy megabytes
# takes as long as to encode messages.
COPIED_BODY_BYTES_MAX = 64 << 10
_UNAUTHENTICATED = 401
_CALL, _REPLY = int(Kind.CALL), int(Kind.REPLY)  # faster than the members of an enumeration
_IN_JSON = frozenset({JSON_REPLY_TYPE, PROBLEM_TYPE})


def route() -> Route:
    """The route of the request that begins a session."""

    async def begin(request: Request) -> Reply:
        read_query(request.query, parameters=())
        if (request.upgrade or "").strip().lower() != PROTOCOL:
            asked = "" if request.upgrade is None else f"; {shown(request.upgrade)} is unknown"
            raise UpgradeRequiredError(
                "this address begins a session: send `Connection: Upgrade` and `Upgrade: "
                f"{PROTOCOL}`{asked}"
            )
        return Reply(101, headers=(("Connection", "Upgrade"), ("Upgrade", PROTOCOL)))

    return Route(operations.BEGIN_SESSION, begin)


class Sessions:
    """What all sessions share. Lives on one event loop.

    `refusal`: why the client that sent a request may not use the server any more; None while it
    may.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        dispatcher: Dispatcher,
        connections: Connections,
        *,
        max_request_bytes: int,
        refusal: Callable[[Request], TuffError | None],
    ) -> None:
        self.dispatcher = dispatcher
        self.connections = connections
        self.refusal = refusal
        self.frame_bytes_max = max_request_bytes + FRAME_OVERHEAD_BYTES
        self.callees: Mapping[object, Callee] = _callees(routes)
        self.open: set[Session] = set()

    def begin(self, transport: asyncio.Transport, head: Request) -> None:
        """Continue a connection as a session; `head` is the request that asked for it."""
        session = Session(self, transport, head)
        transport.set_protocol(session)
        session.begin()

    def check_tokens(self) -> None:
        """End the sessions whose token is not valid any more."""
        for session in tuple(self.open):
            if (error := self.refusal(session.head)) is not None:
                session.end(error)


def _callees(routes: Iterable[Route]) -> dict[object, Callee]:
    by_operation = {each.operation: each for each in routes}
    return {number: callee_of(by_operation[operation]) for number, operation in BY_NUMBER.items()}


class Session(asyncio.Protocol):
    """One session, until its connection closes."""

    def __init__(self, sessions: Sessions, transport: asyncio.Transport, head: Request) -> None:
        self.head = head
        self._sessions = sessions
        self._transport: asyncio.Transport | None = transport
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(frame_bytes_max=sessions.frame_bytes_max)
        self._arrived: deque[tuple[int, list[object]]] = deque()  # frames that are not begun yet
        self._unreadable: TuffError | None = None  # why nothing behind them can be read
        self._is_turn_due = False  # the event loop will begin the next frames
        self._under_way: dict[int, Call] = {}
        self._under_way_bytes = 0
        self._polls_count = 0
        self._polls: dict[int, list[object]] = {}  # the frames of those that read messages
        self._replies: list[bytes] = []  # not yet written
        self._reply_bytes = 0
        self._is_writing_later = False  # replies that come now are written together, later
        self._is_ended = False  # the client was told to make no more calls
        self._is_read = True  # frames are still read
        self._is_closing = False  # when the last call under way is answered
        self._is_paused = False  # the client does not read its replies
        self._slow_reader = SlowReader(transport)
        self._active_s = self._loop.time()  # when something last arrived or was answered
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Greet the client."""
        self._sessions.open.add(self)
        self._sessions.connections.add(self)
        limits = {
            "version": __version__,
            "calls": CALLS_MAX,
            "polls": POLLS_MAX,
            "frameBytes": self._sessions.frame_bytes_max,
            "idle": KEEP_ALIVE_S,
        }
        self._write([frame(Kind.GREETING, limits)])
        if self._sessions.connections.is_ending:
            self.end_with_reply()
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    # What the event loop calls.

    def data_received(self, data: bytes) -> None:
        if not self._is_read:
            return
        self._active_s = self._loop.time()
        is_behind = bool(self._arrived)
        frames, self._unreadable = self._reader.feed(data)
        self._arrived.extend(frames)
        if self._unreadable is not None:
            self._is_read = False
        if not is_behind:
            self._take_turn()

    def eof_received(self) -> bool:
        """The client makes no more calls; it gets the replies to those under way."""
        self._is_read = False
        self._give_up_polls()
        self.close()
        return self._transport is not None and self._transport.can_write_eof()  # TLS can't

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._is_read = False
        self._sessions.open.discard(self)
        self._sessions.connections.discard(self)
        self._arrived.clear()
        self._slow_reader.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._give_up_polls()

    def pause_writing(self) -> None:
        self._is_paused = True
        self._slow_reader.watch()
        self._bound()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._slow_reader.caught_up()
        self._bound()

    # What the listener calls.

    def end_with_reply(self) -> None:
        """Let the client make no more calls. Those that are on their way are still answered."""
        if not self._is_ended:
            self._is_ended = True
            self._write([frame(Kind.END, None)])

    def close(self) -> None:
        """Close the connection, once the calls under way are answered."""
        self._is_closing = True
        self._close_if_done()

    def abort(self) -> None:
        """Close the connection now."""
        self._give_up_polls()
        if self._transport is not None:
            self._transport.abort()

    def end(self, error: TuffError) -> None:
        """End the session for this reason: calls that arrive from now on are dropped, and those
        under way are answered, less the polls that wait."""
        self._is_read = False
        self._is_ended = True
        self._arrived.clear()
        self._unreadable = None
        self._give_up_polls()
        self._write_replies()
        self._write([frame(Kind.END, error.problem())])
        self.close()

    # Calls.

    def _take_turn(self) -> None:
        """Begin the next calls that have arrived; `_bound` plans the next turn if some are left."""
        self._is_turn_due = False
        self._is_writing_later = True
        try:
            self._begin_arrived()
        except BadRequestError as error:
            self._arrived.clear()
            self._unreadable = error
        if self._unreadable is not None and not self._arrived:
            self._sessions.dispatcher.refuse(UNMATCHED, self._unreadable)
            self.end(self._unreadable)
        self._write_replies()
        self._bound()

    def _begin_arrived(self) -> None:
        left_count, left_bytes = TURN_FRAMES_MAX, TURN_CALL_BYTES_MAX
        now_s = self._loop.time
        until_s = now_s() + TURN_S_MAX
        while self._arrived and left_count and left_bytes > 0 and not self._is_paused:
            size, elements = self._arrived.popleft()
            if elements[0] == _CALL:
                self._begin_call(elements, size)
            else:
                self._take(elements)
            left_count -= 1
            left_bytes -= size
            if self._reply_bytes >= TURN_REPLY_BYTES_MAX or now_s() >= until_s:
                break

    def _take(self, elements: list[object]) -> None:
        """Take a frame that is no call. Raises: BadRequestError: nothing more can be read."""
        kind = elements[0]
        if kind == Kind.CANCEL:
            self._cancel(elements)
        elif kind == Kind.PING:
            self._replies.append(frame(Kind.PONG))
        else:
            raise BadRequestError(f"a client sends no frame of kind {shown(kind)}")

    def _begin_call(self, elements: list[object], size: int) -> None:
        call_id, said = call_of(elements)
        dispatcher, number, under_way = self._sessions.dispatcher, said[0], self._under_way
        if call_id in under_way:
            raise BadRequestError(f"call {call_id} is still under way; give each call a new id")
        callee = self._sessions.callees.get(number) if type(number) is int else None
        try:
            if callee is None:
                raise NotFoundError(f"a session has no operation {shown(number)}")
            if callee.ends_with_connection or len(under_way) >= CALLS_MAX:
                self._require_room(callee)
            call = Call(dispatcher, self, call_id, callee, size)
        except TuffError as error:
            name = UNMATCHED if callee is None else callee.operation
            self._reply(call_id, dispatcher.refuse(name, error))
            return
        under_way[call_id] = call
        self._under_way_bytes += size
        self._polls_count += callee.ends_with_connection
        if callee.declared is operations.POLL:
            self._polls[call_id] = elements
        try:
            request = request_of(said, call, self.head)
        except TuffError as error:
            call.reply(error)
        else:
            dispatcher.begin(call, request)

    def answered(self, call: Call, reply: Reply) -> None:
        """Send the reply to a call, or let a poll read again once its client reads its replies."""
        del self._under_way[call.id]
        self._under_way_bytes -= call.size
        self._polls_count -= call.callee.ends_with_connection
        elements = self._polls.pop(call.id, None)
        if elements is not None and self._unread_bytes() > UNREAD_BYTES_MAX:
            self._arrived.append((call.size, elements))
            return
        self._reply(call.id, reply)
        if reply.status == _UNAUTHENTICATED and not self._is_ended:
            error = self._sessions.refusal(self.head)
            if error is not None:
                self._loop.call_soon(self.end, error)

    def _require_room(self, callee: Callee) -> None:
        if len(self._under_way) >= CALLS_MAX:
            raise OverloadedError(
                f"{CALLS_MAX} calls are under way in this session, which is the most; wait for a "
                "reply, or open another session"
            )
        if callee.ends_with_connection and self._polls_count >= POLLS_MAX:
            raise OverloadedError(
                f"{POLLS_MAX} polls are under way in this session, which is the most; open another "
                "session"
            )

    def _cancel(self, elements: list[object]) -> None:
        match elements:
            case [_, int(call_id)]:
                call = self._under_way.get(call_id)
                if call is not None and call.callee.ends_with_connection:
                    self._give_up(call)
            case _:
                raise BadRequestError(f"a cancellation names a call, not {shown(elements[1:])}")

    def _unread_bytes(self) -> int:
        unwritten = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._reply_bytes + unwritten

    def _give_up_polls(self) -> None:
        for call in list(self._under_way.values()):
            if call.callee.ends_with_connection:
                self._give_up(call)

    def _give_up(self, poll: Call) -> None:
        del self._under_way[poll.id]
        self._polls.pop(poll.id, None)
        self._under_way_bytes -= poll.size
        self._polls_count -= 1
        poll.give_up()

    # Replies.

    def _reply(self, call_id: int, reply: Reply) -> None:
        status, content_type, body, headers, value = reply
        fields = dict(headers) if headers else {}
        if value is None and body:
            if content_type in _IN_JSON:
                value = orjson.loads(body)
            else:
                value, fields["Content-Type"] = body, content_type or ""
        if value is body and len(body) > COPIED_BODY_BYTES_MAX:
            before = frame_before(body, _REPLY, call_id, status, fields)
            self._write([*self._replies, before])
            self._write([body])
            self._replies, self._reply_bytes = [], 0
        else:
            packed = frame(_REPLY, call_id, status, fields, value)
            self._replies.append(packed)
            self._reply_bytes += len(packed)
        if not self._is_writing_later:
            self._is_writing_later = True
            # Behind the other calls that the same sync has made durable.
            self._loop.call_soon(self._write_later)

    def _write_later(self) -> None:
        self._active_s = self._loop.time()
        self._write_replies()
        self._bound()

    def _write_replies(self) -> None:
        self._is_writing_later = False
        replies, self._replies, self._reply_bytes = self._replies, [], 0
        self._write(replies)
        if self._is_closing:
            self._close_if_done()

    def _write(self, frames: list[bytes]) -> None:
        if self._transport is None or not frames:
            return
        self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def fail(self, error: BaseException) -> None:
        self.abort()
        if not isinstance(error, ConnectionError | asyncio.CancelledError):
            raise error

    # The connection.

    def _bound(self) -> None:
        """Begin no calls while the client does not read, or too much is under way, and read none
        before those that have arrived are begun."""
        if self._transport is None or self._transport.is_closing():
            return
        is_full = self._is_paused or self._under_way_bytes > UNDER_WAY_BYTES_MAX
        if self._arrived and not is_full and not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._take_turn)
        if is_full or self._arrived:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _close_if_done(self) -> None:
        is_done = not (self._under_way or self._replies or self._arrived)
        if self._is_closing and is_done and self._transport is not None:
            self._transport.close()
            self._slow_reader.watch()

    def _check(self) -> None:
        """End the session where the client has disappeared."""
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)
        quiet_s = self._loop.time() - self._active_s
        if self._reader.is_within_frame and quiet_s >= UPLOAD_QUIET_S_MAX:
            self.end(
                BadRequestError(
                    f"no byte of a frame came for {UPLOAD_QUIET_S_MAX:g} seconds; begin a new "
                    "session, and send the call again"
                )
            )
        elif not self._under_way and quiet_s >= KEEP_ALIVE_S:
            self.end_with_reply()
            self.close()
