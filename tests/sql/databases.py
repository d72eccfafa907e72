"""Starts PostgreSQL, a pooler and MariaDB of this machine, each with its data in a temporary
directory."""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from tempfile import mkdtemp

from tests.http.client import until
from tests.http.process import ENDS_WITH_PARENT
from tests.programs import find

START_WITHIN_S = 60.0
STOP_WITHIN_S = 30.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def as_owner(user: str) -> list[str]:
    """Before a command: it runs as that user, since none of the databases starts as root, and is
    killed when this process ends."""
    if os.geteuid() != 0:
        return list(ENDS_WITH_PARENT)
    return ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--pdeathsig", "KILL"]


class Postgresql:
    """One cluster, reached at `port` by TCP and in `home` by a socket. `settings`: `name=value`."""

    user = "postgres"

    def __init__(self, home: Path, *settings: str) -> None:
        self._home = home
        self._owner = as_owner("postgres")
        self._settings = [
            "fsync=on", "shared_buffers=16MB", "max_connections=60", "listen_addresses=127.0.0.1",
            f"unix_socket_directories={home}", *settings,
        ]  # fmt: skip
        home.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(home, "postgres", "postgres")
            # Only root may enter a new temporary directory, and PostgreSQL runs as another user.
            home.parent.chmod(home.parent.stat().st_mode | 0o011)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(home / "data"), "-A", "trust", "-U", "postgres", "--no-sync")

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The process that has started all others of the cluster."""
        assert self._process is not None, "it was started"
        return self._process.pid

    def start(self) -> "Postgresql":
        """Start it, also after a kill: it waits for the processes that still end."""
        until(self._starts, within_s=START_WITHIN_S, what="PostgreSQL to be ready")
        return self

    def _starts(self) -> bool:
        options = [word for setting in self._settings for word in ("-c", setting)]
        command = [
            *self._owner, _found("postgres"), "-D", str(self._home / "data"),
            "-p", str(self.port), *options,
        ]  # fmt: skip
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._home, start_new_session=True
            )
        until(self._answers, within_s=START_WITHIN_S, what="PostgreSQL to answer or to exit")
        return self._process.poll() is None

    def _answers(self) -> bool:
        assert self._process is not None, "it was started"
        if self._process.poll() is not None:
            return True
        command = [_found("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def kill(self) -> None:
        """SIGKILL to the process that started the others, which then end by themselves."""
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait(STOP_WITHIN_S)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._run("pg_ctl", "-D", str(self._home / "data"), "-m", "immediate", "stop")
            self._process.wait(STOP_WITHIN_S)

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._owner, _found(name), *arguments], capture_output=True, check=False, text=True,
            cwd=self._home,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def __enter__(self) -> "Postgresql":
        return self.start()

    def __exit__(self, *_raised: object) -> None:
        self.stop()


def _found(name: str) -> str:
    program = find(name)
    assert program is not None, f"there is no {name} here"
    return program


class Pgbouncer:
    """A pooler before the databases of a PostgreSQL at `server_port`, in one of its three modes."""

    def __init__(self, server_port: int, mode: str) -> None:
        self._home = Path(mkdtemp(prefix="tuff-pgbouncer-"))
        self.port = free_port()
        owner = as_owner("postgres")
        (self._home / "users").write_text('"postgres" ""\n')
        (self._home / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server_port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self._home}/users\npool_mode = {mode}\n"
        )
        if os.geteuid() == 0:
            self._home.chmod(0o755)
        command = [*owner, _found("pgbouncer"), f"{self._home}/pgbouncer.ini"]
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._home)
        until(self._accepts, within_s=START_WITHIN_S, what="the pooler to be ready")

    def _accepts(self) -> bool:
        assert self._process.poll() is None, (self._home / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __enter__(self) -> "Pgbouncer":
        return self

    def __exit__(self, *_raised: object) -> None:
        self._process.terminate()
        self._process.wait(STOP_WITHIN_S)
        shutil.rmtree(self._home, ignore_errors=True)


class Mariadb:
    """One MariaDB, reached at `url` by SQLAlchemy with PyMySQL."""

    def __init__(self) -> None:
        self._home = Path(mkdtemp(prefix="tuff-mariadb-"))
        self.port = free_port()
        data = self._home / "data"
        options = ["--no-defaults", f"--datadir={data}"]
        if os.geteuid() == 0:
            shutil.chown(self._home, "mysql", "mysql")
        # Whoever connects by TCP is root without a password, in this directory only.
        subprocess.run(
            [*as_owner("mysql"), _found("mariadb-install-db"), *options, "--skip-test-db",
             "--auth-root-authentication-method=normal"],
            check=True, capture_output=True, cwd=self._home,
        )  # fmt: skip
        command = [
            *as_owner("mysql"), _found("mariadbd"), *options,
            f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={self._home}/socket",
            "--innodb-buffer-pool-size=16M",
        ]  # fmt: skip
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._home)
        until(self._accepts, within_s=START_WITHIN_S, what="MariaDB to be ready")

    @property
    def url(self) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/shop"

    def _accepts(self) -> bool:
        assert self._process.poll() is None, (self._home / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __enter__(self) -> "Mariadb":
        return self

    def __exit__(self, *_raised: object) -> None:
        self._process.terminate()
        self._process.wait(STOP_WITHIN_S)
        shutil.rmtree(self._home, ignore_errors=True)
