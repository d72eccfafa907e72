"""PostgreSQL as Debian ships it: an insert, and a state row and an outbox row in a transaction."""

import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.generator import LoadError, MissingError, Pace, Report, Rows
from benchmarks.processes import Running, free_port, running

VERSIONS = Path("/usr/lib/postgresql")
USER = "postgres"  # Debian's package creates it; the server refuses to run as root
PAYLOAD = "p" * 256
MANY = 64  # connections; opening these takes about a second
KEYS = 1_000_000  # rows of state; each transaction changes a random one

INSERT = f"INSERT INTO outbox (payload) VALUES ('{PAYLOAD}');\n"
UPSERT = (
    f"INSERT INTO state (id, value) VALUES (:key, '{PAYLOAD}') "
    "ON CONFLICT (id) DO UPDATE SET value = excluded.value"
)
SCRIPTS = {
    "insert": INSERT,
    "outbox": f"\\set key random(1, {KEYS})\nBEGIN;\n{UPSERT};\n{INSERT}COMMIT;\n",
    # The same in one statement, and so in one round trip. Few programs can do this.
    "outbox-one-statement": (f"\\set key random(1, {KEYS})\nWITH changed AS ({UPSERT}) {INSERT}"),
}
TABLES = (
    "CREATE TABLE outbox (id bigserial PRIMARY KEY, payload bytea NOT NULL);"
    "CREATE TABLE state (id bigint PRIMARY KEY, value bytea NOT NULL);"
)


def measure_postgres(directory: Path, pace: Pace) -> Rows:
    """Raises: MissingError."""
    found = sorted(VERSIONS.glob("*/bin/postgres"))
    if not found:
        raise MissingError(f"there is no PostgreSQL below {VERSIONS}; Debian's is postgresql")
    programs, home, port = found[-1].parent, directory / "postgres", free_port()
    home.mkdir()
    as_user = _become(home)
    _run([*as_user, str(programs / "initdb"), "-D", str(home / "data"), "--auth=trust", "-U", USER])
    command = [
        *as_user, str(programs / "postgres"), "-D", str(home / "data"), "-p", str(port),
        *("-h", "127.0.0.1", "-k", "", "-c", "max_connections=200"),
    ]  # fmt: skip
    log = directory / "postgres.log"
    accepting = "database system is ready to accept connections"
    with running(
        command,
        log,
        ready=lambda said: f"127.0.0.1:{port}" if accepting in said else None,
        stop=signal.SIGINT,
    ) as server:
        _run([str(programs / "psql"), *_where(port), "-q", "-c", TABLES])
        for script, counts in (
            ("insert", (1, 8, 64, 128)),
            ("outbox", (1, 8, 64, 128)),
            ("outbox-one-statement", (64,)),
        ):
            _pgbench(home, programs, server, script=script, clients=2, pace=Pace(seconds=1))
            for count in counts:
                report = _pgbench(home, programs, server, script=script, clients=count, pace=pace)
                yield f"postgres {script} c{count}", report


def _become(home: Path) -> list[str]:
    """The command prefix that runs a command as a user that the server accepts."""
    if os.geteuid() != 0:
        return []
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        raise MissingError(f"there is no user {USER}, and the server refuses root") from None
    os.chown(home, user.pw_uid, user.pw_gid)
    runuser = shutil.which("runuser")
    if runuser is None:
        raise MissingError("there is no runuser to leave root with")
    return [runuser, "-u", USER, "--"]


def _where(port: int) -> list[str]:
    return ["-h", "127.0.0.1", "-p", str(port), "-U", USER, "-d", "postgres"]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def _pgbench(
    home: Path, programs: Path, server: Running, *, script: str, clients: int, pace: Pace
) -> Report:
    """A closed loop; the latency of each transaction comes from pgbench's own log."""
    file = home / f"{script}.sql"
    file.write_text(SCRIPTS[script])
    logs = home / f"latencies-{script}-{clients}"
    port = int(server.addr.rpartition(":")[2])
    pgbench = [str(programs / "pgbench"), *_where(port), "-n", "-M", "prepared", "-j", "1"]
    # Its time includes connecting, its rate does not: as many processes take a while to be made.
    seconds = round(pace.seconds + 0.5) + (1 if clients >= MANY else 0)
    load = ["-c", str(clients), "-T", str(seconds), "-f", str(file)]
    said = _run([*pgbench, *load, "-l", "--log-prefix", str(logs)])
    rate = re.search(r"tps = ([0-9.]+)", said)
    # client, number, microseconds, script, seconds and microseconds of its end
    latencies = sorted(
        int(line.split()[2])
        for log in home.glob(f"{logs.name}.*")
        for line in log.read_text().splitlines()
    )
    if rate is None or not latencies:
        raise LoadError(f"pgbench measured no transaction: {said}")
    count, per_s = len(latencies), float(rate[1])
    return {
        "calls": count,
        "per_s": per_s,
        "messages_per_s": per_s,
        "p50_us": latencies[count // 2],
        "p99_us": latencies[count * 99 // 100],
        "errors": 0,  # pgbench fails as a whole
    }
