"""Sends calls that many tasks make at once in one request (protocol §5.5)."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple

from tuff.calls import Call, Response
from tuff.transaction_calls import BATCH_BYTES_MAX, BATCH_COUNT_MAX, batch


class _Waiting(NamedTuple):
    call: Call[Any]
    response: "asyncio.Future[Response]"


class BatchedCalls:
    """The calls of one kind. While a request is under way, further calls wait for the next one, so
    a call by itself is sent at once, and as it is. Lives on one event loop."""

    def __init__(self, send: Callable[[Call[Any]], Awaitable[Response]]) -> None:
        self._send = send
        self._waiting: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def send(self, call: Call[Any]) -> Response:
        """The response to this call. Raises: TuffError: no response came."""
        response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        # Encoded here, since its size counts.
        request = replace(call.request, body=call.request.content, form=None)
        call = replace(call, request=request)
        self._waiting.append(_Waiting(call, response))
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())
        return await response

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await self._send_some(self._taken())
        finally:
            self._sending = None

    def _taken(self) -> list[_Waiting]:
        taken = [self._waiting.popleft()]
        size_bytes = len(taken[0].call.request.body or b"")
        while self._waiting and len(taken) < BATCH_COUNT_MAX:
            size_bytes += len(self._waiting[0].call.request.body or b"")
            if size_bytes > BATCH_BYTES_MAX:
                break
            taken.append(self._waiting.popleft())
        return taken

    async def _send_some(self, taken: list[_Waiting]) -> None:
        calls = [each.call for each in taken]
        try:
            answers = await self._answers(calls)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            for each in taken:
                if not each.response.done():
                    each.response.set_exception(error)
            return
        for each, answer in zip(taken, answers, strict=True):
            if not each.response.done():  # its caller may have been cancelled
                each.response.set_result(answer)

    async def _answers(self, calls: list[Call[Any]]) -> list[Response]:
        if len(calls) == 1:
            return [await self._send(calls[0])]
        together = batch([call.request for call in calls])
        return together.answer(await self._send(together))
