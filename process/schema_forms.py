"""The forms that JSON schemas are made of, and the schema of a value by its fields.

`reply_of` reads what `tuff.protocol.json_objects` reads: a field is one member, and its type says
what the member is.
"""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from tuff.protocol.ids import PARTITION_NUMBER_MAX, MessageId, PartitionId, TopicId
from tuff.protocol.json_objects import fields_of
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import Transaction, TransactionStatus
from tuff.protocol.values import HeadersCodec, PointerCodec, TopicNames
from tuff.replies import NamedPosition, StoredRow

Schema = dict[str, object]


def ref(name: str) -> Schema:
    """A reference to a schema of the table."""
    return {"$ref": f"#/components/schemas/{name}"}


def of_type(kind: str, **limits: object) -> Schema:
    return {"type": kind, **limits}


def array(item: Schema, description: str = "", **limits: object) -> Schema:
    return {"type": "array", "items": item, **limits, **said(description)}


def by_name(value: Schema, description: str = "", **limits: object) -> Schema:
    """An object whose members have names of their own."""
    return {"type": "object", "additionalProperties": value, **limits, **said(description)}


def any_of(*schemas: Schema, **others: object) -> Schema:
    return {"anyOf": [*schemas], **others}


def or_null(schema: Schema) -> Schema:
    return any_of(schema, {"type": "null"})


def one_of(*values: str, **others: object) -> Schema:
    return {"type": "string", "enum": [str(each) for each in values], **others}


def said(description: str) -> Schema:
    return {"description": description} if description else {}


def required(*names: str) -> tuple[str, ...]:
    return names


def optional(*names: str) -> tuple[str, ...]:
    return names


def request(required: tuple[str, ...] = (), /, **members: Schema) -> Schema:
    """An object that has no other members. Python's keyword `from` is written `from_`."""
    found = {**of_type("object"), "properties": _named(members), "additionalProperties": False}
    return {**found, "required": list(required)} if required else found


def reply(optional: tuple[str, ...] = (), /, **members: Schema) -> Schema:
    """An object that may get more members later."""
    properties = _named(members)
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def reply_of(
    kind: type, optional: tuple[str, ...] = (), without: tuple[str, ...] = (), /, **members: Schema
) -> Schema:
    """The schema of the JSON of a value. `members`: those of which its fields say too little, or
    nothing. An `optional` one may be missing, and is null only if `members` says so. `without`:
    what only the client adds."""
    found: dict[str, Schema] = {}
    for each in fields_of(kind):
        name = ".".join(each.path)
        if len(each.path) == 1 and name not in without:
            is_time = each.name.endswith("_ms") and not name.endswith("Ms")
            schema = _of_hint(each.hint, MS if is_time else COUNT)
            found[name] = _never_null(schema) if name in optional else schema
    return reply(optional, **found | members)


TEXT = of_type("string")
BOOLEAN = of_type("boolean")
COUNT = of_type("integer", format="int64", minimum=0)
MS: Schema = {**COUNT, "description": "ms since the epoch"}
SECONDS = of_type(
    "number", format="double", exclusiveMinimum=0, description="seconds; fractions allowed"
)
PARTITION = of_type("integer", minimum=0, maximum=PARTITION_NUMBER_MAX)
PARTITION_NAME = of_type(
    "string", description="a topic for its partition 0, or topic:number for a further one"
)
FULL_NAME = of_type("string", description="namespace:name")
NAME, POINTER, ID, PAYLOAD = map(ref, ("Name", "Pointer", "MessageId", "Payload"))

_OF_TYPE: Mapping[object, Schema] = {
    str: TEXT,
    bool: BOOLEAN,
    float: SECONDS,
    bytes: PAYLOAD,
    MessageId: ID,
    PartitionId: PARTITION_NAME,
    TopicId: FULL_NAME,
}
_OF_MARK: Mapping[type, Schema] = {
    PointerCodec: POINTER,
    HeadersCodec: ref("Headers"),
    TopicNames: ref("FoundElsewhere"),
}
# Values whose schemas have other names than their classes.
_NAME_OF: Mapping[type, str] = {
    NamedPosition: "Position",
    StoredRow: "Row",
    RollbackDetail: "PublishResponse",
    Transaction: "Transaction",
    TransactionStatus: "ExplainedTransaction",
}


def _named(members: Mapping[str, Schema]) -> dict[str, Schema]:
    return {name.removesuffix("_"): schema for name, schema in members.items()}


def _of_hint(hint: Any, integer: Schema) -> Schema:
    origin, of = get_origin(hint), get_args(hint)
    if origin is Annotated:
        marks = [_OF_MARK[type(each)] for each in of[1:] if type(each) in _OF_MARK]
        return marks[0] if marks else _of_hint(of[0], integer)
    if origin in (Union, UnionType):
        (inner,) = [each for each in of if each is not NoneType]
        return or_null(_of_hint(inner, integer))
    if origin in (tuple, list):
        return array(_of_hint(of[0], integer))
    if hint is int:
        return integer
    return _OF_TYPE.get(hint) or ref(_NAME_OF.get(hint, hint.__name__))


def _never_null(schema: Schema) -> Schema:
    match schema:
        case {"anyOf": [dict() as only, {"type": "null"}]}:
            return only
        case _:
            return schema
