"""`server.py hbase deploy|status|flush|compact …`: manage the tables of a message store in HBase.

Prints JSON, one object per line. It removes nothing, and changes an existing table only with
`--yes`. For other administration (snapshots, disabling a table) use HBase's own shell.
"""

import argparse
import json
import os
import pwd
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import sleep

from admin.hbase_regions import Region, Regions
from messaging.engines.engine_interface import StoreError
from messaging.engines.hbase.connections_and_writes import gateways_of
from messaging.engines.hbase.layout import METADATA, SALTED, TABLES, RowRange
from messaging.engines.hbase.scan import read
from messaging.engines.hbase.table_admin import (
    TableAdmin,
    TablePlan,
    TableState,
    plans,
    write_layout,
)
from messaging.log.region_observers import (
    FLUSH_SUFFIX,
    MAJOR_SUFFIX,
    RECORDS,
    STATE_NAME,
    RegionRecord,
    UnreadableRecordError,
    state_time_ms,
)
from messaging.log.topics import TopicRecord
from messaging.model.row_format import (
    HOLDS,
    TOPICS,
    Hold,
    prefix_stop,
    split_named_row_key,
    split_topic,
)
from messaging.settings import MessagingSettings
from process.option_parser import OptionParser
from process.settings import Settings, SettingsError, load
from tuff_storage.hbase_gateway import Gateways

EXIT_USAGE = 2
RPC_TIMEOUT_S = 300.0  # seconds; a flush of a region's memory on a slow disk
POLL_S = 0.5  # seconds between two reads of the files of region observers
STATE_LATE_S = 60.0  # seconds that a retention pass takes before it writes a state
STATE_WITHIN_S = 600.0  # seconds; with longer intervals of passes, the existing state is used
STATE_READ_S = 6.0  # seconds until all region servers have read it; they read it every five
RECORDED_WITHIN_S = 30.0  # seconds; a region without a state records nothing


