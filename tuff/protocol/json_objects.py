"""Values of replies and their JSON objects, in both directions, by the fields of the values.

    member := the name of the field in camel case, without the unit of a time at its end:
              `set_at_ms` is `setAt`; or the name that `Member` gives
    json   := int, float, bool, str | a pointer: its digits | bytes: a payload
            | an enum: its value | an id: its hex digits | a topic: `namespace:name`
            | a tuple, a list or a set: an array
            | a mapping, the headers of a message or a dataclass: an object
            | X | None: the JSON of X, or null; a member that is missing is null too

A field with a default may be missing in a reply.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from tuff.protocol.errors import BadRequestError
from tuff.protocol.group_preferences import GroupPreferences
from tuff.protocol.ids import MessageId, PartitionId, TopicId, name_in, partition_in
from tuff.protocol.json_bodies import (
    array_from_json,
    flag_from_json,
    headers_from_json,
    headers_to_json,
    object_from_json,
    payload_from_json,
    payload_to_json,
    pointer_from_json,
    pointer_to_json,
    rollback_detail_from_json,
    rollback_detail_to_json,
    seconds_from_json,
    text_from_json,
    transaction_from_json,
    whole_number,
)
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import Transaction
from tuff.protocol.values import HeadersCodec, Member, PointerCodec, TopicNames

V = TypeVar("V")

UNITS_OF_TIME = ("_ms", "_s")


class Codec(NamedTuple):
    """How a value is read, from its JSON, for a sentence about a bad one, and in a namespace; and
    how it is written. It annotates a field whose type does not say that."""

    read: Callable[[object, str, str | None], object]
    write: Callable[[Any, str | None], object]


class MemberField(NamedTuple):
    """How a field is a member of the object of its value."""

    name: str
    hint: Any  # its type
    path: tuple[str, ...]  # of names of members; empty: the object itself
    codec: Codec
    default: Callable[[], object] | None
    is_optional: bool


def from_json(kind: type[V], value: object, *, namespace: str | None = None, **known: object) -> V:
    """A value of a dataclass from its JSON object. `namespace`: that of topics which have only
    their names in it. `known`: fields that the object does not have.

    Raises:
        BadRequestError (its kinds): a member is missing, or has another type.
    """
    members = object_from_json(value)
    for each in fields_of(kind):
        if each.name not in known:
            known[each.name] = _read_field(each, members, namespace)
    return kind(**known)


def list_from_json(kind: type[V], value: object) -> list[V]:
    """Values of a dataclass from an array of their objects. Raises: BadRequestError (its kinds)."""
    return [from_json(kind, each) for each in array_from_json(value)]


def to_json(value: object, *, namespace: str | None = None) -> dict[str, Any]:
    """The JSON object of a value of a dataclass, as `from_json` reads it."""
    members: dict[str, Any] = {}
    for each in fields_of(type(value)):
        written = each.codec.write(getattr(value, each.name), namespace)
        if not each.path:
            assert isinstance(written, dict), "its members are among those of the value"
            members |= written
            continue
        within = members
        for name in each.path[:-1]:
            within = within.setdefault(name, {})
        within[each.path[-1]] = written
    return members


def json_of(value: object) -> object:
    """The JSON of a value, by its type."""
    kind: Any = type(value)
    return _codec_of(kind).write(value, None)


def _read_field(field: MemberField, members: Mapping[str, object], namespace: str | None) -> object:
    value: object = members
    for name in field.path:
        within = object_from_json(value, what=f"what has the member {name}")
        if name not in within:
            if field.default is not None:
                return field.default()
            if field.is_optional:
                return None
            raise BadRequestError(f"the member {name} is missing")
        value = within[name]
    return field.codec.read(value, ".".join(field.path), namespace)


def fields_of(kind: Any) -> tuple[MemberField, ...]:
    """The fields of a dataclass, in their order."""
    return _fields(kind)


@cache
def _fields(kind: Any) -> tuple[MemberField, ...]:
    assert is_dataclass(kind), f"{kind} is not a dataclass"
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        MemberField(
            name=each.name,
            hint=hints[each.name],
            path=_path_of(each.name, hints[each.name]),
            codec=_codec_of(hints[each.name]),
            default=_default_of(each),
            is_optional=NoneType in get_args(_plain(hints[each.name])),
        )
        for each in fields(kind)
    )


def _default_of(field: Field[Any]) -> Callable[[], object] | None:
    if field.default is not MISSING:
        return lambda: field.default
    return None if field.default_factory is MISSING else field.default_factory


def _path_of(name: str, hint: object) -> tuple[str, ...]:
    for each in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        if isinstance(each, Member):
            return tuple(each.path.split(".")) if each.path else ()
    unit = next((each for each in UNITS_OF_TIME if name.endswith(each)), "")
    first, *rest = name.removesuffix(unit).split("_")
    return (first + "".join(map(str.capitalize, rest)),)


def _plain(hint: object) -> object:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


@cache
def _codec_of(hint: Any) -> Codec:
    origin, of = get_origin(hint), get_args(hint)
    if origin is Annotated:
        marked = [_MARKED[type(each)](each) for each in of[1:] if type(each) in _MARKED]
        return marked[0] if marked else _codec_of(of[0])
    if origin in (Union, UnionType):
        (inner,) = [each for each in of if each is not NoneType]
        return _or_null(_codec_of(inner))
    assert origin is not tuple or of[-1] is Ellipsis, f"{hint} has no codec"
    if origin in (tuple, list, frozenset):
        return _array_of(origin, _codec_of(of[0]))
    if origin is not None:
        assert issubclass(origin, Mapping), f"{hint} has no codec"
        return _object_of(_codec_of(of[0]), _codec_of(of[1]))
    return _FORMS.get(hint) or _form_of_class(hint)


def _form_of_class(hint: Any) -> Codec:
    if issubclass(hint, Enum):
        return Codec(
            lambda value, what, _: hint(text_from_json(value, what)), lambda value, _: value.value
        )
    return Codec(
        lambda value, what, namespace: from_json(
            hint, object_from_json(value, what), namespace=namespace
        ),
        lambda value, namespace: to_json(value, namespace=namespace),
    )


def _or_null(codec: Codec) -> Codec:
    return Codec(
        lambda value, what, namespace: (
            None if value is None else codec.read(value, what, namespace)
        ),
        lambda value, namespace: None if value is None else codec.write(value, namespace),
    )


def _array_of(kind: Callable[[Iterable[object]], object], codec: Codec) -> Codec:
    return Codec(
        lambda value, what, namespace: kind(
            [codec.read(each, f"an element of {what}", namespace)
             for each in array_from_json(value, what)]
        ),
        lambda value, namespace: [codec.write(each, namespace) for each in value],
    )  # fmt: skip


def _object_of(key: Codec, codec: Codec) -> Codec:
    return Codec(
        lambda value, what, namespace: {
            key.read(name, what, namespace): codec.read(each, f"{what}.{name}", namespace)
            for name, each in object_from_json(value, what).items()
        },
        lambda value, namespace: {
            str(key.write(name, namespace)): codec.write(each, namespace)
            for name, each in value.items()
        },
    )


def _topic(value: object, what: str, namespace: str | None) -> TopicId:
    name = text_from_json(value, what)
    if namespace is None:
        namespace, _, name = name.partition(":")
    return TopicId(namespace, name)


def _partition(value: object, what: str, namespace: str | None) -> PartitionId:
    name = text_from_json(value, what)
    if namespace is None:
        namespace, _, name = name.partition(":")
    return partition_in(namespace, name)


def _topic_form(topic: TopicId, namespace: str | None) -> str:
    return str(topic) if namespace is None else name_in(namespace, topic)


def _by_names(names: TopicNames) -> Codec:
    def read(value: object, what: str, _: str | None) -> TopicId:
        members = object_from_json(value, what)
        found = (text_from_json(members.get(each), each) for each in ("namespace", names.name))
        return TopicId(*found)

    return Codec(read, lambda topic, _: {"namespace": topic.namespace, names.name: topic.name})


def _as_it_is(value: object, _: str | None) -> object:
    return value


def _transaction(value: object, what: str, _: str | None) -> Transaction:
    encoded = object_from_json(value, what).get("encoded")
    if not isinstance(encoded, bytes):  # as they are of a session
        encoded = text_from_json(encoded, "encoded")
    return transaction_from_json(encoded)


_POINTER = Codec(
    lambda value, what, _: pointer_from_json(value, what=what),
    lambda pointer, _: pointer_to_json(pointer),
)
_HEADERS = Codec(
    lambda value, _what, _namespace: headers_from_json(value),
    lambda headers, _: headers_to_json(headers),
)
_MARKED: Mapping[type, Callable[[Any], Codec]] = {
    Codec: lambda codec: codec,
    PointerCodec: lambda _: _POINTER,
    HeadersCodec: lambda _: _HEADERS,
    TopicNames: _by_names,
}
_FORMS: Mapping[object, Codec] = {
    int: Codec(lambda value, what, _: whole_number(value, what=what), _as_it_is),
    float: Codec(lambda value, what, _: seconds_from_json(value, what=what), _as_it_is),
    bool: Codec(lambda value, what, _: flag_from_json(value, what=what), _as_it_is),
    str: Codec(lambda value, what, _: text_from_json(value, what), _as_it_is),
    bytes: Codec(
        lambda value, what, _: payload_from_json(value, what=what),
        lambda payload, _: payload_to_json(payload),
    ),
    MessageId: Codec(
        lambda value, what, _: MessageId.from_hex(text_from_json(value, what)),
        lambda id, _: id.hex(),
    ),
    TopicId: Codec(_topic, _topic_form),
    GroupPreferences: Codec(
        lambda value, what, _: GroupPreferences().with_changes(object_from_json(value, what)),
        lambda preferences, _: preferences.to_form(),
    ),
    PartitionId: Codec(_partition, _topic_form),
    RollbackDetail: Codec(
        lambda value, _what, _namespace: rollback_detail_from_json(value),
        lambda detail, _: rollback_detail_to_json(detail),
    ),
    Transaction: Codec(
        _transaction,
        lambda transaction, _: {"encoded": b64encode(transaction.to_bytes()).decode("ascii")},
    ),
}
