"""All routes of the server, and what stands before their handlers."""

import json
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, partial
from pathlib import Path

from console import files as console_files
from kernel.event_loop import InThread
from kernel.requests_and_replies import Reply, Request, Route, json_reply, read_query
from messaging import disk_use, topic_changes, topic_overview
from messaging.groups import consumer_routes as group_routes
from messaging.groups import share_routes
from messaging.log.read_lease import require_holder
from messaging.read import (
    counts,
    explanation_facts,
    inspection,
    long_poll_of_topics,
    offsets_and_splits,
    poll,
)
from messaging.retention import holds_and_positions
from messaging.service import MessagingService
from messaging.write import delayed_messages, publish
from process import metrics, session_connection
from process.access_guard import AccessGuard
from process.settings import Settings, rows
from tuff.protocol import operations
from tx import inspection_routes as transaction_inspection
from tx import routes as transaction_routes
from tx.service import TransactionManager


def message_routes(messaging: MessagingService, access: AccessGuard | None) -> list[Route]:
    """The routes of the message store."""
    may_read = () if access is None else (access.may_read,)
    routes = [
        *publish.routes(messaging.publisher),
        *poll.routes(messaging.polls),
        *long_poll_of_topics.routes(messaging.partition_waits),
        *offsets_and_splits.routes(messaging.offsets),
        *counts.routes(messaging.counts),
        *explanation_facts.routes(messaging.explainer, *may_read),
        *inspection.routes(messaging.inspection),
        *topic_overview.routes(messaging.overview),
        *disk_use.routes(messaging.disk_use),
        *topic_changes.routes(messaging.topics),
        *holds_and_positions.routes(messaging.holds_and_positions),
        *delayed_messages.routes(messaging.delayed),
        *group_routes.routes(messaging.groups, *may_read),
        *share_routes.routes(messaging.share_groups),
    ]
    if messaging.holder_check is None:
        return routes
    return [require_holder(each, messaging.holder_check) for each in routes]


def routes_of_transactions(
    transactions: TransactionManager,
    directory: Path,
    in_thread: InThread,
    *,
    in_thread_decode: InThread,
) -> list[Route]:
    """The routes of the transaction service."""
    return [
        *transaction_routes.routes(transactions, in_thread_decode),
        *transaction_inspection.routes(transactions, directory, in_thread),
    ]


def process_routes(
    settings: Settings,
    histograms: metrics.Metrics,
    read_metrics: Callable[[], Awaitable[Iterable[metrics.Metric]]],
) -> list[Route]:
    """The routes that ask neither component."""
    return [
        session_connection.route(),
        *metrics.routes(histograms, read_metrics),
        Route(operations.GET_SETTINGS, partial(_show_settings, settings)),
        *console_files.routes(),
        _openapi_route(),
    ]


async def _show_settings(settings: Settings, request: Request) -> Reply:
    read_query(request.query, parameters=())
    return json_reply({"settings": rows(settings)})


def _openapi_route() -> Route:
    @cache  # made at the first request: a start does not need it, and does not load it
    def document() -> Reply:
        from process import openapi

        return Reply(200, "application/json", json.dumps(openapi.document()).encode("utf-8"))

    async def show(request: Request) -> Reply:
        read_query(request.query, parameters=())
        return document()

    return Route(operations.GET_OPENAPI, show)
