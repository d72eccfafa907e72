"""Tables in the running HBase for one test, and stores and settings of servers on them."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

from messaging.engines.hbase.connections_and_writes import gateways_of
from messaging.engines.hbase.engine import HBaseOpener
from messaging.engines.hbase.settings import FOREVER_S, HBaseSettings
from messaging.engines.hbase.table_admin import OBSERVER, TableAdmin, plans, write_layout
from tests.hbase.local_hbase import Ports

SALTS = 4  # several, and quickly created

_numbers = count()


def settings_of(ports: Ports, prefix: str = "", **others: object) -> HBaseSettings:
    """The settings for tables with this prefix; empty: with an unused one."""
    return HBaseSettings(
        gateways=(f"127.0.0.1:{ports.thrift}",),
        admin_gateway=f"127.0.0.1:{ports.thrift2}",
        prefix=prefix or f"test{next(_numbers)}_",
        salts=SALTS,
        **others,
    )


def deploy(settings: HBaseSettings, observer_arguments: bytes = b"") -> HBaseSettings:
    """Create the tables; the arguments are added to those of the observers."""
    admin = TableAdmin(settings.admin_address())
    for plan in plans(settings):
        attributes = dict(plan.attributes)
        if OBSERVER in attributes:
            attributes[OBSERVER] += observer_arguments
        admin.create(replace(plan, attributes=attributes))
    admin.close()
    gateways = gateways_of(settings, elapsed_s=time.monotonic)
    write_layout(gateways, settings)
    gateways.close()
    return settings


def through(place: HBaseSettings, *ports: int) -> HBaseSettings:
    """The same tables, reached through other gateways."""
    return HBaseSettings(
        gateways=tuple(f"127.0.0.1:{port}" for port in ports), prefix=place.prefix, salts=SALTS
    )


def server_settings(tables: HBaseSettings) -> tuple[str, ...]:
    """The settings of a server with these tables."""
    return (
        "messaging.store=hbase",
        "server.max_request_bytes=8388608",
        f"hbase.gateways={list(tables.gateways)}",
        f"hbase.prefix={tables.prefix}",
    )


def stores_of(settings: HBaseSettings, *, rows_live_s: int = FOREVER_S) -> HBaseOpener:
    """Opens the tables as one server does."""
    return HBaseOpener(
        settings,
        rows_live_s=rows_live_s,
        now_ms=_wall_ms,
        elapsed_s=time.monotonic,
        in_background=ThreadPoolExecutor(1).submit,
    )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
