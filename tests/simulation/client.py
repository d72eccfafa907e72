"""Clients of a simulated server: requests that run on its loop, and what their replies show.

A request is a coroutine. Its reply is recorded and checked at the moment it comes. If the server
crashes first, the request ends without a reply and may have been applied or not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from kernel.event_loop import FutureTask
from tests.simulation import invariants, retention_checks, sink_writers
from tests.simulation.delayed import DelayedClient, DelayedPublish
from tests.simulation.holds_and_positions import HoldsAndPositions
from tests.simulation.invariants import BrokenPromiseError, require
from tests.simulation.observations import (
    Applied,
    Deletion,
    Observations,
    ObservedTopic,
    Publish,
    Request,
    Run,
    Stored,
    Truncation,
    TtlChange,
    Tx,
)
from tests.simulation.readers import Readers, state_named_by
from tests.simulation.server import SimulatedServer
from tuff.protocol.errors import (
    BadRequestError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionNotInProgressError,
    TransactionNotPreparedError,
    TransactionPreparedError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.ids import MessageId, Offset
from tuff.protocol.requests import PublishEntry, PublishRequest, RollbackDetail
from tuff.protocol.transaction import TransactionType
from tx.calls import Commit, StartRequest
from tx.outcomes import OpenTransaction, Outcome

FIRST, LAST = Offset(0, 1), Offset(1 << 50, 0)


class Client:
    """All clients together, with what they observed."""

    def __init__(self, observed: Observations, server: SimulatedServer) -> None:
        self._observed = observed
        self._server = server
        self._serial = 0
        self.readers = Readers(observed, server, self.note_state)
        self.holds_and_positions = HoldsAndPositions(observed, server, self._sent)
        self.delayed = DelayedClient(observed, server, self._sent)

    def use_server(self, server: SimulatedServer) -> None:
        """The server was started again."""
        self._server = server
        self.readers.use_server(server)
        self.holds_and_positions.use_server(server)
        self.delayed.use_server(server)

    def payloads(self, count: int) -> tuple[bytes, ...]:
        """New payloads, each of them used once."""
        self._serial += 1
        return tuple(b"%d.%d" % (self._serial, part) for part in range(count))

    # Transactions.

    async def start(self, *, is_long: bool, timeout_s: float | None) -> None:
        observed, invoked = self._observed, self._observed.moment()
        highest_before = observed.highest_pointer
        kind = TransactionType.LONG if is_long else TransactionType.SHORT
        try:
            opened = await self._server.transactions.runner.start(
                StartRequest(type=kind, timeout_s=timeout_s, client="")
            )
        except UnavailableError:
            return
        tx = Tx(
            id=opened.transaction_id,
            is_long=is_long,
            snapshot=opened.transaction,
            invoked=invoked,
            completed=observed.moment(),
            pointers=[opened.transaction_id],
        )
        require(9, invariants.pointers_rise(observed, tx.id, highest_before=highest_before))
        observed.note_pointer(tx.id)
        observed.transactions[tx.id] = tx
        require(5, invariants.snapshots_hold_what_had_committed(observed, tx))

    async def checkpoint(self, tx: Tx) -> None:
        highest_before = self._observed.highest_pointer
        with self._learning_from(tx):
            opened = await self._server.transactions.runner.checkpoint(tx.id)
            pointer = opened.transaction.write_pointer
            require(
                9, invariants.pointers_rise(self._observed, pointer, highest_before=highest_before)
            )
            self._observed.note_pointer(pointer)
            tx.pointers.append(pointer)

    async def renew(self, tx: Tx) -> None:
        """Renew its lease. No renewal is on the disk; after a crash a whole lease begins."""
        invoked, asked_boot_ms = self._observed.moment(), self._server.clock.boot_ms()
        with self._learning_from(tx, invoked):
            await self._server.transactions.runner.renew(tx.pointers[-1])
            tx.renewed_boot_ms = max(tx.renewed_boot_ms, asked_boot_ms)
            tx.alive = max(tx.alive, invoked)

    async def can_commit(self, tx: Tx, changes: frozenset[bytes]) -> None:
        tx.named |= changes
        with self._learning_from(tx):
            await self._server.transactions.runner.can_commit(tx.id, changes)
            tx.noted.setdefault(len(self._observed.crashed), set()).update(changes)

    async def commit(
        self,
        tx: Tx,
        changes: frozenset[bytes] | None,
        entries: list[Publish],
        *,
        read_only: bool = False,
    ) -> None:
        publish = self._to_publish(tx, changes, entries, read_only=read_only)
        invoked = self._observed.moment()
        tx.commit_invoked = min(tx.commit_invoked, invoked)
        tx.may_be_undone |= read_only
        with self._learning_from(tx, invoked):
            outcome = await self._server.transactions.runner.commit(
                tx.id, changes=changes, publish=publish, read_only=read_only
            )
            # A read-only commit waits for no sync, so a crash may undo it after its reply.
            if not read_only:
                self._committed(tx, outcome.published, invoked)

    async def commit_together(
        self, commits: Sequence[tuple[Tx, frozenset[bytes] | None, list[Publish]]]
    ) -> None:
        """Commit them as one batch of calls does."""
        works, makes = [], []
        for tx, changes, entries in commits:
            publish = self._to_publish(tx, changes, entries)
            invoked = self._observed.moment()
            tx.commit_invoked = min(tx.commit_invoked, invoked)
            done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            makes.append(Commit(partial(_settle, done), tx.id, changes, publish))
            works.append(self._ended(tx, invoked, done))
        tasks = [FutureTask(work, refusals=TuffError) for work in works]
        for task in tasks:
            task.go_on()
        self._server.transactions.runner.take(makes)
        for task in tasks:
            await task.done

    async def _ended(self, tx: Tx, invoked: int, done: "asyncio.Future[object]") -> None:
        with self._learning_from(tx, invoked):
            published = await done
            assert isinstance(published, tuple)
            self._committed(tx, published, invoked)

    def _to_publish(
        self,
        tx: Tx,
        changes: frozenset[bytes] | None,
        entries: list[Publish],
        *,
        read_only: bool = False,
    ) -> list[PublishEntry]:
        """What a commit or prepare publishes: the entries of the first one. Notes its changes."""
        if tx.entries is None:
            tx.entries = entries
        surely = (changes or frozenset()) | self._surely_noted(
            tx, leaves_them=changes is None and not read_only
        )
        tx.named |= surely
        tx.surely = frozenset(surely if tx.surely is None else tx.surely & surely)
        for each in tx.entries:
            each.retry()
        return [
            PublishEntry(
                topic=self._observed.topics[each.topic].id,
                payloads=each.payloads,
                pointer=each.pointer,
            )
            for each in tx.entries
        ] + [each.entry() for each in self._delayed_of(tx)]

    def _delayed_of(self, tx: Tx) -> list[DelayedPublish]:
        """The delayed messages that the commit of the transaction brings."""
        return [each for each in self.delayed.publishes if each.tx is tx and each.is_final]

    def _surely_noted(self, tx: Tx, *, leaves_them: bool) -> frozenset[bytes]:
        """The changes of can-commits that a successful commit certainly includes.

        A commit that names no changes is refused if a crash lost its can-commit, unless a later
        can-commit followed: the server can't know whether that was the first (protocol §5.2).
        """
        since = len(self._observed.crashed)
        newest = max(tx.noted, default=since) if leaves_them else since
        return frozenset(tx.noted.get(newest, ()))

    def _committed(self, tx: Tx, published: tuple[RollbackDetail, ...], invoked: int) -> None:
        if tx.published is not None and tx.published != published:
            raise BrokenPromiseError(f"promise 9: a repeated commit of {tx.id} published again")
        self.note_state(tx, invoked, "committed", None)
        self._published(tx, published)

    def _published(self, tx: Tx, published: tuple[RollbackDetail, ...]) -> None:
        entries, delayed = tx.entries or (), self._delayed_of(tx)
        if tx.published is None and len(published) == len(entries) + len(delayed):
            tx.published = published
            for publish, detail in zip(entries, published, strict=False):
                self._done(publish, detail.first, detail.last)
            for each in delayed:
                each.end(self._observed.moment(), Applied.YES)

    async def run(self, run: Run) -> None:
        """A transaction in one call; its id is not known before its commit."""
        invoked = self._observed.moment()
        publish = [
            PublishEntry(topic=self._observed.topics[each.topic].id, payloads=each.payloads)
            for each in run.entries
        ]
        call = self._server.transactions.runner.run
        try:
            published = tuple(await call(publish, client="", request_id=run.request_id))
        except (UnavailableError, TopicNotFoundError):
            return
        if self._observed.may_forget:
            return
        if run.published not in (None, published):
            raise BrokenPromiseError(f"promise 9: {run.request_id} ran twice")
        run.published = published
        self.note_state(run.tx, invoked, "committed", None)
        for each, detail in zip(run.entries, published, strict=True):
            each.pointer = detail.pointer
            self._done(each, detail.first, detail.last)

    async def prepare(self, tx: Tx, changes: frozenset[bytes], entries: list[Publish]) -> None:
        publish = self._to_publish(tx, changes, entries)
        invoked = self._observed.moment()
        tx.prepare_invoked = min(tx.prepare_invoked, invoked)
        with self._learning_from(tx, invoked):
            opened = await self._server.transactions.runner.prepare(
                tx.id, database="d", changes=changes, publish=publish
            )
            assert opened.prepared is not None
            self.note_state(tx, invoked, "prepared", None)
            self._published(tx, opened.prepared.published)

    async def resolve(self, tx: Tx, outcome: str) -> None:
        invoked = self._observed.moment()
        tx.resolved.add(outcome)
        runner = self._server.transactions.runner
        if outcome == "commit":
            tx.commit_invoked = min(tx.commit_invoked, invoked)
        else:
            tx.abort_invoked = min(tx.abort_invoked, invoked)
        with self._learning_from(tx, invoked):
            if outcome == "commit":
                committed = await runner.commit_prepared(tx.id)
                self._committed(tx, committed.published, invoked)
            else:
                ended = await runner.abort_prepared(tx.id)
                self.note_state(tx, invoked, ended.state.value, _reason(ended))

    async def abort(self, tx: Tx) -> None:
        invoked = self._observed.moment()
        tx.abort_invoked = min(tx.abort_invoked, invoked)
        with self._learning_from(tx, invoked):
            outcome = await self._server.transactions.runner.abort(tx.id)
            self.note_state(tx, invoked, outcome.state.value, _reason(outcome))

    async def invalidate(self, tx: Tx) -> None:
        invoked = self._observed.moment()
        with self._learning_from(tx, invoked):
            outcome = await self._server.transactions.runner.invalidate(tx.id)
            self.note_state(tx, invoked, outcome.state.value, _reason(outcome))

    async def ask(self, tx: Tx) -> None:
        invoked = self._observed.moment()
        with self._learning_from(tx, invoked):
            found = await self._server.transactions.runner.outcome(tx.pointers[-1])
            if isinstance(found, OpenTransaction):
                is_prepared = found.prepared is not None
                self.note_state(tx, invoked, "prepared" if is_prepared else "in_progress", None)
                now, then = found.transaction, tx.snapshot
                if (now.read_pointer, *now.invalids, *now.in_progress) != (
                    then.read_pointer, *then.invalids, *then.in_progress,
                ):  # fmt: skip
                    raise BrokenPromiseError(f"promise 5: {tx.id} has got another snapshot")
            else:
                self.note_state(tx, invoked, found.state.value, _reason(found))

    async def clear_invalid(self) -> None:
        """Remove everything from the invalid list that no row carries."""
        lost = [tx for tx in self._observed.transactions.values() if tx.state != "committed"]
        invoked = self._observed.moment()
        for tx in lost:
            tx.cleared = min(tx.cleared, invoked)
        pointers = [pointer for tx in lost for pointer in tx.pointers]
        with suppress(UnavailableError):
            await self._server.transactions.invalid_list.truncate(pointers=pointers)

    def note_state(self, tx: Tx, invoked: int, state: str, reason: str | None) -> None:
        """A reply reported this state of a transaction."""
        if state == "unknown":
            require(9, invariants.nothing_is_forgotten(self._observed, tx))
            tx.is_forgotten = True
            return
        tx.seen.append((invoked, self._observed.moment(), state, reason))
        if state in ("in_progress", "committing"):
            tx.alive = max(tx.alive, invoked)
        for promise, checks in invariants.STATE_CHECKS.items():
            for check in checks:
                require(promise, check(self._observed, tx))
        if reason == "lease_expired":
            boot_ms = self._server.clock.boot_ms()
            require(9, sink_writers.leases_last(self._observed, tx, boot_ms=boot_ms))
        if state == "committed":
            require(5, invariants.no_update_is_lost(self._observed, tx))

    @contextmanager
    def _learning_from(self, tx: Tx, invoked: int | None = None) -> Iterator[None]:
        """Record what a refusal says of the transaction; `unavailable` says nothing."""
        invoked = self._observed.moment() if invoked is None else invoked
        try:
            yield
        except TransactionConflictError as error:
            faults = invariants.refusals_have_a_reason(
                self._observed, tx, error.key, error.transaction
            )
            require(5, faults)
        except TransactionPreparedError:
            self.note_state(tx, invoked, "prepared", None)
        except TransactionNotPreparedError:
            self.note_state(tx, invoked, "in_progress", None)
        except TransactionNotInProgressError as error:
            reason = error.members.get("reason")
            self.note_state(tx, invoked, state_named_by(error), reason and str(reason))
        except (UnavailableError, TopicNotFoundError, BadRequestError):
            pass

    # Messages.

    async def publish(self, publish: Publish) -> None:
        request = PublishRequest(
            pointer=publish.pointer,
            payloads=() if publish.brings is not None else publish.payloads,
            ttls_s=None if publish.ttl_s is None else [publish.ttl_s] * len(publish.payloads),
        )
        topic = self._observed.topics[publish.topic]
        call = self._server.messaging.publisher.publish
        done = await self._sent(publish, publish.tx, lambda: call(topic.id, request))
        if done is not None:
            self._done(publish, done.first.offset, done.last.offset)
            if publish.tx is not None and publish.tx.first_publish_boot_ms is None:
                publish.tx.first_publish_boot_ms = self._server.clock.boot_ms()

    async def store(self, topic: ObservedTopic, tx: Tx, stored: Stored) -> None:
        request = PublishRequest(pointer=stored.pointer, payloads=stored.payloads)
        call = self._server.messaging.publisher.store
        await self._sent(stored, tx, lambda: call(topic.id, request))

    async def rollback(self, publishes: list[Publish], *, is_forged: bool) -> None:
        """Roll back publishes of one pointer; a forged detail names the range of all offsets."""
        publish = publishes[0]
        assert publish.tx is not None
        assert publish.first is not None
        assert publish.last is not None
        assert publish.pointer is not None
        first, last = (FIRST, LAST) if is_forged else (publish.first, publish.last)
        detail = RollbackDetail(publish.pointer, first, last)
        invoked = self._observed.moment()
        for each in publishes:
            each.rollback_invoked = min(each.rollback_invoked, invoked)
        if is_forged:
            # It may reach publishes that have no reply yet.
            for each in self._observed.topics[publish.topic].publishes:
                if each.pointer == publish.pointer:
                    each.rollback_invoked = min(each.rollback_invoked, invoked)
        with self._learning_from(publish.tx, invoked):
            topic = self._observed.topics[publish.topic]
            await self._server.messaging.publisher.rollback(topic.id, detail)
            # For a pointer that the server has forgotten it does nothing, though it committed.
            if not (topic.deletions or self._observed.may_forget):
                for each in publishes:
                    each.rolled_back = min(each.rolled_back, self._observed.moment())

    def _done(self, publish: Publish, first: Offset, last: Offset) -> None:
        is_news = publish.first is None
        publish.first, publish.last = first, last
        publish.end(self._observed.moment(), Applied.YES)
        if is_news:
            require(2, invariants.new_rows_lie_behind_old_ones(self._observed, publish))

    async def _sent(
        self, request: Request, tx: Tx | None, call: Callable[[], Awaitable[object]]
    ) -> object:
        """The reply, or None for a refusal, which is recorded."""
        observed = self._observed
        try:
            done = await call()
        except UnavailableError as error:
            if tx is None and error.code == "transactions_unavailable":
                raise BrokenPromiseError(f"promise 7: a plain request got {error}") from error
            # A refusal that says that nothing was done is held to it.
            is_proven = tx is None and error.retry_safe
            request.end(observed.moment(), Applied.NO if is_proven else Applied.UNKNOWN)
        except TuffError as error:
            request.end(observed.moment(), Applied.NO)
            if tx is not None and isinstance(error, TransactionNotInProgressError):
                self.note_state(tx, request.invoked, state_named_by(error), None)
        else:
            request.end(observed.moment(), Applied.YES)
            return done
        return None

    # Topics.

    async def delete(self, topic: ObservedTopic) -> None:
        topic.deletions.append(deletion := Deletion(invoked=self._observed.moment()))
        await self._sent(deletion, None, lambda: self._server.messaging.topics.delete(topic.id))

    async def create(self, topic: ObservedTopic, ttl_s: int) -> None:
        topic.ttl_changes.append(made := TtlChange(invoked=self._observed.moment(), ttl_s=ttl_s))
        properties = {"ttl": str(ttl_s)}
        call = self._server.messaging.topics.create
        try:
            await self._sent(made, None, lambda: call(topic.id, properties))
        except TopicExistsError:
            made.end(self._observed.moment(), Applied.NO)

    async def set_ttl(self, topic: ObservedTopic, ttl_s: int) -> None:
        topic.ttl_changes.append(made := TtlChange(invoked=self._observed.moment(), ttl_s=ttl_s))
        call = self._server.messaging.topics.update
        await self._sent(made, None, lambda: call(topic.id, {"ttl": str(ttl_s)}))

    async def truncate(self, topic: ObservedTopic, place: MessageId) -> None:
        topic.truncations.append(made := Truncation(invoked=self._observed.moment(), place=place))
        call = self._server.messaging.topics.truncate
        await self._sent(made, None, lambda: call(topic.id, place))
        if made.applied is Applied.YES:
            require(1, retention_checks.truncations_stop_at_holds(self._observed, topic, made))


def _reason(outcome: Outcome) -> str | None:
    return None if outcome.reason is None else outcome.reason.value


def _settle(done: "asyncio.Future[object]", result: object) -> None:
    if done.done():
        return
    if isinstance(result, Exception):
        done.set_exception(result)
    else:
        done.set_result(result)
