"""NATS JetStream: acknowledged publishes to a file stream, synced always and as shipped.

As shipped, an acknowledgement says that the message was handed to the operating system; the disk
is synced every two minutes. Only `sync_interval: always` promises what the others here do.
"""

import os
import shutil
from pathlib import Path

from benchmarks.generator import MissingError, Pace, Rows, rows
from benchmarks.processes import ROOT, answers_at, free_port, running

BUILT = ROOT / "build" / "benchmarks" / "bin" / "nats-server"


def measure_nats(directory: Path, pace: Pace) -> Rows:
    """Raises: MissingError."""
    program = str(BUILT) if os.access(BUILT, os.X_OK) else None
    if program is None:
        found = shutil.which("nats-server", path=f"{os.environ['PATH']}:/usr/sbin")
        known = "; the one of Debian 12 does not know sync_interval: always" if found else ""
        raise MissingError(f"nats-server 2.11 was not built{known}; run make bench-setup")
    for label, line in (("always", "sync_interval: always"), ("shipped", "")):
        port = free_port()
        home = directory / f"nats-{label}"
        home.mkdir()
        conf = home / "nats.conf"
        conf.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{\n  store_dir: "{home}"\n  {line}\n}}\n'
        )
        command = [program, "-c", str(conf)]
        with running(command, directory / f"nats-{label}.log", ready=answers_at(port)) as server:
            counts = (1, 8, 64, 128) if label == "always" else (64,)
            runs = {
                f"{label} c{count}": pace.run("jetstream", "-topic", f"s{count}", connections=count)
                for count in counts
            }
            yield from rows("nats", runs, server)
