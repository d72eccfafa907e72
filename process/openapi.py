"""The OpenAPI 3.1 document of the whole protocol, from one table of endpoints.

`ENDPOINTS` is the only list of them besides the routes themselves; docs/protocol.md §9 shows it,
and the tests hold the three together.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from process.openapi_schemas import AVRO, AVRO_OF_SCHEMA, SCHEMAS, Schema, ref
from tuff.protocol.errors import BY_CODE
from tuff.protocol.media import BACKUP_TYPE, PROBLEM_TYPE, MediaType


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One call: what it takes, gives and refuses. `body` and `reply` name schemas; None is empty.

    `avro`: the body, and the reply where it has one, also go as Avro. `errors` are codes beyond
    those that every call may answer. `unready_status` comes with the same reply, when something
    does not work. `tag` groups the calls in a rendered document.
    """

    method: str
    path: str
    name: str
    summary: str
    tag: str
    body: str | None = None
    body_required: bool = False
    reply: str | None = None
    reply_type: str = MediaType.JSON.value
    status: int = 200
    unready_status: int | None = None
    avro: bool = False
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


_TOPICS = "/v1/namespaces/{ns}/topics"
_TOPIC = f"{_TOPICS}/{{t}}"
_TRANSACTIONS = "/v1/transactions"
_ONE = f"{_TRANSACTIONS}/{{tx}}"

