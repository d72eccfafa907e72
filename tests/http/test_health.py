"""Health and metrics (protocol §7)."""

import os
import re
import signal
import socket

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.calls import Topic, begin, created, ids
from tests.http.client import JSON, Client, ok, until
from tests.http.conftest import NewServer
from tuff.version import __version__


def test_readiness_says_how_each_part_is(client: Client) -> None:
    for kind in ("live", "startup"):
        ok(client.get(f"/health/{kind}"))
    shown = ok(client.get("/health/ready")).json

    assert shown["status"] in {"ok", "degraded"}
    assert set(shown["checks"]) == {"storage", "transactions", "disk", "clock"}
    for check in shown["checks"].values():
        assert set(check) == {"status", "detail"}
        assert check["status"]
    assert shown["checks"]["storage"]["status"] == "ok"
    assert shown["checks"]["transactions"]["status"] == "ok"


def _samples(client: Client) -> dict[str, float]:
    reply = ok(client.get("/metrics"))
    assert str(reply.header("Content-Type")).startswith("text/plain")
    families = text_string_to_metric_families(reply.body.decode())
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_count_requests(client: Client, topic: Topic) -> None:
    before = _samples(client)
    for _ in range(3):
        ok(topic.publish("a"))
        ok(topic.poll())
        ok(begin(client).commit(changes=["k"]))
    after = _samples(client)

    for subject in (
        "fsync", "batch", "topic.*bytes", "topic.*messages", "oldest.*transaction", "invalid",
        "blocked", "clock.*regression", "corrupt",
    ):  # fmt: skip
        assert any(re.search(subject, name) for name in after), subject
    for subject in ("publish", "poll", "commit"):
        assert any(after[name] >= before.get(name, 0) + 3 for name in after if subject in name), (
            subject
        )


def test_metrics_show_the_stores_the_disks_the_clock_and_the_build(client: Client) -> None:
    shown = _samples(client)

    assert shown["tuff_store_up[]"] == 1
    assert abs(shown["tuff_clock_offset_seconds[]"]) < 60
    (build,) = [name for name in shown if name.startswith("tuff_build_info")]
    assert (shown[build], f"('version', '{__version__}')" in build) == (1, True)
    for store in ("messages", "transactions"):
        labels = [("store", store)]
        size = shown[f"tuff_disk_size_bytes{labels}"]
        assert 0 < shown[f"tuff_disk_reserve_bytes{labels}"] < size
        assert 0 < shown[f"tuff_disk_free_bytes{labels}"] <= size
        assert 0 <= shown[f"tuff_disk_unanswered_seconds{labels}"] < 60
    assert shown["process_open_fds[]"] > 3


def test_metrics_of_a_memory_store_show_no_disk_of_messages(new_server: NewServer) -> None:
    client = new_server("messaging.store=memory").client()
    assert ok(client.get("/health/ready")).json["status"] == "ok"
    shown = _samples(client)

    found = [name for name in shown if name.startswith("tuff_disk_free_bytes")]
    assert found == ["tuff_disk_free_bytes[('store', 'transactions')]"]


@pytest.mark.parametrize("path", ["/health/live", "/health/startup", "/health/ready", "/metrics"])
def test_a_probe_may_ask_without_wanting_the_body(client: Client, path: str) -> None:
    reply = client.send("HEAD", path)

    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.header("Content-Length") or 0) > 0


def test_a_stopping_server_is_not_ready_and_answers_every_probe(new_server: NewServer) -> None:
    """HEAD of a probe was refused with 503 as a call of the protocol, and GET said to be ready."""
    running = new_server()
    client = running.client()
    topic = created(client, "default", "t")
    head = f"POST {topic.path}/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
    body = b'{"messages": ["a"]}'
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as slow:
        slow.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        until(lambda: _samples(client)["tuff_requests_under_way[]"] == 1)

        os.kill(running.pid, signal.SIGTERM)
        until(lambda: client.get("/health/ready").status == 503)

        ready = client.get("/health/ready").json
        found = [
            (client.send(method, path).status, path)
            for path in ("/health/live", "/health/startup", "/metrics", "/health/ready")
            for method in ("GET", "HEAD")
        ]
        refused = client.get("/v1/namespaces")
        slow.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        answer = slow.recv(65536)

    # A client that is not told so may send its next request while the connection is closed.
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nConnection: close\r\n" in answer
    assert refused.header("Connection") == "close"
    assert [status for status, path in found] == [200] * 6 + [503] * 2
    assert ready["status"] == "down"
    assert ready["checks"]["storage"] == {"status": "down", "detail": "the server is stopping"}
    assert (refused.status, refused.json["code"]) == (503, "shutting_down")
    assert running.wait_exit() == 0


def test_metrics_show_the_lag_of_a_named_position(client: Client) -> None:
    topic = Topic(client, "a", "first-of-all")  # only the first 1,000 positions are shown
    ok(topic.create())
    ok(topic.publish("a"))
    (id,) = ids(topic.poll())
    before = _samples(client)["tuff_positions[]"]
    made = client.put(f"{topic.path}/positions/report", {"position": id})
    ok(topic.change({"partitions": 3}))  # its lag hid those of all other positions

    def lag() -> dict[str, float]:
        return {
            name: value
            for name, value in _samples(client).items()
            if name.startswith("tuff_position_") and f"'{topic.name}'" in name
        }

    found = until(lag)  # a scrape shows no lag that takes long to read
    assert _samples(client)["tuff_positions[]"] == before + 1
    assert [name.split("[")[0] for name in found] == [
        "tuff_position_behind_seconds",
        "tuff_position_updated_timestamp_seconds",
        "tuff_position_unread_messages",
        "tuff_position_oldest_unread_seconds",
    ]
    assert list(found.values()) == [0, ok(made).json["updatedAt"] / 1000, 0, 0]
