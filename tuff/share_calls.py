"""The calls about share groups (protocol §3.12)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal
from urllib.parse import quote

from tuff.calls import (
    Call,
    Request,
    Response,
    checked_topic,
    get,
    json_array,
    json_object,
    nothing,
    query,
    reply_object,
    reply_texts,
    text,
    topic_path,
)
from tuff.protocol.attributes import NO_ATTRIBUTES
from tuff.protocol.ids import MessageId, TopicId, check_name
from tuff.protocol.json_forms import (
    attributes_from_json,
    payload_from_json,
    pointer_to_json,
    whole_number,
)
from tuff.protocol.requests import Message
from tuff.replies import ShareGroup

ACKNOWLEDGED_COUNT_MAX = 1_000  # messages of one request
DELAY_S_MAX = 43_200.0  # seconds; a released message waits no longer

ShareOrder = Literal["none", "key"]
ShareStart = MessageId | int | str  # earliest, latest, an id in hex, or a publish time in ms


class Action(StrEnum):
    """What a worker does with a message that it leased."""

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    RENEW = "renew"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupId:
    """A share group of a topic or partition. Raises: InvalidNameError: the name is not legal."""

    topic: TopicId
    name: str

    def __post_init__(self) -> None:
        checked_topic(self.topic)
        check_name(self.name, what="share group")

    @property
    def path(self) -> str:
        """The path of the group, escaped."""
        return f"{_groups_path(self.topic)}/{quote(self.name)}"

    def __str__(self) -> str:
        return f"{self.name} of {self.topic}"


@dataclass(frozen=True, slots=True)
class Leased:
    """A message that this worker has: the token of its delivery, and how often it was given out."""

    message: Message
    token: str
    attempts: int


def list_share_groups(topic: TopicId) -> Call[list[str]]:
    return get(_groups_path(checked_topic(topic)), reply_texts)


def get_share_group(group: ShareGroupId) -> Call[ShareGroup]:
    return get(group.path, lambda response: _share_group(group, reply_object(response)))


def create_share_group(
    group: ShareGroupId, *, start: ShareStart, order: ShareOrder, lease_s: float
) -> Call[None]:
    body = {
        "start": start.hex() if isinstance(start, MessageId) else start,
        "order": order,
        "lease": lease_s,
    }
    request = Request(method="PUT", path=group.path, form=body, is_repeatable=True)
    return Call(request, nothing)


def delete_share_group(group: ShareGroupId) -> Call[None]:
    return Call(Request(method="DELETE", path=group.path), nothing)


def lease(group: ShareGroupId, *, count: int, lease_s: float, wait_s: float) -> Call[list[Leased]]:
    """Take messages. If the reply is lost, they are given out again when the lease ends."""
    request = Request(
        method="POST",
        path=f"{group.path}/lease{query(wait=wait_s or None)}",
        form={"count": count, "lease": lease_s},
        wait_s=wait_s,
        is_repeatable=True,
    )
    return Call(request, _read_leased)


def acknowledge(
    group: ShareGroupId,
    messages: Sequence[Leased],
    action: Action,
    *,
    delay_s: float | None = None,
    lease_s: float | None = None,
) -> Call[list[MessageId]]:
    """Do this with up to 1,000 messages; returns the ids of those whose lease is lost."""
    request = _acknowledgement(group, messages, action, delay=delay_s, lease=lease_s)
    return Call(request, _read_lost)


def acknowledge_in(
    group: ShareGroupId, messages: Sequence[Leased], action: Action, pointer: int
) -> Call[None]:
    """Accept or reject messages as part of the transaction with this pointer; LeaseLostError if
    another worker has got one of them."""
    request = _acknowledgement(
        group, messages, action, transactionWritePointer=pointer_to_json(pointer)
    )
    return Call(request, nothing)


def _acknowledgement(
    group: ShareGroupId,
    messages: Sequence[Leased],
    action: Action,
    *,
    transactionWritePointer: str | None = None,  # noqa: N803 - the name in the body
    **of_each: float | None,
) -> Request:
    more = {name: value for name, value in of_each.items() if value is not None}
    body: dict[str, object] = {
        "messages": [
            {"id": each.message.id.hex(), "token": each.token, "action": action, **more}
            for each in messages
        ]
    }
    if transactionWritePointer is not None:
        body["transactionWritePointer"] = transactionWritePointer
    path = f"{group.path}/acknowledge"
    return Request(method="POST", path=path, form=body, is_repeatable=True)


def _read_leased(response: Response) -> list[Leased]:
    found = [json_object(each) for each in json_array(reply_object(response)["messages"])]
    return [_leased(each) for each in found]


def _leased(form: Mapping[str, object]) -> Leased:
    attributes = attributes_from_json(form) or NO_ATTRIBUTES
    message = Message(
        id=MessageId.from_hex(text(form["id"])),
        payload=payload_from_json(form["payload"]),
        key=attributes.key,
        tags=tuple(attributes.tags),
        headers=tuple(attributes.headers),
    )
    attempts = whole_number(form["attempts"], what="attempts")
    return Leased(message, text(form["token"]), attempts)


def _read_lost(response: Response) -> list[MessageId]:
    found = [json_object(each) for each in json_array(reply_object(response)["results"])]
    return [
        MessageId.from_hex(text(each["id"])) for each in found if each["result"] == "lease_lost"
    ]


def _share_group(group: ShareGroupId, form: Mapping[str, object]) -> ShareGroup:
    oldest, end, lease_s = form["oldest"], form["end"], form["lease"]
    assert isinstance(lease_s, float | int)
    counts = ("available", "blocked", "leased", "waiting", "undecided", "done")
    return ShareGroup(
        topic=group.topic,
        name=text(form["name"]),
        start=text(form["start"]),
        order=text(form["order"]),
        lease=lease_s,
        **{each: whole_number(form[each], what=each) for each in counts},
        oldest=None if oldest is None else MessageId.from_hex(text(oldest)),
        end=None if end is None else MessageId.from_hex(text(end)),
        behind_ms=whole_number(form["behindMs"], what="behindMs"),
    )


def _groups_path(topic: TopicId) -> str:
    return f"{topic_path(topic)}/share-groups"
