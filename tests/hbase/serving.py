"""Run tests of other folders with servers whose messages are in a real HBase.

    python -m tests.hbase.serving tests/http -q

starts HBase and then pytest with these arguments. Each server has its own tables, named after its
data directory, so a server that is started there again finds them.
"""

import os
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from tests.hbase.local_hbase import LocalHBase, why_missing
from tests.http.process import HBASE, REPOSITORY

# These corrupt LevelDB's files, or need the directory of the messages.
LEVELDB_ONLY = (
    "tests/http/test_damaged_records.py",
    "tests/http/test_lost_message_store.py",
    "tests/http/test_transaction_files.py",
    "tests/http/test_process.py::test_the_memory_store_does_not_start_beside_messages",
    "tests/http/test_directory_locks.py::test_a_message_store_behind_a_link_is_refused_with_its_owner",
)
TIMEOUT_S = 60.0  # of a call; several tests and HBase run at once
SALTS = 2


def settings_for(gateways: str, home: Path) -> list[str]:
    """The settings of a server with this data directory. Missing tables are created."""
    from messaging.engines.hbase.connections_and_writes import gateways_of
    from messaging.engines.hbase.settings import HBaseSettings
    from messaging.engines.hbase.table_admin import TableAdmin, plans, write_layout
    from tests.hbase.deployments import server_settings

    thrift, thrift2 = gateways.split(",")
    prefix = f"t{sha256(str(home.resolve()).encode()).hexdigest()[:12]}_"
    place = HBaseSettings(
        gateways=(f"127.0.0.1:{thrift}",),
        admin_gateway=f"127.0.0.1:{thrift2}",
        prefix=prefix,
        salts=SALTS,
    )
    admin = TableAdmin(place.admin_address())
    missing = [plan for plan in plans(place) if not admin.state(plan).exists]
    for plan in missing:
        admin.create(plan)
    admin.close()
    if missing:
        reached = gateways_of(place, elapsed_s=time.monotonic)
        write_layout(reached, place)
        reached.close()
    return [*server_settings(place), f"hbase.timeout={TIMEOUT_S}"]


def main(arguments: list[str]) -> int:
    """The program; returns pytest's exit code."""
    if reason := why_missing():
        sys.stderr.write(f"{reason}\n")
        return 2
    with tempfile.TemporaryDirectory() as home:
        hbase = LocalHBase(Path(home))
        try:
            place = f"{hbase.ports.thrift},{hbase.ports.thrift2}"
            left_out = [
                word
                for name in LEVELDB_ONLY
                for word in ("--deselect" if "::" in name else "--ignore", name)
            ]
            command = [sys.executable, "-m", "pytest", *arguments, *left_out]
            environment = {**os.environ, HBASE: place}
            return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode
        finally:
            hbase.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
