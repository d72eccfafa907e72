"""The blocking client (protocol §2, §3, §5).

Thin so far: each call is sent once and nothing is tried again, so an error that says `retry_safe`
is the caller's to repeat. It grows to the full client under the same names.
"""

import os
import socket
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType

from tuff import calls, transaction_calls
from tuff.calls import Payloads, PollQuestion, Start
from tuff.context import TransactionAware, TransactionContext
from tuff.protocol.ids import MessageId
from tuff.protocol.names import TopicId
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff.protocol.transaction import Transaction
from tuff.replies import (
    Invalids,
    Offsets,
    Outcome,
    Overview,
    Poll,
    Published,
    SnapshotFile,
    TopicInfo,
    Truncated,
)
from tuff.transport import Transport

Names = list[str]

DEFAULT_URL = "http://127.0.0.1:7411"


def connect(
    url: str = DEFAULT_URL,
    *,
    client: str | None = None,
    timeout: float = 30.0,
    connect_timeout: float = 5.0,
) -> "Client":
    """A client of the server at `url`; it connects with its first call.

    `client` is the name that others see in conflicts and listings (default: host and process id).
    `timeout` is how many seconds the server may stay silent, on top of what a call waits for by
    itself.

    Raises:
        BadRequestError: `url` is no address.
    """
    name = client if client is not None else f"{socket.gethostname()}-{os.getpid()}"
    return Client(Transport(url, timeout_s=timeout, connect_timeout_s=connect_timeout), name)


class Client:
    """One server's topics, messages and transactions. Safe to share between threads."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name
        self.topics = Topics(transport)
        self.transactions = Transactions(transport, name)

    @property
    def url(self) -> str:
        """The address this client speaks to."""
        return self._transport.url

    def close(self) -> None:
        """Close the connections; calling it again is harmless."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def publish(
        self,
        topic: TopicId,
        messages: Payloads,
        *,
        transaction: Transaction | int | None = None,
        ttl: int | None = None,
    ) -> Published:
        """Put one message, or an iterable of them, into a topic, durably and adjacent.

        Without a transaction they are visible to everybody once this returns; with one, when it
        commits. `ttl` is in whole seconds (protocol §3.1).
        """
        pointer = None if transaction is None else _write_pointer(transaction)
        payloads = calls.payloads_of(messages)
        return self._transport.send(calls.publish(topic, payloads, pointer=pointer, ttl_s=ttl))

    def poll(
        self,
        topic: TopicId,
        start: Start | None = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        transaction: Transaction | int | None = None,
        isolation: str | None = None,
        undecided: str = "hold",
        wait: float = 0,
        through: MessageId | str | None = None,
    ) -> Poll:
        """Read from a place on: a message id, its hex, a time, or the oldest (None).

        `transaction` is the snapshot to read in, or the pointer of one in progress; without,
        `isolation` is `all` or `committed`. `wait` is in seconds (protocol §3.4).
        """
        question = PollQuestion(
            start=start,
            inclusive=inclusive,
            limit=limit,
            transaction=transaction,
            isolation=isolation,
            undecided=undecided,
            wait_s=wait,
            through=through,
        )
        return self._transport.send(calls.poll(topic, question))

    def offsets(self, topic: TopicId, *, isolation: str = "all") -> Offsets:
        """Where the topic begins, and how far it is decided for this reader (protocol §3.6)."""
        return self._transport.send(calls.offsets(topic, isolation=isolation))

    def transaction(
        self, *participants: TransactionAware, type: str = "short", timeout: float | None = None
    ) -> TransactionContext:
        """A context that starts a transaction, commits it at its end, and rolls back on an error.

        `timeout` in seconds is the server's default where it is None.
        """
        return TransactionContext(self, participants, type=type, timeout_s=timeout)


