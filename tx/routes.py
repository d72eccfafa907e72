"""The HTTP routes of transactions and sinks, and the JSON of their replies (protocol §5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from sys import float_info
from typing import NamedTuple

from kernel import request_bodies
from kernel.batch_routes import batch_route
from kernel.event_loop import InThread
from kernel.large_bodies import LARGE_BODY_BYTES, LargeBodies
from kernel.request_bodies import transaction_to_json
from kernel.requests_and_replies import (
    EMPTY_REPLY,
    Caller,
    Handler,
    ManyHandler,
    Reply,
    Request,
    Route,
    json_reply,
    members_of,
    read_query,
    value_reply,
)
from tuff.protocol import json_bodies, operations
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    InvalidTimeoutError,
    OverloadedError,
    StartWithdrawnError,
    TransactionUnknownError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.json_bodies import (
    check_object,
    choice_from_json,
    flag_from_json,
    payload_to_json,
    pointer_to_json,
    rollback_detail_to_json,
    shown,
    text_from_json,
)
from tuff.protocol.pointer_list import POINTER_MAX
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff.protocol.transaction import TransactionType
from tx.calls import Call, Commit, Run, Start, StartRequest
from tx.durable_state import ServiceState
from tx.invalid_list import Invalids
from tx.monitoring import Overview
from tx.outcomes import UNKNOWN_CLIENT, EndedState, OpenTransaction, Outcome
from tx.service import TransactionManager
from tx.settings import CLIENT_LENGTH_MAX, REQUEST_ID_LENGTH_MAX
from tx.sinks import EPOCH_MAX, EpochRequest, check_name
from tx.state import Sink, StateImage
from tx.transaction_principals import (
    may_know,
    named_change,
    principal_name,
    require_known,
    require_principal,
    shown_sink,
    tenant_changes,
    tenant_sink,
)

_START = "the start of a transaction"
_COMMIT_MEMBERS = frozenset({"changes", "publish", "readOnly", "then"})
_RUN_MEMBERS = frozenset({"publish", "client", "requestId"})
_START_MEMBERS = frozenset(
    {"type", "timeout", "client", "lists", "lease", "requestId", "messagesOnly"}
)
_EPOCH_MEMBERS = frozenset({"runId", "lease", "client"})
_POINTER_DIGITS_MAX = 19  # of a 64-bit number


def routes(manager: TransactionManager, in_thread: InThread) -> list[Route]:
    """Every route of transactions. Fixed names come before `{tx}`, which would match them. A large
    commit or run is decoded `in_thread`."""
    service, sinks = _ServiceRoutes(manager), _SinkRoutes(manager)
    one = _TransactionRoutes(manager, in_thread)
    need_it = [
        Route(operations.GET_OVERVIEW, service.overview),
        Route(operations.WITHDRAW_START, one.withdraw),
        Route(operations.LIST_PREPARED, service.prepared),
        Route(operations.LIST_INVALID, service.invalids),
        Route(operations.TRUNCATE_INVALID, service.truncate),
        Route(operations.TAKE_SNAPSHOT, service.take_snapshot),
        Route(operations.GET_SNAPSHOT, service.snapshot_state),
        Route(operations.GET_OUTCOME, one.outcome),
        Route(operations.CAN_COMMIT, one.can_commit),
        Route(operations.PREPARE, one.prepare),
        Route(operations.RESOLVE, one.resolve),
        Route(operations.ABORT, one.abort),
        Route(operations.INVALIDATE, one.invalidate),
        Route(operations.CHECKPOINT, one.checkpoint),
        Route(operations.RENEW, one.renew),
        Route(operations.JOIN, one.join),
        Route(operations.LIST_SINKS, sinks.show_all),
        Route(operations.GET_SINK, sinks.show),
        Route(operations.FORGET_SINK, sinks.forget),
        Route(operations.BEGIN_EPOCH, sinks.begin),
    ]
    return [
        batch_route(operations.START_TRANSACTION, one.start),
        batch_route(operations.COMMIT, one.commit),
        batch_route(operations.RUN_TRANSACTION, one.run),
        *(route.wrapped(while_running(manager, route.handler)) for route in need_it),
        Route(operations.STOP_SERVICE, service.stop),
        Route(operations.START_SERVICE, service.start),
    ]


def while_running(manager: TransactionManager, handler: Handler) -> Handler:
    """A handler that answers 503 while the service is not running. Whether the transaction of a
    request exists is not known then."""

    def handle(request: Request) -> Awaitable[Reply]:
        manager.durable.require_running()
        return handler(request)

    return handle


class _TransactionRoutes:
    def __init__(self, manager: TransactionManager, in_thread: InThread) -> None:
        self._manager = manager
        self._runner = manager.runner
        self._large = LargeBodies(in_thread)

    def start(self, requests: Sequence[Request]) -> None:
        """Start transactions."""
        self._manager.durable.require_running()
        asked: list[tuple[Request, _Start]] = []
        for request in requests:
            try:
                body = members_of(request, members=_START_MEMBERS, what=_START)
                asked.append((request, _start_of(body, request.caller)))
            except TuffError as error:
                request.reply(error)
        waiting = []
        started = self._manager.machine.start_all([start.request for _, start in asked])
        for (request, start), result in zip(asked, started, strict=True):
            if result is not None:
                self._answer_start(request, start.lists, result)
            else:
                answer = partial(self._answer_start, request, start.lists)
                waiting.append(Start(answer, start.request))
        if waiting:
            self._runner.take(waiting)

    def _answer_start(self, request: Request, lists: bool, result: object) -> None:  # noqa: FBT001 - of a partial
        if isinstance(result, OpenTransaction):
            shown_object = self._object(request, result, lists=lists)
            request.reply(value_reply(request, shown_object, status=201))
        else:
            request.reply(_error(result))

    def commit(self, requests: Sequence[Request]) -> None:
        """Commit transactions."""
        self._take(requests, self.commit, _read_commit, self._commit_of)

    def run(self, requests: Sequence[Request]) -> None:
        """Start transactions, publish, and commit."""
        self._take(requests, self.run, _read_run, self._run_of)

    def _take(
        self,
        requests: Sequence[Request],
        handler: ManyHandler,
        read: Callable[[Request], _Body],
        call_of: Callable[[Request, _Body], Call],
    ) -> None:
        """Take the calls of a batch in the order of arrival; a large one, and what its client has
        sent behind it, when it is decoded."""
        self._manager.durable.require_running()
        calls = []
        for request in requests:
            may_wait = request.size > LARGE_BODY_BYTES or self._large.behind
            if may_wait and self._large.comes_later(
                request, handler, decode=read, came_in=partial(self._take_large, call_of)
            ):
                continue
            try:
                calls.append(call_of(request, read(request)))
            except TuffError as error:
                request.reply(error)
        self._runner.take(calls)

    def _take_large(
        self, call_of: Callable[[Request, _Body], Call], request: Request, body: _Body
    ) -> None:
        self._manager.durable.require_running()
        self._runner.take([call_of(request, body)])

    def _run_of(self, request: Request, read: _Body) -> Run:
        body, _, entries = read
        caller = request.caller
        start = StartRequest(client=client_of(body), is_messages_only=True, caller=caller)
        answer = partial(self._answer_commit, request, None)
        run = Run(answer, entries, start, _request_id(body, caller))
        if not entries:
            raise EmptyPublishError("a run publishes something; name at least one entry")
        return run

    def _commit_of(self, request: Request, read: _Body) -> Commit:
        body, named, entries = read
        start = _start_behind(body, request.caller) if "then" in body else None
        if start is not None:
            self._manager.machine.require_valid(start.request)
        is_read_only = "readOnly" in body and flag_from_json(body["readOnly"], what="readOnly")
        changes = self._changes(request, named)
        return Commit(
            partial(self._answer_commit, request, start),
            self._own(request),
            frozenset() if is_read_only and changes is None else changes,
            entries,
            is_read_only=is_read_only,
        )

    def _answer_commit(self, request: Request, start: _Start | None, result: object) -> None:
        if not isinstance(result, tuple):
            request.reply(_error(result))
            return
        body = _committed_object(result)
        if start is None:
            request.reply(value_reply(request, body))
            return
        answer = partial(self._answer_next, request, body, start.lists)
        self._runner.take([Start(answer, start.request)])

    def _answer_next(
        self,
        request: Request,
        body: dict[str, object],
        lists: bool,  # noqa: FBT001 - of a partial
        result: object,
    ) -> None:
        if isinstance(result, OpenTransaction):
            body["next"] = self._object(request, result, lists=lists)
        elif isinstance(result, UnavailableError | OverloadedError | StartWithdrawnError):
            body["next"] = None  # the commit counts; the client starts by itself
        else:
            request.reply(_error(result))
            return
        request.reply(value_reply(request, body))

    async def withdraw(self, request: Request) -> Reply:
        body = members_of(request, members={"requestId"}, what="the withdrawal of a start")
        request_id = _request_id(body, request.caller)
        if request_id is None:
            raise BadRequestError("a withdrawal names the requestId of the start")
        outcome = await self._runner.withdraw(request_id)
        pointer = None if outcome is None else pointer_to_json(outcome.transaction_id)
        return value_reply(request, {"transactionId": pointer})

    async def join(self, request: Request) -> Reply:
        members_of(request, members=(), what="a join")
        opened = await self._runner.join(self._own(request))
        return value_reply(request, {"state": opened.state})

    async def renew(self, request: Request) -> Reply:
        members_of(request, members=(), what="a renewal")
        opened = await self._runner.renew(self._own(request))
        ends_at_ms = self._manager.timeouts.lease_ends_at_ms(opened)
        return value_reply(
            request, {"leaseExpiresAt": ends_at_ms, "expiresAt": opened.expires_at_ms}
        )

    async def can_commit(self, request: Request) -> Reply:
        body = members_of(request, members={"changes"}, what="a can-commit")
        changes = self._changes(request, _named_changes(body))
        await self._runner.can_commit(self._own(request), changes or ())
        return value_reply(request, {"state": "committing"})

    async def prepare(self, request: Request) -> Reply:
        body = members_of(request, members={"changes", "publish", "database"}, what="a prepare")
        opened = await self._runner.prepare(
            self._own(request),
            database=_database(body.get("database")),
            changes=self._changes(request, _named_changes(body)),
            publish=_entries(body),
        )
        return value_reply(request, _prepared_reply(opened))

    async def resolve(self, request: Request) -> Reply:
        body = members_of(request, members={"outcome"}, what="a resolve")
        pointer = self._own(request)
        match body.get("outcome"):
            case "commit":
                outcome = await self._runner.commit_prepared(pointer)
                return value_reply(request, _committed_object(outcome.published))
            case "abort":
                outcome = await self._runner.abort_prepared(pointer)
                return value_reply(request, {"state": outcome.state.value})
            case other:
                raise BadRequestError(f"outcome is commit or abort, not {shown(other)}")

    async def abort(self, request: Request) -> Reply:
        members_of(request, members=(), what="an abort")
        outcome = await self._runner.abort(self._own_or_invalid(request))
        return value_reply(request, {"state": outcome.state.value})

    async def invalidate(self, request: Request) -> Reply:
        members_of(request, members=(), what="an invalidation")
        outcome = await self._runner.invalidate(self._own(request))
        return value_reply(request, {"state": outcome.state.value})

    async def checkpoint(self, request: Request) -> Reply:
        members_of(request, members=(), what="a checkpoint")
        opened = await self._runner.checkpoint(self._own(request))
        return value_reply(request, self._object(request, opened, lists=True))

    async def outcome(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        found = await self._runner.outcome(pointer_of(request))
        if request.caller is not None:
            self._require_known(request.caller, found)
        shown = _outcome_object(found, self._runner.topics(found))
        if isinstance(found, OpenTransaction):
            shown |= _lease_members(found, self._manager.timeouts.lease_ends_at_ms(found))
            shown |= _prepared_members(found)
        return value_reply(request, shown)

    def _own(self, request: Request) -> int:
        """The pointer of the path. Raises: ForbiddenError: as `require_principal`;
        TransactionUnknownError: it has ended, and is of another tenant."""
        pointer = pointer_of(request)
        if request.caller is not None:
            state = self._manager.durable.state
            if (opened := state.opened(pointer)) is not None:
                require_principal(request.caller, opened.transaction_id, state.principals)
            elif (ended := state.outcomes.find(pointer)) is not None:
                self._require_known(request.caller, ended)
        return pointer

    def _require_known(self, caller: Caller, found: OpenTransaction | Outcome) -> None:
        """Raises: TransactionUnknownError: it is of another tenant."""
        principal = self._manager.durable.state.principals.of(found.transaction_id)
        if principal is None and isinstance(found, Outcome) and found.is_lost:
            return  # of whom is not known, and it says nothing
        require_known(caller, found.transaction_id, principal)

    def _changes(
        self, request: Request, changes: frozenset[bytes] | None
    ) -> frozenset[bytes] | None:
        """The changes as the transaction has them, of those that a request names."""
        if changes is None:
            return None
        if request.caller is None:
            return changes
        state = self._manager.durable.state
        opened = state.opened(pointer_of(request))
        if opened is None:
            return changes
        return tenant_changes(changes, state.principals.of(opened.transaction_id))

    def _own_or_invalid(self, request: Request) -> int:
        """The own transaction of a caller, open or invalid: an abort takes an invalid transaction
        from the invalid list, too."""
        pointer, state = self._own(request), self._manager.durable.state
        if pointer in state.invalid:
            require_principal(request.caller, state.find(pointer).transaction_id, state.principals)
        return pointer

    def _object(
        self, request: Request, opened: OpenTransaction, *, lists: bool
    ) -> dict[str, object]:
        ends_at_ms = None
        if opened.lease_ms is not None:
            ends_at_ms = self._manager.timeouts.lease_ends_at_ms(opened)
        in_json = request.members is None
        body = _transaction_object(opened, lists=lists and in_json, lease_ends_at_ms=ends_at_ms)
        if lists and not in_json:
            body["encoded"] = opened.transaction.to_bytes()
        return body


class _ServiceRoutes:
    def __init__(self, manager: TransactionManager) -> None:
        self._manager = manager

    async def overview(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        overview = await self._manager.monitoring.overview()
        shown = (
            _open_object(
                opened,
                self._manager.runner.topics(opened),
                self._manager.timeouts.lease_ends_at_ms(opened),
                self._manager.durable.state.principals.of(opened.transaction_id),
            )
            for opened in overview.open
        )
        return json_reply(_overview_object(overview, shown))

    async def prepared(self, request: Request) -> Reply:
        query = read_query(request.query, parameters={"database"})
        database = query.get("database")
        found = await self._manager.monitoring.prepared(
            None if database is None else _database(database)
        )
        if request.caller is not None:
            principal_of = self._manager.durable.state.principals.of
            found = [e for e in found if may_know(request.caller, principal_of(e.transaction_id))]
        topics, blocking = self._manager.runner.topics, self._manager.timeouts.blocking_now()
        return json_reply(
            {"prepared": [_prepared_object(each, topics(each), blocking) for each in found]}
        )

    async def invalids(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        return json_reply(_invalids_object(await self._manager.invalid_list.shown()))

    async def truncate(self, request: Request) -> Reply:
        body = members_of(request, members={"ids", "before"}, what="a truncation")
        if len(body) != 1:
            raise BadRequestError("a truncation names either ids or before")
        if "ids" in body:
            pointers = json_bodies.pointers_from_json(body["ids"], what="ids")
            removed_count, kept = await self._manager.invalid_list.truncate(pointers=pointers)
        else:
            before_ms = request_bodies.clamped_number(body["before"], what="before")
            if before_ms < 0:
                raise BadRequestError(f"before is a time in ms, and not {before_ms}")
            removed_count, kept = await self._manager.invalid_list.truncate(before_ms=before_ms)
        answer = {"removed": removed_count, "kept": list(map(pointer_to_json, kept))}
        return json_reply(answer)

    async def take_snapshot(self, request: Request) -> Reply:
        members_of(request, members=(), what="a snapshot")
        name, size = await self._manager.take_snapshot()
        return json_reply({"file": name, "bytes": size})

    async def snapshot_state(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        return json_reply(_state_object(await self._manager.durable.durable_image()))

    async def stop(self, request: Request) -> Reply:
        members_of(request, members=(), what="a stop")
        await self._manager.stop_service()
        return json_reply({"state": ServiceState.STOPPED.value})

    async def start(self, request: Request) -> Reply:
        members_of(request, members=(), what="a start")
        await self._manager.start_service()
        return json_reply({"state": ServiceState.RUNNING.value})


def _error(result: object) -> Exception:
    assert isinstance(result, Exception)
    return result


def pointer_of(request: Request) -> int:
    """The pointer in the path of a request. Raises: TransactionUnknownError: it is none."""
    text = request.parameters["tx"]
    if text.isascii() and text.isdigit() and len(text) <= _POINTER_DIGITS_MAX:
        pointer = int(text)
        if pointer <= POINTER_MAX:
            return pointer
    raise TransactionUnknownError(f"there is no transaction {shown(text)}")


class _Start(NamedTuple):
    """What a start asks for; `lists`: its reply has the lists of the snapshot."""

    request: StartRequest
    lists: bool


def _start_of(body: Mapping[str, object], caller: Caller | None) -> _Start:
    kind = body.get("type")
    request = StartRequest(
        type=TransactionType.SHORT
        if kind is None
        else choice_from_json(TransactionType, kind, what="type"),
        timeout_s=_seconds_of(body, "timeout") if "timeout" in body else None,
        client=client_of(body) if "client" in body else UNKNOWN_CLIENT,
        lease_s=_seconds_of(body, "lease") if "lease" in body else None,
        request_id=_request_id(body, caller) if "requestId" in body else None,
        is_messages_only="messagesOnly" in body
        and flag_from_json(body["messagesOnly"], what="messagesOnly"),
        caller=caller,
    )
    return _Start(request, "lists" not in body or flag_from_json(body["lists"], what="lists"))


def _start_behind(commit: Mapping[str, object], caller: Caller | None) -> _Start | None:
    """The start that follows a commit, if it asks for one."""
    if "then" not in commit:
        return None
    then = check_object(commit["then"], members={"start"}, what="then")
    start = check_object(then.get("start"), members=_START_MEMBERS, what=_START)
    return _start_of(start, caller)


class _Body(NamedTuple):
    """The body of a commit or a run: its members, and of them the changes, None without them, and
    the entries."""

    members: Mapping[str, object]
    changes: frozenset[bytes] | None
    entries: Sequence[PublishEntry]


def _read_commit(request: Request) -> _Body:
    members = members_of(request, members=_COMMIT_MEMBERS, what="a commit")
    return _Body(members, _named_changes(members), _entries(members))


def _read_run(request: Request) -> _Body:
    members = members_of(request, members=_RUN_MEMBERS, what="a run")
    return _Body(members, None, _entries(members))


def _named_changes(body: Mapping[str, object]) -> frozenset[bytes] | None:
    """None where a commit leaves them to the can-commits before."""
    if "changes" not in body:
        return None
    return frozenset(request_bodies.payloads_from_json(body["changes"], what="changes"))


def _entries(body: Mapping[str, object]) -> Sequence[PublishEntry]:
    return request_bodies.publish_entries_from_json(body["publish"]) if "publish" in body else ()


def _database(value: object) -> str:
    if not isinstance(value, str):
        raise BadRequestError(f"database is the name of the one that decides, not {shown(value)}")
    return check_name(value, what="database")


class _SinkRoutes:
    def __init__(self, manager: TransactionManager) -> None:
        self._manager = manager

    async def begin(self, request: Request) -> Reply:
        body = members_of(
            request, members={"runId", "lease", "client"}, what="the begin of an epoch"
        )
        asked = EpochRequest(
            sink=request.parameters["sink"],
            epoch=_epoch(request),
            run_id=text_from_json(body.get("runId"), "runId"),
            client=client_of(body),
            lease_s=_seconds_of(body, "lease"),
            caller=request.caller,
        )
        sink, opened = await self._manager.sinks.begin(asked)
        answer: dict[str, object] = {
            "sink": request.parameters["sink"], "epoch": sink.epoch, "runId": sink.run_id
        }  # fmt: skip
        if opened is None:
            return json_reply({**answer, "state": "committed", "transaction": None})
        ends_at_ms = self._manager.timeouts.lease_ends_at_ms(opened)
        shown_object = _transaction_object(opened, lists=True, lease_ends_at_ms=ends_at_ms)
        return json_reply({**answer, "state": "begun", "transaction": shown_object})

    async def show(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        found = await self._manager.sinks.show(_sink_of(request))
        return json_reply(_sink_object(*found, name=request.parameters["sink"]))

    async def show_all(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        found = await self._manager.sinks.show_all()
        known = [(each, shown_sink(each[0].name, request.caller)) for each in found]
        shown_sinks = [_sink_object(*each, name=name) for each, name in known if name is not None]
        return json_reply({"sinks": shown_sinks})

    async def forget(self, request: Request) -> Reply:
        members_of(request, members=(), what="the forgetting of a sink")
        await self._manager.sinks.forget(_sink_of(request))
        return EMPTY_REPLY


def _sink_of(request: Request) -> str:
    """The sink of the path, of the caller's tenant. An administrator names that of another one with
    its tenant, as in the list. Raises: InvalidNameError."""
    name, caller = request.parameters["sink"], request.caller
    if caller is not None and caller.may_administer and "@" in name:
        tenant, _, rest = name.partition("@")
        check_name(tenant, what="tenant")
        check_name(rest)
        return name
    return tenant_sink(check_name(name), caller)


def _epoch(request: Request) -> int:
    text = request.parameters["epoch"]
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(EPOCH_MAX))):
        raise BadRequestError(
            f"an epoch is a whole number from 0 to {EPOCH_MAX}, not {shown(text)}"
        )
    return int(text)


def _seconds_of(body: Mapping[str, object], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, int | float) and abs(value) > float_info.max:
        raise InvalidTimeoutError(f"{name} is more than any time in seconds: {shown(value)}")
    return json_bodies.seconds_from_json(value, what=name)


def client_of(body: Mapping[str, object]) -> str:
    client = body.get("client")
    if client is None:
        return UNKNOWN_CLIENT
    text = text_from_json(client, "client")
    return _check_text(text, what="client", length_max=CLIENT_LENGTH_MAX)


def _request_id(body: Mapping[str, object], caller: Caller | None) -> str | None:
    if body.get("requestId") is None:
        return None
    request_id = text_from_json(body["requestId"], "requestId")
    if not request_id:
        raise BadRequestError("requestId is empty; leave it out, or name the request")
    _check_text(request_id, what="requestId", length_max=REQUEST_ID_LENGTH_MAX)
    # Each principal has ids of its own: else one could answer the run of another in advance.
    return request_id if caller is None else f"{caller.principal} {request_id}"


def _check_text(text: str, *, what: str, length_max: int) -> str:
    if len(text) > length_max:
        raise BadRequestError(f"{what} has {len(text)} characters; it takes at most {length_max}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequestError(f"{what} has half a surrogate pair") from None
    return text


def _transaction_object(
    opened: OpenTransaction, *, lists: bool, lease_ends_at_ms: int | None = None
) -> dict[str, object]:
    """The transaction object of protocol §5.1."""
    body = transaction_to_json(opened.transaction, lists=lists)
    body["state"] = opened.state
    body["client"] = opened.client
    body["timeout"] = _seconds(opened.timeout_ms)
    body["startedAt"] = opened.started_at_ms
    body["expiresAt"] = opened.expires_at_ms
    if opened.prepared is not None:
        body |= _prepared_members(opened)
    if opened.lease_ms is not None:
        body |= _lease_members(opened, lease_ends_at_ms)
    return body


def _prepared_members(opened: OpenTransaction) -> dict[str, object]:
    """The members of a prepared transaction; none for another one."""
    if opened.prepared is None:
        return {}
    return {"database": opened.prepared.database, "preparedAt": opened.prepared.at_ms}


def _prepared_reply(opened: OpenTransaction) -> dict[str, object]:
    """The reply to a prepare and to every repetition of it."""
    assert opened.prepared is not None
    published = map(rollback_detail_to_json, opened.prepared.published)
    return {"state": opened.state, "published": list(published), **_prepared_members(opened)}


def _prepared_object(
    opened: OpenTransaction, topics: list[str], blocking: frozenset[int]
) -> dict[str, object]:
    """One entry of the list of prepared transactions."""
    return {
        "transactionId": pointer_to_json(opened.transaction_id),
        "client": opened.client,
        "topics": topics,
        "changeCount": len(opened.changes or ()),
        "blocksReaders": not blocking.isdisjoint(opened.pointers),
        **_prepared_members(opened),
    }


def _lease_members(opened: OpenTransaction, ends_at_ms: int | None) -> dict[str, object]:
    """The members for a lease; none without one, and for a prepared transaction."""
    if opened.lease_ms is None or opened.prepared is not None:
        return {}
    return {"lease": _seconds(opened.lease_ms), "leaseExpiresAt": ends_at_ms}


def _seconds(duration_ms: int) -> float:
    seconds, rest_ms = divmod(duration_ms, 1000)
    return duration_ms / 1000 if rest_ms else seconds


def _committed_object(published: Sequence[RollbackDetail]) -> dict[str, object]:
    """The reply to a commit and to every repetition of it."""
    return {
        "state": EndedState.COMMITTED,
        "published": list(map(rollback_detail_to_json, published)),
    }


def _outcome_object(found: OpenTransaction | Outcome, topics: list[str]) -> dict[str, object]:
    """The reply to `GET /v1/transactions/{tx}`, less the members of a lease."""
    if isinstance(found, OpenTransaction):
        state, reason, kind = found.state, None, found.transaction.type
    else:
        state, kind = found.state.value, found.type
        reason = found.reason.value if found.reason is not None else None
    return {
        "transactionId": pointer_to_json(found.transaction_id),
        "state": state,
        "type": kind.value,
        "client": found.client,
        "startedAt": found.started_at_ms,
        "expiresAt": found.expires_at_ms,
        "reason": reason,
        "topics": topics,
    }


def _open_object(
    opened: OpenTransaction,
    topics: list[str],
    lease_ends_at_ms: int | None,
    principal: str | None,
) -> dict[str, object]:
    """One line of the overview."""
    return {
        "transactionId": pointer_to_json(opened.transaction_id),
        "type": opened.transaction.type.value,
        "client": opened.client,
        "startedAt": opened.started_at_ms,
        "expiresAt": opened.expires_at_ms,
        "topics": topics,
        **({} if principal is None else {"principal": principal_name(principal)}),
        **_lease_members(opened, lease_ends_at_ms),
        **_prepared_members(opened),
    }


def _overview_object(
    overview: Overview, in_progress: Iterable[dict[str, object]]
) -> dict[str, object]:
    oldest = overview.oldest_in_progress
    return {
        "readPointer": pointer_to_json(overview.read_pointer),
        "writePointer": pointer_to_json(overview.write_pointer),
        "inProgress": list(in_progress),
        "visibilityUpperBound": pointer_to_json(overview.visibility_upper_bound),
        "invalidCount": overview.invalid_count,
        "committingCount": overview.committing_count,
        "oldestInProgress": None if oldest is None else pointer_to_json(oldest),
    }


def _sink_object(sink: Sink, state: str, *, name: str) -> dict[str, object]:
    """A sink, with the state of its epoch's transaction."""
    return {
        "sink": name,
        "epoch": sink.epoch,
        "runId": sink.run_id,
        "state": state,
        "transactionId": pointer_to_json(sink.transaction_id),
        "updatedAt": sink.updated_ms,
    }


