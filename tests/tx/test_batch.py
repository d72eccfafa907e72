"""The bodies of calls in a batch that can't be sent by themselves (protocol §5.5)."""

import pytest

from tuff.protocol.errors import BadRequestError
from tuff.protocol.exchange import Reply, Request, json_reply
from tx.batch import Batch


async def start(_request: Request) -> Reply:
    return json_reply({})


@pytest.mark.parametrize(
    "body", [rb'"\ud800"', b"[" * 300 + b"]" * 300], ids=["half a surrogate pair", "nesting"]
)
async def test_a_body_that_is_not_json_for_all_is_refused(body: bytes) -> None:
    calls = b'{"calls": [{"path": "/v1/transactions", "body": %b}]}' % body
    request = Request({}, (), "application/json", None, calls)

    with pytest.raises(BadRequestError, match="the body of a call"):
        await Batch(start, {}).handle(request)
