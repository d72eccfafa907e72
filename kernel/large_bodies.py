"""Large bodies are decoded in threads, and requests of their clients keep their order (decision
0064)."""

from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from kernel.event_loop import InThread, LightTask
from kernel.requests_and_replies import ManyHandler, Request, begin_many
from tuff.protocol.errors import TuffError

T = TypeVar("T")

# A larger body is decoded in a thread, and the event loop serves others meanwhile. JSON of this
# size with keys takes it about 10 ms.
LARGE_BODY_BYTES = 64 << 10


class LargeBodies:
    """The requests with large bodies of some operations, and those of these operations that their
    clients have sent behind them. Lives on the event loop."""

    def __init__(self, in_thread: InThread) -> None:
        self._in_thread = in_thread
        # By client, whose large request is being decoded: what it has sent behind that.
        self.behind: dict[object, list[tuple[ManyHandler, Request]]] = {}

    def comes_later(
        self,
        request: Request,
        handler: ManyHandler,
        *,
        decode: Callable[[Request], T],
        came_in: Callable[[Request, T], None],
    ) -> bool:
        """Whether the handler of a batch passes over this request, since it comes in later. A large
        one comes in when it is decoded; the others, as a batch for their handler, behind it. Not
        so if it is not large and nothing is `behind` a large one."""
        is_large = request.size > LARGE_BODY_BYTES
        client = _client_of(request)
        if (waiting := self.behind.get(client)) is not None:
            waiting.append((handler, request))
        elif is_large:
            self.behind[client] = []
            work = _awaited(self._in_thread, partial(decode, request))
            refused = partial(self._refuse, request)
            LightTask(work, partial(self._come_in, request, came_in), refused, TuffError).go_on()
        return is_large or waiting is not None

    def _come_in(self, request: Request, came_in: Callable[[Request, T], None], decoded: T) -> None:
        try:
            came_in(request, decoded)
        except TuffError as error:
            request.reply(error)
        self._go_on(request)

    def _refuse(self, request: Request, error: BaseException) -> None:
        assert isinstance(error, Exception)
        request.reply(error)
        self._go_on(request)

    def _go_on(self, request: Request) -> None:
        for handler, run in groupby(self.behind.pop(_client_of(request)), key=itemgetter(0)):
            begin_many(handler, [each for _, each in run])


async def _awaited(in_thread: InThread, decode: Callable[[], T]) -> T:
    return await in_thread(decode)


def _client_of(request: Request) -> object:
    assert request.call is not None, "a connection has brought it"
    return request.call.client
