"""Compares every reply that a test receives with the server's own OpenAPI document."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote

from openapi_schema_validator import OAS31Validator

from kernel.requests_and_replies import PROBLEM_TYPE
from process import openapi


def strict(document: Any) -> Any:
    """The document with all that it says in extensions, for generators' sake, as schemas: which
    codes a refusal has, with which members, and what a reply that may be empty looks like.

    A format of int64 goes: it tells a generator how wide a number is, and limits nothing. A time
    beyond it is as good as any other in the future.
    """
    document = json.loads(json.dumps(document), object_hook=_without_width)
    schemas = document["components"]["schemas"]
    problem = schemas["Problem"]
    for operations in document["paths"].values():
        for operation in operations.values():
            for reply in operation["responses"].values():
                reply.setdefault("content", reply.pop("x-content", {}))
                if codes := reply.get("x-codes"):
                    members = {name for names in codes.values() for name in names}
                    own = {name: problem["properties"][name] for name in sorted(members)}
                    narrow = {"properties": {"code": {"enum": sorted(codes)}, **own}}
                    whole = {"allOf": [{"$ref": "#/components/schemas/Problem"}, narrow]}
                    reply["content"][PROBLEM_TYPE]["schema"] = whole
                if not reply["content"]:
                    del reply["content"]
    return document


def _without_width(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if (key, value) != ("format", "int64")}


DOCUMENT: Any = strict(openapi.document())


def check(method: str, target: str, status: int, content_type: str | None, body: bytes) -> None:
    """Fail when the document does not speak of such a reply to such a call.

    Addresses and methods that the document does not name are left to the tests that ask for them.
    """
    operation = _operation(method, unquote(target.partition("?")[0]))
    if operation is None:
        return
    shown = f"{method} {target} -> {status} {content_type} {body[:300]!r}"
    reply = operation["responses"].get(str(status))
    assert reply is not None, f"an undocumented status: {shown}"
    kind = (content_type or "").partition(";")[0]
    content = reply.get("content", {})
    if not body:
        return
    assert kind in content, f"an undocumented type of reply: {shown}"
    if not kind.endswith("json"):
        return
    pointer = (method.lower(), operation["operationId"], str(status), kind)
    errors = [error.message for error in _validator(pointer).iter_errors(json.loads(body))]
    assert not errors, f"{errors} in {shown}"
    if kind == PROBLEM_TYPE:
        base, own = DOCUMENT["components"]["schemas"]["Problem"], _schema(pointer)["allOf"][1]
        known = set(base["required"]) | own["properties"].keys()
        assert json.loads(body).keys() <= known, f"an undocumented member: {shown}"


def _operation(method: str, path: str) -> Any:
    for template, operations in DOCUMENT["paths"].items():
        if _pattern(template).fullmatch(path):
            return operations.get(method.lower())
    return None


@cache
def _pattern(template: str) -> re.Pattern[str]:
    fixed = (re.escape(part) for part in re.split(r"\{[a-z]+\}", template))
    return re.compile("[^/]+".join(fixed))


@cache
def _validator(pointer: tuple[str, str, str, str]) -> OAS31Validator:
    return OAS31Validator({**_schema(pointer), "components": DOCUMENT["components"]})


def _schema(pointer: tuple[str, str, str, str]) -> Any:
    method, operation_id, status, kind = pointer
    for operations in DOCUMENT["paths"].values():
        operation: Mapping[str, Any] = operations.get(method, {})
        if operation.get("operationId") == operation_id:
            return operation["responses"][status]["content"][kind]["schema"]
    raise AssertionError(f"no operation {operation_id}")
