"""`tuff explain` against a real server; tests/http/test_explain.py has all reasons."""

import json
from base64 import b64encode
from pathlib import Path

import tuff
from tests.cli.command import tuff_command
from tests.cli.conftest import Tuff
from tests.http.process import ServerProcess, serve
from tuff.protocol.ids import FIRST_ID
from tuff.replies import Explanation, MessageLostByGroup
from tuff_cli.explain import _fields

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


def test_the_files_of_a_stopped_server_give_the_same_reasons(tmp_path: Path) -> None:
    running = serve(tmp_path)
    with tuff.Client(f"http://127.0.0.1:{running.port}") as own:
        own.topics.create(TOPIC)
        aborted, held = own.transactions.start(), own.transactions.start(timeout=600)
        own.publish(TOPIC, "a", transaction=aborted)
        own.publish(TOPIC, "b", transaction=held)
        own.transactions.abort(aborted)
        later = own.publish(TOPIC, "c", delay=600)
        ids = [each.id.hex() for each in own.poll(TOPIC, isolation="all")] + [later.delayed_ids[0]]
    data = str(running.data)
    in_use = tuff_command("explain", str(TOPIC), ids[0], "--data", data)
    running.end()

    def reason(id: str, *options: str) -> str:
        said = tuff_command("explain", str(TOPIC), id, "--data", data, "--json", *options)
        return str(json.loads(said.stdout)["reason"])

    assert in_use.returncode == 2
    assert [reason(each) for each in ids] == ["aborted", "in_progress", "delayed"]
    assert reason(ids[1], "--isolation", "all") == "visible"
    assert reason(ids[1], "--tx", str(held.transaction_id)) == "visible"
    assert tuff_command("explain", str(TOPIC), "12", "--data", data).returncode == 2


def test_a_directory_that_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app.log").touch()
    said = tuff_command("explain", str(TOPIC), "0" * 40, "--data", tmp_path)
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "snapshot.5").touch()
    elsewhere = ["--data", tmp_path / "snapshots", "--snapshots", tmp_path / "snapshots"]
    without_messages = tuff_command("explain", str(TOPIC), "0" * 40, "--data", tmp_path)

    assert said.returncode == without_messages.returncode == 2
    assert f"{tmp_path} contains no data" in said.stderr
    assert "--snapshots" in said.stderr
    assert "there is no message store" in without_messages.stderr
    assert "--without-messages" not in without_messages.stderr
    assert (
        "contains transaction files"
        in tuff_command("explain", str(TOPIC), "0" * 40, *elsewhere).stderr
    )
    alone = tuff_command("explain", str(TOPIC), "0" * 40, "--snapshots", tmp_path)
    assert "--snapshots needs --data" in alone.stderr


def test_a_reader_has_one_kind_of_snapshot(run: Tuff) -> None:
    done = run("explain", "cli:explained", "0" * 40, "--tx", "1", "--isolation", "all")

    assert done.returncode == 2
    assert "at most one of --isolation, --tx and --snapshot" in done.stderr


def test_the_groups_that_lost_a_message_are_named() -> None:
    loss = MessageLostByGroup(
        kind="share", namespace="cli", group="mailing", cause="expired", after=FIRST_ID
    )
    found = Explanation(
        id="ab",
        topic=TOPIC,
        generation=1,
        is_visible=False,
        reason="expired",
        detail="d",
        advice="a",
        lost_by=(loss,),
    )

    assert _fields(found)["lost by"] == (
        f"the share group cli:mailing, which had read up to {FIRST_ID.hex()} when the message "
        "expired"
    )
