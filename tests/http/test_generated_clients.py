"""Clients that two generators make of a server's own OpenAPI document, and one of them at work."""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.http.calls import Topic
from tests.http.client import Client, ok
from tests.http.process import ServerProcess
from tuff.protocol.operations import OPERATIONS
from tuff_storage.disk.backup_archive import pack_head

pytestmark = pytest.mark.tools

GENERATED_WITHIN_S = 120
NAMESPACE = "generated"


def generate(*command: str, home: Path) -> str:
    """What the generator said."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=home, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True,
        timeout=GENERATED_WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, server: ServerProcess) -> Iterator[Path]:
    """A directory with the server's document, from which Python imports."""
    place = tmp_path_factory.mktemp("generated")
    shown = ok(server.client().get("/openapi.json"))
    (place / "openapi.json").write_bytes(shown.body)
    sys.path.insert(0, str(place))
    yield place
    sys.path.remove(str(place))


@pytest.fixture(scope="module")
def said_of_client(home: Path) -> str:
    # Without its hooks, which only lay the code out anew.
    (home / "config.yml").write_text("post_hooks: []")
    return generate(
        "openapi_python_client", "generate", "--path", "openapi.json", "--config", "config.yml",
        "--meta", "none", "--output-path", "generated_client", "--fail-on-warning", home=home,
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(said_of_client: str) -> ModuleType:
    """The generated client, all of it imported."""
    assert said_of_client
    package = importlib.import_module("generated_client")
    for module in pkgutil.walk_packages(package.__path__, "generated_client."):
        importlib.import_module(module.name)
    return package


@pytest.fixture(scope="module")
def said_of_models(home: Path) -> str:
    return generate(
        "datamodel_code_generator", "--input", "openapi.json", "--input-file-type", "openapi",
        "--output-model-type", "pydantic_v2.BaseModel", "--formatters", "builtin",
        "--output", "generated_models.py", home=home,
    )  # fmt: skip


@pytest.fixture(scope="module")
def models(said_of_models: str) -> ModuleType:
    """The classes of the second generator."""
    assert said_of_models == ""
    return importlib.import_module("generated_models")


@pytest.fixture(scope="module")
def schemas(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "openapi.json").read_text())
    return found["components"]["schemas"]  # type: ignore[no-any-return]  # JSON


class Calls:
    """The functions of the generated client, by the operation's name, against one server."""

    def __init__(self, made: ModuleType, client: Any) -> None:
        self._modules = {
            endpoint.name: sys.modules[f"{made.__name__}.api.{endpoint.tag}.{snake(endpoint.name)}"]
            for endpoint in OPERATIONS
        }
        self._client = client

    def __call__(self, name: str, *path: str, **named: object) -> Any:
        """What it parsed of the reply."""
        return self._modules[name].sync_detailed(*path, client=self._client, **named).parsed

    async def in_a_loop(self, name: str, *path: str, **named: object) -> Any:
        reply = await self._modules[name].asyncio_detailed(*path, client=self._client, **named)
        return reply.parsed


