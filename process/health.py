"""`/health/*`: whether the process lives, has recovered, and can do its work (protocol §7)."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from aiohttp import web

DISK_FREE_BYTES_MIN = 256 * 1024 * 1024  # below that a day's messages may not fit: degraded


class Status(Enum):
    """How a part of the server does; the order is that of severity."""

    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Check:
    """One part's state, and a sentence about it."""

    status: Status
    detail: str


Checks = Callable[[], Mapping[str, Check]]


def check_disk(directory: Path) -> Check:
    """Whether the disk below the data has room."""
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return Check(Status.DEGRADED, f"the free space of {directory} is unknown: {error.strerror}")
    mib = free // (1024 * 1024)
    if free < DISK_FREE_BYTES_MIN:
        return Check(Status.DEGRADED, f"only {mib} MiB are free at {directory}; make room soon")
    return Check(Status.OK, f"{mib} MiB are free")


def routes(started: Callable[[], bool], checks: Checks) -> list[web.RouteDef]:
    """The three health endpoints.

    A check that is down makes the server not ready; one that is degraded only says so, since
    messaging goes on.
    """

    async def live(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def startup(_request: web.Request) -> web.Response:
        if started():
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "starting"}, status=503)

    async def ready(_request: web.Request) -> web.Response:
        found = checks()
        severities = list(Status)
        worst = max((check.status for check in found.values()), key=severities.index)
        form = {
            "status": worst.value,
            "checks": {
                name: {"status": check.status.value, "detail": check.detail}
                for name, check in found.items()
            },
        }
        return web.json_response(form, status=503 if worst is Status.DOWN else 200)

    return [
        web.get("/health/live", live),
        web.get("/health/startup", startup),
        web.get("/health/ready", ready),
    ]
