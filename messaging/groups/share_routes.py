"""The HTTP routes of share groups (protocol §3.12)."""

from collections.abc import Mapping

from kernel.requests_and_replies import (
    EMPTY_REPLY,
    Reply,
    Request,
    Route,
    json_reply,
    members_of,
    value_reply,
)
from messaging.groups.share_coordinator import Given, LeaseRequest, ShareGroups, ShareGroupView
from messaging.groups.share_decisions import (
    LEASE_MS_DEFAULT,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    Acknowledgement,
    ProcessingOrder,
    Token,
)
from messaging.log.topics import topic_of
from messaging.model.parameters import id_or_time_from, wait_in
from tuff.protocol import operations
from tuff.protocol.attributes import TagFilter
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MessageId, check_name
from tuff.protocol.json_bodies import (
    attributes_to_json,
    check_object,
    choice_from_json,
    payload_to_json,
    pointer_from_json,
    seconds_from_json,
    shown,
    whole_number,
)
from tuff.protocol.leases import AttemptReport, LeaseAction

COUNT_MAX = 1_000  # messages of one request
COUNT_DEFAULT = 10  # messages; what a consumer has in hand expires if it is slow
BYTES_MAX = 1 << 30  # bytes that a request can name; the server gives less

_PROPERTIES = frozenset({"start", "order", "tags", "lease"})
_LEASE_MEMBERS = frozenset({"count", "maxBytes", "lease"})
_ACKNOWLEDGE_MEMBERS = frozenset({"messages", "transactionWritePointer"})
_MESSAGE_MEMBERS = frozenset({"id", "token", "action", "attempt", "delay", "lease"})


def routes(groups: ShareGroups) -> list[Route]:
    """The HTTP routes of share groups."""
    handlers = _Routes(groups)
    return [
        Route(operations.LEASE_MESSAGES, handlers.lease),
        Route(operations.ACKNOWLEDGE_MESSAGES, handlers.acknowledge),
        Route(operations.CREATE_SHARE_GROUP, handlers.create),
        Route(operations.GET_SHARE_GROUP, handlers.show),
        Route(operations.DELETE_SHARE_GROUP, handlers.delete),
        Route(operations.LIST_SHARE_GROUPS, handlers.list),
    ]


