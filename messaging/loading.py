"""What an opened store holds, read once: topics, pointer index, mark and facts. Blocks."""

import logging
from dataclasses import dataclass

from messaging.facts import Facts, Mark
from messaging.index import IndexedRange
from messaging.keys import (
    FACTS_KEY,
    INDEX,
    MARK_KEY,
    MESSAGES,
    ROWS_STOP,
    TOPICS,
    place_in,
    prefix_stop,
    split_topic,
)
from messaging.rows import DamagedRowError
from messaging.sequence import BEFORE_ALL
from messaging.storage.seam import Store, StoreDamagedError
from messaging.topics import TopicRecord
from tuff.protocol.ids import Place
from tuff.protocol.names import TopicId

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was read. A topic whose row is damaged has the reason in place of its record."""

    topics: dict[TopicId, TopicRecord | str]
    index: list[IndexedRange]
    mark: Mark
    facts: Facts


def load(store: Store) -> Loaded:
    """Everything that is kept in memory.

    Raises:
        StoreError: the engine can't read, or a row is damaged without which nothing can be served
            safely; the sentence says which.
    """
    return Loaded(
        topics=_load_topics(store),
        index=_load_index(store),
        mark=read_mark(store),
        facts=_read_facts(store),
    )


def read_mark(store: Store) -> Mark:
    """How far the store was written. Raises: StoreError."""
    value = store.get(MARK_KEY)
    try:
        if value is not None:
            return Mark.from_bytes(MARK_KEY, value)
        highest = _highest_place(store)
        if highest == BEFORE_ALL:
            return Mark()
        log.warning("the mark of the store is missing; its highest row stands at %s", highest)
    except DamagedRowError as error:
        highest = _highest_place(store)
        log.warning("the mark of the store is damaged (%s); using its highest row", error)
    return Mark(last=highest)


def _read_facts(store: Store) -> Facts:
    value = store.get(FACTS_KEY)
    try:
        return Facts() if value is None else Facts.from_bytes(FACTS_KEY, value)
    except DamagedRowError as error:
        # Taken for an empty beginning, missing transaction files went unnoticed.
        raise StoreDamagedError(
            f"the store's record of the transaction files beside it is damaged ({error}); use "
            "`tuff salvage`"
        ) from None


def _load_topics(store: Store) -> dict[TopicId, TopicRecord | str]:
    topics: dict[TopicId, TopicRecord | str] = {}
    for key, value in store.scan(TOPICS, prefix_stop(TOPICS)):
        try:
            topic = split_topic(key[1:])
        except ValueError as error:
            raise StoreDamagedError(
                f"the topic row {key.hex()} is damaged in its key ({error}); use `tuff salvage`"
            ) from None
        try:
            topics[topic] = TopicRecord.from_bytes(key, value)
        except DamagedRowError as error:
            log.warning("the metadata of the topic %s is damaged: %s", topic, error)
            topics[topic] = str(error)
    return topics


def _load_index(store: Store) -> list[IndexedRange]:
    entries = []
    for key, value in store.scan(INDEX, prefix_stop(INDEX)):
        try:
            entries.append(IndexedRange.from_bytes(key, value))
        except DamagedRowError as error:
            # Left out, the rows of an aborted transaction could stay unmarked and come to light.
            raise StoreDamagedError(
                f"the index row {key.hex()} is damaged ({error}); use `tuff salvage`"
            ) from None
    return entries


def _highest_place(store: Store) -> Place:
    highest = BEFORE_ALL
    for key, _ in store.scan(MESSAGES, ROWS_STOP):
        highest = max(highest, place_in(key))
    return highest
