"""Clients of a simulated server: requests as they run on its loop, and what is learnt from answers.

A request is a coroutine. When its answer comes, what it says is noted and checked at that very
moment; when the server vanishes, it ends without one, and what it asked for may have happened.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from tests.simulation import invariants, retention_checks, sink_writers
from tests.simulation.holds_and_positions import Bookmarks
from tests.simulation.invariants import BrokenPromiseError, require
from tests.simulation.observations import (
    Asked,
    Deletion,
    Facts,
    Fate,
    Lifetime,
    Publish,
    Run,
    Stored,
    TopicFacts,
    Truncation,
    Tx,
)
from tests.simulation.readers import Readers, state_told_by
from tests.simulation.server import Life
from tuff.protocol.errors import (
    BadRequestError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionNotInProgressError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.ids import MessageId, Offset
from tuff.protocol.requests import PublishEntry, PublishRequest, RollbackDetail
from tuff.protocol.transaction import TransactionType
from tx.outcomes import OpenTransaction, Outcome

FIRST, LAST = Offset(0, 1), Offset(1 << 50, 0)


class Client:
    """All clients together; they share what they know."""

    def __init__(self, facts: Facts, life: Life) -> None:
        self._facts = facts
        self._life = life
        self._serial = 0
        self.readers = Readers(facts, life, self.note_state)
        self.bookmarks = Bookmarks(facts, life, self._sent)

    def lives_on(self, life: Life) -> None:
        """The server was started again."""
        self._life = life
        self.readers.lives_on(life)
        self.bookmarks.lives_on(life)

    def payloads(self, count: int) -> tuple[bytes, ...]:
        """Payloads that nobody published yet."""
        self._serial += 1
        return tuple(b"%d.%d" % (self._serial, part) for part in range(count))

    # Transactions.

    async def start(self, *, is_long: bool, timeout_s: float | None) -> None:
        facts, asked = self._facts, self._facts.moment()
        highest_before = facts.highest_pointer
        kind = TransactionType.LONG if is_long else TransactionType.SHORT
        try:
            opened = await self._life.transactions.starts.start(kind, timeout_s, "")
        except UnavailableError:
            return
        tx = Tx(
            id=opened.transaction_id,
            is_long=is_long,
            snapshot=opened.transaction,
            asked=asked,
            told=facts.moment(),
            pointers=[opened.transaction_id],
        )
        require(9, invariants.pointers_rise(facts, tx.id, highest_before=highest_before))
        facts.note_pointer(tx.id)
        facts.transactions[tx.id] = tx
        require(5, invariants.snapshots_hold_what_had_committed(facts, tx))

    async def checkpoint(self, tx: Tx) -> None:
        highest_before = self._facts.highest_pointer
        with self._told_of(tx):
            opened = await self._life.transactions.starts.checkpoint(tx.id)
            pointer = opened.transaction.write_pointer
            require(
                9, invariants.pointers_rise(self._facts, pointer, highest_before=highest_before)
            )
            self._facts.note_pointer(pointer)
            tx.pointers.append(pointer)

    async def renew(self, tx: Tx) -> None:
        """Let its lease begin anew. Nothing of that is on the disk: after a crash there is a whole
        one."""
        asked, asked_boot_ms = self._facts.moment(), self._life.clock.boot_ms()
        with self._told_of(tx, asked):
            await self._life.transactions.completion.renew(tx.pointers[-1])
            tx.renewed_boot_ms = max(tx.renewed_boot_ms, asked_boot_ms)
            tx.alive = max(tx.alive, asked)

    async def can_commit(self, tx: Tx, changes: frozenset[bytes]) -> None:
        tx.named |= changes
        with self._told_of(tx):
            await self._life.transactions.completion.can_commit(tx.id, changes)
            tx.noted.setdefault(len(self._facts.crashed), set()).update(changes)

    async def commit(
        self,
        tx: Tx,
        changes: frozenset[bytes] | None,
        entries: list[Publish],
        *,
        read_only: bool = False,
    ) -> None:
        if tx.entries is None:
            tx.entries = entries
        surely = (changes or frozenset()) | self._surely_noted(
            tx, leaves_them=changes is None and not read_only
        )
        tx.named |= surely
        tx.surely = frozenset(surely if tx.surely is None else tx.surely & surely)
        asked = self._facts.moment()
        tx.commit_asked = min(tx.commit_asked, asked)
        tx.may_be_undone |= read_only
        for each in tx.entries:
            each.ask_again()
        publish = [
            PublishEntry(
                topic=self._facts.topics[each.topic].id,
                payloads=each.payloads,
                pointer=each.pointer,
            )
            for each in tx.entries
        ]
        with self._told_of(tx, asked):
            outcome = await self._life.transactions.completion.commit(
                tx.id, changes=changes, publish=publish, read_only=read_only
            )
            # A read-only commit waits for no disk, so that a crash may undo what it was told.
            if not read_only:
                self._committed(tx, outcome, asked)

    def _surely_noted(self, tx: Tx, *, leaves_them: bool) -> frozenset[bytes]:
        """Changes of can-commits that a commit does not pass without. Who leaves them to the
        can-commits is refused if these were lost in a crash, unless there was one after it: nobody
        can tell whether that was the first (protocol §5.2)."""
        since = len(self._facts.crashed)
        newest = max(tx.noted, default=since) if leaves_them else since
        return frozenset(tx.noted.get(newest, ()))

    def _committed(self, tx: Tx, outcome: Outcome, asked: int) -> None:
        if tx.published is not None and tx.published != outcome.published:
            raise BrokenPromiseError(f"promise 9: a repeated commit of {tx.id} published again")
        self.note_state(tx, asked, outcome.state.value, None)
        if tx.published is None and len(outcome.published) == len(tx.entries or ()):
            tx.published = outcome.published
            for publish, detail in zip(tx.entries or (), outcome.published, strict=True):
                self._done(publish, detail.first, detail.last)

    async def run(self, run: Run) -> None:
        """A transaction in one call; its id is not known before it has committed."""
        asked = self._facts.moment()
        publish = [
            PublishEntry(topic=self._facts.topics[each.topic].id, payloads=each.payloads)
            for each in run.entries
        ]
        call = self._life.transactions.runs.run
        try:
            outcome = await call(publish, client="", request_id=run.request_id)
        except (UnavailableError, TopicNotFoundError):
            return
        if self._facts.may_forget:
            return
        if run.published not in (None, outcome.published):
            raise BrokenPromiseError(f"promise 9: {run.request_id} ran twice")
        run.published = outcome.published
        self.note_state(run.tx, asked, outcome.state.value, None)
        for each, detail in zip(run.entries, outcome.published, strict=True):
            each.pointer = detail.pointer
            self._done(each, detail.first, detail.last)

    async def abort(self, tx: Tx) -> None:
        asked = self._facts.moment()
        tx.abort_asked = min(tx.abort_asked, asked)
        with self._told_of(tx, asked):
            outcome = await self._life.transactions.completion.abort(tx.id)
            self.note_state(tx, asked, outcome.state.value, _reason(outcome))

    async def invalidate(self, tx: Tx) -> None:
        asked = self._facts.moment()
        with self._told_of(tx, asked):
            outcome = await self._life.transactions.completion.invalidate(tx.id)
            self.note_state(tx, asked, outcome.state.value, _reason(outcome))

    async def ask(self, tx: Tx) -> None:
        asked = self._facts.moment()
        with self._told_of(tx, asked):
            found = await self._life.transactions.completion.outcome(tx.pointers[-1])
            if isinstance(found, OpenTransaction):
                self.note_state(tx, asked, "in_progress", None)
                now, then = found.transaction, tx.snapshot
                if (now.read_pointer, *now.invalids, *now.in_progress) != (
                    then.read_pointer, *then.invalids, *then.in_progress,
                ):  # fmt: skip
                    raise BrokenPromiseError(f"promise 5: {tx.id} has got another snapshot")
            else:
                self.note_state(tx, asked, found.state.value, _reason(found))

    async def clear_invalid(self) -> None:
        """Take everything off the invalid list that no row carries."""
        lost = [tx for tx in self._facts.transactions.values() if tx.state != "committed"]
        asked = self._facts.moment()
        for tx in lost:
            tx.cleared = min(tx.cleared, asked)
        pointers = [pointer for tx in lost for pointer in tx.pointers]
        with suppress(UnavailableError):
            await self._life.transactions.invalid_list.truncate(pointers=pointers)

    def note_state(self, tx: Tx, asked: int, state: str, reason: str | None) -> None:
        """Somebody was told this of a transaction."""
        if state == "unknown":
            require(9, invariants.nothing_is_forgotten(self._facts, tx))
            tx.is_forgotten = True
            return
        tx.seen.append((asked, self._facts.moment(), state, reason))
        if state in ("in_progress", "committing"):
            tx.alive = max(tx.alive, asked)
        for promise, checks in invariants.STATE_CHECKS.items():
            for check in checks:
                require(promise, check(self._facts, tx))
        if reason == "lease_expired":
            boot_ms = self._life.clock.boot_ms()
            require(9, sink_writers.leases_last(self._facts, tx, boot_ms=boot_ms))
        if state == "committed":
            require(5, invariants.no_update_is_lost(self._facts, tx))

    @contextmanager
    def _told_of(self, tx: Tx, asked: int | None = None) -> Iterator[None]:
        """What a refusal says of the transaction is learnt; a part that is down says nothing."""
        asked = self._facts.moment() if asked is None else asked
        try:
            yield
        except TransactionConflictError as error:
            faults = invariants.refusals_have_a_reason(
                self._facts, tx, error.key, error.transaction
            )
            require(5, faults)
        except TransactionNotInProgressError as error:
            reason = error.members.get("reason")
            self.note_state(tx, asked, state_told_by(error), reason and str(reason))
        except (UnavailableError, TopicNotFoundError, BadRequestError):
            pass

    # Messages.

    async def publish(self, publish: Publish) -> None:
        request = PublishRequest(
            pointer=publish.pointer,
            payloads=() if publish.brings is not None else publish.payloads,
            ttls_s=None if publish.ttl_s is None else [publish.ttl_s] * len(publish.payloads),
        )
        topic = self._facts.topics[publish.topic]
        call = self._life.messaging.publisher.publish
        done = await self._sent(publish, publish.tx, lambda: call(topic.id, request))
        if done is not None:
            self._done(publish, done.first.offset, done.last.offset)
            if publish.tx is not None and publish.tx.first_publish_boot_ms is None:
                publish.tx.first_publish_boot_ms = self._life.clock.boot_ms()

    async def store(self, topic: TopicFacts, tx: Tx, stored: Stored) -> None:
        request = PublishRequest(pointer=stored.pointer, payloads=stored.payloads)
        call = self._life.messaging.publisher.store
        await self._sent(stored, tx, lambda: call(topic.id, request))

    async def rollback(self, publishes: list[Publish], *, is_forged: bool) -> None:
        """Roll these of one pointer back; with a forged detail, by a range of all that there is."""
        publish = publishes[0]
        assert publish.tx is not None
        assert publish.first is not None
        assert publish.last is not None
        assert publish.pointer is not None
        first, last = (FIRST, LAST) if is_forged else (publish.first, publish.last)
        detail = RollbackDetail(publish.pointer, first, last)
        asked = self._facts.moment()
        for each in publishes:
            each.rollback_asked = min(each.rollback_asked, asked)
        if is_forged:
            # Publishes under way may be hit as well.
            for each in self._facts.topics[publish.topic].publishes:
                if each.pointer == publish.pointer:
                    each.rollback_asked = min(each.rollback_asked, asked)
        with self._told_of(publish.tx, asked):
            topic = self._facts.topics[publish.topic]
            await self._life.messaging.publisher.rollback(topic.id, detail)
            # There is nothing to do for a pointer that nobody knows any more, though it committed.
            if not (topic.deletions or self._facts.may_forget):
                for each in publishes:
                    each.rolled_back = min(each.rolled_back, self._facts.moment())

    def _done(self, publish: Publish, first: Offset, last: Offset) -> None:
        is_news = publish.first is None
        publish.first, publish.last = first, last
        publish.end(self._facts.moment(), Fate.DONE)
        if is_news:
            require(2, invariants.new_rows_lie_behind_old_ones(self._facts, publish))

    async def _sent(
        self, asked: Asked, tx: Tx | None, call: Callable[[], Awaitable[object]]
    ) -> object:
        """The answer, or None; what a refusal says of the fate is noted."""
        facts = self._facts
        try:
            done = await call()
        except UnavailableError as error:
            if tx is None and error.code == "transactions_unavailable":
                raise BrokenPromiseError(f"promise 7: a plain request was told {error}") from error
            asked.end(facts.moment(), Fate.OPEN)
        except TuffError as error:
            asked.end(facts.moment(), Fate.NOT_DONE)
            if tx is not None and isinstance(error, TransactionNotInProgressError):
                self.note_state(tx, asked.asked, state_told_by(error), None)
        else:
            asked.end(facts.moment(), Fate.DONE)
            return done
        return None

    # Topics.

    async def delete(self, topic: TopicFacts) -> None:
        topic.deletions.append(deletion := Deletion(asked=self._facts.moment()))
        await self._sent(deletion, None, lambda: self._life.messaging.topics.delete(topic.id))

    async def create(self, topic: TopicFacts, ttl_s: int) -> None:
        topic.lifetimes.append(made := Lifetime(asked=self._facts.moment(), ttl_s=ttl_s))
        properties = {"ttl": str(ttl_s)}
        call = self._life.messaging.topics.create
        try:
            await self._sent(made, None, lambda: call(topic.id, properties))
        except TopicExistsError:
            made.end(self._facts.moment(), Fate.NOT_DONE)

    async def give_lifetime(self, topic: TopicFacts, ttl_s: int) -> None:
        topic.lifetimes.append(made := Lifetime(asked=self._facts.moment(), ttl_s=ttl_s))
        call = self._life.messaging.topics.update
        await self._sent(made, None, lambda: call(topic.id, {"ttl": str(ttl_s)}))

    async def truncate(self, topic: TopicFacts, place: MessageId) -> None:
        topic.truncations.append(made := Truncation(asked=self._facts.moment(), place=place))
        call = self._life.messaging.topics.truncate
        await self._sent(made, None, lambda: call(topic.id, place))
        if made.fate is Fate.DONE:
            require(1, retention_checks.truncations_stop_at_holds(self._facts, topic, made))


def _reason(outcome: Outcome) -> str | None:
    return None if outcome.reason is None else outcome.reason.value
