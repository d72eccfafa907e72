"""`tuff hbase`: makes what is missing, says what differs, and removes nothing."""

import json
from collections.abc import Sequence

import pytest

from tests.hbase.local import LocalHBase, why_missing

pytest.importorskip("happybase")

from contextlib import closing

from messaging.storage.hbase_tables import TableAdmin, TablePlan, plans
from tests.hbase.tables import settings_of, stores_of
from tuff.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.hbase,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
]


def tuff(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `tuff` with these words."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_tables_are_made_once_and_then_serve(
    hbase: LocalHBase, capsys: pytest.CaptureFixture[str]
) -> None:
    place = settings_of(hbase.ports)
    flags = [
        "--json",
        *("--set", f"hbase.gateways={list(place.gateways)}"),
        *("--set", f"hbase.admin_gateway={place.admin_gateway}"),
        *("--set", f"hbase.prefix={place.prefix}"),
        *("--set", "hbase.salts=3"),
    ]

    _, before, _ = tuff(["hbase", "status", *flags], capsys)
    code, first, _ = tuff(["hbase", "deploy", *flags], capsys)
    _, second, _ = tuff(["hbase", "deploy", *flags, "--set", "hbase.salts=7"], capsys)
    _, after, _ = tuff(["hbase", "status", *flags], capsys)

    assert json.loads(before.splitlines()[-1])["missing"] == 4
    assert code == 0
    assert json.loads(first.splitlines()[-1])["created"] == 4
    # How rows are laid out is fixed, whatever the settings say later.
    assert json.loads(second.splitlines()[-1]) == {
        "kind": "deployed", "salts": 3, "created": 0, "changed": 0, "to change with --yes": 0,
    }  # fmt: skip
    assert json.loads(after.splitlines()[-1]) == {
        "kind": "looked at", "tables": 4, "missing": 0, "disabled": 0, "different": 0,
    }  # fmt: skip
    with closing(stores_of(place)()) as store:
        store.write([(b"a", b"1")])
        assert store.get(b"a") == b"1"


def test_a_table_that_differs_is_changed_when_somebody_says_so(hbase: LocalHBase) -> None:
    place = settings_of(hbase.ports)
    plan = plans(place)[0]
    with closing(TableAdmin(place.admin_address())) as admin:
        admin.create(TablePlan(plan.name, plan.splits, {b"OWNER_NOTE": b"kept"}))
        assert len(admin.state(plan).differences) == 1

        admin.change(plan)

        assert admin.state(plan).differences == ()
        assert not admin.state(TablePlan(plan.name, (), {b"OWNER_NOTE": b"kept"})).differences


def test_who_cannot_be_reached_is_named(
    hbase: LocalHBase, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = tuff(["hbase", "status", "--set", "hbase.admin_gateway=127.0.0.1:9"], capsys)

    assert code != 0
    assert "no HBase Thrift2 gateway answers at 127.0.0.1:9" in said
