"""A body that is still on its way when its request is answered (protocol §1)."""

import asyncio

import pytest

from process import parsed_requests
from process.parsed_requests import whole_body
from process.request_parser import ParsedRequest
from tuff.protocol.errors import BadRequestError

QUIET_S = 0.001


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> ParsedRequest:
    """A request of whose body one byte has arrived."""
    monkeypatch.setattr(parsed_requests, "UPLOAD_QUIET_S_MAX", QUIET_S)
    parsed = ParsedRequest()
    parsed.body += b"a"
    return parsed


async def limit_passes() -> None:
    """Let the time limit of the body run out."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * QUIET_S, passed.set)
    await passed.wait()


async def test_a_body_that_stops_is_refused_with_its_size(parsed: ParsedRequest) -> None:
    with pytest.raises(BadRequestError, match=r"no byte of the body .* after 1 bytes"):
        await whole_body(parsed)

    assert not parsed.is_kept_alive


async def test_a_body_that_is_whole_at_the_time_limit_is_kept(parsed: ParsedRequest) -> None:
    body = whole_body(parsed)
    waiter = body.send(None)
    parsed.body += b"b"
    parsed.complete()

    await limit_passes()

    assert waiter is not None
    with pytest.raises(StopIteration) as end:
        body.send(None)
    assert end.value.value == b"ab"


async def test_no_time_limit_runs_for_a_body_that_nothing_waits_for(parsed: ParsedRequest) -> None:
    body = whole_body(parsed)
    body.send(None)
    body.close()

    await limit_passes()

    assert (parsed.error, bytes(parsed.body)) == (None, b"a")
