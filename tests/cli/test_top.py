"""`tuff top` against a real server; its figures from two readings."""

import json
from pathlib import Path

import pytest

import tuff
from tests.cli.command import started
from tests.cli.conftest import Tuff
from tests.http.process import serve
from tuff_cli.metrics import Sample, samples_in
from tuff_cli.top import Busy, Lag, Latency, Reading, _print, figures_of

TOPIC = tuff.TopicId("cli", "busy")
PUBLISH = 'operation="POST /v1/namespaces/{ns}/topics/{t}/publish",outcome="2xx"'


def reading(at_s: float, count: int) -> Reading:
    text = (
        f'tuff_topic_messages_total{{namespace="a",topic="b"}} {count}\n'
        f'tuff_topic_bytes_total{{namespace="a",topic="b"}} {count * 10}\n'
        f"tuff_published_messages_total {count}\ntuff_published_bytes_total {count * 10}\n"
        f'tuff_request_seconds_bucket{{{PUBLISH},le="0.01"}} {count}\n'
        f'tuff_request_seconds_bucket{{{PUBLISH},le="+Inf"}} {count}\n'
        f"tuff_request_seconds_count{{{PUBLISH}}} {count}\n"
        "tuff_transactions_in_progress 3\n"
    )
    return Reading(at_s, samples_in(text), None, {("a", "slow"): 7_000, ("a", "new"): None})


def test_figures_are_the_change_between_two_readings() -> None:
    found = figures_of(reading(10.0, 100), reading(12.0, 300))

    assert (found.messages, found.bytes) == (100.0, 1_000.0)
    assert found.topics == [Busy(namespace="a", topic="b", messages=100.0, bytes=1_000.0)]
    assert found.latencies["publish"] == Latency(count=200.0, p50=0.01, p99=0.01)
    assert found.latencies["logSync"] == Latency(count=0.0, p50=None, p99=None)
    assert found.groups == [
        Lag(namespace="a", group="slow", unread_age_ms=7_000),
        Lag(namespace="a", group="new", unread_age_ms=None),
    ]


def test_after_a_restart_counters_begin_again() -> None:
    found = figures_of(reading(10.0, 100), reading(11.0, 30))

    assert found.messages == 30.0


def test_a_sample_keeps_its_labels() -> None:
    assert samples_in('# HELP x y\nx{a="b\\"c",d="e f"} 1.5\n') == [
        Sample("x", {"a": 'b"c', "d": "e f"}, 1.5)
    ]


def test_one_reading_names_the_oldest_transaction_and_what_it_blocks(
    run: Tuff, client: tuff.Client
) -> None:
    client.topics.create(TOPIC)
    tx = client.transactions.start()
    client.publish(TOPIC, "a", transaction=tx)

    said = json.loads(run("top", "--once", "--json", "--interval", "0.2").stdout)
    shown = run("top", "--once", "--interval", "0.2")
    client.transactions.abort(tx)

    assert said["transactions"]["inProgress"] >= 1
    oldest = {each["transactionId"]: each for each in said["transactions"]["oldest"]}
    assert oldest[str(tx.transaction_id)]["topics"] == ["cli:busy"]
    assert shown.returncode == 0
    for part in ("messages", "storeSync", str(tx.transaction_id), "cli:busy"):
        assert part in shown.stdout


def test_it_waits_for_a_server_that_died_and_goes_on(tmp_path: Path) -> None:
    server = serve(tmp_path)
    with started("top", "--json", "--interval", "0.2", url=server.url) as watching:
        assert watching.out.readline()

        server.kill()
        assert watching.errors.readline().startswith("tuff: waiting for the server: ")
        with serve(tmp_path, port=server.port):
            assert watching.errors.readline() == "tuff: the server answers again\n"
            assert watching.interrupt() == 130


def test_a_title_that_is_longer_than_its_table_stays_on_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print(figures_of(reading(10.0, 100), reading(12.0, 300)), as_json=False)

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "consumer groups" in lines
