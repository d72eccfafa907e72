"""Share groups through fsck and salvage (promise 8)."""

from contextlib import closing
from pathlib import Path

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
