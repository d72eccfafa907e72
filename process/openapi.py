"""The OpenAPI 3.1 document, made of the operations and the schemas of their bodies."""

import re
from collections.abc import Iterable, Mapping

from kernel.requests_and_replies import PROBLEM_TYPE, RETRIED_STATUSES
from process.binary_schemas import ARROW, ARROW_2, AVRO, AVRO_2
from process.schema_forms import BOOLEAN, COUNT, ID, MS, NAME, TEXT, Schema, of_type, ref
from process.schemas import DATABASE, MEMBERS, SCHEMAS, SERVER_ID
from tuff.protocol.errors import BY_CODE
from tuff.protocol.media_types import MediaType
from tuff.protocol.operations import OPERATIONS, Operation

_QUERY: Mapping[str, tuple[Schema, str]] = {
    "ttl": (of_type("integer", minimum=1), "time to live of all messages, whole seconds"),
    "ack": (ref("Ack"), "when the publish is answered; not durable only without a transaction"),
    "requestId": (
        of_type("string", pattern=r"^[0-9a-f]{16}\.[0-9]{1,18}(\.[0-9]{1,18})?$"),
        "producer, number and lowest number that may be repeated, of a publish",
    ),
    "age": (of_type("integer", minimum=0), "of a repetition: ms since the first attempt was sent"),
    "delay": (ref("Delay"), "seconds until all messages without their own enter the topic"),
    "at": (ref("DueTime"), "when all messages without their own enter the topic"),
    "dryRun": (of_type("boolean", default=False), "change nothing, and say what would be"),
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
    "namespace": (NAME, "only the topics of this namespace"),
    "contains": (TEXT, "only the topics with this text in `namespace:name`"),
    "order": (ref("Order"), "from the oldest to the newest, or the other way"),
    "server": (SERVER_ID, "only the topics of this server"),
    "after": (TEXT, "only the topics, or the messages, behind this one"),
    "start": (ref("MessageIdInput"), "the parts begin behind this id; absent: at the beginning"),
    "end": (ref("MessageIdInput"), "the last part ends with this id; absent: with the topic"),
    "n": (of_type("integer", minimum=1, maximum=10_000), "parts at most"),
}
# What a placeholder of a path is called here, where a generator makes a parameter of it.
_SPELLED_OUT = {"ns": "namespace", "t": "topic", "g": "group", "tx": "transaction"}
_PATH: Mapping[str, tuple[Schema, str]] = {
    "namespace": (NAME, "namespace"),
    "topic": (ref("TopicName"), "topic, or one of its partitions"),
    "group": (NAME, "consumer group"),
    "share": (NAME, "share group"),
    "name": (NAME, "hold or position"),
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
    "Tuff-First-Id": (ID, "id of the first row written"),
    "Tuff-Last-Id": (ID, "id of the last row written"),
    "Tuff-Partitions": (
        of_type("string", pattern=r"^[0-9]+(,[0-9]+)*$"),
        "the partitions that have the rows, of a topic with several",
    ),
    "Tuff-Repeated": (BOOLEAN, "whether an earlier attempt of this publish wrote the rows"),
    "Tuff-Ack": (ref("Ack"), "the level of the reply, if the request named one"),
    "Tuff-Delayed": (COUNT, "how many messages are delayed; they have no message id yet"),
    "Tuff-Delayed-First": (ref("DelayedId"), "id of the first delayed message of the request"),
    "Tuff-Delayed-Last": (ref("DelayedId"), "id of the last delayed message of the request"),
    "Tuff-Partition": (TEXT, "the partition that has the messages, as orders:3"),
    "Tuff-Next": (ID, "the exclusive start of the next read"),
    "Tuff-Caught-Up": (BOOLEAN, "whether nothing is left for this reader"),
    "Tuff-Blocked-By": (ref("Pointer"), "the transaction in progress that blocks this reader"),
    "Tuff-Blocked-Database": (NAME, "the database that decides it, if it is prepared"),
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
    for operation in OPERATIONS:
        paths.setdefault(address(operation), {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tuff",
            "version": "1",
            "summary": "Transactions beside a durable, ordered, time-addressed message store",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7411"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(each.tag for each in OPERATIONS)],
        "paths": paths,
        "components": {"schemas": dict(SCHEMAS)},
    }


def address(operation: Operation) -> str:
    """Its path as the document writes it."""
    return re.sub(
        r"{(\w+)}", lambda found: f"{{{_SPELLED_OUT.get(found[1], found[1])}}}", operation.path
    )


def _operation(operation: Operation) -> dict[str, object]:
    described: dict[str, object] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": {
            str(status): _response(operation)
            for status in (operation.status, operation.unready_status)
            if status is not None
        }
        | _refusals(operation),
    }
    if parameters := _parameters(operation):
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = _body(operation, operation.body)
    return described


def _body(operation: Operation, schema: str) -> dict[str, object]:
    body: dict[str, object] = {
        # A call without a body is one with an empty object, where that is a possible body.
        "required": not {"required", "oneOf"}.isdisjoint(SCHEMAS[schema]),
        "content": {MediaType.JSON.value: {"schema": ref(schema)}},
    }
    if operation.avro:
        # Not under `content`: a generator can't write Avro, and gave up the operation or warned.
        body["description"] = f"also as {MediaType.AVRO.value}, of the schema in x-avro-schema"
        body |= _avro_schemas(schema)
    return body


def _avro_schemas(name: str) -> dict[str, object]:
    schemas: dict[str, object] = {"x-avro-schema": AVRO[name]}
    return {**schemas, "x-avro-schema-2": AVRO_2[name]} if name in AVRO_2 else schemas


def _parameters(operation: Operation) -> list[dict[str, object]]:
    in_path = [
        {"name": name, "in": "path", "required": True, **_described(_PATH[name])}
        for name in re.findall(r"{(\w+)}", address(operation))
    ]
    in_query = [
        {"name": name, "in": "query", **_described(_QUERY[name])} for name in operation.query
    ]
    return in_path + in_query


def _described(described: tuple[Schema, str]) -> dict[str, object]:
    schema, description = described
    return {"schema": schema, "description": description}


def _response(operation: Operation) -> dict[str, object]:
    reply: dict[str, object] = {"description": operation.summary}
    if content := _content(operation):
        # OpenAPI has no words for a body that may be missing. A generated client parses what stands
        # under `content`, so that of an empty success it raised after the messages were stored.
        reply["x-content" if operation.reply_is_optional else "content"] = content
    if operation.headers:
        reply["headers"] = {name: _described(_HEADERS[name]) for name in operation.headers}
    return reply


def _content(operation: Operation) -> dict[str, object]:
    # Of several a generator takes the first that it can read, which is JSON's.
    content: dict[str, object] = {}
    if operation.reply is not None:
        content[MediaType.JSON.value] = {"schema": ref(operation.reply)}
        if operation.avro:
            content[MediaType.AVRO.value] = {
                "schema": _BYTES,
                **_avro_schemas(operation.reply),
            }
        if operation.arrow:
            content[MediaType.ARROW.value] = {
                "schema": _BYTES,
                "x-arrow-schema": ARROW,
                "x-arrow-schema-2": ARROW_2,
            }
    for kind in operation.raw_types:
        content[kind] = {"schema": TEXT if kind.startswith("text/") else _BYTES}
    return content


def _refusals(operation: Operation) -> dict[str, object]:
    by_status: dict[int, list[str]] = {}
    for code in operation.codes:
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
