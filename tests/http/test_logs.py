"""The log of a server (docs/logs.md): each code of a single server occurs, as a JSON line."""

import ast
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from process.settings import SettingsError, load
from tests.http.calls import begin, created, entry
from tests.http.client import ok, refused, until
from tests.http.process import ServerProcess, serve
from tests.http.test_access import access_file
from tests.http.test_damaged_records import damage

ROOT = Path(__file__).resolve().parents[2]
POLL = "/v1/namespaces/default/topics/orders/poll"
AS_JSON = "server.log_format=json"
COMPONENTS = (
    "process",
    "tx",
    "messaging",
    "cluster",
    "metadata",
    "access",
    "tuff",
    "tuff_cli",
    "tuff_storage",
)
# Their tests find the codes of failures, bugs, slow clients and clusters.
OTHERS = (
    "tests/groups/test_lost_messages.py", "tests/groups/test_consumer_coordinator.py",
    "tests/faults/test_log_events.py", "tests/process/test_slow_readers.py",
    "tests/hbase/test_cluster.py",
    "tests/process/test_audit_topic.py", "tests/faults/test_disk_space.py",
    "tests/messaging/test_failing_writes.py", "tests/http/test_lost_message_store.py",
    "tests/http/test_file_modes.py", "tests/http/test_limits.py",
    "tests/http/test_archive_reads.py",
)  # fmt: skip


def documented() -> set[str]:
    text = (ROOT / "docs/logs.md").read_text("utf-8").partition("## Codes")[2]
    return set(re.findall(r"^\| `([a-z_]+)`", text, re.MULTILINE))


def found_by_others() -> set[str]:
    text = "".join((ROOT / each).read_text("utf-8") for each in OTHERS)
    return {each for each in documented() if re.search(rf'["=]{each}[" ]', text)}


def events_in(server: ServerProcess) -> list[dict[str, Any]]:
    found = map(json.loads, server.stderr().splitlines())
    return [each for each in found if "code" in each]


def codes_in(server: ServerProcess) -> list[str]:
    return [each["code"] for each in events_in(server)]


def test_the_page_lists_the_codes_of_the_source() -> None:
    files = [ROOT / "server.py", *(f for each in COMPONENTS for f in (ROOT / each).rglob("*.py"))]
    calls = (
        node
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "event" and node.args
    )
    codes = {each.args[0].value for each in calls if isinstance(each.args[0], ast.Constant)}

    assert codes | {"server_starting"} == documented()


def test_a_run_logs_each_change_of_state(tmp_path: Path) -> None:
    settings = [AS_JSON, "groups.session_timeout=0.5", "groups.heartbeat_interval=0.1",
                "tx.snapshot_interval=0.2", "messaging.cleanup_interval=0.2"]  # fmt: skip
    first = serve(tmp_path, *settings)
    client = first.client()
    topic = created(client, "default", "orders")
    ok(topic.publish("to be damaged"))
    begin(client, timeout=0.2)
    beat = {"memberEpoch": 0, "topics": ["orders"]}
    ok(client.post("/v1/namespaces/default/groups/g/heartbeat", {"memberId": "m", **beat}))
    until(lambda: {"transactions_expired", "snapshot_written", "members_fenced"}
          <= {*codes_in(first)})  # fmt: skip
    ok(client.post("/v1/transactions/service/stop"))
    ok(client.post("/v1/transactions/service/start"))
    until(lambda: codes_in(first).count("health_changed") >= 2)
    first.kill()
    assert damage(first.data / "messages", b"to be damaged") == 1
    log = max(
        (first.data / "snapshots").glob("txlog.*[0-9]"), key=lambda each: int(each.suffix[1:])
    )
    log.write_bytes(log.read_bytes() + b"torn")

    with serve(tmp_path, *settings) as second:
        reading = second.client().post(POLL, {})
        refused(reading, 500, "damaged_record")
        until(lambda: "damage_found" in codes_in(second))

    seen = {*codes_in(first), *codes_in(second)}
    assert documented() - seen - found_by_others() == {
        "file_exposed", "file_read_again", "messages_set_aside",
    }  # fmt: skip
    ends = [each for each in codes_in(second) if each.startswith("server_sto")]
    assert ends == ["server_stopping", "server_stopped"]


def test_a_new_access_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(access_file({"reader": ""}))
    with serve(tmp_path, AS_JSON, f"server.access_file={file}") as running:
        file.write_text(access_file({"reader": "", "another": ""}))
        os.kill(running.pid, signal.SIGHUP)
        until(lambda: "file_read_again" in codes_in(running))


def test_messages_of_a_prepared_transaction_that_are_set_aside_are_logged(tmp_path: Path) -> None:
    with serve(tmp_path, AS_JSON, "messaging.max_block=0.2") as running:
        orders = created(running.client(), "default", "orders")
        prepared = begin(orders.client)
        ok(orders.client.post(
            f"{prepared.path}/prepare", {"database": "d", "publish": [entry(orders, "a")]}
        ))  # fmt: skip
        until(lambda: "messages_set_aside" in codes_in(running))


def test_an_access_file_that_every_user_may_write_is_logged(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(access_file({"reader": ""}))
    file.chmod(0o646)
    with serve(tmp_path, AS_JSON, f"server.access_file={file}") as running:
        (exposed,) = (each for each in events_in(running) if each["code"] == "file_exposed")

    assert exposed["event"] == f"every user of this machine may write {file}; chmod o-rw {file}"
    assert exposed["fields"] == {"setting": "server.access_file", "file": str(file)}


def test_many_reads_of_one_damaged_record_are_one_line(tmp_path: Path) -> None:
    running = serve(tmp_path)
    ok(created(running.client(), "default", "orders").publish("to be damaged"))
    running.end()
    damage(running.data / "messages", b"to be damaged")
    with serve(tmp_path, AS_JSON) as again:
        client = again.client()
        for _ in range(5):
            refused(client.post(POLL, {}), 500, "damaged_record")
        assert codes_in(again).count("damage_read") == 1


def test_text_has_the_code_behind_the_sentence(tmp_path: Path) -> None:
    with serve(tmp_path) as running:
        pass

    assert 'event="stopped" code=server_stopped' in running.stderr()


def test_another_format_is_refused() -> None:
    with pytest.raises(SettingsError, match="log_format is text, json"):
        load(None, ["server.log_format=xml"])
