"""Workload: a client that publishes and commits while the disk of its server fails."""

from tests.faults.history import (
    Attempt,
    Outcome,
    Recorder,
    View,
    payloads,
)
from tests.faults.workload_messages import (
    check_outcomes,
    read_topic,
    require_no_violation,
    resolved,
)
from tests.http.calls import TRANSACTIONS, Topic, entry
from tests.http.client import Client, Reply, ok, problem_of

NAMESPACE = "disk"
PUBLISHED, COMMITTED = "published", "committed"


def readiness_of(client: Client, check: str) -> dict[str, str]:
    """One check of readiness: its status and its detail."""
    found: dict[str, str] = client.get("/health/ready").json["checks"][check]
    return found


def topics_of(client: Client) -> list[Topic]:
    return [Topic(client, NAMESPACE, name) for name in (PUBLISHED, COMMITTED)]


def succeeded(reply: Reply, *codes: str) -> bool:
    """Whether the request succeeded; a refusal must be one that ends by itself."""
    if reply.status == 200:
        return True
    problem = problem_of(reply)
    assert (reply.status, problem["code"]) in {(503, code) for code in codes}, reply
    assert reply.header("Retry-After"), reply
    return False


class Writer:
    """Publishes and commits, and records attempts and reads."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._attempts: list[Attempt] = []
        self._reads: list[Attempt] = []

    def make_topics(self) -> "Writer":
        for topic in topics_of(self.client):
            ok(topic.create())
        return self

    def publish(self) -> bool:
        sent, recorder = payloads(0, len(self._attempts), 0, 2), Recorder(0)
        done = succeeded(
            topics_of(self.client)[0].publish(*sent),
            "storage_unavailable",
            "storage_outcome_unknown",
        )
        outcome = Outcome.OK if done else Outcome.UNKNOWN
        self._attempts.append(recorder.ended(outcome, ((PUBLISHED, sent),)))
        return done

    def commit(self) -> bool:
        """A commit with publish, if a transaction can be started."""
        recorder, started = Recorder(1), self.client.post(TRANSACTIONS)
        if started.status != 201:
            return succeeded(started, "transactions_unavailable")
        pointer = started.json["transactionId"]
        sent = payloads(1, len(self._attempts), 0, 2)
        body: dict[str, object] = {
            "changes": ["k"], "publish": [entry(topics_of(self.client)[1], *sent)],
        }  # fmt: skip
        reply = self.client.post(f"{TRANSACTIONS}/{pointer}/commit", body)
        if reply.status == 409:
            problem_of(reply)
            done = False
        else:
            done = succeeded(
                reply, "storage_unavailable", "storage_outcome_unknown", "transactions_unavailable"
            )
        outcome = Outcome.OK if done else Outcome.UNKNOWN
        # Recorded without its body: account aborts what is in progress, and repeats no commit.
        self._attempts.append(recorder.ended(outcome, ((COMMITTED, sent),), pointer=pointer))
        return done

    def account(self, client: Client) -> None:
        """Compare all replies with what a reader of this server finds. Unknown outcomes are asked
        for, and have to stay the same in later calls."""
        self._attempts = [resolved(client, attempt) for attempt in self._attempts]
        check_outcomes(client, self._attempts)
        reader = Recorder("reader")
        reader.add(*(read_topic(topic, View.COMMITTED) for topic in topics_of(client)))
        self._reads.append(reader.ended(Outcome.OK))
        require_no_violation([*self._attempts, *self._reads])
