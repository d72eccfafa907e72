"""The calls about share groups (protocol §3.12)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from tuff.flows_and_repeated_calls import Call, call
from tuff.protocol import operations
from tuff.protocol.attributes import NO_ATTRIBUTES
from tuff.protocol.ids import (
    MessageId,
    PartitionId,
    TopicId,
    TopicLike,
    check_name,
    names_of,
    partition_id,
)
from tuff.protocol.json_bodies import (
    array_from_json,
    attributes_from_json,
    object_from_json,
    payload_from_json,
    pointer_to_json,
    text_from_json,
    whole_number,
)
from tuff.protocol.leases import AttemptReport, LeaseAction, LeaseOutcome
from tuff.protocol.requests import Message
from tuff.read_calls import Start, start_to_json
from tuff.replies import ShareGroup
from tuff.requests_and_responses import Request, Response, nothing, reply, reply_object, reply_texts

ACKNOWLEDGED_COUNT_MAX = 1_000  # messages of one request
DELAY_S_MAX = 43_200.0  # seconds; a released message waits no longer

ShareOrder = Literal["none", "key"]


@dataclass(frozen=True, slots=True)
class ShareGroupId:
    """A share group of a topic or partition. Raises: InvalidNameError: the name is not legal."""

    topic: TopicId
    name: str

    def __post_init__(self) -> None:
        check_name(self.name, what="share group")

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the group in the path of an operation."""
        return (*names_of(self.topic), self.name)

    def __str__(self) -> str:
        return f"{self.name} of {self.topic}"


@dataclass(frozen=True, slots=True)
class Leased:
    """A message that this worker has: its partition, the token of its delivery, the number of this
    attempt, and how many of those before ended with their workers."""

    partition: PartitionId
    message: Message
    token: str
    attempts: int
    lost: int


class NotDone(NamedTuple):
    """Messages that were not acknowledged: other workers have them, or they would expire before the
    delay of their release is over."""

    lost: list[MessageId]
    expiring: list[MessageId]


def list_share_groups(topic: TopicLike) -> Call[list[str]]:
    return call(operations.LIST_SHARE_GROUPS, names_of(topic), reply_texts)


def get_share_group(group: ShareGroupId) -> Call[ShareGroup]:
    read = reply(ShareGroup, topic=group.topic)
    return call(operations.GET_SHARE_GROUP, group.parameters, read)


def create_share_group(
    group: ShareGroupId,
    *,
    start: Start,
    order: ShareOrder,
    tags: str | None,
    lease_s: float,
) -> Call[None]:
    body = {
        "start": start_to_json(start),
        "order": order,
        "tags": tags,
        "lease": lease_s,
    }
    return call(operations.CREATE_SHARE_GROUP, group.parameters, nothing, form=body)


def delete_share_group(group: ShareGroupId) -> Call[None]:
    return call(operations.DELETE_SHARE_GROUP, group.parameters, nothing)


def lease(group: ShareGroupId, *, count: int, lease_s: float, wait_s: float) -> Call[list[Leased]]:
    """Take messages of one partition. If the reply is lost, they are given out again when the lease
    ends."""

    def read(response: Response) -> list[Leased]:
        body = reply_object(response)
        partition = partition_id(group.topic.namespace, text_from_json(body["partition"]))
        messages = map(object_from_json, array_from_json(body["messages"]))
        return [_leased(partition, each) for each in messages]

    request = Request(
        operation=operations.LEASE_MESSAGES,
        parameters=group.parameters,
        query={"wait": wait_s or None},
        body={"count": count, "lease": lease_s},
        wait_s=wait_s,
    )
    return Call(request, read)


def acknowledge(
    group: ShareGroupId,
    messages: Sequence[Leased],
    action: LeaseAction,
    *,
    attempts: Mapping[MessageId, AttemptReport] = MappingProxyType({}),
    delay_s: float | None = None,
    lease_s: float | None = None,
) -> Call[NotDone]:
    """Do this with up to 1,000 messages of one lease; `attempts` for the actions release and
    renew."""
    request = _acknowledgement(group, messages, action, attempts, delay=delay_s, lease=lease_s)
    return Call(request, _read_not_done)


def acknowledge_in(
    group: ShareGroupId, messages: Sequence[Leased], action: LeaseAction, pointer: int
) -> Call[None]:
    """Accept or reject messages of one lease as part of the transaction with this pointer;
    LeaseLostError if another worker has got one of them."""
    request = _acknowledgement(
        group, messages, action, {}, transactionWritePointer=pointer_to_json(pointer)
    )
    return Call(request, nothing)


def _acknowledgement(
    group: ShareGroupId,
    messages: Sequence[Leased],
    action: LeaseAction,
    attempts: Mapping[MessageId, AttemptReport],
    *,
    transactionWritePointer: str | None = None,  # noqa: N803 - the name in the body
    **of_each: float | None,
) -> Request:
    more = {name: value for name, value in of_each.items() if value is not None}
    forms: list[dict[str, object]] = []
    for each in messages:
        attempt = attempts.get(each.message.id)
        said = {} if attempt is None else {"attempt": attempt}
        one = {"id": each.message.id.hex(), "token": each.token, "action": action}
        forms.append({**one, **said, **more})
    body: dict[str, object] = {"messages": forms}
    if transactionWritePointer is not None:
        body["transactionWritePointer"] = transactionWritePointer
    operation = operations.ACKNOWLEDGE_MESSAGES
    parameters = (*names_of(messages[0].partition), group.name)
    return Request(operation=operation, parameters=parameters, body=body)


def _leased(partition: PartitionId, form: Mapping[str, object]) -> Leased:
    attributes = attributes_from_json(form) or NO_ATTRIBUTES
    message = Message(
        id=MessageId.from_hex(text_from_json(form["id"])),
        payload=payload_from_json(form["payload"]),
        key=attributes.key,
        tags=tuple(attributes.tags),
        headers=tuple(attributes.headers),
    )
    attempts = whole_number(form["attempts"], what="attempts")
    lost = whole_number(form["lost"], what="lost")
    return Leased(partition, message, text_from_json(form["token"]), attempts, lost)


def _read_not_done(response: Response) -> NotDone:
    found = [object_from_json(each) for each in array_from_json(reply_object(response)["results"])]
    lost, expiring = (
        [
            MessageId.from_hex(text_from_json(each["id"]))
            for each in found
            if each["result"] == result
        ]
        for result in (LeaseOutcome.LEASE_LOST, LeaseOutcome.EXPIRES)
    )
    return NotDone(lost, expiring)
