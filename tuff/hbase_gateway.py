"""Calls to HBase through its Thrift gateways: a connection for each thread, and what errors mean.

A connection that two threads share hands each the other's answers, silently. One that failed in any
way is never used again: after a time-out it would serve the answer to the call before.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from socket import SHUT_RDWR
from time import sleep
from typing import Any, TypeVar
from weakref import WeakSet

from tuff.disk.failures import StoreError
from tuff.disk.users import Users
from tuff.hbase_wire import (
    AlreadyExists,
    HBaseError,
    IllegalArgument,
    TException,
    thrift1_connection,
)

T = TypeVar("T")
Connection = Any  # happybase has no types
Connect = Callable[..., Connection]  # of host, port and `timeout` in milliseconds; not open yet

PAUSES_S = (0.05, 0.4)  # seconds before the second try and the third; then others decide
ANSWERS = (HBaseError, IllegalArgument, AlreadyExists)  # HBase said no: the connection is fine
REASON_LENGTH_MAX = 300  # characters; HBase answers with a whole stack trace

# What passes by itself: a region that moves, a master that starts. The gateway waited already.
_PASSING = (
    "NotServingRegionException",
    "RegionTooBusyException",
    "RegionMovedException",
    "RegionOpeningException",
    "PleaseHoldException",
    "ServerNotRunningYetException",
    "CallQueueTooBigException",
    "NoServerForRegionException",
)
_ADVICE = (
    ("TableNotEnabledException", "a table is disabled; enable it"),
    ("TableNotFoundException", "a table is missing; make it with `tuff hbase deploy`"),
    ("NoSuchColumnFamilyException", "a table has no family d; make it with `tuff hbase deploy`"),
    ("KeyValue size too large", "a message is larger than HBase takes"),
)
_EXCEPTION = re.compile(r"(?:[a-z0-9]+\.)+([A-Z]\w*(?:Exception|Error))")


class UnansweredError(StoreError):
    """The connection failed during a call, which may have been carried out, or still will be."""


class Addresses:
    """Where the gateways of one HBase are; who asks is given one after the other.

    It outlives a store that is closed and opened again: begun anew each time, a gateway that hangs
    would be asked first each time.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self.names = ", ".join(f"{host}:{port}" for host, port in addresses)
        self._next = cycle(addresses)

    def next(self) -> tuple[str, int]:
        """Host and port of the next one; any thread may ask."""
        return next(self._next)


