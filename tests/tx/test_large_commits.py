"""Commits and runs with large bodies are decoded in a thread (decision 0064)."""

import asyncio
from collections.abc import Callable

import pytest

from kernel.large_bodies import LARGE_BODY_BYTES
from kernel.requests_and_replies import Request
from tests.tx.service import Disk, Service, turns
from tuff.protocol.operations import COMMIT, RUN_TRANSACTION, Operation
from tx.routes import routes

ENTRY = {"namespace": "n", "topic": "t", "messages": ["m"]}
Ask = Callable[[int, Operation, str], "asyncio.Task[int]"]


@pytest.fixture
def decoder() -> Disk:
    """The thread that decodes."""
    return Disk()


@pytest.fixture
def ask(service: Service, decoder: Disk) -> Ask:
    """Sends a request whose frame has so many bytes; its status."""
    handlers = {each.operation: each.handler for each in routes(service.manager, decoder)}

    async def answered(size_bytes: int, operation: Operation, pointer: str) -> int:
        members: dict[str, object] = {"publish": [ENTRY]}
        request = Request(
            {"tx": pointer}, (), None, None, b"", members=members, members_bytes=size_bytes
        )
        return (await handlers[operation](request)).status

    return lambda *asked: asyncio.create_task(answered(*asked))


async def test_only_a_large_commit_or_run_waits_for_the_thread(
    service: Service, decoder: Disk, ask: Ask
) -> None:
    first, second = [await service.begin() for _ in range(2)]
    decoder.hold()

    small = [ask(LARGE_BODY_BYTES, COMMIT, str(first.transaction_id))]
    small.append(ask(LARGE_BODY_BYTES, RUN_TRANSACTION, ""))
    large = [ask(LARGE_BODY_BYTES + 1, COMMIT, str(second.transaction_id))]
    large.append(ask(LARGE_BODY_BYTES + 1, RUN_TRANSACTION, ""))
    await turns()
    done = [each.done() for each in small + large]
    decoder.release()

    assert done == [True, True, False, False]
    assert await asyncio.gather(*small, *large) == [200] * 4
    assert len(service.rows.published) == 4
