"""The audit topic of a server: a message for each act that matters, and no way around it."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from access.audit import is_administrative
from tests.http.client import JSON, Reply, ok, refused, until
from tests.http.process import ServerProcess, serve
from tests.http.session_client import PUBLISH, SessionClient
from tests.http.test_access import access_file, rights
from tests.secret_values import hash_of_token, token_of
from tuff import Client as TuffClient
from tuff import TopicId, TopicNotFoundError
from tuff.protocol.operations import OPERATIONS, Right

TOPICS = "/v1/namespaces/shop/topics"
AUDIT = "/v1/namespaces/system/topics/audit"
ALL_BUT_ADMINISTER = [right for right in Right if right is not Right.ADMINISTER]
FILE = access_file(
    {
        "admin": rights("admin", *Right),
        "alice": rights("alice", *ALL_BUT_ADMINISTER),
        "bob": rights("bob", "transact"),
    }
)
Act = dict[str, Any]


class Audited:
    """A server with an audit topic, and calls as one of its principals."""

    def __init__(self, home: Path, *settings: str) -> None:
        self._settings = settings
        self.file = home / "access.toml"
        self.file.write_text(FILE)
        self._home = home / "home"
        self.server = self._serve()

    def _serve(self) -> ServerProcess:
        audit = f"server.access_file={self.file}", 'server.audit_topic="system:audit"'
        return serve(self._home, *audit, *self._settings)

    def restart(self) -> None:
        self.server.end()
        self.server = self._serve()

    def send(
        self,
        name: str,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        given = {"Authorization": f"Bearer {token_of(name)}", **(headers or {})}
        content = None if method in ("GET", "DELETE") else json.dumps(body or {}).encode()
        client = self.server.client()
        return client.send(method, path, content, content_type=JSON, headers=given)

    def acts(self) -> list[Act]:
        """The messages of the topic."""
        with TuffClient(self.server.url, token=token_of("admin"), retries=5) as client:
            try:
                polled = client.poll(TopicId("system", "audit"))
            except TopicNotFoundError:  # the server has just started
                return []
            return [json.loads(each.payload) for each in polled]

    def await_act(self, wanted: Callable[[Act], bool]) -> Act:
        """The first message of this kind, which is not there yet."""
        found: list[Act] = []

        def is_there() -> bool:
            found.extend(filter(wanted, self.acts()))
            return bool(found)

        until(is_there, what="the act in the audit topic")
        return found[0]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    made = Audited(tmp_path_factory.mktemp("audited"))
    made.await_act(lambda act: act["kind"] == "start")
    yield made
    made.server.end()


def of(operation: str, result: str) -> Callable[[Act], bool]:
    return lambda act: act["operation"] == operation and act["result"] == result


def test_a_call_without_a_known_token_is_recorded(audited: Audited) -> None:
    refused(audited.send("stranger", "GET", f"{TOPICS}/t/offsets"), 401, "unauthenticated")

    operation = "GET /v1/namespaces/{ns}/topics/{t}/offsets"
    act = audited.await_act(of(operation, "unauthenticated"))

    assert act["kind"] == "refusal"
    assert act["principal"] is None
    assert act["parameters"] == {"ns": "shop", "t": "t"}
    assert act["address"] == "127.0.0.1"
    assert act["count"] == 1


def test_a_token_that_is_sent_as_a_name_is_not_shown(audited: Audited) -> None:
    """A user typed it into the address, and it was in the 403 and in the audit topic."""
    reply = audited.send("bob", "DELETE", f"{TOPICS}/{token_of('bob')}")

    refused(reply, 403, "forbidden", naming="on topic '[token]' of namespace 'shop'")
    act = audited.await_act(of("DELETE /v1/namespaces/{ns}/topics/{t}", "forbidden"))
    assert act["parameters"] == {"ns": "shop", "t": "[token]"}


def test_a_refusal_before_the_body_is_recorded(audited: Audited) -> None:
    path, trace = f"{TOPICS}/t/store", f"00-{'1' * 32}-{'2' * 16}-01"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token_of('bob')}\r\n"
        f"traceparent: {trace}\r\nContent-Length: 2\r\n\r\n"
    )
    with socket.create_connection((audited.server.host, audited.server.port)) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 403 ")

    act = audited.await_act(of("POST /v1/namespaces/{ns}/topics/{t}/store", "forbidden"))

    assert (act["principal"], act["traceparent"]) == ("bob", trace)


def test_a_refused_call_in_a_transaction_is_recorded(audited: Audited) -> None:
    started = ok(audited.send("alice", "POST", "/v1/transactions")).json["transactionId"]
    path = f"/v1/transactions/{started}/abort"
    refused(audited.send("bob", "POST", path), 403, "forbidden")

    act = audited.await_act(of("POST /v1/transactions/{tx}/abort", "forbidden"))

    assert (act["principal"], act["parameters"]) == ("bob", {"tx": started})


def test_a_refused_call_of_a_session_is_recorded(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    bearer = {"Authorization": f"Bearer {token_of('bob')}"}
    with SessionClient(audited.server.port, headers=bearer) as session:
        calls = [session.frame(PUBLISH, "shop", "t", body={"messages": ["m"]}) for _ in range(2)]
        session.write(*calls)  # which the server handles at once
        assert [session.reply_to(call[1])[0] for call in calls] == [403, 403]
    refused(audited.send("bob", "POST", f"{TOPICS}/t/store"), 403, "forbidden")

    in_session = audited.await_act(lambda act: str(act["operation"]).endswith("/publish"))
    by_itself = audited.await_act(lambda act: str(act["operation"]).endswith("/store"))

    for act in (in_session, by_itself):
        assert (act["result"], act["principal"], act["address"]) == (
            "forbidden", "bob", "127.0.0.1",
        )  # fmt: skip
    audited.server.end()


CALLS = [
    ("PUT", f"{TOPICS}/made", {"ttl": 60}, "PUT /v1/namespaces/{ns}/topics/{t}"),
    ("PUT", f"{TOPICS}/made/properties", {}, "PUT /v1/namespaces/{ns}/topics/{t}/properties"),
    (
        "POST",
        f"{TOPICS}/made/truncate",
        {"before": 1},
        "POST /v1/namespaces/{ns}/topics/{t}/truncate",
    ),
    ("DELETE", f"{TOPICS}/made", None, "DELETE /v1/namespaces/{ns}/topics/{t}"),
    ("POST", "/v1/transactions/snapshot", {}, "POST /v1/transactions/snapshot"),
    ("GET", "/v1/backup", None, "GET /v1/backup"),
]


def test_administration_is_recorded_with_its_result(audited: Audited) -> None:
    for method, path, body, _ in CALLS:
        ok(audited.send("admin", method, path, body))
    audited.send("admin", "DELETE", f"{TOPICS}/none")

    acts = [audited.await_act(of(operation, "ok")) for _, _, _, operation in CALLS]
    failed = audited.await_act(of(CALLS[3][3], "topic_not_found"))

    assert {(act["kind"], act["principal"]) for act in [*acts, failed]} == {
        ("administration", "admin")
    }
    assert [act["number"] for act in acts] == sorted(act["number"] for act in acts)


@pytest.mark.parametrize("end", ["abort", "invalidate", "commit"])
def test_the_end_of_a_transaction_of_another_principal_is_recorded(
    audited: Audited, end: str
) -> None:
    operation = f"POST /v1/transactions/{{tx}}/{end}"
    started = {
        name: ok(audited.send(name, "POST", "/v1/transactions")).json["transactionId"]
        for name in ("alice", "admin")
    }
    for transaction in started.values():
        ok(audited.send("admin", "POST", f"/v1/transactions/{transaction}/{end}"))
    ok(audited.send("admin", "POST", "/v1/transactions/snapshot"))

    act = audited.await_act(of(operation, "ok"))

    assert act["transactions"] == [started["alice"]]
    assert [each for each in audited.acts() if of(operation, "ok")(each)] == [act]


def test_a_start_and_changes_of_the_access_file_are_recorded(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    start = audited.await_act(lambda act: act["kind"] == "start")
    assert start["settings"]["server.audit_topic"] == "system:audit"

    changed = FILE.replace(rights("bob", "transact"), rights("bob", "read", namespace="shop"))
    audited.file.write_text(changed.replace(hash_of_token("alice"), hash_of_token("alice 2")))
    os.kill(audited.server.pid, signal.SIGHUP)
    act = audited.await_act(lambda act: act["kind"] == "access_file")
    audited.file.write_text("principals = 1")
    os.kill(audited.server.pid, signal.SIGHUP)
    wrong = audited.await_act(lambda act: act["result"] == "not_valid")

    assert act["changes"] == [
        "tokens of alice: 1 added, 1 removed",
        "bob lost transact on *:*",
        "bob got read on shop:*",
    ]
    assert "principals is a table" in wrong["failure"]
    assert hash_of_token("alice").partition(":")[2] not in json.dumps(audited.acts())
    audited.server.end()


def test_what_waits_at_a_stop_is_there_after_the_next_start(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    for _ in range(30):
        refused(audited.send("stranger", "GET", "/metrics"), 401, "unauthenticated")

    audited.restart()

    counts = [
        each["count"] for each in audited.acts() if of("GET /metrics", "unauthenticated")(each)
    ]
    assert counts == [1, 29]
    audited.server.end()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", AUDIT, {}),
        ("PUT", f"{AUDIT}/properties", {"ttl": 1}),
        ("DELETE", AUDIT, None),
        ("POST", f"{AUDIT}/truncate", {}),
        ("POST", f"{AUDIT}/publish", {"messages": ["x"]}),
        ("POST", "/v1/namespaces/system/topics/audit:0/publish", {"messages": ["x"]}),
        ("POST", f"{AUDIT}/store", {"messages": ["x"], "transactionWritePointer": 1}),
        ("POST", f"{AUDIT}/rollback", {}),
        ("DELETE", f"{AUDIT}/delayed/{0:040x}", None),
        (
            "POST",
            "/v1/transactions/run",
            {"publish": [{"namespace": "system", "topic": "audit", "messages": ["x"]}]},
        ),
    ],
)
def test_nobody_changes_the_audit_topic(
    audited: Audited, method: str, path: str, body: object
) -> None:
    reply = audited.send("admin", method, path, body)

    refused(reply, 403, "forbidden", naming="system:audit is the audit topic")


def test_only_who_may_administer_reads_the_audit_topic(audited: Audited) -> None:
    heartbeat = {"memberId": "m", "topics": ["audit"]}
    for method, path, body in (
        ("POST", f"{AUDIT}/poll", {}),
        ("GET", f"{AUDIT}/messages", None),
        ("GET", AUDIT, None),
        ("POST", "/v1/namespaces/system/groups/g/heartbeat", heartbeat),
    ):
        refused(audited.send("alice", method, path, body), 403, "forbidden")
    assert ok(audited.send("admin", "GET", AUDIT)).json["properties"]["ttl"] == "7776000"


def test_each_call_that_changes_what_is_not_ones_own_is_administrative() -> None:
    found = {str(each) for each in OPERATIONS if is_administrative(each)}

    assert {each for each in found if each.startswith("GET ")} == {
        "GET /v1/backup",
        "GET /v1/transactions/snapshots/{file}",
    }
    assert {operation for _, _, _, operation in CALLS} < found
    assert "POST /v1/cluster/drain" in found
    assert "POST /v1/namespaces/{ns}/topics/{t}/publish" not in found
