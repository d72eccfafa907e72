"""Subscriptions to topics: the preferences of each, and the message up to which it has consumed
(decision 0042).

    key   := ("subscriptions", namespace, name, subscriber)
    value := JSON {format: 1, state: {message_id: 40 hex digits} or null,
                   preferences: {options: object of texts} or null}

Both parts are one value with one version, so an update reads, merges and compares-and-sets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from metadata.json_values import Fields, decoded, encoded, read_value, topic_key
from metadata.keys import encode_key
from metadata.store import (
    BadVersionError,
    Condition,
    DamagedEntryError,
    EntryExistsError,
    Expected,
    Key,
    MetadataStore,
    MetadataUnavailableError,
    NoEntryError,
    Versioned,
)
from tuff.protocol.errors import InvalidMessageIdError
from tuff.protocol.ids import MessageId, TopicId

FORMAT = 1
KIND = "subscriptions"
UPDATE_ATTEMPTS_MAX = 100  # of one update; each failure but the last is a write of another caller


class NoSubscriptionStateError(NoEntryError):
    """There is no such subscription. Nothing was written."""


class SubscriptionStateExistsError(EntryExistsError):
    """There is such a subscription already. Nothing was written."""


@dataclass(frozen=True, slots=True)
class SubscriptionPreferences:
    """What the subscriber wants, such as a message filter. It rarely changes."""

    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """The last message that the subscriber has consumed. It changes often."""

    message_id: MessageId


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData:
    """The two parts of a subscription. A part that is None is absent."""

    state: SubscriptionState | None = None
    preferences: SubscriptionPreferences | None = None

    def merged(self, parts: "SubscriptionData") -> "SubscriptionData":
        """These data, with each part replaced that `parts` has."""
        return SubscriptionData(
            state=self.state if parts.state is None else parts.state,
            preferences=self.preferences if parts.preferences is None else parts.preferences,
        )


class SubscriptionDataManager:
    """Subscriptions in a metadata store. Calls block, and any thread may call.

    Every method also raises MetadataUnavailableError, as the store does, and ValueError for the
    name of a subscriber that is empty or too long.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def create_subscription_data(
        self, topic: TopicId, subscriber: str, data: SubscriptionData
    ) -> int:
        """A new subscription; returns its version.

        Raises:
            SubscriptionStateExistsError: there is one.
        """
        try:
            return self._store.put(_key(topic, subscriber), _encoded(data), Expected.NEW)
        except EntryExistsError:
            raise SubscriptionStateExistsError(
                f"there is a subscription {subscriber!r} to the topic {topic}"
            ) from None

    def is_partial_update_supported(self) -> bool:
        """True: `update_subscription_data` keeps the parts that it is not given."""
        return True

    def update_subscription_data(
        self, topic: TopicId, subscriber: str, parts: SubscriptionData, version: Condition
    ) -> int:
        """Replace the parts that are given, and keep the others; returns the new version. It never
        creates a subscription, so a late write does not bring back one that was deleted.

        Raises:
            NoSubscriptionStateError: there is no such subscription.
            BadVersionError: it has another version, or the condition is NEW.
            DamagedEntryError: the parts to keep can't be read.
        """
        _require_not_new(topic, subscriber, version)
        for _ in range(UPDATE_ATTEMPTS_MAX):
            found = self.read_subscription_data(topic, subscriber)
            if isinstance(version, int) and (found is None or found.version != version):
                # The read may be behind; the parts to keep are those of exactly this version.
                self._require(topic, subscriber, version)
                continue
            if found is None:
                raise _no_subscription(topic, subscriber)
            try:
                merged = found.value.merged(parts)
                return self._put(topic, subscriber, merged, found.version)
            except BadVersionError:
                if version is not Expected.ANY:
                    raise
        raise MetadataUnavailableError(
            f"the subscription {subscriber!r} to the topic {topic} was not updated in "
            f"{UPDATE_ATTEMPTS_MAX} attempts: others change it all the time, or the reads of the "
            "metadata store are behind; try again later"
        )

    def replace_subscription_data(
        self, topic: TopicId, subscriber: str, data: SubscriptionData, version: Condition
    ) -> int:
        """Replace both parts, also by absent ones; returns the new version.

        Raises:
            NoSubscriptionStateError: there is no such subscription.
            BadVersionError: it has another version, or the condition is NEW.
        """
        _require_not_new(topic, subscriber, version)
        return self._put(topic, subscriber, data, version)

    def delete_subscription_data(self, topic: TopicId, subscriber: str, version: Condition) -> None:
        """Remove a subscription if the condition holds.

        Raises:
            NoSubscriptionStateError: there is none, whatever the condition.
            BadVersionError: it has another version, or the condition is NEW.
        """
        try:
            self._store.delete(_key(topic, subscriber), version)
        except NoEntryError:
            raise _no_subscription(topic, subscriber) from None

    def read_subscription_data(
        self, topic: TopicId, subscriber: str
    ) -> Versioned[SubscriptionData] | None:
        """A subscription, or None. Raises: DamagedEntryError."""
        return read_value(self._store, _key(topic, subscriber), _decoded)

    def read_subscriptions(self, topic: TopicId) -> dict[str, Versioned[SubscriptionData]]:
        """All subscriptions to a topic by subscriber, empty if there are none. It is no snapshot: a
        subscription that is deleted meanwhile is in it or not. Raises: DamagedEntryError."""
        return {
            _subscriber_of(key): Versioned(_decoded(key, found.value), found.version)
            for key, found in self._store.scan(topic_key(KIND, topic))
        }

    def _put(
        self, topic: TopicId, subscriber: str, data: SubscriptionData, version: Condition
    ) -> int:
        try:
            return self._store.put(_key(topic, subscriber), _encoded(data), version)
        except NoEntryError:
            raise _no_subscription(topic, subscriber) from None

    def _require(self, topic: TopicId, subscriber: str, version: int) -> None:
        try:
            self._store.require(_key(topic, subscriber), version)
        except NoEntryError:
            raise _no_subscription(topic, subscriber) from None


