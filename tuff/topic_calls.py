"""Calls about topics and what is kept with them, and about servers (protocol §3, §5, §7)."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from tuff.flows_and_repeated_calls import Call, Flow, Retries, call
from tuff.protocol import operations
from tuff.protocol.durations import Duration
from tuff.protocol.errors import DelayedNotFoundError, PartitionRequiredError
from tuff.protocol.ids import (
    FIRST_ID,
    MessageId,
    PartitionId,
    TopicLike,
    check_name,
    names_of,
    topic_of,
)
from tuff.protocol.json_bodies import rollback_detail_to_json, text_from_json
from tuff.protocol.operations import Operation
from tuff.protocol.requests import IsolationLike, RollbackDetail
from tuff.protocol.transaction import Transaction
from tuff.publish_calls import ttl_of
from tuff.read_calls import EARLIEST, LATEST, Start, hex_of, start_to_json
from tuff.replies import (
    ClusterState,
    DelayedMessage,
    DiskUse,
    Drain,
    Explanation,
    Health,
    Hold,
    MessageCount,
    NamedPosition,
    Reclaimed,
    RowPage,
    Splits,
    TopicInfo,
    TopicOwners,
    TopicSpace,
    TopicUpdate,
)
from tuff.requests_and_responses import (
    IdOrHex,
    Query,
    Request,
    Response,
    mapping,
    maybe_number_of,
    nothing,
    number_of,
    of_type,
    reply,
    reply_list,
    reply_object,
    reply_texts,
)

T = TypeVar("T")

Properties = Mapping[str, str | int]
ChangedProperties = Mapping[str, str | int | None]  # None removes one


def topic_properties(
    ttl: Duration | None,
    properties: Properties | ChangedProperties | None,
    partitions: int | None = None,
) -> dict[str, object]:
    """The properties of a topic, including its ttl in seconds and its number of partitions."""
    given: dict[str, object] = dict(mapping(properties or {}, "properties"))
    if ttl is not None:
        given["ttl"] = ttl_of(ttl)
    if partitions is not None:
        given["partitions"] = number_of(partitions, "partitions")
    return given


def create_topic(topic: TopicLike, properties: Mapping[str, object]) -> Call[None]:
    return call(operations.CREATE_TOPIC, names_of(topic), nothing, form=properties)


def update_topic(
    topic: TopicLike, properties: Mapping[str, object], *, dry_run: bool
) -> Call[TopicUpdate]:
    of_type(dry_run, bool, "dry_run")

    operation = operations.CHANGE_TOPIC
    asked = {"dryRun": "true"} if dry_run else None
    read = reply(TopicUpdate, topic=topic_of(topic))
    return call(operation, names_of(topic), read, query=asked, form=properties)


def get_topic(topic: TopicLike) -> Call[TopicInfo]:
    return call(operations.GET_TOPIC, names_of(topic), reply(TopicInfo, topic=topic_of(topic)))


def count_messages(topic: TopicLike, *, after: IdOrHex | None) -> Call[MessageCount]:
    query = {"after": hex_of(after)}
    return call(operations.COUNT_MESSAGES, names_of(topic), reply(MessageCount), query=query)


def list_topics(namespace: str) -> Call[list[str]]:
    name = check_name(namespace, what="namespace")
    return call(operations.LIST_TOPICS, (name,), reply_texts)


def splits(
    topic: TopicLike, count: int, *, start: IdOrHex | None, end: IdOrHex | None
) -> Call[Splits]:
    query = {"n": number_of(count, "count"), "start": hex_of(start), "end": hex_of(end)}
    return call(operations.GET_SPLITS, names_of(topic), reply(Splits), query=query)


def _latest_position(retries: Retries, topic: TopicLike) -> Flow[MessageId]:
    """A position behind all messages that are published by now, and before all later ones."""

    def read(response: Response) -> MessageId:
        return MessageId.from_hex(response.headers["tuff-next"])

    query: Query = {"from": "latest", "limit": 1}
    try:
        asked = call(operations.BROWSE, names_of(topic), read, query=query)
        return (yield from retries.ask(asked))
    except PartitionRequiredError:
        # It is the same for all topics of a server.
        return (yield from _latest_position(retries, topic_of(topic).partition(0)))


def truncate(retries: Retries, topic: TopicLike, before: Start) -> Flow[MessageId | None]:
    """The latest position replaces a `before` behind it. A position in the future would remove all
    that exists when the request arrives, so a repetition would also remove what was published in
    between."""
    form = start_to_json(before)
    latest = yield from _latest_position(retries, topic)
    if form == EARLIEST:
        form = FIRST_ID.hex()
    if form == LATEST or _is_behind(form, latest):
        form = latest.hex()

    def read(response: Response) -> MessageId | None:
        return _maybe_id(reply_object(response)["earliest"])

    asked = call(operations.TRUNCATE_TOPIC, names_of(topic), read, form={"before": form})
    return (yield from retries.ask(asked))


def _is_behind(form: str | int, latest: MessageId) -> bool:
    if isinstance(form, str):
        return MessageId.from_hex(form) > latest
    return form > latest.publish_timestamp_ms


def set_hold(
    retries: Retries, topic: TopicLike, name: str, start: Start, *, max_age_s: float
) -> Flow[Hold]:
    first = FIRST_ID if start == EARLIEST else start
    if start == LATEST:
        first = yield from _latest_position(retries, topic)
    body = {"from": start_to_json(first), "maxAge": max_age_s}
    asked = call(operations.SET_HOLD, _named(topic, name), reply(Hold), form=body)
    return (yield from retries.ask(asked))


def set_position(topic: TopicLike, name: str, position: IdOrHex) -> Call[NamedPosition]:
    body = {"position": hex_of(position)}
    return call(operations.SET_POSITION, _named(topic, name), reply(NamedPosition), form=body)


def _named(topic: TopicLike, name: str) -> tuple[str, ...]:
    return (*names_of(topic), check_name(name, what="name"))


def _of_topic(
    operation: Operation, read: Callable[[Response], T]
) -> Callable[[TopicLike], Call[T]]:
    """The calls that have only the topic."""
    return lambda topic: call(operation, names_of(topic), read)


def _of_named(
    operation: Operation, read: Callable[[Response], T]
) -> Callable[[TopicLike, str], Call[T]]:
    """The calls that have only the topic, and the name of what is kept with it."""
    return lambda topic, name: call(operation, _named(topic, name), read)


delete_topic = _of_topic(operations.DELETE_TOPIC, nothing)
topic_space = _of_topic(operations.GET_TOPIC_SPACE, reply(TopicSpace))  # with all its partitions
list_holds = _of_topic(operations.LIST_HOLDS, reply_list(Hold, "holds"))
list_positions = _of_topic(operations.LIST_POSITIONS, reply_list(NamedPosition, "positions"))
delete_hold = _of_named(operations.DELETE_HOLD, nothing)
get_position = _of_named(operations.GET_POSITION, reply(NamedPosition))
delete_position = _of_named(operations.DELETE_POSITION, nothing)

LIST_NAMESPACES = call(operations.LIST_NAMESPACES, (), reply_texts)
# It is answered also while the server is not ready.
HEALTH = call(operations.CHECK_READY, (), reply(Health))
DISK_USE = call(operations.SHOW_DISK, (), reply(DiskUse))
RECLAIM_SPACE = call(operations.RECLAIM_SPACE, (), reply(Reclaimed))
# In the text format of Prometheus.
METRICS = call(operations.GET_METRICS, (), lambda response: response.body.decode("utf-8"))
GET_CLUSTER = call(operations.GET_CLUSTER, (), reply(ClusterState))


def list_delayed(
    retries: Retries, topic: TopicLike, *, after: str | None, limit: int, payloads: bool
) -> Flow[list[DelayedMessage]]:
    """The next messages that wait, behind an id, in the order in which they become due."""
    try:
        page = _delayed_page(topic, after=after, limit=limit, payloads=payloads)
        return (yield from retries.ask(page))
    except PartitionRequiredError:
        partitions = yield from _partitions(retries, topic)
    found: list[DelayedMessage] = []
    for partition in partitions:
        found += yield from _list_of(retries, partition, after, limit, payloads=payloads)
    return sorted(found, key=lambda message: message.id)[:limit]


def _list_of(
    retries: Retries, partition: PartitionId, after: str | None, limit: int, *, payloads: bool
) -> Flow[list[DelayedMessage]]:
    found: list[DelayedMessage] = []
    while len(found) < limit:
        # A page may be shorter: its messages have a limited size.
        left = limit - len(found)
        page = _delayed_page(partition, after=after, limit=left, payloads=payloads)
        messages = yield from retries.ask(page)
        if not messages:
            break
        found += messages
        after = messages[-1].id
    return found


def delete_delayed(retries: Retries, topic: TopicLike, delayed_id: str) -> Flow[None]:
    """Delete a message that waits, in the partition that has it.

    Raises:
        TypeError: the id is none of a delayed message.
        DelayedNotFoundError: no partition has it.
    """
    try:
        return (yield from retries.ask(_cancel_delayed(topic, delayed_id)))
    except PartitionRequiredError:
        partitions = yield from _partitions(retries, topic)
    for number, partition in enumerate(partitions, 1):
        try:
            return (yield from retries.ask(_cancel_delayed(partition, delayed_id)))
        except DelayedNotFoundError:
            if number == len(partitions):
                raise
    return None


def _partitions(retries: Retries, topic: TopicLike) -> Flow[list[PartitionId]]:
    info = yield from retries.ask(get_topic(topic))
    return [topic_of(topic).partition(number) for number in info.partitions]


def _delayed_page(
    topic: TopicLike, *, after: str | None, limit: int, payloads: bool
) -> Call[list[DelayedMessage]]:
    with_payloads = "true" if of_type(payloads, bool, "payloads") else None
    query = {"after": after, "limit": number_of(limit, "limit"), "payloads": with_payloads}
    read = reply_list(DelayedMessage, "delayed")
    return call(operations.LIST_DELAYED, names_of(topic), read, query=query)


def _cancel_delayed(topic: TopicLike, delayed_id: str) -> Call[None]:
    """Raises: TypeError: it is no delayed id, as a message id is none."""
    if not isinstance(delayed_id, str):
        raise TypeError(
            "a delayed message has a text as its id, as in the delayed_ids of a publish "
            f"and in client.delayed.list(topic), and not {delayed_id!r:.100}"
        )
    return call(operations.CANCEL_DELAYED, _named(topic, delayed_id), nothing)


def rollback(topic: TopicLike, detail: RollbackDetail) -> Call[None]:
    form = rollback_detail_to_json(of_type(detail, RollbackDetail, "detail"))
    return call(operations.ROLLBACK, names_of(topic), nothing, form=form)


def _maybe_id(value: object) -> MessageId | None:
    return None if value is None else MessageId.from_hex(text_from_json(value, "an id"))


RowOrder = Literal["ascending", "descending"]


def rows(topic: TopicLike, start: Start | None, *, limit: int, order: RowOrder) -> Call[RowPage]:
    """A page of the rows that are stored."""
    first = None if start is None else start_to_json(start)
    query: Query = {"from": first, "order": order, "limit": number_of(limit, "limit")}
    return call(operations.LIST_ROWS, names_of(topic), reply(RowPage), query=query)


def explain(
    topic: TopicLike,
    id: IdOrHex,
    *,
    isolation: IsolationLike | None,
    transaction: Transaction | int | None,
) -> Call[Explanation]:
    """Why a reader receives this message, or does not. `id` may be that of a delayed message."""
    if isolation is not None and transaction is not None:
        raise ValueError("give at most one of isolation and transaction")
    digits = id.hex() if isinstance(id, MessageId) else id
    parameters = (*names_of(topic), digits)
    if not isinstance(transaction, Transaction):
        pointer = None if transaction is None else of_type(transaction, int, "transaction")
        query = {"isolation": isolation, "tx": pointer}
        return call(operations.EXPLAIN, parameters, reply(Explanation), query=query)
    form = {"transaction": b64encode(transaction.to_bytes()).decode("ascii")}
    return call(operations.EXPLAIN_IN_SNAPSHOT, parameters, reply(Explanation), form=form)


def list_owners(
    server_id: str | None, *, limit: int | None, after: TopicLike | None
) -> Call[TopicOwners]:
    behind = None if after is None else str(topic_of(after))
    return call(
        operations.LIST_OWNERS,
        (),
        reply(TopicOwners),
        query={"server": server_id, "limit": maybe_number_of(limit, "limit"), "after": behind},
    )


def move_topic(topic: TopicLike, server_id: str) -> Call[None]:
    return call(operations.MOVE_TOPIC, names_of(topic), nothing, form={"server": server_id})


def drain_server(server_id: str, *, wait_s: float) -> Call[Drain]:
    request = Request(
        operation=operations.DRAIN_SERVER,
        query={"wait": wait_s or None},
        body={"server": server_id},
        wait_s=wait_s,
    )
    return Call(request, reply(Drain))


def undrain_server(server_id: str) -> Call[Drain]:
    return call(operations.UNDRAIN_SERVER, (), reply(Drain), form={"server": server_id})
