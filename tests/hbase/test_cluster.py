"""Three servers of a cluster as real processes, on a real HBase: failover, fencing, a rolling
restart, servers that can't do their work, and set-ups that are refused (decision 0042)."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Event

import pytest

import tuff
from messaging.engines.hbase.settings import HBaseSettings
from metadata.hbase_store import HBaseMetadataStore
from metadata.hbase_table import HBaseMetadataSettings
from metadata.store_interface import Expected
from tests.hbase.deployments import deploy, server_settings, settings_of, stores_of
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.http.client import ok, until
from tests.http.process import ServerProcess, serve
from tests.metadata.links import Links
from tests.metadata.zookeeper_server import ZooKeeperServer
from tuff.connectors import PublishEntry

pytestmark = NEEDS_HBASE

SESSION_S = 3.0
WITHIN_S = 60.0  # seconds, on a busy machine
AWAY_S = 3.0  # seconds for which all servers are suspended
ON_ITS_WAY_S = 1.0  # seconds until the client has what a server sent before it was suspended
# Seconds from a cut to the end of a server that alone can't do its work, on an idle machine: its
# last check counts for five, and a session's timeout follows. Two looks take the rest.
ENDS_WITHIN_S = 5.0 + SESSION_S + 4.0
NUMBERS = range(6)
TOPICS = [tuff.TopicId("default", f"t{number}") for number in NUMBERS]


class Cluster:
    """Servers on the tables of one test."""

    def __init__(self, home: Path, place: HBaseSettings, *settings: str) -> None:
        """`settings`: of all servers, besides those of a cluster with its metadata in HBase."""
        self.place = place
        self._settings = settings
        self._home = home
        self._count = 0
        self.servers: dict[str, ServerProcess] = {}

    def settings(self, server_id: str) -> list[str]:
        return [
            *server_settings(self.place),
            f"cluster.server_id={server_id}",
            f"cluster.session_timeout={SESSION_S}",
            f"cluster.transactions_directory={self._home / 'transactions'}",
            *self._settings,
        ]

    def start(self, server_id: str, *settings: str, port: int = 0) -> ServerProcess:
        """`settings`: of this server only."""
        started = serve(self._next_home(), *self.settings(server_id), *settings, port=port)
        started.may_log_traces = True  # of calls that a pause or an end cut off
        self.servers[server_id] = started
        return started

    def refused(self, server_id: str, *settings: str) -> str:
        """What a server says whose start is refused."""
        flags = [
            word for each in (*self.settings(server_id), *settings) for word in ("--set", each)
        ]
        home = self._next_home()
        server = ServerProcess(home, "--data", str(home / "data"), "--port", "0", *flags)
        try:
            assert server.process.wait(WITHIN_S) == 1
            assert "tuff ready" not in server.stdout()
            return server.stderr().splitlines()[-1]
        finally:
            server.kill()

    @property
    def urls(self) -> str:
        return ",".join(each.url for each in self.servers.values())

    def owner(self, topic: tuff.TopicId) -> str:
        """The id of the server that owns a topic."""
        first = next(iter(self.servers.values()))
        with closing(first.client()) as client:
            path = f"/v1/namespaces/{topic.namespace}/topics/{topic.name}"
            answered = ok(client.get(path))
        url = answered.header("Tuff-Owner") or first.url
        return next(name for name, each in self.servers.items() if each.url == url)

    def leader(self) -> str | None:
        """The id of the server that leads transactions, as far as the others know."""
        for server in self.servers.values():
            if server.process.poll() is None:
                with closing(server.client()) as client:
                    leader = ok(client.get("/v1/cluster")).json["leader"]
                if leader is not None and self.servers[leader["id"]].process.poll() is None:
                    return str(leader["id"])
        return None

    def end(self) -> None:
        for each in self.servers.values():
            if each.process.poll() is None:
                each.end()

    def _next_home(self) -> Path:
        self._count += 1
        return self._home / f"server-{self._count}"


@pytest.fixture
def cluster(hbase: LocalHBase, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, deploy(settings_of(hbase.ports)))
    try:
        for server_id in ("s1", "s2", "s3"):
            made.start(server_id)
        yield made
    finally:
        made.end()


def create_all(client: tuff.Client, cluster: Cluster) -> None:
    """Create the topics, two at each server."""
    for number, topic in enumerate(TOPICS):
        client.topics.create(topic)
        server_id = f"s{number % 3 + 1}"
        if cluster.owner(topic) != server_id:
            client.cluster.move(topic, server_id)


def payloads(client: tuff.Client, topic: tuff.TopicId) -> list[bytes]:
    return [each.payload for each in client.poll(topic).messages]


def test_topics_of_a_killed_server_are_served_by_the_others_with_every_message(
    cluster: Cluster,
) -> None:
    with tuff.Client(cluster.urls, retries=30) as client:
        create_all(client, cluster)
        for topic in TOPICS:
            client.publish(topic, b"before")
        owners = {topic: cluster.owner(topic) for topic in TOPICS}
        victim = owners[TOPICS[0]]

        cluster.servers[victim].kill()
        for topic in TOPICS:
            client.publish(topic, b"after")

        assert len(set(owners.values())) == 3
        assert [payloads(client, topic) for topic in TOPICS] == [[b"before", b"after"]] * 6
        assert list(client.topics.list("default")) == [topic.name for topic in TOPICS]
        restarted = cluster.start(victim)
        with closing(restarted.client()) as at_it:
            assert ok(at_it.get("/v1/cluster")).json["server"] == {"id": victim, "incarnation": 2}


def test_a_paused_server_acknowledges_nothing_once_another_one_owns_its_topic(
    cluster: Cluster,
) -> None:
    topic = TOPICS[0]
    with tuff.Client(cluster.urls, retries=30) as client, ThreadPoolExecutor(1) as pool:
        client.topics.create(topic)
        # The leader, s1, may end because another one leads before it learns that its session ended.
        if cluster.owner(topic) != "s2":
            client.cluster.move(topic, "s2")
        paused = cluster.servers.pop("s2")
        os.kill(paused.pid, signal.SIGSTOP)
        late = pool.submit(_publish_late, paused, topic)
        with tuff.Client(cluster.urls, retries=30) as others:
            # What was sent on to the paused server has an unknown outcome, and is repeated once.
            others.publish(topic, b"sent on")
            others.publish(topic, b"new owner")

            os.kill(paused.pid, signal.SIGCONT)

            assert late.result() != 200
            assert paused.process.wait(WITHIN_S) == 1
            assert payloads(others, topic) == [b"sent on", b"new owner"]
        paused.kill()
        assert {"session_ended", "process_ended"} <= codes_in(paused)


def codes_in(server: ServerProcess) -> set[str]:
    """The codes in the log of a server (docs/logs.md)."""
    return set(re.findall(r" code=(\w+)", server.stderr()))


def _publish_late(server: ServerProcess, topic: tuff.TopicId) -> int:
    """The status of a publish at a paused server; 0 if its connection broke."""
    client = server.client()
    try:
        path = f"/v1/namespaces/{topic.namespace}/topics/{topic.name}/publish"
        return client.post(path, {"messages": ["late"]}).status
    except OSError:
        return 0


def test_a_transaction_over_topics_of_three_servers_is_seen_whole_or_not_at_all(
    cluster: Cluster,
) -> None:
    with tuff.Client(cluster.urls, retries=30) as client:
        create_all(client, cluster)
        committed, aborted = client.transactions.start(), client.transactions.start()
        for topic in TOPICS:
            client.publish(topic, b"committed", transaction=committed)
            client.publish(topic, b"aborted", transaction=aborted)
        last = PublishEntry(topic=TOPICS[0], payloads=[b"with the commit"])

        before = [payloads(client, topic) for topic in TOPICS]
        client.transactions.abort(aborted)
        client.transactions.commit(committed, publish=[last])
        after = [payloads(client, topic) for topic in TOPICS]

    assert len({cluster.owner(topic) for topic in TOPICS}) == 3
    assert before == [[]] * len(TOPICS)
    assert after == [[b"committed", b"with the commit"], *[[b"committed"]] * (len(TOPICS) - 1)]


def test_a_topic_with_partitions_is_published_to_and_consumed_through_any_server(
    cluster: Cluster,
) -> None:
    """Its owner is killed; the members of a group go on, and each message comes once."""
    topic, copies = tuff.TopicId("cluster", "orders"), tuff.TopicId("cluster", "copies")
    numbers = range(400)
    with tuff.Client(cluster.urls, retries=30) as client:
        client.topics.create(topic, partitions=8)
        client.topics.create(copies)
        for each, server_id in ((copies, "s1"), (topic, "s2")):
            if cluster.owner(each) != server_id:
                client.cluster.move(each, server_id)
        for number in numbers[:200]:
            client.publish(topic, tuff.NewMessage(str(number), key=str(number % 10)))
        with client.transaction() as tx:
            for number in numbers[200:]:
                tx.publish(topic, tuff.NewMessage(str(number), key=str(number % 10)))

        cluster.servers["s2"].kill()
        seen: list[int] = []

        def copy(batch: tuff.Batch, tx: tuff.TransactionContext) -> None:
            tx.publish(copies, *(message.payload for message in batch))
            seen.extend(int(message.payload) for message in batch)
            if len(set(seen)) == len(numbers):
                consumer.stop()

        with client.consumer(topic, group="copying", mode="exactly_once") as consumer:
            consumer.run(copy)
        copied = [int(each.payload) for each in client.poll(copies, isolation="committed")]
        # The owner of the positions learns of the last commit after it.
        until(lambda: set(lags(client)) == {0}, within_s=WITHIN_S, what="no lag")
        found = lags(client)

    assert sorted(copied) == list(numbers)
    for key in range(10):
        of_key = [number for number in copied if number % 10 == key]
        assert of_key == sorted(of_key)
    assert len(found) > 1


def lags(client: tuff.Client) -> list[int | None]:
    """Of the group `copying` in each partition, in ms."""
    return [each.behind_ms for each in client.groups.get("cluster", "copying").partitions]


def test_another_server_leads_transactions_when_the_leader_is_killed(cluster: Cluster) -> None:
    with tuff.Client(cluster.urls, retries=30) as client:
        first = client.transactions.start(timeout=300)
        done = client.transactions.start()
        client.transactions.commit(done, changes=[b"key"])
        before = cluster.leader()
        assert before is not None

        cluster.servers[before].kill()

        assert client.transactions.get(done).state == "committed"
        client.transactions.commit(first, changes=[b"other"])
        leader = cluster.leader()
        assert leader not in (None, before)
        new = cluster.servers[leader]
        until(lambda: {"cluster_joined", "leader_elected"} <= codes_in(new), within_s=WITHIN_S)
        until(lambda: any("server_fenced" in codes_in(each) for each in cluster.servers.values()))


def test_messages_that_are_set_aside_return_although_the_leader_is_killed(
    hbase: LocalHBase, tmp_path: Path
) -> None:
    """Readers at every server pass a prepared transaction after `max_block`."""
    cluster = Cluster(tmp_path, deploy(settings_of(hbase.ports)), "messaging.max_block=2")

    def committed() -> list[list[bytes]]:
        return [
            [each.payload for each in client.poll(topic, isolation="committed").messages]
            for topic in TOPICS
        ]

    try:
        for server_id in ("s1", "s2", "s3"):
            cluster.start(server_id)
        with tuff.Client(cluster.urls, retries=30) as client:
            create_all(client, cluster)
            tx = client.transactions.start(timeout=30)
            held = [PublishEntry(topic=topic, payloads=[b"held"]) for topic in TOPICS]
            client.transactions.prepare(tx, "db", publish=held)
            for topic in TOPICS:
                client.publish(topic, b"later")
            until(lambda: committed() == [[b"later"]] * len(TOPICS), within_s=WITHIN_S)

            leader = cluster.leader()
            assert leader is not None
            cluster.servers[leader].kill()
            client.transactions.resolve(tx, "commit")

            until(lambda: committed() == [[b"later", b"held"]] * len(TOPICS), within_s=WITHIN_S)
    finally:
        cluster.end()


def test_a_rolling_restart_fails_no_request(cluster: Cluster) -> None:
    with tuff.Client(cluster.urls, retries=30) as client, ThreadPoolExecutor(1) as pool:
        create_all(client, cluster)
        running = pool.submit(_publish_until, cluster.urls, stop := [False])
        try:
            for name in ("s1", "s2", "s3"):
                restart(cluster, name)
        finally:
            stop[0] = True
        sent = running.result()

        found = [int(each) for topic in TOPICS for each in payloads(client, topic)]
        assert sorted(found) == list(range(sent))


def restart(cluster: Cluster, name: str) -> None:
    """Drain a server, stop it, and start it again at the same address."""
    stopped = cluster.servers.pop(name)
    with closing(stopped.client()) as at_it:
        drained = ok(at_it.post("/v1/cluster/drain?wait=60", {"server": name})).json
    assert drained["topics"] == 0
    stopped.end()
    cluster.start(name, port=stopped.port)


def _publish_until(urls: str, stop: list[bool]) -> int:
    """Publish numbers until `stop` holds True; how many were acknowledged. Each must be."""
    sent = 0
    with tuff.Client(urls, retries=30) as client:
        while not stop[0]:
            client.publish(TOPICS[sent % len(TOPICS)], b"%d" % sent)
            sent += 1
    return sent


class Publishing:
    """Publishes numbers without a pause, and notes when each was acknowledged."""

    def __init__(self, urls: str) -> None:
        self._urls = urls
        self._stop = Event()
        self.acknowledged: list[tuple[int, float]] = []
        self.doubtful: set[int] = set()  # the outcome is unknown

    def run(self) -> None:
        with tuff.Client(self._urls, retries=0) as client:
            for number in count():
                if self._stop.is_set():
                    return
                self._publish(client, number)

    def _publish(self, client: tuff.Client, number: int) -> None:
        topic = TOPICS[number % len(TOPICS)]
        while not self._stop.is_set():
            try:
                client.publish(topic, b"%d" % number)
            except tuff.errors.OwnershipMovingError:
                self._stop.wait(0.05)
            except tuff.errors.StorageUnavailableError:
                self.doubtful.add(number)
                return
            else:
                self.acknowledged.append((number, time.monotonic()))
                return

    def acknowledges_since(self, since_s: float) -> bool:
        return bool(self.acknowledged) and self.acknowledged[-1][1] > since_s

    def topics_since(self, since_s: float) -> set[tuff.TopicId]:
        """The topics with a message that was acknowledged since then."""
        sent = [number for number, at_s in list(self.acknowledged) if at_s > since_s]
        return {TOPICS[number % len(TOPICS)] for number in sent}

    def require_all(self, found: list[int]) -> None:
        """Nothing that was acknowledged is missing among these numbers, or there twice."""
        sent = {number for number, _ in self.acknowledged}
        assert len(found) == len(set(found))
        assert sent <= set(found) <= sent | self.doubtful

    def stop(self) -> None:
        self._stop.set()


def test_servers_are_suspended_while_zookeeper_is_away_and_continue_when_it_is_back(
    zookeeper: ZooKeeperServer, at_zookeeper: Cluster
) -> None:
    cluster = at_zookeeper
    with tuff.Client(cluster.urls, retries=30) as client, ThreadPoolExecutor(1) as pool:
        create_all(client, cluster)
        open_one = client.transactions.start(timeout=300)
        publishing = Publishing(cluster.urls)
        running = pool.submit(publishing.run)
        try:
            until(lambda: len(publishing.acknowledged) > len(TOPICS))
            suspended_s, back_s = restart_slowly(zookeeper, cluster)
            until(lambda: publishing.acknowledges_since(back_s), within_s=WITHIN_S)
        finally:
            publishing.stop()
            running.result()
        client.transactions.commit(open_one, changes=[b"key"])
        found = [int(each) for topic in TOPICS for each in payloads(client, topic)]

    later_s = [at_s - suspended_s for _, at_s in publishing.acknowledged]
    assert not [each for each in later_s if ON_ITS_WAY_S < each < AWAY_S]
    publishing.require_all(found)
    for name, server in cluster.servers.items():
        with closing(server.client()) as at_server:
            own = ok(at_server.get("/v1/cluster")).json["server"]
        assert own == {"id": name, "incarnation": 1}
        _until_logged(server, "health of storage changed from ok to down: suspended")
        _until_logged(server, "health of storage changed from down to ok")


def _until_logged(server: ServerProcess, words: str) -> None:
    """The first server that is back acknowledges; the others find their sessions later."""
    until(lambda: words in server.stderr(), within_s=WITHIN_S, what=words)


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path / "zookeeper")
    yield server
    server.kill()


@pytest.fixture
def at_zookeeper(
    hbase: LocalHBase, tmp_path: Path, zookeeper: ZooKeeperServer
) -> Iterator[Cluster]:
    """Three servers with their metadata there."""
    place = deploy(settings_of(hbase.ports))
    made = Cluster(tmp_path, place, f"cluster.metadata=zookeeper://{zookeeper.address}/tuff")
    try:
        for server_id in ("s1", "s2", "s3"):
            made.start(server_id)
        yield made
    finally:
        made.end()


def restart_slowly(zookeeper: ZooKeeperServer, cluster: Cluster) -> tuple[float, float]:
    """Start ZooKeeper again some time after it has ended; when all servers were suspended, and when
    it answered again."""
    zookeeper.kill()
    until(lambda: all(map(is_suspended, cluster.servers.values())), within_s=WITHIN_S)
    suspended_s = time.monotonic()
    until(lambda: time.monotonic() > suspended_s + AWAY_S, what="a time without answers")
    zookeeper.start()
    return suspended_s, time.monotonic()


def is_suspended(server: ServerProcess) -> bool:
    with closing(server.client()) as client:
        return b"suspended" in client.get("/health/ready").body


class Parts:
    """What each server of a cluster has for itself: a link to the gateway of HBase, and a path to
    the shared directory."""

    def __init__(self, cluster: Cluster, links: Links, gateway: int, home: Path) -> None:
        self._cluster = cluster
        self._home = home
        self._shared = home / "shared"
        self._shared.mkdir()
        self.links = links
        self.gateways = {name: links.to(gateway) for name in ("s1", "s2", "s3")}

    def start(self, server_id: str) -> ServerProcess:
        self.mount(server_id)
        return self._cluster.start(server_id, *self.settings(server_id))

    def settings(self, server_id: str) -> tuple[str, str]:
        gateway = f'hbase.gateways=["127.0.0.1:{self.gateways[server_id].port}"]'
        return gateway, f"cluster.transactions_directory={self._path(server_id)}"

    def mount(self, server_id: str) -> None:
        self._replace(server_id, self._shared)

    def unmount(self, server_id: str) -> None:
        """The server finds an empty directory there from now on."""
        empty = self._home / f"empty-{server_id}"
        empty.mkdir()
        self._replace(server_id, empty)

    def _path(self, server_id: str) -> Path:
        return self._home / f"directory-{server_id}"

    def _replace(self, server_id: str, target: Path) -> None:
        new = self._home / "new"
        new.symlink_to(target)
        new.replace(self._path(server_id))


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links()
    yield made
    made.close()


@pytest.fixture
def in_parts(
    hbase: LocalHBase, tmp_path: Path, zookeeper: ZooKeeperServer, links: Links
) -> Iterator[tuple[Cluster, Parts]]:
    """Three servers whose parts fail one by one, with their metadata in ZooKeeper."""
    place = deploy(settings_of(hbase.ports))
    cluster = Cluster(tmp_path, place, f"cluster.metadata=zookeeper://{zookeeper.address}/tuff")
    parts = Parts(cluster, links, hbase.ports.thrift, tmp_path)
    try:
        for server_id in ("s1", "s2", "s3"):
            parts.start(server_id)
        yield cluster, parts
    finally:
        cluster.end()


def said_at_its_end(server: ServerProcess) -> str:
    """The last line of a server that ends by itself. `make prove-cluster` judges how soon."""
    assert server.process.wait(WITHIN_S) == 1
    return server.stderr().splitlines()[-1]


@pytest.mark.parametrize("silently", [False, True])
def test_topics_of_a_server_that_alone_lost_hbase_are_served_by_the_others(
    in_parts: tuple[Cluster, Parts], *, silently: bool
) -> None:
    cluster, parts = in_parts
    with tuff.Client(cluster.urls, retries=30) as client:
        create_all(client, cluster)
    cut_off = cluster.servers.pop("s1")
    publishing = Publishing(cluster.urls)
    with tuff.Client(cluster.urls, retries=30) as client, ThreadPoolExecutor(1) as pool:
        running = pool.submit(publishing.run)
        try:
            until(lambda: len(publishing.acknowledged) > len(TOPICS))
            with parts.links.cut(parts.gateways["s1"], silently=silently):
                cut_s = time.monotonic()
                said = said_at_its_end(cut_off)
                until(lambda: publishing.topics_since(cut_s) == set(TOPICS), within_s=WITHIN_S)
                refusal = "" if silently else cluster.refused("s1", *parts.settings("s1"))
        finally:
            publishing.stop()
            running.result()
            cut_off.kill()
        found = [int(each) for topic in TOPICS for each in payloads(client, topic)]
    restarted = parts.start("s1")

    assert "this server does not reach HBase, and the server s" in said
    publishing.require_all(found)
    assert silently or refusal.startswith("tuff: the HBase gateway did not answer")
    until(lambda: incarnations(cluster) == {"s1": 2, "s2": 1, "s3": 1}, within_s=WITHIN_S)
    assert restarted.process.poll() is None


def incarnations(cluster: Cluster) -> dict[str, int]:
    """Of each server that is a member."""
    with closing(next(iter(cluster.servers.values())).client()) as client:
        found = ok(client.get("/v1/cluster")).json["servers"]
    return {each["id"]: each["incarnation"] for each in found}


def test_no_server_ends_while_all_of_them_have_lost_hbase(
    in_parts: tuple[Cluster, Parts],
) -> None:
    cluster, parts = in_parts
    with tuff.Client(cluster.urls, retries=30) as client, ThreadPoolExecutor(1) as pool:
        create_all(client, cluster)
        publishing = Publishing(cluster.urls)
        running = pool.submit(publishing.run)
        try:
            until(lambda: len(publishing.acknowledged) > len(TOPICS))
            with parts.links.cut(*parts.gateways.values(), silently=True):
                cut_s = time.monotonic()
                ended_s = cut_s + 2 * ENDS_WITHIN_S
                until(lambda: time.monotonic() > ended_s, within_s=WITHIN_S, what="a long cut")
                alive = [each.process.poll() is None for each in cluster.servers.values()]
            back_s = time.monotonic()
            until(lambda: publishing.topics_since(back_s) == set(TOPICS), within_s=WITHIN_S)
        finally:
            publishing.stop()
            running.result()
        found = [int(each) for topic in TOPICS for each in payloads(client, topic)]

    assert alive == [True] * 3
    assert incarnations(cluster) == {"s1": 1, "s2": 1, "s3": 1}
    publishing.require_all(found)


def test_a_leader_that_alone_lost_the_shared_directory_gives_the_lead_to_one_that_reaches_it(
    in_parts: tuple[Cluster, Parts],
) -> None:
    cluster, parts = in_parts
    with tuff.Client(cluster.urls, retries=30) as client:
        before = cluster.leader()
        assert before is not None
        until(lambda: all(map(reaches_directory, cluster.servers.values())), within_s=WITHIN_S)
        standby, able = sorted(cluster.servers.keys() - {before})
        done, open_one = client.transactions.start(), client.transactions.start(timeout=300)
        client.transactions.commit(done, changes=[b"key"])
        parts.unmount(standby)
        until(lambda: not reaches_directory(cluster.servers[standby]), within_s=WITHIN_S)

        parts.unmount(before)

        said = said_at_its_end(cluster.servers[before])
        assert client.transactions.get(done).state == "committed"
        client.transactions.commit(open_one, changes=[b"other"])

    assert f"does not reach the shared directory, and the server {able} does" in said
    assert cluster.leader() == able
    assert cluster.servers[standby].process.poll() is None


def reaches_directory(server: ServerProcess) -> bool:
    with closing(server.client()) as client:
        return b"\ntuff_cluster_reaches_directory 1" in client.get("/metrics").body


def test_a_second_server_with_the_same_id_is_refused(cluster: Cluster) -> None:
    said = cluster.refused("s1")

    assert said.startswith(
        f"tuff: the server id s1 is already in use by {cluster.servers['s1'].url}"
    )


def test_metadata_of_another_version_are_refused(hbase: LocalHBase, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, deploy(settings_of(hbase.ports)))
    try:
        cluster.start("s1").end()
        with closing(_metadata(cluster.place)) as store:
            stored = store.get(("layout",))
            assert stored is not None
            layout = json.loads(stored.value)
            layout["managers"]["owners"] = 2
            store.put(("layout",), json.dumps(layout).encode(), Expected.ANY)

        said = cluster.refused("s1")
    finally:
        cluster.end()

    assert said == (
        "tuff: the metadata store does not suit this server: its owners have format 2, and those "
        "of this server format 1 (run the same version of the software in all servers of a cluster)"
    )


def _metadata(place: HBaseSettings) -> HBaseMetadataStore:
    settings = HBaseMetadataSettings(addresses=place.addresses(), prefix=place.prefix)
    return HBaseMetadataStore(
        settings, elapsed_s=time.monotonic, in_background=ThreadPoolExecutor(4).submit
    )


def test_the_tables_of_a_single_server_are_refused(hbase: LocalHBase, tmp_path: Path) -> None:
    place = deploy(settings_of(hbase.ports))
    stores_of(place)().close()

    said = Cluster(tmp_path, place).refused("s1")

    assert said.startswith(f"tuff: the tables {place.prefix}* belong to a single server")


def test_a_single_server_is_refused_the_tables_of_a_cluster(
    hbase: LocalHBase, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path, deploy(settings_of(hbase.ports)))
    try:
        cluster.start("s1").end()
        with serve(tmp_path / "single", *server_settings(cluster.place)) as single:
            single.may_log_traces = True
            client = single.client()
            until(
                lambda: "belong to the cluster" in client.get("/health/ready").body.decode(),
                within_s=WITHIN_S,
                what="the refusal",
            )
    finally:
        cluster.end()


def test_an_unreachable_zookeeper_is_named_at_the_start(hbase: LocalHBase, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, deploy(settings_of(hbase.ports)))

    said = cluster.refused("s1", "cluster.metadata=zookeeper://127.0.0.1:1/tuff")

    assert said.startswith("tuff: no ZooKeeper answers at 127.0.0.1:1")
