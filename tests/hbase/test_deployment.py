"""`tuff hbase` creates missing tables, shows differences, removes nothing, flushes and compacts."""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from admin.hbase_regions import RegionServer
from messaging.engines.engine_interface import StoreError
from messaging.engines.hbase.layout import TABLES
from messaging.engines.hbase.settings import HBaseSettings
from messaging.engines.hbase.table_admin import TableAdmin, TablePlan, plans
from messaging.log.topics import TopicRecord
from messaging.model.row_format import HOLDS, Hold, named_row_key, prefix_of, topic_key
from process.settings import load
from tests.hbase.deployments import SALTS, deploy, settings_of, stores_of
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tuff.protocol.ids import MessageId, TopicId
from tuff_cli import main

pytestmark = NEEDS_HBASE

DAYS = [
    word
    for name in ("messaging.hold_max", "tx.max_timeout", "tx.long_timeout", "server.max_clock_jump")
    for word in ("--set", f"{name}=86400")
]
DAY_MS = 86_400_000
CALLER: Any = {"user": "tests", "timeout_s": 60.0}


def tuff(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `tuff` with these words."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def flags_of(place: HBaseSettings) -> list[str]:
    return [
        "--json",
        *("--set", f"hbase.gateways={list(place.gateways)}"),
        *("--set", f"hbase.admin_gateway={place.admin_gateway}"),
        *("--set", f"hbase.prefix={place.prefix}"),
    ]


def test_deploy_creates_the_tables_once(
    hbase: LocalHBase, capsys: pytest.CaptureFixture[str]
) -> None:
    place = settings_of(hbase.ports)
    flags = [*flags_of(place), "--set", "hbase.salts=3"]

    _, before, _ = tuff(["hbase", "status", *flags], capsys)
    code, first, _ = tuff(["hbase", "deploy", *flags], capsys)
    _, second, _ = tuff(["hbase", "deploy", *flags, "--set", "hbase.salts=7"], capsys)
    _, after, _ = tuff(["hbase", "status", *flags], capsys)

    assert json.loads(before.splitlines()[-1])["missing"] == 4
    assert code == 0
    assert json.loads(first.splitlines()[-1])["created"] == 4
    # The number of salts is fixed, whatever later settings say.
    assert json.loads(second.splitlines()[-1]) == {
        "kind": "deployed", "salts": 3, "created": 0, "changed": 0, "to change with --yes": 0,
    }  # fmt: skip
    assert json.loads(after.splitlines()[-1]) == {
        "kind": "inspected", "tables": 4, "missing": 0, "disabled": 0, "different": 0,
    }  # fmt: skip
    with closing(stores_of(place)()) as store:
        store.write([(b"a", b"1")])
        assert store.get(b"a") == b"1"


def test_change_sets_the_attributes_of_the_plan_only(hbase: LocalHBase) -> None:
    place = settings_of(hbase.ports)
    plan = plans(place)[0]
    with closing(TableAdmin(place.admin_address())) as admin:
        admin.create(TablePlan(plan.name, plan.splits, attributes={b"OWNER_NOTE": b"kept"}))
        assert len(admin.state(plan).differences) == 1

        admin.change(plan)

        assert admin.state(plan).differences == ()
        assert not admin.state(
            TablePlan(plan.name, attributes={b"OWNER_NOTE": b"kept"})
        ).differences


def test_the_time_to_live_of_tables_follows_the_settings(
    hbase: LocalHBase, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a server whose messages may have to live longer than rows of the tables stays down."""
    place = settings_of(hbase.ports)
    week = [*flags_of(place), "--set", "hbase.salts=2", *DAYS, "--set", "messaging.max_ttl=604800"]
    year = [*week, "--set", "messaging.max_ttl=31536000"]
    tuff(["hbase", "deploy", *week], capsys)
    _, shown, _ = tuff(["hbase", "status", *year], capsys)
    rows_live_s = load(None, [*week[2::2]]).rows_live_s()

    assert rows_live_s == 604_800 + 3 * 86_400
    with closing(TableAdmin(place.admin_address())) as admin:
        for plan in plans(place, live_s=rows_live_s):
            assert admin.state(plan).differences == ()
    rows = map(json.loads, shown.splitlines()[:-1])
    differences = {row["table"]: row["should have"] for row in rows}
    assert "TTL = " in differences[f"{place.prefix}message"]
    assert differences[f"{place.prefix}metadata"] == ""
    stores_of(place, rows_live_s=rows_live_s)().close()
    with pytest.raises(StoreError, match="deploy --yes"):
        stores_of(place)()

    with closing(stores_of(place, rows_live_s=rows_live_s)()) as store:
        record = TopicRecord(generation=1, properties={"ttl": "604800"})
        key = topic_key(TopicId("default", "long"))
        store.write([(key, record.to_bytes(key))])
    day = [*week, "--set", "messaging.default_ttl=60", "--set", "messaging.max_ttl=86400"]
    code, _, said = tuff(["hbase", "deploy", *day, "--yes"], capsys)

    assert code != 0
    assert "default:long" in said


def test_deploy_refuses_a_time_to_live_shorter_than_a_hold(
    hbase: LocalHBase, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hold was set while `messaging.hold_max` was longer, and keeps its time."""
    place = settings_of(hbase.ports)
    day = [*flags_of(place), "--set", "hbase.salts=2", *DAYS]
    day += ["--set", "messaging.default_ttl=60", "--set", "messaging.max_ttl=86400"]
    tuff(["hbase", "deploy", *day, "--set", "messaging.hold_max=2592000"], capsys)
    now_ms = time.time_ns() // 1_000_000
    month_ms = 30 * DAY_MS

    set_hold(place, "over", first_ms=now_ms - month_ms - 1, expires_at_ms=now_ms - 1)
    set_hold(place, "short", first_ms=now_ms, expires_at_ms=now_ms + 2 * DAY_MS)
    over, _, _ = tuff(["hbase", "deploy", *day, "--yes"], capsys)
    set_hold(place, "audit", first_ms=now_ms, expires_at_ms=now_ms + month_ms)
    code, _, said = tuff(["hbase", "deploy", *day, "--yes"], capsys)
    with closing(TableAdmin(place.admin_address())) as admin:
        admin.delete(f"{place.prefix}payload")
    again, _, _ = tuff(["hbase", "deploy", *day, "--yes"], capsys)

    assert (over, code != 0, again != 0) == (0, True, True)
    assert "the hold audit of the topic default:held keeps messages for 2592000 s" in said


def set_hold(place: HBaseSettings, name: str, *, first_ms: int, expires_at_ms: int) -> None:
    hold = Hold(first=MessageId(first_ms, 0), set_at_ms=first_ms, expires_at_ms=expires_at_ms)
    key = named_row_key(HOLDS, prefix_of(TopicId("default", "held"), 1), name)
    with closing(stores_of(place, rows_live_s=1)()) as store:
        store.write([(key, hold.to_bytes(key))])


def test_flush_and_compact_remove_deleted_cells(
    hbase: LocalHBase, capfd: pytest.CaptureFixture[str]
) -> None:
    place = deploy(settings_of(hbase.ports))
    with closing(stores_of(place)()) as store:
        for number in range(10):
            store.write([(b"tns:topic:", b"%d" % number), (b"mns:topic:%d" % number, b"value")])

    code, flushed, _ = tuff(["hbase", "flush", *flags_of(place), "message"], capfd)
    again, compacted, _ = tuff(["hbase", "compact", *flags_of(place)], capfd)

    assert (code, again) == (0, 0)
    assert [json.loads(line) for line in flushed.splitlines()] == [
        {"kind": "table", "table": f"{place.prefix}message", "state": "flushed", "regions": SALTS}
    ]
    rows = [json.loads(line) for line in compacted.splitlines()]
    assert [row.get("state") for row in rows[:5]] == [*["flushed"] * 4, None]  # then what is left
    assert {row["table"] for row in rows if row.get("state") == "compacted"} == {
        f"{place.prefix}{name}" for name in TABLES
    }
    with closing(stores_of(place)()) as store:
        assert store.get(b"tns:topic:") == b"9"
    cells = hbase.command("raw", f"{place.prefix}metadata")
    assert sum(" Put " in cell for cell in cells) == len(cells) == 1


def test_a_compaction_beyond_within_is_reported(
    hbase: LocalHBase, capfd: pytest.CaptureFixture[str]
) -> None:
    place = deploy(settings_of(hbase.ports))

    code, _, said = tuff(["hbase", "compact", *flags_of(place), "--within", "0.001"], capfd)

    assert code != 0
    assert "HBase goes on" in said


def test_an_error_of_a_region_server_is_one_sentence(hbase: LocalHBase) -> None:
    with closing(RegionServer("127.0.0.1", hbase.ports.region_server, **CALLER)) as server:
        with pytest.raises(StoreError, match="NotServingRegionException") as refused:
            server.flush(b"nowhere,,1.00000000000000000000000000000000.")
        assert "\n" not in str(refused.value)
        with pytest.raises(StoreError, match="NotServingRegionException"):
            server.compact(b"nowhere,,1.00000000000000000000000000000000.")


def test_an_unreachable_region_server_is_reported(hbase: LocalHBase) -> None:
    with pytest.raises(StoreError, match="did not answer"):
        RegionServer("127.0.0.1", 9, **CALLER)


def test_an_unreachable_gateway_is_reported(
    hbase: LocalHBase, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = tuff(["hbase", "status", "--set", "hbase.admin_gateway=127.0.0.1:9"], capsys)

    assert code != 0
    assert "no HBase Thrift2 gateway answers at 127.0.0.1:9" in said
