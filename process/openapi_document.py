"""The OpenAPI 3.1 document of the whole protocol, made of the table of endpoints."""

import re
from collections.abc import Iterable, Mapping

from process.openapi import ENDPOINTS, Endpoint
from process.openapi_forms import ARROW, AVRO, AVRO_OF_SCHEMA
from process.openapi_schemas import SCHEMAS, Schema, ref
from tuff.protocol.errors import BY_CODE
from tuff.protocol.exchange import RETRIED_STATUSES
from tuff.protocol.media import PROBLEM_TYPE, MediaType
from tx.edits import InvalidReason

# A connection above `server.max_connections` is told so whatever it asks for. Below that bound
# health and metrics are answered under any load, and while the server starts or stops.
_ALWAYS = ("bad_request", "internal", "overloaded")
_WHILE_CLOSED = ("shutting_down", "starting")
_WITH_A_BODY = ("request_too_large", "unsupported_media_type")

_QUERY: Mapping[str, tuple[Schema, str]] = {
    "ttl": ({"type": "integer", "minimum": 1}, "time to live of all messages, whole seconds"),
    "isolation": ({"type": "string", "enum": ["all", "committed"]}, "what to read"),
    "tx": (ref("PointerTaken"), "read in the snapshot of this transaction"),
    "undecided": (
        {"type": "string", "enum": ["hold", "skip"], "default": "hold"},
        "what to do at a row that is not decided for a fixed snapshot",
    ),
    "wait": (
        {"type": "number", "minimum": 0, "maximum": 60, "default": 0},
        "seconds to wait while there is nothing to deliver",
    ),
    "through": (ref("MessageIdTaken"), "deliver nothing after this id"),
    "from": ({"type": "string"}, "earliest, latest, a message id, ms, or an ISO 8601 time"),
    "inclusive": ({"type": "boolean", "default": True}, "whether the start itself belongs to it"),
    "limit": ({"type": "integer", "minimum": 1}, "messages at most"),
    "start": (ref("MessageIdTaken"), "the parts begin behind this id; absent: at the beginning"),
    "end": (ref("MessageIdTaken"), "the last part ends with this id; absent: with the topic"),
    "n": ({"type": "integer", "minimum": 1, "maximum": 10_000}, "parts at most"),
}
_PATH: Mapping[str, tuple[Schema, str]] = {
    "ns": (ref("Name"), "namespace"),
    "t": (ref("Name"), "topic"),
    "name": (ref("Name"), "hold or position"),
    "tx": ({"type": "string"}, "transaction id, or one of its checkpoint pointers"),
    "sink": (ref("SinkName"), "a name for all runs of one writer"),
    "epoch": ({"type": "integer", "minimum": 0}, "a number that only grows"),
}
_BOOLEAN: Schema = {"type": "string", "enum": ["true", "false"]}
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
_REASON: tuple[Schema, str] = (
    {"type": "string", "enum": [each.value for each in InvalidReason]},
    "why the transaction is invalid",
)
# What stands beside a code (RFC 9457 §3.2).
_MEMBERS: Mapping[str, Mapping[str, tuple[Schema, str]]] = {
    "transaction_conflict": {
        "key": (ref("Payload"), "the change that both wrote"),
        "conflictingTransaction": (ref("Pointer"), "who committed it first"),
        "conflictingClient": ({"type": "string"}, "the client of that transaction"),
    },
    "transaction_timed_out": {"reason": _REASON},
    "transaction_invalidated": {"reason": _REASON},
    "sink_epoch_superseded": {"epoch": ({"type": "integer"}, "the newest epoch of the sink")},
    "sink_epoch_open": {"epoch": ({"type": "integer"}, "the newest epoch of the sink")},
    "topic_held": {
        "holds": ({"type": "array", "items": ref("Name")}, "the holds that are in the way")
    },
    "damaged_record": {
        "id": ({"type": "string"}, "the record, as its key or its message id in hex"),
        "next": (
            {"anyOf": [ref("MessageId"), {"type": "null"}]},
            "the exclusive start of a read that goes on without it",
        ),
    },
}


def document() -> dict[str, object]:
    """The whole document, as JSON would hold it; a new one at each call."""
    paths: dict[str, dict[str, object]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tuff HTTP protocol",
            "version": "1",
            "summary": "Transactions beside a durable, ordered, time-addressed message store",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7411"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(each.tag for each in ENDPOINTS)],
        "paths": paths,
        "components": {"schemas": dict(SCHEMAS)},
    }


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
        operation["requestBody"] = {
            "required": endpoint.body_required,
            "content": _content(endpoint.body, MediaType.JSON.value, avro=endpoint.avro),
        }
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, object]]:
    in_path = [
        {"name": name, "in": "path", "required": True, **_described(_PATH[name])}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]
    in_query = [
        {"name": name, "in": "query", **_described(_QUERY[name])} for name in endpoint.query
    ]
    return in_path + in_query


def _described(described: tuple[Schema, str]) -> dict[str, object]:
    schema, description = described
    return {"schema": schema, "description": description}


def _reply(endpoint: Endpoint) -> dict[str, object]:
    reply: dict[str, object] = {"description": "done" if endpoint.reply is None else endpoint.reply}
    if endpoint.reply is not None:
        content = _content(endpoint.reply, endpoint.reply_type, avro=endpoint.avro)
        if endpoint.arrow:
            content[MediaType.ARROW.value] = {"x-arrow-schema": ARROW}
        reply["content"] = content
    if endpoint.headers:
        reply["headers"] = {name: _described(_HEADERS[name]) for name in endpoint.headers}
    return reply


def _content(schema: str, media_type: str, *, avro: bool) -> dict[str, object]:
    content: dict[str, object] = {media_type: {"schema": ref(schema)}}
    if avro:
        # OpenAPI cannot describe Avro; the bytes are opaque to it, and the schema rides along.
        content[MediaType.AVRO.value] = {"x-avro-schema": AVRO[AVRO_OF_SCHEMA[schema]]}
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
    members = {
        name: {**schema, "description": description}
        for code in codes
        for name, (schema, description) in _MEMBERS.get(code, {}).items()
    }
    properties = {"code": {"enum": list(codes)}, **members}
    refusal: dict[str, object] = {
        "description": ", ".join(codes),
        "content": {
            PROBLEM_TYPE: {"schema": {"allOf": [ref("Problem"), {"properties": properties}]}}
        },
    }
    if status in RETRIED_STATUSES:
        refusal["headers"] = _RETRY_AFTER
    return refusal
