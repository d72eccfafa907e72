"""Clients of a simulated cluster. Each request goes to some server, and its reply is recorded and
checked at the moment it comes."""

import json
from base64 import b64decode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernel.requests_and_replies import Reply
from kernel.requests_and_replies import Request as HttpRequest
from tests.simulation.cluster.node import Process
from tests.simulation.cluster.observations import (
    ObservedTopic,
    Publish,
    Read,
    Request,
    Truncation,
)
from tests.simulation.invariants import BrokenPromiseError
from tests.simulation.observations import NEVER, Applied, Tx
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.transaction import Transaction

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

_JSON = "application/json"
# Refusals after which nothing was done, by their codes. Every other error leaves it open.
_NOTHING_DONE = frozenset(
    {"ownership_moving", "topic_not_found", "topic_already_exists", "overloaded", "starting"}
)
_ENDED = ("committed", "aborted", "invalid")
_STATES = {
    "transaction_prepared": "prepared",
    "transaction_committed": "committed",
    "transaction_aborted": "aborted",
    "transaction_invalidated": "invalid",
    "transaction_timed_out": "invalid",
}


class Clients:
    """All clients together."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._serial = 0
        # The messages of commits, by transaction.
        self._finals: dict[int, list[tuple[ObservedTopic, Publish]]] = {}
        self.refusals: dict[str, int] = {}  # for the statistics

    async def create(self, process: Process, topic: ObservedTopic) -> Reply:
        properties = {} if topic.id.number is None else {"partitions": "2"}
        return await self._call(process, "PUT", _path(topic.id.unit), properties)

    async def delete(self, process: Process, topic: ObservedTopic) -> None:
        request = Request(invoked=self._world.moment(), invoked_ms=self._world.now_ms())
        topic.deletions.append(request)
        reply = await self._call(process, "DELETE", _path(topic.id.unit))
        self._end(request, reply)

    async def truncate(self, process: Process, topic: ObservedTopic, before: bytes) -> None:
        request = Truncation(
            invoked=self._world.moment(), invoked_ms=self._world.now_ms(), before=before
        )
        topic.truncations.append(request)
        body = {"before": before.hex()}
        self._end(request, await self._call(process, "POST", f"{_path(topic.id)}/truncate", body))

    async def publish(
        self, process: Process, topic: ObservedTopic, tx: Tx | None = None
    ) -> Publish:
        """Publish a message, in a transaction if one is given."""
        publish = self.new_publish(topic, tx)
        has_ended = tx is not None and (tx.is_over or tx.state == "prepared")
        body: dict[str, object] = {"messages": [publish.payload]}
        if tx is not None:
            body["transactionWritePointer"] = str(tx.id)
        reply = await self._call(process, "POST", f"{_path(topic.id)}/publish", body)
        self._end(publish, reply)
        if reply.status == 200:
            if has_ended:
                raise BrokenPromiseError(f"transactions: {publish} was written after the end")
            topic.acknowledged(publish, bytes.fromhex(dict(reply.headers)["Tuff-First-Id"]))
        elif tx is not None:
            self._learn(tx, reply, publish.invoked)
        return publish

    def new_publish(self, topic: ObservedTopic, tx: Tx | None) -> Publish:
        self._serial += 1
        publish = Publish(
            invoked=self._world.moment(),
            invoked_ms=self._world.now_ms(),
            payload=f"m{self._serial}",
            above=topic.highest_id,
            tx=tx,
        )
        topic.publishes[publish.payload] = publish
        return publish

    async def read(
        self,
        process: Process,
        topic: ObservedTopic,
        start: bytes,
        *,
        is_committed: bool = False,
        reader: Tx | None = None,
    ) -> Read | None:
        """Read from an id, exclusive; None if it was refused."""
        invoked, invoked_ms = self._world.moment(), self._world.now_ms()
        where = f"from={start.hex()}&inclusive=false" if start else "from=earliest"
        if is_committed:
            where += "&isolation=committed"
        elif reader is not None:
            where += f"&tx={reader.id}&undecided=skip"
        reply = await self._call(process, "GET", f"{_path(topic.id)}/messages?{where}")
        if reply.status != 200:
            if reader is not None:
                self._learn(reader, reply, invoked)
            return None
        headers = dict(reply.headers)
        read = Read(
            is_committed=is_committed,
            reader=reader,
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

    async def start(self, process: Process, timeout_s: int = 30) -> Tx | None:
        invoked = self._world.moment()
        reply = await self._call(process, "POST", "/v1/transactions", {"timeout": timeout_s})
        if reply.status != 201:
            return None
        shown = json.loads(reply.body)
        tx = Tx(
            id=int(shown["transactionId"]),
            is_long=False,
            snapshot=Transaction.from_bytes(b64decode(shown["encoded"])),
            invoked=invoked,
            completed=self._world.moment(),
            pointers=[int(shown["transactionId"])],
        )
        self._world.transactions.started(tx)
        return tx

    async def commit(
        self,
        process: Process,
        tx: Tx,
        changes: frozenset[str] = frozenset(),
        topics: Sequence[ObservedTopic] = (),
    ) -> bool:
        """Commit with a message to each of these topics; whether that was done."""
        invoked = self._world.moment()
        tx.commit_invoked = min(tx.commit_invoked, invoked)
        body = self._commit_body(tx, changes, topics)
        return await self._publish_all(process, tx, "commit", body, invoked)

    async def prepare(
        self,
        process: Process,
        tx: Tx,
        changes: frozenset[str] = frozenset(),
        topics: Sequence[ObservedTopic] = (),
    ) -> bool:
        """Prepare with a message to each of these topics; whether that was done."""
        invoked = self._world.moment()
        tx.prepare_invoked = min(tx.prepare_invoked, invoked)
        body = {**self._commit_body(tx, changes, topics), "database": "db"}
        return await self._publish_all(process, tx, "prepare", body, invoked)

    async def resolve(self, process: Process, tx: Tx, outcome: str) -> bool:
        """End a transaction that may be prepared; whether it has ended then."""
        invoked = self._world.moment()
        tx.resolved.add(outcome)
        if outcome == "commit":
            tx.commit_invoked = min(tx.commit_invoked, invoked)
        else:
            tx.abort_invoked = min(tx.abort_invoked, invoked)
            tx.cleared = min(tx.cleared, invoked)
        body = {"outcome": outcome}
        reply = await self._call(process, "POST", f"/v1/transactions/{tx.id}/resolve", body)
        self._learn(tx, reply, invoked)
        return tx.is_over

    async def end(self, process: Process, tx: Tx) -> bool:
        """Commit what has committed, once more, and end all others; whether that was done."""
        if tx.prepare_invoked == NEVER:
            end = self.commit if tx.state == "committed" else self.abort
            return await end(process, tx)
        outcome = "commit" if tx.state == "committed" or tx.id % 2 else "abort"
        if tx.state in ("prepared", "committed"):
            return await self.resolve(process, tx, outcome)
        return await self.resolve(process, tx, "abort")

    def _commit_body(
        self, tx: Tx, changes: frozenset[str], topics: Sequence[ObservedTopic]
    ) -> dict[str, object]:
        if tx.surely is None:  # a repetition names the same changes and messages
            tx.surely = frozenset(map(str.encode, changes))
            self._finals[tx.id] = [(topic, self.new_publish(topic, tx)) for topic in topics]
        return {
            "changes": sorted(each.decode() for each in tx.surely),
            "publish": [
                {
                    "namespace": topic.id.namespace,
                    "topic": topic.id.name,
                    "messages": [publish.payload],
                }
                for topic, publish in self._finals[tx.id]
            ],
        }

    async def _publish_all(
        self, process: Process, tx: Tx, call: str, body: dict[str, object], invoked: int
    ) -> bool:
        reply = await self._call(process, "POST", f"/v1/transactions/{tx.id}/{call}", body)
        self._learn(tx, reply, invoked)
        if reply.status != 200:
            return False
        details = json.loads(reply.body)["published"]
        for (topic, publish), detail in zip(self._finals[tx.id], details, strict=True):
            self._end(publish, reply)
            first = MessageId(detail["startTimestamp"], detail["startSequenceId"])
            topic.acknowledged(publish, first.to_bytes())
        return True

    async def abort(self, process: Process, tx: Tx) -> bool:
        """Abort; whether it is over then, with all rows marked."""
        invoked = self._world.moment()
        tx.abort_invoked = min(tx.abort_invoked, invoked)
        tx.cleared = min(tx.cleared, invoked)  # an abort takes it off the invalid list
        reply = await self._call(process, "POST", f"/v1/transactions/{tx.id}/abort")
        self._learn(tx, reply, invoked)
        return reply.status in (200, 409)

    async def ask(self, process: Process, tx: Tx) -> bool:
        """Ask for the outcome; whether it has ended."""
        invoked = self._world.moment()
        reply = await self._call(process, "GET", f"/v1/transactions/{tx.id}")
        self._learn(tx, reply, invoked)
        return reply.status == 200 and tx.is_over

    async def snapshot(self, process: Process) -> None:
        await self._call(process, "POST", "/v1/transactions/snapshot", {})

    def _learn(self, tx: Tx, reply: Reply, invoked: int) -> None:
        """What a reply says of a transaction that has ended. Raises: BrokenPromiseError."""
        shown = json.loads(reply.body) if reply.body else {}
        if shown.get("code") == "transaction_unknown" and tx.committed < invoked:
            raise BrokenPromiseError(
                f"outcome: {tx.id} had committed, and a reply does not know it"
            )
        state = shown.get("state") if reply.status == 200 else _STATES.get(shown.get("code"))
        world = self._world
        if state == "prepared":
            world.transactions.prepared(tx, invoked=invoked, completed=world.moment())
        if state in _ENDED:
            world.transactions.ended(
                tx, state, invoked=invoked, completed=world.moment(), now_ms=world.now_ms()
            )

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
        """A reply that leaves the outcome open ends nothing: the request may arrive later."""
        if reply.status < 300:
            request.applied = Applied.YES
        elif json.loads(reply.body)["code"] in _NOTHING_DONE:
            request.applied = Applied.NO
        else:
            return
        request.completed, request.completed_ms = self._world.moment(), self._world.now_ms()


def _path(topic: TopicId) -> str:
    return f"/v1/namespaces/{topic.namespace}/topics/{topic.name}"
