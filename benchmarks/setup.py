"""`make bench-setup`: install the peers, once. The measurements then need no network."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.generator import SOURCES as LOAD
from benchmarks.generator import build
from benchmarks.peers import jvm, nats

NATS = "github.com/nats-io/nats-server/v2@v2.11.9"
PACKAGES = {"redis-server": "redis-server", "pgbench": "postgresql-15"}


def _debian() -> None:
    """Install missing packages, as root; otherwise the error names them."""
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise OSError(f"install the Debian packages {' '.join(missing)} as root")
    _run(["apt-get", "update", "-qq"])
    _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing])


def _nats() -> None:
    nats.BUILT.parent.mkdir(parents=True, exist_ok=True)
    _run(["go", "install", NATS], GOBIN=str(nats.BUILT.parent))


def _spark() -> None:
    """Spark's Kafka connector, compiled against the installed Spark."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise OSError("PySpark is not installed: make .venv/.installed-dev")
    _jvm("spark", also=f":{Path(found.origin).parent / 'jars'}/*")()


def _jvm(peer: str, also: str = "") -> Callable[[], None]:
    def install() -> None:
        sources, built = jvm.SOURCES / peer, jvm.BUILT / peer
        (built / "classes").mkdir(parents=True, exist_ok=True)
        jars = built / "classpath"
        maven = ["mvn", "-q", "-B", "-f", str(sources / "pom.xml")]
        _run([*maven, "dependency:build-classpath", f"-Dmdep.outputFile={jars}"])
        compiler = ["javac", "-nowarn", "-Xlint:none", "-proc:none", "-d", str(built / "classes")]
        programs = [str(path) for path in sources.rglob("*.java")]
        _run([*compiler, "-cp", jars.read_text().strip() + also, *programs])
        for logging in [*sources.glob("logback.xml"), *sources.glob("log4j2.xml")]:
            shutil.copy(logging, built / "classes")

    return install


def _load() -> None:
    _run(["go", "test", "./..."], cwd=str(LOAD))
    build()


def _run(command: Sequence[str], *, cwd: str | None = None, **environment: str) -> None:
    subprocess.run(command, check=True, cwd=cwd, env={**os.environ, **environment})


STEPS: dict[str, Callable[[], None]] = {
    "load generator": _load,
    "Debian packages": _debian,
    "NATS": _nats,
    **{peer: _jvm(peer) for peer in ("cdap", "tephra", "kafka")},
    "Spark's Kafka connector": _spark,
}


def main() -> int:
    """Do every step. A step that fails leaves its peer out; only the generator is required."""
    failed = []
    for name, step in STEPS.items():
        print(f"bench-setup: {name}", flush=True)
        try:
            step()
        except (OSError, subprocess.CalledProcessError) as error:
            failed.append(name)
            print(f"bench-setup: {name} is not available: {error}", file=sys.stderr)
    return 1 if "load generator" in failed else 0


if __name__ == "__main__":
    sys.exit(main())
