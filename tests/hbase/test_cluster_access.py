"""Three real servers with an access file, TLS and an audit topic."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

import tuff
from tests.cluster.local_cluster import LocalCluster, local_cluster
from tests.hbase.marks import NEEDS_HBASE
from tests.http.client import until
from tests.secret_values import CLUSTER_SECRET, hash_of_token, token_of
from tuff.errors import ForbiddenError

pytestmark = NEEDS_HBASE

ALL = 'allow = ["create", "publish", "read", "transact", "administer"]'
SOME = 'allow = ["create", "publish", "read", "transact"]'
RIGHTS = {"admin": ALL, "alice": SOME, "bob": SOME, "reader": 'allow = ["read"]'}


def settings(home: Path) -> list[str]:
    """Writes the files of the servers."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(home / "ca.pem")
    issued.private_key_pem.write_to_path(home / "key.pem")
    issued.cert_chain_pems[0].write_to_path(home / "server.pem")
    (home / "secret").write_text(CLUSTER_SECRET)
    (home / "access.toml").write_text(
        "\n".join(
            f'[principals.{name}]\ntokens = ["{hash_of_token(name)}"]\n'
            f"[[principals.{name}.rights]]\n{allow}"
            for name, allow in RIGHTS.items()
        )
    )
    return [
        f"server.access_file={home / 'access.toml'}",
        f"server.tls_certificate_file={home / 'server.pem'}",
        f"server.tls_key_file={home / 'key.pem'}",
        f"cluster.secret_file={home / 'secret'}",
        f"cluster.tls_ca_file={home / 'ca.pem'}",
        'server.audit_topic="system:audit"',
    ]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = local_cluster(tmp_path_factory.mktemp("cluster"), count=3, settings=settings(home))
    with made as running:
        yield running


def client(cluster: LocalCluster, home: Path, server: str, name: str) -> tuff.Client:
    """A client of one server, which forwards what it does not own."""
    url = cluster.servers[server].url
    return tuff.Client(url, token=token_of(name), tls_ca_file=home / "ca.pem", retries=20)


def test_every_server_answers_with_the_rights_of_the_principal(
    cluster: LocalCluster, home: Path
) -> None:
    topics = [tuff.TopicId("shop", f"orders-{number}") for number in range(4)]
    with client(cluster, home, "s1", "admin") as admin:
        for topic in topics:
            admin.topics.create(topic)
    for server in cluster.servers:
        with (
            client(cluster, home, server, "alice") as alice,
            client(cluster, home, server, "reader") as reader,
        ):
            for topic in topics:
                alice.publish(topic, server)
                assert reader.poll(topic)[-1].payload == server.encode()
                with pytest.raises(ForbiddenError, match="principal reader"):
                    reader.publish(topic, "no")


def test_a_transaction_has_its_owner_at_every_server(cluster: LocalCluster, home: Path) -> None:
    topic = tuff.TopicId("shop", "owned")
    with client(cluster, home, "s1", "alice") as alice:
        alice.topics.create(topic)
        transaction = alice.transactions.start()
        alice.publish(topic, "in it", transaction=transaction)
    for server in cluster.servers:
        with (
            client(cluster, home, server, "admin") as admin,
            client(cluster, home, server, "bob") as bob,
        ):
            (shown,) = admin.transactions.overview().in_progress
            assert shown.transaction_id == transaction.transaction_id
            with pytest.raises(ForbiddenError, match="does not belong to principal bob"):
                bob.transactions.abort(transaction)
    with client(cluster, home, "s3", "alice") as alice:
        alice.transactions.commit(transaction)
        assert [each.payload for each in alice.poll(topic)] == [b"in it"]


def test_only_its_owner_writes_under_a_transaction_at_every_server(
    cluster: LocalCluster, home: Path
) -> None:
    topic = tuff.TopicId("shop", "written")
    with client(cluster, home, "s1", "alice") as alice:
        alice.topics.create(topic)
        transaction = alice.transactions.start()
    for server in cluster.servers:
        with (
            client(cluster, home, server, "alice") as alice,
            client(cluster, home, server, "bob") as bob,
        ):
            alice.publish(topic, server, transaction=transaction)
            with pytest.raises(ForbiddenError, match="does not belong to principal bob"):
                bob.publish(topic, "no", transaction=transaction)
    with client(cluster, home, "s2", "alice") as alice:
        alice.transactions.abort(transaction)


def test_every_server_writes_to_the_audit_topic(cluster: LocalCluster, home: Path) -> None:
    audit, gone = tuff.TopicId("system", "audit"), tuff.TopicId("shop", "gone")
    for server in cluster.servers:
        with client(cluster, home, server, "bob") as bob, pytest.raises(ForbiddenError):
            bob.topics.delete(gone)

    def servers() -> set[str]:
        """Those that recorded the refusal."""
        with client(cluster, home, "s2", "admin") as admin:
            acts = [json.loads(each.payload) for each in admin.poll(audit)]
        wanted = [each for each in acts if each["parameters"] == {"ns": "shop", "t": "gone"}]
        assert {(each["principal"], each["result"]) for each in wanted} <= {("bob", "forbidden")}
        return {each["server"] for each in wanted}

    until(lambda: servers() == {*cluster.servers}, what="an act of each server")
    for server in cluster.servers:
        with (
            client(cluster, home, server, "admin") as admin,
            pytest.raises(ForbiddenError),
        ):
            admin.publish(audit, "forged")
