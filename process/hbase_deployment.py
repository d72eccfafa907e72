"""`server.py hbase deploy|status …`: the tables of a store in HBase; JSON, one object a line.

Nothing that is there is removed, or changed without `--yes`. HBase's other work (flush, compaction,
snapshots, a table disabled) is asked of its own shell, as no gateway can do it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from messaging.storage.hbase_settings import HBaseSettings
from messaging.storage.hbase_tables import TableAdmin, TablePlan, TableState, plans, write_layout
from messaging.storage.seam import StoreError
from process.settings import SettingsError, load
from tuff.hbase_gateway import Addresses, Gateways

EXIT_USAGE = 2


def main(arguments: list[str], *, elapsed_s: Callable[[], float]) -> int:
    """Run one of the commands; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = load(options.config, options.set).hbase
        with closing(TableAdmin(settings.admin_address())) as admin:
            if options.command == "status":
                return _status(admin, settings)
            return _deploy(admin, settings, may_change=options.yes, elapsed_s=elapsed_s)
    except (SettingsError, StoreError) as error:
        print(f"tuff: {error}", file=sys.stderr)
        return EXIT_USAGE


def _status(admin: TableAdmin, settings: HBaseSettings) -> int:
    states = [admin.state(plan) for plan in plans(settings)]
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
    admin: TableAdmin,
    settings: HBaseSettings,
    *,
    may_change: bool,
    elapsed_s: Callable[[], float],
) -> int:
    counts = {"created": 0, "changed": 0, "to change with --yes": 0}
    for plan in plans(settings):
        done = _deploy_table(admin, plan, may_change=may_change)
        if done is not None:
            counts[done] += 1
            _print({"kind": "table", "table": plan.name, "state": done})
    gateways = Gateways(
        Addresses(settings.addresses()),
        timeout_s=settings.timeout_s,
        idle_s=settings.idle_s,
        elapsed_s=elapsed_s,
    )
    with closing(gateways):
        salts = write_layout(gateways, settings)
    _print({"kind": "deployed", "salts": salts, **counts})
    return 0


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
    for command in (deploy, status):
        command.add_argument("--config", type=Path, metavar="FILE.toml")
        command.add_argument("--set", action="append", default=[], metavar="section.key=value")
    return parser


def _print(row: Mapping[str, object]) -> None:
    print(json.dumps(row))
