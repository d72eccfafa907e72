"""Groups through fsck and salvage (promise 8)."""

from contextlib import closing
from pathlib import Path

import tuff
from admin.data_directory import DataDirectory
from admin.salvage import salvage
from tests.admin.files import found_in, now_ms
from tests.http.calls import Topic, begin, created
from tests.http.client import ok
from tests.http.process import serve
from tests.http.test_share_groups import Workers, publish


def test_a_salvaged_share_group_keeps_what_was_accepted(tmp_path: Path) -> None:
    with serve(tmp_path / "first") as server:
        with closing(server.client()) as client:
            topic = created(client, "default", "t1")
            workers = Workers(topic)
            ok(workers.create(order="key"))
            publish(topic, "done", "undecided", "left")
            done, undecided, _ = workers.lease()
            assert workers.acknowledge(done) == ["accepted"]
            assert workers.acknowledge(undecided, tx=begin(client).id) == ["accepted"]
        server.kill()
        data = server.data
    assert [each for each in found_in(data) if each.is_corruption] == []

    new = tmp_path / "second" / "data"
    new.parent.mkdir()
    salvage(DataDirectory.of(data), new, now_ms=now_ms(), new_store_id=lambda: "ab" * 16)

    with serve(tmp_path / "second") as server, closing(server.client()) as client:
        workers = Workers(Topic(client, "default", "t1"))
        assert workers.show()["order"] == "key"
        assert workers.leased() == ["undecided", "left"]


def test_salvage_makes_no_topic_of_a_consumer_group(tmp_path: Path) -> None:
    """A group `billing` had become an empty topic `default:billing` with the longest ttl."""
    with serve(tmp_path / "first") as server, tuff.Client(server.url) as client:
        client.topics.create("default:t1", partitions=2)
        client.publish("default:t1", "message")
        with client.consumer("default:t1", group="billing") as consumer:
            assert consumer.poll(wait=10)
        server.kill()
        data = server.data

    new = tmp_path / "second" / "data"
    new.parent.mkdir()
    report = salvage(DataDirectory.of(data), new, now_ms=now_ms(), new_store_id=lambda: "ab" * 16)

    assert not [each for each in report.decided if "billing" in each.location]
    with serve(tmp_path / "second") as server, tuff.Client(server.url) as client:
        assert list(client.topics.list("default")) == ["t1"]
        assert client.groups.list("default") == ["billing"]
