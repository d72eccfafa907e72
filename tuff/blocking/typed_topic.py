# Generated from tuff/aio/typed_topic.py by `make blocking`; change that one.
"""A topic whose payloads are values of one type; `tuff.serializers` has the serializers."""

import dataclasses
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from tuff.protocol.durations import Duration
from tuff.protocol.ids import MessageId, TopicLike, topic_of
from tuff.protocol.requests import Ack, AckLike, IsolationLike, Message
from tuff.protocol.transaction import Transaction
from tuff.publish_calls import Headers, NewMessage, attributed
from tuff.read_calls import Start, Undecided
from tuff.replies import Poll, Published
from tuff.serializers import Serializer, TypedMessage, checked_serializer

if TYPE_CHECKING:
    from tuff.blocking.client import Client

V = TypeVar("V")


class TypedTopic(Generic[V]):
    """`client.topic(id, serializer)`: publishes and reads values of one type. Safe to share between
    threads."""

    def __init__(self, client: "Client", id: TopicLike, serializer: Serializer[V]) -> None:
        self.id = topic_of(id)
        self.serializer = checked_serializer(serializer)
        self._client = client

    def message(self, value: V | NewMessage[V]) -> NewMessage[bytes]:
        """The message of a value, for calls that take messages: `tx.publish(orders.id,
        orders.message(order))`, `publisher.publish(…)`. What the serializer raises is raised."""
        if not isinstance(value, NewMessage):
            return NewMessage(self.serializer.to_bytes(value))
        data = self.serializer.to_bytes(value.payload)
        return NewMessage(data, value.key, value.tags, value.headers, value.ttl)

    def read(self, message: Message) -> TypedMessage[V]:
        """A message that another call returned, such as the batch of a `subscriber`, with its
        value."""
        return TypedMessage(self.id, message, self.serializer)

    def publish(
        self,
        *values: V | NewMessage[V],
        key: str | bytes | None = None,
        tags: Iterable[str] = (),
        headers: Headers = (),
        ttl: Duration | None = None,
        delay: Duration | None = None,
        at: datetime | int | None = None,
        ack: AckLike = Ack.DURABLE,
        transaction: Transaction | int | None = None,
    ) -> Published:
        """Publish values, as `tuff.Client.publish` does.

            orders.publish(Order("apple", 3), key="apple")

        Raises: what the serializer raises, and then nothing was sent; else as that one.
        """
        given = attributed(values, key=key, tags=tags, headers=headers)
        messages = [self.message(value) for value in given]
        return self._client.publish(
            self.id,
            *messages,
            ttl=ttl,
            delay=delay,
            at=at,
            ack=ack,
            transaction=transaction,
        )

    def poll(
        self,
        start: Start | None = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        transaction: Transaction | int | None = None,
        isolation: IsolationLike | None = None,
        undecided: Undecided = "hold",
        wait: Duration = 0,
        through: MessageId | str | None = None,
        tags: str | None = None,
    ) -> Poll[TypedMessage[V]]:
        """Read messages, as `tuff.Client.poll` does. A payload is deserialized when its `value` is
        used, so one that can't be read prevents no other from being read."""
        poll = self._client.poll(
            self.id,
            start,
            inclusive=inclusive,
            limit=limit,
            transaction=transaction,
            isolation=isolation,
            undecided=undecided,
            wait=wait,
            through=through,
            tags=tags,
        )
        fields = {each.name: getattr(poll, each.name) for each in dataclasses.fields(poll)}
        return Poll(**{**fields, "messages": tuple(map(self.read, poll.messages))})

    def subscribe(
        self,
        start: Start | None = None,
        *,
        isolation: IsolationLike = "committed",
        batch: int = 500,
        wait: Duration = 30.0,
        tags: str | None = None,
    ) -> Iterator[TypedMessage[V]]:
        """All messages, and then each new one, as `tuff.Client.subscribe`.

            for order in orders.subscribe():
                print(order.value)

        A value that can't be deserialized raises where it is used, and the iteration can continue.
        """
        for message in self._client.subscribe(
            self.id, start, isolation=isolation, batch=batch, wait=wait, tags=tags
        ):
            yield self.read(message)
