"""The invalid list, truncation, and snapshots (protocol §5.2)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, begin
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import NewServer
from tests.http.process import ServerProcess, serve

TRUNCATE = f"{TRANSACTIONS}/invalid/truncate"


def test_the_invalid_list_shows_what_is_invalid_and_prunable(client: Client, topic: Topic) -> None:
    idle, publisher = begin(client), begin(client)
    ok(topic.publish("a", tx=publisher.id))
    checkpoint = ok(idle.checkpoint()).json["writePointer"]
    ok(idle.invalidate())
    ok(publisher.invalidate())

    shown = ok(client.get(f"{TRANSACTIONS}/invalid")).json

    assert set(shown) == {"invalids", "reasons", "prunable", "sweptAt", "sweptWith"}
    assert {idle.id, checkpoint, publisher.id} <= set(shown["invalids"])
    assert {idle.id, checkpoint} <= set(shown["prunable"])
    assert shown["invalids"] == [str(one) for one in sorted(map(int, shown["invalids"]))]
    until(
        lambda: publisher.id in ok(client.get(f"{TRANSACTIONS}/invalid")).json["prunable"],
        what="the rows to be marked",
    )


def test_the_invalid_list_says_why_each_is_there(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server(home=tmp_path)
    client = server.client()
    invalidated, long, late = begin(client), begin(client, type="long"), begin(client, timeout=0.1)
    checkpoint = ok(invalidated.checkpoint()).json["writePointer"]
    ok(invalidated.invalidate())
    ok(long.abort())
    until(lambda: late.id in invalids(client)["invalids"])
    client.close()
    server.kill()
    client = new_server(home=tmp_path).client()

    shown = invalids(client)

    lost = shown["reasons"].pop("lost_in_crash")
    assert shown["reasons"] == {
        "invalidated": [invalidated.id, checkpoint], "abort_of_long": [long.id],
        "timed_out": [late.id],
    }  # fmt: skip
    assert lost
    for pointer in lost:
        assert ok(client.get(f"{TRANSACTIONS}/{pointer}")).json["reason"] == "lost_in_crash"
    told = [pointer for each in shown["reasons"].values() for pointer in each]
    assert sorted(map(int, told + lost)) == list(map(int, shown["invalids"]))
    client.close()


def invalids(client: Client) -> dict[str, Any]:
    return ok(client.get(f"{TRANSACTIONS}/invalid")).json


def test_before_the_first_sweep_there_is_none_to_show(new_server: NewServer) -> None:
    client = new_server("messaging.cleanup_interval=3600").client()

    shown = ok(client.get(f"{TRANSACTIONS}/invalid")).json

    assert shown == {
        "invalids": [], "reasons": {}, "prunable": [], "sweptAt": None, "sweptWith": None,
    }  # fmt: skip
    client.close()


@pytest.fixture(scope="module")
def sweeping_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that sweeps all the time."""
    running = serve(tmp_path_factory.mktemp("sweeping"), "messaging.cleanup_interval=0.1")
    yield running
    running.end()


def test_a_sweep_records_when_it_was_and_the_state_it_used(sweeping_server: ServerProcess) -> None:
    client = sweeping_server.client()
    topic = Topic(client, "default", "t")
    ok(topic.create({"ttl": 1}))
    ok(topic.publish("short-lived"))

    until(lambda: ok(client.get(f"{TRANSACTIONS}/invalid")).json["sweptAt"] is not None)

    shown = ok(client.get(f"{TRANSACTIONS}/invalid")).json
    assert isinstance(shown["sweptAt"], int)
    assert isinstance(shown["sweptWith"], str)
    until(lambda: topic.read() == [], within_s=3)
    ok(topic.publish("later"))
    assert topic.read() == ["later"]
    client.close()


def test_truncating_by_ids_takes_them_off_the_list(client: Client) -> None:
    tx, other = begin(client), begin(client)
    checkpoint = ok(tx.checkpoint()).json["writePointer"]
    ok(tx.invalidate())
    ok(other.invalidate())

    reply = ok(client.post(TRUNCATE, {"ids": [tx.id, int(checkpoint)]}))

    assert reply.json == {"removed": 2, "kept": []}
    invalids = begin(client).object["invalids"]
    assert tx.id not in invalids
    assert checkpoint not in invalids
    assert other.id in invalids
    assert ok(client.post(TRUNCATE, {"ids": [tx.id]})).json["removed"] == 0


