"""What protects the server: the access file and TLS, as far as they are set."""

from collections.abc import Callable, Iterator
from pathlib import Path

from access.quotas import Quota
from process.access_guard import AccessGuard
from process.health import Check, Status
from process.metrics import Metric, gauge
from process.runtime import Runtime
from process.settings import ServerSettings, Settings, SettingsError
from process.tls import ServerTls
from process.watched_files import WatchedFileError

PRINCIPALS_SHOWN_MAX = 1_000  # those that have quotas; a scrape has some 5,000 series at most
SECRET_CHARACTERS_MIN = 32  # as hexadecimal digits they are 128 bits


class Security:
    """The access guard and the TLS settings; None where they are not set. Lives on one event
    loop."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        """Reads the files, and blocks. Raises: SettingsError: one is not valid."""
        # No other work waits for a file system that hangs.
        self._in_thread = runtime.threads("file-reader", 1, is_joined=False)
        self.cluster_secret = _secret(settings.cluster.secret_file)
        self.access = _access_guard(settings.server, runtime.elapsed_s, self.cluster_secret)
        self.tls: ServerTls | None = None
        if settings.server.has_tls:
            try:
                self.tls = ServerTls(settings.server, now_ms=runtime.clock.now_ms)
            except WatchedFileError as error:
                raise SettingsError(str(error)) from None

    async def refresh(self) -> bool:
        """Read the files again that have changed; returns whether the principals may have. A file
        that is not valid changes nothing."""
        has_changed = self.access is not None and await self.access.refresh(self._in_thread)
        if self.tls is not None:
            await self.tls.refresh(self._in_thread)
        return has_changed

    def checks(self) -> dict[str, Check]:
        """The state of the files, for `/health/ready`."""
        parts = {"access": self.access, "tls": self.tls}
        return {name: part.check() for name, part in parts.items() if part is not None}

    def metrics(self) -> Iterator[Metric]:
        """The metrics of the files that are set."""
        if checks := self.checks():
            yield Metric(
                "protection_ok",
                "Whether the check of the access file or of TLS is ok.",
                [((name,), float(each.status is Status.OK)) for name, each in checks.items()],
                ("check",),
            )
        if self.tls is not None:
            text = "In how many days the certificate of the server expires; negative once it has."
            yield gauge("tls_certificate_days", text, self.tls.certificate_days())
        if self.access is not None:
            refused, shown = self.access.quota_refusals, self.access.file.value.by_name
            limited = sorted(name for name, each in shown.items() if each.quota != Quota())
            yield Metric(
                "quota_refused_requests",
                "Requests that were refused since the start, since a principal was above its "
                f"quota, of the first {PRINCIPALS_SHOWN_MAX} principals with one by name.",
                [((name,), refused.get(name, 0)) for name in limited[:PRINCIPALS_SHOWN_MAX]],
                ("principal",),
                is_counter=True,
            )


def _access_guard(
    settings: ServerSettings, now_s: Callable[[], float], cluster_secret: str | None
) -> AccessGuard | None:
    if not settings.access_file:
        return None
    try:
        return AccessGuard(
            Path(settings.access_file),
            now_s=now_s,
            cluster_secret=cluster_secret,
            audit_topic=settings.audit_topic_id(),
        )
    except WatchedFileError as error:
        raise SettingsError(f"server.access_file: {error}") from None


def _secret(file: str) -> str | None:
    """The secret of the cluster; None without a file. Raises: SettingsError."""
    if not file:
        return None
    try:
        secret = Path(file).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cluster.secret_file: {file} can't be read: {error}") from None
    if len(secret) < SECRET_CHARACTERS_MIN or not secret.isprintable() or " " in secret:
        raise SettingsError(
            f"cluster.secret_file: {file} has no secret, which is at least "
            f"{SECRET_CHARACTERS_MIN} characters without spaces; `openssl rand -hex 32` makes one"
        )
    return secret
