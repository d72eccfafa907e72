"""The HTTP routes of topics and messages (protocol §2, §3)."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from messaging.ownership import Ownership
from messaging.polls import Isolation, Poll, PollResult, Undecided
from messaging.service import MessagingService, Published
from messaging.starts import place_from, start_from, start_time, whole_digits
from messaging.topics import parse_properties
from tuff.protocol import avro, forms
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    InvalidTopicPropertiesError,
    InvalidTtlError,
    TransactionUnknownError,
    TuffError,
)
from tuff.protocol.exchange import (
    EMPTY_REPLY,
    JSON_REPLY_TYPE,
    Reply,
    Request,
    Route,
    json_reply,
)
from tuff.protocol.ids import MessageId
from tuff.protocol.media import (
    BROWSE_TYPES,
    POLL_TYPES,
    MediaType,
    body_type,
    numbers_as_written,
    parse_json,
    read_object,
    read_query,
    reply_type,
    require_json,
    shown,
)
from tuff.protocol.names import TopicId, check_name, topic_id
from tuff.protocol.requests import ConsumeRequest, PublishRequest

WAIT_S_MAX = 60.0  # seconds a poll may wait; proxies cut longer silences
Choice = TypeVar("Choice", bound=Enum)

_SECONDS = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

_READ_PARAMETERS = frozenset({"isolation", "tx", "undecided", "wait", "through"})
_PUBLISH_PARAMETERS = frozenset({"ttl"})
_BROWSE_PARAMETERS = _READ_PARAMETERS | {"from", "inclusive", "limit"}
TOPIC_PATH = "/v1/namespaces/{ns}/topics/{t}"
_STATUSES_OF_WHAT_IS_THERE = (404, 409)


def routes(service: MessagingService) -> list[Route]:
    """Every route of topics and messages."""
    topics, messages = _TopicRoutes(service), _MessageRoutes(service)
    return [
        # The busy ones first: the library's router tries one after the other.
        Route("POST", f"{TOPIC_PATH}/publish", messages.publish),
        Route("POST", f"{TOPIC_PATH}/poll", messages.poll),
        Route("POST", f"{TOPIC_PATH}/store", messages.store),
        Route("POST", f"{TOPIC_PATH}/rollback", messages.rollback),
        Route("GET", f"{TOPIC_PATH}/messages", messages.browse),
        Route("GET", f"{TOPIC_PATH}/offsets", messages.offsets),
        Route("POST", f"{TOPIC_PATH}/truncate", topics.truncate),
        Route("PUT", f"{TOPIC_PATH}/properties", topics.update),
        Route("PUT", TOPIC_PATH, topics.create),
        Route("GET", TOPIC_PATH, topics.get),
        Route("DELETE", TOPIC_PATH, topics.delete),
        Route("GET", "/v1/namespaces", topics.namespaces),
        Route("GET", "/v1/namespaces/{ns}/topics", topics.list),
    ]


def owned(route: Route, ownership: Ownership) -> Route:
    """The same route of a store that another server can take over: what was read, and what was
    refused for something that was read, is answered only while the store is ours. Writes need no
    look: a store that was taken over refuses them."""
    is_read = route.method == "GET" or route.path == f"{TOPIC_PATH}/poll"

    async def handler(request: Request) -> Reply:
        try:
            reply = await route.handler(request)
        except TuffError as error:
            if error.status in _STATUSES_OF_WHAT_IS_THERE:
                await ownership.require()
            raise
        if is_read:
            await ownership.require()
        return reply

    return route._replace(handler=handler)


class _TopicRoutes:
    def __init__(self, service: MessagingService) -> None:
        self._service = service

    async def namespaces(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        return json_reply(self._service.namespaces())

    async def list(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        namespace = check_name(request.parameters["ns"], what="namespace")
        return json_reply(self._service.list_topics(namespace))

    async def create(self, request: Request) -> Reply:
        topic, properties = self._named_properties(request)
        await self._service.create_topic(topic, properties)
        return EMPTY_REPLY

    async def update(self, request: Request) -> Reply:
        topic, properties = self._named_properties(request)
        await self._service.update_topic(topic, properties)
        return EMPTY_REPLY

    def _named_properties(self, request: Request) -> tuple[TopicId, Mapping[str, str]]:
        topic = topic_of(request)
        require_json(request.content_type, request.body)
        if not request.body:
            return topic, {}
        try:
            value = parse_json(request.body)
        except BadRequestError as error:
            raise InvalidTopicPropertiesError(error.detail) from None
        if isinstance(value, dict):
            value = {**value, **numbers_as_written(request.body)}
        return topic, parse_properties(value)

    async def get(self, request: Request) -> Reply:
        info = self._service.get_topic(topic_of(request))
        form = {
            "name": info.topic.name,
            "properties": dict(info.properties),
            "generation": info.generation,
        }
        return json_reply(form)

    async def delete(self, request: Request) -> Reply:
        topic = topic_of(request)
        no_members(request, what="the deletion of a topic")
        await self._service.delete_topic(topic)
        return EMPTY_REPLY

    async def truncate(self, request: Request) -> Reply:
        topic = topic_of(request)
        body = read_object(
            request.body,
            request.content_type,
            members={"before"},
            what="a truncation",
        )
        place = place_from(body.get("before"), what="before")
        earliest = await self._service.truncate_topic(topic, place)
        return json_reply({"earliest": earliest and earliest.hex()})


class _MessageRoutes:
    def __init__(self, service: MessagingService) -> None:
        self._service = service

    async def publish(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_PUBLISH_PARAMETERS)
        asked_in, publish = _publish_request(request)
        if not publish.payloads:
            if publish.pointer is None:
                raise EmptyPublishError(
                    "messages is empty, which only a publish under a transaction may be"
                )
            if request.query:
                raise BadRequestError("a publish without messages takes no ttl: store takes it")
        published = await self._service.publish(topic, publish)
        return _published(published, reply_type(request.accept, asked_in=asked_in))

    async def store(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_PUBLISH_PARAMETERS)
        _, publish = _publish_request(request)
        if publish.pointer is None or not publish.payloads:
            raise BadRequestError("store takes a transactionWritePointer and at least one message")
        await self._service.store(topic, publish)
        return EMPTY_REPLY

    async def rollback(self, request: Request) -> Reply:
        topic = topic_of(request)
        body = request.body
        if body_type(request.content_type, body) is MediaType.AVRO:
            detail = avro.decode_rollback_detail(body)
        else:
            detail = forms.rollback_detail_from_json(parse_json(body) if body else {})
        await self._service.rollback(topic, detail)
        return EMPTY_REPLY

    async def poll(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_READ_PARAMETERS)
        body = request.body
        asked_in = body_type(request.content_type, body)
        if asked_in is MediaType.AVRO:
            consume = avro.decode_consume_request(body)
        else:
            consume = forms.consume_request_from_json(parse_json(body) if body else {})
        poll = _poll(dict(request.query), consume)
        form = reply_type(request.accept, asked_in=asked_in, offered=POLL_TYPES)
        if form is MediaType.ARROW:
            await self._service.load_arrow()
        return _polled(await self._service.poll(topic, poll), form)

    async def browse(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_BROWSE_PARAMETERS)
        query = dict(request.query)
        limit = query.get("limit")
        consume = ConsumeRequest(
            inclusive=_boolean(query.get("inclusive", "true"), what="inclusive"),
            limit=None if limit is None else whole_digits(limit, what="limit"),
        )
        poll = _poll(query, consume)
        form = reply_type(request.accept, asked_in=MediaType.JSON, offered=BROWSE_TYPES)
        if form is MediaType.ARROW:
            await self._service.load_arrow()
        start = query.get("from", "earliest")
        if start == "latest":
            # Taken here, so that what is published while the read is on its way is delivered.
            newest = self._service.newest_place(topic)
            result = await self._service.poll(topic, replace(poll, start=newest, inclusive=False))
        else:
            result = await self._service.poll(topic, replace(poll, start=start_from(start)))
        return _polled(result, form)

    async def offsets(self, request: Request) -> Reply:
        topic = topic_of(request, parameters={"isolation", "tx"})
        query = dict(request.query)
        isolation, tx = _choice(query, "isolation", Isolation), _tx(query)
        if isolation is not None and tx is not None:
            raise BadRequestError("give isolation or tx, not both")
        found = await self._service.offsets(topic, isolation=isolation or Isolation.ALL, tx=tx)
        form = {
            "generation": found.generation,
            "earliest": found.earliest and found.earliest.hex(),
            "end": found.end and found.end.hex(),
            "blockedBy": None
            if found.blocked_by is None
            else forms.pointer_to_json(found.blocked_by),
        }
        return json_reply(form)


def topic_of(request: Request, *, parameters: Collection[str] = ()) -> TopicId:
    read_query(request.query, parameters=parameters)
    return topic_id(request.parameters["ns"], request.parameters["t"])


def no_members(request: Request, *, what: str) -> None:
    read_object(request.body, request.content_type, members=(), what=what)


def _publish_request(request: Request) -> tuple[MediaType, PublishRequest]:
    body = request.body
    asked_in = body_type(request.content_type, body)
    if asked_in is MediaType.AVRO:
        publish = avro.decode_publish_request(body)
    else:
        publish = forms.publish_request_from_json(parse_json(body) if body else {})
    if not request.query:
        return asked_in, publish
    ((_, text),) = request.query
    if not text.isascii() or not text.isdigit():
        raise InvalidTtlError(f"ttl is a whole number of seconds, not {shown(text)}")
    ttl_s = forms.ttl_from_json(text)
    own = publish.ttls_s or [None] * len(publish.payloads)
    ttls_s = [ttl_s if each is None else each for each in own]
    return asked_in, publish._replace(ttls_s=ttls_s, ttl_s=ttl_s)


def _published(published: Published, media_type: MediaType) -> Reply:
    first = published.first.hex()
    last = first if published.last is published.first else published.last.hex()
    headers = (("Tuff-First-Id", first), ("Tuff-Last-Id", last))
    if published.rollback is None:
        return Reply(headers=headers)
    if media_type is MediaType.AVRO:
        body = avro.encode_rollback_detail(published.rollback)
        return Reply(200, media_type.value, body, headers)
    return json_reply(forms.rollback_detail_to_json(published.rollback), headers=headers)


def _poll(query: Mapping[str, str], consume: ConsumeRequest) -> Poll:
    isolation, tx = _choice(query, "isolation", Isolation), _tx(query)
    if sum(given is not None for given in (isolation, tx, consume.transaction)) > 1:
        raise BadRequestError("give at most one of isolation, tx and a transaction in the body")
    undecided = _choice(query, "undecided", Undecided) or Undecided.HOLD
    if undecided is Undecided.SKIP and tx is None and consume.transaction is None:
        raise BadRequestError(
            "undecided=skip needs a fixed snapshot: tx, or a transaction in the body"
        )
    if consume.limit is not None and consume.limit <= 0:
        raise BadRequestError(f"limit is greater than 0, not {consume.limit}")
    if isinstance(consume.start, int):
        start_time(consume.start)
    through = query.get("through")
    return Poll(
        start=consume.start,
        inclusive=consume.inclusive,
        limit=consume.limit,
        transaction=consume.transaction,
        tx=tx,
        isolation=isolation or Isolation.ALL,
        undecided=undecided,
        wait_s=_wait(query.get("wait")),
        through=None if through is None else MessageId.from_hex(through),
    )


def _polled(result: PollResult, media_type: MediaType) -> Reply:
    headers: tuple[tuple[str, str], ...] = (
        ("Tuff-Next", result.next_id.hex()),
        ("Tuff-Caught-Up", "true" if result.caught_up else "false"),
    )
    if result.blocked_by is not None:
        headers += (("Tuff-Blocked-By", forms.pointer_to_json(result.blocked_by)),)
    if result.expired:
        headers += (("Tuff-Expired", "true"),)
    match media_type:
        case MediaType.AVRO:
            return Reply(200, media_type.value, result.page.avro(), headers)
        case MediaType.ARROW:
            body = result.page.arrow(generation=result.generation)
            return Reply(200, media_type.value, body, headers)
        case MediaType.JSON:
            return Reply(200, JSON_REPLY_TYPE, result.page.json(), headers)


def _choice(query: Mapping[str, str], name: str, kind: type[Choice]) -> Choice | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        known = " or ".join(choice.value for choice in kind)
        raise BadRequestError(f"{name} is {known}, not {shown(text)}") from None


def _tx(query: Mapping[str, str]) -> int | None:
    text = query.get("tx")
    if text is None:
        return None
    try:
        return forms.pointer_from_json(text, what="tx")
    except BadRequestError:
        raise TransactionUnknownError(f"there is no transaction {shown(text)}") from None


def _wait(text: str | None) -> float:
    if text is None:
        return 0.0
    wait_s = float(text) if _SECONDS.fullmatch(text) else math.nan
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise BadRequestError(f"wait is 0 to {WAIT_S_MAX:.0f} seconds, not {shown(text)}")
    return wait_s


def _boolean(text: str, *, what: str) -> bool:
    if text not in ("true", "false"):
        raise BadRequestError(f"{what} is true or false, not {shown(text)}")
    return text == "true"
