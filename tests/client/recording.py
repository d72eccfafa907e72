"""Participants and a transport that record each step, and fail at the steps that a test names."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from messaging.model.avro_bodies import decode_publish_request
from tuff.blocking.client import Client
from tuff.commit_protocol import RENEW_S
from tuff.flows_and_repeated_calls import Call
from tuff.participant import AsyncTransactionAware, TransactionAware
from tuff.protocol.requests import PublishRequest
from tuff.protocol.transaction import Transaction
from tuff.requests_and_responses import Request
from tuff.stop_signals import Stop

T = TypeVar("T")


def replace_pauses(client: Client, pause: Callable[[float, Stop | None], object]) -> None:
    """Let this be called in place of the pauses of a client, except those between renewals, which
    a thread beside the program makes."""
    really = client._driver._pause

    def chosen(seconds: float, stop: Stop | None) -> None:
        if seconds == RENEW_S:
            really(seconds, stop)
        else:
            pause(seconds, stop)

    client._driver._pause = chosen  # type: ignore[method-assign] # in place of waiting


class Record:
    """The steps in their order; `fail["commit"]` is raised by that step after it was recorded.
    `pointer` is the id of the latest transaction of a participant."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.fail: dict[str, BaseException] = {}
        self.pointer = 0

    def note(self, step: str, *, said: str = "") -> None:
        self.steps.append(step + said)
        if step in self.fail:
            raise self.fail[step]


class Participant(TransactionAware):
    """A participant that records the calls of its hooks."""

    def __init__(self, name: str, record: Record, *, changes: Collection[bytes] = ()) -> None:
        self.name = name
        self._record = record
        self._changes = changes

    def start_tx(self, transaction: Transaction) -> None:
        self._record.pointer = transaction.transaction_id
        self._record.note(f"{self.name}.start_tx")

    def update_tx(self, transaction: Transaction) -> None:
        self._record.note(f"{self.name}.update_tx", said=f" {transaction.write_pointer}")

    def tx_changes(self, transaction: Transaction) -> Collection[bytes]:
        self._record.note(f"{self.name}.tx_changes")
        return self._changes

    def commit_tx(self, transaction: Transaction) -> None:
        self._record.note(f"{self.name}.commit_tx")

    def post_commit(self, transaction: Transaction) -> None:
        self._record.note(f"{self.name}.post_commit")

    def rollback_tx(self, transaction: Transaction) -> None:
        self._record.note(f"{self.name}.rollback_tx")


class LeavingParticipant(Participant):
    """A participant with `leave_tx`."""

    def leave_tx(self, transaction: Transaction) -> None:
        self._record.note(f"{self.name}.leave_tx")


class AsyncParticipant(AsyncTransactionAware):
    """As `Participant`, with coroutine functions."""

    def __init__(self, name: str, record: Record, *, changes: Collection[bytes] = ()) -> None:
        self.name = name
        self._participant = Participant(name, record, changes=changes)

    async def start_tx(self, transaction: Transaction) -> None:
        self._participant.start_tx(transaction)

    async def update_tx(self, transaction: Transaction) -> None:
        self._participant.update_tx(transaction)

    async def tx_changes(self, transaction: Transaction) -> Collection[bytes]:
        return self._participant.tx_changes(transaction)

    async def commit_tx(self, transaction: Transaction) -> None:
        self._participant.commit_tx(transaction)

    async def post_commit(self, transaction: Transaction) -> None:
        self._participant.post_commit(transaction)

    async def rollback_tx(self, transaction: Transaction) -> None:
        self._participant.rollback_tx(transaction)


class PlayedService:
    """A transport that plays the transaction service: a real server loses no reply at will. The
    first pointer is 10, and that of a checkpoint is 11."""

    url = "played"

    def __init__(self, record: Record) -> None:
        self._record = record
        self._transaction = Transaction(transaction_id=10, read_pointer=9, write_pointer=10)
        self.starts: list[Mapping[str, object]] = []
        self.entries: list[Mapping[str, object]] = []
        self.stored: list[PublishRequest] = []

    def close(self) -> None:
        pass

    def send(self, call: Call[T], *, stop: object = None) -> T:
        tail = call.request.path.rpartition("/")[2].replace("-", "_")
        body = _body_of(call.request)
        answer: object = None
        match tail:
            case "transactions":
                self.starts.append(body)
                self._record.note("start")
                answer = self._transaction
            case "checkpoint":
                self._record.note("checkpoint")
                answer = self._transaction = self._transaction.checkpointed(11)
            case "can_commit":
                self._record.note("can_commit", said=f" {sorted(body['changes'])}")
            case "commit":
                self.entries = body["publish"]
                self._record.note("commit", said=" read-only" if body["readOnly"] else "")
            case "store":
                self.stored.append(decode_publish_request(call.request.body or b""))
                self._record.note("store")
            case _:
                self._record.note(tail)
        return answer  # type: ignore[return-value]  # the played answer is of the call's type


def _body_of(request: Request) -> Any:
    return {} if isinstance(request.body, bytes | None) else json.loads(request.content or b"")
