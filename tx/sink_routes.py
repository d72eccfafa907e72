"""The HTTP routes of sinks (protocol §5.3)."""

from tuff.protocol.errors import BadRequestError
from tuff.protocol.exchange import EMPTY_REPLY, Reply, Request, Route, json_reply
from tuff.protocol.media import read_query, shown
from tx import replies
from tx.bodies import client_of, members_of, seconds_of
from tx.manager import TransactionManager
from tx.sinks import EPOCH_MAX, EpochRequest

_ROOT = "/v1/sinks"
_ONE = f"{_ROOT}/{{sink}}"


def sink_routes(manager: TransactionManager) -> list[Route]:
    """Every route of sinks."""
    sinks = _SinkRoutes(manager)
    return [
        Route("GET", _ROOT, sinks.show_all),
        Route("GET", _ONE, sinks.show),
        Route("DELETE", _ONE, sinks.forget),
        Route("POST", f"{_ONE}/epochs/{{epoch}}", sinks.begin),
    ]


class _SinkRoutes:
    def __init__(self, manager: TransactionManager) -> None:
        self._manager = manager

    async def begin(self, request: Request) -> Reply:
        body = members_of(request, {"runId", "lease", "client"}, what="the begin of an epoch")
        run_id = body.get("runId")
        if not isinstance(run_id, str):
            raise BadRequestError(f"runId is a string, not {shown(run_id)}")
        asked = EpochRequest(sink=request.parameters["sink"], epoch=_epoch(request), run_id=run_id)
        sink, opened = await self._manager.epochs.begin(
            asked, lease_s=seconds_of(body, "lease"), client=client_of(body)
        )
        told: dict[str, object] = {"sink": sink.name, "epoch": sink.epoch, "runId": sink.run_id}
        if opened is None:
            return json_reply({**told, "state": "committed", "transaction": None})
        ends_at_ms = self._manager.leases.ends_at_ms(opened)
        shown_object = replies.transaction_object(opened, lists=True, lease_ends_at_ms=ends_at_ms)
        return json_reply({**told, "state": "begun", "transaction": shown_object})

    async def show(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        shown_sink = await self._manager.epochs.show(request.parameters["sink"])
        return json_reply(replies.sink_object(*shown_sink))

    async def show_all(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        found = await self._manager.epochs.show_all()
        return json_reply({"sinks": [replies.sink_object(*each) for each in found]})

    async def forget(self, request: Request) -> Reply:
        members_of(request, (), what="the forgetting of a sink")
        await self._manager.epochs.forget(request.parameters["sink"])
        return EMPTY_REPLY


def _epoch(request: Request) -> int:
    text = request.parameters["epoch"]
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(EPOCH_MAX))):
        raise BadRequestError(
            f"an epoch is a whole number from 0 to {EPOCH_MAX}, not {shown(text)}"
        )
    return int(text)
