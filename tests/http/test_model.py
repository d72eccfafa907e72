"""Random programs on a real server, compared with the plain model after every step."""

import random
from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, entry
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import NewTopic
from tests.http.model import Model, ModelRow, ModelTx

STEP_COUNT = 250
OPEN_COUNT_MAX = 4
KEYS = ["k1", "k2"]


class Program:
    """One client that does random things, and compares what three kinds of reader find."""

    def __init__(self, client: Client, topics: list[Topic], seed: int) -> None:
        self.client = client
        self.chance = random.Random(seed)
        self.topics = {topic.name: topic for topic in topics}
        self.model = Model(list(self.topics))
        self.published: list[tuple[str, dict[str, Any], ModelRow]] = []
        self.count = 0
        self.steps = {
            self.begin: 3, self.publish: 1, self.publish_in_tx: 3, self.store: 4,
            self.reference: 4, self.checkpoint: 0.5, self.can_commit: 1, self.commit: 2,
            self.abort: 0.5, self.invalidate: 0.5, self.rollback: 1, self.remake: 0.6,
        }  # fmt: skip

    def run(self) -> None:
        for _ in range(STEP_COUNT):
            [step] = self.chance.choices(list(self.steps), list(self.steps.values()))
            step()
            self.compare()

    def payloads(self) -> list[str]:
        self.count += 1
        return [f"{self.count}.{part}" for part in range(self.chance.randint(1, 4))]

    def topic(self) -> str:
        return self.chance.choice(list(self.topics))

    def open_tx(self, *, usable: bool = True) -> ModelTx | None:
        found = [
            tx
            for tx in self.model.transactions.values()
            if tx.state == "in_progress" and not (usable and tx.refused)
        ]
        return self.chance.choice(found) if found else None

    def call(self, tx: ModelTx) -> Tx:
        return Tx(self.client, {"transactionId": self.chance.choice(tx.pointers)})

    def begin(self) -> None:
        open_count = sum(tx.state == "in_progress" for tx in self.model.transactions.values())
        if open_count < OPEN_COUNT_MAX:
            is_long = self.chance.random() < 0.25
            tx = begin(self.client, type="long" if is_long else "short")
            self.model.begin(tx.id, is_long=is_long)

    def publish(self) -> None:
        name, sent = self.topic(), self.payloads()
        ok(self.topics[name].publish(*sent))
        self.model.publish(name, sent)

    def publish_in_tx(self) -> None:
        if tx := self.open_tx():
            name, sent = self.topic(), self.payloads()
            reply = ok(self.topics[name].publish(*sent, tx=self.chance.choice(tx.pointers)))
            self.published.append((name, reply.json, self.model.publish(name, sent, tx)))

    def store(self) -> None:
        if tx := self.open_tx():
            name, sent, pointer = self.topic(), self.payloads(), tx.pointers[-1]
            ok(self.topics[name].store(*sent, tx=pointer))
            self.model.store(name, sent, pointer)

    def reference(self) -> None:
        if tx := self.open_tx():
            name, pointer = self.topic(), tx.pointers[-1]
            reply = self.topics[name].publish(tx=pointer)
            row = self.model.reference(name, tx, pointer)
            if row is None:
                refused(reply, 404, "topic_not_found")
            else:
                self.published.append((name, ok(reply).json, row))

    def checkpoint(self) -> None:
        if tx := self.open_tx():
            tx.pointers.append(ok(self.call(tx).checkpoint()).json["writePointer"])

    def can_commit(self) -> None:
        if tx := self.open_tx():
            changes = set(self.chance.sample(KEYS, 1))
            reply = self.call(tx).can_commit(*changes)
            if self.model.conflict(tx, tx.changes | changes):
                refused(reply, 409, "transaction_conflict")
                tx.refused = True
            else:
                assert ok(reply).json["state"] == "committing"
                tx.changes |= changes

    def commit(self) -> None:
        if tx := self.open_tx():
            changes = set(self.chance.sample(KEYS, self.chance.choice([0, 1])))
            sent = [(self.topic(), self.payloads()) for _ in range(self.chance.choice([0, 1, 2]))]
            publish = [entry(self.topics[name], *payloads) for name, payloads in sent]
            reply = self.call(tx).commit(changes=sorted(changes), publish=publish)
            if self.model.conflict(tx, tx.changes | changes):
                refused(reply, 409, "transaction_conflict")
                tx.refused = True
                return
            details = ok(reply).json["published"]
            for (name, payloads), detail in zip(sent, details, strict=True):
                self.published.append((name, detail, self.model.publish(name, payloads, tx)))
            self.model.commit(tx, tx.changes | changes)

    def abort(self) -> None:
        if tx := self.open_tx(usable=False):
            state = ok(self.call(tx).abort()).json["state"]
            assert state == ("invalid" if tx.is_long else "aborted")
            self._taken_back(tx, state)

    def invalidate(self) -> None:
        if tx := self.open_tx(usable=False):
            assert ok(self.call(tx).invalidate()).json["state"] == "invalid"
            self._taken_back(tx, "invalid")

    def _taken_back(self, tx: ModelTx, state: str) -> None:
        if state == "invalid":
            until(
                lambda: tx.id in ok(self.client.get(f"{TRANSACTIONS}/invalid")).json["prunable"],
                what="the rows of an invalid transaction to be marked",
            )
        self.model.take_back(tx, state)

    def rollback(self) -> None:
        if self.published:
            name, detail, row = self.chance.choice(self.published)
            assert row.tx is not None
            reply = self.topics[name].rollback(detail)
            if row.tx.state == "committed":
                refused(reply, 409, "transaction_committed")
            else:
                ok(reply)
                row.is_rolled_back = True

    def remake(self) -> None:
        name = self.topic()
        ok(self.topics[name].delete())
        ok(self.topics[name].create())
        self.model.remake(name)

    def compare(self) -> None:
        name = self.topic()
        readers: list[tuple[dict[str, object], ModelTx | str, bool]] = [
            ({}, "all", False), ({"isolation": "committed"}, "committed", False),
        ]  # fmt: skip
        if tx := self.open_tx(usable=False):
            pointer = self.chance.choice(tx.pointers)
            readers += [
                ({"tx": pointer}, tx, False), ({"tx": pointer, "undecided": "skip"}, tx, True),
            ]  # fmt: skip
        for query, reader, skips in readers:
            view = self.model.read(name, reader, skips=skips)
            found, caught_up, blocked_by = self.read_in_pages(name, query)
            expected = (view.payloads, not view.is_held, view.blocked_by)
            assert (found, caught_up, blocked_by) == expected, (name, query)

    def read_in_pages(
        self, name: str, query: dict[str, object]
    ) -> tuple[list[str], bool, str | None]:
        """All that a reader is handed in pages of random size, and what the last one says."""
        found: list[str] = []
        start = "0" * 40
        while True:
            limit = self.chance.choice([1, 2, 3, 10_000, 10_000, 10_000])
            body = {"startFrom": start, "inclusive": False, "limit": limit}
            reply = ok(self.topics[name].poll(body, **query))
            found += [message["payload"] for message in reply.json]
            blocked_by = reply.header("Tuff-Blocked-By")
            caught_up = reply.header("Tuff-Caught-Up") == "true"
            if caught_up or blocked_by or not reply.json:
                return found, caught_up, blocked_by
            start = str(reply.header("Tuff-Next"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 40))
def test_readers_find_what_the_model_says(client: Client, new_topic: NewTopic, seed: int) -> None:
    Program(client, [new_topic(), new_topic()], seed).run()
