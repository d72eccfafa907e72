"""Routes whose handler gets a list of requests (kernel/requests_and_replies.py says how it answers
them)."""

import asyncio
from collections.abc import Callable

from kernel.event_loop import settle
from kernel.requests_and_replies import Call, ManyHandler, Reply, Request, Route, begin_many
from tuff.protocol.operations import Operation


def batch_route(operation: Operation, many: ManyHandler) -> Route:
    """The route of an operation whose handler gets a list of requests."""

    async def handler(request: Request) -> Reply:
        call = AwaitedCall(request.call)
        begin_many(many, [request._replace(call=call)])
        return await call.done

    return Route(operation, handler, many)


class AwaitedCall:
    """A call for whose reply its caller waits: the part of a call that a connection has brought, or
    one of the server itself, which is its own client."""

    __slots__ = ("_watchers", "client", "done", "is_answered")

    def __init__(self, whole: Call | None) -> None:
        self.client: object = self if whole is None else whole.client
        self.done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.is_answered = False
        self._watchers: list[Callable[[Reply | Exception], None]] = []

    def watch(self, watcher: Callable[[Reply | Exception], None]) -> None:
        self._watchers.append(watcher)

    def reply(self, reply: Reply | Exception) -> None:
        assert not self.is_answered, f"a second reply: {reply}"
        self.is_answered = True
        for watcher in reversed(self._watchers):
            watcher(reply)
        settle(self.done, reply)
