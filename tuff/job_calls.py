"""Calls of jobs that read a topic in parts, over a long time (protocol §3.7)."""

from tuff.calls import Call, Request, Response, json_array, json_object, maybe_id, query, topic_path
from tuff.protocol.errors import BadRequestError
from tuff.protocol.forms import whole_number
from tuff.protocol.ids import MessageId
from tuff.protocol.media import shown
from tuff.protocol.names import TopicId
from tuff.replies import Split, Splits

Place = MessageId | str


def splits(topic: TopicId, count: int, *, start: Place | None, end: Place | None) -> Call[Splits]:
    parameters = query(n=count, start=_hex(start), end=_hex(end))

    def read(response: Response) -> Splits:
        body = json_object(response)
        parts = tuple(map(_read_split, json_array(body["splits"])))
        return Splits(whole_number(body["generation"], what="generation"), parts)

    path = f"{topic_path(topic)}/splits{parameters}"
    return Call(Request(method="GET", path=path, is_read=True), read)


def _hex(place: Place | None) -> str | None:
    return place.hex() if isinstance(place, MessageId) else place


def _read_split(item: object) -> Split:
    if not isinstance(item, dict) or (end := maybe_id(item["end"])) is None:
        raise BadRequestError(f"a part has a start and an end, and this one is {shown(item)}")
    return Split(maybe_id(item["start"]), end)
