"""The OpenAPI 3.1 document of the whole protocol, made of the table of endpoints."""

import re
from collections.abc import Iterable, Mapping

from process.openapi import ENDPOINTS, Endpoint
from process.openapi_forms import ARROW, AVRO
from process.openapi_schemas import MEMBERS, SCHEMAS, Schema, ref
from tuff.protocol.errors import BY_CODE
from tuff.protocol.exchange import RETRIED_STATUSES
from tuff.protocol.media import PROBLEM_TYPE, MediaType

# A connection above `server.max_connections` is told so whatever it asks for. Below that bound
# health and metrics are answered under any load, and while the server starts or stops.
_ALWAYS = ("bad_request", "internal", "overloaded", "host_not_allowed", "cross_site_request")
_WHILE_CLOSED = ("shutting_down", "starting")
_WITH_A_BODY = ("request_too_large", "unsupported_media_type")

_QUERY: Mapping[str, tuple[Schema, str]] = {
    "ttl": ({"type": "integer", "minimum": 1}, "time to live of all messages, whole seconds"),
    "isolation": (ref("Isolation"), "what to read"),
    "tx": (ref("PointerInput"), "read in the snapshot of this transaction"),
    "undecided": (ref("Undecided"), "what to do at a row that is not decided for a snapshot"),
    "wait": (
        {"type": "number", "minimum": 0, "maximum": 60, "default": 0},
        "seconds to wait while there is nothing to deliver",
    ),
    "through": (ref("MessageIdInput"), "deliver nothing after this id"),
    "from": ({"type": "string"}, "earliest, latest, a message id, ms, or an ISO 8601 time"),
    "inclusive": ({"type": "boolean", "default": True}, "whether the start itself belongs to it"),
    "limit": ({"type": "integer", "minimum": 1}, "messages at most"),
    "start": (ref("MessageIdInput"), "the parts begin behind this id; absent: at the beginning"),
    "end": (ref("MessageIdInput"), "the last part ends with this id; absent: with the topic"),
    "n": ({"type": "integer", "minimum": 1, "maximum": 10_000}, "parts at most"),
}
# What a placeholder of a path is called here, where a generator makes a parameter of it.
_SPELLED_OUT = {"ns": "namespace", "t": "topic", "tx": "transaction"}
_PATH: Mapping[str, tuple[Schema, str]] = {
    "namespace": (ref("Name"), "namespace"),
    "topic": (ref("Name"), "topic"),
    "name": (ref("Name"), "hold or position"),
    "transaction": ({"type": "string"}, "transaction id, or one of its checkpoint pointers"),
    "sink": (ref("SinkName"), "a name for all runs of one writer"),
    "epoch": ({"type": "integer", "format": "int64", "minimum": 0}, "a number that only grows"),
}
_BOOLEAN: Schema = {"type": "boolean"}
_BYTES: Schema = {"type": "string", "format": "binary"}
_HEADERS: Mapping[str, tuple[Schema, str]] = {
    "Tuff-First-Id": (ref("MessageId"), "id of the first row written"),
    "Tuff-Last-Id": (ref("MessageId"), "id of the last row written"),
    "Tuff-Next": (ref("MessageId"), "the exclusive start of the next read"),
    "Tuff-Caught-Up": (_BOOLEAN, "whether nothing is left for this reader"),
    "Tuff-Blocked-By": (ref("Pointer"), "the transaction in progress that holds this reader back"),
    "Tuff-Expired": (_BOOLEAN, "whether messages after the start may have been missed"),
}

# Codes that are answered in 429 and 503 come with it; health tells by its own 503 how things are.
_RETRY_AFTER: Schema = {
    "Retry-After": {
        "schema": {"type": "integer", "minimum": 0},
        "description": "seconds to wait before trying again",
    }
}


