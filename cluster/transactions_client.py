"""The transaction service for the message store of a server in a cluster: the leader is asked
(decision 0042, Transactions across owners).

Before its first write under a pointer to a topic, a server joins the transaction at the leader, and
then lets writes pass by itself. The leader closes what joined before it ends the transaction.

A server obeys one epoch of the leader at a time: the highest that it has acknowledged. With it, all
that it got from earlier leaders ends.
"""

import asyncio
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cluster.calls import Calls, SharedCall
from cluster.joined_cluster import Joined
from cluster.peers import PeerUnansweredError, resolve_future
from kernel.event_loop import Spawn
from kernel.requests_and_replies import Caller
from messaging.transactions_interface import WritePermit
from metadata.json_values import Fields
from tuff.protocol.errors import TransactionError, TransactionsUnavailableError, TuffError
from tuff.protocol.ids import TopicId
from tuff.protocol.pointer_list import PointerList, VisibilityState
from tuff.protocol.transaction import Transaction, TransactionStatus
from tx.transaction_principals import require_writer

ENDED_COUNT_MAX = 16_384  # pointers that ended last; a poll looks at them right after their end


@dataclass(frozen=True, slots=True)
class _Key:
    pointer: int
    topic: TopicId
    is_rollback: bool


class _Join:
    """This server has joined a transaction, or asks to. `granted` False: there is nothing to roll
    back."""

    def __init__(self, number: int, key: _Key) -> None:
        self.number = number
        self.key = key
        self.is_closed = False
        self.write_count = 0  # writes that passed and are not done
        self.principal: str | None = None  # of the transaction, if it is known
        self.granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.emptied = asyncio.Event()


class _Permit:
    """A write that passed. After a close it may still be written: the close waits for it."""

    def __init__(self, transactions: "TransactionsClient", join: _Join) -> None:
        self.pointer = join.key.pointer
        self._transactions = transactions
        self._join: _Join | None = join
        join.write_count += 1

    def require_open(self) -> None:
        return

    def leave(self) -> None:
        join, self._join = self._join, None
        if join is not None:
            self._transactions.left(join)


