"""What a crash leaves, and files that are damaged or missing (protocol §5.2 Crash, §8)."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, entry, ids
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import NewServer
from tests.http.process import ServerProcess

Restart = Callable[..., Client]


@pytest.fixture
def crash(new_server: NewServer) -> Restart:
    """Kills a server with SIGKILL and starts one on what it left; the new one's client."""

    def again(running: ServerProcess, *settings: str) -> Client:
        running.kill()
        return new_server(*settings, home=running.home).client()

    return again


def made(client: Client, name: str = "t") -> Topic:
    topic = Topic(client, "default", name)
    ok(topic.create({"ttl": 5000, "a": "b"}))
    return topic


def again(client: Client, tx: Tx) -> Tx:
    return Tx(client, tx.object)


def test_what_was_acknowledged_is_there_after_a_kill(new_server: NewServer, crash: Restart) -> None:
    running = new_server()
    client = running.client()
    topic = made(client)
    gone = made(client, "gone")
    ok(topic.publish("plain"))
    tx, run_topic = begin(client), made(client, "run")
    ok(topic.store("stored", tx=tx.id))
    ok(topic.publish(tx=tx.id))
    committed = ok(tx.commit(publish=[entry(topic, "with commit")]))
    ran = ok(client.post(f"{TRANSACTIONS}/run", {"publish": [entry(run_topic, "r")],
                                                 "requestId": "once"}))  # fmt: skip
    ok(gone.delete())
    ok(gone.create())
    before = ok(topic.poll()).json

    client = crash(running)

    topic = Topic(client, "default", "t")
    assert ok(topic.poll(isolation="committed")).json == before
    assert topic.read() == ["plain", "stored", "with commit"]
    assert ok(topic.show()).json["properties"] == {"ttl": "5000", "a": "b"}
    assert ok(Topic(client, "default", "gone").show()).json["generation"] == 2
    assert ok(again(client, tx).commit()).body == committed.body
    repeated = client.post(f"{TRANSACTIONS}/run", {"publish": [entry(run_topic, "r")],
                                                   "requestId": "once"})  # fmt: skip
    assert ok(repeated).body == ran.body
    assert Topic(client, "default", "run").read() == ["r"]
    ok(topic.publish("after"))
    assert ids(topic.poll())[-1] > before[-1]["id"]
    client.close()


def test_a_transaction_in_progress_survives_or_is_lost_in_crash_and_is_never_unknown(
    new_server: NewServer, crash: Restart
) -> None:
    running = new_server()
    client = running.client()
    made(client)
    logged = begin(client, client="survivor")
    ok(begin(client).commit(changes=["forces the log"]))
    fresh = [begin(client) for _ in range(5)]

    client = crash(running)

    shown = ok(again(client, logged).outcome()).json
    assert (shown["state"], shown["client"]) == ("in_progress", "survivor")
    for tx in fresh:
        shown = ok(again(client, tx).outcome()).json
        assert (shown["state"], shown["reason"]) in {
            ("in_progress", None), ("invalid", "lost_in_crash"),
        }  # fmt: skip
    topic = Topic(client, "default", "t")
    ok(again(client, logged).commit(changes=["k"], publish=[entry(topic, "a")]))
    assert topic.committed() == ["a"]
    assert int(begin(client).id) > int(fresh[-1].id)
    client.close()


def test_a_survivor_reads_in_its_old_snapshot(new_server: NewServer, crash: Restart) -> None:
    running = new_server()
    client = running.client()
    topic = made(client)
    early, reader = begin(client), begin(client)
    ok(topic.publish("early", tx=early.id))
    ok(early.commit(changes=["k"]))

    client = crash(running)

    topic, reader = Topic(client, "default", "t"), again(client, reader)
    assert topic.read(tx=reader.id) == []
    assert topic.committed() == ["early"]
    refused(reader.commit(changes=["k"]), 409, "transaction_conflict")
    client.close()