def document() -> dict[str, object]:
    """The whole document, as JSON would hold it; a new one at each call."""
    paths: dict[str, dict[str, object]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(address(endpoint), {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tuff",
            "version": "1",
            "summary": "Transactions beside a durable, ordered, time-addressed message store",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7411"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(each.tag for each in ENDPOINTS)],
        "paths": paths,
        "components": {"schemas": dict(SCHEMAS)},
    }


def address(endpoint: Endpoint) -> str:
    """Its path as the document writes it."""
    return re.sub(
        r"{(\w+)}", lambda found: f"{{{_SPELLED_OUT.get(found[1], found[1])}}}", endpoint.path
    )


def _operation(endpoint: Endpoint) -> dict[str, object]:
    operation: dict[str, object] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "responses": {
            str(status): _reply(endpoint)
            for status in (endpoint.status, endpoint.unready_status)
            if status is not None
        }
        | _refusals(endpoint),
    }
    if parameters := _parameters(endpoint):
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = _body(endpoint, endpoint.body)
    return operation


def _body(endpoint: Endpoint, schema: str) -> dict[str, object]:
    body: dict[str, object] = {
        "required": endpoint.body_required,
        "content": {MediaType.JSON.value: {"schema": ref(schema)}},
    }
    if endpoint.avro:
        # Not under `content`: a generator can't write Avro, and gave up the operation or warned.
        body["description"] = f"also as {MediaType.AVRO.value}, of the schema in x-avro-schema"
        body["x-avro-schema"] = AVRO[schema]
    return body


def _parameters(endpoint: Endpoint) -> list[dict[str, object]]:
    in_path = [
        {"name": name, "in": "path", "required": True, **_described(_PATH[name])}
        for name in re.findall(r"{(\w+)}", address(endpoint))
    ]
    in_query = [
        {"name": name, "in": "query", **_described(_QUERY[name])} for name in endpoint.query
    ]
    return in_path + in_query


def _described(described: tuple[Schema, str]) -> dict[str, object]:
    schema, description = described
    return {"schema": schema, "description": description}


def _reply(endpoint: Endpoint) -> dict[str, object]:
    reply: dict[str, object] = {"description": endpoint.summary}
    if content := _content(endpoint):
        # OpenAPI has no words for a body that may be missing. A generated client parses what stands
        # under `content`, so that of an empty success it raised after the messages were stored.
        reply["x-content" if endpoint.reply_is_optional else "content"] = content
    if endpoint.headers:
        reply["headers"] = {name: _described(_HEADERS[name]) for name in endpoint.headers}
    return reply


def _content(endpoint: Endpoint) -> dict[str, object]:
    # Of several a generator takes the first that it can read, which is JSON's.
    content: dict[str, object] = {}
    if endpoint.reply is not None:
        content[MediaType.JSON.value] = {"schema": ref(endpoint.reply)}
        if endpoint.avro:
            content[MediaType.AVRO.value] = {
                "schema": _BYTES,
                "x-avro-schema": AVRO[endpoint.reply],
            }
        if endpoint.arrow:
            content[MediaType.ARROW.value] = {"schema": _BYTES, "x-arrow-schema": ARROW}
    for kind in endpoint.raw_types:
        content[kind] = {"schema": {"type": "string"} if kind.startswith("text/") else _BYTES}
    return content


def _refusals(endpoint: Endpoint) -> dict[str, object]:
    codes = {*endpoint.errors, *_ALWAYS}
    if endpoint.tag != "process":
        codes.update(_WHILE_CLOSED)
    if endpoint.body is not None:
        codes.update(_WITH_A_BODY)
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes):
        by_status.setdefault(BY_CODE[code].status, []).append(code)
    return {str(status): _refusal(status, by_status[status]) for status in sorted(by_status)}


def _refusal(status: int, codes: Iterable[str]) -> dict[str, object]:
    refusal: dict[str, object] = {
        "description": ", ".join(codes),
        "content": {PROBLEM_TYPE: {"schema": ref("Problem")}},
        # Which codes, and which members beside each. As a schema, which it was, it made generators
        # write a class for every status of every call.
        "x-codes": {code: sorted(MEMBERS.get(code, ())) for code in codes},
    }
    if status in RETRIED_STATUSES:
        refusal["headers"] = _RETRY_AFTER
    return refusal
