"""The HTTP routes of consumer groups (protocol §3.11)."""

from collections.abc import Mapping

from messaging.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR
from messaging.groups.coordinator import (
    GroupCoordinator,
    MemberView,
    PartitionLag,
    group_log_of,
)
from messaging.groups.decisions import Heartbeat
from messaging.groups.state import LEFT_STATIC, GroupState, MemberRecord
from tuff.protocol.errors import BadRequestError, InvalidNameError
from tuff.protocol.exchange import (
    EMPTY_REPLY,
    Reply,
    Request,
    Route,
    json_reply,
    read_object,
    read_query,
)
from tuff.protocol.ids import MessageId, TopicId, check_name, shown_name, topic_id
from tuff.protocol.json_forms import pointer_from_json, shown

GROUPS_PATH = "/v1/namespaces/{ns}/groups"
GROUP_PATH = f"{GROUPS_PATH}/{{g}}"
LEFT = -1  # the epoch of a heartbeat that leaves the group
TOPICS_COUNT_MAX = 1_000  # of one member
OFFSETS_COUNT_MAX = 10_000  # of one commit
CLIENT_LENGTH_MAX = 200  # characters

_HEARTBEAT_MEMBERS = frozenset(
    {"memberId", "memberEpoch", "groupEpoch", "owned", "topics", "assignor", "instanceId", "client"}
)
_JOIN_ONLY = frozenset({"topics", "assignor", "instanceId", "client"})
_LATER_ONLY = frozenset({"groupEpoch", "owned"})
_COMMIT_MEMBERS = frozenset({"memberId", "memberEpoch", "offsets", "transactionWritePointer"})


def routes(coordinator: GroupCoordinator) -> list[Route]:
    """The HTTP routes of consumer groups."""
    handlers = _Routes(coordinator)
    return [
        Route("POST", f"{GROUP_PATH}/heartbeat", handlers.heartbeat),
        Route("POST", f"{GROUP_PATH}/offsets", handlers.commit),
        Route("GET", f"{GROUP_PATH}/offsets", handlers.committed),
        Route("POST", f"{GROUP_PATH}/offsets/reset", handlers.reset),
        Route("GET", GROUP_PATH, handlers.show),
        Route("DELETE", GROUP_PATH, handlers.delete),
        Route("GET", GROUPS_PATH, handlers.list),
    ]


class _Routes:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def heartbeat(self, request: Request) -> Reply:
        log = _log_of(request)
        body = read_object(
            request.body, request.content_type, members=_HEARTBEAT_MEMBERS, what="a heartbeat"
        )
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
            return json_reply({"memberId": member_id, "memberEpoch": epoch})
        if epoch == 0:
            view = await self._coordinator.join(log, _join(member_id, body))
        else:
            view = await self._coordinator.heartbeat(log, _heartbeat(log, member_id, epoch, body))
        return json_reply(self._view_form(view))

    async def commit(self, request: Request) -> Reply:
        log = _log_of(request)
        body = read_object(
            request.body, request.content_type, members=_COMMIT_MEMBERS, what="a commit of offsets"
        )
        pointer = body.get("transactionWritePointer")
        offsets = _offsets(log, body)
        await self._coordinator.commit(
            log,
            _member_id(body),
            _epoch(body, first=1),
            {name: MessageId.from_hex(_text(after, what=name)) for name, after in offsets.items()},
            pointer=None
            if pointer is None
            else pointer_from_json(pointer, what="transactionWritePointer"),
            caller=request.caller,
        )
        return EMPTY_REPLY

    async def committed(self, request: Request) -> Reply:
        state = await self._coordinator.committed(_log_of(request))
        return json_reply(
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
            }
        )

    async def reset(self, request: Request) -> Reply:
        log = _log_of(request)
        body = read_object(
            request.body, request.content_type, members={"offsets"}, what="a reset of offsets"
        )
        offsets = {
            name: None if after is None else MessageId.from_hex(_text(after, what=name))
            for name, after in _offsets(log, body).items()
        }
        await self._coordinator.reset(log, offsets)
        return EMPTY_REPLY

    async def show(self, request: Request) -> Reply:
        log = _log_of(request)
        state = await self._coordinator.committed(log)
        lags = await self._coordinator.lags(log, state)
        return json_reply(_group_form(request.parameters["g"], state, lags))

    async def delete(self, request: Request) -> Reply:
        log = _log_of(request)
        read_object(request.body, request.content_type, members=(), what="the deletion of a group")
        await self._coordinator.delete(log)
        return EMPTY_REPLY

    async def list(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        namespace = check_name(request.parameters["ns"], what="namespace")
        return json_reply(self._coordinator.names(namespace))

    def _view_form(self, view: MemberView) -> dict[str, object]:
        settings = self._coordinator.settings
        return {
            "memberId": view.member_id,
            "memberEpoch": view.epoch,
            "groupEpoch": view.group_epoch,
            "assigned": view.assigned,
            "heartbeatInterval": settings.heartbeat_interval_s,
            "sessionTimeout": settings.session_timeout_s,
        }


def group_log(request: Request) -> TopicId:
    """The log of the group that a request names. Raises: InvalidNameError."""
    group = check_name(request.parameters["g"], what="group")
    return group_log_of(check_name(request.parameters["ns"], what="namespace"), group)


def _log_of(request: Request) -> TopicId:
    read_query(request.query, parameters=())
    return group_log(request)


def _group_form(name: str, state: GroupState, lags: list[PartitionLag]) -> dict[str, object]:
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
                "partition": lag.partition,
                "memberId": lag.member_id,
                "after": None if lag.after is None else lag.after.hex(),
                "end": None if lag.end is None else lag.end.hex(),
                "behindMs": lag.behind_ms,
            }
            for lag in lags
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


