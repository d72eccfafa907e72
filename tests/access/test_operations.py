"""The table of operations covers the OpenAPI document, and bodies that name topics."""

import orjson
import pytest

from access.operations import REQUIREMENTS, Scope, request_count, require
from access.principals import Principal, Right, Rights
from process.endpoints import ENDPOINTS
from tuff.protocol.errors import ForbiddenError

OPEN = {
    "/health/live", "/health/startup", "/health/ready", "/openapi.json", "/console",
    "/console/", "/console/{version}/{file}",
}  # fmt: skip


def test_every_endpoint_has_an_entry_and_only_probes_the_document_and_files_are_open() -> None:
    assert REQUIREMENTS.keys() == {f"{each.method} {each.path}" for each in ENDPOINTS}

    found = {name.split()[1] for name, each in REQUIREMENTS.items() if each.scope is Scope.OPEN}

    assert found == OPEN


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("POST /v1/transactions/run", {"publish": [{"namespace": "ns", "topic": "theirs"}]}),
        ("POST /v1/transactions/{tx}/commit", {"publish": [
            {"namespace": "ns", "topic": "mine"}, {"namespace": "ns", "topic": "theirs:1"}]}),
        ("POST /v1/transactions/{tx}/commit", {"publish": [{"namespace": "o", "topic": "mine"}]}),
        ("POST /v1/namespaces/{ns}/groups/{g}/heartbeat", {"topics": ["mine", "theirs"]}),
        ("POST /v1/namespaces/{ns}/groups/{g}/heartbeat", {"owned": ["theirs:0"]}),
        ("POST /v1/namespaces/{ns}/groups/{g}/offsets", {"offsets": {"theirs:0": "00"}}),
    ],
)  # fmt: skip
def test_each_topic_that_a_body_names_needs_the_right(operation: str, body: object) -> None:
    rights = Rights("ns", ("mine",), frozenset({Right.PUBLISH, Right.READ, Right.TRANSACT}))
    mine = orjson.loads(orjson.dumps(body).replace(b"theirs", b"mine").replace(b'"o"', b'"ns"'))
    parameters = {"ns": "ns", "g": "g"} if "{ns}" in operation else {}
    needed = REQUIREMENTS[operation]

    require(Principal("p", (rights,)), needed, parameters, orjson.dumps(mine))

    with pytest.raises(ForbiddenError, match="does not have the right"):
        require(Principal("p", (rights,)), needed, parameters, orjson.dumps(body))


@pytest.mark.parametrize(
    ("body", "count"),
    [({"calls": [1, 2, 3]}, 3), (b'{"calls": [1, 2]}', 2), (b"", 1), ([1, 2], 1), ({}, 1)],
)
def test_a_batch_counts_as_its_calls_and_any_other_body_as_one(body: object, count: int) -> None:
    batch, commit = (REQUIREMENTS[f"POST /v1/transactions/{name}"] for name in ("batch", "run"))

    assert request_count(batch, body) == count
    assert request_count(commit, body) == 1
