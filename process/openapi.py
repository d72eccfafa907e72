"""The OpenAPI 3.1 document, made of the endpoints and the schemas of their bodies."""

import re
from collections.abc import Iterable, Mapping

from process.binary_schemas import ARROW, ARROW_2, AVRO, AVRO_2
from process.endpoints import ENDPOINTS, Endpoint
from process.schemas import (
    BOOLEAN,
    COUNT,
    DATABASE,
    MEMBERS,
    MS,
    SCHEMAS,
    SERVER_ID,
    TEXT,
    Schema,
    of_type,
    ref,
)
from tuff.protocol.errors import BY_CODE
from tuff.protocol.exchange import PROBLEM_TYPE, RETRIED_STATUSES, MediaType

_QUERY: Mapping[str, tuple[Schema, str]] = {
    "ttl": (of_type("integer", minimum=1), "time to live of all messages, whole seconds"),
    "ack": (ref("Ack"), "when the publish is answered; not durable only without a transaction"),
    "delay": (ref("Delay"), "seconds until all messages without their own enter the topic"),
    "at": (ref("DueTime"), "when all messages without their own enter the topic"),
    "payloads": (of_type("boolean", default=False), "whether to return the payloads"),
    "isolation": (ref("Isolation"), "what to read"),
    "database": (DATABASE, "only the transactions for which this database decides"),
    "tx": (ref("PointerInput"), "read in the snapshot of this transaction"),
    "undecided": (ref("Undecided"), "what to do at a row that is not decided for a snapshot"),
    "wait": (
        of_type("number", minimum=0, maximum=60, default=0),
        "seconds to wait while there is nothing to deliver, or while topics are left",
    ),
    "through": (ref("MessageIdInput"), "deliver nothing after this id"),
    "added": (
        of_type("boolean", default=False),
        "whether to name the partitions with higher numbers, too",
    ),
    "archive": (of_type("boolean", default=False), "whether to name the first archived message"),
    "tags": (TEXT, "only messages with these tags: `a,b|c` is (a and b) or c"),
    "from": (TEXT, "earliest, latest, a message id, ms, or an ISO 8601 time"),
    "inclusive": (of_type("boolean", default=True), "whether the start itself belongs to it"),
    "limit": (of_type("integer", minimum=1), "messages, topics, or rows, at most"),
    "namespace": (ref("Name"), "only the topics of this namespace"),
    "contains": (TEXT, "only the topics with this text in `namespace:name`"),
    "order": (ref("Order"), "from the oldest to the newest, or the other way"),
    "server": (SERVER_ID, "only the topics of this server"),
    "after": (TEXT, "only the topics, or the delayed messages, behind this one"),
    "start": (ref("MessageIdInput"), "the parts begin behind this id; absent: at the beginning"),
    "end": (ref("MessageIdInput"), "the last part ends with this id; absent: with the topic"),
    "n": (of_type("integer", minimum=1, maximum=10_000), "parts at most"),
}
# What a placeholder of a path is called here, where a generator makes a parameter of it.
_SPELLED_OUT = {"ns": "namespace", "t": "topic", "g": "group", "tx": "transaction"}
_PATH: Mapping[str, tuple[Schema, str]] = {
    "namespace": (ref("Name"), "namespace"),
    "topic": (ref("TopicName"), "topic, or one of its partitions"),
    "group": (ref("Name"), "consumer group"),
    "share": (ref("Name"), "share group"),
    "name": (ref("Name"), "hold or position"),
    "id": (ref("DelayedId"), "id of a delayed message"),
    "message": (TEXT, "message id, or the id of a delayed message"),
    "transaction": (TEXT, "transaction id, or one of its checkpoint pointers"),
    "sink": (ref("SinkName"), "a name for all runs of one writer"),
    "epoch": (COUNT, "a number that only grows"),
    "version": (TEXT, "of the files, as the page of the console names it"),
    "file": (TEXT, "name of the file"),
}
_BYTES = of_type("string", format="binary")
_HEADERS: Mapping[str, tuple[Schema, str]] = {
    "Tuff-First-Id": (ref("MessageId"), "id of the first row written"),
    "Tuff-Last-Id": (ref("MessageId"), "id of the last row written"),
    "Tuff-Partitions": (
        of_type("string", pattern=r"^[0-9]+(,[0-9]+)*$"),
        "the partitions that have the rows, of a topic with several",
    ),
    "Tuff-Ack": (ref("Ack"), "the level of the reply, if the request named one"),
    "Tuff-Delayed": (COUNT, "how many messages are delayed; they have no message id yet"),
    "Tuff-Delayed-First": (ref("DelayedId"), "id of the first delayed message of the request"),
    "Tuff-Delayed-Last": (ref("DelayedId"), "id of the last delayed message of the request"),
    "Tuff-Next": (ref("MessageId"), "the exclusive start of the next read"),
    "Tuff-Caught-Up": (BOOLEAN, "whether nothing is left for this reader"),
    "Tuff-Blocked-By": (ref("Pointer"), "the transaction in progress that holds this reader back"),
    "Tuff-Blocked-Database": (ref("Name"), "the database that decides it, if it is prepared"),
    "Tuff-Blocked-Since": (MS, "since when it is prepared"),
    "Tuff-Expired": (BOOLEAN, "whether messages after the start may have been missed"),
    "Tuff-Archive": (BOOLEAN, "whether the messages come from the archive of the topic"),
}

# Codes that are answered in 429 and 503 come with it; health has a 503 of its own.
_RETRY_AFTER: Schema = {
    "Retry-After": {
        "schema": of_type("integer", minimum=0),
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
            str(status): _response(endpoint)
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
        # A call without a body is one with an empty object, where that is a possible body.
        "required": not {"required", "oneOf"}.isdisjoint(SCHEMAS[schema]),
        "content": {MediaType.JSON.value: {"schema": ref(schema)}},
    }
    if endpoint.avro:
        # Not under `content`: a generator can't write Avro, and gave up the operation or warned.
        body["description"] = f"also as {MediaType.AVRO.value}, of the schema in x-avro-schema"
        body |= _avro_schemas(schema)
    return body


def _avro_schemas(name: str) -> dict[str, object]:
    schemas: dict[str, object] = {"x-avro-schema": AVRO[name]}
    return {**schemas, "x-avro-schema-2": AVRO_2[name]} if name in AVRO_2 else schemas


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


def _response(endpoint: Endpoint) -> dict[str, object]:
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
                **_avro_schemas(endpoint.reply),
            }
        if endpoint.arrow:
            content[MediaType.ARROW.value] = {
                "schema": _BYTES,
                "x-arrow-schema": ARROW,
                "x-arrow-schema-2": ARROW_2,
            }
    for kind in endpoint.raw_types:
        content[kind] = {"schema": TEXT if kind.startswith("text/") else _BYTES}
    return content


def _refusals(endpoint: Endpoint) -> dict[str, object]:
    by_status: dict[int, list[str]] = {}
    for code in endpoint.codes:
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
