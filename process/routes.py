"""All routes of the server, and what stands before their handlers."""

import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from console import files as console_files
from messaging import topic_changes
from messaging.groups import routes as group_routes
from messaging.groups import share_routes
from messaging.read import explain, inspection, offsets_and_splits, partition_waits, poll
from messaging.retention import holds_and_positions
from messaging.service import MessagingService
from messaging.storage.store_ownership import owned
from messaging.write import delayed, publish
from process import metrics, session, settings_reply
from process.access_guard import AccessGuard
from process.audit_topic import AuditTopic
from process.http_connection import RequireAccess, require_nothing
from process.settings import Settings
from process.streamed_replies import StreamRoute
from tuff.protocol.exchange import Reply, Request, Route, read_query
from tx import inspection as transaction_inspection
from tx import routes as transaction_routes
from tx.inspection import SnapshotFiles
from tx.manager import TransactionManager

if TYPE_CHECKING:
    from process.request_spans import RequestSpans


def message_routes(messaging: MessagingService, access: AccessGuard | None) -> list[Route]:
    """The routes of the message store."""
    may_read = () if access is None else (access.may_read,)
    routes = [
        *publish.routes(messaging.publisher),
        *poll.routes(messaging.polls),
        *partition_waits.routes(messaging.partition_waits),
        *offsets_and_splits.routes(messaging.offsets),
        *explain.routes(messaging.explainer, *may_read),
        *inspection.routes(messaging.inspection),
        *topic_changes.routes(messaging.topics),
        *holds_and_positions.routes(messaging.holds_and_positions),
        *delayed.routes(messaging.delayed),
        *group_routes.routes(messaging.groups),
        *share_routes.routes(messaging.share_groups),
    ]
    if messaging.ownership is None:
        return routes
    return [owned(each, messaging.ownership) for each in routes]


def routes_of_transactions(transactions: TransactionManager, files: SnapshotFiles) -> list[Route]:
    """The routes of the transaction service."""
    return [
        *transaction_routes.routes(transactions),
        *transaction_inspection.routes(transactions, files),
    ]


def process_routes(settings: Settings, collected: metrics.Metrics) -> list[Route]:
    """The routes that ask neither component."""
    return [
        *metrics.routes(collected),
        *settings_reply.routes(settings),
        *console_files.routes(),
        _openapi_route(),
    ]


class ProtectedRoutes(NamedTuple):
    """Routes as a listener serves them, and the check of the heads of their requests."""

    routes: list[Route]
    streams: list[StreamRoute]
    require_access: RequireAccess


def protected(
    routes: Sequence[Route],
    streams: Sequence[StreamRoute],
    *,
    access: AccessGuard | None,
    audit: AuditTopic | None,
    spans: "RequestSpans | None",
) -> ProtectedRoutes:
    """The routes, and that of sessions, with what the settings put before their handlers: spans
    around the audit, and the audit around the check of access, whose refusals it records."""
    served, streamed = [*routes, session.route()], list(streams)
    require_access: RequireAccess = require_nothing
    if audit is not None:
        audit.connect(served)
    if access is not None:
        served = [access.guarded(each) for each in served]
        streamed = [access.guarded_stream(each) for each in streamed]
        require_access = access.require_head
    if audit is not None:
        served = [audit.recorded(each) for each in served]
        streamed = [audit.recorded_stream(each) for each in streamed]
        require_access = audit.recorded_heads(require_access)
    if spans is not None:
        served = [spans.traced(each) for each in served]
    return ProtectedRoutes(served, streamed, require_access)


def _openapi_route() -> Route:
    @cache  # made at the first request: a start does not need it, and does not load it
    def document() -> Reply:
        from process import openapi

        return Reply(200, "application/json", json.dumps(openapi.document()).encode("utf-8"))

    async def show(request: Request) -> Reply:
        read_query(request.query, parameters=())
        return document()

    return Route("GET", "/openapi.json", show)
