"""The calls about consumer groups (protocol §3.11)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, TypedDict, TypeVar

from tuff.flows_and_repeated_calls import Call, call
from tuff.protocol import operations
from tuff.protocol.errors import BadRequestError
from tuff.protocol.group_preferences import (
    GroupPreferences,
    GroupStartLike,
    RetryPolicy,
    body_of_changes,
)
from tuff.protocol.ids import (
    MessageId,
    PartitionId,
    TopicId,
    TopicLike,
    check_name,
    name_in,
    topic_of,
)
from tuff.protocol.json_bodies import pointer_to_json
from tuff.protocol.requests import IsolationLike
from tuff.protocol.values import Member
from tuff.replies import Group
from tuff.requests_and_responses import (
    IdOrHex,
    Response,
    mapping,
    nothing,
    of_type,
    reply,
    reply_object,
    reply_texts,
)

P = TypeVar("P", bound=TopicLike)

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
    def parameters(self) -> tuple[str, str]:
        """The parameters of the group in the path of an operation."""
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"

    def name_for(self, topic: TopicId) -> str:
        """What a topic of any namespace knows the group by: its name, with its namespace in front
        where that is another one, as `shop/billing`."""
        return self.name if topic.namespace == self.namespace else f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class LostBeginning:
    """A message that `count` members of the group had begun when they vanished."""

    partition: PartitionId
    id: MessageId
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """The reply to a heartbeat: what the member shall have, the messages in it that members began
    before they vanished, and the preferences of its group."""

    epoch: Annotated[int, Member("memberEpoch")]
    group_epoch: int
    assigned: frozenset[PartitionId]
    heartbeat_interval_s: float
    session_timeout_s: float
    lost: tuple[LostBeginning, ...]
    preferences: GroupPreferences

    def __post_init__(self) -> None:
        """Raises: BadRequestError: the member would send heartbeats without a pause."""
        if self.heartbeat_interval_s <= 0 or self.session_timeout_s <= 0:
            raise BadRequestError("heartbeatInterval and sessionTimeout are above 0")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The group continues behind this id."""

    partition: PartitionId
    after: MessageId


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """The committed offset of each partition. Those that are `undecided` may still get another one
    from a transaction in progress."""

    offsets: tuple[CommittedOffset, ...]
    undecided: frozenset[PartitionId]


def list_groups(namespace: str) -> Call[list[str]]:
    name = check_name(namespace, what="namespace")
    return call(operations.LIST_GROUPS, (name,), reply_texts)


def get_group(group: GroupId) -> Call[Group]:
    read = reply(Group, namespace=group.namespace)
    return call(operations.GET_GROUP, group.parameters, read)


def delete_group(group: GroupId) -> Call[None]:
    return call(operations.DELETE_GROUP, group.parameters, nothing)


class PreferenceChanges(TypedDict, total=False):
    """The preferences to change; None unsets one."""

    start: GroupStartLike | None
    isolation: IsolationLike | None
    tags: str | None
    retry: RetryPolicy | None
    dead_letters: str | None


def get_preferences(group: GroupId) -> Call[GroupPreferences]:
    return call(operations.GET_GROUP_PREFERENCES, group.parameters, _read_preferences)


def set_preferences(group: GroupId, preferences: GroupPreferences) -> Call[GroupPreferences]:
    form = of_type(preferences, GroupPreferences, "preferences").to_form()
    return call(operations.SET_GROUP_PREFERENCES, group.parameters, _read_preferences, form=form)


def update_preferences(group: GroupId, changes: PreferenceChanges) -> Call[GroupPreferences]:
    """Raises: BadRequestError, TypeError: a value is not valid, or there is no such preference."""
    GroupPreferences(**changes)
    return call(
        operations.UPDATE_GROUP_PREFERENCES,
        group.parameters,
        _read_preferences,
        form=body_of_changes(changes),
    )


def _read_preferences(response: Response) -> GroupPreferences:
    return GroupPreferences().with_changes(reply_object(response))


