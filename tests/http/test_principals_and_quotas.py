"""Transactions belong to the principal that started them, and principals have quotas."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.client import JSON, Client, Reply, ok, refused, until
from tests.http.over_session import ClientOverSession
from tests.http.process import serve
from tests.secret_values import hash_of_token, token_of
from tuff import Client as TuffClient
from tuff import TopicId

ALL = 'allow = ["create", "publish", "read", "transact"]'
NAMES = {"alice": ALL, "bob": ALL, "admin": 'allow = ["publish", "transact", "administer"]'}
TENANTS = {"alice": "acme", "alice2": "acme", "bob": "beta"}  # eve and admin have none
CALLS = ("can-commit", "commit", "prepare", "resolve", "abort", "invalidate", "checkpoint", "renew")


def access_file(quotas: str = "") -> str:
    return "\n".join(
        f'[principals.{name}]\ntokens = ["{hash_of_token(name)}"]\n{quotas}\n'
        f"[[principals.{name}.rights]]\n{allow}"
        for name, allow in NAMES.items()
    )


class Home:
    """A server with an access file, and calls as one of its principals."""

    def __init__(
        self,
        home: Path,
        quotas: str = "",
        *,
        file: str | None = None,
        client: type[Client] = Client,
    ) -> None:
        self._home = home
        self._client_class = client
        self.carried_count = 0  # the calls that went over a session
        self._file = home / "access.toml"
        self._file.write_text(file if file is not None else access_file(quotas))
        self._serve()

    def restart(self, file: str) -> None:
        self.end()
        self._file.write_text(file)
        self._serve()

    def change(self, file: str) -> None:
        """Change the file of the server that runs."""
        self._file.write_text(file)

    def _serve(self) -> None:
        self.server = serve(self._home, f"server.access_file={self._file}")
        self.client = self._client_class(self.server.port)

    def kill_and_start(self) -> None:
        self.server.kill()
        self._close_client()
        self._serve()

    def end(self) -> None:
        self._close_client()
        self.server.end()

    def _close_client(self) -> None:
        self.client.close()
        if isinstance(self.client, ClientOverSession):
            self.carried_count += self.client.carried

    def send(self, name: str, path: str, body: bytes | None = b"{}", method: str = "POST") -> Reply:
        headers = {"Authorization": f"Bearer {token_of(name)}"}
        return self.client.send(method, path, body, content_type=JSON, headers=headers)

    def start(self, name: str, body: bytes = b"{}") -> str:
        started = self.send(name, "/v1/transactions", body)
        assert started.status == 201, started
        return f"/v1/transactions/{started.json['transactionId']}"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("takes_snapshot", [False, True], ids=["log", "snapshot"])
def test_nobody_else_changes_or_ends_a_transaction_also_after_a_crash(
    home: Home, *, takes_snapshot: bool
) -> None:
    path = home.start("alice", b'{"timeout": 600}')
    ok(home.send("alice", f"{path}/can-commit", b'{"changes": ["a"]}'))  # makes the start durable
    if takes_snapshot:
        ok(home.send("admin", "/v1/transactions/snapshot"))
    for _ in range(2):
        for call in CALLS:
            refused(home.send("bob", f"{path}/{call}"), 403, "forbidden", naming="principal bob")
        (shown,) = ok(home.send("admin", "/v1/transactions", None, "GET")).json["inProgress"]
        assert shown["principal"] == "alice"
        home.kill_and_start()

    assert ok(home.send("alice", f"{path}/commit")).json["state"] == "committed"


def test_who_may_administer_writes_under_and_ends_the_transactions_of_others(home: Home) -> None:
    ok(home.send("alice", ORDERS, method="PUT"))
    path = home.start("alice")
    body = {"messages": ["m"], "transactionWritePointer": path.rpartition("/")[2]}

    ok(home.send("admin", f"{ORDERS}/publish", json.dumps(body).encode()))
    assert ok(home.send("admin", f"{path}/abort")).json["state"] == "aborted"


ORDERS = "/v1/namespaces/shop/topics/orders"
BILLING = "/v1/namespaces/shop/groups/billing"
WORKERS = f"{ORDERS}/share-groups/workers"
JOIN = b'{"memberId": "m", "memberEpoch": 0, "topics": ["orders"]}'


def writes_under(home: Home, pointer: str) -> dict[str, bytes]:
    """The calls that write under a write pointer, with bodies that its owner may send."""
    transaction = {"transactionWritePointer": pointer}
    publish = {"messages": ["m"], **transaction}
    detail = home.send("alice", f"{ORDERS}/publish", json.dumps(publish).encode()).json
    member = ok(home.send("alice", f"{BILLING}/heartbeat", JOIN)).json
    leased = ok(home.send("alice", f"{WORKERS}/lease", b'{"count": 1}')).json["messages"]
    done = [{"id": each["id"], "token": each["token"], "action": "accept"} for each in leased]
    offsets = {
        "memberId": "m", "memberEpoch": member["memberEpoch"], "offsets": {"orders:0": "00" * 20},
        **transaction,
    }  # fmt: skip
    bodies = {
        f"{ORDERS}/publish": publish,
        f"{ORDERS}/store": publish,
        f"{ORDERS}/rollback": detail,
        f"{BILLING}/offsets": offsets,
        f"{WORKERS}/acknowledge": {"messages": done, **transaction},
    }
    return {path: json.dumps(body).encode() for path, body in bodies.items()}


def test_nobody_else_writes_under_a_transaction(home: Home) -> None:
    ok(home.send("alice", ORDERS, method="PUT"))
    ok(home.send("alice", f"{ORDERS}/publish", b'{"messages": ["for the workers"]}'))
    ok(home.send("alice", WORKERS, b'{"start": "earliest"}', "PUT"))
    pointer = home.start("alice").rpartition("/")[2]

    for path, body in writes_under(home, pointer).items():
        wrong = home.send("bob", path, body)
        refused(wrong, 403, "forbidden", naming=f"transaction {pointer} does not belong")
        ok(home.send("alice", path, body))


def test_a_transaction_without_an_owner_takes_writes_of_each_publisher(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        client = server.client()
        ok(client.put(ORDERS))
        started = client.post("/v1/transactions", {"timeout": 600}).json["transactionId"]
        ok(client.post(f"/v1/transactions/{started}/can-commit", {"changes": ["a"]}))
    home = Home(tmp_path)
    body = json.dumps({"messages": ["m"], "transactionWritePointer": started}).encode()

    ok(home.send("bob", f"{ORDERS}/publish", body))
    home.end()


def test_nobody_else_takes_an_invalid_transaction_from_the_list(home: Home) -> None:
    """Its rows would become visible."""
    path = home.start("alice", b'{"type": "long"}')
    ok(home.send("alice", f"{path}/invalidate"))
    home.kill_and_start()

    refused(home.send("bob", f"{path}/abort"), 403, "forbidden")
    ok(home.send("alice", f"{path}/abort"))


def test_nobody_else_takes_over_an_epoch(home: Home) -> None:
    epoch = "/v1/sinks/ours/epochs/0"
    ok(home.send("alice", epoch, b'{"runId": "r1"}'))

    for run in (b'{"runId": "r1"}', b'{"runId": "r2"}'):
        refused(home.send("bob", epoch, run), 403, "forbidden")
    ok(home.send("alice", epoch, b'{"runId": "r2"}'))


def test_transactions_from_before_access_control_belong_to_nobody(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        client = server.client()
        started = client.post("/v1/transactions", {"timeout": 600}).json["transactionId"]
        ok(client.post(f"/v1/transactions/{started}/can-commit", {"changes": ["a"]}))
    home = Home(tmp_path)
    path = f"/v1/transactions/{started}"

    refused(home.send("alice", f"{path}/commit"), 403, "forbidden")
    ok(home.send("admin", f"{path}/commit"))
    home.end()


def test_a_principal_has_so_many_open_transactions(tmp_path: Path) -> None:
    home = Home(tmp_path, "open_transactions = 2")
    first, _ = home.start("alice"), home.start("alice")
    home.start("bob")
    for path in ("/v1/transactions", "/v1/sinks/ours/epochs/0"):
        reply = home.send("alice", path, b'{"runId": "r"}' if "sinks" in path else b"{}")
        refused(reply, 429, "quota_exceeded", naming="open_transactions")
        assert reply.header("Retry-After") == "1"

    ok(home.send("alice", f"{first}/abort"))

    home.start("alice")
    assert refused_requests(home) == {"admin": 0, "alice": 2, "bob": 0}
    home.end()


def refused_requests(home: Home) -> dict[str, float]:
    """The metric of requests above a quota, by principal."""
    text = ok(home.send("admin", "/metrics", None, "GET")).body.decode()
    return {
        sample.labels["principal"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "tuff_quota_refused_requests_total"
    }


def test_the_metric_of_quotas_names_the_principals_that_have_one(tmp_path: Path) -> None:
    """A label for each name that a client sends would have no bound."""
    home = Home(tmp_path)
    home.send("nobody", "/v1/transactions")
    assert refused_requests(home) == {}

    home.change(access_file("requests_per_second = 1000"))
    until(lambda: refused_requests(home))

    assert set(refused_requests(home)) == set(NAMES)
    home.end()


def test_a_principal_above_its_rate_has_to_wait_and_others_do_not(tmp_path: Path) -> None:
    home = Home(tmp_path, "bytes_per_second = 100000")
    topic = "/v1/namespaces/default/topics/t"
    ok(home.send("alice", topic, b"{}", "PUT"))
    large = b'{"messages": ["%s"]}' % (b"x" * 900_000)
    ok(home.send("alice", f"{topic}/publish", large))

    reply = home.send("alice", topic, None, "GET")

    refused(reply, 429, "quota_exceeded", naming="bytes_per_second=100000")
    assert int(reply.header("Retry-After") or 0) > 1
    ok(home.send("bob", topic, None, "GET"))
    assert refused_requests(home)["alice"] == 1
    home.end()


def test_a_client_waits_as_long_as_the_server_says(tmp_path: Path) -> None:
    home = Home(tmp_path, "bytes_per_second = 100000")
    topic = TopicId("default", "t")
    with TuffClient(home.server.url, token=token_of("alice"), retries=5) as client:
        client.topics.create(topic)
        client.publish(topic, "x" * 250_000)
        client.publish(topic, "after the pause")
    with TuffClient(home.server.url, token=token_of("bob"), retries=0) as client:
        assert len(client.poll(topic)) == 2
    home.end()


def test_a_request_id_is_that_of_its_principal(home: Home) -> None:
    ok(home.send("alice", "/v1/namespaces/default/topics/t", method="PUT"))
    body = {
        "publish": [{"namespace": "default", "topic": "t", "messages": ["m"]}],
        "requestId": "invoice 7",
    }

    first, again, other = (
        ok(home.send(name, "/v1/transactions/run", json.dumps(body).encode())).json
        for name in ("alice", "alice", "bob")
    )

    assert first == again
    assert other != first  # it has published something of its own


# Tenants.


def tenant_file(tenants: Mapping[str, str] = TENANTS) -> str:
    names = {"alice": ALL, "alice2": ALL, "bob": ALL, "eve": ALL, "admin": NAMES["admin"]}
    return "\n".join(
        f'[principals.{name}]\ntokens = ["{hash_of_token(name)}"]\n'
        + (f'tenant = "{tenants[name]}"\n' if name in tenants else "")
        + f"[[principals.{name}.rights]]\n{allow}"
        for name, allow in names.items()
    )


@pytest.fixture(params=[Client, ClientOverSession])
def clients(request: pytest.FixtureRequest) -> type[Client]:
    """Calls of one client with the tokens of all principals: over HTTP, or where a session carries
    them over a session for each."""
    kind: type[Client] = request.param
    return kind


@pytest.fixture
def tenants(tmp_path: Path, clients: type[Client]) -> Iterator[Home]:
    made = Home(tmp_path, file=tenant_file(), client=clients)
    yield made
    made.end()
    assert bool(made.carried_count) == (clients is ClientOverSession)


def commit(home: Home, name: str, path: str, *changes: str) -> Reply:
    return home.send(name, f"{path}/commit", json.dumps({"changes": changes}).encode())


def test_conflicts_are_those_of_a_tenant_also_after_a_crash(tenants: Home) -> None:
    body = b'{"timeout": 600, "client": "of the tenant"}'
    names = ("alice", "alice2", "bob", "eve")
    paths = {name: tenants.start(name, body) for name in names}
    ok(commit(tenants, "alice", paths["alice"], "invoice 7"))
    tenants.kill_and_start()

    wrong = commit(tenants, "alice2", paths["alice2"], "invoice 7")
    refused(wrong, 409, "transaction_conflict", naming='"invoice 7"')
    assert wrong.json["key"] == "invoice 7"
    assert wrong.json["conflictingClient"] == "of the tenant"
    ok(commit(tenants, "bob", paths["bob"], "invoice 7"))
    ok(commit(tenants, "eve", paths["eve"], "invoice 7"))


def test_a_principal_without_a_tenant_can_t_name_a_change_of_one(tenants: Home) -> None:
    mallory, alice, again = tenants.start("eve"), tenants.start("alice"), tenants.start("eve")
    forged = "\0tenant\0acme\0k"
    ok(commit(tenants, "eve", mallory, forged))

    ok(commit(tenants, "alice", alice, "k"))
    assert commit(tenants, "eve", again, forged).json["key"] == forged


def test_a_prepared_transaction_keeps_no_changes_of_another_tenant(tenants: Home) -> None:
    prepared, other = tenants.start("alice"), tenants.start("bob")
    body = b'{"database": "billing", "changes": ["k"]}'
    ok(tenants.send("alice", f"{prepared}/prepare", body))

    ok(commit(tenants, "bob", other, "k"))

    listed = {
        name: ok(tenants.send(name, "/v1/transactions/prepared", None, "GET")).json["prepared"]
        for name in ("alice2", "bob", "eve", "admin")
    }
    assert {name: len(found) for name, found in listed.items()} == {
        "alice2": 1, "bob": 0, "eve": 0, "admin": 1,
    }  # fmt: skip
    ok(tenants.send("admin", f"{prepared}/resolve", b'{"outcome": "abort"}'))


def test_an_administrator_commits_in_the_tenant_of_the_transaction(tenants: Home) -> None:
    first, second = tenants.start("alice"), tenants.start("alice2")
    ok(commit(tenants, "admin", first, "k"))

    refused(commit(tenants, "alice2", second, "k"), 409, "transaction_conflict")


@pytest.mark.parametrize("takes_snapshot", [False, True], ids=["log", "snapshot"])
def test_no_call_tells_of_a_transaction_of_another_tenant(
    tenants: Home, *, takes_snapshot: bool
) -> None:
    ok(tenants.send("alice", ORDERS, method="PUT"))
    opened = tenants.start("alice", b'{"timeout": 600}')
    ended = tenants.start("alice", b'{"timeout": 600}')
    published = {"publish": [{"namespace": "shop", "topic": "orders", "messages": ["m"]}]}
    first = ok(tenants.send("alice", f"{ended}/commit", json.dumps(published).encode())).json
    if takes_snapshot:
        ok(tenants.send("admin", "/v1/transactions/snapshot"))
    for _ in range(2):
        for name in ("bob", "eve"):
            for path in (opened, ended):
                refused(tenants.send(name, path, None, "GET"), 404, "transaction_unknown")
            refused(tenants.send(name, f"{ended}/commit"), 404, "transaction_unknown")
        assert ok(tenants.send("alice2", ended, None, "GET")).json["topics"] == ["shop:orders"]
        assert ok(tenants.send("alice", f"{ended}/commit")).json == first
        tenants.kill_and_start()


def test_a_sink_is_that_of_its_tenant(tenants: Home) -> None:
    epoch, run = "/v1/sinks/ours/epochs/0", b'{"runId": "r1"}'
    begun = {
        name: ok(tenants.send(name, epoch, run)).json["transaction"]["transactionId"]
        for name in ("alice", "bob", "eve")
    }
    assert len(set(begun.values())) == 3
    refused(tenants.send("alice2", epoch, b'{"runId": "r2"}'), 403, "forbidden")

    for name, sinks in {"alice2": ["ours"], "admin": ["acme@ours", "beta@ours", "ours"]}.items():
        listed = ok(tenants.send(name, "/v1/sinks", None, "GET")).json["sinks"]
        assert [each["sink"] for each in listed] == sinks
    shown = ok(tenants.send("alice2", "/v1/sinks/ours", None, "GET")).json
    assert (shown["sink"], shown["transactionId"]) == ("ours", begun["alice"])
    ok(tenants.send("alice", f"/v1/transactions/{begun['alice']}/commit"))
    ok(tenants.send("admin", "/v1/sinks/acme%40ours", None, "DELETE"))
    refused(tenants.send("alice", "/v1/sinks/ours", None, "GET"), 404, "sink_not_found")
    refused(tenants.send("bob", "/v1/sinks/acme%40ours", None, "GET"), 400, "invalid_name")


def test_a_principal_that_moves_to_another_tenant_can_t_go_on_with_its_transactions(
    tmp_path: Path, clients: type[Client]
) -> None:
    """It would commit what conflicts in the tenant that it has left."""
    home = Home(tmp_path, file=tenant_file({}), client=clients)
    path = home.start("alice", b'{"timeout": 600}')
    ok(home.send("alice", f"{path}/can-commit", b'{"changes": ["k"]}'))
    home.restart(tenant_file())

    refused(commit(home, "alice", path, "k"), 403, "forbidden")
    home.end()


def test_a_principal_that_moves_while_the_server_runs_is_one_of_the_new_tenant(
    tmp_path: Path, clients: type[Client]
) -> None:
    """Also in a session that it began as one of the old tenant."""
    home = Home(tmp_path, file=tenant_file({}), client=clients)
    path = home.start("alice", b'{"timeout": 600}')
    ok(home.send("alice", path, None, "GET"))

    home.change(tenant_file())
    until(lambda: home.send("alice", path, None, "GET").status == 404)

    refused(commit(home, "alice", path, "k"), 403, "forbidden")
    other = home.start("alice2")
    ok(commit(home, "alice", home.start("alice"), "k"))
    refused(commit(home, "alice2", other, "k"), 409, "transaction_conflict")
    home.end()
