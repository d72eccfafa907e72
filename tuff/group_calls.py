"""The calls about consumer groups (protocol §3.11)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from tuff.calls import (
    Call,
    IdOrHex,
    Request,
    Response,
    checked_topic,
    get,
    json_array,
    json_object,
    mapping,
    nothing,
    reply_object,
    reply_texts,
    text,
    texts,
)
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MessageId, TopicId, check_name, topic_id
from tuff.protocol.json_forms import pointer_to_json, shown, whole_number
from tuff.replies import Group, GroupMember, GroupPartition

JOIN = 0  # the epoch of a heartbeat that joins
_LEAVE = -1
_LEAVE_STATIC = -2  # the assignment is kept for a session


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupId:
    """A consumer group. Raises: InvalidNameError: a name is not legal."""

    namespace: str
    name: str

    def __post_init__(self) -> None:
        check_name(self.namespace, what="namespace")
        check_name(self.name, what="group")

    @property
    def path(self) -> str:
        """The path of the group, escaped."""
        return f"{_groups_path(self.namespace)}/{quote(self.name)}"

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """The reply to a heartbeat: what the member shall have."""

    epoch: int
    group_epoch: int
    assigned: frozenset[TopicId]
    heartbeat_interval_s: float
    session_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffsets:
    """The committed offset of each partition. Those that are `undecided` may still get another one
    from a transaction in progress."""

    after: Mapping[TopicId, MessageId]
    undecided: frozenset[TopicId]


def list_groups(namespace: str) -> Call[list[str]]:
    path = _groups_path(check_name(namespace, what="namespace"))
    return get(path, reply_texts)


def get_group(group: GroupId) -> Call[Group]:
    return get(group.path, lambda response: _group(group, reply_object(response)))


def delete_group(group: GroupId) -> Call[None]:
    return Call(Request(method="DELETE", path=group.path), nothing)


def get_offsets(group: GroupId) -> Call[CommittedOffsets]:
    def read(response: Response) -> CommittedOffsets:
        form = reply_object(response)
        found = [json_object(each) for each in json_array(form["offsets"])]
        return CommittedOffsets(
            after={
                topic_id(group.namespace, text(each["partition"])): MessageId.from_hex(
                    text(each["after"])
                )
                for each in found
            },
            undecided=_partitions(group, form["undecided"]),
        )

    return get(f"{group.path}/offsets", read)


def reset_offsets(group: GroupId, offsets: Mapping[TopicId, IdOrHex | None]) -> Call[None]:
    body = {
        partition_name(partition): after.hex() if isinstance(after, MessageId) else after
        for partition, after in mapping(offsets, "offsets").items()
    }
    return Call(_post(f"{group.path}/offsets/reset", {"offsets": body}), nothing)


def join(
    group: GroupId,
    member_id: str,
    *,
    topics: Collection[TopicId],
    assignor: str,
    instance_id: str | None,
    client: str,
) -> Call[MemberView]:
    body: dict[str, object] = {
        "memberId": member_id,
        "memberEpoch": JOIN,
        "topics": [each.name for each in topics],
        "assignor": assignor,
        "client": client,
    }
    if instance_id is not None:
        body["instanceId"] = instance_id
    return _heartbeat(group, body)


def heartbeat(
    group: GroupId, member_id: str, *, epoch: int, group_epoch: int, owned: Collection[TopicId]
) -> Call[MemberView]:
    body: dict[str, object] = {
        "memberId": member_id,
        "memberEpoch": epoch,
        "groupEpoch": group_epoch,
        "owned": sorted(each.name for each in owned),
    }
    return _heartbeat(group, body)


def leave(group: GroupId, member_id: str, *, is_static: bool) -> Call[None]:
    epoch = _LEAVE_STATIC if is_static else _LEAVE
    body = {"memberId": member_id, "memberEpoch": epoch}
    return Call(_post(f"{group.path}/heartbeat", body), nothing)


def commit_offsets(
    group: GroupId,
    member_id: str,
    *,
    epoch: int,
    offsets: Mapping[TopicId, MessageId],
    pointer: int | None,
) -> Call[None]:
    """Commit offsets; with a write pointer as part of that transaction."""
    body: dict[str, object] = {
        "memberId": member_id,
        "memberEpoch": epoch,
        "offsets": {partition.name: after.hex() for partition, after in offsets.items()},
    }
    if pointer is not None:
        body["transactionWritePointer"] = pointer_to_json(pointer)
    return Call(_post(f"{group.path}/offsets", body), nothing)


def partition_name(partition: TopicId) -> str:
    """The name of a partition. Raises: ValueError: it is a topic."""
    if checked_topic(partition).number is None:
        raise ValueError(
            f"{partition} is a topic; name one of its partitions, as in topic.partition(0)"
        )
    return partition.name


def _groups_path(namespace: str) -> str:
    return f"/v1/namespaces/{quote(namespace)}/groups"


def _post(path: str, body: Mapping[str, object]) -> Request:
    # Repeated, each of these has no second effect: of two offsets, the higher one counts.
    return Request(method="POST", path=path, form=body, is_repeatable=True)


def _heartbeat(group: GroupId, body: Mapping[str, object]) -> Call[MemberView]:
    def read(response: Response) -> MemberView:
        form = reply_object(response)
        return MemberView(
            epoch=whole_number(form["memberEpoch"], what="memberEpoch"),
            group_epoch=whole_number(form["groupEpoch"], what="groupEpoch"),
            assigned=_partitions(group, form["assigned"]),
            heartbeat_interval_s=_seconds(form["heartbeatInterval"]),
            session_timeout_s=_seconds(form["sessionTimeout"]),
        )

    return Call(_post(f"{group.path}/heartbeat", body), read)


def _partitions(group: GroupId, value: object) -> frozenset[TopicId]:
    return frozenset(topic_id(group.namespace, each) for each in texts(value))


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise BadRequestError(f"a number of seconds was expected, not {shown(value)}")
    return value


def _group(group: GroupId, form: Mapping[str, object]) -> Group:
    return Group(
        name=text(form["name"]),
        state=text(form["state"]),
        epoch=whole_number(form["epoch"], what="epoch"),
        assignor=_maybe_text(form["assignor"]),
        members=tuple(_member(group, json_object(each)) for each in json_array(form["members"])),
        partitions=tuple(
            _partition(group, json_object(each)) for each in json_array(form["partitions"])
        ),
    )


def _member(group: GroupId, form: Mapping[str, object]) -> GroupMember:
    return GroupMember(
        member_id=text(form["memberId"]),
        epoch=whole_number(form["memberEpoch"], what="memberEpoch"),
        instance_id=_maybe_text(form["instanceId"]),
        client=text(form["client"]),
        topics=tuple(texts(form["topics"])),
        assigned=tuple(topic_id(group.namespace, each) for each in texts(form["assigned"])),
        target=tuple(topic_id(group.namespace, each) for each in texts(form["target"])),
    )


def _partition(group: GroupId, form: Mapping[str, object]) -> GroupPartition:
    behind_ms = form["behindMs"]
    return GroupPartition(
        partition=topic_id(group.namespace, text(form["partition"])),
        member_id=_maybe_text(form["memberId"]),
        after=_maybe_id(form["after"]),
        end=_maybe_id(form["end"]),
        behind_ms=None if behind_ms is None else whole_number(behind_ms, what="behindMs"),
    )


def _maybe_text(value: object) -> str | None:
    return None if value is None else text(value)


def _maybe_id(value: object) -> MessageId | None:
    return None if value is None else MessageId.from_hex(text(value))
