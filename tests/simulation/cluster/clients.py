"""Clients of a simulated cluster. Each request goes to some server, and its reply is recorded and
checked at the moment it comes."""

import json
from typing import TYPE_CHECKING, Any

from tests.simulation.cluster.node import Process
from tests.simulation.cluster.observations import (
    ObservedTopic,
    Publish,
    Read,
    Request,
    Truncation,
    Tx,
)
from tests.simulation.observations import Applied
from tuff.protocol.exchange import Reply
from tuff.protocol.exchange import Request as HttpRequest

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

_JSON = "application/json"
# Refusals after which nothing was done, by their codes. Every other error leaves it open.
_NOTHING_DONE = frozenset(
    {"ownership_moving", "topic_not_found", "topic_already_exists", "overloaded", "starting"}
)
_ENDED = ("committed", "aborted", "invalid")


class Clients:
    """All clients together."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._serial = 0
        self.refusals: dict[str, int] = {}  # for the statistics

    async def create(self, process: Process, topic: ObservedTopic) -> Reply:
        return await self._call(process, "PUT", _path(topic), {})

    async def delete(self, process: Process, topic: ObservedTopic) -> None:
        request = Request(invoked=self._world.moment(), invoked_ms=self._world.now_ms())
        topic.deletions.append(request)
        reply = await self._call(process, "DELETE", _path(topic))
        self._end(request, reply)

    async def truncate(self, process: Process, topic: ObservedTopic, before: bytes) -> None:
        request = Truncation(
            invoked=self._world.moment(), invoked_ms=self._world.now_ms(), before=before
        )
        topic.truncations.append(request)
        body = {"before": before.hex()}
        self._end(request, await self._call(process, "POST", f"{_path(topic)}/truncate", body))

    async def publish(self, process: Process, topic: ObservedTopic) -> Publish:
        self._serial += 1
        publish = Publish(
            invoked=self._world.moment(),
            invoked_ms=self._world.now_ms(),
            payload=f"m{self._serial}",
            above=topic.highest_id,
        )
        topic.publishes[publish.payload] = publish
        body = {"messages": [publish.payload]}
        reply = await self._call(process, "POST", f"{_path(topic)}/publish", body)
        self._end(publish, reply)
        if reply.status == 200:
            topic.acknowledged(publish, bytes.fromhex(dict(reply.headers)["Tuff-First-Id"]))
        return publish

    async def read(self, process: Process, topic: ObservedTopic, start: bytes) -> Read | None:
        """Read from an id, exclusive; None if it was refused."""
        invoked, invoked_ms = self._world.moment(), self._world.now_ms()
        where = f"from={start.hex()}&inclusive=false" if start else "from=earliest"
        reply = await self._call(process, "GET", f"{_path(topic)}/messages?{where}")
        if reply.status != 200:
            return None
        headers = dict(reply.headers)
        read = Read(
            invoked=invoked,
            invoked_ms=invoked_ms,
            completed=self._world.moment(),
            start=start,
            next_id=bytes.fromhex(headers["Tuff-Next"]),
            rows=[(bytes.fromhex(row["id"]), row["payload"]) for row in json.loads(reply.body)],
            is_caught_up=headers["Tuff-Caught-Up"] == "true",
        )
        topic.check(read)
        return read

    # Transactions.

    async def start(self, process: Process) -> Tx | None:
        invoked = self._world.moment()
        reply = await self._call(process, "POST", "/v1/transactions", {"lists": False})
        if reply.status != 201:
            return None
        pointer = int(json.loads(reply.body)["transactionId"])
        tx = Tx(id=pointer, invoked=invoked, started=self._world.moment())
        self._world.transactions.started(tx)
        return tx

    async def commit(self, process: Process, tx: Tx, changes: frozenset[str]) -> None:
        tx.changes = tx.changes or changes  # a repetition names the same ones
        tx.commit_invoked = min(tx.commit_invoked, self._world.moment())
        body = {"changes": sorted(tx.changes)}
        reply = await self._call(process, "POST", f"/v1/transactions/{tx.id}/commit", body)
        tx.commit_completed = min(tx.commit_completed, self._world.moment())
        self._learn(tx, reply)

    async def ask(self, process: Process, tx: Tx) -> bool:
        """Ask for the outcome; whether there was an answer."""
        reply = await self._call(process, "GET", f"/v1/transactions/{tx.id}")
        self._learn(tx, reply)
        return reply.status == 200

    async def snapshot(self, process: Process) -> None:
        await self._call(process, "POST", "/v1/transactions/snapshot", {})

    def _learn(self, tx: Tx, reply: Reply) -> None:
        shown = json.loads(reply.body) if reply.body else {}
        if reply.status == 200 and shown.get("state") in _ENDED:
            tx.learn(shown["state"])

    async def _call(self, process: Process, method: str, target: str, body: Any = None) -> Reply:
        data = b"" if body is None else json.dumps(body).encode()
        request = HttpRequest({}, (), _JSON if data else None, None, data)
        if not process.is_open:
            return Reply(503, _JSON, b'{"code": "starting"}')
        reply = await process.answer(method, target, request)
        if reply.status >= 300:
            code = json.loads(reply.body)["code"]
            self.refusals[code] = self.refusals.get(code, 0) + 1
        return reply

    def _end(self, request: Request, reply: Reply) -> None:
        request.completed, request.completed_ms = self._world.moment(), self._world.now_ms()
        if reply.status < 300:
            request.applied = Applied.YES
        elif json.loads(reply.body)["code"] in _NOTHING_DONE:
            request.applied = Applied.NO


def _path(topic: ObservedTopic) -> str:
    return f"/v1/namespaces/{topic.id.namespace}/topics/{topic.id.name}"
