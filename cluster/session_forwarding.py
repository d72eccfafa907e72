"""Calls of sessions that another server answers: they are forwarded as requests of HTTP
(docs/session.md, Call and Reply)."""

from base64 import b64decode, b64encode

import orjson

from kernel.requests_and_replies import Reply, Request
from tuff.protocol.errors import BadRequestError
from tuff.protocol.json_bodies import payload_to_json
from tuff.protocol.media_types import JSON_REPLY_TYPE, MediaType


def http_request(request: Request, *, is_poll: bool) -> Request:
    """The request of HTTP that asks for the same as a call of a session.

    Raises: BadRequestError: the body has what JSON has no form for.
    """
    members = request.members
    if isinstance(members, dict) and isinstance(members.get("transaction"), bytes):
        members = {**members, "transaction": b64encode(members["transaction"]).decode("ascii")}
    try:
        body = orjson.dumps(members, default=_payload)
    except TypeError as error:
        raise BadRequestError(f"the body can't be read: {error}") from None
    accept = request.accept or (MediaType.AVRO.value if is_poll else None)
    return request._replace(
        content_type=MediaType.JSON.value, body=body, accept=accept, members=None
    )


def session_reply(reply: Reply) -> Reply:
    """The reply to a call of a session, of that to `http_request`."""
    if reply.content_type != JSON_REPLY_TYPE:
        return reply
    body = orjson.loads(reply.body)
    if isinstance(body, dict):
        for each in (body, body.get("next")):  # a commit has the transaction that it started
            if isinstance(each, dict) and "encoded" in each:
                each["encoded"] = b64decode(each["encoded"])
                each.pop("invalids", None)
                each.pop("inProgress", None)
    return reply._replace(value=body, body=b"")


def _payload(value: object) -> object:
    if isinstance(value, bytes):
        return payload_to_json(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
