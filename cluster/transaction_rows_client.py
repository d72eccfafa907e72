"""The message store for the server that leads transactions: its own rows, and those of the other
owners of topics (decision 0042, Transactions across owners).

What the leader knows of the rows of a transaction is a set of topics for each pointer. It learns of
a topic before the first row is written there: from the join of its owner, or from its own commit
with messages. It forgets the topic once the owner at that time says that the rows are durably
ended or rolled back. So no move of a topic, and no lost call, hides a row from it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from cluster.calls import Calls, SharedCall
from cluster.joined_cluster import Joined
from cluster.peers import Owner, PeerUnansweredError
from cluster.transaction_rows_service import TransactionRowsService
from kernel.event_loop import FutureTask, InThread, Spawn
from messaging.log.rows_by_transaction import IndexedRange
from metadata.json_values import Fields, topic_from
from metadata.member_records import ServerInfo
from metadata.store_interface import MetadataError
from tuff.protocol import json_bodies
from tuff.protocol.errors import (
    OwnershipMovingError,
    StorageOutcomeUnknownError,
    TopicNotFoundError,
    TransactionsUnavailableError,
    TuffError,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff_storage.disk.locks import StoreError
from tx.messaging_interface import MessageRows

log = logging.getLogger(__name__)

RETRY_S = 0.5  # seconds before a call is repeated that another server has not answered
CLOSE_S_MAX = 2.0  # seconds before it is checked whether a server that closes writes has ended
OWNER_ATTEMPTS_MAX = 10  # a topic that moves is asked for again so often, for a commit


@dataclass(frozen=True, slots=True)
class OwningServer:
    """A live server that has acknowledged the epoch. `owner` None: this one."""

    server_id: str
    incarnation: int
    owner: Owner | None


@dataclass(slots=True)
class _Carried:
    """What is known of the rows of a pointer. `committed` None: it has not ended."""

    topics: set[TopicId] = field(default_factory=set)
    is_final: bool = False
    committed: bool | None = None


class TransactionRowsClient:
    """A `tx.messaging_interface.MessageRows`. Lives on the event loop.

    `local` are the rows of this server, and `here` is its part that answers the leader.
    `shared_index` reads every row of the pointer index in the shared tables.
    """

    def __init__(
        self,
        joined: Joined,
        calls: Calls,
        local: MessageRows,
        here: TransactionRowsService,
        *,
        shared_index: Callable[[], Awaitable[Iterable[IndexedRange]]],
        in_thread: InThread,
        spawn: Spawn,
        retry_s: float = RETRY_S,
    ) -> None:
        self._joined = joined
        self._calls = calls
        self._local = local
        self._here = here
        self._shared_index = shared_index
        self._in_thread = in_thread
        self._spawn = spawn
        self._retry_s = retry_s
        self.epoch = 0  # 0: this server does not lead
        self._acknowledged: dict[str, OwningServer] = {}
        self._carried: dict[int, _Carried] = {}
        self._first_publish_ms: dict[int, int] = {}
        self._readers: dict[int, set[OwningServer]] = {}
        self._last_number = 0  # of a write at an owner
        self._delivering: dict[TopicId, dict[int, bool]] = {}  # pointers that ended: committed?
        self._outboxes: dict[str, _Outbox] = {}  # of the servers that have acknowledged the epoch
        self._changed = asyncio.Event()
        self.highest_reserved = 0
        # What does not wait, or concerns this server only.
        self.is_cleared = local.is_cleared
        self.note_durable = local.note_durable

    # The beginning of an epoch.

    async def prepare(self, epoch: int) -> None:
        """Learn of all rows that earlier leaders let pass. When this returns, none of them can let
        a write pass any more, and the transaction service may open. Waits as long as it takes; call
        it once, after the leader record has this epoch."""
        assert not self.epoch, "a process leads once: without its session it ends"
        self.epoch = epoch
        self._last_number = epoch << 32  # no two leaders give writes the same number
        # A server that obeyed an earlier leader was a member before the record had this epoch.
        await self._repeat(self.acknowledge_new)
        await self._repeat(self._read_shared_index)

    async def acknowledge_new(self) -> None:
        """Let servers that have become members acknowledge the epoch. Raises: MetadataError (its
        kinds); TuffError, PeerUnansweredError: one has not, and all were asked."""
        members = await self._in_thread(self._joined().membership.members)
        missing = [
            info
            for info in members.values()
            if not self.has_acknowledged(info.server_id, info.incarnation)
        ]
        # At the same time: one that does not answer must not keep the others out.
        await _all(map(self._acknowledge, missing))

    async def server(self, server_id: str, incarnation: int) -> OwningServer:
        """A server that obeys this leader, so that it may join transactions. One that has just
        become a member acknowledges the epoch first: its clients need not wait for
        `acknowledge_new`.

        Raises: TransactionsUnavailableError: it does not answer, or is no member.
        """
        try:
            if not self.has_acknowledged(server_id, incarnation):
                members = await self._in_thread(self._joined().membership.members)
                info = members.get(server_id)
                if info is not None and info.incarnation == incarnation:
                    await self._acknowledge(info)
        except (MetadataError, PeerUnansweredError) as error:
            raise TransactionsUnavailableError(
                f"the server {server_id} can't acknowledge the leader of transactions: {error}; "
                "nothing was written, try again"
            ) from None
        if not self.has_acknowledged(server_id, incarnation):
            raise TransactionsUnavailableError(
                f"the server {server_id}, incarnation {incarnation}, has not acknowledged the "
                "leader of transactions yet; try again in a moment"
            )
        return self._acknowledged[server_id]

    def has_acknowledged(self, server_id: str, incarnation: int) -> bool:
        """Whether this server obeys this leader."""
        found = self._acknowledged.get(server_id)
        return found is not None and found.incarnation == incarnation

    # What owners tell.

    def note_topic(self, pointer: int, topic: TopicId) -> None:
        """Rows of this pointer may be written to this topic from now on."""
        carried = self._carried.setdefault(pointer, _Carried())
        carried.topics.add(topic)
        if carried.committed is not None:
            self._deliver(topic, pointer, committed=carried.committed)

    def note_report(self, body: Fields) -> list[int]:
        """What a server says of its rows; their pointers."""
        pointers = []
        for each in body.objects("carried"):
            pointer = each.integer("pointer")
            pointers.append(pointer)
            for text in each.values("topics"):
                self.note_topic(pointer, topic_from(str(text)))
            self._carried.setdefault(pointer, _Carried()).is_final |= each.flag("isFinal")
            if each.has("firstPublishMs"):
                self._note_publish(pointer, each.integer("firstPublishMs"))
        return pointers

    def note_reader(self, pointer: int, server: OwningServer) -> None:
        """A poll at this server reads in the snapshot of this transaction."""
        self._readers.setdefault(pointer, set()).add(server)

    async def close(
        self, server: OwningServer, *, joins: Collection[int] = (), writes: Collection[int] = ()
    ) -> None:
        """Close what a server joined or was asked to write: when this returns, no such write is
        under way any more, and none will come. Waits until the server answers, or is fenced."""
        body = {"joins": list(joins), "writes": list(writes)}
        while True:
            try:
                # Not for long: the server may have ended, and then nobody answers. Asked again, it
                # continues to wait for the same writes.
                await self._call(server, "close", body, within_s=CLOSE_S_MAX)
            except (PeerUnansweredError, TuffError) as error:
                log.warning("the server %s does not close writes: %s", server.server_id, error)
            else:
                return
            if await self._is_fenced(server):
                return
            await asyncio.sleep(self._retry_s)

    # What the transaction service asks.

    async def check_entries(self, entries: Sequence[PublishEntry]) -> None:
        """Ask the owners of the topics. Raises also: OwnershipMovingError: nothing was written."""
        shown = [_without_payloads(entry) for entry in entries]
        for attempt in range(OWNER_ATTEMPTS_MAX):
            try:
                groups = await self._by_owner(list(enumerate(shown)))
                await _all(
                    self._check(server, [entry for _, entry in part])
                    for server, part in groups.items()
                )
            except OwnershipMovingError:
                self._forget_owners(shown)
                if attempt == OWNER_ATTEMPTS_MAX - 1:
                    raise
            else:
                return
            await asyncio.sleep(self._retry_s)

    def check_now(self, entries: Sequence[PublishEntry]) -> bool:
        """False: the owners have to be asked."""
        return False

    def publish_final(
        self,
        commits: Sequence[Sequence[PublishEntry]],
        built: Callable[[Sequence[list[RollbackDetail] | TuffError]], None],
        written: Callable[[Sequence[list[RollbackDetail] | TuffError] | Exception], None],
    ) -> None:
        """Let each owner write its entries of a commit as one batch. When `written` gets an
        exception, no such write is under way any more. Never calls `built`: after a crash one owner
        may have its rows, and another none."""
        FutureTask(self._publish_all(commits, written), refusals=TuffError).go_on()

    async def _publish_all(
        self,
        commits: Sequence[Sequence[PublishEntry]],
        written: Callable[[Sequence[list[RollbackDetail] | TuffError] | Exception], None],
    ) -> None:
        try:
            results = [await self._publish_final(entries) for entries in commits]
        except Exception as error:  # noqa: BLE001 - it is the result
            written(error)
        else:
            written(results)

    async def _publish_final(self, entries: Sequence[PublishEntry]) -> list[RollbackDetail]:
        for entry in entries:
            assert entry.pointer is not None
            self.note_topic(entry.pointer, entry.topic.unit)
            self._carried[entry.pointer].is_final = True
        details: dict[int, RollbackDetail] = {}
        left = list(enumerate(entries))
        for attempt in range(OWNER_ATTEMPTS_MAX):
            groups = await self._by_owner(left)
            results = await asyncio.gather(
                *(self._write_final(server, part) for server, part in groups.items()),
                return_exceptions=True,
            )
            left = []
            for part, result in zip(groups.values(), results, strict=True):
                if isinstance(result, OwnershipMovingError) and attempt < OWNER_ATTEMPTS_MAX - 1:
                    self._forget_owners(entry for _, entry in part)
                    left += part
                elif isinstance(result, BaseException):
                    raise result
                else:
                    details |= dict(zip((index for index, _ in part), result, strict=True))
            if not left:
                break
            await asyncio.sleep(self._retry_s)
        return [details[index] for index in range(len(entries))]

    async def roll_back(self, transaction_pointers: Collection[int]) -> None:
        """Wait until the owner of each topic has rolled back the rows there,
        however long it takes."""
        local = [each for each in transaction_pointers if each not in self._carried]
        self._end(transaction_pointers, committed=False)
        await self._local.roll_back(local)
        while any(pointer in self._carried for pointer in transaction_pointers):
            self._changed.clear()
            await self._changed.wait()
            # A report that was sent before the end may have brought a pointer back.
            self._end(transaction_pointers, committed=False)

    async def set_aside(self, transaction_pointers: Collection[int]) -> None:
        """Let the owners set the rows aside. When this raises, no such write is under way any
        more."""
        pointers = sorted(transaction_pointers)
        carried = [self._carried[each] for each in pointers if each in self._carried]
        by_server: dict[OwningServer, list[TopicId]] = {}
        for topic in sorted({topic for each in carried for topic in each.topics}):
            with suppress(TopicNotFoundError):  # no topic ever had this name, so there are no rows
                by_server.setdefault(await self._owner_of(topic), []).append(topic)
        await _all(
            self._set_aside_at(server, pointers, topics) for server, topics in by_server.items()
        )
        for pointer in pointers:
            self._first_publish_ms.pop(pointer, None)

    def end_committed(self, transaction_pointers: Collection[int]) -> None:
        self._local.end_committed(transaction_pointers)
        self._end(transaction_pointers, committed=True)

    def wake_readers(self, transaction_pointers: Collection[int]) -> None:
        """Wake the readers here. Readers that rows block elsewhere wake when their owners learn of
        the end."""
        self._local.wake_readers(transaction_pointers)
        by_server: dict[OwningServer, list[int]] = {}
        for pointer in transaction_pointers:
            for server in self._readers.pop(pointer, ()):
                by_server.setdefault(server, []).append(pointer)
        for server, pointers in by_server.items():
            self._spawn(self._wake(server, pointers))

    def note_reserved(self, highest_pointer: int) -> None:
        """Note a reserved pointer. `highest_reserved` is for the record of the cluster's files."""
        self._local.note_reserved(highest_pointer)
        self.highest_reserved = max(self.highest_reserved, highest_pointer)

    def reading_pointers(self) -> Collection[int]:
        return {*self._local.reading_pointers(), *self._readers}

    def topics(self, transaction_pointers: Collection[int]) -> list[str]:
        found = set(self._local.topics(transaction_pointers))
        for pointer in transaction_pointers:
            if pointer in self._carried:
                found.update(map(str, self._carried[pointer].topics))
        return sorted(found)

    def has_rows_to_move(self, transaction_pointers: Collection[int]) -> bool:
        return self._local.has_rows_to_move(transaction_pointers)

    def is_carried(self, pointer: int) -> bool:
        return pointer in self._carried or self._local.is_carried(pointer)

    def indexed_pointers(self) -> Collection[int]:
        return {*self._local.indexed_pointers(), *self._carried}

    def published_by(self, at_ms: int) -> Collection[int]:
        others = {
            pointer for pointer, first_ms in self._first_publish_ms.items() if first_ms <= at_ms
        }
        return others.union(self._local.published_by(at_ms))

    def final_pointers(self) -> set[int]:
        finals = {pointer for pointer, carried in self._carried.items() if carried.is_final}
        return finals | self._local.final_pointers()

    # How it is done.

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this until it succeeds."""
        while True:
            try:
                return await work()
            except (MetadataError, StoreError, TuffError, PeerUnansweredError) as error:
                log.warning("this server can't lead transactions yet: %s", error)
            await asyncio.sleep(self._retry_s)

    async def _acknowledge(self, info: ServerInfo) -> None:
        is_here = info.server_id == self._joined().identity.server_id
        owner = None if is_here else Owner(info.server_id, info.address)
        server = OwningServer(info.server_id, info.incarnation, owner)
        report = await self._call(server, "acknowledge", {})
        self.note_report(report)
        for pointer in report.integers("reading"):
            self.note_reader(pointer, server)
        self._acknowledged[server.server_id] = server
        send = partial(self._call, server, "end")
        self._outboxes[server.server_id] = _Outbox(send, spawn=self._spawn)

    async def _read_shared_index(self) -> None:
        # In this order: a row that no server has reported is in the tables, since its server gave
        # the topic away, or has ended and is fenced.
        await self._in_thread(self._joined().membership.fence_ended)
        for entry in await self._shared_index():
            self.note_topic(entry.pointer, entry.topic.unit)
            self._carried[entry.pointer].is_final |= entry.final
            if entry.blocks_readers:
                self._note_publish(entry.pointer, entry.written_ms)

    def _note_publish(self, pointer: int, first_ms: int) -> None:
        known_ms = self._first_publish_ms.get(pointer, first_ms)
        self._first_publish_ms[pointer] = min(known_ms, first_ms)

    async def _call(
        self,
        server: OwningServer,
        name: str,
        body: Mapping[str, object],
        *,
        within_s: float = math.inf,
    ) -> Fields:
        asked = {**body, "epoch": self.epoch, "to": server.incarnation}
        return await self._calls.call(server.owner, name, asked, within_s=within_s)

    async def _is_fenced(self, server: OwningServer) -> bool:
        """Whether a server has ended; it can write nothing any more then."""
        which = server.server_id, server.incarnation
        try:
            if await self._in_thread(partial(self._joined().membership.is_alive, *which)):
                return False
            await self._in_thread(partial(self._joined().membership.fence, *which))
        except (MetadataError, StoreError) as error:
            log.warning("it is not known whether %s has ended: %s", server.server_id, error)
            return False
        return True

    async def _owner_of(self, topic: TopicId) -> OwningServer:
        """Raises: OwnershipMovingError, TopicNotFoundError."""
        owner = await self._joined().ownership.owner_of(topic, is_forwarded=False, creates=False)
        server_id = self._joined().identity.server_id if owner is None else owner.server_id
        found = self._acknowledged.get(server_id)
        if found is None:
            raise OwnershipMovingError(
                f"the server {server_id}, which owns the topic {topic}, has just started"
            )
        return found

    async def _by_owner(
        self, entries: Iterable[tuple[int, PublishEntry]]
    ) -> dict[OwningServer, list[tuple[int, PublishEntry]]]:
        """The entries of each server, with their places in the commit."""
        groups: dict[OwningServer, list[tuple[int, PublishEntry]]] = {}
        for index, entry in entries:
            groups.setdefault(await self._owner_of(entry.topic.unit), []).append((index, entry))
        return groups

    def _forget_owners(self, entries: Iterable[PublishEntry]) -> None:
        """What is remembered of the owners may be old: read it again."""
        for entry in entries:
            self._joined().ownership.forget(entry.topic.unit)

    async def _check(self, server: OwningServer, entries: Sequence[PublishEntry]) -> None:
        bodies = [json_bodies.publish_entry_to_json(entry) for entry in entries]
        try:
            await self._call(server, "check", {"entries": bodies})
        except PeerUnansweredError as error:
            raise OwnershipMovingError(f"{error}; nothing was written, try again") from None

    async def _write_final(
        self, server: OwningServer, part: Sequence[tuple[int, PublishEntry]]
    ) -> list[RollbackDetail]:
        self._last_number += 1
        number = self._last_number
        entries = [entry for _, entry in part]
        if server.owner is None:
            body = Fields({"epoch": self.epoch, "to": server.incarnation})
            return await self._here.publish_final(body, number, entries)
        bodies = [json_bodies.publish_entry_to_json(entry) for entry in entries]
        try:
            reply = await self._call(server, "final", {"number": number, "entries": bodies})
        except PeerUnansweredError as error:
            if not error.was_sent:
                raise OwnershipMovingError(f"{error}; nothing was written") from None
            # It may still be written, or arrive late, and must not be when the rows are rolled
            # back.
            await self.close(server, writes=[number])
            raise StorageOutcomeUnknownError(
                f"the messages of the commit may or may not be at {server.server_id}: {error}"
            ) from None
        return [json_bodies.rollback_detail_from_json(each) for each in reply.values("details")]

    async def _set_aside_at(
        self, server: OwningServer, pointers: Sequence[int], topics: Sequence[TopicId]
    ) -> None:
        self._last_number += 1
        number = self._last_number
        body = {"number": number, "pointers": pointers, "topics": list(map(str, topics))}
        try:
            await self._call(server, "aside", body)
        except OwnershipMovingError:
            for topic in topics:
                self._joined().ownership.forget(topic)
            raise
        except PeerUnansweredError as error:
            if error.was_sent:
                # The transaction may commit next. Readers would get a message twice if it were set
                # aside after they had received it, and returned.
                await self.close(server, writes=[number])
            raise StorageOutcomeUnknownError(str(error)) from None

    def _end(self, pointers: Iterable[int], *, committed: bool) -> None:
        for pointer in pointers:
            self._first_publish_ms.pop(pointer, None)
            carried = self._carried.get(pointer)
            if carried is not None:
                carried.committed = committed
                for topic in carried.topics:
                    self._deliver(topic, pointer, committed=committed)

    def _deliver(self, topic: TopicId, pointer: int, *, committed: bool) -> None:
        """Tell the owner of the topic that the pointer has ended, until its rows are done."""
        pending = self._delivering.get(topic)
        if pending is None:
            self._delivering[topic] = pending = {}
            self._spawn(self._deliver_all(topic, pending))
        pending[pointer] = committed

    async def _deliver_all(self, topic: TopicId, pending: dict[int, bool]) -> None:
        try:
            while pending:
                asked = dict(pending)
                try:
                    done = await self._delivered(topic, asked)
                except (PeerUnansweredError, TuffError) as error:
                    log.info("the end of transactions in %s is reported later: %s", topic, error)
                    # That server may not be the owner any more.
                    self._joined().ownership.forget(topic)
                    done = []
                for pointer in done:
                    pending.pop(pointer, None)
                    self._forget(pointer, topic)
                if asked.keys() - done:
                    await asyncio.sleep(self._retry_s)
        finally:
            del self._delivering[topic]

    async def _delivered(self, topic: TopicId, pending: Mapping[int, bool]) -> Collection[int]:
        try:
            server = await self._owner_of(topic)
        except TopicNotFoundError:
            return pending.keys()  # no topic ever had this name, so there are no rows
        return await self._outboxes[server.server_id].deliver(topic, pending)

    def _forget(self, pointer: int, topic: TopicId) -> None:
        carried = self._carried.get(pointer)
        if carried is not None:
            carried.topics.discard(topic)
            if not carried.topics:
                del self._carried[pointer]
                self._changed.set()

    async def _wake(self, server: OwningServer, pointers: Sequence[int]) -> None:
        try:
            await self._call(server, "wake", {"pointers": list(pointers)})
        except (PeerUnansweredError, TuffError) as error:
            log.info("%s is told later of ended transactions: %s", server.server_id, error)


class _Outbox:
    """Tells one server of ended transactions: one call at a time, with all that has come
    meanwhile."""

    def __init__(
        self, send: Callable[[Mapping[str, object]], Awaitable[Fields]], *, spawn: Spawn
    ) -> None:
        self._send = send
        self._pending: dict[TopicId, Mapping[int, bool]] = {}
        self._calls = SharedCall(self._send_all, spawn=spawn)

    async def deliver(self, topic: TopicId, pointers: Mapping[int, bool]) -> Collection[int]:
        """The pointers whose rows in the topic are done. One call at a time for each topic.
        Raises: TuffError (OwnershipMovingError: another server owns the topic)."""
        self._pending[topic] = pointers
        done = (await self._calls.result()).get(topic)
        if done is None:
            raise OwnershipMovingError("another server owns the topic")
        return done

    async def _send_all(self) -> dict[TopicId, list[int]]:
        pending, self._pending = self._pending, {}
        ended: dict[int, bool] = {}
        for pointers in pending.values():
            ended.update(pointers)
        body = {
            "committed": [pointer for pointer, committed in ended.items() if committed],
            "ended": [pointer for pointer, committed in ended.items() if not committed],
            "topics": [
                {"topic": str(topic), "pointers": list(pointers)}
                for topic, pointers in pending.items()
            ],
        }
        try:
            reply = await self._send(body)
        except PeerUnansweredError as error:
            raise StorageOutcomeUnknownError(str(error)) from None
        return {each.topic("topic"): each.integers("pointers") for each in reply.objects("done")}


def _without_payloads(entry: PublishEntry) -> PublishEntry:
    """An entry that is refused for the same reasons, without its payloads."""
    longest_s = max(filter(None, entry.ttls_s or ()), default=None)
    return PublishEntry(
        topic=entry.topic,
        payloads=(b"",) if entry.payloads else (),
        ttls_s=None if longest_s is None else [longest_s],
        pointer=entry.pointer,
    )


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Wait for all of them. Raises: the first refusal in their order."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