def test_endings_survive_a_kill(new_server: NewServer, crash: Restart) -> None:
    running = new_server()
    client = running.client()
    topic = made(client)
    aborted, invalid, long_one = begin(client), begin(client), begin(client, type="long")
    for tx in (aborted, invalid, long_one):
        ok(topic.publish("x", tx=tx.id))
    ok(aborted.abort())
    ok(invalid.invalidate())
    ok(long_one.abort())

    client = crash(running)

    assert again(client, aborted).state() == "aborted"
    shown = ok(again(client, invalid).outcome()).json
    assert (shown["state"], shown["reason"]) == ("invalid", "invalidated")
    shown = ok(again(client, long_one).outcome()).json
    assert (shown["state"], shown["reason"], shown["type"]) == ("invalid", "abort_of_long", "long")
    assert Topic(client, "default", "t").committed() == []
    assert {invalid.id, long_one.id} <= set(begin(client).object["invalids"])
    client.close()


def test_rows_in_progress_stay_undecided_and_can_still_be_decided(
    new_server: NewServer, crash: Restart
) -> None:
    running = new_server()
    client = running.client()
    topic = made(client)
    keeper, loser = begin(client), begin(client)
    ok(topic.publish("kept", tx=keeper.id))
    ok(topic.publish("lost", tx=loser.id))
    ok(topic.store("stored", tx=keeper.id))
    ok(begin(client).commit(changes=["forces the log"]))

    client = crash(running)

    topic = Topic(client, "default", "t")
    assert topic.committed() == []
    ok(topic.publish(tx=keeper.id))
    ok(again(client, keeper).commit(changes=[]))
    ok(again(client, loser).abort())
    assert topic.committed() == ["kept", "stored"]
    assert topic.read() == ["kept", "lost", "stored"]
    client.close()


def test_a_can_commit_that_was_cut_off_is_never_skipped(
    new_server: NewServer, crash: Restart
) -> None:
    running = new_server()
    client = running.client()
    first, second, named = begin(client), begin(client), begin(client)
    ok(begin(client).commit(changes=["forces the log"]))
    for tx in (first, second, named):
        ok(tx.can_commit("k"))

    client = crash(running)

    first, second, named = (again(client, tx) for tx in (first, second, named))
    ok(named.commit(changes=["k"]))
    reply = first.commit()
    if reply.status == 409 and reply.json["code"] == "transaction_invalidated":
        assert reply.json["reason"] == "lost_in_crash"
    else:
        refused(reply, 409, "transaction_conflict")
    refused(second.commit(changes=["k"]), 409, "transaction_conflict")
    client.close()


def test_time_goes_on_while_the_server_is_down(new_server: NewServer, crash: Restart) -> None:
    running = new_server()
    client = running.client()
    tx = begin(client, timeout=0.5)
    ok(begin(client).commit(changes=["forces the log"]))

    client = crash(running)

    until(lambda: again(client, tx).state() == "invalid", within_s=3)
    client.close()


def _files(running: ServerProcess) -> list[Path]:
    found = [
        path for path in (running.data / "snapshots").iterdir() if "tuff.lock" not in path.name
    ]
    return sorted(path for path in found if path.is_file())


def _break_all(running: ServerProcess) -> list[str]:
    for path in _files(running):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        data[8] ^= 0xFF
        path.write_bytes(data)
    return [path.name for path in _files(running)]


def _goes_on_without_transactions(client: Client, tx: Tx) -> dict[str, Any]:
    """Messaging works, transactions answer 503; what readiness says of it."""
    topic = Topic(client, "default", "t")
    assert topic.read() == ["a", "b"]
    ok(topic.publish("c"))
    assert topic.read() == ["a", "b", "c"]
    for reply in (
        client.post(TRANSACTIONS), again(client, tx).commit(), again(client, tx).outcome(),
        topic.publish("x", tx=tx.id), topic.poll(isolation="committed"),
    ):  # fmt: skip
        refused(reply, 503, "transactions_unavailable")
        assert reply.header("Retry-After")
    shown: dict[str, Any] = ok(client.get("/health/ready")).json
    assert shown["status"] == "degraded"
    return shown


def _with_history(client: Client) -> Tx:
    topic = made(client)
    ok(topic.publish("a"))
    tx = begin(client)
    ok(topic.publish("b", tx=tx.id))
    ok(tx.commit(changes=["k"]))
    ok(client.post(f"{TRANSACTIONS}/snapshot"))
    open_one = begin(client)
    ok(begin(client).commit(changes=["k2"]))
    return open_one


