"""Which operations need no principal, and the rights for topics that a body names."""

import orjson
import pytest

from access.permission import require
from access.principals import Principal, Rights
from tests.made_operations import BY_LINE
from tuff.protocol.errors import ForbiddenError
from tuff.protocol.operations import OPERATIONS, Right, Scope

OPEN = {
    "/health/live", "/health/startup", "/health/ready", "/openapi.json", "/console",
    "/console/", "/console/{version}/{file}",
}  # fmt: skip


def test_only_probes_the_document_and_files_are_open() -> None:
    found = {each.path for each in OPERATIONS if each.access.scope is Scope.OPEN}

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
        ("POST /v1/namespaces/{ns}/groups/{g}/offsets", {"begun": {"theirs:0": "00"}}),
    ],
)  # fmt: skip
def test_each_topic_that_a_body_names_needs_the_right(operation: str, body: object) -> None:
    rights = Rights("ns", ("mine",), frozenset({Right.PUBLISH, Right.READ, Right.TRANSACT}))
    mine = orjson.loads(orjson.dumps(body).replace(b"theirs", b"mine").replace(b'"o"', b'"ns"'))
    parameters = {"ns": "ns", "g": "g"} if "{ns}" in operation else {}
    needed = BY_LINE[operation].access

    require(Principal("p", (rights,)), needed, parameters, orjson.dumps(mine))

    with pytest.raises(ForbiddenError, match="does not have the right"):
        require(Principal("p", (rights,)), needed, parameters, orjson.dumps(body))
