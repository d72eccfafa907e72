"""The HTTP routes of reads: poll, browse, offsets and splits (protocol §3.4 to §3.7)."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import TypeVar

from messaging.read.offsets import SPLITS_COUNT_MAX, TopicOffsets
from messaging.read.poll import Poll, PollResult, Polls
from messaging.read.visibility import Undecided
from messaging.storage.store_ownership import StoreOwnership
from messaging.topics import TOPIC_PATH, topic_of
from tuff.protocol import avro, json_forms
from tuff.protocol.errors import (
    BadRequestError,
    TransactionUnknownError,
    TuffError,
)
from tuff.protocol.exchange import (
    BROWSE_TYPES,
    JSON_REPLY_TYPE,
    POLL_TYPES,
    MediaType,
    Reply,
    Request,
    Route,
    body_type,
    json_reply,
    reply_type,
)
from tuff.protocol.ids import MESSAGE_ID_SIZE, MessageId
from tuff.protocol.json_forms import parse_json, shown
from tuff.protocol.requests import ConsumeRequest, Isolation

WAIT_S_MAX = 60.0  # seconds a poll may wait; proxies cut longer silences
Choice = TypeVar("Choice", bound=Enum)

_SECONDS = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

_READ_PARAMETERS = frozenset({"isolation", "tx", "undecided", "wait", "through"})
_BROWSE_PARAMETERS = _READ_PARAMETERS | {"from", "inclusive", "limit"}
_STATUSES_THAT_DEPEND_ON_A_READ = (404, 409)


def routes(polls: Polls, offsets: TopicOffsets) -> list[Route]:
    """The HTTP routes of reads; the frequent ones first, since the router tries them in order."""
    reads = _ReadRoutes(polls, offsets)
    return [
        Route("POST", f"{TOPIC_PATH}/poll", reads.poll),
        Route("GET", f"{TOPIC_PATH}/messages", reads.browse),
        Route("GET", f"{TOPIC_PATH}/offsets", reads.offsets),
        Route("GET", f"{TOPIC_PATH}/splits", reads.splits),
    ]


def owned(route: Route, ownership: StoreOwnership) -> Route:
    """The same route for a store that another server can take over. A read, and a refusal that
    depends on a read, is answered only while this server owns the store. Writes need no check: a
    store that was taken over refuses them."""
    is_read = route.method == "GET" or route.path == f"{TOPIC_PATH}/poll"

    async def handler(request: Request) -> Reply:
        try:
            reply = await route.handler(request)
        except TuffError as error:
            if error.status in _STATUSES_THAT_DEPEND_ON_A_READ:
                await ownership.require()
            raise
        if is_read:
            await ownership.require()
        return reply

    return route._replace(handler=handler)


class _ReadRoutes:
    def __init__(self, polls: Polls, offsets: TopicOffsets) -> None:
        self._polls = polls
        self._offsets = offsets

    async def poll(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_READ_PARAMETERS)
        body = request.body
        asked_in = body_type(request.content_type, body)
        if asked_in is MediaType.AVRO:
            consume = avro.decode_consume_request(body)
        else:
            consume = json_forms.consume_request_from_json(parse_json(body) if body else {})
        poll = _poll(dict(request.query), consume)
        form = reply_type(request.accept, asked_in=asked_in, offered=POLL_TYPES)
        if form is MediaType.ARROW:
            await self._polls.load_arrow()
        return _polled(await self._polls.poll(topic, poll), form)

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
            await self._polls.load_arrow()
        start = query.get("from", "earliest")
        if start == "latest":
            # Taken before the read, so that messages published meanwhile are delivered.
            newest = self._offsets.newest_id(topic)
            result = await self._polls.poll(topic, replace(poll, start=newest, inclusive=False))
        else:
            result = await self._polls.poll(topic, replace(poll, start=start_from(start)))
        return _polled(result, form)

    async def offsets(self, request: Request) -> Reply:
        topic = topic_of(request, parameters={"isolation", "tx"})
        query = dict(request.query)
        isolation, tx = _choice(query, "isolation", Isolation), _tx(query)
        if isolation is not None and tx is not None:
            raise BadRequestError("give isolation or tx, not both")
        found = await self._offsets.offsets(topic, isolation=isolation or Isolation.ALL, tx=tx)
        form = {
            "generation": found.generation,
            "earliest": found.earliest and found.earliest.hex(),
            "end": found.end and found.end.hex(),
            "blockedBy": None
            if found.blocked_by is None
            else json_forms.pointer_to_json(found.blocked_by),
        }
        return json_reply(form)

    async def splits(self, request: Request) -> Reply:
        topic = topic_of(request, parameters={"start", "end", "n"})
        query = dict(request.query)
        if "n" not in query:
            raise BadRequestError("say with n into how many parts at most, as in ?n=8")
        count = whole_digits(query["n"], what="n")
        if not 1 <= count <= SPLITS_COUNT_MAX:
            raise BadRequestError(f"n is 1 to {SPLITS_COUNT_MAX} parts, not {shown(query['n'])}")
        start, end = (_maybe_id(query.get(name)) for name in ("start", "end"))
        generation, found = await self._offsets.splits(topic, start=start, end=end, count=count)
        form = [{"start": part.start and part.start.hex(), "end": part.end.hex()} for part in found]
        return json_reply({"generation": generation, "splits": form})


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
        headers += (("Tuff-Blocked-By", json_forms.pointer_to_json(result.blocked_by)),)
    if result.expired:
        headers += (("Tuff-Expired", "true"),)
    match media_type:
        case MediaType.AVRO:
            return Reply(200, media_type.value, result.messages.avro(), headers)
        case MediaType.ARROW:
            body = result.messages.arrow(generation=result.generation)
            return Reply(200, media_type.value, body, headers)
        case MediaType.JSON:
            return Reply(200, JSON_REPLY_TYPE, result.messages.json(), headers)


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
        return json_forms.pointer_from_json(text, what="tx")
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


DIGITS_MAX = 100  # of a number in a query; its first ones are far beyond 64 bits by then


def id_or_time_from(value: object, *, what: str) -> MessageId | int:
    """A message id or a publish time in ms, as a JSON body names it.

    Raises:
        BadRequestError (its kinds): it is neither.
    """
    if isinstance(value, str):
        return MessageId.from_hex(value)
    return start_time(json_forms.clamped_number(value, what=what))


def start_from(text: str) -> MessageId | int | None:
    """The start that `from` of a browse names, None for the oldest live message.

    Raises:
        BadRequestError (its kinds): it names none.
    """
    if text == "earliest":
        return None
    if len(text) == 2 * MESSAGE_ID_SIZE:
        return MessageId.from_hex(text)
    if text.removeprefix("-").isdigit():
        return start_time(whole_digits(text, what="from"))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        plus = ", in which + is written %2B, as a plain + means a space" if " " in text else ""
        raise BadRequestError(
            "from is earliest, latest, a message id in hex, ms since the epoch, or an ISO 8601 "
            f"time{plus}, not {shown(text)}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return start_time(math.floor(moment.timestamp() * 1000))


def start_time(timestamp_ms: int) -> int:
    """Raises: BadRequestError: before the epoch."""
    if timestamp_ms < 0:
        raise BadRequestError(f"a publish time is 0 or more ms, not {timestamp_ms}")
    return timestamp_ms


def whole_digits(text: str, *, what: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise BadRequestError(f"{what} is a whole number, not {shown(text)}")
    # Python reads no more than 4,300 digits.
    return json_forms.clamped_number(int(text[:DIGITS_MAX]), what=what)


def _maybe_id(digits: str | None) -> MessageId | None:
    return None if digits is None else MessageId.from_hex(digits)
