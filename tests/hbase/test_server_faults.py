"""A server while parts of HBase fail: no acknowledged message is lost, no uncommitted one is shown,
all readers see one order, errors are one sentence, and the server recovers (promises 1 to 4)."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime

import happybase
import pytest

from messaging.engines.hbase.layout import Layout
from messaging.engines.hbase.settings import HBaseSettings
from messaging.engines.hbase.table_admin import TableAdmin
from messaging.log.read_lease import READ_LEASE_MS
from tests.hbase.conftest import NewServer
from tests.hbase.deployments import SALTS, deploy, server_settings, settings_of, through
from tests.hbase.local_hbase import Jvm, LocalHBase, Ports
from tests.hbase.marks import NEEDS_HBASE
from tests.hbase.publish_load import Load, loaded
from tests.http.calls import Topic
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import one_sentence
from tests.http.process import ServerProcess, serve

pytestmark = NEEDS_HBASE

SHORT_S = 6.0  # seconds; the time-out of a call where a gateway is to hang beyond it


def warm_gateway(hbase: LocalHBase, port: int) -> Jvm:
    """A gateway that knows its region servers: its first call takes seconds on a busy machine."""
    gateway = hbase.gateway(port)
    with closing(happybase.Connection("127.0.0.1", port, timeout=60_000)) as connection:
        connection.tables()
    return gateway


@contextmanager
def second_gateway(hbase: LocalHBase) -> Iterator[tuple[int, Jvm]]:
    """A gateway in a JVM of its own, and its port."""
    port = Ports.free().thrift
    gateway = warm_gateway(hbase, port)
    try:
        yield port, gateway
    finally:
        gateway.kill()


def test_a_gateway_is_killed_and_started_again(hbase: LocalHBase, new_server: NewServer) -> None:
    with second_gateway(hbase) as (port, gateway):
        server = new_server(through(deploy(settings_of(hbase.ports)), port))
        with ExitStack() as started, loaded(server) as load:
            gateway.kill()
            load.is_refused("no HBase gateway answers at 127.0.0.1")
            started.callback(warm_gateway(hbase, port).stop)


def test_another_gateway_takes_over(hbase: LocalHBase, new_server: NewServer) -> None:
    with second_gateway(hbase) as (port, gateway):
        place = through(deploy(settings_of(hbase.ports)), port, hbase.ports.thrift)
        with loaded(new_server(place)) as load:
            gateway.kill()
            load.goes_on()


def test_one_of_two_gateways_hangs(hbase: LocalHBase, new_server: NewServer) -> None:
    """Whether it carries out the calls of that time afterwards is unknown."""
    with second_gateway(hbase) as (port, gateway):
        place = through(deploy(settings_of(hbase.ports)), port, hbase.ports.thrift)
        with loaded(new_server(place, f"hbase.timeout={SHORT_S}")) as load:
            gateway.pause()
            load.goes_on()
            gateway.resume()
            load.goes_on()


def test_the_only_gateway_hangs(hbase: LocalHBase, new_server: NewServer) -> None:
    with second_gateway(hbase) as (port, gateway):
        place = through(deploy(settings_of(hbase.ports)), port)
        with loaded(new_server(place, f"hbase.timeout={SHORT_S}")) as load:
            gateway.pause()
            load.is_refused("did not answer")
            gateway.resume()


def test_a_stop_does_not_wait_for_a_hanging_gateway(
    hbase: LocalHBase, new_server: NewServer
) -> None:
    """A call may take 35 seconds, and a stop ten."""
    with second_gateway(hbase) as (port, gateway):
        place = through(deploy(settings_of(hbase.ports)), port)
        server = new_server(place)
        topic = Topic(server.client(), "default", "stopped")
        ok(topic.create({}))
        ok(topic.publish("there"))
        gateway.pause()
        impatient = Client(server.port, timeout_s=2.0)
        with pytest.raises(TimeoutError):
            Topic(impatient, "default", "stopped").publish("may be there")
        impatient.close()

        assert server.terminate() == 0

        gateway.resume()
        again = Topic(new_server(place).client(), "default", "stopped")
        assert again.read()[0] == "there"


def test_all_of_hbase_is_killed(tmp_path: Path, new_server: NewServer) -> None:
    hbase = LocalHBase(tmp_path / "hbase")
    try:
        place = deploy(settings_of(hbase.ports))
        with loaded(new_server(place)) as load:
            hbase.kill()
            load.is_refused("no HBase gateway answers")
            hbase.restart()
    finally:
        hbase.stop()


def test_a_table_is_disabled_and_enabled_again(hbase: LocalHBase, new_server: NewServer) -> None:
    place = deploy(settings_of(hbase.ports))
    admin = TableAdmin(place.admin_address())
    with loaded(new_server(place)) as load:
        admin.disable(f"{place.prefix}message")
        load.is_refused("is disabled; enable it")
        admin.enable(f"{place.prefix}message")
    admin.close()


def test_a_region_is_split_under_load(hbase: LocalHBase, new_server: NewServer) -> None:
    """In the middle of the topic, so that readers read from two regions."""
    place = deploy(settings_of(hbase.ports))
    with loaded(new_server(place)) as load:
        middle = Layout(SALTS).place(b"mdefault:load:" + bytes.fromhex("00000001") + b"\x00")[1]
        for table, row in (("message", middle), ("metadata", b"p")):
            hbase.command("split", f"{place.prefix}{table}", row.hex())
            load.goes_on(100)


def test_a_replaced_server_refuses_writes(hbase: LocalHBase, new_server: NewServer) -> None:
    place = deploy(settings_of(hbase.ports))
    first = new_server(place)
    with Load(first).running() as load:
        load.goes_on()
        second = new_server(place, "tx.enabled=false")
        load.is_refused("has taken the tables")
        load.read_from(second)
    load.check()


def test_a_second_server_with_the_same_port_does_not_take_the_tables(
    hbase: LocalHBase, new_server: NewServer, tmp_path: Path
) -> None:
    place = deploy(settings_of(hbase.ports))
    first = new_server(place)
    topic = Topic(first.client(), "default", "t")
    ok(topic.create({}))
    ok(topic.publish("before"))
    flags = [word for setting in server_settings(place) for word in ("--set", setting)]
    home = tmp_path / "second"

    with ServerProcess(home, "--data", "other", "--port", str(first.port), *flags) as second:
        assert second.wait_exit() == 1
        assert f"port {first.port} on 127.0.0.1 is in use" in one_sentence(second)

    ok(topic.publish("after"))
    assert topic.read() == ["before", "after"]


def test_a_replaced_idle_server_soon_refuses_reads(
    hbase: LocalHBase, new_server: NewServer
) -> None:
    """It answered from memory for a minute, without the messages of its successor."""
    place = deploy(settings_of(hbase.ports))
    replaced = new_server(place)
    topic = Topic(replaced.client(), "default", "t")
    ok(topic.create({}))
    ok(topic.publish("before"))
    second = Topic(new_server(place, "tx.enabled=false").client(), "default", "t")
    ok(second.publish("after"))
    published_s = clock_gettime(CLOCK_BOOTTIME)

    while True:
        asked_s = clock_gettime(CLOCK_BOOTTIME)
        reply = topic.poll()
        if reply.status != 200:
            break
        assert asked_s < published_s + READ_LEASE_MS / 1000, "it answered with old messages"

    refused(reply, 503, "storage_unavailable")
    health = replaced.client()
    until(lambda: health.get("/health/ready").status == 503, what="the health")
    assert second.read() == ["before", "after"]


def test_a_replaced_server_that_resumes_refuses_reads(
    hbase: LocalHBase, new_server: NewServer
) -> None:
    place = deploy(settings_of(hbase.ports))
    replaced = new_server(place)
    topic = Topic(replaced.client(), "default", "t")
    ok(topic.create({}))
    ok(topic.publish("before"))
    assert topic.read() == ["before"]
    os.kill(replaced.pid, signal.SIGSTOP)
    try:
        stopped_s = clock_gettime(CLOCK_BOOTTIME)
        second = Topic(new_server(place, "tx.enabled=false").client(), "default", "t")
        ok(second.publish("after"))
        until(lambda: clock_gettime(CLOCK_BOOTTIME) > stopped_s + READ_LEASE_MS / 1000, within_s=60)
        with ThreadPoolExecutor() as pool:
            first_read = pool.submit(topic.poll)
            os.kill(replaced.pid, signal.SIGCONT)

            refused(first_read.result(), 503, "storage_unavailable")
    finally:
        os.kill(replaced.pid, signal.SIGCONT)


def test_a_server_on_empty_tables_beside_transaction_files_refuses_messages(
    hbase: LocalHBase, tmp_path: Path
) -> None:
    """The prefix is wrong, or the messages are lost."""
    place, other = deploy(settings_of(hbase.ports)), deploy(settings_of(hbase.ports))

    def start(tables: HBaseSettings, *settings: str) -> ServerProcess:
        return serve(tmp_path, *server_settings(tables), *settings)

    with start(place) as server:
        ok(Topic(server.client(), "default", "t1").create())
    with start(other) as server:
        ready = server.client().get("/health/ready")
    detail = ready.json["checks"]["storage"]["detail"]
    accept = "server.accept_lost_messages=" + detail.rpartition("=")[2]
    with start(other, accept) as server:
        accepted = server.client().get("/health/ready").json["checks"]
    with start(other) as server:
        again = server.client().get("/health/ready").json["checks"]

    assert ready.status == 503
    assert f"HBase ({other.prefix}*) holds no message store" in detail
    assert accepted["storage"]["status"] == "degraded"
    assert {checks["transactions"]["status"] for checks in (accepted, again)} == {"ok"}
    assert again["storage"]["status"] == "ok"
