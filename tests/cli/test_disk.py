"""`tuff disk`, against a running server."""

import json

import tuff
from tests.cli.conftest import Tuff


def test_the_disks_and_the_store_are_shown_and_compacted(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "space")
    client.topics.create(topic)
    client.publish(topic, b"x")

    shown = json.loads(run("disk", "show", "--json").stdout)
    text = run("disk", "show").stdout
    done = run("disk", "reclaim")

    assert [each["name"] for each in shown["disks"]] == ["messages", "transactions"]
    for disk in shown["disks"]:
        assert disk["sizeBytes"] > disk["freeBytes"] > 0
        assert disk["reserveBytes"] > 0
    assert [each["name"] for each in shown["tables"]] == [
        "messages", "stored payloads", "delayed messages", "other",
    ]  # fmt: skip
    assert shown["topicCount"] >= 1
    assert "disk of messages" in text
    assert "reserve 64 MiB, spare file" in text
    assert (done.returncode, done.stdout) == (0, "freed 0.0 MiB\n")
    use = client.disk_use()
    assert use.disks[0].directory == shown["disks"][0]["directory"]
    assert client.reclaim_space() == tuff.admin.Reclaimed(freed_bytes=0, is_complete=True)
    assert client.topics.space(topic) == tuff.admin.TopicSpace(live_bytes=0, disk_bytes=0)
