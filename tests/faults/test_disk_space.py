"""A disk that fills up: nothing acknowledged is lost, reads continue, readiness says why, and the
server recovers by itself when there is room again.

The disk is a small file system in memory in a mount namespace of the server, which disappears with
the server. Without the right to mount, the tests are skipped, and tests/faults/test_full_disk.py
uses a limit on file sizes instead.
"""

import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from process.disk_space import SPARE_FILE
from tests.faults.workload_disk import NAMESPACE, Writer, readiness_of, topics_of
from tests.http.calls import Topic
from tests.http.client import ok, until
from tests.http.process import ServerProcess, serve
from tests.programs import find

SIZE_MIB = 96
LEFT_MIB = 32  # when somebody else has taken the rest: less than the server keeps for itself
COME_BACK_WITHIN_S = 30.0

MOUNT = f'mount -t tmpfs -o size={SIZE_MIB}m tmpfs "$0" && exec "$@"'
MOUNT_FULL = MOUNT.replace("exec", '{ cat /dev/zero > "$0/somebody-elses" 2>&-; exec', 1) + "; }"


def may_mount(directory: Path) -> bool:
    if find("unshare") is None:
        return False
    command = ["unshare", "--mount", "sh", "-c", MOUNT, str(directory), "true"]
    return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0


Serve = Callable[..., ServerProcess]


@pytest.fixture
def on_small_disk(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers for which this directory is on a small disk of its own."""
    started: list[ServerProcess] = []

    def start(directory: str, mount: str = MOUNT, *settings: str) -> ServerProcess:
        mounted = tmp_path / "home" / directory
        mounted.mkdir(parents=True)
        if not may_mount(mounted):
            pytest.skip("needs the right to mount a file system; see test_full_disk.py instead")
        under = ["unshare", "--mount", "sh", "-c", mount, str(mounted)]
        server = serve(tmp_path / "home", *settings, under=under)
        server.may_log_traces = True  # of the error of the disk
        started.append(server)
        return server

    yield start
    for server in started:
        server.end()


@pytest.fixture
def running(on_small_disk: Serve) -> ServerProcess:
    server = on_small_disk("data")
    until((messages_of(server) / SPARE_FILE).exists, what="the spare file")
    return server


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The data directory of servers in this home, on a small disk that outlives them."""
    mounted = tmp_path / "home" / "data"
    mounted.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(mounted)]
    if subprocess.run(mount, capture_output=True, timeout=10, check=False).returncode != 0:
        pytest.skip("needs the right to mount a file system; see test_full_disk.py instead")
    yield mounted
    subprocess.run(["umount", str(mounted)], timeout=10, check=True)


def messages_of(server: ServerProcess) -> Path:
    """The directory of messages of a server in a mount namespace."""
    return Path(f"/proc/{server.pid}/root{server.data}") / "messages"


