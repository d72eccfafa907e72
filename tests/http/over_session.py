"""The client of the HTTP tests, with the calls that a session carries sent over a session.

Whatever a session does not carry goes by HTTP: other operations, header fields other than
`Authorization`, and bodies that are no JSON, which only HTTP can have. Each token has a session.
The replies are brought into the form of HTTP, so the same tests read both.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson

from kernel.request_bodies import transaction_to_json
from tests.http.client import JSON, PROBLEM, Client, Reply
from tests.http.session_client import SessionClient
from tests.made_operations import found
from tests.protocol.avro_messages import messages_in
from tuff.protocol.json_bodies import payload_to_json
from tuff.protocol.transaction import Transaction
from tuff.requests_and_responses import Request


class ClientOverSession(Client):
    """As `Client`. `carried` counts the calls that went over a session."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.carried = 0
        self._sessions: dict[str | None, SessionClient] = {}  # by `Authorization`

    def close(self) -> None:
        super().close()
        for each in self._sessions.values():
            each.close()

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Reply:
        target = f"{path}?{urlencode(query)}" if query else path
        call = None
        if not (headers or {}).keys() - {"Authorization"} and content_type in (None, JSON):
            call = _call_of(method, target, body)
        if call is None:
            return super().send(
                method, path, body, content_type=content_type, headers=headers, query=query
            )
        self.carried += 1
        token = (headers or {}).get("Authorization")
        if token not in self._sessions:
            self._sessions[token] = SessionClient(self.port, headers=headers)
        reply = self._sessions[token].call(
            call.operation.number, *call.parameters, query=dict(call.query) or None, body=call.body
        )
        return _as_http(f"{method} {target} over a session", call, reply)


def _call_of(method: str, target: str, body: bytes | None) -> Request | None:
    """The call for a request; None where only HTTP can carry it."""
    form = None
    try:
        if body:
            form = orjson.loads(body)
    except ValueError:
        return None
    if not isinstance(form, dict | None):
        return None
    path, _, query = target.partition("?")
    try:
        operation, parameters = found(method, path)
    except LookupError:
        return None
    pairs = dict(parse_qsl(query, keep_blank_values=True))
    if operation.number is None:
        return None
    return Request(operation=operation, parameters=parameters, query=pairs, body=form)


def _as_http(shown: str, call: Request, reply: list[Any]) -> Reply:
    status, fields, body = reply
    headers = {name.lower(): value for name, value in fields.items()}
    if isinstance(body, bytes):
        data = json.dumps(_messages(body)).encode()
    elif body is None:
        data = b""
    else:
        for started in (body, body.get("next") or {}):
            _restore_lists(started)
        data = json.dumps(body).encode()
    headers["content-type"] = JSON if status < 400 else PROBLEM
    return Reply(shown, status, headers, data)


def _messages(body: bytes) -> list[dict[str, object]]:
    return [
        {
            "id": message_id.hex(),
            "timestamp": int.from_bytes(message_id[:8], "big"),
            "payload": payload_to_json(payload),
        }
        for message_id, payload in messages_in(body)
    ]


def _restore_lists(started: dict[str, Any]) -> None:
    if isinstance(started.get("encoded"), bytes):
        transaction = Transaction.from_bytes(started["encoded"])
        form = transaction_to_json(transaction, lists=True)
        started.update({name: form[name] for name in ("invalids", "inProgress", "encoded")})
