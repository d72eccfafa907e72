"""The calls of decision 0045 §1 in memory, as a transport of both clients. It loses the requests
and replies that a test names, and calls a function at a named call."""

import json
from base64 import b64encode
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

from tuff.errors import ConnectionLostError
from tuff.flows_and_repeated_calls import Call
from tuff.protocol.transaction import Transaction
from tuff.requests_and_responses import Response

T = TypeVar("T")

FIRST_POINTER = 1_000_000


class DecidingServer:
    """Guarded by `_lock`. `states` has the state of each transaction, `visible` the payloads of the
    committed ones, in their order.

    `lose_request`, `lose_reply`: how many calls of a name are lost. `at`: called before a call.
    """

    url = "memory"

    def __init__(self) -> None:
        self._lock = RLock()
        self._messages: dict[int, list[str]] = {}
        self._databases: dict[int, str] = {}
        self.states: dict[int, str] = {}
        self.visible: list[str] = []
        self.seen: list[str] = []
        self.lose_request: dict[str, int] = {}
        self.lose_reply: dict[str, int] = {}
        self.at: dict[str, Callable[[], object]] = {}

    def close(self) -> None:
        pass

    def send(self, call: Call[T], *, stop: object = None) -> T:
        name = call.request.path.partition("?")[0].rpartition("/")[2]
        name = "outcome" if name.isdigit() else name
        with self._lock:
            self.seen.append(name)
        self.at.get(name, lambda: None)()
        with self._lock:
            if self._takes(self.lose_request, name):
                raise ConnectionLostError("the request was lost", outcome_unknown=True)
            response = self._answer(name, call.request.path, call.request.content)
            if self._takes(self.lose_reply, name):
                raise ConnectionLostError("the reply was lost", outcome_unknown=True)
        return call.answer(response)

    def _takes(self, losses: dict[str, int], name: str) -> bool:
        losses[name] = losses.get(name, 0) - 1
        return losses[name] >= 0

    def _answer(self, name: str, path: str, data: bytes | None) -> Response:
        body = json.loads(data) if data else {}
        if name == "transactions":
            return self._start()
        if name == "prepared":
            return _response(200, {"prepared": self._listed(path)})
        pointer = int(path.split("/")[3])
        if name == "outcome":
            state = self.states[pointer]
            return _response(200, {"transactionId": str(pointer), "state": state})
        if name == "prepare":
            return self._prepare(pointer, body)
        assert name == "resolve", f"the server has no call {name}"
        return self._resolve(pointer, body["outcome"])

    def _start(self) -> Response:
        pointer = FIRST_POINTER + len(self.states)
        self.states[pointer] = "in_progress"
        made = Transaction(transaction_id=pointer, read_pointer=9, write_pointer=pointer)
        return _response(201, {"encoded": b64encode(made.to_bytes()).decode()})

    def _listed(self, path: str) -> list[dict[str, Any]]:
        database = path.partition("=")[2]
        return [
            {
                "transactionId": str(pointer),
                "database": self._databases[pointer],
                "client": "tests",
                "preparedAt": 1,
                "topics": [],
                "changeCount": 0,
            }
            for pointer, state in self.states.items()
            if state == "prepared" and self._databases[pointer] == database
        ]

    def _prepare(self, pointer: int, body: dict[str, Any]) -> Response:
        if self.states[pointer] not in ("in_progress", "prepared"):
            return _refused("transaction_timed_out")
        self.states[pointer] = "prepared"
        self._databases[pointer] = body["database"]
        self._messages[pointer] = [
            payload for entry in body["publish"] for payload in entry["messages"]
        ]
        return _response(
            200,
            {
                "state": "prepared",
                "published": [],
                "database": body["database"],
                "preparedAt": 1,
            },
        )

    def _resolve(self, pointer: int, outcome: str) -> Response:
        state = self.states[pointer]
        ended = "committed" if outcome == "commit" else "aborted"
        if state not in ("in_progress", "prepared", ended):
            return _refused(f"transaction_{state}")
        if state == "in_progress" and outcome == "commit":
            return _refused("transaction_not_prepared")
        if state == "prepared" and outcome == "commit":
            self.visible += self._messages[pointer]
        self.states[pointer] = ended
        return _response(200, {"state": ended})


class AsyncDecidingServer:
    """As `DecidingServer`, of which it is a view."""

    url = "memory"

    def __init__(self, server: DecidingServer) -> None:
        self._server = server

    async def close(self) -> None:
        pass

    async def send(self, call: Call[T]) -> T:
        return self._server.send(call)


def _response(status: int, body: dict[str, Any]) -> Response:
    return Response(status, {}, json.dumps(body).encode())


def _refused(code: str) -> Response:
    return _response(409, {"code": code, "detail": code, "status": 409})
