"""`server.py hbase deploy|status|flush|compact …`: the tables of a store in HBase; JSON, one object
a line.

Nothing that is there is removed, or changed without `--yes`. HBase's other work (snapshots, a table
disabled) is asked of its own shell.
"""

import argparse
import json
import os
import pwd
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from time import sleep

from messaging.bookmarks import Hold
from messaging.keys import HOLDS, TOPICS, prefix_stop, split_bookmark, split_topic
from messaging.settings import MessagingSettings
from messaging.storage.hbase_gateways import gateways_of
from messaging.storage.hbase_layout import METADATA, TABLES, RowRange
from messaging.storage.hbase_regions import Regions, regions_of
from messaging.storage.hbase_scan import read
from messaging.storage.hbase_settings import HBaseSettings
from messaging.storage.hbase_tables import TableAdmin, TablePlan, TableState, plans, write_layout
from messaging.storage.seam import StoreError
from messaging.topics import TopicRecord
from process.settings import Settings, SettingsError, load
from tuff.hbase_gateway import Gateways

EXIT_USAGE = 2
RPC_TIMEOUT_S = 300.0  # seconds; a flush of a region's memory on a slow disk


def main(arguments: list[str], *, elapsed_s: Callable[[], float], now_ms: int) -> int:
    """Run one of the commands; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        everything = load(options.config, options.set)
        settings = everything.hbase
        planned = plans(settings, live_s=everything.rows_live_s())
        if options.command in {"flush", "compact"}:
            return _rewrite(settings, options, elapsed_s=elapsed_s)
        with closing(TableAdmin(settings.admin_address())) as admin:
            if options.command == "status":
                return _status(admin, planned)
            with closing(gateways_of(settings, elapsed_s=elapsed_s)) as gateways:
                if options.yes:
                    _require_short_lives(admin, gateways, everything, now_ms=now_ms)
                return _deploy(admin, gateways, everything, may_change=options.yes)
    except (SettingsError, StoreError) as error:
        print(f"tuff: {error}", file=sys.stderr)
        return EXIT_USAGE


def _status(admin: TableAdmin, planned: Sequence[TablePlan]) -> int:
    states = [admin.state(plan) for plan in planned]
    for state in states:
        _print(_row(state))
    _print(
        {
            "kind": "looked at",
            "tables": len(states),
            "missing": sum(not state.exists for state in states),
            "disabled": sum(state.exists and not state.is_enabled for state in states),
            "different": sum(bool(state.differences) for state in states),
        }
    )
    return 0


def _deploy(
    admin: TableAdmin, gateways: Gateways, everything: Settings, *, may_change: bool
) -> int:
    counts = {"created": 0, "changed": 0, "to change with --yes": 0}
    for plan in plans(everything.hbase, live_s=everything.rows_live_s()):
        done = _deploy_table(admin, plan, may_change=may_change)
        if done is not None:
            counts[done] += 1
            _print({"kind": "table", "table": plan.name, "state": done})
    salts = write_layout(gateways, everything.hbase)
    _print({"kind": "deployed", "salts": salts, **counts})
    return 0


def _require_short_lives(
    admin: TableAdmin, gateways: Gateways, everything: Settings, *, now_ms: int
) -> None:
    """Raises: StoreError: a topic or a hold keeps messages for longer than the settings allow, and
    HBase would let these go before their time."""
    prefix = everything.hbase.prefix
    if not admin.state(TablePlan(prefix + METADATA)).exists:
        return  # there are neither topics nor holds
    for table, require in ((TOPICS, _require_ttl), (HOLDS, _require_hold)):
        rows = RowRange(METADATA, table, prefix_stop(table))
        for key, value in read(gateways, prefix, [rows], reverse=False):
            require(key, value, everything.messaging, now_ms=now_ms)


def _require_ttl(key: bytes, value: bytes, settings: MessagingSettings, *, now_ms: int) -> None:
    del now_ms
    record = TopicRecord.from_bytes(key, value)
    if record.generation > 0 and record.ttl_s > settings.max_ttl:
        topic = split_topic(key[len(TOPICS) :])
        raise StoreError(
            f"the topic {topic} has a ttl of {record.ttl_s} s, and messaging.max_ttl is "
            f"{settings.max_ttl}; change one of the two first"
        )


def _require_hold(key: bytes, value: bytes, settings: MessagingSettings, *, now_ms: int) -> None:
    hold = Hold.from_bytes(key, value)
    kept_s = (hold.expires_at_ms - hold.first.publish_timestamp_ms) / 1000
    if now_ms < hold.expires_at_ms and kept_s > settings.held_s_max:
        topic, _, name = split_bookmark(key)
        raise StoreError(
            f"the hold {name} of the topic {topic} keeps messages for {kept_s:.0f} s, and "
            f"messaging.max_ttl and messaging.hold_max together are {settings.held_s_max:.0f}; "
            "delete the hold, or set it anew, or raise one of the two first"
        )


def _deploy_table(admin: TableAdmin, plan: TablePlan, *, may_change: bool) -> str | None:
    """What was done to a table, or would be; None where it is as it should be."""
    state = admin.state(plan)
    if not state.exists:
        admin.create(plan)
        return "created"
    if not state.differences:
        return None
    if not may_change:
        return "to change with --yes"
    admin.change(plan)
    return "changed"


def _rewrite(
    settings: HBaseSettings, options: argparse.Namespace, *, elapsed_s: Callable[[], float]
) -> int:
    """Flush the tables; and compact them, if that is asked, and wait until it is done."""
    tables = [settings.prefix + name for name in options.tables or TABLES]
    user = pwd.getpwuid(os.getuid()).pw_name
    with (
        closing(gateways_of(settings, elapsed_s=elapsed_s)) as gateways,
        regions_of(gateways, tables, user=user, timeout_s=RPC_TIMEOUT_S) as regions,
    ):
        flushed = Counter(region.table for region in regions.flush())
        for table, count in flushed.items():
            _print({"kind": "table", "table": table, "state": "flushed", "regions": count})
        if options.command == "compact":
            stop_s = elapsed_s() + options.within
            _compact(regions, flushed, is_late=lambda: elapsed_s() > stop_s)
    return 0


def _compact(regions: Regions, counts: Counter[str], *, is_late: Callable[[], bool]) -> None:
    told: Counter[str] | None = None
    for waiting in regions.compact(sleep):
        left = Counter(region.table for region in waiting)
        if left != told:
            _print({"kind": "compacting", **{table: left[table] for table in counts}})
            told = left
        if is_late():
            raise StoreError(
                f"{len(waiting)} regions were not done in time; HBase goes on with them, and "
                "--within waits for longer"
            )
    for table, count in counts.items():
        _print({"kind": "table", "table": table, "state": "compacted", "regions": count})


def _row(state: TableState) -> Mapping[str, object]:
    shown = "missing"
    if state.exists:
        shown = "enabled" if state.is_enabled else "disabled"
    return {
        "kind": "table",
        "table": state.name,
        "state": shown,
        "should have": ", ".join(state.differences),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="server.py hbase", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, dest="command")
    deploy = commands.add_parser("deploy", help="make the tables that are missing")
    deploy.add_argument("--yes", action="store_true", help="change tables that differ, too")
    status = commands.add_parser("status", help="show the tables")
    flush = commands.add_parser("flush", help="let regions write their memory to files")
    compact = commands.add_parser("compact", help="and let them write all files anew, as one each")
    compact.add_argument(
        "--within", type=float, default=3_600.0, metavar="SECONDS", help="wait so long (3600)"
    )
    for command in (flush, compact):
        command.add_argument("tables", nargs="*", choices=[[], *TABLES], help="all, if none")
    for command in (deploy, status, flush, compact):
        command.add_argument("--config", type=Path, metavar="FILE.toml")
        command.add_argument("--set", action="append", default=[], metavar="section.key=value")
    return parser


def _print(row: Mapping[str, object]) -> None:
    print(json.dumps(row))
