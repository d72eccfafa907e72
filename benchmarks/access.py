"""What access control and TLS cost: single publishes without either, with a token, and with a token
over TLS.

    python -m benchmarks.access [--rounds N] [--seconds S]

Three servers with their messages in memory, so that no disk is measured, get the same publishes in
turns, over 64 connections. Prints the server's processor time per call, which other load on the
machine changes least, the rate, and the ratio of the processor times (without either / this one).
Exits 1 when the ratio with a token is under its target.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import trustme

from access.principals import hash_of
from benchmarks.generator import Report, Run, measure, number
from benchmarks.processes import Running, tuff

TOKEN = "benchmark"
RATIO_MIN = 0.95  # of the processor times per call, without and with a token
FREE, GUARDED, GUARDED_WITH_TLS = "no access control", "token", "token and TLS"
_FILE = f"""
[principals.benchmark]
tokens = ["sha256:{hash_of(TOKEN)}"]
[[principals.benchmark.rights]]
allow = ["create", "publish", "transact"]
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """A server, and the flags with which the generator calls it."""

    name: str
    server: Running
    flags: tuple[str, ...] = ()

    def publish(self, seconds: float) -> Report:
        return measure(Run(scenario="publish", seconds=seconds, flags=self.flags), self.server)


def subjects(home: Path, ends: ExitStack) -> Iterator[Subject]:
    """The servers, which end with `ends`."""
    memory = "messaging.store=memory"
    access, authority = home / "access.toml", home / "ca.pem"
    access.write_text(_FILE)
    certificate, key = home / "server.pem", home / "server.key"
    made = trustme.CA()
    made.cert_pem.write_to_path(authority)
    issued = made.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    guarded = [memory, f"server.access_file={access}"]
    tls = [f"server.tls_certificate_file={certificate}", f"server.tls_key_file={key}"]
    for name, settings, flags in (
        (FREE, [memory], ()),
        (GUARDED, guarded, ("-token", TOKEN)),
        (GUARDED_WITH_TLS, [*guarded, *tls], ("-token", TOKEN, "-ca", str(authority))),
    ):
        server = ends.enter_context(tuff(home / name.replace(" ", "-"), settings=settings))
        yield Subject(name, server, flags)


def main(arguments: list[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each run")
    options = parser.parse_args(arguments)
    reports: dict[str, list[Report]] = {}
    with tempfile.TemporaryDirectory(prefix="tuff-access-") as home, ExitStack() as ends:
        compared = list(subjects(Path(home), ends))
        for _ in range(options.rounds):
            for each in compared:
                reports.setdefault(each.name, []).append(each.publish(options.seconds))
            compared.reverse()  # so that none always comes first
    for name, found in reports.items():
        sys.stdout.write(
            f"{name}: {_median(found, 'server_cpu_us_per_call'):.1f} µs of the server per call, "
            f"{_median(found, 'per_s'):.0f} calls/s, ratio {_ratio(reports[FREE], found):.3f}\n"
        )
    ratio = _ratio(reports[FREE], reports[GUARDED])
    sys.stdout.write(f"ratio with a token: {ratio:.3f} (at least {RATIO_MIN})\n")
    return 0 if ratio >= RATIO_MIN else 1


def _ratio(free: list[Report], other: list[Report]) -> float:
    """Of the processor times, round by round, since the load on the machine changes."""
    pairs = zip(free, other, strict=True)
    figure = "server_cpu_us_per_call"
    return median(number(one, figure) / number(two, figure) for one, two in pairs)


def _median(reports: list[Report], figure: str) -> float:
    return median(number(each, figure) for each in reports)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
