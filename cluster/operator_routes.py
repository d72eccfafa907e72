"""The HTTP routes of a server in a cluster: its servers, the owners of topics, and how an operator
moves topics (protocol §7.1)."""

import heapq
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from cluster.forwarding import server_route, topic_route
from cluster.joined_cluster import Joined, JoinedCluster
from cluster.peers import Owner, Peers
from kernel.event_loop import InThread
from kernel.requests_and_replies import Reply, Request, Route, json_reply, read_object, read_query
from messaging.model.parameters import wait_in
from metadata.member_records import ServerInfo
from metadata.store_interface import MetadataError
from metadata.topic_owner_records import OwnerInfo
from metadata.topic_records import TopicRecords
from tuff.protocol import operations
from tuff.protocol.errors import (
    BadRequestError,
    ServerNotFoundError,
    StorageOutcomeUnknownError,
    StorageUnavailableError,
    TopicNotMovableError,
)
from tuff.protocol.ids import TopicId, topic_id
from tuff.protocol.json_bodies import shown

T = TypeVar("T")

OWNERS_COUNT_MAX = 10_000  # owners in one reply, some 100 bytes each
OWNERS_COUNT = 1_000  # without a `limit`

_DIGITS_COUNT_MAX = 9  # of a limit


def routes(joined: Joined, peers: Peers, *, in_thread: InThread) -> list[Route]:
    """The routes below /v1/cluster."""
    shown_to = _Shown(joined, in_thread)
    changes = _Changes(joined)
    move = Route(operations.MOVE_TOPIC, changes.move)
    return [
        Route(operations.GET_CLUSTER, shown_to.cluster),
        Route(operations.LIST_OWNERS, shown_to.topics),
        topic_route(move, joined, peers),
        *(
            server_route(Route(operation, handler), changes.server, peers)
            for operation, handler in (
                (operations.DRAIN_SERVER, changes.drain),
                (operations.UNDRAIN_SERVER, changes.undrain),
            )
        ),
    ]


async def live_topics(
    persistence: TopicRecords, namespace: str | None, *, in_thread: InThread
) -> list[TopicId]:
    """The topics and logs of consumer groups of all servers, as `TopicChanges.live` has them.
    Raises: StorageUnavailableError."""
    return await _read(in_thread, partial(persistence.live, namespace))


