"""Delayed messages: publish, list and cancel (protocol §3.10), and servers that are killed."""

import random
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, begin, entry
from tests.http.client import Client, Reply, ok, refused, until
from tests.http.process import ServerProcess, serve

SOON = 0.001
NEVER = 300.0  # seconds; no test lasts so long


def listed(topic: Topic, **query: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(
        topic.client.get(f"{topic.path}/delayed", payloads="true", **query)
    ).json["delayed"]
    return found


def waiting(topic: Topic, **query: object) -> list[Any]:
    return [each["payload"] for each in listed(topic, **query)]


def cancel(topic: Topic, delayed_id: str | None) -> Reply:
    return topic.client.delete(f"{topic.path}/delayed/{delayed_id}")


def test_a_delayed_message_comes_to_a_long_poll(topic: Topic) -> None:
    reply = ok(topic.publish("a", "b", delay=1))

    assert reply.header("Tuff-Delayed") == "2"
    assert reply.header("Tuff-First-Id") is None
    assert topic.read() == []
    assert topic.read(wait=60) == ["a", "b"]
    refused(cancel(topic, reply.header("Tuff-Delayed-First")), 404, "delayed_not_found")


def test_a_list_has_the_ids_that_the_publish_returned(topic: Topic) -> None:
    reply = ok(topic.publish("a", {"payload": "b", "delay": NEVER + 1, "ttl": 7}, delay=NEVER))

    first, second = listed(topic)
    assert (first["id"], second["id"]) == (
        reply.header("Tuff-Delayed-First"),
        reply.header("Tuff-Delayed-Last"),
    )
    assert second["due"] - first["due"] == 1_000
    assert (first["size"], first["payload"], second["ttl"]) == (1, "a", 7)
    assert "payload" not in ok(topic.client.get(f"{topic.path}/delayed")).json["delayed"][0]
    assert waiting(topic, limit=1) == ["a"]
    assert waiting(topic, after=first["id"]) == ["b"]
    ok(cancel(topic, first["id"]))
    assert waiting(topic) == ["b"]


def test_a_delayed_message_keeps_its_attributes(topic: Topic) -> None:
    own = {"key": "k", "tags": ["red"], "headers": {"trace": "1"}}
    ok(topic.publish({"payload": "a", "delay": NEVER, **own}))
    (found,) = listed(topic)
    assert {name: found[name] for name in own} == own
    ok(topic.publish({"payload": "b", "delay": SOON, **own}, {"payload": "c", "delay": 0.1}))
    until(lambda: len(topic.read()) == 2)
    assert topic.read(tags="red") == ["b"]


def test_a_delayed_publish_can_be_acknowledged_early(topic: Topic) -> None:
    received = ok(topic.publish("a", delay=NEVER, ack="received"))
    assert received.header("Tuff-Delayed") == "1"
    none = ok(topic.publish("b", delay=NEVER, ack="none"))
    assert (none.header("Tuff-Ack"), none.header("Tuff-Delayed")) == ("none", None)
    assert until(lambda: len(waiting(topic)) == 2)
    assert listed(topic)[0]["id"] == received.header("Tuff-Delayed-First")


def test_a_time_can_be_named_in_ms_or_in_iso_8601(topic: Topic) -> None:
    moment = (datetime.now(UTC) + timedelta(days=30)).replace(microsecond=678_000)
    ms = int(moment.timestamp() * 1000)
    ok(topic.publish("a", at=ms))
    ok(topic.publish("b", at=moment.isoformat()))
    ok(topic.publish({"payload": "c", "at": ms}, {"payload": "d", "at": moment.isoformat()}))
    assert {each["due"] for each in listed(topic)} == {ms}
    assert waiting(topic) == ["a", "b", "c", "d"]

    ok(topic.publish("past", at="1999-12-31T23:59:59Z"))

    assert topic.read(wait=10) == ["past"]


@pytest.mark.parametrize(
    ("messages", "query"),
    [
        (["a"], {"delay": "0"}),
        (["a"], {"delay": "-1"}),
        (["a"], {"delay": "soon"}),
        (["a"], {"delay": "1e300"}),
        (["a"], {"delay": "nan"}),
        (["a"], {"delay": "315360001"}),
        (["a"], {"at": "tomorrow"}),
        (["a"], {"at": "-5"}),
        (["a"], {"at": 9_000_000_000_000_000_000}),
        (["a"], {"delay": "1", "at": "5"}),
        (["a", {"payload": "b", "delay": 1}], {}),
        ([{"payload": "b", "delay": True}], {}),
        ([{"payload": "b", "delay": 0}], {}),
        ([{"payload": "b", "at": 1.5}], {}),
        ([{"payload": "b", "at": []}], {}),
        ([{"payload": "b", "at": 1, "delay": 1}], {}),
        ([], {"delay": "1"}),
    ],
)
def test_an_impossible_delay_refuses_the_whole_publish(
    topic: Topic, messages: list[object], query: dict[str, object]
) -> None:
    tx = begin(topic.client)
    refused(topic.publish(*messages, tx=tx.id, **query), 400, "invalid_delay")
    assert (topic.read(), waiting(topic)) == ([], [])


def test_stored_messages_have_no_delay(topic: Topic) -> None:
    tx = begin(topic.client)
    refused(topic.store("a", tx=tx.id, delay=1), 400, "bad_request")
    refused(topic.store({"payload": "a", "delay": 1}, tx=tx.id), 400, "invalid_delay")
    refused(tx.commit(publish=[entry(topic, delay=1)]), 400, "invalid_delay")


def test_wrong_calls_of_list_and_cancel(topic: Topic, missing: Topic) -> None:
    refused(topic.client.get(f"{topic.path}/delayed", limit=0), 400, "bad_request")
    refused(topic.client.get(f"{topic.path}/delayed", payloads="yes"), 400, "bad_request")
    refused(topic.client.get(f"{topic.path}/delayed", after="00"), 400, "invalid_message_id")
    refused(cancel(topic, "xyz"), 400, "invalid_message_id")
    refused(cancel(topic, "00" * 18), 404, "delayed_not_found")
    refused(missing.client.get(f"{missing.path}/delayed"), 404, "topic_not_found")
    refused(cancel(missing, "00" * 18), 404, "topic_not_found")
    undecided = "ff" * 8 + "00" * 10  # the key of a message of an open transaction has this form
    refused(cancel(topic, undecided), 400, "invalid_message_id")
    explain = f"{topic.path}/messages/{undecided}/explain"
    refused(topic.client.get(explain), 400, "invalid_message_id")


def test_a_transaction_decides_whether_its_delayed_messages_exist(topic: Topic) -> None:
    kept, gone, invalid = (begin(topic.client) for _ in range(3))
    for tx in (kept, gone, invalid):
        ok(topic.publish(f"of {tx.id}", tx=tx.id, delay=SOON))
    ok(gone.abort())
    ok(invalid.invalidate())
    assert topic.read(wait=0.2) == []
    assert kept.outcome().json["topics"] == [f"{topic.namespace}:{topic.name}"]

    ok(kept.commit(publish=[entry(topic, "at commit", delay=0.2)]))

    until(lambda: len(topic.read()) == 2)
    assert topic.committed() == [f"of {kept.id}", "at commit"]
    assert waiting(topic) == []


def test_a_run_can_bring_delayed_messages(topic: Topic) -> None:
    publish = [entry(topic, "late", delay=1), entry(topic, {"payload": "at once", "at": 1})]
    ok(topic.client.post(f"{TRANSACTIONS}/run", {"publish": publish}))
    until(lambda: len(topic.read()) == 2)
    assert topic.read() == ["at once", "late"]


def test_a_delayed_publish_can_be_rolled_back(topic: Topic) -> None:
    tx = begin(topic.client)
    detail = ok(topic.publish("gone", tx=tx.id, delay=SOON)).json
    ok(topic.publish("kept", tx=tx.id, delay=SOON))
    ok(topic.rollback(detail))
    ok(tx.commit())
    assert topic.read(wait=10) == ["kept"]
    assert waiting(topic) == []


def test_an_avro_publish_can_be_delayed(topic: Topic) -> None:
    plain = bytes.fromhex("0204026104626300")  # a union without a pointer, then "a" and "bc"
    ok(topic.avro("publish", plain, delay=NEVER))
    assert waiting(topic) == ["a", "bc"]


class Sender(threading.Thread):
    """Publishes delayed messages until its server is killed, with and without transactions.

    `acknowledged` must enter, `ended` must not, and of the others nothing is known."""

    def __init__(self, client: Client, name: str, seed: int) -> None:
        super().__init__()
        self._topic = Topic(client, "default", "late")
        self._name = name
        self._chance = random.Random(seed)
        self.acknowledged: list[str] = []
        self.ended: list[str] = []

    def run(self) -> None:
        number = 0
        try:
            while True:
                number += 1
                self._send(f"{self._name}/{number}")
        except (OSError, HTTPException, AssertionError):
            return  # the server was killed, which closes the connection, or its reply was cut off

    def _send(self, text: str) -> None:
        chance, client = self._chance, self._topic.client
        delay = round(chance.choice([0.001, 0.01, chance.random()]), 3)
        kind = chance.choice(["plain", "plain", "commit", "run", "abort", "cancel"])
        if kind == "plain":
            ok(self._topic.publish(text, delay=delay))
        elif kind == "run":
            publish = [entry(self._topic, text, delay=delay)]
            ok(client.post(f"{TRANSACTIONS}/run", {"publish": publish}))
        elif kind == "cancel":
            reply = ok(self._topic.publish(text, delay=NEVER))
            ok(cancel(self._topic, reply.header("Tuff-Delayed-First")))
            self.ended.append(text)
            return
        else:
            tx = begin(client)
            ok(self._topic.publish(text, tx=tx.id, delay=delay))
            if kind == "abort":
                ok(tx.abort())
                self.ended.append(text)
                return
            ok(tx.commit())
        self.acknowledged.append(text)


def _killed_round(server: ServerProcess, senders: list[Sender], after_s: float) -> None:
    for each in senders:
        each.start()
    threading.Event().wait(after_s)
    server.kill()
    for each in senders:
        each.join()


@pytest.mark.slow
def test_no_delayed_message_is_lost_or_repeated_when_servers_are_killed(tmp_path: Path) -> None:
    chance = random.Random(7)
    senders: list[Sender] = []
    # A transaction that a killed client left open holds back the later ones of its topic.
    server = serve(tmp_path, "messaging.max_block=2")
    ok(Topic(server.client(), "default", "late").create())
    for round_number in range(8):
        new = [
            Sender(server.client(), f"{round_number}-{number}", chance.getrandbits(32))
            for number in range(4)
        ]
        senders += new
        _killed_round(server, new, 0.2 + chance.random())
        server = serve(tmp_path, "messaging.max_block=2")

    topic = Topic(server.client(), "default", "late")
    publish = [entry(topic, "last", delay=2)]
    ok(topic.client.post(f"{TRANSACTIONS}/run", {"publish": publish}))
    until(lambda: topic.read({"limit": 10_000})[-1:] == ["last"])
    counts = Counter(topic.read({"limit": 10_000}))
    server.end()

    acknowledged = {text for each in senders for text in each.acknowledged}
    assert len(acknowledged) > 100
    assert acknowledged <= counts.keys()
    assert max(counts.values()) == 1
    assert not counts.keys() & {text for each in senders for text in each.ended}
