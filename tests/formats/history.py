"""A history of every kind of request over HTTP, and the state that the API shows afterwards."""

import base64
from dataclasses import dataclass
from typing import Any

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, entry
from tests.http.client import Client, ok

NOT_TEXT = {"base64": base64.b64encode(b"\x00\xff").decode()}


@dataclass(frozen=True, slots=True)
class Expected:
    """The state by the API: topics with generation and properties; messages by topic, for readers
    without a snapshot and with a fresh one; transactions by id."""

    topics: dict[str, tuple[int, dict[str, str]]]
    all_messages: dict[str, list[tuple[str, Any]]]
    committed_messages: dict[str, list[tuple[str, Any]]]
    transactions: dict[int, tuple[str, str | None]]
    in_progress: set[int]
    invalids: set[int]
    read_pointer: int
    write_pointer: int


class History:
    """Makes requests of every kind, in namespaces whose names begin with `name`."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.main = self._topic(name, "main", ttl=5000, owner="me")
        self.side = self._topic(f"{name}.side", "side")
        self.held = self._topic(name, "held")
        self.branched = self._topic(name, "branched")
        self.cut = self._topic(name, "cut")
        self.again = self._topic(name, "again")
        self.gone = self._topic(name, "gone")
        self.transactions: list[Tx] = []

    def make(self) -> "History":
        self._publish_plainly()
        self._commit_and_abort()
        self._store()
        self._checkpoint_and_conflict()
        ok(self.client.post(f"{TRANSACTIONS}/snapshot"))
        self._change_topics()
        self._end_otherwise()
        self._leave_open()
        ok(self._begin().commit(changes=["last"]))
        # The end waits for its fsync, and with it for all that was logged before. It is the highest
        # pointer of all, and must not raise the read pointer: what it wrote was not undone.
        ok(self._begin(type="long").abort())
        return self

    def _topic(self, namespace: str, name: str, **properties: object) -> Topic:
        topic = Topic(self.client, namespace, name)
        ok(topic.create(properties))
        return topic

    def _begin(self, **body: object) -> Tx:
        self.transactions.append(begin(self.client, **body))
        return self.transactions[-1]

    def _publish_plainly(self) -> None:
        ok(self.main.publish("plain", NOT_TEXT, "ünï"))
        ok(self.main.publish("brief", {"payload": "briefer", "ttl": 3000}, ttl=4000))
        for topic in (self.side, self.held, self.cut, self.again, self.gone):
            ok(topic.publish("first", "second", "third"))

    def _commit_and_abort(self) -> None:
        committed, aborted, invalid = self._begin(client="c"), self._begin(), self._begin()
        ok(committed.can_commit("a"))
        for tx in (committed, aborted, invalid):
            ok(self.main.publish(f"of {tx.id}", "more", tx=tx.id))
        ok(committed.commit(changes=["b"]))
        ok(aborted.abort())
        ok(invalid.invalidate())
        both = [entry(self.main, "run"), entry(self.side, "run too", NOT_TEXT)]
        ran = {"publish": both, "requestId": f"once {committed.id}"}
        ok(self.client.post(f"{TRANSACTIONS}/run", ran))

    def _store(self) -> None:
        tx, aborted = self._begin(), self._begin()
        for each in (tx, aborted):
            ok(self.main.store("stored", {"payload": "stored briefly", "ttl": 3000}, tx=each.id))
        ok(self.side.store("stored elsewhere", tx=tx.id))
        ok(self.main.store("stored later", NOT_TEXT, tx=tx.id))
        for each in (aborted, tx):
            ok(self.main.publish(tx=each.id))
        ok(self.main.store("never brought", tx=tx.id))
        ok(self.main.publish("between", tx=tx.id))
        ok(self.side.publish("plain between"))
        ok(aborted.abort())
        ok(tx.commit(publish=[entry(self.side), entry(self.main, "final")]))
        nothing = self._begin()
        ok(self.main.publish(tx=nothing.id))
        ok(nothing.commit())

    def _checkpoint_and_conflict(self) -> None:
        tx, loser = self._begin(), self._begin()
        ok(self.main.publish("before the checkpoint", tx=tx.id))
        pointer = ok(tx.checkpoint()).json["writePointer"]
        ok(self.main.publish("behind the checkpoint", tx=pointer))
        ok(tx.commit(changes=["contended"]))
        ok(self.main.publish("of the loser", tx=loser.id))
        assert loser.commit(changes=["contended"]).status == 409
        ok(loser.abort())

    def _change_topics(self) -> None:
        ok(self.gone.delete())
        ok(self.again.delete())
        ok(self.again.create({"ttl": 900}))
        ok(self.again.publish("of the next generation"))
        ok(self.side.update({"color": "blue", "ttl": 800_000}))
        ok(self.cut.truncate(ok(self.cut.poll()).json[1]["id"]))

    def _end_otherwise(self) -> None:
        removed, aborted_late, long_one = self._begin(), self._begin(), self._begin(type="long")
        for tx in (removed, aborted_late):
            ok(tx.checkpoint())
            ok(tx.invalidate())
        ok(aborted_late.abort())
        ok(long_one.abort())
        ok(self.client.post(f"{TRANSACTIONS}/invalid/truncate", {"ids": [removed.id]}))
        ok(self._begin().commit(readOnly=True))

    def _leave_open(self) -> None:
        holds, committing, loser = self._begin(), self._begin(), self._begin()
        self._begin(type="long", client="etl")
        detail = ok(self.held.publish("rolled back", tx=holds.id)).json
        ok(self.held.rollback(detail))
        ok(self.held.publish("before it", tx=None))
        ok(self.held.publish("undecided", tx=holds.id))
        ok(self.held.publish("behind it"))
        pointer = ok(holds.checkpoint()).json["writePointer"]
        ok(self.branched.publish("seen"))
        ok(self.branched.publish("undecided", tx=pointer))
        ok(self.held.store("stored and open", tx=holds.id))
        ok(committing.can_commit("x", "y"))
        ok(self._begin().commit(changes=["z"]))
        assert loser.can_commit("z").status == 409

    def with_client(self, client: Client) -> "History":
        """The same history, with a client of the restarted server."""
        self.client = client
        self.transactions = [Tx(client, tx.object) for tx in self.transactions]
        return self

    def expected(self) -> Expected:
        """The state by the API now."""
        overview = ok(self.client.get(TRANSACTIONS)).json
        invalid = ok(self.client.get(f"{TRANSACTIONS}/invalid")).json
        outcomes = {int(tx.id): ok(tx.outcome()).json for tx in self.transactions}
        topics = self._topics()
        return Expected(
            topics={
                f"{topic.namespace}:{topic.name}": _shown(ok(topic.show()).json) for topic in topics
            },
            all_messages={f"{t.namespace}:{t.name}": _messages(t.poll()) for t in topics},
            committed_messages={
                f"{t.namespace}:{t.name}": _messages(t.poll(isolation="committed")) for t in topics
            },
            transactions={each: (o["state"], o["reason"]) for each, o in outcomes.items()},
            in_progress={int(each["transactionId"]) for each in overview["inProgress"]},
            invalids=set(map(int, invalid["invalids"])),
            read_pointer=int(overview["readPointer"]),
            write_pointer=int(overview["writePointer"]),
        )

    def _topics(self) -> list[Topic]:
        return [
            Topic(self.client, namespace, name)
            for namespace in ok(self.client.get("/v1/namespaces")).json
            for name in ok(self.client.get(f"/v1/namespaces/{namespace}/topics")).json
        ]


def _shown(info: Any) -> tuple[int, dict[str, str]]:
    return info["generation"], info["properties"]


def _messages(reply: Any) -> list[tuple[str, Any]]:
    return [(message["id"], message["payload"]) for message in ok(reply).json]
