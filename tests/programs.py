"""The programs that some tests need besides those of the README: where they are on this machine,
and which package of Debian contains each.

`python -m tests.programs` prints the packages that are missing here, for `.ci/run`.
"""

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from glob import glob

import pytest

PACKAGES = {
    "cc": "gcc libc6-dev",  # the library that records a server's disk calls
    "chromium": "chromium",  # the console
    "curl": "curl",  # the shell blocks of the documents
    "git": "git",  # which files are the project's own
    "initdb": "postgresql",  # the user's own database
    "ip": "iproute2",  # the network between the servers of a cluster
    "java": "default-jdk-headless",  # Spark, ZooKeeper, HBase
    "javac": "default-jdk-headless",
    "mvn": "maven",  # HBase
    "nsenter": "util-linux",
    "nft": "nftables",  # faults of the network
    "pgbouncer": "pgbouncer",  # a pooler in front of PostgreSQL
    "prometheus": "prometheus",  # fires the alerts
    "promtool": "prometheus",  # checks the metrics and the alerts
    "systemd-analyze": "systemd",  # checks the units
    "tc": "iproute2",
    "unshare": "util-linux",  # namespaces
}
PACKAGES_OF_LONG_RUNS = {"go": "golang-go", "mariadbd": "mariadb-server"}  # not for .ci/run

# Debian puts programs for administrators and those of PostgreSQL where the search path of a user
# does not lead. They count only where the system's own programs are on that path, so that a run
# with a path of its own sees none of them.
SYSTEM = "/usr/bin"
BESIDE_THE_SYSTEM = ("/usr/sbin", "/usr/lib/postgresql/*/bin")

_INSTALL = re.compile(r"\bapt-get install ([a-z0-9][a-z0-9.+ -]*[a-z0-9+])")


def find(program: str) -> str | None:
    """The path of a program; None if it is not installed."""
    directories = os.environ.get("PATH", "").split(os.pathsep)
    if SYSTEM in directories:
        for pattern in BESIDE_THE_SYSTEM:
            directories += sorted(glob(pattern), reverse=True)
    return shutil.which(program, path=os.pathsep.join(directories))


def why_missing(*programs: str) -> str | None:
    """What this machine lacks and how to get it, in a sentence; None if all programs are here."""
    lacking = [program for program in programs if find(program) is None]
    if not lacking:
        return None
    packages = " ".join(packages_of(lacking))
    return f"needs {' and '.join(lacking)}, which is not installed: apt-get install {packages}"


def packages_of(programs: Iterable[str]) -> Sequence[str]:
    """The packages that contain these programs."""
    known = PACKAGES | PACKAGES_OF_LONG_RUNS
    return sorted({package for program in programs for package in known[program].split()})


def require(*programs: str) -> str:
    """The path of the first of these programs. The test is skipped if one is not installed."""
    if reason := why_missing(*programs):
        pytest.skip(reason)
    found = find(programs[0])
    assert found is not None
    return found


def needs(*programs: str) -> pytest.MarkDecorator:
    """The mark of a test that is skipped where one of these programs is not installed."""
    reason = why_missing(*programs)
    return pytest.mark.skipif(reason is not None, reason=str(reason))


def summary(reasons: Iterable[str]) -> str | None:
    """What was skipped for want of a program, and the command that gets all of it; None if nothing
    was.

    reasons: one for each skipped test
    """
    wanted = [found[1].split() for reason in reasons if (found := _INSTALL.search(reason))]
    if not wanted:
        return None
    packages = " ".join(sorted({package for packages in wanted for package in packages}))
    return (
        f"{len(wanted)} of the skipped tests or groups of tests need a program that is not "
        f"installed here. To run them, too: apt-get install {packages}"
    )


if __name__ == "__main__":
    print(*packages_of(program for program in PACKAGES if find(program) is None))
