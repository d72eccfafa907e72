"""The calls about a cluster, as values (protocol §7.1)."""

from collections.abc import Mapping
from urllib.parse import quote

from tuff.calls import (
    Call,
    Request,
    Response,
    get,
    json_array,
    json_object,
    nothing,
    query,
    reply_object,
    text,
)
from tuff.calls import checked_topic as checked
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import TopicId
from tuff.protocol.json_forms import shown, whole_number
from tuff.replies import (
    ClusterLeader,
    ClusterServer,
    ClusterState,
    Drain,
    TopicOwner,
    TopicOwners,
)

_CLUSTER = "/v1/cluster"


def get_cluster() -> Call[ClusterState]:
    def read(response: Response) -> ClusterState:
        found = reply_object(response)
        answering, leader = json_object(found["server"]), found["leader"]
        return ClusterState(
            cluster_id=text(found["clusterId"]),
            server_id=text(answering["id"]),
            incarnation=whole_number(answering["incarnation"], what="incarnation"),
            leader=None if leader is None else _leader(json_object(leader)),
            servers=tuple(_server(json_object(each)) for each in json_array(found["servers"])),
        )

    return get(_CLUSTER, read)


def list_owners(
    server_id: str | None, *, limit: int | None, after: TopicId | None
) -> Call[TopicOwners]:
    def read(response: Response) -> TopicOwners:
        found = reply_object(response)
        following = found["next"]
        return TopicOwners(
            tuple(_owner(json_object(each)) for each in json_array(found["topics"])),
            None if following is None else _topic(following),
        )

    behind = None if after is None else str(checked(after))
    return get(f"{_CLUSTER}/topics{query(server=server_id, limit=limit, after=behind)}", read)


def move_topic(topic: TopicId, server_id: str) -> Call[None]:
    checked(topic)
    path = f"{_CLUSTER}/topics/{quote(topic.namespace)}/{quote(topic.name)}/move"
    return Call(Request(method="POST", path=path, form={"server": server_id}), nothing)


def drain_server(server_id: str, *, wait_s: float) -> Call[Drain]:
    request = Request(
        method="POST",
        path=f"{_CLUSTER}/drain{query(wait=wait_s or None)}",
        form={"server": server_id},
        wait_s=wait_s,
        is_repeatable=True,
    )
    return Call(request, _drain)


def undrain_server(server_id: str) -> Call[Drain]:
    request = Request(
        method="POST", path=f"{_CLUSTER}/undrain", form={"server": server_id}, is_repeatable=True
    )
    return Call(request, _drain)


def _leader(found: Mapping[str, object]) -> ClusterLeader:
    return ClusterLeader(
        server_id=text(found["id"]),
        epoch=whole_number(found["epoch"], what="epoch"),
        url=text(found["url"]),
    )


def _server(found: Mapping[str, object]) -> ClusterServer:
    return ClusterServer(
        server_id=text(found["id"]),
        incarnation=whole_number(found["incarnation"], what="incarnation"),
        url=text(found["url"]),
        started_at_ms=whole_number(found["startedAt"], what="startedAt"),
        topics=whole_number(found["topics"], what="topics"),
        is_draining=_flag(found["isDraining"]),
    )


def _owner(found: Mapping[str, object]) -> TopicOwner:
    server_id = found["server"]
    return TopicOwner(
        topic=_topic(found["topic"]),
        server_id=None if server_id is None else text(server_id),
        incarnation=whole_number(found["incarnation"], what="incarnation"),
        epoch=whole_number(found["epoch"], what="epoch"),
        is_alive=_flag(found["isAlive"]),
    )


def _drain(response: Response) -> Drain:
    found = reply_object(response)
    return Drain(
        server_id=text(found["server"]),
        is_draining=_flag(found["isDraining"]),
        topics=whole_number(found["topics"], what="topics"),
    )


def _topic(value: object) -> TopicId:
    namespace, _, name = text(value).partition(":")
    return TopicId(namespace, name)


def _flag(value: object) -> bool:
    """Raises: BadRequestError: it is neither true nor false."""
    if not isinstance(value, bool):
        raise BadRequestError(f"true or false was expected, not {shown(value)}")
    return value