def main(arguments: list[str], *, elapsed_s: Callable[[], float], now_ms: int) -> int:
    """Run one of the commands; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        everything = load(options.config, options.set)
        settings = everything.hbase
        planned = plans(settings, live_s=everything.rows_live_s())
        if options.command in {"flush", "compact"}:
            return _rewrite(everything, options, elapsed_s=elapsed_s)
        with closing(TableAdmin(settings.admin_address())) as admin:
            if options.command == "status":
                return _status(admin, planned)
            with closing(gateways_of(settings, elapsed_s=elapsed_s)) as gateways:
                if options.yes:
                    _require_short_retention(admin, gateways, everything, now_ms=now_ms)
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
            "kind": "inspected",
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


def _require_short_retention(
    admin: TableAdmin, gateways: Gateways, everything: Settings, *, now_ms: int
) -> None:
    """Raises: StoreError: a topic or a hold keeps messages for longer than the settings allow, so
    that HBase would drop them too early."""
    prefix = everything.hbase.prefix
    if not admin.state(TablePlan(prefix + METADATA)).exists:
        return  # there are no topics and no holds
    topics, holds = (
        read(gateways, prefix, [RowRange(METADATA, tag, prefix_stop(tag))], reverse=False)
        for tag in (TOPICS, HOLDS)
    )
    for key, value in topics:
        _require_short_ttl(key, value, everything.messaging)
    for key, value in holds:
        _require_short_hold(key, value, everything.messaging, now_ms=now_ms)


def _require_short_ttl(key: bytes, value: bytes, settings: MessagingSettings) -> None:
    record = TopicRecord.from_bytes(key, value)
    if record.generation > 0 and record.ttl_s > settings.max_ttl:
        topic = split_topic(key[len(TOPICS) :])
        raise StoreError(
            f"the topic {topic} has a ttl of {record.ttl_s} s, and messaging.max_ttl is "
            f"{settings.max_ttl}; change one of the two first"
        )


def _require_short_hold(
    key: bytes, value: bytes, settings: MessagingSettings, *, now_ms: int
) -> None:
    hold = Hold.from_bytes(key, value)
    kept_s = (hold.expires_at_ms - hold.first.publish_timestamp_ms) / 1000
    if now_ms < hold.expires_at_ms and kept_s > settings.kept_s_max:
        topic, _, name = split_named_row_key(key)
        raise StoreError(
            f"the hold {name} of the topic {topic} keeps messages for {kept_s:.0f} s, and "
            f"messaging.max_ttl and messaging.hold_max together are {settings.kept_s_max:.0f}; "
            "delete the hold, or set it again, or raise one of the two first"
        )


def _deploy_table(admin: TableAdmin, plan: TablePlan, *, may_change: bool) -> str | None:
    """The change that was made to a table, or is needed; None if it needs no change."""
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


class ObserversOfTables:
    """The region observers of some tables: the retention state that the server writes for them, and
    the records of the regions. `tables` are full names."""

    def __init__(
        self,
        directory: Path,
        tables: Collection[str],
        *,
        elapsed_s: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._directory = directory
        self._tables = tables
        self._elapsed_s = elapsed_s
        self._sleep = sleep
        self._state_ms: int | None = None
        self._seen: dict[str, RegionRecord] = {}  # by the name of the file
        self._lacking: Collection[Region] = ()
        self._dropped_count = self._inverted_count = 0

    def await_state(self, *, within_s: float) -> None:
        """Wait for a state that is newer than this call, so that all rows that are expired now are
        removed, and until the region servers have read it. Without a server none comes."""
        stop_s = self._elapsed_s() + within_s
        before_ms = self._state_ms = self._read_state_ms()
        _print({"kind": "waiting", "for": f"a state newer than {_shown(before_ms)}"})
        while self._state_ms == before_ms and self._elapsed_s() < stop_s:
            self._sleep(POLL_S)
            self._state_ms = self._read_state_ms()
        if self._state_ms == before_ms:
            _print({"kind": "old state", "of": _shown(before_ms), "advice": "start the server"})
        self._sleep(min(STATE_READ_S, within_s))
        self._seen = self._records()

    def of(self, regions: Collection[Region]) -> list[Region]:
        """The regions that have an observer."""
        return [region for region in regions if region.table in self._tables]

    def behind(self, compacted: Collection[Region]) -> list[Region]:
        """The regions that used a state older than that of `await_state`."""
        if self._state_ms is None:
            self._lacking = compacted
            return []
        stop_s = self._elapsed_s() + RECORDED_WITHIN_S
        while True:
            found = self._records()
            self._lacking = [each for each in compacted if not self._is_recorded(each, found)]
            if not self._lacking or self._elapsed_s() >= stop_s:
                break
            self._sleep(POLL_S)
        news = [record for name, record in found.items() if self._seen.get(name) != record]
        self._dropped_count += sum(record.dropped_count for record in news)
        self._inverted_count += sum(record.inverted_count for record in news)
        names = {record.region for record in news if record.state_ms < self._state_ms}
        behind = [each for each in compacted if each.encoded_name in names]
        self._seen = found
        if behind:
            _print({"kind": "older state", "regions to compact again": len(behind)})
            self._sleep(STATE_READ_S)
        return behind

    def summary(self) -> Mapping[str, object]:
        """The numbers of rows that the observers removed, as one row of output."""
        return {
            "kind": "removed",
            "dropped": self._dropped_count,
            "inverted": self._inverted_count,
            "by the state of": _shown(self._state_ms),
            "regions that kept all for lack of a state": len(self._lacking),
        }

    def _is_recorded(self, region: Region, found: Mapping[str, RegionRecord]) -> bool:
        name = region.encoded_name + MAJOR_SUFFIX
        return name in found and found[name] != self._seen.get(name)

    def _read_state_ms(self) -> int | None:
        try:
            return state_time_ms((self._directory / STATE_NAME).read_bytes())
        except (OSError, UnreadableRecordError):
            return None

    def _records(self) -> dict[str, RegionRecord]:
        found = {}
        for suffix in (FLUSH_SUFFIX, MAJOR_SUFFIX):
            for path in (self._directory / RECORDS).glob(f"*{suffix}"):
                with suppress(OSError, UnreadableRecordError):
                    found[path.name] = RegionRecord.from_bytes(path.read_bytes())
        return found


def _shown(state_ms: int | None) -> str:
    if state_ms is None:
        return "none"
    return datetime.fromtimestamp(state_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _region_observers(
    everything: Settings, tables: Collection[str], *, elapsed_s: Callable[[], float]
) -> ObserversOfTables | None:
    """The observers of these tables; None if they have none."""
    directory = everything.messaging.observer_directory
    observed_tables = {everything.hbase.prefix + name for name in SALTED.values()}.intersection(
        tables
    )
    if not (directory and everything.hbase.observer_jar and observed_tables):
        return None
    return ObserversOfTables(Path(directory), observed_tables, elapsed_s=elapsed_s, sleep=sleep)


def _rewrite(
    everything: Settings, options: argparse.Namespace, *, elapsed_s: Callable[[], float]
) -> int:
    """Flush the tables; if asked, compact them too, and wait until that is done."""
    settings = everything.hbase
    tables = [settings.prefix + name for name in options.tables or TABLES]
    user = pwd.getpwuid(os.getuid()).pw_name
    is_to_compact = options.command == "compact"
    within_s = options.within if is_to_compact else 0.0
    stop_s = elapsed_s() + within_s

    def is_late() -> bool:
        return elapsed_s() > stop_s

    observers = (
        _region_observers(everything, tables, elapsed_s=elapsed_s) if is_to_compact else None
    )
    if observers is not None:
        renewed_s = everything.messaging.cleanup_interval_s + STATE_LATE_S
        observers.await_state(within_s=min(within_s, renewed_s, STATE_WITHIN_S))
    with (
        closing(gateways_of(settings, elapsed_s=elapsed_s)) as gateways,
        closing(Regions(gateways, tables, user=user, timeout_s=RPC_TIMEOUT_S)) as regions,
    ):
        flushed = Counter(region.table for region in regions.flush())
        for table, count in flushed.items():
            _print({"kind": "table", "table": table, "state": "flushed", "regions": count})
        if is_to_compact:
            expected = [] if observers is None else observers.of(regions.with_files())
            _compact(regions, flushed, is_late=is_late)
            if observers is not None:
                _compact_behind(regions, observers, expected, is_late=is_late)
    return 0


def _compact_behind(
    regions: Regions,
    observers: ObserversOfTables,
    expected: Sequence[Region],
    *,
    is_late: Callable[[], bool],
) -> None:
    """Compact the regions again that used an older state, and print what observers removed."""
    while behind := observers.behind(expected):
        counts = Counter(region.table for region in behind)
        _compact(regions, counts, is_late=is_late, only=behind)
    _print(observers.summary())


def _compact(
    regions: Regions,
    counts: Counter[str],
    *,
    is_late: Callable[[], bool],
    only: Collection[Region] | None = None,
) -> None:
    printed: Counter[str] | None = None
    for waiting in regions.compact(sleep, only):
        left = Counter(region.table for region in waiting)
        if left != printed:
            _print({"kind": "compacting", **{table: left[table] for table in counts}})
            printed = left
        if is_late():
            raise StoreError(
                f"{len(waiting)} regions were not compacted in time; HBase goes on with them; "
                "--within sets a longer time to wait"
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


def _parser() -> OptionParser:
    parser = OptionParser(prog="server.py hbase")
    commands = parser.add_subparsers(required=True, dest="command")
    deploy = commands.add_parser("deploy", help="create missing tables")
    deploy.add_argument("--yes", action="store_true", help="also change tables that differ")
    status = commands.add_parser("status", help="show the tables")
    flush = commands.add_parser("flush", help="write the memory of all regions to files")
    compact = commands.add_parser(
        "compact", help="flush, and rewrite all files of each region as one"
    )
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
