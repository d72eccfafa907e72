"""The HTTP routes of consumer groups (protocol §3.11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernel.requests_and_replies import (
    EMPTY_REPLY,
    Reply,
    Request,
    Route,
    json_reply,
    members_of,
    read_query,
    value_reply,
)
from messaging.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR
from messaging.groups.consumer_coordinator import (
    GroupCoordinator,
    MemberView,
    Progress,
    group_log_of,
)
from messaging.groups.consumer_decisions import GroupState, Heartbeat
from messaging.groups.group_log_records import LEFT_STATIC, MemberRecord
from messaging.read.lags import Lag
from tuff.protocol import operations
from tuff.protocol.errors import BadRequestError, InvalidNameError
from tuff.protocol.group_preferences import MEMBERS, GroupPreferences, GroupStart
from tuff.protocol.ids import (
    MessageId,
    TopicId,
    check_name,
    name_in,
    partition_in,
    shown_name,
    topic_in,
)
from tuff.protocol.json_bodies import choice_from_json, pointer_from_json, shown, text_from_json

MayRead = Callable[[Request, TopicId], bool]

LEFT = -1  # the epoch of a heartbeat that leaves the group
TOPICS_COUNT_MAX = 1_000  # of one member
OFFSETS_COUNT_MAX = 10_000  # of one commit
CLIENT_LENGTH_MAX = 200  # characters

_JOIN_ONLY = frozenset({"topics", "start", "assignor", "instanceId", "client"})
_LATER_ONLY = frozenset({"groupEpoch", "owned", "begun"})
_HEARTBEAT_MEMBERS = _JOIN_ONLY | _LATER_ONLY | {"memberId", "memberEpoch"}
_COMMIT_MEMBERS = frozenset(
    {"memberId", "memberEpoch", "offsets", "begun", "transactionWritePointer"}
)


def routes(
    coordinator: GroupCoordinator, may_read: MayRead = lambda _request, _topic: True
) -> list[Route]:
    """The HTTP routes of consumer groups. `may_read`: whether the client of a request may read a
    topic."""
    handlers = _Routes(coordinator, may_read)
    return [
        Route(operations.HEARTBEAT, handlers.heartbeat),
        Route(operations.COMMIT_OFFSETS, handlers.commit),
        Route(operations.GET_COMMITTED_OFFSETS, handlers.committed),
        Route(operations.RESET_OFFSETS, handlers.reset),
        Route(operations.GET_GROUP, handlers.show),
        Route(operations.DELETE_GROUP, handlers.delete),
        Route(operations.GET_GROUP_PREFERENCES, handlers.preferences),
        Route(operations.SET_GROUP_PREFERENCES, handlers.set_preferences),
        Route(operations.UPDATE_GROUP_PREFERENCES, handlers.update_preferences),
    ]


class _Routes:
    def __init__(self, coordinator: GroupCoordinator, may_read: MayRead) -> None:
        self._coordinator = coordinator
        self._may_read = may_read

    async def heartbeat(self, request: Request) -> Reply:
        log = _log_of(request)
        body = members_of(request, members=_HEARTBEAT_MEMBERS, what="a heartbeat")
        member_id, epoch = _member_id(body), _epoch(body, first=LEFT_STATIC)
        others = _LATER_ONLY if epoch == 0 else _JOIN_ONLY
        if epoch < 0:
            others = _JOIN_ONLY | _LATER_ONLY
        wrong = sorted(others & body.keys())
        if wrong:
            raise BadRequestError(
                f"a heartbeat with memberEpoch {epoch} takes no {', '.join(wrong)}: 0 joins, with "
                "topics; -1 and -2 leave; others report owned and groupEpoch"
            )
        if epoch < 0:
            keeps = epoch == LEFT_STATIC
            await self._coordinator.leave(log, member_id, keeps_assignment=keeps)
            return value_reply(request, {"memberId": member_id, "memberEpoch": epoch})
        if epoch == 0:
            start = None
            if "start" in body:
                start = choice_from_json(GroupStart, body["start"], what="start")
            view = await self._coordinator.join(log, _join(log, member_id, body), start)
        else:
            heartbeat = _heartbeat(log, member_id, epoch, body)
            view = await self._coordinator.heartbeat(log, heartbeat)
        return value_reply(request, self._view_form(view))

    async def commit(self, request: Request) -> Reply:
        log = _log_of(request)
        body = members_of(request, members=_COMMIT_MEMBERS, what="a commit of offsets")
        pointer = body.get("transactionWritePointer")
        if pointer is not None and "begun" in body:
            raise BadRequestError(
                "a commit within a transaction takes no begun, which would count if it aborts; "
                "send begun with the next heartbeat"
            )
        begun = _begun(log, body)
        offsets = {} if begun and "offsets" not in body else _offsets(log, body)
        await self._coordinator.commit(
            log,
            _member_id(body),
            _epoch(body, first=1),
            {name: _id(after, name) for name, after in offsets.items()},
            pointer=None
            if pointer is None
            else pointer_from_json(pointer, what="transactionWritePointer"),
            begun=begun,
            caller=request.caller,
        )
        return EMPTY_REPLY

    async def committed(self, request: Request) -> Reply:
        state = await self._coordinator.committed(_log_of(request))
        return value_reply(
            request,
            {
                "offsets": [
                    {
                        "partition": partition,
                        "after": offset.after.hex(),
                        "memberId": offset.member_id or None,
                        "committedAt": offset.at_ms,
                    }
                    for partition, offset in sorted(state.offsets.items())
                ],
                "undecided": sorted(state.undecided_partitions()),
            },
        )

    async def reset(self, request: Request) -> Reply:
        log = _log_of(request)
        body = members_of(request, members={"offsets"}, what="a reset of offsets")
        offsets = {
            name: None if after is None else _id(after, name)
            for name, after in _offsets(log, body).items()
        }
        await self._coordinator.reset(log, offsets)
        return EMPTY_REPLY

    async def show(self, request: Request) -> Reply:
        log = _log_of(request)
        state = await self._coordinator.committed(log)
        lags = {
            partition: (after, lag if self._may_see(request, log, partition) else None)
            for partition, (after, lag) in (await self._coordinator.lags(log, state)).items()
        }
        now_ms = self._coordinator.now_ms()
        return json_reply(group_body(request.parameters["g"], state, lags, now_ms=now_ms))

    def _may_see(self, request: Request, log: TopicId, partition: str) -> bool:
        """Whether the client may know what a partition of another namespace has."""
        topic = topic_in(log.namespace, partition).base
        return topic.namespace == log.namespace or self._may_read(request, topic)

    async def preferences(self, request: Request) -> Reply:
        return json_reply((await self._coordinator.preferences(_log_of(request))).to_form())

    async def set_preferences(self, request: Request) -> Reply:
        return await self._change_preferences(request, lambda _before: GroupPreferences())

    async def update_preferences(self, request: Request) -> Reply:
        return await self._change_preferences(request, lambda before: before)

    async def _change_preferences(
        self, request: Request, kept: Callable[[GroupPreferences], GroupPreferences]
    ) -> Reply:
        """`kept`: those that a change of the present ones begins with."""
        log = _log_of(request)
        given = members_of(request, members=MEMBERS, what="preferences of a group")
        GroupPreferences().with_changes(given)  # checked before the group is created
        changed = await self._coordinator.change_preferences(
            log, lambda before: kept(before).with_changes(given)
        )
        return json_reply(changed.to_form())

    async def delete(self, request: Request) -> Reply:
        log = _log_of(request)
        members_of(request, members=(), what="the deletion of a group")
        await self._coordinator.delete(log)
        return EMPTY_REPLY

    def _view_form(self, view: MemberView) -> dict[str, object]:
        settings = self._coordinator.settings
        return {
            "memberId": view.member_id,
            "memberEpoch": view.epoch,
            "groupEpoch": view.group_epoch,
            "assigned": view.assigned,
            "lost": [
                {"partition": each.partition, "id": each.after.hex(), "count": each.lost}
                for each in view.lost
            ],
            "heartbeatInterval": settings.heartbeat_interval_s,
            "sessionTimeout": settings.session_timeout_s,
            "preferences": view.preferences.to_form(),
        }


def group_log(request: Request) -> TopicId:
    """The log of the group that a request names. Raises: InvalidNameError."""
    group = check_name(request.parameters["g"], what="group")
    return group_log_of(check_name(request.parameters["ns"], what="namespace"), group)


def _log_of(request: Request) -> TopicId:
    read_query(request.query, parameters=())
    return group_log(request)


def _lag_form(lag: Lag | None, *, now_ms: int) -> dict[str, object]:
    return {
        "end": None if lag is None or lag.end is None else lag.end.hex(),
        "behindMs": None if lag is None else lag.behind_ms,
        "unread": None if lag is None else lag.unread.count,
        "isLowerBound": lag is not None and lag.unread.is_lower_bound,
        "unreadAgeMs": None if lag is None else lag.unread.age_ms(now_ms=now_ms),
    }


def group_body(
    name: str, state: GroupState, lags: Mapping[str, Progress], *, now_ms: int
) -> dict[str, object]:
    """The JSON of a group with these partitions."""
    return {
        "name": name,
        "state": _state_name(state),
        "epoch": state.epoch,
        "assignor": state.assignor or None,
        "members": [
            {
                "memberId": member.member_id,
                "memberEpoch": state.current[member.member_id].epoch,
                "instanceId": member.instance_id,
                "client": member.client,
                "topics": member.topics,
                "assigned": sorted(state.current[member.member_id].assigned),
                "target": state.target.get(member.member_id, ()),
            }
            for member in state.members.values()
        ],
        "partitions": [
            {
                "partition": partition,
                "memberId": state.owners.get(partition),
                "after": None if after is None else after.hex(),
                **_lag_form(lag, now_ms=now_ms),
            }
            for partition, (after, lag) in lags.items()
        ],
    }


def _state_name(state: GroupState) -> str:
    if not state.members:
        return "empty"
    assigned = {member: set(each.kept) for member, each in state.current.items()}
    is_stable = all(
        assigned[member] == set(state.target.get(member, ())) for member in state.members
    )
    return "stable" if is_stable else "reconciling"


def _join(log: TopicId, member_id: str, body: Mapping[str, object]) -> MemberRecord:
    assignor = body.get("assignor", DEFAULT_ASSIGNOR)
    if not isinstance(assignor, str) or assignor not in ASSIGNORS:
        raise BadRequestError(f"assignor is {', '.join(ASSIGNORS)}, not {shown(assignor)}")
    topics = _texts(body.get("topics"), what="topics", count_max=TOPICS_COUNT_MAX)
    if not topics:
        raise BadRequestError("topics has at least one topic to subscribe to")
    instance_id = body.get("instanceId")
    client = text_from_json(body.get("client", ""), "client")
    if len(client) > CLIENT_LENGTH_MAX:
        raise BadRequestError(f"client has {CLIENT_LENGTH_MAX} characters or less")
    return MemberRecord(
        member_id=member_id,
        topics=tuple(_topic(log, each) for each in topics),
        assignor=assignor,
        instance_id=None
        if instance_id is None
        else check_name(text_from_json(instance_id, "instanceId"), what="instanceId"),
        client=client,
    )


def _heartbeat(log: TopicId, member_id: str, epoch: int, body: Mapping[str, object]) -> Heartbeat:
    owned = _texts(body.get("owned"), what="owned", count_max=OFFSETS_COUNT_MAX)
    group_epoch = body.get("groupEpoch")
    if not isinstance(group_epoch, int) or isinstance(group_epoch, bool) or group_epoch < 0:
        raise BadRequestError(f"groupEpoch is that of the last reply, not {shown(group_epoch)}")
    return Heartbeat(
        member_id=member_id,
        epoch=epoch,
        group_epoch=group_epoch,
        owned=frozenset(_partition(log, each) for each in owned),
        begun=_begun(log, body),
    )


def _member_id(body: Mapping[str, object]) -> str:
    return check_name(text_from_json(body.get("memberId"), "memberId"), what="memberId")


def _epoch(body: Mapping[str, object], *, first: int) -> int:
    epoch = body.get("memberEpoch")
    if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < first:
        raise BadRequestError(f"memberEpoch is a whole number, {first} or more, not {shown(epoch)}")
    return epoch


def _offsets(log: TopicId, body: Mapping[str, object]) -> dict[str, object]:
    if not (offsets := _by_partition(log, body.get("offsets"), what="offsets")):
        raise BadRequestError("offsets has a message id for at least one partition")
    return offsets


def _begun(log: TopicId, body: Mapping[str, object]) -> dict[str, MessageId]:
    """The messages that a member has begun, by partition; none where the member does not say."""
    begun = _by_partition(log, body.get("begun", {}), what="begun")
    return {name: _id(message, name) for name, message in begun.items()}


def _by_partition(log: TopicId, value: object, *, what: str) -> dict[str, object]:
    if not isinstance(value, dict) or len(value) > OFFSETS_COUNT_MAX:
        raise BadRequestError(
            f"{what} is an object with a message id for each of {OFFSETS_COUNT_MAX} partitions or "
            f"less, not {shown(value)}"
        )
    return {_partition(log, name): id for name, id in value.items()}


def _id(value: object, partition: str) -> MessageId:
    return MessageId.from_hex(text_from_json(value, partition))


def _topic(log: TopicId, name: str) -> str:
    found = topic_in(log.namespace, name)
    if found.number is not None:
        raise InvalidNameError(f"topic {shown_name(name)} is a partition; name the topic alone")
    return name_in(log.namespace, found)


def _partition(log: TopicId, name: str) -> str:
    """In a group, each partition is named with its number, so that none has two names."""
    return name_in(log.namespace, partition_in(log.namespace, name))


def _texts(value: object, *, what: str, count_max: int) -> list[str]:
    if not isinstance(value, list) or len(value) > count_max:
        raise BadRequestError(f"{what} is {count_max} strings or less, not {shown(value)}")
    return [text_from_json(each, what) for each in value]
