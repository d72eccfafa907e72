"""A server with an access file: principals, their rights, and changes of the file."""

import json
import os
import signal
import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.http.client import JSON, Client, Reply, ok, refused, until
from tests.http.forking import fork_server
from tests.http.process import ServerProcess, serve
from tests.secret_values import hash_of_token, require_no_secret, token_of
from tuff import Client as TuffClient
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import OPERATIONS, Operation, Right, Scope

# A cluster takes no access file.
GUARDED = [
    each for each in OPERATIONS if each.tag != "cluster" and each.access.scope is not Scope.OPEN
]
MADE = TopicId("default", "made")
NAMES = ("nobody", "elsewhere", *Right)


def access_file(principals: Mapping[str, str]) -> str:
    """Each principal with the entries of its rights."""
    return "\n".join(
        f'[principals.{name}]\ntokens = ["{hash_of_token(name)}"]\n{rights}'
        for name, rights in principals.items()
    )


def rights(name: str, *allow: str, namespace: str = "*", topics: str = "*") -> str:
    return (
        f'[[principals.{name}.rights]]\nnamespace = "{namespace}"\ntopics = ["{topics}"]\n'
        f"allow = {[str(each) for each in allow]}\n"
    )


EVERYBODY = access_file(
    {
        "nobody": "",
        "elsewhere": rights("elsewhere", *Right, namespace="elsewhere"),
        **{right: rights(right, right) for right in Right},
    }
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("access")
    file = home / "access.toml"
    file.write_text(EVERYBODY)
    with serve(home, f"server.access_file={file}") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


def send(client: Client, endpoint: Operation, authorization: str | None) -> Reply:
    """A call with a query parameter that no endpoint knows: it changes nothing if it is allowed."""
    hexes = {"id": f"{0:040x}", "message": f"{0:040x}"}
    ids = {"tx": "1", "epoch": "1", "ns": "ns", "t": "t", **hexes}
    path = endpoint.path.format_map(defaultdict(lambda: "x", ids))
    body = b"{}" if endpoint.method in {"PUT", "POST"} else None
    headers = {} if authorization is None else {"Authorization": authorization}
    return client.send(
        endpoint.method, path, body, content_type=JSON, headers=headers, query={"bogus": 1}
    )


def may(name: str, endpoint: Operation) -> bool:
    """What the table says of a principal that has one right on everything, or all in another
    namespace."""
    needed = endpoint.access
    if needed.scope is Scope.ANYWHERE:
        return True
    if name == "elsewhere":
        return needed.scope is Scope.SOMEWHERE and "{ns}" not in endpoint.path
    return name in needed.rights


@pytest.mark.parametrize("endpoint", GUARDED, ids=lambda each: each.name)
def test_each_principal_may_call_what_the_table_says(client: Client, endpoint: Operation) -> None:
    for name in NAMES:
        reply = send(client, endpoint, f"Bearer {token_of(name)}")
        if may(name, endpoint):
            refused(reply, 400, "bad_request", naming="bogus")
        else:
            refused(reply, 403, "forbidden", naming=f"principal {name} does not have the right")


@pytest.mark.parametrize("endpoint", GUARDED, ids=lambda each: each.name)
def test_a_call_without_a_token_of_the_file_is_refused(client: Client, endpoint: Operation) -> None:
    read = token_of("read")
    for wrong in (None, "", "Bearer", "Bearer ", f"Bearer x{read}", f"Basic {read}", read):
        reply = send(client, endpoint, wrong)

        refused(reply, 401, "unauthenticated")
        assert reply.header("WWW-Authenticate") == "Bearer"


def test_the_client_sends_its_token(server: ServerProcess) -> None:
    with TuffClient(server.url, token=token_of("create"), retries=0) as creator:
        creator.topics.create(MADE)
    with TuffClient(server.url, token=token_of("publish"), retries=0) as publisher:
        publisher.publish(MADE, "hello")
    with TuffClient(server.url, token=token_of("read"), retries=0) as reader:
        assert [each.payload for each in reader.poll(MADE)] == [b"hello"]


def test_a_probe_sees_reasons_only_if_it_may_administer(client: Client) -> None:
    def details(headers: Mapping[str, str]) -> set[str]:
        checks = ok(client.send("GET", "/health/ready", headers=headers)).json["checks"]
        return {check["detail"] for check in checks.values()}

    assert details({}) == {""}
    assert details({"Authorization": f"Bearer {token_of('read')}"}) == {""}
    assert "" not in details({"Authorization": f"bearer {token_of('administer')}"})


def test_a_changed_file_takes_effect_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(access_file({"a": rights("a", *Right)}))
    with serve(tmp_path / "home", f"server.access_file={file}") as server:
        client = server.client()

        def status(name: str) -> int:
            headers = {"Authorization": f"Bearer {token_of(name)}"}
            return client.send("GET", "/v1/namespaces", headers=headers).status

        assert (status("a"), status("b")) == (200, 401)
        file.write_text("principals = 1")
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: "principals is a table" in server.stderr(), what="the error in the log")
        assert (status("a"), status("b")) == (200, 401)

        file.write_text(access_file({"b": rights("b", *Right)}))

        until(lambda: status("b") == 200, what="the new principal")
        assert status("a") == 401


