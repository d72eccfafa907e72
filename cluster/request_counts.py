"""How many requests a server forwards, redirects, or refuses because an ownership is moving."""

from dataclasses import dataclass

from kernel.requests_and_replies import Reply, Request, Route
from tuff.protocol.errors import OwnershipMovingError

_OWNER = "Tuff-Owner"  # what the reply of another server has, and a redirect


@dataclass(slots=True)
class RequestCounts:
    """Counts since the start of the server. Lives on the event loop."""

    forwarded: int = 0  # answered by another server
    redirected: int = 0
    refused: int = 0  # 503 ownership_moving of this server


def counted(route: Route, counts: RequestCounts) -> Route:
    """A route whose requests are counted. Another server may answer it (cluster/forwarding.py)."""

    async def handler(request: Request) -> Reply:
        try:
            reply = await route.handler(request)
        except OwnershipMovingError:
            counts.refused += 1
            raise
        if any(name == _OWNER for name, _ in reply.headers):
            if reply.status == 307:
                counts.redirected += 1
            else:
                counts.forwarded += 1
        return reply

    return route.wrapped(handler)