def _join(member_id: str, body: Mapping[str, object]) -> MemberRecord:
    assignor = body.get("assignor", DEFAULT_ASSIGNOR)
    if not isinstance(assignor, str) or assignor not in ASSIGNORS:
        raise BadRequestError(f"assignor is {', '.join(ASSIGNORS)}, not {shown(assignor)}")
    topics = _texts(body.get("topics"), what="topics", count_max=TOPICS_COUNT_MAX)
    if not topics:
        raise BadRequestError("topics has at least one topic to subscribe to")
    instance_id = body.get("instanceId")
    client = _text(body.get("client", ""), what="client")
    if len(client) > CLIENT_LENGTH_MAX:
        raise BadRequestError(f"client has {CLIENT_LENGTH_MAX} characters or less")
    return MemberRecord(
        member_id=member_id,
        topics=tuple(check_name(each, what="topic") for each in topics),
        assignor=assignor,
        instance_id=None
        if instance_id is None
        else check_name(_text(instance_id, what="instanceId"), what="instanceId"),
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
    )


def _member_id(body: Mapping[str, object]) -> str:
    return check_name(_text(body.get("memberId"), what="memberId"), what="memberId")


def _epoch(body: Mapping[str, object], *, first: int) -> int:
    epoch = body.get("memberEpoch")
    if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < first:
        raise BadRequestError(f"memberEpoch is a whole number, {first} or more, not {shown(epoch)}")
    return epoch


def _offsets(log: TopicId, body: Mapping[str, object]) -> Mapping[str, object]:
    offsets = body.get("offsets")
    if not isinstance(offsets, dict) or not offsets:
        raise BadRequestError(
            "offsets is an object with a message id for each partition, and has at least one, not "
            f"{shown(offsets)}"
        )
    if len(offsets) > OFFSETS_COUNT_MAX:
        raise BadRequestError(f"offsets has {OFFSETS_COUNT_MAX} partitions or less")
    return {_partition(log, name): after for name, after in offsets.items()}


def _partition(log: TopicId, name: str) -> str:
    """Raises: InvalidNameError: it names no single partition. In a group, each is named with its
    number, so that no partition has two names."""
    found = topic_id(log.namespace, name)
    if found.number is None:
        raise InvalidNameError(
            f"{shown_name(name)} names no partition; partition 0 of orders is orders:0"
        )
    return name


def _text(value: object, *, what: str) -> str:
    if not isinstance(value, str):
        raise BadRequestError(f"{what} is a text, not {shown(value)}")
    return value


def _texts(value: object, *, what: str, count_max: int) -> list[str]:
    if not isinstance(value, list) or len(value) > count_max:
        raise BadRequestError(f"{what} is a list of {count_max} texts or less, not {shown(value)}")
    return [_text(each, what=what) for each in value]
