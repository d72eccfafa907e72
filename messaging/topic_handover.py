"""Takes topics over from other servers of a cluster, and hands them over (decision 0042).

Who owns which topic is decided outside of this component. Here, a topic that this server owns is
loaded into memory, and a topic that it gives away is removed once everything of it is in the shared
tables.
"""

from collections.abc import Collection
from functools import partial

from messaging.storage.engine import Floor, SharedStore, Store
from messaging.storage.loading import LoadedTopics, load_topics
from messaging.storage.store_state import OpenStore, StoreState
from messaging.topics import TopicRecord
from messaging.write.group_commit import GroupCommitter, Write, WriteBatch
from tuff.protocol.ids import TopicId


class TopicHandover:
    """Lives on the event loop. One call at a time for each topic."""

    def __init__(self, store: OpenStore, state: StoreState, committer: GroupCommitter) -> None:
        self._store = store
        self._state = state
        self._committer = committer

    async def take(self, topics: Collection[TopicId], floor: Floor) -> None:
        """Serve these topics from now on. Nothing of them was written above the floor, and nobody
        else can write to them any more.

        Raises: UnavailableError (its kinds): none of them is served, and it can be repeated.
        """
        _shared(self._store.require_up()).raise_time(floor.cell_ms)
        loaded = await self._store.read(partial(load_topics, topics=frozenset(topics)))
        # In a batch: raised at any other time, the high-water mark would pass the rows of a batch
        # that is being written.
        await self._committer.submit(Write(partial(self._add, loaded, floor), internal=True))

    async def give(self, topic: TopicId) -> Floor:
        """Stop serving a topic. When this returns, everything of it is in the shared tables, and
        this server writes to it no more. Writes that arrive meanwhile are refused.

        Raises: UnavailableError (its kinds): it is still served. TopicNotFoundError, and
        OwnershipMovingError: it is not served here.
        """
        found = self._state.topics.find(topic)
        found.is_released = True
        try:
            # Batches are written one after the other: with this one, all earlier ones are durable.
            await self._flush()
            while self._state.index.is_settling(topic):
                await self._flush()
            store = _shared(self._store.require_up())
            last = self._state.sequencer.last
            await self._store.read(lambda _: store.wait_until_shared())
        except BaseException:
            found.is_released = False
            raise
        self._state.remove_topic(found)
        return Floor(last, store.cell_ms)

    def topics(self) -> list[TopicId]:
        """The topics that are served here, in byte order."""
        return sorted(topic.id for topic in self._state.topics if not topic.is_released)

    def generation(self, topic: TopicId) -> int:
        """The generation of a topic that is served here: 0 if it was never created, negative if it
        was deleted, and 0 if its row can't be read. Raises: OwnershipMovingError."""
        record = self._state.topics.find(topic).durable
        return 0 if record is None else record.generation

    async def _flush(self) -> None:
        await self._committer.submit(Write(WriteBatch.force, internal=True))

    def _add(self, loaded: LoadedTopics, floor: Floor, batch: WriteBatch) -> None:
        sequencer = self._state.sequencer
        sequencer.raise_above(floor.last)
        for record in loaded.records.values():
            if isinstance(record, TopicRecord):
                # As in a load of the whole store: no message may have an id before the log start.
                sequencer.raise_above(record.log_start.offset)
        batch.force()
        batch.on_durable(partial(self._state.add_topics, loaded))


def _shared(store: Store) -> SharedStore:
    assert isinstance(store, SharedStore), "only the tables of a cluster are shared"
    return store
