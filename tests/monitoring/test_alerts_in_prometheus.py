"""Alerts of conf/prometheus that a real Prometheus fires, each by its cause on a real server.

The rules are those of the file, without the times for which an alert waits. One Prometheus scrapes
the servers of all tests. What the rules say of given series is in alerts_test.yml.
"""

import json
import re
import resource
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import shim_library as shim_library
from tests.faults.disk import Shim
from tests.faults.test_full_disk import files_held_at
from tests.http.calls import Topic, ids
from tests.http.client import Client, ok, until
from tests.http.conftest import NewServer
from tests.http.conftest import new_server as new_server
from tests.http.process import ENDS_WITH_PARENT, ServerProcess, serve
from tests.http.test_access import access_file, rights
from tests.http.test_damaged_records import damage
from tests.http.test_server_tls import HOST, Files
from tests.monitoring.test_dashboard_and_alerts import ALERTS
from tests.programs import find, needs
from tests.secret_values import token_of
from tuff.protocol.operations import Right

pytestmark = needs("prometheus")

LAG_S = 2  # for the 600 seconds of the rules
CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: tuff
    authorization: {{credentials: {token}}}
    tls_config: {{insecure_skip_verify: true}}
    file_sd_configs: [{{files: [targets/*.json], refresh_interval: 1s}}]
"""


class Prometheus:
    """A Prometheus with the rules of the file. Stop it with `end`."""

    def __init__(self, home: Path) -> None:
        self._targets = home / "targets"
        self._targets.mkdir()
        rules = re.sub(r"^ +for: .*\n", "", ALERTS.read_text("utf-8"), flags=re.MULTILINE)
        (home / "alerts.yml").write_text(rules.replace("> 600", f"> {LAG_S}"))
        (home / "prometheus.yml").write_text(CONFIG.format(token=token_of("admin")))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        program = str(find("prometheus"))
        options = {
            "config.file": home / "prometheus.yml",
            "storage.tsdb.path": home / "data",
            "web.listen-address": self._address,
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        with (home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*ENDS_WITH_PARENT, program, *flags], stdout=log, stderr=log
            )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def watch(self, server: ServerProcess) -> None:
        """Scrape a server, and wait until that was done."""
        target = {"targets": [self._name(server)], "labels": {"__scheme__": server.scheme}}
        (self._targets / f"{server.port}.json").write_text(json.dumps([target]))
        up = f'up{{instance="{self._name(server)}"}}==1'
        until(lambda: self._get(f"query?query={up}").get("result"), what="a scrape")

    def fires(self, alert: str, server: ServerProcess | None = None, **labels: str) -> None:
        """Wait until an alert fires with these labels, for a server or for all of them."""
        of_server = {} if server is None else {"instance": self._name(server)}
        wanted = {"alertname": alert, **of_server, **labels}
        until(
            lambda: [
                each for each in self._get("alerts").get("alerts", ())
                if each["state"] == "firing" and wanted.items() <= each["labels"].items()
            ],
            what=f"{wanted} to fire",
        )  # fmt: skip

    def _name(self, server: ServerProcess) -> str:
        return f"{server.host}:{server.port}"

    def _get(self, path: str) -> dict[str, Any]:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://{self._address}/api/v1/{path}") as r,
        ):
            found: dict[str, Any] = json.load(r)["data"]
            return found
        return {}  # it starts


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    made = Prometheus(tmp_path_factory.mktemp("prometheus"))
    yield made
    made.end()


def test_connections_up_to_the_bound(prometheus: Prometheus, new_server: NewServer) -> None:
    server = new_server("server.max_connections=20")
    prometheus.watch(server)
    for _ in range(17):
        ok(server.client().get("/health/live"))

    prometheus.fires("TuffManyConnections", server)


def test_few_file_descriptors(prometheus: Prometheus, new_server: NewServer) -> None:
    server = new_server()
    prometheus.watch(server)
    open_count = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))

    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (open_count + 4, open_count + 4))

    prometheus.fires("TuffFewFileDescriptors", server)


def test_messages_that_were_acknowledged_early_are_lost(
    prometheus: Prometheus, new_server: NewServer
) -> None:
    server = new_server()
    topic = Topic(server.client(), "default", "failing")
    ok(topic.create())
    prometheus.watch(server)
    size = max(path.stat().st_size for path in server.data.rglob("*") if path.is_file())

    with files_held_at(server, size + 40):
        for number in range(100):
            topic.publish(str(number), ack="none")
    prometheus.fires("TuffPublishesLost", server)


def test_only_a_backup_has_met_a_damaged_record(
    prometheus: Prometheus, new_server: NewServer
) -> None:
    first = new_server()
    topic = Topic(first.client(), "default", "seldom-read")
    ok(topic.create())
    ok(topic.publish("soon damaged"))
    first.end()
    assert damage(first.data / "messages", b"soon damaged") == 1
    server = new_server(home=first.home)
    prometheus.watch(server)

    assert b"is damaged" in server.client().get("/v1/backup").body

    prometheus.fires("TuffDamagedRecords", server)


def test_the_clock_is_set_back(prometheus: Prometheus, shim_library: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shim = Shim(shim_library, root=home, control=tmp_path / "control")
    with serve(home, environment=shim.environment()) as server:
        prometheus.watch(server)
        shim.set_clock(wall_s=-30)

        prometheus.fires("TuffClockJumped", server)


# Consumers.


BILLING = "/v1/namespaces/shop/groups/billing"


def join(client: Client) -> int:
    """Let a member join the group; its epoch."""
    body = {"memberId": "m1", "memberEpoch": 0, "topics": ["orders"]}
    return int(ok(client.post(f"{BILLING}/heartbeat", body)).json["memberEpoch"])


def test_a_group_whose_only_member_died_before_its_first_commit(
    prometheus: Prometheus, new_server: NewServer
) -> None:
    """Nothing was measured of it: it has no offset."""
    server = new_server("groups.session_timeout=1", "groups.heartbeat_interval=0.3")
    orders = Topic(server.client(), "shop", "orders")
    ok(orders.create())
    join(server.client())
    prometheus.watch(server)

    ok(orders.publish("a"))

    prometheus.fires("TuffGroupHasNoMember", server, namespace="shop", group="billing")
    prometheus.fires("TuffConsumerLags", server, namespace="shop", group="billing")


def test_a_consumer_that_hangs_on_a_topic_to_which_nothing_more_is_published(
    prometheus: Prometheus, new_server: NewServer
) -> None:
    server = new_server()
    client = server.client()
    orders = Topic(client, "shop", "orders")
    ok(orders.create())
    epoch = join(client)
    ok(orders.publish("a"))
    (first,) = ids(orders.poll())
    offsets = {"memberId": "m1", "memberEpoch": epoch, "offsets": {"orders:0": first}}
    ok(client.post(f"{BILLING}/offsets", offsets))
    ok(client.put(f"{orders.path}/positions/report", {"position": first}))
    ok(client.put(f"{orders.path}/share-groups/workers", {"start": "earliest"}))
    prometheus.watch(server)

    ok(orders.publish("b"))

    prometheus.fires("TuffConsumerLags", server, group="billing")  # its member counts as alive
    prometheus.fires("TuffConsumerLags", server, position="report")
    prometheus.fires("TuffConsumerLags", server, group="workers")


# Access control and TLS.


def test_an_access_file_that_is_not_valid(prometheus: Prometheus, tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(access_file({"admin": rights("admin", *Right)}))
    with serve(tmp_path, f"server.access_file={file}") as server:
        prometheus.watch(server)
        file.write_text("x = ")

        prometheus.fires("TuffProtectionDegraded", server, check="access")


def test_a_certificate_that_expires_and_one_that_has(
    prometheus: Prometheus, tmp_path: Path
) -> None:
    files, now = Files(tmp_path / "files"), datetime.now(UTC)
    files.write(files.authority.issue_cert(HOST, not_after=now + timedelta(days=3)))
    with serve(tmp_path / "soon", *files.settings()[:3]) as server:
        prometheus.watch(server)
        prometheus.fires("TuffCertificateExpires", server)

        files.write(files.authority.issue_cert(HOST, not_after=now - timedelta(days=2)))
        prometheus.fires("TuffProtectionDegraded", server, check="tls")

    with serve(tmp_path / "late", *files.settings()[:3]) as server:
        prometheus.watch(server)
        prometheus.fires("TuffProtectionDegraded", server, check="tls")
        prometheus.fires("TuffCertificateExpires", server)


@pytest.mark.slow
def test_audit_messages_that_find_no_room(prometheus: Prometheus, tmp_path: Path) -> None:
    """More administrative calls than can wait, while no message can be stored."""
    file = tmp_path / "access.toml"
    file.write_text(access_file({"admin": rights("admin", *Right)}))
    audit = f"server.access_file={file}", 'server.audit_topic="system:audit"'
    with serve(tmp_path, *audit) as server:
        prometheus.watch(server)
        size = max(path.stat().st_size for path in server.data.rglob("*") if path.is_file())
        client = Client(server.port, token=token_of("admin"), is_checked=False)
        with files_held_at(server, size):
            for _ in range(10_100):
                ok(client.post("/v1/transactions/service/start", {}))
            prometheus.fires("TuffAuditMessagesLost", server)
            prometheus.fires("TuffAuditTopicStuck", server)
        client.close()
