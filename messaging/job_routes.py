"""The HTTP routes for jobs that read a topic in parts, over a long time (protocol §3.7)."""

from messaging.routes import TOPIC_PATH, topic_of, whole_digits
from messaging.service import MessagingService
from messaging.splits import SPLITS_COUNT_MAX
from tuff.protocol.errors import BadRequestError
from tuff.protocol.exchange import Reply, Request, Route, json_reply
from tuff.protocol.ids import MessageId


def routes(service: MessagingService) -> list[Route]:
    """Every route for such jobs."""
    jobs = _JobRoutes(service)
    return [Route("GET", f"{TOPIC_PATH}/splits", jobs.splits)]


class _JobRoutes:
    def __init__(self, service: MessagingService) -> None:
        self._service = service

    async def splits(self, request: Request) -> Reply:
        topic = topic_of(request, parameters={"start", "end", "n"})
        query = dict(request.query)
        if "n" not in query:
            raise BadRequestError("say with n into how many parts at most, as in ?n=8")
        count = whole_digits(query["n"], what="n")
        if not 1 <= count <= SPLITS_COUNT_MAX:
            raise BadRequestError(f"n is 1 to {SPLITS_COUNT_MAX} parts, not {count}")
        start, end = (_maybe_id(query.get(name)) for name in ("start", "end"))
        generation, found = await self._service.splits(topic, start=start, end=end, count=count)
        form = [{"start": part.start and part.start.hex(), "end": part.end.hex()} for part in found]
        return json_reply({"generation": generation, "splits": form})


def _maybe_id(digits: str | None) -> MessageId | None:
    return None if digits is None else MessageId.from_hex(digits)