def get_offsets(group: GroupId) -> Call[CommittedOffsets]:
    read = reply(CommittedOffsets, namespace=group.namespace)
    return call(operations.GET_COMMITTED_OFFSETS, group.parameters, read)


def reset_offsets(group: GroupId, offsets: Mapping[P, IdOrHex | None]) -> Call[None]:
    body = {
        name_in(group.namespace, partition_of(partition)): (
            after.hex() if isinstance(after, MessageId) else after
        )
        for partition, after in mapping(offsets, "offsets").items()
    }
    return call(operations.RESET_OFFSETS, group.parameters, nothing, form={"offsets": body})


def join(
    group: GroupId,
    member_id: str,
    *,
    topics: Collection[TopicId],
    start: str | None,
    assignor: str,
    instance_id: str | None,
    client: str,
) -> Call[MemberView]:
    """`start`: where the group begins in topics that it subscribes to for the first time; None: as
    its preferences say, or `earliest`."""
    body: dict[str, object] = {
        "memberId": member_id,
        "memberEpoch": JOIN,
        "topics": [name_in(group.namespace, each) for each in topics],
        "assignor": assignor,
        "client": client,
    }
    if start is not None:
        body["start"] = start
    if instance_id is not None:
        body["instanceId"] = instance_id
    return _heartbeat(group, body)


def heartbeat(
    group: GroupId,
    member_id: str,
    *,
    epoch: int,
    group_epoch: int,
    owned: Collection[PartitionId],
    begun: Mapping[PartitionId, MessageId],
) -> Call[MemberView]:
    """`begun`: the messages that the member has begun, and not committed."""
    body: dict[str, object] = {
        "memberId": member_id,
        "memberEpoch": epoch,
        "groupEpoch": group_epoch,
        "owned": sorted(name_in(group.namespace, each) for each in owned),
        "begun": _ids(group, begun),
    }
    return _heartbeat(group, body)


def leave(group: GroupId, member_id: str, *, is_static: bool) -> Call[None]:
    epoch = _LEAVE_STATIC if is_static else _LEAVE
    body = {"memberId": member_id, "memberEpoch": epoch}
    return call(operations.HEARTBEAT, group.parameters, nothing, form=body)


def commit_offsets(
    group: GroupId,
    member_id: str,
    *,
    epoch: int,
    offsets: Mapping[PartitionId, MessageId],
    pointer: int | None,
) -> Call[None]:
    """Commit offsets; with a write pointer as part of that transaction."""
    body: dict[str, object] = {
        "memberId": member_id,
        "memberEpoch": epoch,
        "offsets": _ids(group, offsets),
    }
    if pointer is not None:
        body["transactionWritePointer"] = pointer_to_json(pointer)
    return call(operations.COMMIT_OFFSETS, group.parameters, nothing, form=body)


def report_begun(
    group: GroupId, member_id: str, *, epoch: int, begun: Mapping[PartitionId, MessageId]
) -> Call[None]:
    """Tell the coordinator, durably, which messages the member is about to begin."""
    body = {"memberId": member_id, "memberEpoch": epoch, "begun": _ids(group, begun)}
    return call(operations.COMMIT_OFFSETS, group.parameters, nothing, form=body)


def partition_of(partition: TopicLike) -> TopicId:
    """The partition that a program names. Raises: ValueError: it is a topic."""
    found = topic_of(partition)
    if found.number is None:
        raise ValueError(f"{found} is a topic; name one of its partitions, as in '{found}/0'")
    return found


def _ids(group: GroupId, messages: Mapping[PartitionId, MessageId]) -> dict[str, str]:
    namespace = group.namespace
    return {name_in(namespace, partition): id.hex() for partition, id in messages.items()}


def _heartbeat(group: GroupId, body: Mapping[str, object]) -> Call[MemberView]:
    read = reply(MemberView, namespace=group.namespace)
    return call(operations.HEARTBEAT, group.parameters, read, form=body)