def _invalids_object(invalids: Invalids) -> dict[str, object]:
    swept_at_ms, swept_with = invalids.swept or (None, None)
    return {
        "invalids": list(map(pointer_to_json, invalids.pointers)),
        "reasons": {
            reason.value: list(map(pointer_to_json, pointers))
            for reason, pointers in invalids.by_reason.items()
        },
        "prunable": list(map(pointer_to_json, invalids.prunable)),
        "sweptAt": swept_at_ms,
        "sweptWith": swept_with,
    }


def _state_object(image: StateImage) -> dict[str, object]:
    """The newest state, for debugging: its members may change from version to version."""
    view = image.view
    return {
        "lsn": image.lsn,
        "durableLsn": image.seen,
        "readPointer": pointer_to_json(view.read_pointer),
        "writePointer": pointer_to_json(image.last_pointer),
        "highestReservedPointer": pointer_to_json(image.highest_reserved),
        "inProgressPointers": list(map(pointer_to_json, view.in_progress)),
        "invalids": list(map(pointer_to_json, view.invalid)),
        "open": [_debug_object(opened) for opened in image.open],
        "ended": [_outcome_object(outcome, list(outcome.topics)) for outcome in image.outcomes],
        "committed": [
            {
                "lsn": commit.lsn,
                "transactionId": pointer_to_json(commit.transaction_id),
                "client": commit.client,
                "changes": [payload_to_json(change) for change in _as_named(commit.changes)],
            }
            for commit in image.commits
        ],
        "sinks": [
            _sink_object(
                sink, "in_progress" if sink.state is None else sink.state.value, name=sink.name
            )
            for sink in image.sinks
        ],
    }


def _as_named(changes: Iterable[bytes]) -> list[bytes]:
    return sorted(map(named_change, changes))


def _debug_object(opened: OpenTransaction) -> dict[str, object]:
    changes = opened.changes
    conflict = opened.conflict
    return {
        **_transaction_object(opened, lists=False),
        "seenLsn": opened.seen,
        "changes": (None if changes is None else [payload_to_json(c) for c in _as_named(changes)]),
        "conflictsWith": None if conflict is None else pointer_to_json(conflict.committer),
        "survivedCrash": opened.survived_crash,
    }