class _Shown:
    """Reads the metadata store for an operator. A server may be a moment late there, as it is for
    the servers themselves."""

    def __init__(self, joined: Joined, in_thread: InThread) -> None:
        self._joined = joined
        self._in_thread = in_thread

    async def cluster(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        joined = self._joined()
        members = await _read(self._in_thread, joined.membership.members)
        me, leader = joined.identity, joined.election.found
        return json_reply(
            {
                "clusterId": me.cluster_id,
                "server": {"id": me.server_id, "incarnation": me.incarnation},
                "leader": leader
                and {
                    "id": leader.value.server_id,
                    "epoch": leader.version,
                    "url": leader.value.address,
                },
                "servers": [_server_body(members[name]) for name in sorted(members)],
            }
        )

    async def topics(self, request: Request) -> Reply:
        given = read_query(request.query, parameters=("server", "limit", "after"))
        limit, after = _limit(given.get("limit")), _after(given.get("after"))
        look = partial(_owners_page, self._joined(), given.get("server"), after, limit + 1)
        found, members = await _read(self._in_thread, look)
        page = found[:limit]
        return json_reply(
            {
                "topics": [_owner_body(*each, members) for each in page],
                "next": str(page[-1][0]) if len(found) > limit else None,
            }
        )


class _Changes:
    """What an operator changes at one server."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined

    async def move(self, request: Request) -> Reply:
        """Move a topic that this server owns."""
        read_query(request.query, parameters=())
        topic = topic_id(request.parameters["ns"], request.parameters["t"]).log
        target = await self._member(_named_server(request))
        if target.server_id == self._my_id:
            raise TopicNotMovableError(
                f"the topic {topic} is at the server {target.server_id} already"
            )
        if target.is_draining:
            raise TopicNotMovableError(
                f"the server {target.server_id} is draining, and takes no topics; choose another "
                "one, or undrain it first"
            )
        await self._joined().ownership.move(topic, target.server_id)
        return json_reply({"topic": str(topic), "server": target.server_id})

    async def server(self, request: Request) -> Owner | None:
        """The server that a request names; None: this one. Raises: ServerNotFoundError."""
        server_id = _named_server(request)
        if server_id == self._my_id:
            return None
        found = await self._member(server_id)
        return Owner(found.server_id, found.address)

    async def drain(self, request: Request) -> Reply:
        wait_s = wait_in(read_query(request.query, parameters=("wait",)))
        await self._refresh()
        others = (key for key in self._joined().ownership.members if key != self._my_id)
        if all(self._joined().ownership.members[key].is_draining for key in others):
            raise TopicNotMovableError(
                f"no other server of the cluster takes topics, so {self._my_id} keeps its "
                "own; start or undrain another one first"
            )
        return self._drain_reply(await self._joined().drain.begin(wait_s=wait_s))

    async def undrain(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        try:
            return self._drain_reply(await self._joined().drain.end())
        except MetadataError as error:
            raise StorageOutcomeUnknownError(
                f"{self._my_id} takes topics again, and the other servers do not know of "
                f"it: {error}; repeat the call"
            ) from None

    def _drain_reply(self, topics_count: int) -> Reply:
        return json_reply(
            {
                "server": self._my_id,
                "isDraining": self._joined().ownership.is_draining,
                "topics": topics_count,
            }
        )

    @property
    def _my_id(self) -> str:
        return self._joined().identity.server_id

    async def _member(self, server_id: str) -> ServerInfo:
        await self._refresh()
        found = self._joined().ownership.members.get(server_id)
        if found is None:
            known = ", ".join(sorted(self._joined().ownership.members))
            raise ServerNotFoundError(
                f"there is no live server {server_id[:80]} in the cluster; there are {known}"
            )
        return found

    async def _refresh(self) -> None:
        try:
            await self._joined().ownership.refresh()
        except MetadataError as error:
            raise _unavailable(error) from None


def _owners_page(
    joined: JoinedCluster, server_id: str | None, after: TopicId | None, limit: int
) -> tuple[list[tuple[TopicId, int, OwnerInfo]], dict[str, ServerInfo]]:
    """The first owners behind a topic, and the live servers. Blocks."""
    found = (
        (topic, stored.version, stored.value)
        for topic, stored in joined.owners.scan()
        if (after is None or topic > after) and server_id in (None, stored.value.server_id)
    )
    page = heapq.nsmallest(limit, found, key=lambda each: each[0])
    return page, joined.membership.members()


async def _read(in_thread: InThread, work: Callable[[], T]) -> T:
    """What a function reads in the metadata store. Raises: StorageUnavailableError."""
    try:
        return await in_thread(work)
    except MetadataError as error:
        raise _unavailable(error) from None


def _unavailable(error: MetadataError) -> StorageUnavailableError:
    return StorageUnavailableError(f"the metadata of the cluster can't be read now: {error}")


def _named_server(request: Request) -> str:
    """The member `server` of a body. Raises: BadRequestError, UnsupportedMediaTypeError."""
    body = read_object(
        request.body, request.content_type, members={"server"}, what="a request about a server"
    )
    server_id = body.get("server")
    if not isinstance(server_id, str):
        raise BadRequestError(f"server is the id of a server, not {shown(server_id)}")
    return server_id


def _limit(text: str | None) -> int:
    if text is None:
        return OWNERS_COUNT
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_COUNT_MAX
    if not is_number or int(text) < 1:
        raise BadRequestError(f"limit is a whole number, 1 or more, not {shown(text)}")
    return min(int(text), OWNERS_COUNT_MAX)


def _after(text: str | None) -> TopicId | None:
    """Raises: BadRequestError (InvalidNameError)."""
    if text is None:
        return None
    namespace, colon, name = text.partition(":")
    if not colon:
        raise BadRequestError(f"after is a topic as namespace:name, not {shown(text)}")
    return TopicId(namespace, name)


def _server_body(server: ServerInfo) -> dict[str, object]:
    return {
        "id": server.server_id,
        "incarnation": server.incarnation,
        "url": server.address,
        "startedAt": server.started_ms,
        "topics": server.topics,
        "isDraining": server.is_draining,
    }


def _owner_body(
    topic: TopicId, epoch: int, owner: OwnerInfo, members: dict[str, ServerInfo]
) -> dict[str, object]:
    member = members.get(owner.server_id or "")
    return {
        "topic": str(topic),
        "server": owner.server_id,
        "incarnation": owner.incarnation,
        "epoch": epoch,
        "isAlive": member is not None and member.incarnation == owner.incarnation,
    }
