"""The OpenAPI document: valid, complete, and of one mind with the protocol (protocol §7)."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from process.openapi import document
from process.schemas import SCHEMAS
from tests.http import contract
from tuff.protocol.errors import BY_CODE
from tuff.protocol.operations import OPERATIONS


def test_the_document_follows_the_rules_of_openapi_3_1() -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(document()).iter_errors()] == []


def test_the_validator_finds_a_missing_parameter() -> None:
    holed = json.loads(json.dumps(document()))
    address = "/v1/transactions/{transaction}"
    holed["paths"] = {address: {"get": holed["paths"][address]["get"]}}
    whole = OpenAPIV31SpecValidator(holed)
    assert next(whole.iter_errors(), None) is None

    del holed["paths"][address]["get"]["parameters"]

    assert next(OpenAPIV31SpecValidator(holed).iter_errors(), None) is not None


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    found = document()
    text = json.dumps(found)
    schemas = found["components"]["schemas"]  # type: ignore[index]  # plain JSON data

    used = {name for name in schemas if f'"#/components/schemas/{name}"' in text}

    assert used == set(schemas)
    assert text.count('"$ref"') == sum(
        text.count(f'"#/components/schemas/{name}"') for name in schemas
    )


def test_each_call_returns_a_new_equal_document() -> None:
    first = document()
    first["paths"] = {}

    assert document() != first
    assert document() == document()


def test_no_two_calls_share_a_name_or_an_address() -> None:
    assert len({endpoint.name for endpoint in OPERATIONS}) == len(OPERATIONS)
    assert len({(endpoint.method, endpoint.path) for endpoint in OPERATIONS}) == len(OPERATIONS)


def test_every_code_of_the_protocol_can_be_answered_by_some_call() -> None:
    text = json.dumps(document())

    # It depends on the address alone, so it stands at no address.
    everywhere = {"method_not_allowed"}
    assert {code for code in BY_CODE if f'"{code}"' not in text} == everywhere


def test_every_429_and_503_has_retry_after() -> None:
    """No response named the header, though every such reply has it."""
    for endpoint, responses in _responses():
        for status, response in responses.items():
            is_refusal = "application/problem+json" in response.get("content", {})
            named = "Retry-After" in response.get("headers", {})
            assert named == (is_refusal and status in {"429", "503"}), (endpoint, status)


@pytest.mark.parametrize(
    ("name", "status", "code", "members"),
    [
        ("commit", "409", "transaction_conflict",
         {"key", "conflictingTransaction", "conflictingClient"}),
        ("commit", "409", "transaction_timed_out", {"reason"}),
        ("invalidate", "409", "transaction_committed", set()),
        ("poll", "500", "damaged_record", {"id", "next"}),
        ("truncateTopic", "409", "topic_held", {"holds"}),
        ("beginEpoch", "409", "sink_epoch_open", {"epoch"}),
    ],
)  # fmt: skip
def test_the_members_beside_a_code_are_described(
    name: str, status: str, code: str, members: set[str]
) -> None:
    responses = dict(_responses())[name]

    own = responses[status]["x-codes"][code]

    assert set(own) == members
    assert members <= SCHEMAS["Problem"]["properties"].keys()  # type: ignore[attr-defined]  # JSON


@pytest.mark.parametrize(
    ("code", "member", "what"),
    [
        ("invalid_timeout", None, None),
        ("invalid_ttl", None, "'invalid_ttl' is not one of"),
        ("invalid_timeout", "reason", "an undocumented member"),
    ],
)
def test_an_undocumented_refusal_fails_the_contract_check(
    code: str, member: str | None, what: str | None
) -> None:
    body = {"type": "about:blank", "title": "T", "status": 400, "detail": "d", "code": code}
    sent = json.dumps(body | ({} if member is None else {member: "timed_out"})).encode()
    refused = nullcontext() if what is None else pytest.raises(AssertionError, match=what)

    with refused:
        contract.check("POST", "/v1/transactions", 400, "application/problem+json", sent)


def test_every_object_and_every_choice_has_a_name_of_its_own() -> None:
    """Generators make up a name for one that stands inside of another; two of those were equal,
    and a generated client had neither class."""

    def nested(schema: Any, *, is_top: bool = False) -> Iterator[Any]:
        if isinstance(schema, list):
            for item in schema:
                yield from nested(item)
        elif isinstance(schema, dict):
            if not is_top and ("enum" in schema or "properties" in schema):
                yield schema
            for key, value in schema.items():
                inner = value.values() if key == "properties" else [value]
                for each in inner:
                    yield from nested(each)

    found: Any = document()

    assert [each for schema in SCHEMAS.values() for each in nested(schema, is_top=True)] == []
    assert list(nested(found["paths"])) == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("stopService", "transactions_unavailable"), ("listTopics", "storage_unavailable"),
        ("listNamespaces", "storage_unavailable"), ("getTopic", "storage_unavailable"),
    ],
)  # fmt: skip
def test_a_call_that_needs_a_part_of_the_server_says_so(name: str, code: str) -> None:
    assert code in dict(_responses())[name]["503"]["description"]


def test_the_body_of_a_run_is_required_and_has_publish() -> None:
    found: Any = document()

    run = found["paths"]["/v1/transactions/run"]["post"]["requestBody"]

    assert run["required"] is True
    assert found["components"]["schemas"]["RunRequest"]["required"] == ["publish"]


def _responses() -> list[tuple[str, Any]]:
    paths: Any = document()["paths"]
    return [
        (operation["operationId"], operation["responses"])
        for operations in paths.values()
        for operation in operations.values()
    ]
