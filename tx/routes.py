"""The HTTP routes of transactions and sinks (protocol §5)."""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from sys import float_info

from tuff.protocol import json_forms
from tuff.protocol.errors import BadRequestError, InvalidTimeoutError, TransactionUnknownError
from tuff.protocol.exchange import (
    EMPTY_REPLY,
    Handler,
    Reply,
    Request,
    Route,
    json_reply,
    read_object,
    read_query,
)
from tuff.protocol.json_forms import shown
from tuff.protocol.pointers import POINTER_MAX
from tuff.protocol.requests import PublishEntry
from tuff.protocol.transaction import TransactionType
from tx import replies
from tx.decisions import check_client, check_request_id
from tx.durable_state import ServiceState
from tx.manager import TransactionManager
from tx.sinks import EPOCH_MAX, EpochRequest
from tx.transactions import UNKNOWN_CLIENT, OpenTransaction

_ROOT = "/v1/transactions"
_ONE = f"{_ROOT}/{{tx}}"
_SINKS = "/v1/sinks"
_SINK = f"{_SINKS}/{{sink}}"
_POINTER_DIGITS_MAX = 19  # of a 64-bit number


def routes(manager: TransactionManager) -> list[Route]:
    """Every route of transactions. Fixed names come before `{tx}`, which would match them."""
    service, one = _ServiceRoutes(manager), _TransactionRoutes(manager)
    need_it = [
        Route("POST", _ROOT, one.start),
        Route("GET", _ROOT, service.overview),
        Route("POST", f"{_ROOT}/run", one.run),
        Route("GET", f"{_ROOT}/invalid", service.invalids),
        Route("POST", f"{_ROOT}/invalid/truncate", service.truncate),
        Route("POST", f"{_ROOT}/snapshot", service.take_snapshot),
        Route("GET", f"{_ROOT}/snapshot", service.snapshot_state),
        Route("GET", _ONE, one.outcome),
        Route("POST", f"{_ONE}/can-commit", one.can_commit),
        Route("POST", f"{_ONE}/commit", one.commit),
        Route("POST", f"{_ONE}/abort", one.abort),
        Route("POST", f"{_ONE}/invalidate", one.invalidate),
        Route("POST", f"{_ONE}/checkpoint", one.checkpoint),
        Route("POST", f"{_ONE}/renew", one.renew),
        *sink_routes(manager),
    ]
    return [
        *(route._replace(handler=_while_running(manager, route.handler)) for route in need_it),
        Route("POST", f"{_ROOT}/service/stop", service.stop),
        Route("POST", f"{_ROOT}/service/start", service.start),
    ]


def _while_running(manager: TransactionManager, handler: Handler) -> Handler:
    """Without the service nothing else is known of a request: not whether its transaction is."""

    def handle(request: Request) -> Awaitable[Reply]:
        manager.durable.require_running()
        return handler(request)

    return handle


