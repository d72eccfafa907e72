"""Calls to HBase through Thrift gateways: one connection per thread, retries, and error texts.

On a shared connection, threads would silently get each other's answers. A connection that failed is
never used again: after a time-out it would return the answer to the previous call.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from socket import SHUT_RDWR
from time import sleep
from typing import Any, TypeVar
from weakref import WeakSet

import happybase as happybase

# happybase makes this module when it is loaded, so not before it.
from Hbase_thrift import AlreadyExists as AlreadyExists
from Hbase_thrift import BatchMutation as BatchMutation
from Hbase_thrift import ColumnDescriptor as ColumnDescriptor
from Hbase_thrift import IllegalArgument as IllegalArgument
from Hbase_thrift import IOError as HBaseError
from Hbase_thrift import Mutation as Mutation
from Hbase_thrift import TScan as TScan
from thriftpy2.thrift import TException as TException

from tuff_storage.disk.locks import CallsInFlight, StoreError

T = TypeVar("T")
Connection = Any  # happybase has no types
Connect = Callable[..., Connection]  # of host, port and `timeout` in milliseconds; not open yet

PAUSES_S = (0.05, 0.4)  # seconds before the second and the third attempt; the last ones
PUT_ROWS_MAX = 1_000  # rows in one call; a gateway answers it within tens of milliseconds
PUT_BYTES_MAX = 2 << 20  # bytes in one call
# Errors by which HBase refuses a call of Thrift1; the connection stays usable.
REFUSALS = (HBaseError, IllegalArgument, AlreadyExists)
REASON_LENGTH_MAX = 300  # characters; HBase answers with a whole stack trace

# Errors while a region moves or a master starts. The gateway has retried, too.
_TRANSIENT = (
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


def thrift1_connection(host: str, port: int, *, timeout: int) -> happybase.Connection:
    """A connection that is not open yet; `timeout`: milliseconds of one call."""
    return happybase.Connection(host, port, timeout=timeout, autoconnect=False)


class ClosedError(StoreError):
    """The gateways are closed; the call was not sent."""

    def __init__(self) -> None:
        super().__init__("the store is closed")


class UnansweredError(StoreError):
    """The connection failed during a call. The call may have been carried out, or may be later."""


class Addresses:
    """The addresses of the gateways of one HBase, used in turn.

    All openings of a store share one object. With a new one for each opening, a hanging gateway at
    the first address would be tried first each time.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self.names = ", ".join(f"{host}:{port}" for host, port in addresses)
        self._next = cycle(addresses)

    def next(self) -> tuple[str, int]:
        """Host and port of the next gateway; any thread may call."""
        return next(self._next)


