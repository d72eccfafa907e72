"""The HTTP routes for jobs that read a topic in parts, over a long time (protocol §3.7 to §3.9)."""

from collections.abc import Mapping
from math import ceil

from messaging.message_routes import TOPIC_PATH, id_or_time_from, no_members, topic_of, whole_digits
from messaging.read.offsets import SPLITS_COUNT_MAX
from messaging.service import MessagingService
from messaging.storage.rows import Hold, Position
from tuff.protocol.errors import BadRequestError
from tuff.protocol.exchange import EMPTY_REPLY, Reply, Request, Route, json_reply, read_object
from tuff.protocol.ids import MessageId, check_name
from tuff.protocol.json_forms import shown


def routes(service: MessagingService) -> list[Route]:
    """Every route for such jobs."""
    jobs = _JobRoutes(service)
    hold, position = f"{TOPIC_PATH}/holds/{{name}}", f"{TOPIC_PATH}/positions/{{name}}"
    return [
        Route("GET", f"{TOPIC_PATH}/splits", jobs.splits),
        Route("GET", f"{TOPIC_PATH}/holds", jobs.holds),
        Route("PUT", hold, jobs.hold),
        Route("DELETE", hold, jobs.release),
        Route("GET", f"{TOPIC_PATH}/positions", jobs.positions),
        Route("GET", position, jobs.position),
        Route("PUT", position, jobs.set_position),
        Route("DELETE", position, jobs.delete_position),
    ]


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
            raise BadRequestError(f"n is 1 to {SPLITS_COUNT_MAX} parts, not {shown(query['n'])}")
        start, end = (_maybe_id(query.get(name)) for name in ("start", "end"))
        generation, found = await self._service.offsets.splits(
            topic, start=start, end=end, count=count
        )
        form = [{"start": part.start and part.start.hex(), "end": part.end.hex()} for part in found]
        return json_reply({"generation": generation, "splits": form})

    async def holds(self, request: Request) -> Reply:
        found = self._service.holds_and_positions.holds(topic_of(request))
        return json_reply({"holds": [_hold_form(*each) for each in found.items()]})

    async def hold(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        body = read_object(
            request.body, request.content_type, members={"from", "maxAge"}, what="a hold"
        )
        first = id_or_time_from(body.get("from"), what="from")
        max_age_ms = _age_ms(
            body.get("maxAge"), most_s=self._service.holds_and_positions.hold_max_s
        )
        hold = await self._service.holds_and_positions.hold(
            topic, name, first, max_age_ms=max_age_ms
        )
        return json_reply(_hold_form(name, hold))

    async def release(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        no_members(request, what="the deletion of a hold")
        await self._service.holds_and_positions.release(topic, name)
        return EMPTY_REPLY

    async def positions(self, request: Request) -> Reply:
        generation, found = self._service.holds_and_positions.positions(topic_of(request))
        forms = [_position_form(generation, *each) for each in found.items()]
        return json_reply({"positions": forms})

    async def position(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        generation, found = self._service.holds_and_positions.position(topic, name)
        return json_reply(_position_form(generation, name, found))

    async def set_position(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        body = read_object(
            request.body, request.content_type, members={"position"}, what="a position"
        )
        digits = body.get("position")
        if not isinstance(digits, str):
            raise BadRequestError(f"position is a message id, not {shown(digits)}")
        generation, found = await self._service.holds_and_positions.set_position(
            topic, name, MessageId.from_hex(digits)
        )
        return json_reply(_position_form(generation, name, found))

    async def delete_position(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        no_members(request, what="the deletion of a position")
        await self._service.holds_and_positions.delete_position(topic, name)
        return EMPTY_REPLY


def _name(request: Request) -> str:
    return check_name(request.parameters["name"], what="name")


def _hold_form(name: str, hold: Hold) -> Mapping[str, object]:
    return {
        "name": name,
        "from": hold.first.hex(),
        "expiresAt": hold.expires_at_ms,
        "setAt": hold.set_at_ms,
    }


def _position_form(generation: int, name: str, found: Position) -> Mapping[str, object]:
    return {
        "name": name,
        "position": found.position.hex(),
        "generation": generation,
        "updatedAt": found.updated_at_ms,
    }


def _age_ms(value: object, *, most_s: float) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most_s:
        return ceil(value * 1000)
    raise BadRequestError(
        f"maxAge is more than 0 and at most {most_s:.0f} seconds, not {shown(value)}"
    )


def _maybe_id(digits: str | None) -> MessageId | None:
    return None if digits is None else MessageId.from_hex(digits)
