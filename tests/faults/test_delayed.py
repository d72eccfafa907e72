"""Late requests of ended transactions change nothing (promises 1-5, 9).

They are sent again right after the end, after a `kill -9`, and after their topic was deleted and
created again.
"""

from collections.abc import Callable
from http.client import HTTPException

import pytest

from tests.faults.delayed import Delayed, Request, delaying
from tests.http.calls import Topic, Tx, begin, entry
from tests.http.client import Client, ok, until
from tests.http.conftest import NewServer
from tests.http.process import ServerProcess

TIMEOUT_S = 2.0  # seconds; what has to be done in this time is done on a busy machine, too

# The error code of a late request, by the end of its transaction; None for a success without an
# effect. The abort of an invalid transaction is missing, since it always aborts it (§6).
COMMITTED = "transaction_committed"
TOLD: dict[str, dict[str, str | None]] = {
    "commit": dict.fromkeys(
        ("publish", "store", "can-commit", "checkpoint", "abort", "invalidate", "rollback", "poll"),
        COMMITTED,
    )
    | {"commit": None},
    "abort": dict.fromkeys(
        ("publish", "store", "can-commit", "checkpoint", "invalidate", "commit", "poll"),
        "transaction_aborted",
    )
    | {"abort": None, "rollback": None},
    "invalidate": dict.fromkeys(
        ("publish", "store", "can-commit", "checkpoint", "commit", "poll"),
        "transaction_invalidated",
    )
    | {"invalidate": None, "rollback": None},
    "time out": dict.fromkeys(
        ("publish", "store", "can-commit", "checkpoint", "commit", "poll"), "transaction_timed_out"
    )
    | {"invalidate": None, "rollback": None},
}


class Past:
    """Ended transactions, each with every kind of request and with another end."""

    def __init__(self, client: Client, delayed: Delayed, *, direct: Client) -> None:
        self._client = client
        self._delayed = delayed
        self._direct = direct
        self.topic = Topic(client, "late", "topic")
        self.requests: dict[str, list[Request]] = {}

    def live_through(self, ending: str) -> None:
        first = len(self._delayed.requests)
        topic = self.topic
        tx = begin(self._client, timeout=TIMEOUT_S if ending == "time out" else 30)
        published = ok(topic.publish(f"inline of {ending}", tx=tx.id))
        ok(topic.store(f"stored of {ending}", tx=tx.id))
        ok(topic.publish(tx=tx.id))
        ok(topic.poll(tx=tx.id))
        ok(tx.checkpoint())
        ok(tx.can_commit(f"key of {ending}"))
        never: list[Callable[[], object]] = [lambda: topic.rollback(published.json)]
        if ending == "commit":
            never += [tx.abort, tx.invalidate]
        else:
            never.append(lambda: tx.commit(publish=[entry(topic, "too late")]))
        if ending == "abort":
            never.append(tx.invalidate)
        for call in never:
            self._never_arrives(call)
        self._end(tx, ending)
        # A late start is not of this transaction: it starts a new one.
        self.requests[ending] = self._delayed.requests[first + 1 :]

    def _end(self, tx: Tx, ending: str) -> None:
        if ending == "time out":
            until(lambda: Tx(self._direct, tx.object).state() == "invalid")
            self._never_arrives(tx.invalidate)
        else:
            ok({"commit": tx.commit, "abort": tx.abort, "invalidate": tx.invalidate}[ending]())

    def _never_arrives(self, call: Callable[[], object]) -> None:
        self._delayed.withholds = True
        with pytest.raises((HTTPException, OSError)):
            call()
        self._delayed.withholds = False


def all_that_is_there(client: Client, topic: Topic) -> object:
    """What readers get, and the transactions that are open or invalid."""
    here = Topic(client, topic.namespace, topic.name)
    overview = ok(client.get("/v1/transactions")).json
    return (
        here.poll(isolation="committed").json,
        here.poll(isolation="all").json,
        here.offsets(isolation="committed").json,
        overview["inProgress"],
        ok(client.get("/v1/transactions/invalid")).json["invalids"],
    )


def all_sent_again(client: Client, past: Past) -> None:
    before = all_that_is_there(client, past.topic)
    for ending, requests in past.requests.items():
        for request in requests:
            reply = request.late(client)

            code = None if reply.status == 200 else reply.json["code"]
            assert code == TOLD[ending][request.call], f"{ending}: {reply}"
        assert all_that_is_there(client, past.topic) == before, ending


@pytest.fixture
def running(new_server: NewServer) -> ServerProcess:
    return new_server("messaging.max_block=60")


def test_late_requests_change_nothing(running: ServerProcess, new_server: NewServer) -> None:
    client = running.client()
    with delaying(running.port) as delayed:
        through = Client(delayed.port)
        past = Past(through, delayed, direct=client)
        ok(Topic(client, "late", "topic").create())
        for ending in TOLD:
            past.live_through(ending)
        through.close()
    sent = {ending: {one.call for one in requests} for ending, requests in past.requests.items()}
    assert sent == {ending: set(told) for ending, told in TOLD.items()}
    again = Topic(client, "late", "topic")
    assert again.committed() == ["inline of commit", "stored of commit"]

    all_sent_again(client, past)
    running.kill()
    after = new_server("messaging.max_block=60", home=running.home).client()
    all_sent_again(after, past)
    again = Topic(after, "late", "topic")
    ok(again.delete())
    ok(again.create())
    ok(again.publish("of the new generation"))
    all_sent_again(after, past)

    assert again.committed() == ["of the new generation"]
