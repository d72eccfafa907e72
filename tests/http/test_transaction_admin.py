"""The invalid list, truncation, and snapshots (protocol §5.2)."""

from pathlib import Path
from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, begin, created
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import NewServer
from tests.http.process import ServerProcess

TRUNCATE = f"{TRANSACTIONS}/invalid/truncate"


def invalids(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = ok(client.get(f"{TRANSACTIONS}/invalid")).json
    return found


def test_the_invalid_list_shows_what_is_invalid_and_prunable(client: Client, topic: Topic) -> None:
    idle, publisher = begin(client), begin(client)
    ok(topic.publish("a", tx=publisher.id))
    checkpoint = ok(idle.checkpoint()).json["writePointer"]
    ok(idle.invalidate())
    ok(publisher.invalidate())

    shown = invalids(client)

    assert set(shown) == {"invalids", "reasons", "prunable", "sweptAt", "sweptWith"}
    assert {idle.id, checkpoint, publisher.id} <= set(shown["invalids"])
    assert {idle.id, checkpoint} <= set(shown["prunable"])
    assert shown["invalids"] == [str(one) for one in sorted(map(int, shown["invalids"]))]
    until(lambda: publisher.id in invalids(client)["prunable"], what="the rows to be marked")


def test_the_invalid_list_says_why_each_is_there(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server("messaging.cleanup_interval=3600", home=tmp_path)
    client = server.client()
    assert invalids(client) == {
        "invalids": [], "reasons": {}, "prunable": [], "sweptAt": None, "sweptWith": None,
    }  # fmt: skip
    invalidated, long, late = begin(client), begin(client, type="long"), begin(client, timeout=0.1)
    checkpoint = ok(invalidated.checkpoint()).json["writePointer"]
    ok(invalidated.invalidate())
    ok(long.abort())
    until(lambda: late.id in invalids(client)["invalids"])
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


@pytest.mark.parametrize("prunes", [False, True])
def test_a_sweep_says_when_it_was_and_prunes_where_the_operator_says_so(
    new_server: NewServer, *, prunes: bool
) -> None:
    settings = [f"tx.prune_invalid={str(prunes).lower()}", "messaging.cleanup_interval=0.1"]
    client = new_server(*settings).client()
    topic = created(client, "default", "t")
    tx = begin(client)
    ok(topic.publish("a", tx=tx.id))
    ok(tx.invalidate())
    since = begin(client).object["startedAt"]

    if prunes:
        until(lambda: tx.id not in begin(client).object["invalids"])
    else:
        until(lambda: (invalids(client)["sweptAt"] or 0) > since, what="a sweep after it")
        assert tx.id in begin(client).object["invalids"]
        assert isinstance(invalids(client)["sweptWith"], str)

    assert topic.committed() == []


def test_truncating_by_ids_takes_what_is_invalid_off_the_list(client: Client) -> None:
    tx, other, open_one = begin(client), begin(client), begin(client)
    checkpoint = ok(tx.checkpoint()).json["writePointer"]
    ok(tx.invalidate())
    ok(other.invalidate())

    reply = ok(client.post(TRUNCATE, {"ids": [tx.id, int(checkpoint), open_one.id, "1"]}))

    assert reply.json == {"removed": 2, "kept": []}
    started = begin(client).object
    assert not {tx.id, checkpoint} & set(started["invalids"])
    assert other.id in started["invalids"]
    assert open_one.id in started["inProgress"]
    assert ok(client.post(TRUNCATE, {"ids": [tx.id]})).json["removed"] == 0


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


def test_truncating_before_a_time_is_refused_while_older_transactions_are_in_progress(
    new_server: NewServer,
) -> None:
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


@pytest.mark.parametrize(
    "body",
    [
        None, {"ids": ["1"], "before": 5}, {"ids": "1"}, {"ids": ["x"]}, {"before": "x"},
        {"before": -1}, {"before": True}, {"id": ["1"]}, [],
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
    for _ in range(2):
        shown = ok(client.post(f"{TRANSACTIONS}/snapshot")).json

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
