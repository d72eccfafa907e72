"""Starts a real server in a process of its own; stops it, or kills it by its process id."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.http.client import Client, until
from tests.http.forking import REPOSITORY, ForkedProcess, ForkServer, fork_server
from tests.secret_values import require_no_secret

SERVER = REPOSITORY / "server.py"
HBASE = "TUFF_TEST_HBASE"  # where it is set, the servers of all tests keep their messages there
START_WITHIN_S = 60.0
# Seconds. Protocol §8 promises ten, on a machine that has time for the server; a stop that waits
# for what it must not wait for takes longer than this.
STOP_WITHIN_S = 30.0

# Before a command: Linux kills the process when the thread that started it ends, however that ends,
# so that a program that is killed leaves no server behind. Elsewhere it is left out.
ENDS_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()

_READY = re.compile(r"tuff ready on (https?)://(\S+):(\d+)\n")


class ServerProcess:
    """`python server.py` with its data under `home`; what it says is kept in files there.

    `environment` None: that of the tests; `under`: a command that runs the server as its own last
    step, by `exec`; `program`: another one in its place, which becomes the server; `forks`: makes
    the process instead, and can't be combined with the others.
    """

    def __init__(
        self,
        home: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
        program: Path = SERVER,
        forks: ForkServer | None = None,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.data = home / "data"
        number = len(list(home.glob("stdout-*.txt")))
        self._stdout, self._stderr = home / f"stdout-{number}.txt", home / f"stderr-{number}.txt"
        self.process: subprocess.Popen[bytes] | ForkedProcess
        command = [*ENDS_WITH_PARENT, *under, sys.executable, str(program), *arguments]
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            if forks is not None:
                self.process = forks.fork(list(arguments), home, out=out, errors=err)
            else:
                self.process = subprocess.Popen(
                    command, cwd=home, env=environment, stdout=out, stderr=err,
                    start_new_session=True,
                )  # fmt: skip
        self.scheme, self.host, self.port = "http", "127.0.0.1", 0
        self._clients: list[Client] = []
        # Where a test makes the disk fail, the log may hold the trace of it, quoted on one line.
        self.may_log_traces = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def wait_ready(self) -> "ServerProcess":
        until(self._spoke, within_s=START_WITHIN_S, what="the server to be ready or to exit")
        ready = _READY.search(self.stdout())
        if ready is None:
            self.process.wait(STOP_WITHIN_S)
            raise AssertionError(f"exit {self.process.returncode}: {self.stdout()}{self.stderr()}")
        self.scheme, self.host, self.port = ready[1], ready[2], int(ready[3])
        return self

    def _spoke(self) -> bool:
        return self.process.poll() is not None or _READY.search(self.stdout()) is not None

    def client(self, *, token: str | None = None) -> Client:
        """A connection that is closed with the server, if not before."""
        made = Client(self.port, token=token)
        self._clients.append(made)
        return made

    def terminate(self, *, within_s: float = STOP_WITHIN_S) -> int:
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(within_s)

    def kill(self) -> None:
        """SIGKILL to its process group: nothing is flushed or closed in order. What it said has
        no secret."""
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(STOP_WITHIN_S)
        for one in self._clients:
            one.close()
        require_no_secret(self.stdout() + self.stderr(), source=f"the server in {self.home}")

    def wait_exit(self) -> int:
        return self.process.wait(START_WITHIN_S)

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop it whatever its state, and see that it never showed a stack trace."""
        try:
            self.terminate()
        finally:
            self.kill()
        said = self.stderr()
        bare = any(line.startswith("Traceback") for line in said.splitlines())
        assert not (bare if self.may_log_traces else "Traceback" in said), said


def serve(
    home: Path,
    *settings: str,
    environment: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
    program: Path = SERVER,
    port: int = 0,
) -> ServerProcess:
    """A server with its data in `home/data` and these `section.key=value`; on a free port, unless
    one is given."""
    if HBASE in os.environ:
        from tests.hbase.serving import settings_for

        settings = (*settings_for(os.environ[HBASE], home), *settings)
    flags = [word for setting in settings for word in ("--set", setting)]
    arguments = ["--data", str(home / "data"), "--port", str(port), *flags]
    is_special = environment is not None or under or program != SERVER
    server = ServerProcess(
        home,
        *arguments,
        environment=environment,
        under=under,
        program=program,
        forks=None if is_special else fork_server(),
    )
    try:
        return server.wait_ready()
    except BaseException:
        server.kill()
        raise
