"""Subscriptions: merged parts, deletions, races. The table of results is in test_managers.py."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from metadata.store import (
    BadVersionError,
    Condition,
    DamagedEntryError,
    Expected,
    Key,
    MetadataStore,
    MetadataUnavailableError,
    Session,
    Versioned,
)
from metadata.subscriptions import (
    UPDATE_ATTEMPTS_MAX,
    NoSubscriptionStateError,
    SubscriptionData,
    SubscriptionDataManager,
    SubscriptionPreferences,
    SubscriptionState,
)
from tuff.protocol.ids import MessageId, TopicId

ORDERS = TopicId("shop", "orders")
RED = SubscriptionPreferences({"filter": "colour = 'red'"})
AT_5 = SubscriptionState(MessageId(5, 6))
AT_8 = SubscriptionState(MessageId(8, 0, 9, 1))
WHOLE = SubscriptionData(state=AT_5, preferences=RED)


def test_a_subscription_has_these_bytes(store: MetadataStore) -> None:
    SubscriptionDataManager(store).create_subscription_data(ORDERS, "billing", WHOLE)

    found = store.get(("subscriptions", "shop", "orders", "billing"))
    assert found is not None
    assert found.value == (
        b'{"format":1,"preferences":{"options":{"filter":"colour = \'red\'"}},'
        b'"state":{"message_id":"0000000000000005000600000000000000000000"}}'
    )


@pytest.mark.parametrize("condition", ["version", "any"])
@pytest.mark.parametrize(
    ("parts", "updated"),
    [
        (SubscriptionData(state=AT_8), SubscriptionData(state=AT_8, preferences=RED)),
        (
            SubscriptionData(preferences=SubscriptionPreferences()),
            SubscriptionData(state=AT_5, preferences=SubscriptionPreferences()),
        ),
        (SubscriptionData(), WHOLE),
    ],
)
def test_an_update_keeps_the_parts_that_it_is_not_given(
    store: MetadataStore, condition: str, parts: SubscriptionData, updated: SubscriptionData
) -> None:
    manager = SubscriptionDataManager(store)
    created = manager.create_subscription_data(ORDERS, "billing", WHOLE)

    version = manager.update_subscription_data(
        ORDERS, "billing", parts, created if condition == "version" else Expected.ANY
    )

    assert manager.is_partial_update_supported()
    assert manager.read_subscription_data(ORDERS, "billing") == Versioned(updated, version)


@pytest.mark.parametrize("condition", ["version", "any"])
def test_a_replacement_drops_the_parts_that_it_is_not_given(
    store: MetadataStore, condition: str
) -> None:
    manager = SubscriptionDataManager(store)
    created = manager.create_subscription_data(ORDERS, "billing", WHOLE)

    only_state = SubscriptionData(state=AT_8)
    version = manager.replace_subscription_data(
        ORDERS, "billing", only_state, created if condition == "version" else Expected.ANY
    )

    assert manager.read_subscription_data(ORDERS, "billing") == Versioned(only_state, version)


def test_a_state_write_does_not_bring_back_a_deleted_subscription(store: MetadataStore) -> None:
    manager = SubscriptionDataManager(store)
    created = manager.create_subscription_data(ORDERS, "billing", WHOLE)
    manager.delete_subscription_data(ORDERS, "billing", created)

    for condition in (created, Expected.ANY):
        with pytest.raises(NoSubscriptionStateError, match="'billing' to the topic shop:orders"):
            manager.update_subscription_data(
                ORDERS, "billing", SubscriptionData(state=AT_8), condition
            )

    assert manager.read_subscriptions(ORDERS) == {}


def test_a_deletion_during_an_update_ends_the_update(store: MetadataStore) -> None:
    manager = SubscriptionDataManager(store)
    created = manager.create_subscription_data(ORDERS, "billing", WHOLE)
    disturbed = Disturbed(
        store, lambda: manager.delete_subscription_data(ORDERS, "billing", created)
    )

    with pytest.raises(NoSubscriptionStateError):
        SubscriptionDataManager(disturbed).update_subscription_data(
            ORDERS, "billing", SubscriptionData(state=AT_8), Expected.ANY
        )

    assert manager.read_subscriptions(ORDERS) == {}


def test_an_update_of_any_version_merges_into_what_another_writer_wrote_meanwhile(
    store: MetadataStore,
) -> None:
    manager = SubscriptionDataManager(store)
    manager.create_subscription_data(ORDERS, "billing", SubscriptionData(state=AT_5))

    def set_preferences() -> None:
        manager.update_subscription_data(
            ORDERS, "billing", SubscriptionData(preferences=RED), Expected.ANY
        )

    disturbed = SubscriptionDataManager(Disturbed(store, set_preferences))
    version = disturbed.update_subscription_data(
        ORDERS, "billing", SubscriptionData(state=AT_8), Expected.ANY
    )

    assert manager.read_subscription_data(ORDERS, "billing") == Versioned(
        SubscriptionData(state=AT_8, preferences=RED), version
    )


def test_an_update_of_a_version_fails_if_another_writer_wrote_meanwhile(
    store: MetadataStore,
) -> None:
    manager = SubscriptionDataManager(store)
    created = manager.create_subscription_data(ORDERS, "billing", SubscriptionData(state=AT_5))

    def set_preferences() -> None:
        manager.update_subscription_data(
            ORDERS, "billing", SubscriptionData(preferences=RED), Expected.ANY
        )

    disturbed = SubscriptionDataManager(Disturbed(store, set_preferences))
    with pytest.raises(BadVersionError):
        disturbed.update_subscription_data(ORDERS, "billing", SubscriptionData(state=AT_8), created)

    found = manager.read_subscription_data(ORDERS, "billing")
    assert found is not None
    assert found.value == SubscriptionData(state=AT_5, preferences=RED)


def test_an_update_that_is_disturbed_each_time_gives_up(store: MetadataStore) -> None:
    manager = SubscriptionDataManager(store)
    manager.create_subscription_data(ORDERS, "billing", WHOLE)

    def write() -> None:
        manager.replace_subscription_data(ORDERS, "billing", WHOLE, Expected.ANY)

    disturbed = Disturbed(store, write, times=UPDATE_ATTEMPTS_MAX)
    with pytest.raises(MetadataUnavailableError, match="was not updated in 100 attempts"):
        SubscriptionDataManager(disturbed).update_subscription_data(
            ORDERS, "billing", SubscriptionData(state=AT_8), Expected.ANY
        )


def test_an_update_does_not_merge_into_a_version_that_a_slow_reader_still_sees(
    store: MetadataStore,
) -> None:
    manager = SubscriptionDataManager(store)
    created = manager.create_subscription_data(ORDERS, "billing", SubscriptionData(state=AT_5))
    behind = Behind(store, store.get(("subscriptions", "shop", "orders", "billing")), reads=2)
    second = manager.update_subscription_data(
        ORDERS, "billing", SubscriptionData(preferences=RED), created
    )

    version = SubscriptionDataManager(behind).update_subscription_data(
        ORDERS, "billing", SubscriptionData(state=AT_8), second
    )

    assert manager.read_subscription_data(ORDERS, "billing") == Versioned(
        SubscriptionData(state=AT_8, preferences=RED), version
    )


def test_an_update_waits_for_a_subscription_that_a_slow_reader_does_not_see_yet(
    store: MetadataStore,
) -> None:
    manager = SubscriptionDataManager(store)
    created = manager.create_subscription_data(ORDERS, "billing", WHOLE)

    SubscriptionDataManager(Behind(store, None, reads=1)).update_subscription_data(
        ORDERS, "billing", SubscriptionData(state=AT_8), created
    )

    found = manager.read_subscription_data(ORDERS, "billing")
    assert found is not None
    assert found.value == replace(WHOLE, state=AT_8)


def test_the_subscriptions_of_a_topic_are_read_by_subscriber(store: MetadataStore) -> None:
    manager = SubscriptionDataManager(store)
    only_state = SubscriptionData(state=AT_5)
    first = manager.create_subscription_data(ORDERS, "billing", WHOLE)
    second = manager.create_subscription_data(ORDERS, "a/b é %", only_state)
    manager.create_subscription_data(TopicId("shop", "orders2"), "other", WHOLE)

    assert manager.read_subscriptions(ORDERS) == {
        "billing": Versioned(WHOLE, first),
        "a/b é %": Versioned(only_state, second),
    }


def test_a_topic_without_subscriptions_has_none_also_if_others_have(store: MetadataStore) -> None:
    manager = SubscriptionDataManager(store)
    manager.create_subscription_data(ORDERS, "billing", WHOLE)

    assert manager.read_subscriptions(TopicId("shop", "a")) == {}
    assert manager.read_subscriptions(TopicId("shop", "z")) == {}
    assert manager.read_subscription_data(TopicId("shop", "z"), "billing") is None


def test_subscriptions_that_come_and_go_do_not_fail_a_reader(store: MetadataStore) -> None:
    manager = SubscriptionDataManager(store)
    manager.create_subscription_data(ORDERS, "stays", WHOLE)

    def come_and_go() -> None:
        for number in range(30):
            subscriber = f"s{number % 3}"
            version = manager.create_subscription_data(ORDERS, subscriber, WHOLE)
            manager.delete_subscription_data(ORDERS, subscriber, version)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(come_and_go)
        read = [manager.read_subscriptions(ORDERS)]
        while not writing.done():
            read.append(manager.read_subscriptions(ORDERS))
        writing.result()

    assert all("stays" in each for each in read)
    assert set(manager.read_subscriptions(ORDERS)) == {"stays"}


def test_concurrent_updates_of_both_parts_keep_both(store: MetadataStore) -> None:
    manager = SubscriptionDataManager(store)
    manager.create_subscription_data(ORDERS, "billing", SubscriptionData())

    def consume() -> None:
        for number in range(1, 21):
            parts = SubscriptionData(state=SubscriptionState(MessageId(number, 0)))
            manager.update_subscription_data(ORDERS, "billing", parts, Expected.ANY)

    def prefer() -> None:
        for number in range(1, 21):
            parts = SubscriptionData(preferences=SubscriptionPreferences({"n": str(number)}))
            manager.update_subscription_data(ORDERS, "billing", parts, Expected.ANY)

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(consume), pool.submit(prefer)]:
            each.result()

    found = manager.read_subscription_data(ORDERS, "billing")
    assert found is not None
    assert found.value == SubscriptionData(
        state=SubscriptionState(MessageId(20, 0)),
        preferences=SubscriptionPreferences({"n": "20"}),
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"format":1,"state":{"message_id":"0"},"preferences":null}', "is not a message id"),
        (b'{"format":1,"state":7,"preferences":null}', "state is not an object"),
        (b'{"format":1,"state":null,"preferences":{"options":{"a":1}}}', "a is not text"),
        (b'{"format":1,"state":null}', "preferences is missing"),
    ],
)
def test_an_unreadable_subscription_is_reported_with_its_key(
    store: MetadataStore, data: bytes, reason: str
) -> None:
    store.put(("subscriptions", "shop", "orders", "billing"), data, Expected.NEW)
    manager = SubscriptionDataManager(store)

    with pytest.raises(DamagedEntryError, match=f"subscriptions/shop/orders/billing .*{reason}"):
        manager.read_subscription_data(ORDERS, "billing")
    with pytest.raises(DamagedEntryError, match="subscriptions/shop/orders/billing"):
        manager.read_subscriptions(ORDERS)


def test_a_key_that_names_no_subscription_is_reported(store: MetadataStore) -> None:
    store.put(("subscriptions", "shop", "orders", "a", "b"), b"", Expected.NEW)

    with pytest.raises(DamagedEntryError, match="names no subscription"):
        SubscriptionDataManager(store).read_subscriptions(ORDERS)


def test_a_subscriber_without_a_name_is_refused(store: MetadataStore) -> None:
    with pytest.raises(ValueError, match="empty"):
        SubscriptionDataManager(store).create_subscription_data(ORDERS, "", WHOLE)


class Passing:
    """A store that passes each call on to another one."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def get(self, key: Key) -> Versioned[bytes] | None:
        return self._store.get(key)

    def put(
        self, key: Key, value: bytes, expected: Condition, *, session: Session | None = None
    ) -> int:
        return self._store.put(key, value, expected, session=session)

    def delete(self, key: Key, expected: Condition) -> None:
        self._store.delete(key, expected)

    def scan(self, prefix: Key) -> Iterator[tuple[Key, Versioned[bytes]]]:
        return self._store.scan(prefix)

    def require(self, key: Key, version: int) -> None:
        self._store.require(key, version)

    def watch(self, prefix: Key, changed: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(prefix, changed)

    def open_session(self, *, timeout_s: float, lost: Callable[[], None]) -> Session:
        return self._store.open_session(timeout_s=timeout_s, lost=lost)

    def close(self) -> None:
        self._store.close()


class Disturbed(Passing):
    """After each of the first reads, something else happens in the store."""

    def __init__(
        self, store: MetadataStore, happens: Callable[[], object], *, times: int = 1
    ) -> None:
        super().__init__(store)
        self._happens = happens
        self._times = times

    def get(self, key: Key) -> Versioned[bytes] | None:
        found = super().get(key)
        if self._times > 0:
            self._times -= 1
            self._happens()
        return found


class Behind(Passing):
    """The first reads return what the entry was earlier, as a follower of ZooKeeper may."""

    def __init__(
        self, store: MetadataStore, earlier: Versioned[bytes] | None, *, reads: int
    ) -> None:
        super().__init__(store)
        self._earlier = earlier
        self._reads = reads

    def get(self, key: Key) -> Versioned[bytes] | None:
        if self._reads > 0:
            self._reads -= 1
            return self._earlier
        return super().get(key)
