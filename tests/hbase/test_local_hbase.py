"""The local HBase of the other tests: durability, commands, and addresses."""

import socket
import stat
from pathlib import Path

import happybase
import pytest

from tests.hbase.local_hbase import CommandError, LocalHBase
from tests.hbase.marks import NEEDS_HBASE

pytestmark = NEEDS_HBASE

ROWS = [b"row-%03d" % number for number in range(200)]


def connect(hbase: LocalHBase) -> "happybase.Connection":
    return happybase.Connection("127.0.0.1", hbase.ports.thrift, timeout=60_000)


def test_acknowledged_puts_survive_kill_9(tmp_path: Path) -> None:
    hbase = LocalHBase(tmp_path)
    try:
        connection = connect(hbase)
        connection.create_table("acked", {"d": {}})
        for row in ROWS:
            connection.table("acked").put(row, {b"d:p": b"value"})
        connection.table("acked").put(b"not in the log", {b"d:p": b"value"}, wal=False)

        hbase.kill()
        hbase.restart()

        assert [row for row, _ in connect(hbase).table("acked").scan()] == ROWS
    finally:
        hbase.stop()


def test_commands_flush_compact_split_and_list_cells(hbase: LocalHBase) -> None:
    connection = connect(hbase)
    connection.create_table("commands", {"d": {"max_versions": 1}})
    table = connection.table("commands")
    table.put(b"a", {b"d:p": b"1"}, timestamp=1)
    table.put(b"a", {b"d:p": b"2"}, timestamp=2)
    table.delete(b"b", timestamp=3)

    assert len(hbase.command("raw", "commands")) > 1
    hbase.command("flush", "commands")
    hbase.command("major", "commands")
    assert hbase.command("raw", "commands") == [f"61 {b'p'.hex()}. 2 Put {b'2'.hex()}."]
    hbase.command("split", "commands", b"a\x00".hex())


def test_a_failed_command_raises_with_its_reason(hbase: LocalHBase) -> None:
    with pytest.raises(CommandError, match="TableNotFound"):
        hbase.command("flush", "nowhere")


def test_files_get_their_rights_without_a_program(hbase: LocalHBase) -> None:
    """Hadoop starts chmod for each file, which doubled the work of creating a table."""

    def faults_of_programs() -> int:
        """Page faults of all programs that the JVM has started, and that have ended."""
        status = Path(f"/proc/{hbase.jvm.pid}/stat").read_text("utf-8")
        return int(status.rpartition(")")[2].split()[8])

    before = faults_of_programs()
    connect(hbase).create_table("rights", {"d": {}})

    directory = hbase.home / "hbase" / "data" / "default" / "rights"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert faults_of_programs() == before


def test_it_listens_on_the_loopback_address_only(hbase: LocalHBase) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; it selects the local address
        except OSError:
            pytest.skip("this machine has no other address")
        outer = probe.getsockname()[0]
    for port in hbase.ports:
        with socket.socket() as caller:
            assert caller.connect_ex((outer, port)) != 0