def test_a_file_that_is_not_valid_ends_the_start(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text("[principals.a]\ntokens = ['hunter2']")
    arguments = ["--port", "0", "--set", f"server.access_file={file}"]
    server = ServerProcess(tmp_path / "home", *arguments, forks=fork_server())

    assert server.wait_exit() == 2
    assert "server.access_file" in server.stderr()
    assert "hunter2" not in server.stderr()


@pytest.mark.parametrize("size", [10, 5_000_000], ids=["small", "large"])
def test_a_bad_token_is_refused_before_the_body_is_read(server: ServerProcess, size: int) -> None:
    """A body of the first size would be awaited whole, without a parser."""
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/namespaces/ns/topics/t/publish HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer wrong\r\n"
            b"Content-Length: %d\r\n\r\n" % size
        )
        answer = connection.recv(100)

    assert answer.startswith(b"HTTP/1.1 401 ")


def test_a_commit_in_parts_is_checked_with_its_body(client: Client) -> None:
    """The check of the head must not stand for that of the topics in the body."""
    body = {"publish": [{"namespace": "ns", "topic": "t", "messages": ["x"]}]}
    headers = {"Authorization": f"Bearer {token_of('transact')}", "Expect": "100-continue"}
    for _ in range(2):
        reply = client.send(
            "POST",
            "/v1/transactions/run",
            json.dumps(body).encode(),
            content_type=JSON,
            headers=headers,
        )

        refused(reply, 403, "forbidden", naming="publish on topic 't'")


def test_no_secret_stands_in_the_log_or_in_the_list_of_processes(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(EVERYBODY)
    with serve(tmp_path / "home", f"server.access_file={file}", "server.log_level=debug") as server:
        client = server.client()
        for name in (*NAMES, "stranger"):
            for endpoint in GUARDED:
                send(client, endpoint, f"Bearer {token_of(name)}")
        command_line = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode()

    require_no_secret(command_line, source="the command line")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("groups/g/heartbeat", {"memberId": "m", "memberEpoch": 0, "topics": ["t", "ns:orders"]}),
        (
            "groups/g/heartbeat",
            {"memberId": "m", "memberEpoch": 1, "groupEpoch": 1, "owned": ["t:0", "ns:orders:0"]},
        ),
        (
            "groups/g/offsets",
            {"memberId": "m", "memberEpoch": 1, "offsets": {"ns:orders:0": f"{0:040x}"}},
        ),
        ("wait", {"topics": {"ns:orders": {"after": {"0": f"{0:040x}"}}}}),
    ],
)
def test_each_topic_of_another_namespace_needs_the_right_there(
    server: ServerProcess, path: str, body: dict[str, object]
) -> None:
    """This principal has all rights in the namespace of the group."""
    client = server.client(token=token_of("elsewhere"))

    refused(
        client.post(f"/v1/namespaces/elsewhere/{path}", body),
        403,
        "forbidden",
        naming="read on topic 'orders' of namespace 'ns'",
    )


def test_the_lag_in_a_topic_that_the_principal_may_not_read_is_not_shown(
    server: ServerProcess,
) -> None:
    reader = server.client(token=token_of("read"))
    path = "/v1/namespaces/elsewhere/groups/both"
    ok(server.client(token=token_of("create")).put("/v1/namespaces/ns/topics/secret"))
    member = {"memberId": "m", "memberEpoch": 0, "topics": ["ns:secret"]}
    ok(reader.post(f"{path}/heartbeat", member))

    def unread(client: Client) -> object:
        return ok(client.get(path)).json["partitions"][0]["unread"]

    assert unread(reader) == 0
    assert unread(server.client(token=token_of("elsewhere"))) is None
