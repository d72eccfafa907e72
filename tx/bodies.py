"""What the bodies of transaction calls have in common (protocol §5)."""

from collections.abc import Collection, Mapping
from sys import float_info

from tuff.protocol import forms
from tuff.protocol.errors import BadRequestError, InvalidTimeoutError
from tuff.protocol.exchange import Request
from tuff.protocol.media import read_object, read_query, shown
from tx.decisions import check_client
from tx.records import UNKNOWN_CLIENT


def members_of(request: Request, members: Collection[str], *, what: str) -> Mapping[str, object]:
    read_query(request.query, parameters=())
    return read_object(request.body, request.content_type, members=members, what=what)


def seconds_of(body: Mapping[str, object], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, int | float) and abs(value) > float_info.max:
        raise InvalidTimeoutError(f"{name} is more than any time in seconds: {shown(value)}")
    return forms.seconds_from_json(value, what=name)


def client_of(body: Mapping[str, object]) -> str:
    client = body.get("client")
    if client is None:
        return UNKNOWN_CLIENT
    if not isinstance(client, str):
        raise BadRequestError(f"client is a string, not {shown(client)}")
    return check_client(client)