def snake(name: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", name).lower()


@pytest.fixture
def calls(made: ModuleType, server: ServerProcess) -> Iterator[Calls]:
    with made.Client(base_url=server.url, raise_on_unexpected_status=True) as client:
        yield Calls(made, client)


@pytest.fixture
def audit(client: Client, request: pytest.FixtureRequest) -> str:
    """The name of a topic of this test."""
    topic = Topic(client, NAMESPACE, f"audit-{abs(hash(request.node.name))}")
    ok(topic.create())
    return topic.path.rpartition("/")[2]


def test_a_client_is_generated_without_a_warning(said_of_client: str) -> None:
    assert said_of_client.split() == ["Generating", "generated_client"]


def test_models_are_generated_without_a_warning(said_of_models: str) -> None:
    assert said_of_models == ""


def test_the_client_has_every_operation_for_threads_and_for_loops(made: ModuleType) -> None:
    for endpoint in OPERATIONS:
        module = f"{made.__name__}.api.{endpoint.tag}.{snake(endpoint.name)}"
        assert {"sync_detailed", "asyncio_detailed"} <= vars(sys.modules[module]).keys(), module


def test_each_class_of_the_client_is_a_schema_of_the_document(
    made: ModuleType, schemas: dict[str, Any]
) -> None:
    """Of 300 classes most had a made-up name, and `Topic` and `Transaction` were missing."""
    expected = {
        name
        for name, schema in schemas.items()
        if "enum" in schema or schema.get("type") == "object"
    }

    assert set(made.models.__all__) == expected
    assert {"Topic", "Transaction", "PublishRequest", "Message", "Problem"} <= expected


def test_each_class_of_the_models_is_a_schema_of_the_document(
    models: ModuleType, schemas: dict[str, Any]
) -> None:
    own = {
        name
        for name, found in vars(models).items()
        if isinstance(found, type) and found.__module__ == models.__name__ and "[" not in name
    }

    assert own == set(schemas)


def test_a_generated_client_publishes_and_polls(calls: Calls, made: ModuleType, audit: str) -> None:
    of = made.models
    payloads = ["text", of.BinaryPayload(base64="/w=="), of.MessageWithTtl(payload="x", ttl=60)]

    published = calls("publish", NAMESPACE, audit, body=of.PublishRequest(messages=payloads))
    polled = calls("poll", NAMESPACE, audit, body=of.ConsumeRequest(limit=10))
    rest = calls(
        "poll", NAMESPACE, audit, body=of.ConsumeRequest(start_from=polled[0].id, inclusive=False)
    )

    assert published is None
    assert [each.payload for each in polled] == ["text", of.BinaryPayload(base64="/w=="), "x"]
    assert rest == polled[1:]


def test_a_generated_client_publishes_under_a_transaction(
    calls: Calls, made: ModuleType, audit: str
) -> None:
    of = made.models
    committed = of.Isolation.COMMITTED

    started = calls("startTransaction", body=of.StartTransactionRequest(client="audit", timeout=20))
    body = of.PublishRequest(["in it"], transaction_write_pointer=started.write_pointer)
    calls("publish", NAMESPACE, audit, body=body)
    before = calls("poll", NAMESPACE, audit, isolation=committed)
    ended = calls("commit", started.transaction_id, body=of.CommitRequest())
    after = calls("poll", NAMESPACE, audit, isolation=committed)

    assert started.state is of.TransactionState.IN_PROGRESS
    assert started.type_ is of.TransactionType.SHORT
    assert before == []
    assert ended.state == "committed"
    assert [each.payload for each in after] == ["in it"]
    outcome = calls("getOutcome", started.transaction_id)
    assert outcome.state is of.TransactionState.COMMITTED


async def test_a_generated_client_publishes_in_a_commit_and_is_told_where(
    made: ModuleType, server: ServerProcess, audit: str
) -> None:
    of = made.models
    entry = of.PublishEntry(NAMESPACE, audit, ["last of all"])
    async with made.Client(base_url=server.url, raise_on_unexpected_status=True) as client:
        calls = Calls(made, client)

        started = await calls.in_a_loop("startTransaction")
        body = of.CommitRequest(changes=["a row"], publish=[entry])
        ended = await calls.in_a_loop("commit", started.transaction_id, body=body)
        (published,) = ended.published
        undo = of.RollbackRequest.from_dict(published.to_dict())
        refusal = await calls.in_a_loop("rollback", NAMESPACE, audit, body=undo)

    assert refusal.code == "transaction_committed"


def test_a_generated_client_reads_what_a_refusal_says(calls: Calls, made: ModuleType) -> None:
    of = made.models
    body = of.CommitRequest(changes=["the same row"])
    first, second = calls("startTransaction"), calls("startTransaction")

    calls("commit", first.transaction_id, body=body)
    refusal = calls("commit", second.transaction_id, body=body)

    assert isinstance(refusal, of.Problem)
    assert (refusal.status, refusal.code) == (409, "transaction_conflict")
    assert refusal.key == "the same row"
    assert refusal.conflicting_transaction == first.transaction_id


def test_a_generated_client_makes_and_shows_a_topic(calls: Calls, made: ModuleType) -> None:
    of = made.models
    properties = of.TopicPropertiesInput(ttl=60)
    properties["owner"] = "billing"

    calls("createTopic", NAMESPACE, "made", body=properties)
    topic = calls("getTopic", NAMESPACE, "made")

    assert isinstance(topic, of.Topic)
    assert topic.properties.to_dict() == {"ttl": "60", "owner": "billing"}


def test_a_generated_client_takes_a_backup(calls: Calls) -> None:
    assert calls("takeBackup").payload.read().startswith(pack_head())


def test_the_replies_of_a_server_are_those_of_the_generated_models(
    client: Client, models: ModuleType, audit: str
) -> None:
    topic = f"/v1/namespaces/{NAMESPACE}/topics/{audit}"
    started = client.post("/v1/transactions").json
    body = models.PublishRequest(messages=["x"], transactionWritePointer=started["writePointer"])
    sent = body.model_dump_json(exclude_none=True).encode()
    published = ok(client.send("POST", f"{topic}/publish", sent, content_type="application/json"))

    transaction = models.Transaction.model_validate(started)

    assert transaction.transactionId.root == started["transactionId"]
    assert models.PublishResponse.model_validate(published.json).startSequenceId >= 0
    assert models.Topic.model_validate(client.get(topic).json).name.root == audit
    (message,) = models.MessageList.model_validate(client.get(f"{topic}/messages").json).root
    assert message.payload.root == "x"
    assert models.Overview.model_validate(client.get("/v1/transactions").json).inProgress
    assert models.Readiness.model_validate(client.get("/health/ready").json).status
    problem = client.get(f"{topic}/holds/none").json
    assert models.Problem.model_validate(problem).code == problem["code"]
