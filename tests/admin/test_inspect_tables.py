"""How the rows of a message store are shown."""

from contextlib import closing
from pathlib import Path

import pytest

from admin.findings import RefusedError
from admin.inspect_tables import decoded, store_rows, table_rows
from messaging.engines.leveldb import LevelDbStore
from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.model.row_format import MessageRow, message_key
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, NOON_MS, World, publish, request
from tuff.protocol.attributes import Attributes
from tuff.protocol.ids import Offset
from tuff_storage.disk.locks import DirectoryLockedError


async def test_rows_of_every_table_are_decoded(world: World, service: MessagingService) -> None:
    world.transactions.start(7)
    await publish(service, b"plain", ttl_s=5)
    await service.publisher.store(AUDIT, request(b"\xff", pointer=7))
    await publish(service, pointer=7)

    rows = [dict(row) for row in store_rows(Store(MemoryStore(world.rows)))]
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


async def test_attributes_are_shown_or_their_bytes_if_they_have_another_form(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    tagged = Attributes(key=b"k", tags=("eu",), headers=(("n", b"\xff"),))
    with_tags = request(b"a", pointer=7)._replace(attributes=[tagged])
    await service.publisher.store(AUDIT, with_tags)
    await service.publisher.publish(AUDIT, with_tags)
    key = message_key(b"other:t:\x00\x00\x00\x01", Offset(NOON_MS, 9))
    world.rows[key] = MessageRow(payload=b"b", attributes=b"later").to_bytes(key)

    rows = [*store_rows(Store(MemoryStore(world.rows)))]

    shown = {"key": "k", "tags": ["eu"], "headers": {"n": {"base64": "/w=="}}}
    assert [(row["kind"], row.get("attributes")) for row in rows if "payload" in row] == [
        ("message", shown),
        ("message", b"later".hex()),
        ("payload", shown),
    ]


async def test_a_corrupt_row_is_shown_and_hides_no_other(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"a", b"b")
    key = next(key for key in world.rows if key.startswith(b"m"))
    world.rows[key] = world.rows[key][:-1] + b"?"
    world.rows[b"mshort"] = b""
    world.rows[b"ibad"] = b"?"

    rows = list(store_rows(Store(MemoryStore(world.rows))))

    damages = {(row["table"], row["place"]) for row in rows if row["kind"] == "damage"}
    assert damages == {
        ("message", key[1:].hex()), ("message", b"short".hex()), ("index", b"bad".hex()),
    }  # fmt: skip
    assert all(row["reason"] for row in rows if row["kind"] == "damage")
    assert [row["payload"] for row in rows if "payload" in row] == ["a"]


def test_an_intact_value_with_a_key_that_is_too_short_is_shown_as_corrupt() -> None:
    """It raised an unexpected exception, and ended `tuff table show`."""
    key = b"pshort"

    shown = decoded(key, MessageRow(payload=b"x").to_bytes(key))

    assert shown["kind"] == "damage"
    assert shown["place"] == b"short".hex()


def test_a_directory_that_a_server_has_open_is_not_read(tmp_path: Path) -> None:
    with (
        closing(LevelDbStore(tmp_path)),
        pytest.raises(DirectoryLockedError, match="open"),
    ):
        list(table_rows(tmp_path))
    assert list(table_rows(tmp_path)) == []
    with pytest.raises(RefusedError):
        list(table_rows(tmp_path / "nowhere"))