def _key(topic: TopicId, subscriber: str) -> Key:
    return (*topic_key(KIND, topic), subscriber)


def _subscriber_of(key: Key) -> str:
    try:
        _, _, _, subscriber = key
    except ValueError:
        raise DamagedEntryError(f"the key {encode_key(key)} names no subscription") from None
    return subscriber


def _require_not_new(topic: TopicId, subscriber: str, version: Condition) -> None:
    if version is Expected.NEW:
        raise BadVersionError(
            f"a write of the subscription {subscriber!r} to the topic {topic} takes a version or "
            "ANY; a new subscription is created"
        )


def _no_subscription(topic: TopicId, subscriber: str) -> NoSubscriptionStateError:
    return NoSubscriptionStateError(f"there is no subscription {subscriber!r} to the topic {topic}")


def _encoded(data: SubscriptionData) -> bytes:
    state, preferences = data.state, data.preferences
    return encoded(
        {
            "state": None if state is None else {"message_id": state.message_id.hex()},
            "preferences": None if preferences is None else {"options": dict(preferences.options)},
        },
        format_number=FORMAT,
    )


def _decoded(key: Key, data: bytes) -> SubscriptionData:
    return decoded(key, data, _data_of, format_number=FORMAT, what="subscription")


def _data_of(fields: Fields) -> SubscriptionData:
    state = fields.maybe_nested("state")
    preferences = fields.maybe_nested("preferences")
    return SubscriptionData(
        state=None if state is None else _state_of(state),
        preferences=None
        if preferences is None
        else SubscriptionPreferences(options=preferences.nested("options").all_texts()),
    )


def _state_of(fields: Fields) -> SubscriptionState:
    try:
        return SubscriptionState(MessageId.from_hex(fields.text("message_id")))
    except InvalidMessageIdError as error:
        raise ValueError(f"its message_id is none: {error}") from None
