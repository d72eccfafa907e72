"""Media types, and the way from a request's body and query to checked members (protocol §1)."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import NoReturn

import orjson

from tuff.protocol.errors import BadRequestError, UnsupportedMediaTypeError


class MediaType(Enum):
    """The forms of messages: two of them also for what is sent, the third for replies alone."""

    JSON = "application/json"
    AVRO = "avro/binary"
    ARROW = "application/vnd.apache.arrow.stream"


BODY_TYPES = (MediaType.JSON, MediaType.AVRO)
POLL_TYPES = (MediaType.JSON, MediaType.AVRO, MediaType.ARROW)
BROWSE_TYPES = (MediaType.JSON, MediaType.ARROW)


PROBLEM_TYPE = "application/problem+json"
# A backup's own type, and the one that a client gets bytes for which knows no type of a vendor.
BACKUP_TYPES = ("application/vnd.tuff.backup", "application/octet-stream")


TYPES_COUNT_MAX = 64  # header values that are remembered; a client sends one


@lru_cache(TYPES_COUNT_MAX)
def _media_type(content_type: str) -> MediaType | None:
    essence = content_type.split(";")[0].strip().lower()
    return next((each for each in BODY_TYPES if each.value == essence), None)


def body_type(content_type: str | None, body: bytes) -> MediaType:
    """In which form a message endpoint's body is. Without a body the type says nothing, unless it
    is Avro: some clients send one of their own with an empty POST.

    Raises:
        UnsupportedMediaTypeError: a body of another type, or of none.
    """
    named = _media_type(content_type or "")
    if named is not None:
        return named
    if not body:
        return MediaType.JSON
    essence = (content_type or "").split(";")[0].strip().lower()
    raise UnsupportedMediaTypeError(
        f"the content type is {essence or 'missing'}; send {MediaType.JSON.value}, or to the "
        f"message endpoints {MediaType.AVRO.value}"
    )


@lru_cache(TYPES_COUNT_MAX)
def reply_type(
    accept: str | None,
    *,
    asked_in: MediaType,
    offered: tuple[MediaType, ...] = BODY_TYPES,
) -> MediaType:
    """The form of the reply: the request's, unless `Accept` names one that is offered."""
    names = tuple(media_type.value for media_type in offered)
    return MediaType(best_type(accept, default=asked_in.value, offered=names))


def best_type(accept: str | None, *, default: str, offered: Collection[str]) -> str:
    """Which of the types that are `offered` suits `Accept` best; `default` where it names none."""
    best, best_quality = default, 0.0
    for part in (accept or "").split(","):
        essence, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = _quality(parameters)
        if essence in offered and quality > best_quality:
            best, best_quality = essence, quality
    return best


def _quality(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        if re.fullmatch(r"q=[01](\.[0-9]{0,3})?", parameter):
            return float(parameter[2:])
    return 1.0


def require_json(content_type: str | None, body: bytes) -> None:
    """
    Raises:
        UnsupportedMediaTypeError: there is a body that is not declared to be JSON.
        BadRequestError: there is none, and it is declared to be Avro.
    """
    given = body_type(content_type, body)
    if given is MediaType.JSON:
        return
    if not body:
        raise BadRequestError(
            f"the body is empty, and the content type is {given.value}, in which that is a "
            f"datum cut short; send {MediaType.JSON.value}, or no content type"
        )
    raise UnsupportedMediaTypeError(
        f"the content type is {given.value}; this endpoint reads {MediaType.JSON.value} only"
    )


def parse_json(body: bytes) -> object:
    """An integer of more than 64 bits may come as a float, so that no number of ours can be one.

    Raises:
        BadRequestError: the body is not one JSON value in UTF-8.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass  # half a surrogate pair is JSON, and whoever sent what is none should be told where
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadRequestError(f"the body is not JSON: {reason}") from None


class _Written(str):
    """A number as it is written."""

    __slots__ = ()


def numbers_as_written(body: bytes) -> dict[str, str]:
    """The members of a JSON object that are numbers, each as the text that stands in the body: no
    machine's number keeps `1.10`, or thirty digits. For what `parse_json` found to be an object."""
    try:
        members = _AS_WRITTEN.decode(body.decode("utf-8"))
    except RecursionError:  # what is nested as deep is refused for that, whatever its numbers
        return {}
    return {name: str(each) for name, each in members.items() if isinstance(each, _Written)}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _integer(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:  # Python reads no more than 4,300 digits
        return float(text)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_integer)
_AS_WRITTEN = json.JSONDecoder(parse_int=_Written, parse_float=_Written)


def read_object(
    body: bytes, content_type: str | None, *, members: Collection[str], what: str
) -> Mapping[str, object]:
    """The members of a JSON body, `{}` where there is none.

    Raises:
        UnsupportedMediaTypeError: the body is not declared to be JSON.
        BadRequestError: it is no JSON object, or has a member that is not among `members`.
    """
    require_json(content_type, body)
    return check_object(parse_json(body) if body else {}, members=members, what=what)


def check_object(value: object, *, members: Collection[str], what: str) -> Mapping[str, object]:
    """The value itself, if it is an object with no other than these members.

    Raises:
        BadRequestError: it is not; the sentence names the culprit.
    """
    if not isinstance(value, dict):
        raise BadRequestError(f"{what} is a JSON object, not {shown(value)}")
    for name in value:
        if name not in members:
            known = ", ".join(sorted(members)) or "no members"
            raise BadRequestError(f"{what} has no member {shown(name)}; it takes {known}")
    return value


def read_query(pairs: Iterable[tuple[str, str]], *, parameters: Collection[str]) -> dict[str, str]:
    """The query parameters of a request.

    Raises:
        BadRequestError: one is not among `parameters`, or is given twice.
    """
    if not pairs:
        return {}
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in parameters:
            known = ", ".join(sorted(parameters)) or "none"
            raise BadRequestError(f"there is no query parameter {shown(name)} here; known: {known}")
        if name in found:
            raise BadRequestError(f"query parameter {name} is given twice")
        found[name] = value
    return found


SHOWN_LENGTH_MAX = 100  # characters of a bad value in an error sentence


def shown(value: object) -> str:
    """A bad value as an error sentence quotes it: in JSON, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=True, default=str)
    except RecursionError:
        text = "what is nested too deeply to be shown"
    return text if len(text) <= SHOWN_LENGTH_MAX else text[:SHOWN_LENGTH_MAX] + "…"