class Gateways:
    """The Thrift gateways of one HBase; each new connection goes to the next one.

    `_lock` guards `_open` and `_is_interrupted`.
    """

    def __init__(
        self,
        addresses: Addresses,
        *,
        timeout_s: float,
        idle_s: float,
        elapsed_s: Callable[[], float],
        connect: Connect = thrift1_connection,
        refusals: tuple[type[Exception], ...] = REFUSALS,
    ) -> None:
        """`idle_s`: a connection that was idle for longer is replaced, before a gateway closes it;
        `refusals`: errors by which HBase refuses a call; the connection stays usable."""
        self._addresses = addresses
        self._connect = connect
        self._refusals = refusals
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._elapsed_s = elapsed_s
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        # Weak references: when a thread ends, its connection is collected as garbage, and closes.
        self._open: WeakSet[Connection] = WeakSet()
        self._is_interrupted = False
        self._calls = CallsInFlight(closed=ClosedError)
        _all.add(self)

    def connections(self) -> list[Connection]:
        """All open connections."""
        with self._lock:
            return list(self._open)

    def leave_inherited(self) -> None:
        """In a forked child: forget the parent's connections, and open new ones. On a shared
        connection, an answer that one process reads is lost for the other."""
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._open = WeakSet()
        self._calls = CallsInFlight(closed=ClosedError)

    def call(self, work: Callable[[Connection], T]) -> T:
        """Call `work` with this thread's connection and return its result. It is retried where that
        can help, so `work` must be idempotent.

        Raises:
            UnansweredError: the outcome is unknown.
            StoreError: HBase refused the call; one sentence.
        """
        for pause_s in PAUSES_S:
            try:
                return self.call_once(work)
            except UnansweredError as error:
                if self._is_interrupted or isinstance(error.__cause__, TimeoutError):
                    raise  # a hanging gateway would hang again
            except StoreError as error:
                if not _is_transient(error):
                    raise
            sleep(pause_s)
        return self.call_once(work)

    def call_once(self, work: Callable[[Connection], T]) -> T:
        """Call once, without retries. Raises: UnansweredError, StoreError."""
        with self._calls.using():
            connection = self._connection()
            try:
                with self._translated(connection):
                    return work(connection)
            finally:
                self._of_thread.used_s = self._elapsed_s()

    def require_open(self) -> None:
        """Raises: ClosedError: `close` was called."""
        with self._calls.using():
            pass

    def is_mine(self, connection: Connection) -> bool:
        """Whether a connection is still that of this thread."""
        return connection is not None and getattr(self._of_thread, "connection", None) is connection

    def close_own(self) -> None:
        """Close this thread's connection, before the thread ends. Otherwise its connection is
        collected as garbage while `close` may be closing it, and is closed twice at once."""
        connection = getattr(self._of_thread, "connection", None)
        if connection is None:
            return
        self._of_thread.connection = None
        with self._lock:
            is_open = connection in self._open  # otherwise `close` closes it
            self._open.discard(connection)
        if is_open:
            _close(connection)

    def interrupt(self) -> None:
        """Shut all connections down at once, which ends the calls in flight, and refuse later
        calls. Any thread may call."""
        with self._lock:
            self._is_interrupted = True
            for connection in self._open:
                _shut_down(connection)

    def close(self) -> None:
        """Interrupt all calls, and wait until all calls have ended."""
        self.interrupt()
        if self._calls.close():
            with self._lock:
                while self._open:
                    _close(self._open.pop())

    @contextmanager
    def _translated(self, connection: Connection) -> Iterator[None]:
        try:
            yield
        except self._refusals as error:
            raise StoreError(error_text(error)) from error
        except (TException, OSError, EOFError) as error:
            self._drop(connection)
            raise UnansweredError(
                f"the HBase gateway did not answer ({_text(error)}); the call may or may not have "
                "been carried out"
            ) from error
        except BaseException:
            self._drop(connection)  # a part of the call may have been sent
            raise

    def _connection(self) -> Connection:
        connection = getattr(self._of_thread, "connection", None)
        if connection is not None:
            if self._elapsed_s() - self._of_thread.used_s < self._idle_s:
                return connection
            self._drop(connection)
        host, port = self._addresses.next()
        connection = self._connect(host, port, timeout=round(self._timeout_s * 1000))
        with self._lock:
            if self._is_interrupted:
                raise ClosedError
            self._open.add(connection)
        self._of_thread.connection = connection
        try:
            connection.open()
        except (TException, OSError) as error:
            self._drop(connection)
            raise StoreError(
                f"no HBase gateway answers at {self._addresses.names}; start it, or correct its "
                "address"
            ) from error
        if self._is_interrupted:  # `interrupt` was called meanwhile
            _shut_down(connection)
        return connection

    def _drop(self, connection: Connection) -> None:
        self._of_thread.connection = None
        with self._lock:
            self._open.discard(connection)
        _close(connection)


_all: WeakSet[Gateways] = WeakSet()
# Referenced during a fork. Otherwise the child collects connections of other threads as garbage,
# which shuts them down for the parent, too.
_forking: list[Connection] = []


def _keep_connections() -> None:
    _forking.extend(connection for gateways in list(_all) for connection in gateways.connections())


def _leave_inherited() -> None:
    for gateways in list(_all):
        gateways.leave_inherited()
    for connection in _forking:
        # Closed without a shutdown, which would end the parent's connection, too.
        with suppress(OSError, AttributeError):
            os.close(connection.transport.sock.detach())
    _forking.clear()


os.register_at_fork(
    before=_keep_connections, after_in_parent=_forking.clear, after_in_child=_leave_inherited
)


def call_parts(rows: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """The rows to write, in one part for each call."""
    part: list[T] = []
    part_bytes = 0
    for row in rows:
        part.append(row)
        part_bytes += size_bytes(row)
        if len(part) >= PUT_ROWS_MAX or part_bytes >= PUT_BYTES_MAX:
            yield part
            part, part_bytes = [], 0
    if part:
        yield part


def error_text(error: Exception) -> str:
    """The reason in HBase's stack trace, as one sentence."""
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


def _is_transient(error: StoreError) -> bool:
    text = _text(error.__cause__) if error.__cause__ is not None else ""
    return any(name in text for name in _TRANSIENT)


def _shut_down(connection: Connection) -> None:
    # Shut down, not closed: the thread that waits on the socket wakes and closes it.
    with suppress(OSError, AttributeError):
        connection.transport.sock.shutdown(SHUT_RDWR)


def _close(connection: Connection) -> None:
    with suppress(TException, OSError):
        connection.close()
