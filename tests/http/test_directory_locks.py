"""A directory has one server at a time, and a refused start changes no file (protocol §8)."""

import os
import re
import shutil
import socket
from pathlib import Path

import pytest

from tests.http.calls import begin, created
from tests.http.client import ok
from tests.http.conftest import Launch, NewServer, one_sentence
from tests.http.process import ServerProcess


def assert_refused(second: ServerProcess, owner: ServerProcess, *, naming: str) -> None:
    """It ends, and its sentence names a directory and the process that has it."""
    assert second.wait_exit() == 1
    said = one_sentence(second)
    assert naming in said
    assert re.search(rf"\b{owner.pid}\b", said)


def test_a_second_server_on_the_same_directory_names_it_and_the_owner(
    new_server: NewServer, launch: Launch
) -> None:
    first = new_server()

    second = launch("--data", str(first.data), "--port", "0")

    assert_refused(second, first, naming=str(first.data))
    ok(first.client().get("/health/live"))


@pytest.mark.parametrize("with_data_first", [False, True])
def test_servers_that_share_nothing_but_their_snapshots_do_not_run_together(
    launch: Launch, tmp_path: Path, *, with_data_first: bool
) -> None:
    """Without `--data` a server has `data/` and `snapshots/` here, and one with `--data .` the same
    `snapshots/`: they wrote one log, and the commits of the one were gone with the other."""
    home = tmp_path / "home"
    home.mkdir()
    ways = (), ("--data", str(home))
    first = launch(*ways[with_data_first], "--port", "0", home=home).wait_ready()

    second = launch(*ways[not with_data_first], "--port", "0", home=home)

    assert_refused(second, first, naming="snapshots")


def test_a_message_store_behind_a_link_is_refused_with_its_owner(
    new_server: NewServer, launch: Launch, tmp_path: Path
) -> None:
    first = new_server()
    other = tmp_path / "other"
    other.mkdir()
    (other / "messages").symlink_to(first.data / "messages")

    second = launch("--data", str(other), "--port", "0")

    assert_refused(second, first, naming="messages")


def test_a_file_in_the_place_of_the_messages_is_told(launch: Launch, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "messages").write_text("no directory", "utf-8")
    server = launch("--data", str(data), "--port", "0").wait_ready()

    ready = server.client().get("/health/ready")

    assert ready.status == 503
    assert "messages: File exists" in ready.json["checks"]["storage"]["detail"]


def test_a_start_that_finds_its_port_taken_leaves_the_stores_untouched(
    new_server: NewServer, launch: Launch
) -> None:
    """A server that opens stores in HBase takes them over: after a failed start, the server that
    had them refused every write."""
    stopped = new_server()
    client = stopped.client()
    topic = created(client, "default", "t")
    ok(topic.publish("a"))
    ok(begin(client).commit(changes=["k"]))
    stopped.end()
    before = _content(stopped.data)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        refused = launch("--data", str(stopped.data), "--port", str(port))

        assert refused.wait_exit() == 1
    assert f"port {port} on 127.0.0.1 is in use" in one_sentence(refused)
    assert _content(stopped.data) == before


def _content(data: Path) -> dict[str, bytes]:
    """Every file of the stores, less the locks."""
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and path.name != "tuff.lock"
    }


# Root may write to any directory, whatever its mode says; without this right it may not.
AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()


def test_a_directory_of_another_user_is_named_with_both_users(new_server: NewServer) -> None:
    """The usual state after a restore by root: it said to give another directory."""
    stopped = new_server()
    stopped.end()
    is_root = os.geteuid() == 0
    data = stopped.data if is_root else Path("/usr")  # that of root
    owner = 65_534 if is_root else 0
    if is_root:
        shutil.rmtree(data)
        data.mkdir()
        os.chown(data, owner, -1)

    with ServerProcess(stopped.home, "--data", str(data), "--port", "0", under=AS_ANYBODY) as it:
        assert it.wait_exit() == 1
        said = one_sentence(it)

    assert f"it belongs to the user {owner}, and the server runs as {os.geteuid()}" in said
    assert f"`chown -R {os.geteuid()}:{os.getegid()}`" in said


def test_a_start_that_could_not_write_transaction_files_leaves_the_messages_untouched(
    new_server: NewServer,
) -> None:
    """It went on without transactions; with messages in HBase it took these from a whole server."""
    stopped = new_server()
    stopped.end()
    snapshots = stopped.data / "snapshots"
    before = _content(stopped.data)
    snapshots.chmod(0o555)
    try:
        flags = ("--data", str(stopped.data), "--port", "0")
        with ServerProcess(stopped.home, *flags, under=AS_ANYBODY) as refused:
            assert refused.wait_exit() == 1
            said = one_sentence(refused)
    finally:
        snapshots.chmod(0o755)

    assert f"{snapshots} can't hold data: Permission denied; let its owner write" in said
    assert _content(stopped.data) == before
