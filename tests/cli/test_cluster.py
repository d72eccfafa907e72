"""`tuff cluster`: what an operator sees and does."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cli.command import tuff_command
from tests.cli.conftest import Tuff
from tests.cluster.operated import CLUSTER_ID, Server, operated
from tests.metadata.memory_store import MemoryMetadataStore


@dataclass
class Cluster:
    """Servers on an event loop of their own: a command blocks."""

    servers: list[Server]
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return ",".join(each.url for each in self.servers)

    def claim(self, number: int, *names: str) -> None:
        done = asyncio.run_coroutine_threadsafe(self.servers[number].claim(*names), self.loop)
        done.result(60)

    def tuff(self, *words: str) -> tuple[int, str, str]:
        done = tuff_command("cluster", *words, url=self.url)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    store = MemoryMetadataStore()
    ready, made = threading.Event(), []
    ended = asyncio.Event()

    async def serve() -> None:
        async with operated(store, "s1", "s2") as servers:
            made.append(Cluster(servers, asyncio.get_running_loop()))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    yield made[0]
    made[0].loop.call_soon_threadsafe(ended.set)
    thread.join(60)
    store.close()


def test_the_servers_are_shown_with_their_topics_and_the_leader(cluster: Cluster) -> None:
    cluster.claim(1, "a", "b")

    code, shown, _ = cluster.tuff("status")
    told = json.loads(cluster.tuff("status", "--json")[1])

    lines = [line.split() for line in shown.splitlines()]
    assert code == 0
    assert shown.startswith(f"cluster {CLUSTER_ID}, 2 servers, leader's epoch 1\n")
    first, second = cluster.servers
    assert lines[2] == ["s1", first.url, "1", "2023-11-14T22:13:20.000Z", "0", "no", "yes"]
    assert lines[3] == ["s2", second.url, "1", "2023-11-14T22:13:20.000Z", "2", "no", "no"]
    assert told["leader"] == {"id": "s1", "epoch": 1, "url": first.url}
    assert [each["topics"] for each in told["servers"]] == [0, 2]


def test_owners_are_read_page_by_page(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuff_cli.cluster.PAGE_COUNT_MAX", 2)
    cluster.claim(0, "a", "c", "e")
    cluster.claim(1, "b", "d")

    all_of_them = json.loads(cluster.tuff("topics", "--json")[1])
    of_one = cluster.tuff("topics", "--server", "s2")[1]

    code, _, refused = cluster.tuff("topics", "--server", "s9")
    assert (code, "no live server has the id s9" in refused) == (1, True)
    assert [(each["topic"], each["server"]) for each in all_of_them] == [
        ("shop:a", "s1"), ("shop:b", "s2"), ("shop:c", "s1"), ("shop:d", "s2"), ("shop:e", "s1"),
    ]  # fmt: skip
    lines = [line.split() for line in of_one.splitlines()]
    assert lines[0] == ["2", "topics"]
    assert lines[2:] == [["shop:b", "s2", "1", "1", "yes"], ["shop:d", "s2", "1", "1", "yes"]]


def test_a_topic_is_moved_and_a_refusal_names_the_next_command(cluster: Cluster) -> None:
    cluster.claim(0, "a")

    moved = cluster.tuff("move", "shop:a", "--to", "s2")
    unknown = cluster.tuff("move", "shop:a", "--to", "s7")
    again = cluster.tuff("move", "shop:a", "--to", "s2")

    assert moved == (0, "moved shop:a to s2\n", "")
    assert unknown == (
        1, "",
        "tuff: there is no live server s7 in the cluster; there are s1, s2; "
        "next: tuff cluster status\n",
    )  # fmt: skip
    assert again == (
        1, "", "tuff: the topic shop:a is at the server s2 already; next: tuff cluster status\n",
    )  # fmt: skip


def test_a_server_is_drained_and_takes_topics_again(cluster: Cluster) -> None:
    cluster.claim(0, "a", "b")

    drained = cluster.tuff("drain", "s1", "--wait", "60")
    undrained = cluster.tuff("undrain", "s1", "--json")

    assert drained == (0, "s1 owns no topics, and can be stopped\n", "")
    assert json.loads(undrained[1]) == {"server": "s1", "isDraining": False, "topics": 0}


def test_a_drain_that_is_not_done_after_the_wait_has_an_exit_code(cluster: Cluster) -> None:
    cluster.claim(0, "a", "b")
    cluster.servers[0].loaded.stuck.update(cluster.servers[0].loaded.topics)

    code, shown, _ = cluster.tuff("drain", "s1", "--wait", "0.2")

    assert (code, shown) == (
        1, "s1 still owns 2 topics, and goes on; repeat the command to wait\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [["status"], ["topics"], ["move", "a", "--to", "s2"], ["drain", "s1"], ["undrain", "s1"]],
    ids=lambda words: words[0],
)
def test_a_single_server_is_not_part_of_a_cluster(run: Tuff, words: list[str]) -> None:
    done = run("cluster", *words)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("tuff: the server at http://127.0.0.1:")
    assert done.stderr.endswith(" is not part of a cluster\n")
