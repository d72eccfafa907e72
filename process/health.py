"""`/health/*`: whether the process lives, has recovered, and can do its work (protocol §7)."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kernel.log_events import event
from kernel.requests_and_replies import Reply, Request, Route, json_reply, read_query
from tuff.protocol import operations
from tuff.protocol.sentences import counted
from tuff.version import __version__
from tx.outcomes import OpenTransaction

log = logging.getLogger(__name__)

# Seconds; a disk that is merely busy, and a gateway that asks the next region server, take less.
WRITE_S_MAX = 5.0
PREPARED_SHOWN_MAX = 5  # transactions that a sentence names
REPAIR = (
    "stop the server; `tuff fsck` names what is damaged; then restore a backup, or keep what is "
    "whole with `tuff salvage`"
)


class Status(Enum):
    """The state of a part of the server; in the order of severity."""

    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


_SEVERITIES = list(Status)


def worst_of(*statuses: Status) -> Status:
    """The most severe of them."""
    return max(statuses, key=_SEVERITIES.index)


@dataclass(frozen=True, slots=True)
class Check:
    """The state of a part, with a sentence. `cause` identifies the state where numbers in the
    sentence change all the time."""

    status: Status
    detail: str
    cause: str | None = None

    @property
    def identity(self) -> tuple[Status, str]:
        """A change of it is logged."""
        return self.status, self.detail if self.cause is None else self.cause


Checks = Callable[[], Mapping[str, Check]]


def check_write(check: Check, *, oldest_s: float) -> Check:
    """Degrade the check of a store whose oldest write is under way for long. A disk that hangs
    fails no write, and all writers wait."""
    if check.status is not Status.OK or oldest_s < WRITE_S_MAX:
        return check
    late = f"the oldest write has been on its way for {oldest_s:.0f} s: does the disk hang?"
    return Check(Status.DEGRADED, f"{check.detail}; {late}", "a write is late")


def check_accepted_loss(check: Check, *, accepted: str) -> Check:
    """Degrade the check of a store while a setting accepts that it has lost messages."""
    if not accepted:
        return check
    left = (
        f"server.accept_lost_messages={accepted} is set, and accepts that loss again at each start "
        "that finds it: remove it from the settings"
    )
    return Check(Status.DEGRADED, f"{check.detail}; {left}", "a loss is accepted")


def check_damage(
    check: Check, *, read_count: int, last_read: str | None, backup: str | None
) -> Check:
    """Degrade the check of a store in which readers, or a backup, have met damaged records. It
    serves all others."""
    if not read_count and backup is None:
        return check
    met = []
    if read_count:
        met.append(f"{counted(read_count, 'read')} met a damaged record, the last {last_read}")
    if backup is not None:
        met.append(f"no backup can be taken: {backup}")
    return Check(
        worst_of(check.status, Status.DEGRADED),
        f"{check.detail}; {'; '.join(met)}; {REPAIR}",
        check.cause or "records are damaged",
    )


def check_directory(check: Check, *, is_lost: bool) -> Check:
    """Degrade the check of transactions that run while the files of their log can't be found any
    more. The log that is open may still take commits, which the next leader will not find."""
    if not is_lost:
        return check
    lost = (
        "the shared directory has no transaction files of this cluster any more, so commits since "
        "then are lost if this server ends: mount it again, or write a snapshot if its content is "
        "lost"
    )
    return Check(Status.DEGRADED, f"{check.detail}; {lost}", "the shared directory is lost")


def check_prepared(check: Check, prepared: Sequence[OpenTransaction]) -> Check:
    """Degrade the check of transactions while these have been prepared for long. Their databases
    have to decide, and no time-out ends them."""
    if not prepared:
        return check
    shown = ", ".join(map(_shown_prepared, prepared[:PREPARED_SHOWN_MAX]))
    more_count = len(prepared) - PREPARED_SHOWN_MAX
    more = f" and {more_count} more" if more_count > 0 else ""
    late = f"prepared for long: {shown}{more}; look at them with `tuff tx prepared`"
    return Check(Status.DEGRADED, f"{check.detail}; {late}", f"prepared for long: {shown}")


def _shown_prepared(opened: OpenTransaction) -> str:
    assert opened.prepared is not None
    return f"{opened.transaction_id} ({opened.prepared.database})"


_LEVELS = {Status.OK: logging.INFO, Status.DEGRADED: logging.WARNING, Status.DOWN: logging.ERROR}


class HealthLog:
    """Logs each change of a check: one line when its status or its cause differs from the last
    look."""

    def __init__(self) -> None:
        self._last: Mapping[str, Check] = {}

    def note(self, checks: Mapping[str, Check]) -> None:
        """Compare with the last look. At the first look a check that is ok is no change."""
        for name, check in checks.items():
            before = self._last.get(name)
            was = Status.OK if before is None else before.status
            is_news = check.status is not Status.OK or was is not Status.OK
            if is_news and (before is None or before.identity != check.identity):
                fields = {"check": name, "was": was.value, "status": check.status.value}
                extra = event("health_changed", **fields)
                sentence = f"health of {name} {_change(was, check.status)}: {check.detail}"
                log.log(_LEVELS[check.status], "%s", sentence, extra=extra)
        self._last = dict(checks)


def _change(was: Status, now: Status) -> str:
    if was is now:
        return f"is still {now.value}, for another reason"
    return f"changed from {was.value} to {now.value}"


def routes(
    started: Callable[[], bool],
    checks: Checks,
    shows_details: Callable[[Request], bool] = lambda _request: True,
) -> list[Route]:
    """The three health endpoints. `shows_details`: whether the client of a request may see why a
    check has its status.

    A check that is down makes the server not ready; one that is degraded only says so, since
    messaging goes on.
    """

    async def live(request: Request) -> Reply:
        read_query(request.query, parameters=())
        return json_reply({"status": "ok"})

    async def startup(request: Request) -> Reply:
        read_query(request.query, parameters=())
        if started():
            return json_reply({"status": "ok"})
        return json_reply({"status": "starting"}, status=503)

    async def ready(request: Request) -> Reply:
        read_query(request.query, parameters=())
        found, is_shown = checks(), shows_details(request)
        worst = worst_of(*(check.status for check in found.values()))
        body = {
            "status": worst.value,
            "version": __version__,
            "checks": {
                name: {"status": check.status.value, "detail": check.detail if is_shown else ""}
                for name, check in found.items()
            },
        }
        return json_reply(body, status=503 if worst is Status.DOWN else 200)

    return [
        Route(operations.CHECK_LIVE, live),
        Route(operations.CHECK_STARTUP, startup),
        Route(operations.CHECK_READY, ready),
    ]
