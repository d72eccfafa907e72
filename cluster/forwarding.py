"""Which server answers a request: this one, or the one that owns the topic or leads transactions
(decision 0042, Requests).

A request is forwarded once at most. A server that gets a forwarded request for what it does not own
refuses it: the ownership is moving, and the client asks again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import orjson

from cluster.joined_cluster import Joined
from cluster.peers import Owner, Peers, PeerUnansweredError
from cluster.session_forwarding import http_request, session_reply
from kernel.requests_and_replies import Reply, Request, Route
from messaging.groups.consumer_routes import group_log
from messaging.model.parameters import WAIT_S_MAX
from messaging.read.long_poll_of_topics import topics_in
from tuff.protocol.errors import (
    InvalidNameError,
    OwnershipMovingError,
    StorageOutcomeUnknownError,
    TopicNotFoundError,
    TransactionsUnavailableError,
    TransactionUnknownError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.ids import TopicId, topic_id, topic_in
from tuff.protocol.json_bodies import parse_json
from tuff.protocol.media_types import JSON_REPLY_TYPE, MediaType
from tuff.protocol.operations import CREATE_TOPIC, DELETE_TOPIC, POLL, Server

# Seconds in which another server answers, long polls aside. Longer than any server lets a call wait
# for its storage, so that a late answer is still an answer.
ANSWER_S_MAX = 60.0

SUSPENDED = (
    "this server is suspended: the metadata store has not confirmed its session for the session's "
    "timeout, so other servers may have taken over"
)

_MOVING = f'"{OwnershipMovingError.code}"'.encode()  # in the problem document of another server


def topic_route(route: Route, joined: Joined, peers: Peers) -> Route:
    """A route that forwards requests about topics that another server owns."""
    creates = route.operation.creates_subject
    if route.operation in (CREATE_TOPIC, DELETE_TOPIC):
        route = _noted(route, joined)

    async def owner_of(request: Request) -> Owner | None:
        try:
            topic = _topic_of(request)
        except InvalidNameError:
            return None  # this server refuses it as well as any
        return await joined().ownership.owner_of(
            topic, is_forwarded=request.is_forwarded, creates=creates
        )

    return _asked_again(server_route(route, owner_of, peers), joined)


def topics_route(route: Route, joined: Joined, peers: Peers) -> Route:
    """A route for waits for topics that several servers may own: all are asked at once, and
    the first that finds something answers."""
    return route.wrapped(_TopicsWait(route, joined, peers).answer)


def leader_route(route: Route, joined: Joined, peers: Peers) -> Route:
    """A route that forwards requests to the server that leads transactions."""

    async def owner_of(_request: Request) -> Owner | None:
        return joined().election.leader()

    return server_route(route, owner_of, peers, doubtful=TransactionsUnavailableError)


def server_route(
    route: Route,
    owner_of: Callable[[Request], Awaitable[Owner | None]],
    peers: Peers,
    *,
    doubtful: type[UnavailableError] = StorageOutcomeUnknownError,
) -> Route:
    """A route that forwards to the server that `owner_of` finds in a request; None: it is this
    one. `doubtful` is the error of a write whose outcome is unknown."""

    async def handler(request: Request) -> Reply:
        owner = await owner_of(request)
        if owner is None:
            return await route.handler(request)
        if request.members is None:
            return await forwarded(owner, request)
        as_http = http_request(request, is_poll=route.operation is POLL)
        return session_reply(await forwarded(owner, as_http))

    async def forwarded(owner: Owner, request: Request) -> Reply:
        target = _target_at(owner, route, request)
        if request.wants_redirect:
            return _redirect(owner, target)
        waits = any(name == "wait" for name, _ in request.query)
        within_s = WAIT_S_MAX + ANSWER_S_MAX if waits else ANSWER_S_MAX
        try:
            return await peers.forward(
                owner.url,
                route.operation.method,
                target,
                request,
                within_s=within_s,
                waits=waits,
            )
        except PeerUnansweredError as error:
            raise _unanswered(route, error, doubtful) from None

    return route.wrapped(handler)


def proven_route(
    route: Route, is_proven: Callable[[], bool], require_leading: Callable[[], Awaitable[None]]
) -> Route:
    """A route that executes and answers nothing while this server can't prove that it is
    still a member of the cluster: it is suspended. What was under way when that began may have been
    carried out.

    `require_leading` is called before a reply says that a transaction is unknown: a leader that was
    replaced does not know those of the next one. It raises TransactionsUnavailableError if this
    server led and can't prove that it still does.
    """
    operation = route.operation
    is_led = operation.answered_by is Server.LEADER
    doubtful = TransactionsUnavailableError if is_led else StorageOutcomeUnknownError

    async def handler(request: Request) -> Reply:
        if not is_proven():
            raise OwnershipMovingError(f"{SUSPENDED}; nothing was done, try again")
        answer: Reply | TuffError
        try:
            answer = await route.handler(request)
        except TuffError as error:
            answer = error
        if isinstance(answer, TransactionUnknownError):
            await require_leading()
        if not is_proven():
            if not operation.leaves_doubt:
                raise OwnershipMovingError(f"{SUSPENDED}; try again")
            raise doubtful(
                f"{SUSPENDED}; this may or may not have been carried out, so check that before you "
                "repeat it"
            )
        if isinstance(answer, TuffError):
            raise answer
        return answer

    return route.wrapped(handler)


def target_of(path: str, request: Request) -> str:
    """The path and the query of a request, with escapes: read again, they give the same parameters
    and the same query. `path` is that of the route."""
    segments = (
        quote(request.parameters[segment[1:-1]], safe="") if segment.startswith("{") else segment
        for segment in path.split("/")
    )
    query = f"?{urlencode(request.query)}" if request.query else ""
    return "/".join(segments) + query


def _target_at(owner: Owner, route: Route, request: Request) -> str:
    """Raises: OwnershipMovingError: the request has been forwarded already."""
    if request.is_forwarded:
        raise OwnershipMovingError(
            f"server {owner.server_id} at {owner.url} serves this now, and not the server to which "
            "the request was forwarded; try again"
        )
    return target_of(route.operation.path, request)


def _unanswered(
    route: Route, error: PeerUnansweredError, doubtful: type[UnavailableError]
) -> UnavailableError:
    if not (route.operation.leaves_doubt and error.was_sent):
        return OwnershipMovingError(f"{error}; nothing was changed, try again")
    return doubtful(
        f"{error}; this may or may not have been carried out, so check that before you repeat it"
    )


def _asked_again(route: Route, joined: Joined) -> Route:
    """A route whose requests are answered by a second server if the first one did not own the
    topic: what is remembered of owners may be old. That server executed nothing."""

    async def handler(request: Request) -> Reply:
        try:
            reply = await route.handler(request)
        except OwnershipMovingError:
            joined().ownership.forget(_topic_of(request))
            raise
        if reply.status != OwnershipMovingError.status or _MOVING not in reply.body:
            return reply
        # Without this, requests would be forwarded to the former owner for ever.
        joined().ownership.forget(_topic_of(request))
        return await route.handler(request)

    return route.wrapped(handler)


@dataclass(frozen=True, slots=True)
class _TopicsWait:
    """A wait for topics of several owners; each owner gets the part of its topics."""

    route: Route
    joined: Joined
    peers: Peers

    async def answer(self, request: Request) -> Reply:
        by_owner: dict[Owner | None, dict[str, object]] = defaultdict(dict)
        for name, member in topics_in(request).items():
            by_owner[await self._owner_of(request, name)][name] = member
        asked = [
            asyncio.ensure_future(self._ask(owner, topics, request))
            for owner, topics in by_owner.items()
        ]
        try:
            reply = await _first_found(asked)
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return reply if request.members is None else session_reply(reply)

    async def _owner_of(self, request: Request, name: str) -> Owner | None:
        """None: this server answers, also that there is no such topic."""
        try:
            topic = topic_in(request.parameters["ns"], name)
            is_forwarded = request.is_forwarded
            return await self.joined().ownership.owner_of(
                topic, is_forwarded=is_forwarded, creates=False
            )
        except (InvalidNameError, TopicNotFoundError):
            return None

    async def _ask(
        self, owner: Owner | None, topics: Mapping[str, object], request: Request
    ) -> Reply:
        body = orjson.dumps({"topics": topics})
        part = request._replace(body=body, content_type=MediaType.JSON.value, members=None)
        if owner is None:
            return await self.route.handler(part)
        target = _target_at(owner, self.route, request)
        try:
            reply = await self.peers.forward(
                owner.url,
                self.route.operation.method,
                target,
                part,
                within_s=WAIT_S_MAX + ANSWER_S_MAX,
                waits=True,
            )
        except PeerUnansweredError as error:
            raise _unanswered(self.route, error, StorageOutcomeUnknownError) from None
        if reply.status == OwnershipMovingError.status and _MOVING in reply.body:
            for name in topics:
                self.joined().ownership.forget(topic_in(request.parameters["ns"], name))
        return reply


async def _first_found(asked: Collection[asyncio.Future[Reply]]) -> Reply:
    """The first reply with something in it; one without, if all are."""
    empty: Reply | None = None
    for each in asyncio.as_completed(asked):
        reply = await each
        is_of_messages = reply.content_type != JSON_REPLY_TYPE  # or a refusal
        if is_of_messages or parse_json(reply.body) != {"partitions": []}:
            return reply
        empty = reply
    assert empty is not None, "a wait names a topic"
    return empty


def _noted(route: Route, joined: Joined) -> Route:
    async def handler(request: Request) -> Reply:
        try:
            return await route.handler(request)
        finally:
            # Also after an error: an earlier call may have changed the topic, with an unknown
            # outcome, and then a later one is refused since it is done already.
            await joined().ownership.note_change(_topic_of(request))

    return route.wrapped(handler)


def _topic_of(request: Request) -> TopicId:
    """The topic or log of a group by which the owner is found. Raises: InvalidNameError."""
    if "g" in request.parameters:
        return group_log(request)
    return topic_id(request.parameters["ns"], request.parameters["t"]).unit


def _redirect(owner: Owner, target: str) -> Reply:
    location = owner.url.rstrip("/") + target
    return Reply(307, headers=(("Location", location), ("Tuff-Owner", owner.url)))
