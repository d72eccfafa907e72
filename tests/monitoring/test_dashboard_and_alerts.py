"""The dashboard and the alerts name only metrics that a running server has, and each alert has a
recipe."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.reach import Reach
from cluster.request_counts import RequestCounts
from process.cluster_metrics import of_cluster
from tests.http.calls import Topic, begin, ids
from tests.http.client import Client, ok, until
from tests.http.process import ServerProcess, serve
from tests.http.test_access import access_file, rights
from tests.programs import needs
from tests.secret_values import token_of
from tuff.protocol.operations import Right

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "conf/prometheus/alerts.yml"
DASHBOARD = ROOT / "conf/grafana/tuff.json"
NAMESPACE = "shop"

OF_PROMETHEUS = {"instance", "job"}  # labels that each scrape adds
SELECTOR = re.compile(r"\b((?:tuff|process)_[a-z_]+)(?:\{([^}]*)\})?")
needs_prometheus = needs("promtool")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on which everything that has series of its own has happened."""
    home = tmp_path_factory.mktemp("monitored")
    file = home / "access.toml"
    file.write_text(access_file({"admin": rights("admin", *Right)}))
    audit = f"server.access_file={file}", 'server.audit_topic="system:audit"'
    with serve(home, *audit, "messaging.cleanup_interval=0.2") as running:
        _make_traffic(_client(running))
        yield running


def _client(server: ServerProcess) -> Client:
    return server.client(token=token_of("admin"))


def _make_traffic(client: Client) -> None:
    orders, dead = Topic(client, NAMESPACE, "orders"), Topic(client, NAMESPACE, "orders.dlq")
    for topic in (orders, dead):
        ok(topic.create())
        ok(topic.publish("a"))
    ok(orders.publish("later", delay=3600))
    (id,) = ids(orders.poll())
    ok(client.put(f"{orders.path}/positions/report", {"position": id}))
    ok(begin(client).commit(changes=["k"]))
    member = {"memberId": "m1", "memberEpoch": 0, "topics": ["orders"]}
    ok(client.post(f"/v1/namespaces/{NAMESPACE}/groups/billing/heartbeat", member))
    ok(client.put(f"{orders.path}/share-groups/invoices"))
    _lose_messages(client)


def _lose_messages(client: Client) -> None:
    """Messages expire before a consumer group and a share group have read them."""
    short = Topic(client, NAMESPACE, "short")
    ok(short.create({"ttl": "1"}))
    member = {"memberId": "m2", "memberEpoch": 0, "topics": ["short"]}
    ok(client.post(f"/v1/namespaces/{NAMESPACE}/groups/slow/heartbeat", member))
    ok(client.put(f"{short.path}/share-groups/slow", {"start": "earliest"}))
    ok(short.publish("unread"))
    for kind in (b"group", b"share_group"):
        series = b"tuff_%b_lost_messages_total{" % kind
        until(lambda series=series: series in client.get("/metrics").body)


def _alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _panel_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def _expressions() -> list[str]:
    return [*_panel_expressions(), *(str(alert["expr"]) for alert in _alerts())]


def _labels_by_name(text: str) -> dict[str, set[str]]:
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


def _of_cluster() -> dict[str, set[str]]:
    reach = Reach(
        reaches_hbase=lambda: False,
        read_store_id=lambda: None,
        in_thread=asyncio.to_thread,
        spawn=lambda work: work.close(),
        elapsed_s=lambda: 0.0,
    )
    found = of_cluster(None, RequestCounts(), reach)
    names = {f"tuff_{each.name}{'_total' if each.is_counter else ''}": set() for each in found}
    return names | {"tuff_tls_certificate_days": set()}  # tests/http/test_server_tls.py


def test_each_metric_of_the_dashboard_and_the_alerts_exists_with_its_labels(
    server: ServerProcess,
) -> None:
    known = _labels_by_name(_client(server).get("/metrics").body.decode()) | _of_cluster()
    wrong = []
    for expression in _expressions():
        selectors = SELECTOR.findall(expression)
        assert selectors or "up{" in expression
        labels = set(OF_PROMETHEUS).union(*(known.get(name, ()) for name, _ in selectors))
        grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        for name, matchers in selectors:
            used = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers))
            if name not in known or not used <= known[name] | OF_PROMETHEUS:
                wrong.append(f"{name}{{{matchers}}} in {expression}")
        wrong += [each for each in grouped if not set(each.split(", ")) <= labels]

    assert wrong == []


def test_a_panel_names_only_labels_that_its_metric_has(server: ServerProcess) -> None:
    known = _labels_by_name(_client(server).get("/metrics").body.decode()) | _of_cluster()
    wrong = []
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", []):
            names = [name for name, _ in SELECTOR.findall(target["expr"])]
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            if not shown <= OF_PROMETHEUS.union(*(known[name] for name in names)):
                wrong.append(f"{panel['title']}: {target['legendFormat']}")

    assert wrong == []


def test_each_alert_has_a_recipe_and_each_metric_a_bounded_set_of_labels(
    server: ServerProcess,
) -> None:
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs/operations.md").read_text("utf-8"), re.M)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    runbooks = {str(alert["alert"]): alert["annotations"]["runbook"] for alert in _alerts()}
    labels = _labels_by_name(_client(server).get("/metrics").body.decode()).values()

    missing = {
        name: link
        for name, link in runbooks.items()
        if not str(link).startswith("docs/operations.md#") or str(link).split("#")[1] not in anchors
    }
    assert missing == {}
    assert set().union(*labels) == {
        "le", "operation", "outcome", "store", "version", "python",  # bounded by the program
        "check", "cause",
        "namespace", "topic", "position", "group", "partition",  # 1,000 series of a name at most
    }  # fmt: skip


@needs_prometheus
def test_prometheus_own_checker_accepts_the_metrics(server: ServerProcess) -> None:
    text = _client(server).get("/metrics").body

    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)

    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


@needs_prometheus
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "conf/prometheus/prometheus.yml"),
        ("test", "rules", "tests/monitoring/alerts_test.yml"),
    ],
)
def test_prometheus_own_checker_accepts(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_prometheus_can_parse_each_panel(tmp_path: Path) -> None:
    shown = [
        each.replace("$__rate_interval", "5m").replace("$instance", ".*")
        for each in _panel_expressions()
    ]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(shown)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_fired_by_a_test_of_the_rules() -> None:
    tests = yaml.safe_load((ROOT / "tests/monitoring/alerts_test.yml").read_text("utf-8"))["tests"]
    fired = {each["alertname"] for test in tests for each in test["alert_rule_test"]}

    assert fired == {alert["alert"] for alert in _alerts()}
