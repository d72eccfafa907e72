"""Calls of jobs that read a topic in parts, over a long time (protocol §3.7 to §3.9)."""

from collections.abc import Mapping
from urllib.parse import quote

from tuff.calls import (
    Call,
    Request,
    Response,
    Start,
    json_array,
    json_body,
    json_object,
    maybe_id,
    nothing,
    query,
    start_form,
    text,
    topic_path,
)
from tuff.protocol.errors import BadRequestError
from tuff.protocol.forms import whole_number
from tuff.protocol.ids import MessageId
from tuff.protocol.media import shown
from tuff.protocol.names import TopicId, check_name
from tuff.replies import Hold, NamedPosition, Split, Splits

Place = MessageId | str


def splits(topic: TopicId, count: int, *, start: Place | None, end: Place | None) -> Call[Splits]:
    parameters = query(n=count, start=_hex(start), end=_hex(end))

    def read(response: Response) -> Splits:
        body = json_object(response)
        parts = tuple(map(_read_split, json_array(body["splits"])))
        return Splits(whole_number(body["generation"], what="generation"), parts)

    path = f"{topic_path(topic)}/splits{parameters}"
    return Call(Request(method="GET", path=path, is_read=True), read)


def newest_place(topic: TopicId) -> Call[MessageId]:
    """A place behind everything that was published by now, and before what will be."""
    path = f"{topic_path(topic)}/messages?from=latest&limit=1"
    request = Request(method="GET", path=path, is_read=True)
    return Call(request, lambda response: MessageId.from_hex(response.headers["tuff-next"]))


def truncate(topic: TopicId, before: Start, *, newest: MessageId) -> Call[MessageId | None]:
    """`newest`: what `newest_place` said. A place to come would mean all that is there whenever the
    request arrives, so that repeating it took what was published since; that one never does."""
    form = start_form(before)
    if _is_ahead(form, newest):
        form = newest.hex()
    body = json_body({"before": form})
    path = f"{topic_path(topic)}/truncate"
    request = Request(method="POST", path=path, body=body, is_repeatable=True)
    return Call(request, lambda response: maybe_id(json_object(response)["earliest"]))


def set_hold(topic: TopicId, name: str, start: Start, *, max_age_s: float) -> Call[Hold]:
    body = json_body({"from": start_form(start), "maxAge": max_age_s})
    path = _named(topic, "holds", name)
    request = Request(method="PUT", path=path, body=body, is_repeatable=True)
    return Call(request, lambda response: _read_hold(json_object(response)))


def list_holds(topic: TopicId) -> Call[list[Hold]]:
    request = Request(method="GET", path=f"{topic_path(topic)}/holds", is_read=True)
    return Call(request, lambda response: [_read_hold(one) for one in _objects(response, "holds")])


def delete_hold(topic: TopicId, name: str) -> Call[None]:
    return Call(Request(method="DELETE", path=_named(topic, "holds", name)), nothing)


def set_position(topic: TopicId, name: str, position: Place) -> Call[NamedPosition]:
    body = json_body({"position": _hex(position)})
    path = _named(topic, "positions", name)
    request = Request(method="PUT", path=path, body=body, is_repeatable=True)
    return Call(request, lambda response: _read_position(json_object(response)))


def get_position(topic: TopicId, name: str) -> Call[NamedPosition]:
    request = Request(method="GET", path=_named(topic, "positions", name), is_read=True)
    return Call(request, lambda response: _read_position(json_object(response)))


def list_positions(topic: TopicId) -> Call[list[NamedPosition]]:
    request = Request(method="GET", path=f"{topic_path(topic)}/positions", is_read=True)
    return Call(
        request, lambda response: [_read_position(one) for one in _objects(response, "positions")]
    )


def delete_position(topic: TopicId, name: str) -> Call[None]:
    return Call(Request(method="DELETE", path=_named(topic, "positions", name)), nothing)


def _named(topic: TopicId, kind: str, name: str) -> str:
    return f"{topic_path(topic)}/{kind}/{quote(check_name(name, what='name'))}"


def _objects(response: Response, member: str) -> list[Mapping[str, object]]:
    return [_object(item) for item in json_array(json_object(response)[member])]


def _object(item: object) -> Mapping[str, object]:
    if not isinstance(item, dict):
        raise BadRequestError(f"a JSON object was expected, not {shown(item)}")
    return item


def _read_hold(body: Mapping[str, object]) -> Hold:
    return Hold(
        name=text(body["name"]),
        first=MessageId.from_hex(text(body["from"])),
        set_at_ms=whole_number(body["setAt"], what="setAt"),
        expires_at_ms=whole_number(body["expiresAt"], what="expiresAt"),
    )


def _read_position(body: Mapping[str, object]) -> NamedPosition:
    return NamedPosition(
        name=text(body["name"]),
        position=MessageId.from_hex(text(body["position"])),
        generation=whole_number(body["generation"], what="generation"),
        updated_at_ms=whole_number(body["updatedAt"], what="updatedAt"),
    )


def _is_ahead(form: str | int, newest: MessageId) -> bool:
    """Whether a place as JSON has it lies behind that one."""
    if isinstance(form, str):
        return MessageId.from_hex(form) > newest
    return form > newest.publish_timestamp_ms


def _hex(place: Place | None) -> str | None:
    return place.hex() if isinstance(place, MessageId) else place


def _read_split(item: object) -> Split:
    if not isinstance(item, dict) or (end := maybe_id(item["end"])) is None:
        raise BadRequestError(f"a part has a start and an end, and this one is {shown(item)}")
    return Split(maybe_id(item["start"]), end)