def test_truncating_what_is_not_invalid_changes_nothing(client: Client) -> None:
    tx = begin(client)

    reply = ok(client.post(TRUNCATE, {"ids": [tx.id, "1000000000000000001"]}))

    assert reply.json["removed"] == 0
    assert tx.state() == "in_progress"
    assert tx.id in begin(client).object["inProgress"]


def test_truncated_rows_stay_hidden(client: Client, topic: Topic) -> None:
    tx = begin(client)
    ok(topic.publish("a", tx=tx.id))
    ok(tx.invalidate())
    until(
        lambda: ok(client.post(TRUNCATE, {"ids": [tx.id]})).json["kept"] == [],
        what="the rows to be marked",
    )

    assert tx.id not in begin(client).object["invalids"]
    assert topic.committed() == []


def test_truncating_before_a_time_waits_for_who_started_before(new_server: NewServer) -> None:
    client = new_server().client()
    first, second = begin(client), begin(client)
    ok(first.invalidate())
    after_both = second.object["startedAt"] + 1

    refused(client.post(TRUNCATE, {"before": after_both}), 409, "transactions_in_progress")
    assert first.id in begin(client).object["invalids"]
    assert ok(client.post(TRUNCATE, {"before": 1000})).json == {"removed": 0, "kept": []}

    ok(second.invalidate())
    until(lambda: begin(client).object["startedAt"] >= after_both)
    reply = ok(client.post(TRUNCATE, {"before": after_both}))
    assert reply.json == {"removed": 2, "kept": []}
    client.close()


@pytest.mark.parametrize(
    "body",
    [
        None, {}, {"ids": ["1"], "before": 5}, {"ids": "1"}, {"ids": ["x"]}, {"ids": [1.5]},
        {"before": "x"}, {"before": -1}, {"before": 1.5}, {"before": True}, {"id": ["1"]}, [],
    ],
)  # fmt: skip
def test_a_malformed_truncation_is_refused(client: Client, body: object) -> None:
    tx = begin(client)
    ok(tx.invalidate())

    refused(client.post(TRUNCATE, body), 400, "bad_request")

    assert tx.id in begin(client).object["invalids"]


def test_a_snapshot_is_a_file_under_the_data_directory(
    client: Client, server: ServerProcess
) -> None:
    first = ok(client.post(f"{TRANSACTIONS}/snapshot")).json
    second = ok(client.post(f"{TRANSACTIONS}/snapshot")).json

    for shown in (first, second):
        path = server.data / "snapshots" / shown["file"]
        assert path.name.startswith("snapshot.")
        assert path.name.removeprefix("snapshot.").isdigit()
        assert path.stat().st_size == shown["bytes"] > 0


def test_the_newest_state_is_shown_as_json(client: Client) -> None:
    tx = begin(client, client="seen in the state")

    shown = ok(client.get(f"{TRANSACTIONS}/snapshot"))

    assert isinstance(shown.json, dict)
    assert tx.id in shown.body.decode()
    assert "seen in the state" in shown.body.decode()


def test_invalid_pointers_are_pruned_only_where_the_operator_says_so(
    new_server: NewServer,
) -> None:
    client = new_server("tx.prune_invalid=true", "messaging.cleanup_interval=0.1").client()
    topic = Topic(client, "default", "t")
    ok(topic.create())
    tx = begin(client)
    ok(topic.publish("a", tx=tx.id))
    ok(tx.invalidate())

    until(lambda: tx.id not in begin(client).object["invalids"], within_s=5)

    assert topic.committed() == []
    client.close()


def test_by_default_nothing_is_pruned(sweeping_server: ServerProcess) -> None:
    client = sweeping_server.client()
    tx = begin(client)
    ok(tx.invalidate())

    def swept_at() -> int:
        return int(ok(client.get(f"{TRANSACTIONS}/invalid")).json["sweptAt"] or 0)

    since = begin(client).object["startedAt"]
    until(lambda: swept_at() > since, what="a sweep after the invalidation")

    assert tx.id in begin(client).object["invalids"]
    client.close()