_ENDED = (
    "transaction_unknown",
    "transaction_timed_out",
    "transaction_invalidated",
    "transaction_committed",
    "transaction_aborted",
)
_NAMED = ("invalid_name",)
_TOPIC_ERRORS = (*_NAMED, "topic_not_found")
_STORED = "storage_unavailable"
_DOWN = "transactions_unavailable"
_WRITE_ERRORS = (
    *_TOPIC_ERRORS, *_ENDED, "transaction_conflict", "invalid_ttl", _STORED, _DOWN,
)  # fmt: skip
_COMMIT_ERRORS = (*_WRITE_ERRORS, "change_set_too_large")
_READ_QUERY = ("isolation", "tx", "undecided", "wait", "through")
_READ_ERRORS = (
    *_TOPIC_ERRORS, *_ENDED, "invalid_message_id", "invalid_transaction", "damaged_record",
    _STORED, _DOWN,
)  # fmt: skip
_READ_HEADERS = ("Tuff-Next", "Tuff-Caught-Up", "Tuff-Blocked-By", "Tuff-Expired")
_WRITTEN_HEADERS = ("Tuff-First-Id", "Tuff-Last-Id")

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path="/v1/namespaces", name="listNamespaces", tag="topics",
        summary="Every namespace that has a topic", reply="Names",
    ),
    Endpoint(
        method="GET", path=_TOPICS, name="listTopics", tag="topics",
        summary="The topics of a namespace", reply="Names", errors=_NAMED,
    ),
    Endpoint(
        method="PUT", path=_TOPIC, name="createTopic", tag="topics",
        summary="Create a topic, or the next generation of a deleted one", body="TopicProperties",
        errors=(*_NAMED, "topic_already_exists", "invalid_topic_properties", _STORED),
    ),
    Endpoint(
        method="GET", path=_TOPIC, name="getTopic", tag="topics",
        summary="Properties and generation of a topic", reply="Topic", errors=_TOPIC_ERRORS,
    ),
    Endpoint(
        method="DELETE", path=_TOPIC, name="deleteTopic", tag="topics",
        summary="Delete a topic with its messages", errors=(*_TOPIC_ERRORS, _STORED),
    ),
    Endpoint(
        method="PUT", path=f"{_TOPIC}/properties", name="updateTopic", tag="topics",
        summary="Replace all properties of a topic", body="TopicProperties",
        errors=(*_TOPIC_ERRORS, "invalid_topic_properties", _STORED),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC}/truncate", name="truncateTopic", tag="topics",
        summary="Remove all messages before a place, for ever", body="Truncation",
        body_required=True, reply="Truncated",
        errors=(*_TOPIC_ERRORS, "invalid_message_id", _STORED),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC}/publish", name="publish", tag="messages",
        summary="Publish messages, or under a transaction the reference to stored ones",
        body="PublishRequest", body_required=True, reply="PublishResponse", avro=True,
        query=("ttl",), headers=_WRITTEN_HEADERS, errors=(*_WRITE_ERRORS, "empty_publish"),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC}/store", name="store", tag="messages",
        summary="Store messages that the next publish of the transaction brings",
        body="PublishRequest", body_required=True, avro=True, query=("ttl",),
        errors=_WRITE_ERRORS,
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC}/rollback", name="rollback", tag="messages",
        summary="Hide one transactional publish from transactional readers",
        body="Rollback", body_required=True, avro=True,
        errors=(*_TOPIC_ERRORS, "transaction_committed", _STORED, _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC}/poll", name="poll", tag="messages",
        summary="Read messages from a place on", body="ConsumeRequest", reply="Messages",
        avro=True, query=_READ_QUERY, headers=_READ_HEADERS, errors=_READ_ERRORS,
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC}/messages", name="browse", tag="messages",
        summary="The same read for people and scripts", reply="Messages",
        query=("from", "inclusive", "limit", *_READ_QUERY), headers=_READ_HEADERS,
        errors=_READ_ERRORS,
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC}/offsets", name="offsets", tag="messages",
        summary="The first message, and the last that is decided for a reader", reply="Offsets",
        query=("isolation", "tx"), errors=_READ_ERRORS,
    ),
    Endpoint(
        method="POST", path=_TRANSACTIONS, name="startTransaction", tag="transactions",
        summary="Start a transaction", body="Start", reply="Transaction", status=201,
        errors=("invalid_timeout", _DOWN),
    ),
    Endpoint(
        method="GET", path=_TRANSACTIONS, name="overview", tag="transactions",
        summary="Pointers and all transactions in progress", reply="Overview", errors=(_DOWN,),
    ),
    Endpoint(
        method="POST", path=f"{_TRANSACTIONS}/run", name="run", tag="transactions",
        summary="Publish to several topics in a transaction of its own", body="Run",
        reply="Committed", errors=(*_COMMIT_ERRORS, "empty_publish"),
    ),
    Endpoint(
        method="GET", path=f"{_TRANSACTIONS}/invalid", name="invalids", tag="transactions",
        summary="The invalid list, and what of it is prunable", reply="Invalids", errors=(_DOWN,),
    ),
    Endpoint(
        method="POST", path=f"{_TRANSACTIONS}/invalid/truncate", name="truncateInvalids",
        tag="transactions", summary="Take pointers off the invalid list",
        body="TruncateInvalids", body_required=True, reply="TruncatedInvalids",
        errors=("transactions_in_progress", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_TRANSACTIONS}/snapshot", name="takeSnapshot", tag="transactions",
        summary="Write a snapshot file now", reply="SnapshotFile", errors=(_DOWN,),
    ),
    Endpoint(
        method="GET", path=f"{_TRANSACTIONS}/snapshot", name="showSnapshot", tag="transactions",
        summary="The newest state, for debugging", reply="TransactionState", errors=(_DOWN,),
    ),
    Endpoint(
        method="POST", path=f"{_TRANSACTIONS}/service/stop", name="stopService",
        tag="transactions", summary="Take the transaction service down", reply="ServiceState",
    ),
    Endpoint(
        method="POST", path=f"{_TRANSACTIONS}/service/start", name="startService",
        tag="transactions", summary="Take the transaction service up again", reply="ServiceState",
        errors=(_DOWN,),
    ),
    Endpoint(
        method="GET", path=_ONE, name="outcome", tag="transactions",
        summary="What became of a transaction", reply="Outcome",
        errors=("transaction_unknown", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/can-commit", name="canCommit", tag="transactions",
        summary="Check for conflicts early", body="CanCommit", reply="State",
        errors=(*_ENDED, "transaction_conflict", "change_set_too_large", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/commit", name="commit", tag="transactions",
        summary="Commit, and publish as one step", body="Commit", reply="Committed",
        errors=_COMMIT_ERRORS,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/abort", name="abort", tag="transactions",
        summary="End without committing", reply="State",
        errors=("transaction_unknown", "transaction_committed", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/invalidate", name="invalidate", tag="transactions",
        summary="End a transaction whose writes could not be undone", reply="State",
        errors=("transaction_unknown", "transaction_committed", "transaction_aborted", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/checkpoint", name="checkpoint", tag="transactions",
        summary="A new write pointer inside the same transaction", reply="Transaction",
        errors=(*_ENDED, "transaction_conflict", _DOWN),
    ),
    Endpoint(
        method="GET", path="/v1/backup", name="backup", tag="data",
        summary="Everything that is stored, as it is at one moment", reply="Backup",
        reply_type=BACKUP_TYPE, errors=(_STORED, _DOWN),
    ),
    Endpoint(
        method="GET", path="/health/live", name="live", tag="process",
        summary="Whether the process runs", reply="Health",
    ),
    Endpoint(
        method="GET", path="/health/startup", name="startup", tag="process",
        summary="Whether recovery is done", reply="Health", unready_status=503,
    ),
    Endpoint(
        method="GET", path="/health/ready", name="ready", tag="process",
        summary="What works and what does not", reply="Ready", unready_status=503,
    ),
    Endpoint(
        method="GET", path="/metrics", name="metrics", tag="process",
        summary="Prometheus text", reply_type="text/plain", reply="Text",
    ),
    Endpoint(
        method="GET", path="/openapi.json", name="openApi", tag="process",
        summary="This document", reply="OpenApi",
    ),
)  # fmt: skip

# A connection above `server.max_connections` is told so whatever it asks for. Below that bound
# health and metrics are answered under any load, and while the server stops.
_ALWAYS = ("bad_request", "internal", "overloaded")
_WHILE_STOPPING = ("shutting_down",)
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
}
_PATH: Mapping[str, tuple[Schema, str]] = {
    "ns": (ref("Name"), "namespace"),
    "t": (ref("Name"), "topic"),
    "tx": ({"type": "string"}, "transaction id, or one of its checkpoint pointers"),
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
        reply["content"] = _content(endpoint.reply, endpoint.reply_type, avro=endpoint.avro)
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
        codes.update(_WHILE_STOPPING)
    if endpoint.body is not None:
        codes.update(_WITH_A_BODY)
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes):
        by_status.setdefault(BY_CODE[code].status, []).append(code)
    return {str(status): _refusal(by_status[status]) for status in sorted(by_status)}


def _refusal(codes: Iterable[str]) -> dict[str, object]:
    schema = {
        "allOf": [ref("Problem"), {"properties": {"code": {"enum": list(codes)}}}],
    }
    return {
        "description": ", ".join(codes),
        "content": {PROBLEM_TYPE: {"schema": schema}},
    }
