"""What people are shown of a store."""

from contextlib import closing
from pathlib import Path

import pytest

from messaging.inspect import decoded, store_rows, table_rows
from messaging.rows import PayloadRow
from messaging.run_table import RunTable
from messaging.runs import first_whole
from messaging.service import MessagingService
from messaging.storage.leveldb import LevelDbTable
from messaging.storage.memory import MemoryTable
from tests.messaging.world import AUDIT, NOON_MS, World, publish, request


async def test_every_table_is_told_in_words(world: World, service: MessagingService) -> None:
    world.transactions.start(7)
    await publish(service, b"plain", ttl_s=5)
    await service.store(AUDIT, request(b"\xff", pointer=7))
    await publish(service, pointer=7)

    rows = [dict(row) for row in store_rows(RunTable(MemoryTable(world.rows)))]
    for row in rows:
        del row["key"]

    place = {"topic": "default:audit", "generation": 1, "timestamp_ms": NOON_MS}
    assert {
        "kind": "message",
        **place,
        "seq_id": 0,
        "tx_pointer": None,
        "ttl_s": 5,
        "payload": "plain",
    } in rows
    brings = {"brings": 1, "first": [NOON_MS, 1], "last": [NOON_MS, 1]}
    assert {
        "kind": "message",
        **place,
        "seq_id": 2,
        "tx_pointer": "7",
        "ttl_s": None,
        **brings,
    } in rows
    stored = {"write_pointer": "7", "ttl_s": None, "payload": {"base64": "/w=="}}
    assert {"kind": "payload", **place, "seq_id": 1, **stored} in rows
    assert [row["kind"] for row in rows].count("index") == 1
    assert [row["kind"] for row in rows].count("topic") == 1
    assert [row["name"] for row in rows if row["kind"] == "fact"] == ["facts", "mark"]


async def test_damage_is_told_beside_its_row_and_costs_no_other(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"a", b"b")
    key = next(key for key in world.rows if key.startswith(b"m"))
    world.rows[key] = world.rows[key][:-1] + b"?"
    world.rows[b"mshort"] = b""
    world.rows[b"ibad"] = b"?"

    rows = list(store_rows(RunTable(MemoryTable(world.rows))))

    damages = {(row["table"], row["place"]) for row in rows if row["kind"] == "damage"}
    assert damages == {
        ("message", key[1:].hex()), ("message", b"short".hex()), ("index", b"bad".hex()),
    }  # fmt: skip
    assert all(row["reason"] for row in rows if row["kind"] == "damage")
    assert [row["payload"] for row in rows if "payload" in row] == ["a"]


def test_a_whole_value_under_a_key_that_is_too_short_is_damage() -> None:
    """It was an error of Python's own, and ended `tuff table show`."""
    key = b"pshort"

    shown = decoded(key, PayloadRow(payload=b"x").to_bytes(key))

    assert shown["kind"] == "damage"
    assert shown["place"] == b"short".hex()


def test_a_directory_is_read_only_while_no_server_has_it(tmp_path: Path) -> None:
    with (
        closing(LevelDbTable(tmp_path, first_whole=first_whole)),
        pytest.raises(OSError, match="open"),
    ):
        list(table_rows(tmp_path))
    assert list(table_rows(tmp_path)) == []
    with pytest.raises(FileNotFoundError):
        list(table_rows(tmp_path / "nowhere"))
