"""The rows of transactions at one server, as the leader of transactions asks for them (decision
0042, Transactions across owners).

The leader asks the owner of each topic. A server answers for a topic only while it owns it, so rows
are found wherever their topic has moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from cluster.calls import CallHandler
from cluster.joined_cluster import Joined
from cluster.peers import Owner, resolve_future
from cluster.transactions_client import TransactionsClient
from kernel import request_bodies
from kernel.event_loop import Spawn, settle
from messaging.write.transaction_rows import TransactionRows
from metadata.json_values import Fields, topic_from
from tuff.protocol import json_bodies
from tuff.protocol.errors import (
    OwnershipMovingError,
    TopicNotFoundError,
    TransactionsUnavailableError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishEntry, RollbackDetail

T = TypeVar("T")
log = logging.getLogger(__name__)

DONE_COUNT_MAX = 100  # numbered writes whose call is not executed again if it is delivered twice
REPORT_COUNT_MAX = 10_000  # pointers of one report; the others wait for the next one


class TransactionRowsService:
    """Answers the leader, and reports to it. Lives on the event loop."""

    def __init__(
        self,
        joined: Joined,
        transactions: TransactionsClient,
        rows: TransactionRows,
        *,
        spawn: Spawn,
    ) -> None:
        self._joined = joined
        self._transactions = transactions
        self._rows = rows
        self._spawn = spawn
        # What the leader has this server write, by its numbers. A call may arrive twice, or long
        # after the leader gave it up, so numbers are not forgotten when a leader is acknowledged.
        self._writes: dict[int, asyncio.Future[Any]] = {}
        self._refused: set[int] = set()  # closed before they came; there is one for each lost call
        self._done: deque[int] = deque(maxlen=DONE_COUNT_MAX)

    def handlers(self) -> Mapping[str, CallHandler]:
        """The calls of the leader, by name."""
        return {
            "acknowledge": self._acknowledge,
            "close": self._close,
            "check": self._check,
            "final": self._final,
            "aside": self._set_aside,
            "end": self._end,
            "wake": self._wake,
        }

    async def report(self) -> None:
        """Tell the leader which pointers have rows here, and in which snapshots polls read; wake
        the polls in those that have ended. Raises: TransactionsUnavailableError."""
        carried = self._carried()[:REPORT_COUNT_MAX]
        reading = sorted(self._rows.reading_pointers())
        if not carried and not reading:
            return
        reply = await self._transactions.ask_leader(
            "report", {"carried": carried, "reading": reading}
        )
        self._woken(reply.integers("ended"))

    def _carried(self) -> list[dict[str, object]]:
        return [
            {
                "pointer": each.pointer,
                "topics": sorted(map(str, each.topics)),
                "isFinal": each.is_final,
                "firstPublishMs": each.first_publish_ms,
            }
            for each in self._rows.carried()
        ]

    async def _acknowledge(self, body: Fields) -> dict[str, object]:
        self._require_me(body)
        epoch = body.integer("epoch")
        await self._transactions.acknowledge(epoch)
        await self._ended(list(self._writes.values()))
        self._transactions.require_epoch(epoch)  # another leader may have come meanwhile
        # Nothing is waited for between the last write and this.
        return {"carried": self._carried(), "reading": sorted(self._rows.reading_pointers())}

    async def _close(self, body: Fields) -> dict[str, object]:
        self._require(body)
        writes = body.integers("writes")
        self._refused.update(writes)
        await self._transactions.close(body.integers("joins"))
        await self._ended([self._writes[each] for each in writes if each in self._writes])
        return {}

    async def _check(self, body: Fields) -> dict[str, object]:
        self._require(body)
        entries = request_bodies.publish_entries_from_json(body.values("entries"))
        await self._require_owned(entries)
        await self._rows.check_entries(entries)
        return {}

    async def _final(self, body: Fields) -> dict[str, object]:
        number = body.integer("number")
        entries = request_bodies.publish_entries_from_json(body.values("entries"))
        details = await self.publish_final(body, number, entries)
        return {"details": [json_bodies.rollback_detail_to_json(each) for each in details]}

    async def publish_final(
        self, body: Fields, number: int, entries: Sequence[PublishEntry]
    ) -> list[RollbackDetail]:
        """Write the entries of a commit that belong to this server. Goes on if the caller gives
        up, and `close` waits for it."""

        async def publish(require_wanted: Callable[[], None]) -> list[RollbackDetail]:
            await self._require_owned(entries)
            require_wanted()
            (details,) = await self._written(entries)
            if isinstance(details, TuffError):
                raise details
            return details

        return await self._numbered(body, number, publish)

    def _written(
        self, entries: Sequence[PublishEntry]
    ) -> asyncio.Future[Sequence[list[RollbackDetail] | TuffError]]:
        future: asyncio.Future[Sequence[list[RollbackDetail] | TuffError]]
        future = asyncio.get_running_loop().create_future()
        self._rows.publish_final([entries], _ignore, partial(settle, future))
        return future

    async def _set_aside(self, body: Fields) -> dict[str, object]:
        topics = [topic_from(str(each)) for each in body.values("topics")]

        async def set_aside(require_wanted: Callable[[], None]) -> None:
            served = await self._served(topics)
            require_wanted()
            await self._rows.set_aside(body.integers("pointers"))
            if len(served) < len(topics):
                raise OwnershipMovingError("another server owns some of the topics")

        await self._numbered(body, body.integer("number"), set_aside)
        return {}

    async def _numbered(
        self,
        body: Fields,
        number: int,
        write: Callable[[Callable[[], None]], Awaitable[T]],
    ) -> T:
        """Do this write of the leader once. It is passed a function that raises if the leader has
        given it up meanwhile, or another server leads."""

        def require_wanted() -> None:
            self._require(body)
            if number in self._refused or number in self._done:
                raise TransactionsUnavailableError(
                    f"the write {number} was given up by the leader, or is done; nothing was "
                    "written"
                )

        async def run(writing: asyncio.Future[T]) -> None:
            try:
                await resolve_future(writing, write(require_wanted))
            finally:
                del self._writes[number]
                self._done.append(number)

        self._require(body)
        writing = self._writes.get(number)
        if writing is None:
            require_wanted()
            writing = self._writes[number] = asyncio.get_running_loop().create_future()
            self._spawn(run(writing))
        result: T = await asyncio.shield(writing)
        return result

    async def _end(self, body: Fields) -> dict[str, object]:
        self._require(body)
        committed, ended = set(body.integers("committed")), set(body.integers("ended"))
        asked = {each.topic("topic"): each.integers("pointers") for each in body.objects("topics")}
        served = await self._served(asked)
        self._rows.end_committed(committed)
        try:
            await self._rows.roll_back(sorted(ended))
        except UnavailableError as error:
            log.warning("rows of ended transactions are not rolled back yet: %s", error)
        self._woken([*committed, *ended])
        done = [
            {
                "topic": str(topic),
                "pointers": [
                    each
                    for each in asked[topic]
                    if not exists or self._rows.has_ended_in(each, topic)
                ],
            }
            for topic, exists in served.items()
        ]
        return {"done": done}

    async def _wake(self, body: Fields) -> dict[str, object]:
        self._require(body)
        self._woken(body.integers("pointers"))
        return {}

    def _woken(self, pointers: Collection[int]) -> None:
        self._transactions.note_ended(pointers)
        self._rows.wake_readers(pointers)

    async def _served(self, topics: Collection[TopicId]) -> dict[TopicId, bool]:
        """Serve these topics, less those that others own; of each, whether it ever existed."""
        errors = await asyncio.gather(*map(self._serve, topics), return_exceptions=True)
        served = {}
        for topic, error in zip(topics, errors, strict=True):
            if error is None or isinstance(error, TopicNotFoundError):
                served[topic] = error is None
            elif not isinstance(error, OwnershipMovingError):
                raise error
        return served

    async def _require_owned(self, entries: Sequence[PublishEntry]) -> None:
        for topic in sorted({entry.topic.unit for entry in entries}):
            await self._serve(topic)

    async def _serve(self, topic: TopicId) -> None:
        """Raises: OwnershipMovingError, TopicNotFoundError."""
        owner = await self._joined().ownership.owner_of(topic, is_forwarded=True, creates=False)
        if owner is not None:
            raise _moved(topic, owner)

    def _require(self, body: Fields) -> None:
        self._require_me(body)
        self._transactions.require_epoch(body.integer("epoch"))

    def _require_me(self, body: Fields) -> None:
        incarnation, me = body.integer("to"), self._joined().identity
        if incarnation != me.incarnation:
            raise OwnershipMovingError(
                f"this is incarnation {me.incarnation} of the server {me.server_id}, and not "
                f"{incarnation}"
            )

    async def _ended(self, writes: Iterable[asyncio.Future[Any]]) -> None:
        for writing in writes:
            await asyncio.wait([writing])


def _ignore(_results: object) -> None:
    """A leader that is another server records a commit only once its rows are durable."""


def _moved(topic: TopicId, owner: Owner) -> OwnershipMovingError:
    return OwnershipMovingError(f"the server {owner.server_id} owns the topic {topic}")