class TransactionsClient:
    """A `TransactionView`. Lives on the event loop.

    While this server leads, it asks itself.
    """

    epoch = 0  # of the leader that this server obeys

    def __init__(
        self,
        joined: Joined,
        calls: Calls,
        *,
        spawn: Spawn,
    ) -> None:
        self._joined = joined
        self._calls = calls
        self._spawn = spawn
        self._last_number = 0
        self._joins: dict[_Key, _Join] = {}  # what new writes use
        self._by_number: dict[int, _Join] = {}  # also closed ones with writes under way
        self._transaction_ids: dict[int, int] = {}  # by the pointers with which this server joined
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._newest: tuple[int, Transaction] | None = None  # with the leader's number of it
        self._snapshots = SharedCall(self._new_snapshot, spawn=spawn)

    # What messaging asks.

    async def enter(
        self, pointer: int, topic: TopicId, caller: Caller | None = None, /
    ) -> WritePermit:
        permit = await self._enter(_Key(pointer, topic.unit, is_rollback=False), caller)
        assert permit is not None
        return permit

    async def enter_rollback(
        self, pointer: int, topic: TopicId, caller: Caller | None = None, /
    ) -> WritePermit | None:
        return await self._enter(_Key(pointer, topic.unit, is_rollback=True), caller)

    async def snapshot(self) -> Transaction:
        return await self._snapshots.result()

    async def snapshot_of(self, pointer: int) -> Transaction:
        reply = await self.ask_leader("snapshot-of", {"pointer": pointer})
        return Transaction.from_bytes(b64decode(reply.text("snapshot")))

    def open_transaction_id(self, pointer: int) -> int | None:
        """As of the newest snapshot that this server has got."""
        if pointer in self._ended or self._newest is None:
            return None
        snapshot = self._newest[1]
        if pointer <= snapshot.read_pointer and pointer not in snapshot.in_progress:
            return None
        return self._transaction_ids.get(pointer, pointer)

    def preparation(self, _transaction_id: int) -> None:
        """Only the leader knows it. A client asks for the outcome of the transaction."""
        return

    async def status(self, pointer: int, /) -> TransactionStatus | None:
        reply = await self.ask_leader("status", {"pointer": pointer})
        if not reply.has("transaction_id"):
            return None
        return TransactionStatus(
            transaction_id=reply.integer("transaction_id"),
            state=reply.text("state"),
            client=reply.text("client"),
            started_at_ms=reply.integer("started_at_ms"),
            reason=reply.maybe_text("reason"),
            ended_at_ms=reply.maybe_integer("ended_at_ms"),
            expires_at_ms=reply.maybe_integer("expires_at_ms"),
            database=reply.maybe_text("database"),
        )

    async def visibility_state(self) -> VisibilityState | None:
        try:
            reply = await self.ask_leader("visibility", {})
        except TransactionsUnavailableError:
            return None
        if not reply.has("source"):
            return None
        return VisibilityState(
            read_pointer=reply.integer("readPointer"),
            write_pointer=reply.integer("writePointer"),
            in_progress=PointerList(reply.integers("inProgress")),
            invalid=PointerList(reply.integers("invalid")),
            source=reply.text("source"),
        )

    async def ask_leader(self, name: str, body: dict[str, object]) -> Fields:
        """The reply of the leader of the acknowledged epoch, which still is that when it arrives.

        Raises:
            TransactionError (its kinds): the leader refuses.
            TransactionsUnavailableError: no leader answers; nothing was written.
        """
        epoch = self.epoch
        asked = {
            **body,
            "epoch": epoch,
            "server": self._joined().identity.server_id,
            "incarnation": self._joined().identity.incarnation,
        }
        try:
            reply = await self._calls.call(self._joined().election.leader(), name, asked)
        except PeerUnansweredError as error:
            raise TransactionsUnavailableError(
                f"the leader of transactions does not answer: {error}; nothing was written, try "
                "again"
            ) from None
        except (TransactionError, TransactionsUnavailableError):
            raise
        except TuffError as error:
            raise TransactionsUnavailableError(
                f"the leader of transactions can't be asked: {error.detail}; nothing was written"
            ) from None
        if epoch != self.epoch:
            raise TransactionsUnavailableError(
                "another server has begun to lead transactions; nothing was written, try again"
            )
        return reply

    # What the leader asks.

    def require_epoch(self, epoch: int) -> None:
        """Raises: TransactionsUnavailableError: the caller does not lead, as far as this server
        has acknowledged."""
        if epoch != self.epoch:
            raise TransactionsUnavailableError(
                f"this server obeys the leader of transactions of epoch {self.epoch}, and not that "
                f"of epoch {epoch}"
            )

    def begin(self, epoch: int) -> None:
        """Obey no leader of an earlier epoch than this one, which the leader record had after this
        server had become a member. A leader of a later epoch asks for an acknowledgement."""
        self.epoch = max(self.epoch, epoch)

    async def acknowledge(self, epoch: int) -> None:
        """Obey the leader of this epoch from now on. When this returns, no write is under way that
        an earlier one has let pass.

        Raises:
            TransactionsUnavailableError: a later epoch is acknowledged already.
        """
        if epoch < self.epoch:
            self.require_epoch(epoch)
        if epoch > self.epoch:
            self.epoch = epoch
            self._newest = None
            self._transaction_ids.clear()
            for join in list(self._joins.values()):
                self._close(join)
        await self._emptied(self._closed_joins())

    async def close(self, numbers: Collection[int]) -> None:
        """End these joins: refuse further writes, and wait until those under way are durable, or
        proven not to be stored. Unknown numbers are none that this server will use."""
        joins = [self._by_number[each] for each in numbers if each in self._by_number]
        for join in joins:
            self._close(join)
        await self._emptied(joins)

    def note_ended(self, pointers: Iterable[int]) -> None:
        """These pointers have durably ended."""
        for pointer in pointers:
            self._transaction_ids.pop(pointer, None)
            self._ended[pointer] = None
            self._ended.move_to_end(pointer)
        while len(self._ended) > ENDED_COUNT_MAX:
            self._ended.popitem(last=False)

    def left(self, join: _Join) -> None:
        """A write that passed is done."""
        join.write_count -= 1
        self._forget_if_done(join)

    async def _enter(self, key: _Key, caller: Caller | None) -> _Permit | None:
        join = self._joins.get(key)
        if join is None:
            self._last_number += 1
            join = self._joins[key] = self._by_number[self._last_number] = _Join(
                self._last_number, key
            )
            self._spawn(self._ask_to_join(join))
        if not await asyncio.shield(join.granted):
            return None
        # The close may have come while this waited for its turn.
        if join.is_closed:
            raise _is_ending(key.pointer)
        require_writer(caller, key.pointer, join.principal)
        return _Permit(self, join)

    async def _ask_to_join(self, join: _Join) -> None:
        try:
            await resolve_future(join.granted, self._join(join))
        finally:
            granted = join.granted
            if granted.cancelled() or granted.exception() or not granted.result():
                self._close(join)

    async def _join(self, join: _Join) -> bool:
        key = join.key
        reply = await self.ask_leader(
            "join",
            {
                "number": join.number,
                "pointer": key.pointer,
                "topic": str(key.topic),
                "isRollback": key.is_rollback,
            },
        )
        if not reply.has("transactionId"):
            return False
        if join.is_closed:
            raise _is_ending(key.pointer)
        join.principal = reply.text("owner") if reply.has("owner") else None
        self._transaction_ids[key.pointer] = reply.integer("transactionId")
        return True

    def _close(self, join: _Join) -> None:
        join.is_closed = True
        if self._joins.get(join.key) is join:
            del self._joins[join.key]
        self._forget_if_done(join)

    def _forget_if_done(self, join: _Join) -> None:
        if join.is_closed and join.write_count == 0:
            self._by_number.pop(join.number, None)
            join.emptied.set()

    def _closed_joins(self) -> list[_Join]:
        return [each for each in self._by_number.values() if each.is_closed]

    async def _emptied(self, joins: Iterable[_Join]) -> None:
        for join in joins:
            await join.emptied.wait()

    async def _new_snapshot(self) -> Transaction:
        known = self._newest
        reply = await self.ask_leader("snapshot", {"known": 0 if known is None else known[0]})
        if not reply.has("snapshot"):  # the leader has none that is newer
            assert known is not None
            return known[1]
        newest = Transaction.from_bytes(b64decode(reply.text("snapshot")))
        self._newest = reply.integer("number"), newest
        return newest


def _is_ending(pointer: int) -> TransactionsUnavailableError:
    return TransactionsUnavailableError(
        f"the transaction of {pointer} is being committed or aborted, or its leader has changed; "
        "nothing was written, try again in a moment"
    )
