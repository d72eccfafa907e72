"""The calls of the protocol, as methods of a topic and of a transaction."""

from collections.abc import Mapping
from typing import Any

from tests.http.client import AVRO, Client, Reply, ok

TRANSACTIONS = "/v1/transactions"


class Topic:
    """One topic, by name; it need not exist."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self.client = client
        self.namespace = namespace
        self.name = name

    @property
    def path(self) -> str:
        return f"/v1/namespaces/{self.namespace}/topics/{self.name}"

    def create(self, properties: Mapping[str, object] | None = None) -> Reply:
        return self.client.put(self.path, properties)

    def update(self, properties: Mapping[str, object]) -> Reply:
        return self.client.put(f"{self.path}/properties", properties)

    def change(self, properties: Mapping[str, object], **query: object) -> Reply:
        return self.client.call("PATCH", f"{self.path}/properties", properties, **query)

    def show(self) -> Reply:
        return self.client.get(self.path)

    def delete(self) -> Reply:
        return self.client.delete(self.path)

    def truncate(self, before: object) -> Reply:
        return self.client.post(f"{self.path}/truncate", {"before": before})

    def publish(self, *messages: object, tx: object = None, **query: object) -> Reply:
        body = {"transactionWritePointer": tx, "messages": list(messages)}
        return self.client.post(f"{self.path}/publish", body, **query)

    def store(self, *messages: object, tx: object = None, **query: object) -> Reply:
        body = {"transactionWritePointer": tx, "messages": list(messages)}
        return self.client.post(f"{self.path}/store", body, **query)

    def rollback(self, detail: object) -> Reply:
        return self.client.post(f"{self.path}/rollback", detail)

    def poll(self, body: Mapping[str, object] | None = None, **query: object) -> Reply:
        return self.client.post(f"{self.path}/poll", dict(body or {}), **query)

    def read(self, body: Mapping[str, object] | None = None, **query: object) -> list[Any]:
        """The payloads that this poll brings."""
        return payloads(self.poll(body, **query))

    def committed(self) -> list[Any]:
        """What a reader with a fresh snapshot sees, from the beginning."""
        return self.read(isolation="committed")

    def browse(self, **query: object) -> Reply:
        return self.client.get(f"{self.path}/messages", **query)

    def offsets(self, **query: object) -> Reply:
        return self.client.get(f"{self.path}/offsets", **query)

    def avro(self, call: str, body: bytes, accept: str | None = None, **query: object) -> Reply:
        headers = {} if accept is None else {"Accept": accept}
        path = f"{self.path}/{call}"
        return self.client.send("POST", path, body, content_type=AVRO, headers=headers, query=query)


def created(client: Client, namespace: str, name: str) -> Topic:
    """A topic that this call creates."""
    topic = Topic(client, namespace, name)
    ok(topic.create())
    return topic


class Tx:
    """A transaction that was started; `object` is what the start answered (protocol §5.1)."""

    def __init__(self, client: Client, started: Mapping[str, Any]) -> None:
        self.client = client
        self.object = started
        self.id: str = started["transactionId"]

    @property
    def path(self) -> str:
        return f"{TRANSACTIONS}/{self.id}"

    def can_commit(self, *changes: object) -> Reply:
        return self.client.post(f"{self.path}/can-commit", {"changes": list(changes)})

    def commit(self, **body: object) -> Reply:
        return self.client.post(f"{self.path}/commit", body or None)

    def abort(self) -> Reply:
        return self.client.post(f"{self.path}/abort")

    def invalidate(self) -> Reply:
        return self.client.post(f"{self.path}/invalidate")

    def checkpoint(self) -> Reply:
        return self.client.post(f"{self.path}/checkpoint")

    def outcome(self) -> Reply:
        return self.client.get(self.path)

    def state(self) -> str:
        return str(ok(self.outcome()).json["state"])


def begin(client: Client, /, **body: object) -> Tx:
    """Start a transaction."""
    reply = client.post(TRANSACTIONS, body or None)
    assert reply.status == 201, f"{reply.request}\n-> {reply.status} {reply.body!r}"
    return Tx(client, reply.json)


def entry(topic: Topic, *messages: object, **more: object) -> dict[str, object]:
    """One member of `publish` in a commit or a run (protocol §5.2)."""
    return {
        "namespace": topic.namespace, "topic": topic.name, "messages": list(messages), **more,
    }  # fmt: skip


def payloads(reply: Reply) -> list[Any]:
    return [message["payload"] for message in ok(reply).json]


def ids(reply: Reply) -> list[str]:
    return [message["id"] for message in ok(reply).json]


def metrics_of(client: Client) -> dict[str, float]:
    """All metrics, by name with labels."""
    lines = ok(client.get("/metrics")).body.decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}