class _Routes:
    def __init__(self, groups: ShareGroups) -> None:
        self._groups = groups

    async def create(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        body = members_of(request, members=_PROPERTIES, what="a share group")
        lease_ms = _milliseconds(body, "lease", least=LEASE_MS_MIN)
        await self._groups.create(
            topic,
            name,
            start=_start(body.get("start", "latest")),
            order=choice_from_json(
                ProcessingOrder, body.get("order", ProcessingOrder.NONE), what="order"
            ),
            tags=_tags(body.get("tags")),
            lease_ms=lease_ms or LEASE_MS_DEFAULT,
        )
        return EMPTY_REPLY

    async def list(self, request: Request) -> Reply:
        return json_reply(self._groups.names(topic_of(request)))

    async def show(self, request: Request) -> Reply:
        view = await self._groups.show(topic_of(request), _name(request))
        return json_reply(_view_form(view))

    async def delete(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        members_of(request, members=(), what="the deletion of a group")
        await self._groups.delete(topic, name)
        return EMPTY_REPLY

    async def lease(self, request: Request) -> Reply:
        topic, name = topic_of(request, parameters={"wait"}), _name(request)
        body = members_of(request, members=_LEASE_MEMBERS, what="a lease request", has_query=True)
        bytes_max = body.get("maxBytes")
        asked = LeaseRequest(
            count=_number(body.get("count", COUNT_DEFAULT), COUNT_MAX, what="count"),
            bytes_max=None if bytes_max is None else _number(bytes_max, BYTES_MAX, what="maxBytes"),
            lease_ms=_milliseconds(body, "lease", least=LEASE_MS_MIN),
        )
        wait_s = wait_in(dict(request.query))
        leased = await self._groups.lease(topic, name, asked, wait_s=wait_s)
        return value_reply(
            request,
            {
                "partition": leased.partition.base.partition(leased.partition.number or 0).name,
                "messages": [_given_form(each) for each in leased.messages],
            },
        )

    async def acknowledge(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        body = members_of(request, members=_ACKNOWLEDGE_MEMBERS, what="an acknowledgement")
        pointer = body.get("transactionWritePointer")
        if pointer is not None:
            pointer = pointer_from_json(pointer, what="transactionWritePointer")
        asked = _acknowledgements(body.get("messages"), is_transactional=pointer is not None)
        outcomes = await self._groups.acknowledge(
            topic, name, asked, pointer=pointer, caller=request.caller
        )
        results = [
            {"id": each.id.hex(), "result": outcome}
            for each, outcome in zip(asked, outcomes, strict=True)
        ]
        return value_reply(request, {"results": results})


def _name(request: Request) -> str:
    return check_name(request.parameters["share"], what="share group")


def _start(value: object) -> MessageId | int | str:
    if value in ("earliest", "latest"):
        return str(value)
    if isinstance(value, int) or (isinstance(value, str) and len(value) == 40):
        return id_or_time_from(value, what="start")
    raise BadRequestError(
        f"start is earliest, latest, a message id, or ms since the epoch, not {shown(value)}"
    )


def _tags(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRequestError(f"tags is a text such as a,b|c, not {shown(value)}")
    TagFilter.parse(value)
    return value


def _number(value: object, most: int, *, what: str) -> int:
    number = whole_number(value, what=what)
    if not 1 <= number <= most:
        raise BadRequestError(f"{what} is 1 to {most}, not {number}")
    return number


def _milliseconds(members: Mapping[str, object], name: str, *, least: int) -> int | None:
    """The duration that a member names in seconds; None if there is none."""
    value = members.get(name)
    if value is None:
        return None
    # More than the maximum is refused below, and 1e308 has no ms.
    ms = round(min(seconds_from_json(value, what=name), LEASE_MS_MAX) * 1000)
    if not least <= ms <= LEASE_MS_MAX:
        raise BadRequestError(
            f"{name} is {least / 1000:g} to {LEASE_MS_MAX // 1000} seconds, not {shown(value)}"
        )
    return ms


def _acknowledgements(value: object, *, is_transactional: bool) -> list[Acknowledgement]:
    if not isinstance(value, list) or not 1 <= len(value) <= COUNT_MAX:
        raise BadRequestError(f"messages is a list of 1 to {COUNT_MAX} messages")
    found = [_acknowledgement(each) for each in value]
    if len({each.id for each in found}) < len(found):
        raise BadRequestError("messages names a message twice; name each once")
    done = (LeaseAction.ACCEPT, LeaseAction.REJECT)
    if is_transactional and any(each.action not in done for each in found):
        raise BadRequestError(
            "within a transaction messages are accepted or rejected; release or renew them without"
        )
    return found


def _acknowledgement(value: object) -> Acknowledgement:
    members = check_object(value, members=_MESSAGE_MEMBERS, what="a message to acknowledge")
    action = choice_from_json(LeaseAction, members.get("action", LeaseAction.ACCEPT), what="action")
    for name, of_action in (("delay", LeaseAction.RELEASE), ("lease", LeaseAction.RENEW)):
        if name in members and action != of_action:
            raise BadRequestError(f"{name} is only for the action {of_action}, not for {action}")
    attempt = members.get("attempt")
    if attempt is not None:
        attempt = choice_from_json(AttemptReport, attempt, what="attempt")
    if attempt is not None and action not in (LeaseAction.RELEASE, LeaseAction.RENEW):
        raise BadRequestError(f"attempt is only for the actions release and renew, not {action}")
    message_id, token = members.get("id"), members.get("token")
    if not isinstance(message_id, str) or not isinstance(token, str):
        raise BadRequestError("a message to acknowledge has an id and a token, as they were leased")
    ms = _milliseconds(members, "delay", least=0)
    if action == LeaseAction.RENEW:
        ms = _milliseconds(members, "lease", least=LEASE_MS_MIN)
    return Acknowledgement(
        id=MessageId.from_hex(message_id).to_bytes(),
        token=Token.parse(token),
        action=action,
        ms=ms,
        attempt=attempt,
    )


def _given_form(given: Given) -> dict[str, object]:
    """As a message of a poll reply, schema 2, and what the lease adds."""
    lease = given.lease
    return {
        "id": lease.id.hex(),
        "timestamp": MessageId.from_bytes(lease.id).publish_timestamp_ms,
        "payload": payload_to_json(given.payload),
        **attributes_to_json(given.attributes),
        "token": str(lease.token),
        "attempts": lease.attempts,
        "lost": lease.lost,
        "leaseEnds": lease.until_ms,
    }


def _view_form(view: ShareGroupView) -> dict[str, object]:
    return {
        "name": view.name,
        "start": view.properties.start,
        "order": view.properties.order,
        "tags": view.properties.tags,
        "lease": view.properties.lease_ms / 1000,
        **view.counts,
        "lowMark": view.low.hex(),
        "oldest": None if view.oldest is None else view.oldest.hex(),
        "end": None if view.end is None else view.end.hex(),
        "behindMs": view.behind_ms,
    }
