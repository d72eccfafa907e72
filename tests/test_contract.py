"""Protocol, OpenAPI document, routes, settings and errors agree."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.operator_routes import routes as cluster_routes
from kernel.requests_and_replies import Route
from messaging import disk_use, topic_overview
from messaging.groups.consumer_routes import routes as group_routes
from messaging.groups.share_routes import routes as share_routes
from messaging.read import counts, long_poll_of_topics
from messaging.read.explanation_facts import routes as explain_routes
from messaging.read.inspection import routes as inspection_routes
from messaging.read.offsets_and_splits import routes as offset_routes
from messaging.read.poll import routes as poll_routes
from messaging.retention.holds_and_positions import routes as routes_of_jobs
from messaging.topic_changes import routes as topic_routes
from messaging.write.delayed_messages import routes as delayed_routes
from messaging.write.publish import routes as publish_routes
from process import backup_stream, health
from process.metrics import Metrics
from process.openapi import address
from process.routes import process_routes
from process.schemas import SCHEMAS
from process.settings import SECTIONS, Settings, key_of
from process.streamed_replies import StreamRoute
from tests.http.client import Client
from tests.http.process import ServerProcess, serve
from tuff.protocol.errors import BY_CODE
from tuff.protocol.operations import OPERATIONS, Operation
from tuff.protocol.transaction import InvalidReason as ClientInvalidReason
from tx.inspection_routes import routes as transaction_inspection_routes
from tx.log_records import InvalidReason
from tx.routes import routes as transaction_routes

ROOT = Path(__file__).resolve().parents[1]
PROTOCOL = (ROOT / "docs/protocol.md").read_text("utf-8")
CONF = sorted((ROOT / "conf").glob("*.toml"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    running: ServerProcess = serve(tmp_path_factory.mktemp("contract"))
    connection = running.client()
    yield connection
    connection.close()
    running.end()


def addresses(routes: Iterable[Route | StreamRoute]) -> set[tuple[str, str]]:
    return {(route.operation.method, route.operation.path) for route in routes}


def default_of(section: str, key: str) -> Any:
    """As a settings file would hold it."""
    (found,) = [entry for entry in fields(SECTIONS[section]) if key_of(entry) == key]
    default = getattr(SECTIONS[section](), found.name)
    return list(default) if isinstance(default, tuple) else default


def documented_settings() -> dict[tuple[str, str], str]:
    """The defaults of protocol §8, as they are written there."""
    text = PROTOCOL[PROTOCOL.index("Settings that clients and tests rely on") :]
    return {
        (section, key): value
        for section, key, value in re.findall(
            r"`(server|tx|messaging|groups|hbase|cluster)\.(\w+)=([^`]+)`", text
        )
    }


def test_the_table_of_endpoints_is_that_of_the_openapi() -> None:
    table = re.findall(r"^\| `([A-Z]+)` \| `(/[^`]*)` \| (.*) \|$", PROTOCOL, re.MULTILINE)

    assert table == [(each.method, each.path, each.summary) for each in OPERATIONS]


def test_the_routes_are_those_of_the_table() -> None:
    unused: Any = SimpleNamespace(runner=None, live=None)  # no handler is called
    routes = (
        addresses(publish_routes(unused))
        | addresses(poll_routes(unused))
        | addresses(explain_routes(unused))
        | addresses(long_poll_of_topics.routes(unused))
        | addresses(offset_routes(unused))
        | addresses(counts.routes(unused))
        | addresses(inspection_routes(unused))
        | addresses(topic_overview.routes(unused))
        | addresses(disk_use.routes(unused))
        | addresses(topic_routes(unused))
        | addresses(group_routes(unused))
        | addresses(share_routes(unused))
        | addresses(routes_of_jobs(unused))
        | addresses(delayed_routes(unused))
        | addresses(transaction_routes(unused, unused))
        | addresses(transaction_inspection_routes(unused, unused, unused))
        | addresses(cluster_routes(unused, unused, in_thread=unused))
        | addresses(backup_stream.routes(unused))
        | addresses(health.routes(lambda: True, dict))
        | addresses(process_routes(Settings(), Metrics(), unused))
    )

    assert routes == {(each.method, each.path) for each in OPERATIONS}


def test_the_server_shows_the_document_and_knows_every_address_in_it(client: Client) -> None:
    shown = client.send("GET", "/openapi.json").json

    assert sorted(shown["paths"]) == sorted({address(each) for each in OPERATIONS})
    for endpoint in OPERATIONS:
        path = re.sub(r"{\w+}", "x", endpoint.path)
        reply = client.send("OPTIONS", path)
        if endpoint.tag == "cluster":  # this server is in none
            assert reply.json["code"] == "not_found", endpoint.path
            continue
        assert reply.json["code"] == "method_not_allowed", endpoint.path
        assert endpoint.method in (reply.header("Allow") or "")


@pytest.mark.parametrize(
    "operation",
    [
        each
        for each in OPERATIONS
        if each.body is not None
        and each.tag != "cluster"  # this server is in none
        and not each.body.startswith("TopicProperties")  # a property may have any name
    ],
    ids=lambda operation: operation.name,
)
def test_the_server_takes_the_members_of_a_request_that_the_document_names(
    client: Client, operation: Operation
) -> None:
    schema: Any = SCHEMAS[operation.body or ""]
    choices = [SCHEMAS[each["$ref"].rpartition("/")[2]] for each in schema.get("oneOf", ())]
    named = {name for each in choices or [schema] for name in each["properties"]}
    path = operation.path.replace("{epoch}", "7").replace("{message}", "00" * 20)

    reply = client.call(operation.method, re.sub(r"{\w+}", "x", path), {"noMember": []})

    detail, _, taken = reply.json["detail"].partition("; it takes ")
    assert detail.endswith('has no member "noMember"')
    assert taken.split(", ") == sorted(named)


def test_the_table_of_errors_is_that_of_the_classes() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (.*) \|$", PROTOCOL, re.MULTILINE)
    table = {
        code: int(status)
        for status, codes in rows
        for code in re.findall(r"`([a-z_]+)`", re.sub(r"\([^)]*\)", "", codes))
    }

    assert table == {code: kind.status for code, kind in BY_CODE.items()}


def test_client_and_server_give_the_same_reasons_for_an_invalid_transaction() -> None:
    """The client accepts reasons of later servers, and the server no unknown ones in its files. So
    each has an enumeration."""
    assert [each.value for each in ClientInvalidReason] == [each.value for each in InvalidReason]


@pytest.mark.parametrize("file", CONF, ids=lambda file: file.name)
def test_a_settings_file_has_every_key_and_no_other(file: Path) -> None:
    found = tomllib.loads(file.read_text("utf-8"))

    assert {name: set(section) for name, section in found.items()} == {
        name: {key_of(entry) for entry in fields(kind)} for name, kind in SECTIONS.items()
    }


@pytest.mark.parametrize("file", CONF, ids=lambda file: file.name)
def test_every_key_of_a_settings_file_has_a_comment(file: Path) -> None:
    lines = file.read_text("utf-8").splitlines()
    bare = [
        line
        for number, line in enumerate(lines)
        if re.match(r"\w+ *=", line)
        and "#" not in line
        and not (number and lines[number - 1].lstrip().startswith("#"))
    ]

    assert bare == []


def test_the_protocol_names_every_setting_with_its_default() -> None:
    documented = documented_settings()
    choices = documented.pop(("messaging", "store"))

    assert choices.split("|")[0] == default_of("messaging", "store")
    assert documented.keys() | {("messaging", "store")} == {
        (name, key_of(entry)) for name, kind in SECTIONS.items() for entry in fields(kind)
    }
    for (section, key), value in documented.items():
        default = default_of(section, key)
        if isinstance(default, bool):
            assert value == str(default).lower(), key
        elif isinstance(default, int | float):
            assert float(value) == default, key
        else:
            assert value.strip('"') == str(default), key


def test_the_words_of_the_glossary_are_those_of_the_code() -> None:
    """A term whose name in the code is gone would teach a newcomer a dead word."""
    code = "\n".join(
        path.read_text("utf-8")
        for folder in (
            "tuff",
            "tx",
            "messaging",
            "process",
            "admin",
            "pyspark_tuff",
            "pipeline",
            "conf",
        )
        for kind in ("*.py", "*.toml")
        for path in (ROOT / folder).rglob(kind)
    )
    words = set(re.findall(r"\w+", code))
    glossary = (ROOT / "docs/glossary.md").read_text("utf-8")
    rows = re.findall(r"^\| (\*\*[^|]+) \|.*\| ([^|]*) \|$", glossary, re.MULTILINE)
    dead = [
        f"{term}: {word}"
        for term, in_code in rows
        for quoted in re.findall(r"`([^`]+)`", in_code)
        for word in re.findall(r"[A-Za-z_]{3,}", quoted)[:1]
        if word.removeprefix("tuff_") not in words and not (ROOT / quoted).is_file()
    ]

    assert len(rows) > 40
    assert dead == []
