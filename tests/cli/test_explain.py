"""`tuff explain` against a real server; tests/http/test_explain.py has all reasons."""

import json
from base64 import b64encode
from pathlib import Path

import tuff
from tests.cli.conftest import Tuff
from tests.http.process import ServerProcess

TOPIC = tuff.TopicId("cli", "explained")


def test_the_reason_is_named_for_each_kind_of_reader(
    run: Tuff, client: tuff.Client, server: ServerProcess, tmp_path: Path
) -> None:
    client.topics.create(TOPIC)
    taken = client.transactions.take_snapshot()
    tx = client.transactions.start()
    client.publish(TOPIC, "a", transaction=tx)
    id = client.poll(TOPIC, isolation="all").messages[0].id.hex()
    during = client.transactions.start()
    as_json = tmp_path / "transaction.json"
    as_json.write_text(json.dumps(b64encode(during.to_bytes()).decode("ascii")))

    shown = run("explain", "cli:explained", id)
    assert shown.returncode == 0
    for part in (f"{id} is not visible", "in_progress", str(tx.transaction_id), "tuff tx abort"):
        assert part in shown.stdout
    client.transactions.commit(tx)

    def reason(*options: str) -> tuple[bool, str]:
        said = json.loads(run("explain", "cli:explained", id, "--json", *options).stdout)
        return said["visible"], said["reason"]

    assert reason() == reason("--isolation", "all") == (True, "visible")
    assert reason("--tx", str(during.transaction_id)) == (False, "after_snapshot")
    assert reason("--snapshot", str(as_json)) == (False, "after_snapshot")
    file = server.data / "snapshots" / taken.file
    assert reason("--snapshot", str(file)) == (False, "after_snapshot")


def test_a_reader_has_one_kind_of_snapshot(run: Tuff) -> None:
    done = run("explain", "cli:explained", "0" * 40, "--tx", "1", "--isolation", "all")

    assert done.returncode == 2
    assert "at most one of --isolation, --tx and --snapshot" in done.stderr