@pytest.mark.parametrize("ending", ["terminate", "kill"])
def test_damaged_transaction_files_never_stop_messaging(new_server: NewServer, ending: str) -> None:
    running = new_server()
    client = running.client()
    tx = _with_history(client)
    client.close()
    getattr(running, ending)()
    names = _break_all(running)

    client = new_server(home=running.home).client()

    shown = _goes_on_without_transactions(client, tx)
    detail = shown["checks"]["transactions"]["detail"]
    assert any(name in detail for name in names), detail
    refused(client.post(f"{TRANSACTIONS}/service/start"), 503, "transactions_unavailable")
    client.close()


@pytest.mark.parametrize("missing", ["directory", "files", "newest"])
def test_missing_transaction_files_are_damage_and_never_an_empty_beginning(
    new_server: NewServer, missing: str
) -> None:
    running = new_server()
    client = running.client()
    tx = _with_history(client)
    client.close()
    running.kill()
    if missing == "directory":
        shutil.rmtree(running.data / "snapshots")
    elif missing == "files":
        for path in _files(running):
            path.unlink()
    else:
        newest = max(_files(running), key=lambda path: path.stat().st_mtime_ns)
        for path in _files(running):
            if path.name.startswith("txlog.") or path == newest:
                path.unlink()

    client = new_server(home=running.home).client()

    _goes_on_without_transactions(client, tx)
    client.close()


def test_a_damaged_newest_snapshot_falls_back_to_the_one_before(new_server: NewServer) -> None:
    running = new_server()
    client = running.client()
    tx = _with_history(client)
    client.close()
    running.kill()
    newest = max(
        (path for path in _files(running) if path.name.startswith("snapshot.")),
        key=lambda path: int(path.name.split(".")[1]),
    )
    data = bytearray(newest.read_bytes())
    data[-3] ^= 0xFF
    newest.write_bytes(data)

    client = new_server(home=running.home).client()

    assert again(client, tx).state() == "in_progress"
    assert Topic(client, "default", "t").committed() == ["a", "b"]
    ok(again(client, tx).commit(changes=["fallback"]))
    client.close()


def test_unknown_files_are_left_alone(new_server: NewServer) -> None:
    running = new_server()
    notes = running.data / "snapshots" / "notes.txt"
    notes.write_text("mine")
    odd = running.data / "snapshots" / "snapshot.backup"
    odd.write_bytes(b"not one of ours")
    client = running.client()
    tx = _with_history(client)
    client.close()
    running.terminate()

    client = new_server(home=running.home).client()

    assert again(client, tx).state() == "in_progress"
    assert (notes.read_text(), odd.read_bytes()) == ("mine", b"not one of ours")
    client.close()


def test_a_torn_tail_of_the_log_is_cut(new_server: NewServer) -> None:
    running = new_server()
    client = running.client()
    tx = _with_history(client)
    client.close()
    running.kill()
    newest = max(
        (path for path in _files(running) if path.name.startswith("txlog.")),
        key=lambda path: int(path.name.split(".")[1]),
    )
    with newest.open("ab") as log:
        log.write(b"\x00\x00\x00\x20torn")

    client = new_server(home=running.home).client()

    assert again(client, tx).state() == "in_progress"
    ok(again(client, tx).commit(changes=["torn"]))
    client.close()


def test_restarts_lose_nothing_and_give_no_pointer_twice(new_server: NewServer) -> None:
    running = new_server()
    client = running.client()
    made(client)
    pointers: list[int] = []
    expected: list[str] = []
    for number in range(6):
        topic = Topic(client, "default", "t")
        tx = begin(client)
        pointers += [int(tx.id), int(ok(tx.checkpoint()).json["writePointer"])]
        ok(tx.commit(publish=[entry(topic, str(number))]))
        expected.append(str(number))
        assert topic.committed() == expected
        client.close()
        running.kill() if number % 2 else running.terminate()
        running = new_server(home=running.home)
        client = running.client()

    assert pointers == sorted(set(pointers))
    assert Topic(client, "default", "t").committed() == expected
    found = ids(Topic(client, "default", "t").poll())
    assert found == sorted(set(found))
    client.close()