def fill(server: ServerProcess, *, left_mib: int, below: str = ".") -> Path:
    """Fill the disk of the server, except for so much."""
    directory = Path(f"/proc/{server.pid}/root{server.data}") / below
    path = directory / "somebody-elses"
    with path.open("wb", buffering=0) as file:
        file.write(bytes(shutil.disk_usage(directory).free - (left_mib << 20)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("left_mib", [0, LEFT_MIB])
def test_a_full_disk_refuses_messages_until_it_has_room_and_readiness_says_so(
    running: ServerProcess, left_mib: int
) -> None:
    client = running.client()
    writer = Writer(client).make_topics()
    for _ in range(10):
        assert writer.publish()
        assert writer.commit()
    everything = [topic.read() for topic in topics_of(client)]

    taken = fill(running, left_mib=left_mib)
    until(lambda: not writer.publish(), what="a publish to be refused")
    until(lambda: not writer.commit(), what="a commit to be refused")

    if left_mib:
        found = [topic.read() for topic in topics_of(client)]
        assert [one[: len(before)] for one, before in zip(found, everything, strict=True)] == (
            everything
        )
        assert readiness_of(client, "storage")["status"] == "ok"
    assert "MiB are free" in readiness_of(client, "disk")["detail"]
    assert client.get("/health/ready").status == 503
    ok(client.get("/health/live"))
    taken.unlink()
    until(writer.publish, within_s=COME_BACK_WITHIN_S, what="the store to take messages again")
    until(writer.commit, within_s=COME_BACK_WITHIN_S, what="transactions to come back")
    until(lambda: readiness_of(client, "storage")["status"] == "ok")
    writer.account(client)
    assert re.search(r"check=disk was=\w+ status=down", running.stderr())
    until(lambda: "check=disk was=down status=" in running.stderr(), what="the end to be logged")


@pytest.mark.slow
def test_a_full_disk_of_messages_is_down_even_if_transactions_are_on_another_one(
    on_small_disk: Serve,
) -> None:
    """Readiness once looked at the disk of transactions only, and said `ok` while every publish was
    refused."""
    server = on_small_disk("data/messages")
    client = server.client()
    writer = Writer(client).make_topics()

    fill(server, left_mib=LEFT_MIB, below="messages")

    until(lambda: not writer.publish(), what="a publish to be refused")
    ready = client.get("/health/ready")
    assert (ready.status, ready.json["checks"]["disk"]["status"]) == (503, "down")
    assert "messages; no messages are taken" in ready.json["checks"]["disk"]["detail"]


@pytest.mark.slow
def test_a_disk_of_transactions_that_is_full_only_degrades(on_small_disk: Serve) -> None:
    server = on_small_disk("data/snapshots")
    client = server.client()
    writer = Writer(client).make_topics()

    fill(server, left_mib=0, below="snapshots")

    until(lambda: not writer.commit(), what="a commit to be refused")
    assert writer.publish()
    ready = client.get("/health/ready")
    assert (ready.status, ready.json["status"]) == (200, "degraded")
    assert "snapshots; transactions may stop" in ready.json["checks"]["disk"]["detail"]
    assert "No space left on device" in ready.json["checks"]["transactions"]["detail"]


@pytest.mark.slow
def test_a_topic_can_be_deleted_on_a_disk_without_a_free_byte(running: ServerProcess) -> None:
    """Each step of the runbook was refused with the sentence of a publish."""
    client = running.client()
    full, other = Topic(client, NAMESPACE, "full"), Topic(client, NAMESPACE, "other")
    for topic in (full, other):
        ok(topic.create())
        ok(topic.publish("kept"))
    spare = messages_of(running) / SPARE_FILE

    fill(running, left_mib=0)
    until(lambda: "only 0 MiB" in readiness_of(client, "disk")["detail"])
    assert other.publish("x").status == 503
    assert spare.exists()
    ok(full.delete())

    assert not spare.exists()
    assert "code=spare_space_released" in running.stderr()
    assert other.read() == ["kept"]
    assert other.publish("x").status == 503


@pytest.mark.slow
def test_a_store_can_be_opened_and_read_on_a_disk_without_a_free_byte(
    small_disk: Path,
) -> None:
    """LevelDB writes its log as tables when it is opened, and a full disk took reads away."""
    home = small_disk.parent
    first = serve(home)
    topic = Topic(first.client(), NAMESPACE, "kept")
    ok(topic.create())
    payloads = [str(number) * 1_000 for number in range(4)]
    for payload in payloads:
        for _ in range(20):
            ok(topic.publish(*[payload] * 100))
    until((first.data / "messages" / SPARE_FILE).exists)
    first.kill()
    (small_disk / "somebody-elses").write_bytes(b"")
    with (small_disk / "somebody-elses").open("wb", buffering=0) as file:
        while left := shutil.disk_usage(small_disk).free:
            file.write(bytes(min(left, 1 << 20)))

    second = serve(home)
    try:
        second.may_log_traces = True
        again = Topic(second.client(), NAMESPACE, "kept")
        until(lambda: again.show().status == 200, what="the store to be open")

        assert len(again.read()) == 8_000
        assert again.publish("x").status == 503
        ok(again.delete())
    finally:
        second.end()


@pytest.mark.slow
def test_a_disk_that_messages_filled_has_space_again_once_their_topic_is_deleted(
    on_small_disk: Serve,
) -> None:
    """Deleted topics kept the disk full for minutes, until a restart."""
    server = on_small_disk("data", MOUNT, "messaging.cleanup_interval=1")
    client = server.client()
    full, other = Topic(client, NAMESPACE, "full"), Topic(client, NAMESPACE, "other")
    ok(full.create())
    ok(other.create())
    ok(other.publish("kept"))
    until(lambda: full.publish(*[secrets.token_hex(5_000)] * 50).status == 503, within_s=60)

    ok(full.delete())

    until(lambda: other.publish("x").status == 200, within_s=60, what="space for messages again")
    # The space is there before the compactions that freed it have ended, and the log says so then.
    until(lambda: "code=space_freed" in server.stderr(), what="the end of the compactions")
    assert other.read()[0] == "kept"
    assert readiness_of(client, "storage")["status"] == "ok"


@pytest.mark.slow
def test_a_small_disk_is_ok_as_long_as_most_of_it_is_free(running: ServerProcess) -> None:
    """Once every file system below 256 MiB was degraded, and one below 64 MiB down."""
    client = running.client()
    writer = Writer(client).make_topics()

    assert writer.publish()
    assert writer.commit()

    assert readiness_of(client, "disk")["status"] == "ok"
    fill(running, left_mib=56)
    until(lambda: readiness_of(client, "disk")["status"] == "degraded")
    assert writer.publish()


@pytest.mark.slow
def test_a_start_on_a_full_disk_says_why_transactions_are_down(on_small_disk: Serve) -> None:
    client = on_small_disk("data/messages", MOUNT_FULL).client()

    ready = client.get("/health/ready")
    refused = client.post("/v1/transactions")

    assert (ready.status, refused.status) == (503, 503)
    for detail in (
        readiness_of(client, "storage")["detail"],
        readiness_of(client, "transactions")["detail"],
        refused.json["detail"],
    ):
        assert "No space left on device" in detail, detail
    assert "MiB are free" in readiness_of(client, "disk")["detail"]
