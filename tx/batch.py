"""Many calls of transactions in one request: `POST /v1/transactions/batch` (protocol §5.5)."""

import asyncio
import re
from collections.abc import Iterable, Mapping

import orjson

from tuff.protocol.errors import BadRequestError, TuffError
from tuff.protocol.exchange import (
    JSON_REPLY_TYPE,
    Caller,
    Handler,
    Reply,
    Request,
    problem_reply,
    read_object,
    read_query,
)
from tuff.protocol.json_forms import shown

CALLS_COUNT_MAX = 256  # in one request; they take turns on the event loop like single requests

_ONE = re.compile(r"/v1/transactions/([0-9]{1,19})/([a-z]+)")


class Batch:
    """Answers each call of a batch as if it were sent by itself. `start` is the handler of a start,
    `of_one` those of calls on one transaction, by their names."""

    def __init__(self, start: Handler, of_one: Mapping[str, Handler]) -> None:
        self._start = start
        self._of_one = of_one

    async def handle(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        body = read_object(request.body, request.content_type, members={"calls"}, what="a batch")
        calls = body.get("calls")
        if not isinstance(calls, list) or not 0 < len(calls) <= CALLS_COUNT_MAX:
            raise BadRequestError(f"calls is a list of 1 to {CALLS_COUNT_MAX} calls")
        found = [self._call_of(call, request.caller) for call in calls]
        return _reply_of(
            await asyncio.gather(*(_answer(handler, single) for handler, single in found))
        )

    def _call_of(self, call: object, caller: Caller | None) -> tuple[Handler, Request]:
        if not isinstance(call, dict) or call.keys() != {"path", "body"}:
            raise BadRequestError('a call of a batch is {"path":…,"body":…}')
        path, body = call["path"], _packed(call["body"])
        if path == "/v1/transactions":
            return self._start, _request({}, body, caller)
        match = _ONE.fullmatch(path) if isinstance(path, str) else None
        handler = None if match is None else self._of_one.get(match[2])
        if match is None or handler is None:
            raise BadRequestError(
                f"a batch has starts, prepares and resolves, and not {shown(path)}"
            )
        return handler, _request({"tx": match[1]}, body, caller)


def _packed(body: object) -> bytes:
    """The body of one call, as it is sent by itself. Raises: BadRequestError."""
    try:
        return orjson.dumps(body)
    except TypeError as error:  # what a parser accepts, and no writer: half a surrogate pair
        raise BadRequestError(f"the body of a call in a batch is not JSON: {error}") from None


def _request(parameters: Mapping[str, str], body: bytes, caller: Caller | None) -> Request:
    return Request(parameters, (), "application/json", None, body, caller=caller)


async def _answer(handler: Handler, request: Request) -> Reply:
    try:
        return await handler(request)
    except TuffError as error:
        return problem_reply(error)


def _reply_of(replies: Iterable[Reply]) -> Reply:
    items = (b'{"status":%d,"body":%b}' % (reply.status, reply.body) for reply in replies)
    return Reply(200, JSON_REPLY_TYPE, b'{"replies":[%b]}' % b",".join(items))
