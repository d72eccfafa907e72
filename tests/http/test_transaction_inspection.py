"""Snapshot files, changes of a transaction, and settings with their source (protocol §5.5, §8)."""

from pathlib import Path
from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, begin
from tests.http.client import Client, ok, refused
from tests.http.conftest import Launch, NewServer
from tests.http.process import ServerProcess

SNAPSHOTS = f"{TRANSACTIONS}/snapshots"


def files(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(client.get(SNAPSHOTS)).json["files"]
    return found


def test_a_snapshot_file_shows_pointers_and_lists(new_server: NewServer) -> None:
    client = new_server().client()
    invalid, opened = begin(client), begin(client, client="billing-7")
    ok(invalid.invalidate())
    written = ok(client.post(f"{TRANSACTIONS}/snapshot")).json

    newest, *others = files(client)
    content = ok(client.get(f"{SNAPSHOTS}/{written['file']}")).json

    assert (newest["file"], newest["bytes"]) == (written["file"], written["bytes"])
    assert all(each["lsn"] < newest["lsn"] for each in others)
    assert content.items() >= newest.items()
    assert content["invalids"] == [invalid.id]
    assert content["inProgress"] == [opened.id]
    assert [(each["transactionId"], each["client"]) for each in content["open"]] == [
        (opened.id, "billing-7")
    ]
    assert content["readPointer"] == invalid.id


def test_a_damaged_snapshot_is_listed_last_with_the_reason(new_server: NewServer) -> None:
    server = new_server()
    client = server.client()
    ok(client.post(f"{TRANSACTIONS}/snapshot"))
    name = files(client)[0]["file"]
    file = next(path for path in Path(server.home).rglob(name))
    file.write_bytes(b"damaged" + file.read_bytes()[7:])

    last = files(client)[-1]

    assert (last["file"], last["createdAt"], last["lsn"]) == (name, None, None)
    assert "damaged at byte 0" in last["damage"]
    refused(client.get(f"{SNAPSHOTS}/{name}"), 404, "not_found")


def test_snapshot_files_can_be_read_while_transactions_are_stopped(new_server: NewServer) -> None:
    client = new_server().client()
    ok(client.post(f"{TRANSACTIONS}/service/stop"))

    assert ok(client.get(f"{SNAPSHOTS}/{files(client)[0]['file']}")).json["open"] == []


@pytest.mark.parametrize("name", ["snapshot.1", "..%2F..%2Fetc%2Fpasswd", "txlog.1"])
def test_no_other_file_is_shown(client: Client, name: str) -> None:
    refused(client.get(f"{SNAPSHOTS}/{name}"), 404, "not_found")


def test_the_changes_of_a_transaction_are_those_that_it_named(client: Client) -> None:
    first, second = begin(client), begin(client)
    assert ok(client.get(f"{first.path}/changes")).json == {
        "count": 0, "changes": [], "conflictingTransaction": None, "conflictingKey": None,
    }  # fmt: skip
    ok(first.can_commit("inspected-b", "inspected-a"))
    assert ok(client.get(f"{first.path}/changes")).json["changes"] == ["inspected-a", "inspected-b"]
    ok(first.commit())
    refused(second.can_commit("inspected-a"), 409, "transaction_conflict")

    found = ok(client.get(f"{second.path}/changes")).json

    assert (found["conflictingTransaction"], found["conflictingKey"]) == (first.id, "inspected-a")
    refused(client.get(f"{first.path}/changes"), 409, "transaction_committed")
    refused(client.get(f"{TRANSACTIONS}/1/changes"), 404, "transaction_unknown")


def test_a_reply_has_a_thousand_changes_at_most(client: Client) -> None:
    opened = begin(client)
    ok(opened.can_commit(*(f"many-{number}" for number in range(1_001))))

    found = ok(client.get(f"{opened.path}/changes")).json

    assert (found["count"], len(found["changes"])) == (1_001, 1_000)


def test_each_setting_names_its_source(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "tuff.toml"
    file.write_text("[tx]\ndefault_timeout = 20\n[messaging]\ndefault_ttl = 60\n")
    arguments = ("--config", str(file), "--port", "0", "--set", "messaging.default_ttl=70")
    server: ServerProcess = launch(*arguments).wait_ready()

    found = {
        each["name"]: (each["value"], each["default"], each["source"])
        for each in ok(server.client().get("/v1/settings")).json["settings"]
    }

    assert found["tx.default_timeout"] == (20.0, 30.0, str(file))
    assert found["messaging.default_ttl"] == (70, 604_800, "flag")
    assert found["tx.max_timeout"] == (86_400.0, 86_400.0, "default")