class _TransactionRoutes:
    def __init__(self, manager: TransactionManager) -> None:
        self._manager = manager

    async def start(self, request: Request) -> Reply:
        body = members_of(
            request,
            {"type", "timeout", "client", "lists", "lease"},
            what="the start of a transaction",
        )
        lists = _flag(body, "lists", default=True)
        opened = await self._manager.starts.start(
            _type(body.get("type")),
            seconds_of(body, "timeout"),
            client_of(body),
            lease_s=seconds_of(body, "lease"),
        )
        return json_reply(self._object(opened, lists=lists), status=201)

    async def renew(self, request: Request) -> Reply:
        members_of(request, (), what="a renewal")
        opened = await self._manager.completion.renew(_pointer(request))
        ends_at_ms = self._manager.leases.ends_at_ms(opened)
        return json_reply({"leaseExpiresAt": ends_at_ms, "expiresAt": opened.expires_at_ms})

    async def can_commit(self, request: Request) -> Reply:
        body = members_of(request, {"changes"}, what="a can-commit")
        await self._manager.completion.can_commit(_pointer(request), _changes(body) or ())
        return json_reply({"state": "committing"})

    async def commit(self, request: Request) -> Reply:
        body = members_of(request, {"changes", "publish", "readOnly"}, what="a commit")
        outcome = await self._manager.completion.commit(
            _pointer(request),
            changes=_changes(body),
            publish=_entries(body),
            read_only=_flag(body, "readOnly", default=False),
        )
        return json_reply(replies.committed_object(outcome))

    async def run(self, request: Request) -> Reply:
        body = members_of(request, {"publish", "client", "requestId"}, what="a run")
        request_id = body.get("requestId")
        if request_id is not None and not isinstance(request_id, str):
            raise BadRequestError(f"requestId is a string, not {shown(request_id)}")
        outcome = await self._manager.runs.run(
            _entries(body),
            client=client_of(body),
            request_id=None if request_id is None else check_request_id(request_id),
        )
        return json_reply(replies.committed_object(outcome))

    async def abort(self, request: Request) -> Reply:
        members_of(request, (), what="an abort")
        outcome = await self._manager.completion.abort(_pointer(request))
        return json_reply({"state": outcome.state.value})

    async def invalidate(self, request: Request) -> Reply:
        members_of(request, (), what="an invalidation")
        outcome = await self._manager.completion.invalidate(_pointer(request))
        return json_reply({"state": outcome.state.value})

    async def checkpoint(self, request: Request) -> Reply:
        members_of(request, (), what="a checkpoint")
        opened = await self._manager.starts.checkpoint(_pointer(request))
        return json_reply(self._object(opened, lists=True))

    async def outcome(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        found = await self._manager.completion.outcome(_pointer(request))
        shown = replies.outcome_object(found, self._manager.completion.topics(found))
        if isinstance(found, OpenTransaction):
            shown |= replies.lease_members(found, self._manager.leases.ends_at_ms(found))
        return json_reply(shown)

    def _object(self, opened: OpenTransaction, *, lists: bool) -> dict[str, object]:
        ends_at_ms = self._manager.leases.ends_at_ms(opened)
        return replies.transaction_object(opened, lists=lists, lease_ends_at_ms=ends_at_ms)


class _ServiceRoutes:
    def __init__(self, manager: TransactionManager) -> None:
        self._manager = manager

    async def overview(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        overview = await self._manager.monitoring.overview()
        shown = (
            replies.open_object(
                opened,
                self._manager.completion.topics(opened),
                self._manager.leases.ends_at_ms(opened),
            )
            for opened in overview.open
        )
        return json_reply(replies.overview_object(overview, shown))

    async def invalids(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        return json_reply(replies.invalids_object(await self._manager.invalid_list.shown()))

    async def truncate(self, request: Request) -> Reply:
        body = members_of(request, {"ids", "before"}, what="a truncation")
        if len(body) != 1:
            raise BadRequestError("a truncation names either ids or before")
        if "ids" in body:
            pointers = json_forms.pointers_from_json(body["ids"], what="ids")
            removed_count, kept = await self._manager.invalid_list.truncate(pointers=pointers)
        else:
            before_ms = json_forms.clamped_number(body["before"], what="before")
            if before_ms < 0:
                raise BadRequestError(f"before is a time in ms, and not {before_ms}")
            removed_count, kept = await self._manager.invalid_list.truncate(before_ms=before_ms)
        answer = {"removed": removed_count, "kept": list(map(json_forms.pointer_to_json, kept))}
        return json_reply(answer)

    async def take_snapshot(self, request: Request) -> Reply:
        members_of(request, (), what="a snapshot")
        name, size = await self._manager.maintenance.take_snapshot()
        return json_reply({"file": name, "bytes": size})

    async def snapshot_state(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        return json_reply(replies.state_object(await self._manager.durable.durable_image()))

    async def stop(self, request: Request) -> Reply:
        members_of(request, (), what="a stop")
        await self._manager.stop_service()
        return json_reply({"state": ServiceState.STOPPED.value})

    async def start(self, request: Request) -> Reply:
        members_of(request, (), what="a start")
        await self._manager.start_service()
        return json_reply({"state": ServiceState.RUNNING.value})


def _pointer(request: Request) -> int:
    text = request.parameters["tx"]
    if text.isascii() and text.isdigit() and len(text) <= _POINTER_DIGITS_MAX:
        pointer = int(text)
        if pointer <= POINTER_MAX:
            return pointer
    raise TransactionUnknownError(f"there is no transaction {shown(text)}")


def _type(value: object) -> TransactionType:
    if value is None:
        return TransactionType.SHORT
    for kind in TransactionType:
        if value == kind.value:
            return kind
    raise BadRequestError(f"type is short or long, not {shown(value)}")


def _flag(body: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} is true or false, not {shown(value)}")
    return value


def _changes(body: Mapping[str, object]) -> frozenset[bytes] | None:
    """None where the commit leaves them to the can-commits before."""
    if "changes" not in body:
        return None
    return frozenset(json_forms.payloads_from_json(body["changes"], what="changes"))


def _entries(body: Mapping[str, object]) -> Sequence[PublishEntry]:
    return json_forms.publish_entries_from_json(body["publish"]) if "publish" in body else ()


def sink_routes(manager: TransactionManager) -> list[Route]:
    """Every route of sinks."""
    sinks = _SinkRoutes(manager)
    return [
        Route("GET", _SINKS, sinks.show_all),
        Route("GET", _SINK, sinks.show),
        Route("DELETE", _SINK, sinks.forget),
        Route("POST", f"{_SINK}/epochs/{{epoch}}", sinks.begin),
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
        answer: dict[str, object] = {"sink": sink.name, "epoch": sink.epoch, "runId": sink.run_id}
        if opened is None:
            return json_reply({**answer, "state": "committed", "transaction": None})
        ends_at_ms = self._manager.leases.ends_at_ms(opened)
        shown_object = replies.transaction_object(opened, lists=True, lease_ends_at_ms=ends_at_ms)
        return json_reply({**answer, "state": "begun", "transaction": shown_object})

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


def members_of(request: Request, members: Collection[str], *, what: str) -> Mapping[str, object]:
    read_query(request.query, parameters=())
    return read_object(request.body, request.content_type, members=members, what=what)


def seconds_of(body: Mapping[str, object], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, int | float) and abs(value) > float_info.max:
        raise InvalidTimeoutError(f"{name} is more than any time in seconds: {shown(value)}")
    return json_forms.seconds_from_json(value, what=name)


def client_of(body: Mapping[str, object]) -> str:
    client = body.get("client")
    if client is None:
        return UNKNOWN_CLIENT
    if not isinstance(client, str):
        raise BadRequestError(f"client is a string, not {shown(client)}")
    return check_client(client)
