"""A client that publishes and commits on a disk that fails, and the account of what it was told."""

from dataclasses import replace

from tests.faults.ledger import Fate, Unit, check_committed, payloads, unsure_of
from tests.http.calls import TRANSACTIONS, Topic, Tx, entry
from tests.http.client import Client, Reply, ok, problem_of

NAMESPACE = "disk"
PUBLISHED, COMMITTED = "published", "committed"


def topics_of(client: Client) -> list[Topic]:
    return [Topic(client, NAMESPACE, name) for name in (PUBLISHED, COMMITTED)]


def told(reply: Reply, *codes: str) -> bool:
    """Whether it was done; if not, the refusal is one that can be waited for."""
    if reply.status == 200:
        return True
    problem = problem_of(reply)
    assert (reply.status, problem["code"]) in {(503, code) for code in codes}, reply
    assert reply.header("Retry-After"), reply
    return False


class Writer:
    """Enters what it was told in a ledger."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.units: list[Unit] = []
        self._unsure: set[str] = set()

    def make_topics(self) -> "Writer":
        for topic in topics_of(self.client):
            ok(topic.create())
        return self

    def publish(self) -> bool:
        number = len(self.units)
        sent = payloads(0, number, 0, 2)
        topic = topics_of(self.client)[0]
        done = told(topic.publish(*sent), "storage_unavailable")
        fate = Fate.SEEN if done else Fate.MAYBE
        unit = Unit(client=0, number=number, fate=fate, requests=((PUBLISHED, sent),))
        self.units.append(unit)
        return done

    def commit(self) -> bool:
        """A commit with publish, if a transaction can be started at all."""
        started = self.client.post(TRANSACTIONS)
        if started.status != 201:
            return told(started, "transactions_unavailable")
        number, pointer = len(self.units), started.json["transactionId"]
        sent = payloads(1, number, 0, 2)
        body: dict[str, object] = {
            "changes": ["k"], "publish": [entry(topics_of(self.client)[1], *sent)],
        }  # fmt: skip
        reply = self.client.post(f"{TRANSACTIONS}/{pointer}/commit", body)
        if reply.status == 409:
            problem_of(reply)
            done = False
        else:
            done = told(reply, "storage_unavailable", "transactions_unavailable")
        fate = Fate.SEEN if done else Fate.ASK
        self.units.append(
            Unit(client=1, number=number, fate=fate, requests=((COMMITTED, sent),),
                 pointer=pointer, body=body)
        )  # fmt: skip
        return done

    def account(self, client: Client) -> None:
        """Compare what was told with what this server's readers find; what is open is ended. How a
        transaction ended then, it has to have ended at every later time."""
        self._unsure |= unsure_of(self.units)
        self.units = [_resolved(client, unit) for unit in self.units]
        view = {
            topic.name: [
                (message["id"], message["payload"])
                for message in ok(topic.poll(isolation="committed")).json
            ]
            for topic in topics_of(client)
        }
        check_committed(self.units, view, unsure=self._unsure)


def _resolved(client: Client, unit: Unit) -> Unit:
    if unit.pointer is None:
        return unit
    tx = Tx(client, {"transactionId": unit.pointer})
    if tx.state() in {"in_progress", "committing"}:
        ok(tx.invalidate())
    state = tx.state()
    fate = Fate.SEEN if state == "committed" else Fate.HIDDEN
    assert unit.fate in {Fate.ASK, fate}, f"{unit} is {state}"
    return replace(unit, fate=fate)
