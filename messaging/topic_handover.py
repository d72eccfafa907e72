"""Takes topics over from other servers of a cluster, and hands them over (decision 0042).

Who owns which topic is decided outside of this component. Here, a topic that this server owns is
loaded into memory, and a topic that it gives away is removed once everything of it is in the shared
tables.
"""

import asyncio
from collections.abc import Collection
from functools import partial

from kernel.owner_floor import Floor
from messaging.engines.engine_interface import SharedStore
from messaging.engines.row_store import Store
from messaging.log.loading import LoadedTopics, load_topics
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.log.topics import Topic, TopicRecord
from messaging.write.write_batch import WriteBatch
from messaging.write.write_queue import Write, WriteQueue
from tuff.protocol.ids import TopicId


class TopicHandover:
    """Lives on the event loop. One call at a time for each topic."""

    def __init__(self, store: OpenStore, state: StoreState, committer: WriteQueue) -> None:
        self._store = store
        self._state = state
        self._committer = committer
        self._sharing = asyncio.Lock()
        self._asked_count = 0  # calls that wait for the shared tables, or did
        self._shared_count = 0  # the first of these calls, for which a wait has ended

    async def take(self, topics: Collection[TopicId], floor: Floor) -> None:
        """Serve these topics from now on. Nothing of them was written above the floor, and no
        other server can write to them any more.

        Raises: UnavailableError (its kinds): none of them is served, and it can be repeated.
        """
        loaded = await self._store.read(partial(load_topics, units=frozenset(topics)))
        # In a batch: the topics are served once it is durable that this server is above the floor.
        # And a store that failed and was opened again before would have forgotten the time.
        await self._committer.submit(Write(partial(self._add, loaded, floor), internal=True))

    async def give(self, topic: TopicId) -> Floor:
        """Stop serving a topic. When this returns, everything of it is in the shared tables, and
        this server writes to it no more. Writes that arrive meanwhile are refused.

        Raises: UnavailableError (its kinds): it is still served. TopicNotFoundError, and
        OwnershipMovingError: it is not served here.
        """
        # Its partitions and the logs of its share groups go with it: one batch writes several.
        self._state.topics.find(topic)
        parts = self._state.topics.unit(topic)
        _set_released(parts, is_released=True)
        try:
            # Batches are written one after the other: with this one, all earlier ones are durable.
            await self._flush(topic)
            is_flushed = False
            while not is_flushed:
                await self._rows_shared()
                # This commit says that the rows are in the tables. Without it, a server that fences
                # this one would put them again, with a time that may be above the new owner's.
                is_flushed = await self._flush(topic)
            floor = Floor(
                self._state.sequencer.last,
                _shared(self._store.require_up()).cell_ms,
                self._state.metadata.longest_transaction_ms,
            )
        except BaseException:
            _set_released(parts, is_released=False)
            raise
        for each in self._state.topics.unit(topic):
            self._state.remove_topic(each)
        return floor

    def topics(self) -> list[TopicId]:
        """The topics that are served here, in byte order."""
        return sorted(
            topic.id
            for topic in self._state.topics
            if not topic.is_released and topic.id == topic.id.unit
        )

    def generation(self, topic: TopicId) -> int:
        """The generation of a topic that is served here: 0 if it was never created, negative if it
        was deleted, and 0 if its row can't be read. Raises: OwnershipMovingError."""
        record = self._state.topics.find(topic).durable
        return 0 if record is None else record.generation

    async def _rows_shared(self) -> None:
        """Wait until everything that was written before is in the shared tables. Topics that are
        given away at the same time share a wait: each wait occupies a thread that serves reads."""
        self._asked_count += 1
        number = self._asked_count
        async with self._sharing:
            if self._shared_count < number:
                asked_count = self._asked_count
                await self._store.read(lambda store: _shared(store).wait_until_shared())
                self._shared_count = asked_count

    async def _flush(self, topic: TopicId) -> bool:
        """Write a batch; whether it contains nothing of the topic, and none after it will."""
        index = self._state.index

        def is_ended() -> bool:
            parts = self._state.topics.unit(topic)
            return not any(index.is_ending(each.id) for each in parts)

        def build(batch: WriteBatch) -> bool:
            batch.force()
            return is_ended()

        return await self._committer.submit(Write(build, internal=True)) and is_ended()

    def _add(self, loaded: LoadedTopics, floor: Floor, batch: WriteBatch) -> None:
        self._state.raise_longest_transaction(floor.longest_transaction_ms)
        _shared(self._store.require_up()).raise_time(floor.cell_ms)
        sequencer = self._state.sequencer
        sequencer.raise_above(floor.offset)
        for record in loaded.records.values():
            if isinstance(record, TopicRecord):
                # As in a load of the whole store: no message may have an id before the log start.
                sequencer.raise_above(record.log_start.offset)
        batch.force()
        batch.loaded.append(loaded)


def _set_released(topics: Collection[Topic], *, is_released: bool) -> None:
    for topic in topics:
        topic.is_released = is_released


def _shared(store: Store) -> SharedStore:
    assert isinstance(store.engine, SharedStore), "only the tables of a cluster are shared"
    return store.engine
