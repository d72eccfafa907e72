"""A deleted topic keeps an owner, so it is loaded and given away like any other."""

from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.log.delayed_due_times import Due
from messaging.log.loading import LoadedTopics, load_topics
from messaging.log.state_in_memory import StoreState
from messaging.log.topics import TopicRecord
from messaging.model.row_format import topic_key
from messaging.settings import MessagingSettings
from tuff.protocol.ids import TopicId

AUDIT = TopicId("default", "audit")
DELETED = TopicRecord(generation=-2, properties={"ttl": "60"})


def test_a_deleted_topic_is_loaded_without_holds() -> None:
    key = topic_key(AUDIT)
    store = MemoryStore({key: DELETED.to_bytes(key)})

    assert load_topics(Store(store), [AUDIT]).records == {AUDIT: DELETED}


def test_a_deleted_topic_can_be_given_away() -> None:
    state = StoreState(
        now_ms=lambda: 1_000,
        may_delete=lambda: True,
        due=lambda: Due(1_000),
        settings=MessagingSettings(),
        longest_transaction_s=60,
        is_shared=True,
    )
    state.add_topics(LoadedTopics(records={AUDIT: DELETED}, due_ms={}, index=[], producers=[]))

    state.remove_topic(state.topics.find(AUDIT))

    assert state.topics.is_foreign(AUDIT)
