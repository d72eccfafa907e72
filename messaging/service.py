"""The face of the messaging room: what routes and the server call.

Everything here runs on one event loop and needs no locks; blocking work goes through the two
`InThread` functions that the server hands in.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from messaging.batch import Batch
from messaging.bookmark_changes import Bookmarks
from messaging.bookmarks import PositionLag
from messaging.endings import Endings
from messaging.engine import Engine, RowView
from messaging.facts import Facts
from messaging.live import Live
from messaging.loading import load
from messaging.observers import Observers
from messaging.ownership import Ownership
from messaging.polls import Isolation, Offsets, Poll, PollResult, Polls
from messaging.publishing import Published, Publisher
from messaging.settings import MessagingSettings
from messaging.splits import Split
from messaging.storage.seam import Store, StoreError
from messaging.sweep import Sweeper, SweepReport
from messaging.topic_changes import TopicChanges
from messaging.topics import TopicInfo
from messaging.transactions import TransactionView
from messaging.writer import Write, Writer
from tuff.disk.group import Arrivals, InThread
from tuff.protocol.errors import DamagedRecordError, UnavailableError
from tuff.protocol.ids import MessageId, Place
from tuff.protocol.names import TopicId
from tuff.protocol.requests import PublishEntry, PublishRequest, RollbackDetail

__all__ = ["MessagingService", "Published"]

log = logging.getLogger(__name__)

CLOCK_MARK_INTERVAL_MS = 60_000  # ms; an idle server still records that it lived until about now


def _observe_nothing(_name: str, _value: float) -> None:
    """The figures of a service that nobody watches."""


def _lack_nothing() -> str | None:
    return None


class MessagingService:
    """Topics, messages and long polls over one store; and what transactions may ask of the rows.
    `bookmarks` has the holds and the named positions of topics; a hold lives `hold_max_s` at most.

    `elapsed_s` is a clock that only goes forward. `why_not_begin` says why an empty store is not to
    be begun, and `lack_of_space` why the disk should take no more messages, or None.
    `in_thread_prove` is for a store that another server can take over; None: there is none, and no
    `ownership`.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        settings: MessagingSettings,
        *,
        transactions: TransactionView,
        now_ms: Callable[[], int],
        elapsed_s: Callable[[], float],
        in_thread_write: InThread,
        in_thread_read: InThread,
        arrivals: Arrivals,
        longest_transaction_s: float,
        may_delete: Callable[[], bool],
        observe: Callable[[str, float], None] = _observe_nothing,
        why_not_begin: Callable[[], str | None] = _lack_nothing,
        lack_of_space: Callable[[], str | None] = _lack_nothing,
        in_thread_prove: InThread | None = None,
    ) -> None:
        self._now_ms = now_ms
        self._load = partial(load, why_not_begin=why_not_begin)
        self._lack_of_space = lack_of_space
        self.hold_max_s = settings.hold_max_s
        self._longest_transaction_ms = round(longest_transaction_s * 1000)
        threads = {"in_thread_write": in_thread_write, "in_thread_read": in_thread_read}
        self._engine = Engine(open_store, **threads)
        self.ownership = self._owned(in_thread_prove)
        tail_bytes_max = settings.tail_bytes_max
        self._live = Live(now_ms=now_ms, may_delete=may_delete, tail_bytes_max=tail_bytes_max)
        self._writer = Writer(
            self._engine, self._live, arrivals=arrivals, observe=observe, elapsed_s=elapsed_s
        )
        self._publisher = Publisher(self._live, self._writer, transactions)
        self._endings = Endings(self._live, self._writer)
        self._polls = Polls(self._engine, self._live, transactions, settings, observe=observe)
        store = self._engine, self._live, self._writer
        self._observers = self._observed(settings.observer_directory, in_thread=in_thread_read)
        self._sweeper = Sweeper(
            *store, self._endings, transactions, may_delete=may_delete, observers=self._observers
        )
        self._topics = TopicChanges(*store, settings, may_delete=may_delete)
        self.bookmarks = Bookmarks(*store, kept_ms_max=round(settings.held_s_max * 1000))
        self._is_loaded = False
        self._is_running = False
        self._ran = asyncio.Event()
        self._written_at_ms = 0
        self._recovered_mark_ms: int | None = None
        self.damaged_reads = 0  # reads that were refused for a damaged record, since the start

    async def open(self) -> None:
        """Open the store and read what is kept in memory. A store that can't be opened or read
        leaves the room down, with a reason; `tick` tries again.

        Raises:
            DirectoryLockedError: another process, or this one, has it open.
        """
        try:
            loaded = await self._engine.open(self._load)
        except StoreError as error:
            self._engine.reason = str(error)
            return
        self._live.fill(loaded)
        self._recovered_mark_ms = loaded.mark.clock_ms
        facts = self._live.facts
        longest_ms = max(facts.longest_transaction_ms, self._longest_transaction_ms)
        self._live.facts = replace(facts, longest_transaction_ms=longest_ms)
        self._written_at_ms = self._now_ms()
        self._is_loaded = True

    async def run(self) -> None:
        """Write what comes in, until `close`."""
        self._is_running = True
        try:
            await self._writer.run()
        finally:
            self._ran.set()

    async def tick(self) -> None:
        """What is due: open a store that failed again, mark what could not be marked, write what
        waits for company, record the time."""
        # A store that fails to write is closed, and reads with it. So it is kept from a full disk.
        self._writer.lack = self._lack_of_space()
        if not self._is_loaded:
            await self.open()
        elif not self._engine.is_up:
            await self._writer.recover()
        if self._engine.is_up:
            await self._endings.retry()
            await self._flush_if_due()

    async def sweep(self) -> SweepReport:
        """One pass of retention. Raises: UnavailableError (its kinds)."""
        return await self._sweeper.sweep()

    async def close(self) -> None:
        """End the long polls, write what waits, and let go of the store."""
        self.stop_waiting()
        if self.ownership is not None:
            self.ownership.close()
        is_writing = self._is_running and not self._ran.is_set()
        if is_writing and self._engine.is_up and self._live.has_unwritten:
            await self._flush_quietly()
        self._writer.close()
        if is_writing:
            await self._ran.wait()
        await self._engine.close("the server is stopping")

    def interrupt(self) -> None:
        """Let calls of the store that hang fail at once, and all later ones: the process ends."""
        self._engine.interrupt()

    @property
    def status(self) -> tuple[str, str | None]:
        """`("ok", None)`, or `("down", reason)`."""
        return ("ok", None) if self._engine.is_up else ("down", self._engine.reason)

    @property
    def recovered_mark_ms(self) -> int | None:
        """When the server last ran, as the opened store recorded it; None for a new store."""
        return self._recovered_mark_ms

    async def create_topic(self, topic: TopicId, properties: Mapping[str, str]) -> None:
        """Raises: TopicExistsError."""
        await self._topics.create(topic, properties)

    async def update_topic(self, topic: TopicId, properties: Mapping[str, str]) -> None:
        """Replace all properties. Raises: TopicNotFoundError."""
        await self._topics.update(topic, properties)

    async def delete_topic(self, topic: TopicId) -> None:
        """Raises: TopicNotFoundError."""
        await self._topics.delete(topic)

    async def truncate_topic(self, topic: TopicId, before: MessageId | int) -> MessageId | None:
        """Let everything before a place be gone, for every reader and for ever; the oldest message
        that is left. Raises: TopicNotFoundError."""
        await self._topics.truncate(topic, before)
        return await self._polls.earliest(topic)

    def get_topic(self, topic: TopicId) -> TopicInfo:
        """Raises: TopicNotFoundError."""
        return self._topics.get(topic)

    def list_topics(self, namespace: str) -> list[str]:
        """The names of a namespace's topics, in byte order."""
        return self._topics.names(namespace)

    def namespaces(self) -> list[str]:
        """Every namespace that has a topic, in byte order."""
        return self._topics.namespaces()

    def topic_figures(self) -> Iterator[tuple[TopicId, int, int]]:
        """Each topic that was published to since the start: messages and payload bytes."""
        return self._topics.figures()

    async def publish(self, topic: TopicId, request: PublishRequest) -> Published:
        """Write messages, or the reference to stored ones; durable when it returns (§3.1)."""
        return await self._publisher.publish(topic, request)

    async def store(self, topic: TopicId, request: PublishRequest) -> None:
        """Write payloads for a later publish of the same pointer; durable (§3.2)."""
        await self._publisher.store(topic, request)

    async def rollback(self, topic: TopicId, detail: RollbackDetail) -> None:
        """Hide one transactional publish from readers in a snapshot, durably (§3.3)."""
        await self._publisher.rollback(topic, detail)

    async def poll(self, topic: TopicId, poll: Poll) -> PollResult:
        """Read, and wait if asked to and there is nothing yet (§3.4)."""
        try:
            return await self._polls.poll(topic, poll)
        except DamagedRecordError:
            self.damaged_reads += 1
            raise

    async def splits(
        self, topic: TopicId, *, start: MessageId | None, end: MessageId | None, count: int
    ) -> tuple[int, list[Split]]:
        """The topic's generation, and parts of a range to be read side by side (§3.7)."""
        return await self._polls.splits(topic, start=start, end=end, count=count)

    async def load_arrow(self) -> None:
        """Have the Arrow form of replies ready. Raises: NotAcceptableError."""
        await self._polls.load_arrow()

    async def offsets(
        self, topic: TopicId, *, isolation: Isolation = Isolation.ALL, tx: int | None = None
    ) -> Offsets:
        """Where the topic begins and ends for a reader (§3.6)."""
        return await self._polls.offsets(topic, isolation=isolation, tx=tx)

    def position_count(self) -> int:
        """How many named positions all topics have."""
        return self._polls.position_count

    async def position_lags(self, *, count_max: int) -> list[PositionLag]:
        """How far the first so many named positions are behind, by topic and name (§7)."""
        return await self._polls.position_lags(count_max=count_max)

    def newest_place(self, topic: TopicId) -> MessageId:
        """A place behind everything published so far. Raises: TopicNotFoundError."""
        return self._polls.newest_place(topic)

    def waiting_count(self) -> int:
        """How many long polls sleep until something happens."""
        return self._polls.waiting_count

    def stop_waiting(self) -> None:
        """End every long poll with nothing, now and from now on."""
        self._polls.stop_waiting()

    @contextmanager
    def view(self, start: bytes, stop: bytes) -> Iterator[RowView]:
        """Every stored row of a range of keys, as it is at this very moment. Raises:
        StorageUnavailableError."""
        view = self._engine.view(start, stop)
        try:
            yield view
        finally:
            self._engine.forget(view)

    # What transactions ask of the rows (tx/rows.py has the same methods as a protocol).

    def check_entries(self, entries: Sequence[PublishEntry]) -> None:
        """Raise what `publish_final` of these entries would be refused with."""
        self._publisher.check_entries(entries)

    async def publish_final(self, entries: Sequence[PublishEntry]) -> list[RollbackDetail]:
        """Write all entries as one durable batch, flagged as the last of their transaction."""
        return await self._publisher.publish_final(entries)

    async def mark_rolled_back(self, transaction_pointers: Collection[int]) -> None:
        """Invert every row these pointers carry, durably; what fails is tried again by `tick`.

        Raises: StorageUnavailableError.
        """
        await self._endings.mark(transaction_pointers)

    def settle(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably committed."""
        self._endings.settle(transaction_pointers)

    def wake_readers(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably ended: who is held by their rows or reads in them looks again."""
        self._endings.wake_readers(transaction_pointers)
        self._polls.insiders.wake(transaction_pointers)

    def reading_pointers(self) -> Collection[int]:
        """Every pointer in whose snapshot a poll reads."""
        return self._polls.insiders.pointers

    def topics(self, transaction_pointers: Collection[int]) -> list[str]:
        """`ns:topic` of every topic these published to or stored for, sorted."""
        return sorted(map(str, self._live.index.topics(transaction_pointers)))

    def is_carried(self, pointer: int) -> bool:
        """Whether an unmarked message row, or a stored payload, of this pointer may exist."""
        return self._live.index.holds(pointer)

    def is_cleared(self, pointer: int) -> bool:
        """Whether retention has seen to it that no row outside the index carries it either: always,
        but for rows that region servers rewrite in their own time."""
        return self._observers is None or self._observers.has_cleared(pointer)

    def final_pointers(self) -> set[int]:
        """Pointers with rows flagged as final whose commit is not settled."""
        return self._live.index.final_pointers()

    def indexed_pointers(self) -> list[int]:
        """Every pointer with rows that are neither settled nor marked: after a start, those whose
        outcome the transaction room must tell."""
        return sorted(self._live.index.pointers())

    def published_by(self, at_ms: int) -> list[int]:
        """Pointers with undecided message rows that first published not after this time."""
        unmarked = self._endings.unmarked
        return [one for one in self._live.index.published_by(at_ms) if one not in unmarked]

    def note_reserved(self, highest_pointer: int) -> None:
        """Transactions durably reserved pointers up to this one; recorded with the next batch."""
        facts = self._live.facts
        highest = max(facts.highest_pointer, highest_pointer)
        self._live.facts = replace(facts, highest_pointer=highest)

    def note_durable(self, lsn: int) -> None:
        """The edits of transactions up to this one are durable; recorded with the next batch."""
        self._live.seen_lsn = lsn

    def recorded_facts(self) -> Facts | None:
        """What the store durably remembers of itself, and of the transaction files that belong to
        it; None of an empty one. Raises: StorageUnavailableError."""
        self._engine.require_up()
        return self._live.durable_facts

    def recorded_lsn(self) -> int | None:
        """Up to which edit the transactions were durable when the store was last written; None
        where it does not say. Raises: StorageUnavailableError."""
        self._engine.require_up()
        return self._live.mark.seen_lsn

    def recorded_last(self) -> Place:
        """Up to which place messages were written. Raises: StorageUnavailableError."""
        self._engine.require_up()
        return self._live.mark.last

    async def record_store_id(self, store_id: str) -> None:
        """Record which transaction files belong to this store, durably, and what was noted."""
        self._live.facts = replace(self._live.facts, store_id=store_id)
        await self._flush()

    @property
    def last_sweep(self) -> tuple[int, str | None] | None:
        """When the last sweep that knew the transactions ran, in ms, and which state it used."""
        facts = self._live.facts
        return None if facts.swept_at_ms is None else (facts.swept_at_ms, facts.swept_with)

    def _owned(self, in_thread: InThread | None) -> Ownership | None:
        if in_thread is None:
            return None
        return Ownership(self._engine, now_ms=self._now_ms, in_thread=in_thread)

    def _observed(self, directory: str, *, in_thread: InThread) -> Observers | None:
        if not directory:
            return None
        place = Path(directory)
        return Observers(place, self._engine, self._live, self._writer, in_thread=in_thread)

    async def _flush_if_due(self) -> None:
        if self._writer.lack is not None:
            return
        now_ms = self._now_ms()
        if self._live.has_unwritten or now_ms - self._written_at_ms >= CLOCK_MARK_INTERVAL_MS:
            self._written_at_ms = now_ms
            await self._flush_quietly()

    async def _flush_quietly(self) -> None:
        try:
            await self._flush()
        except UnavailableError as error:
            log.warning("what waited for a write is still waiting: %s", error)

    async def _flush(self) -> None:
        await self._writer.submit(Write(partial(Batch.force), internal=True))
