"""`tuff doctor`: checks a server, and the machine on which it runs (protocol §7)."""

import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from socket import create_connection
from urllib.parse import urlsplit

import click

from tuff.blocking.client import Client
from tuff.errors import ConnectionLostError, ServerNotTrustedError
from tuff.launch import ServerCommandError, server_rows
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.replies import Health, HealthStatus
from tuff.tls import TlsFiles
from tuff.version import __version__
from tuff_cli.metrics import Sample, samples_in, value_of
from tuff_cli.options import PathType, Target, output_options, pass_target, server_options
from tuff_cli.output import EXIT_REFUSED, Result, Table, print_result
from tuff_storage.disk.file_modes import READ, WRITE, rights_of_others

OK, WARNING, PROBLEM = "ok", "warning", "problem"
DETAIL_LENGTH_MAX = 2_000  # characters
OFFSET_WARNING_S = 1.0  # between this machine and the server
OFFSET_PROBLEM_S = 60.0  # ids are times: a start by a time would be that far off
CERTIFICATE_WARNING_S = 14 * 86_400.0  # before a certificate expires
CONNECT_S_MAX = 5.0
RENEW = "renew the certificate, or name its authority with --tls-ca-file"
_LEVELS = {HealthStatus.OK: OK, HealthStatus.DEGRADED: WARNING, HealthStatus.DOWN: PROBLEM}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; `advice` is empty if it is ok."""

    check: str
    level: str
    detail: str
    advice: str = ""


@click.command()
@click.option("--data", type=PathType(file_okay=False, path_type=Path), metavar="DIR",
              help="Check this data directory, and this machine.")  # fmt: skip
@click.option("--config", type=PathType(dir_okay=False, path_type=Path), metavar="FILE",
              help="Check the settings in FILE, and this machine.")  # fmt: skip
@click.option("--set", "assignments", multiple=True, metavar="section.key=value",
              help="A setting, as of `tuff serve`; may be repeated.")  # fmt: skip
@server_options
@output_options
@pass_target
def doctor(
    target: Target,
    *,
    data: Path | None,
    config: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check a server: its health, its clock, its version and its certificate.

    With --data, --config or --set also this machine: settings, permissions, free space, inodes, the
    time of a sync, the limit of open files, memory, libraries, the clock, and the servers that the
    settings name. The server need not run then. Give what `tuff serve` is given, and run the
    command in the working directory of the server if a path is relative.

    Exit code 0: there is no problem, warnings at most. 1: there is one. 3: the server can't be
    reached, and none of these options is given.
    """
    is_local = data is not None or config is not None or bool(assignments)
    found = list(_own_secrets(target))
    if is_local:
        found += _machine(data, config, assignments)
    found += _server(target, may_be_stopped=is_local)
    has_problem = any(each.level == PROBLEM for each in found)
    rows = [(each.level, each.check, each.detail, each.advice) for each in found]
    counts = {level: sum(each.level == level for each in found) for level in (PROBLEM, WARNING, OK)}
    summary = ", ".join(f"{count} {level}" for level, count in counts.items())
    table = Table(("level", "check", "finding", "what to do"), rows, summary, DETAIL_LENGTH_MAX)
    exit_code = EXIT_REFUSED if has_problem else 0
    result = Result(json={"counts": counts, "findings": found}, table=table, exit_code=exit_code)
    print_result(result, as_json=as_json)


def _own_secrets(target: Target) -> Iterator[Finding]:
    files = target.tls_files
    for file in (target.token_file, files.key_file or files.certificate_file):
        rights = None if file is None else rights_of_others(Path(file), READ | WRITE)
        if rights is not None:
            detail = f"every user of this machine may {rights} it"
            yield Finding(f"file {file}", WARNING, detail, "take the rights away: chmod o-rw")