class Gateways:
    """Thrift gateways that serve one HBase; each new connection goes to the next of them.

    `_lock` guards the list of open connections, and whether it is over with them.
    """

    def __init__(
        self,
        addresses: Addresses,
        *,
        timeout_s: float,
        idle_s: float,
        elapsed_s: Callable[[], float],
        connect: Connect = thrift1_connection,
        answers: tuple[type[Exception], ...] = ANSWERS,
    ) -> None:
        """`idle_s`: a connection that rested for longer is replaced before a gateway ends it;
        `answers`: what is raised where HBase said no, and the connection is fine."""
        self._addresses = addresses
        self._connect = connect
        self._answers = answers
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._elapsed_s = elapsed_s
        self._mine = threading.local()
        self._lock = threading.Lock()
        # Weakly: with the thread that used it a connection goes too, and closes by itself.
        self._open: WeakSet[Connection] = WeakSet()
        self._is_over = False
        self._users = _users()
        _all.add(self)

    def connections(self) -> list[Connection]:
        """All that are open."""
        with self._lock:
            return list(self._open)

    def leave_inherited(self) -> None:
        """In a process that was forked: open connections of its own. What either of the two reads
        from one that they share the other lacks."""
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._open = WeakSet()
        self._users = _users()

    def call(self, work: Callable[[Connection], T]) -> T:
        """What `work` makes of this thread's connection; tried again where that can help, so it
        must do no harm when it is done twice.

        Raises:
            UnansweredError: nobody knows whether it was done.
            StoreError: HBase refused it; one clear sentence.
        """
        for pause_s in PAUSES_S:
            try:
                return self.call_once(work)
            except UnansweredError as error:
                if self._is_over or isinstance(error.__cause__, TimeoutError):
                    raise  # a gateway that hangs would hang again
            except StoreError as error:
                if not is_passing(error):
                    raise
            sleep(pause_s)
        return self.call_once(work)

    def call_once(self, work: Callable[[Connection], T]) -> T:
        """The same, and tried once. Raises: UnansweredError, StoreError."""
        with self._users.using():
            connection = self._connection()
            try:
                with self._translated(connection):
                    return work(connection)
            finally:
                self._mine.used_s = self._elapsed_s()

    def require_open(self) -> None:
        """Raises: StoreError: `close` was called."""
        with self._users.using():
            pass

    def is_mine(self, connection: Connection) -> bool:
        """Whether this thread may use a connection, still."""
        return connection is not None and getattr(self._mine, "connection", None) is connection

    def interrupt(self) -> None:
        """End every connection, and with them the calls under way, without a wait; later calls
        are refused. Any thread may call."""
        with self._lock:
            self._is_over = True
            for connection in self._open:
                _cut(connection)

    def close(self) -> None:
        """The same, and wait until nobody is in a call any more."""
        self.interrupt()
        if self._users.close():
            with self._lock:
                while self._open:
                    _close(self._open.pop())

    @contextmanager
    def _translated(self, connection: Connection) -> Iterator[None]:
        try:
            yield
        except self._answers as error:
            raise StoreError(sentence(error)) from error
        except (TException, OSError, EOFError) as error:
            self._drop(connection)
            raise UnansweredError(
                f"the HBase gateway did not answer ({_text(error)}), and what it was asked for may "
                "or may not be done"
            ) from error
        except BaseException:
            self._drop(connection)  # half a call may have gone out
            raise

    def _connection(self) -> Connection:
        connection = getattr(self._mine, "connection", None)
        if connection is not None:
            if self._elapsed_s() - self._mine.used_s < self._idle_s:
                return connection
            self._drop(connection)
        host, port = self._addresses.next()
        connection = self._connect(host, port, timeout=round(self._timeout_s * 1000))
        with self._lock:
            if self._is_over:
                raise StoreError("the store is closed")
            self._open.add(connection)
        self._mine.connection = connection
        try:
            connection.open()
        except (TException, OSError) as error:
            self._drop(connection)
            raise StoreError(f"no HBase gateway answers at {self._addresses.names}") from error
        if self._is_over:  # while it was opened
            _cut(connection)
        return connection

    def _drop(self, connection: Connection) -> None:
        self._mine.connection = None
        with self._lock:
            self._open.discard(connection)
        _close(connection)


_all: WeakSet[Gateways] = WeakSet()
_forking: list[Connection] = []  # kept over a fork, or those of other threads closed themselves


def _keep() -> None:
    _forking.extend(connection for gateways in list(_all) for connection in gateways.connections())


def _leave_inherited() -> None:
    for gateways in list(_all):
        gateways.leave_inherited()
    for connection in _forking:
        # Closed without a shutdown, which would end the parent's connection too.
        with suppress(OSError, AttributeError):
            os.close(connection.transport.sock.detach())
    _forking.clear()


os.register_at_fork(before=_keep, after_in_parent=_forking.clear, after_in_child=_leave_inherited)


def is_passing(error: StoreError) -> bool:
    """Whether HBase's answer says that it may be asked again soon."""
    text = _text(error.__cause__) if error.__cause__ is not None else ""
    return any(name in text for name in _PASSING)


def sentence(error: Exception) -> str:
    """What HBase's stack trace says, in a sentence."""
    text = _text(error)
    for name, advice in _ADVICE:
        if name in text:
            return f"HBase refuses: {advice}"
    names = _EXCEPTION.findall(text)
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    cause = f"{names[-1]}: " if names and names[-1] not in first else ""
    return f"HBase refuses: {cause}{first[:REASON_LENGTH_MAX]}"


def _text(error: BaseException) -> str:
    message = getattr(error, "message", None)
    if isinstance(message, bytes):
        return message.decode("utf-8", "replace")
    return str(message or error)


def _users() -> Users:
    return Users(closed=lambda: StoreError("the store is closed"))


def _cut(connection: Connection) -> None:
    # Shut down and not closed: the thread that waits on the socket wakes, and closes it.
    with suppress(OSError, AttributeError):
        connection.transport.sock.shutdown(SHUT_RDWR)


def _close(connection: Connection) -> None:
    with suppress(TException, OSError):
        connection.close()