class Topics:
    """The calls of protocol §2."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        topic: TopicId,
        *,
        ttl: int | None = None,
        properties: Mapping[str, str | int] | None = None,
    ) -> None:
        """Raises: TopicExistsError: there is one of that name."""
        self._transport.send(calls.create_topic(topic, _properties(ttl, properties)))

    def update(
        self,
        topic: TopicId,
        *,
        ttl: int | None = None,
        properties: Mapping[str, str | int] | None = None,
    ) -> None:
        """Replace all properties. Raises: TopicNotFoundError."""
        self._transport.send(calls.update_topic(topic, _properties(ttl, properties)))

    def delete(self, topic: TopicId) -> None:
        """Raises: TopicNotFoundError."""
        self._transport.send(calls.delete_topic(topic))

    def get(self, topic: TopicId) -> TopicInfo:
        """Raises: TopicNotFoundError."""
        return self._transport.send(calls.get_topic(topic))

    def list(self, namespace: str) -> Names:
        """The names of a namespace's topics, in byte order."""
        return self._transport.send(calls.list_topics(namespace))

    def namespaces(self) -> Names:
        """The namespaces that hold a topic, in byte order."""
        return self._transport.send(calls.list_namespaces())


class Transactions:
    """The calls of protocol §5.2; `tx` is a transaction, or any of its pointers."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name

    def start(
        self, type: str = "short", *, timeout: float | None = None, client: str | None = None
    ) -> Transaction:
        """A new transaction, with the snapshot it reads in. `timeout` is in seconds."""
        name = self._name if client is None else client
        return self._transport.send(
            transaction_calls.start(type=type, timeout_s=timeout, client=name)
        )

    def can_commit(self, tx: Transaction | int, changes: Collection[bytes]) -> None:
        """Check early for conflicts. Raises: TransactionConflictError."""
        self._transport.send(transaction_calls.can_commit(_id(tx), changes))

    def commit(
        self,
        tx: Transaction | int,
        changes: Collection[bytes] = (),
        publish: Sequence[PublishEntry] = (),
        *,
        read_only: bool = False,
    ) -> list[RollbackDetail]:
        """Check for conflicts, publish and commit, as one step for every snapshot reader.

        Answers what each entry of `publish` wrote. Repeating it gives the first answer.
        """
        return self._transport.send(
            transaction_calls.commit(_id(tx), changes, publish, read_only=read_only)
        )

    def abort(self, tx: Transaction | int) -> str:
        """End it, having undone its other writes: answers `aborted`, or `invalid` (§6)."""
        return self._transport.send(transaction_calls.abort(_id(tx)))

    def invalidate(self, tx: Transaction | int) -> None:
        """End it, although its writes could not be undone: nobody will ever see them."""
        self._transport.send(transaction_calls.invalidate(_id(tx)))

    def checkpoint(self, tx: Transaction | int) -> Transaction:
        """The same transaction, with a new write pointer."""
        return self._transport.send(transaction_calls.checkpoint(_id(tx)))

    def outcome(self, tx: Transaction | int) -> Outcome:
        """What became of it. Raises: TransactionUnknownError."""
        return self._transport.send(transaction_calls.outcome(_id(tx)))

    def overview(self) -> Overview:
        """What is in progress, and the counts around it."""
        return self._transport.send(transaction_calls.overview())

    def invalids(self) -> Invalids:
        """The invalid list."""
        return self._transport.send(transaction_calls.invalids())

    def truncate(
        self, *, ids: Collection[int] | None = None, before: int | None = None
    ) -> Truncated:
        """Take pointers off the invalid list: these, or those started before a time in ms.

        Only safe once no store holds a version of them; those a message row carries are kept.
        """
        return self._transport.send(transaction_calls.truncate(ids=ids, before_ms=before))

    def take_snapshot(self) -> SnapshotFile:
        """Have the server write its transaction state to a file, and say which."""
        return self._transport.send(transaction_calls.take_snapshot())


def _id(tx: Transaction | int) -> int:
    return tx if isinstance(tx, int) else tx.transaction_id


def _write_pointer(tx: Transaction | int) -> int:
    return tx if isinstance(tx, int) else tx.write_pointer


def _properties(ttl: int | None, properties: Mapping[str, str | int] | None) -> dict[str, object]:
    given: dict[str, object] = dict(properties or {})
    if ttl is not None:
        given["ttl"] = ttl
    return given