def _machine(
    data: Path | None, config: Path | None, assignments: tuple[str, ...]
) -> Iterator[Finding]:
    given = [("--data", data), ("--config", config), *(("--set", each) for each in assignments)]
    words = [str(word) for pair in given if pair[1] is not None for word in pair]
    try:
        for row in server_rows(["doctor", *words]):
            yield Finding(*(str(row[name]) for name in ("check", "level", "detail", "advice")))
    except ServerCommandError as error:
        raise BadRequestError(str(error), code="command_refused") from None


def _server(target: Target, *, may_be_stopped: bool) -> list[Finding]:
    """Raises: ConnectionLostError: no server answers, and it may not be stopped."""
    try:
        with target.client() as client:
            return list(_running_server(client, target.tls_files))
    except ConnectionLostError as error:
        if not may_be_stopped:
            raise
        if isinstance(error, ServerNotTrustedError):
            return [Finding("certificate", PROBLEM, error.detail, RENEW)]
        return [Finding("server", WARNING, error.detail, "start it, unless it is stopped")]


def _running_server(client: Client, tls_files: TlsFiles) -> Iterator[Finding]:
    health = client.health()
    yield _version(health)
    for name, check in health.checks.items():
        advice = "" if check.status is HealthStatus.OK else "the sentence says what to do"
        yield Finding(f"health {name}", _LEVELS[check.status], check.detail, advice)
    try:
        began_s = time.time()
        samples = samples_in(client.metrics())
        ended_s = time.time()
    except TuffError as error:
        advice = "use a token with the right administer"
        yield Finding("metrics", WARNING, f"they can't be read: {error.detail}", advice)
    else:
        yield from clock_findings(samples, (began_s + ended_s) / 2)
    if urlsplit(client.url).scheme == "https":
        yield certificate_finding(client.url, tls_files, now_s=time.time())


def _version(health: Health) -> Finding:
    if health.version == __version__:
        return Finding("version", OK, f"the server and this command have version {__version__}")
    detail = f"the server has version {health.version}, and this command {__version__}"
    return Finding("version", WARNING, detail, "install the version of the server here")


def clock_findings(samples: list[Sample], now_s: float) -> Iterator[Finding]:
    """What the metrics say of the clock of the server, beside this machine's."""
    server_s = value_of(samples, "tuff_time_seconds")
    if server_s is not None:
        offset_s = server_s - now_s
        level = PROBLEM if abs(offset_s) >= OFFSET_PROBLEM_S else WARNING
        level = OK if abs(offset_s) < OFFSET_WARNING_S else level
        advice = "" if level == OK else "synchronise both clocks with NTP"
        detail = f"the time of the server is {offset_s:+.1f} s from that of this machine"
        yield Finding("clock offset", level, detail, advice)
    regressions = value_of(samples, "tuff_clock_regressions_total")
    if regressions:
        detail = f"the clock of the server was set back {regressions:.0f} times since its start"
        yield Finding("clock jumps", WARNING, detail, "let NTP slew the clock; do not set it")
    elif regressions is not None:
        yield Finding("clock jumps", OK, "the clock of the server was not set back")


def certificate_finding(url: str, tls_files: TlsFiles, *, now_s: float) -> Finding:
    """How long the certificate of a server is valid, for a client with these files."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    context = tls_files.context() or ssl.create_default_context()
    try:
        with (
            create_connection((host, port), CONNECT_S_MAX) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            ends_at = (secure.getpeercert() or {}).get("notAfter")
    except OSError as error:
        reason = getattr(error, "verify_message", None) or error.strerror or str(error)
        return Finding("certificate", PROBLEM, f"it is not accepted: {reason}", RENEW)
    ends_s = ssl.cert_time_to_seconds(str(ends_at))
    day = datetime.fromtimestamp(ends_s, UTC).date()
    if ends_s - now_s < CERTIFICATE_WARNING_S:
        return Finding("certificate", WARNING, f"it expires on {day}", "renew it")
    return Finding("certificate", OK, f"it is valid until {day}")
