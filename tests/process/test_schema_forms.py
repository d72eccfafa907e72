"""Schemas by the fields of values (`process.schema_forms`), and that they agree with their JSON."""

from dataclasses import dataclass
from typing import Annotated, Any

from openapi_schema_validator import OAS31Validator

from process.schema_forms import COUNT, ID, MS, POINTER, TEXT, optional, reply_of
from process.schemas import SCHEMAS
from tuff import replies
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.json_objects import to_json
from tuff.protocol.transaction import TransactionType
from tuff.protocol.values import Headers, Member, Pointer, TopicNames

SOME_ID = MessageId(1480000000000, 5)


@dataclass(frozen=True, kw_only=True)
class AllForms:
    at_ms: int
    age_ms: Annotated[int | None, Member("ageMs")]
    lease_s: float | None
    pointers: tuple[Pointer, ...]
    first: Annotated[MessageId, Member("from")]
    topic: Annotated[TopicId, Member(""), TopicNames("name")]
    elsewhere: tuple[Annotated[TopicId, TopicNames("topic")], ...]
    headers: Headers
    kind: TransactionType
    split: replies.Split | None
    client_only: str


ALL_FORMS = AllForms(
    at_ms=1, age_ms=None, lease_s=0.5, pointers=(7,), first=SOME_ID, topic=TopicId("a", "b"),
    elsewhere=(TopicId("a", "b"),), headers=(("x", b"y"),), kind=TransactionType.SHORT,
    split=replies.Split(None, SOME_ID), client_only="c",
)  # fmt: skip


def test_the_schema_of_a_value_is_that_of_its_fields() -> None:
    found: Any = reply_of(AllForms, optional("lease"), ("clientOnly",), name=TEXT)

    assert found["properties"]["at"] == MS
    assert found["properties"]["ageMs"] == {"anyOf": [COUNT, {"type": "null"}]}
    assert found["properties"]["pointers"] == {"type": "array", "items": POINTER}
    assert found["properties"]["from"] == ID
    assert found["properties"]["lease"]["type"] == "number"  # it may be missing, and is never null
    assert found["properties"]["split"]["anyOf"][0] == {"$ref": "#/components/schemas/Split"}
    assert found["required"] == [
        "at", "ageMs", "pointers", "from", "elsewhere", "headers", "kind", "split", "name"
    ]  # fmt: skip


def test_the_json_of_a_value_follows_its_schema() -> None:
    schema = reply_of(AllForms, name=TEXT)
    validator = OAS31Validator({**schema, "components": {"schemas": SCHEMAS}})

    assert [each.message for each in validator.iter_errors(to_json(ALL_FORMS))] == []
    assert list(validator.iter_errors({**to_json(ALL_FORMS), "pointers": [7]})) != []
