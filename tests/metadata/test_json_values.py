"""Stored values that are damaged: whatever is stored, it is read or reported."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from metadata import layout, member_records, topic_owner_records, topic_records
from metadata.json_values import Fields, RecordKind
from metadata.store_interface import DamagedEntryError, Key

Decode = Callable[[Key, bytes], object]

KEY: Key = ("a", "b/c")
FLOOR = {"offset_ms": 1, "offset_seq": 2, "cell_ms": 3, "longest_transaction_ms": 4}
RANGE = {"epoch": 1, "server_id": "s1", "incarnation": 1, "start_ms": 1, "start_seq": 2}
SERVER = {
    "address": "http://s1:7411", "incarnation": 1, "is_draining": False, "server_id": "s1",
    "started_ms": 5, "topics": 0,
}  # fmt: skip
STORED: dict[str, tuple[Decode, dict[str, object]]] = {
    "layout": (
        layout.LAYOUT.from_bytes,
        {"cluster_id": "0" * 32, "managers": {"owners": 1}, "messages": "hbase tuff_"},
    ),
    "fence": (member_records.FENCE.from_bytes, {"incarnation": 1, **FLOOR}),
    "incarnation": (member_records.INCARNATION.from_bytes, {"incarnation": 1}),
    "server": (member_records.SERVER.from_bytes, SERVER),
    "owner": (topic_owner_records.OWNER.from_bytes, {"server_id": "s1", "incarnation": 1, **FLOOR}),
    "persistence": (
        topic_records.PERSISTENCE.from_bytes,
        {"generation": 1, "ranges": [RANGE, RANGE | {"epoch": 2}]},
    ),
}
WRONG = [
    None, True, -1, 1 << 31, 1 << 64, 10**400, 1.5, float("nan"), "", "\ud800", "0" * 40, [], [[]],
    {}, {"a": {}},
]  # fmt: skip


@pytest.mark.parametrize("kind", STORED)
def test_a_stored_object_with_any_other_member_is_read_or_reported(kind: str) -> None:
    decode, valid = STORED[kind]
    read, reported = 0, 0

    for damaged in variants(valid):
        assert isinstance(damaged, dict)
        data = json.dumps({"format": 1, **damaged}).encode()
        try:
            decode(KEY, data)
            read += 1
        except DamagedEntryError:
            reported += 1

    assert reported > read


@pytest.mark.parametrize("kind", STORED)
def test_other_stored_bytes_are_reported(kind: str) -> None:
    decode, valid = STORED[kind]
    whole = json.dumps({"format": 1, **valid}).encode()

    for size in range(len(whole)):
        with pytest.raises(DamagedEntryError, match="under the key a/b%2Fc can't be read: "):
            decode(KEY, whole[:size])
        with suppress(DamagedEntryError):
            decode(KEY, whole[:size] + b"\xff" + whole[size + 1 :])


def test_a_value_is_read_as_it_was_written() -> None:
    value = 1 << 70, "é\ud800\x00", None

    def read(fields: Fields) -> tuple[int, str, str | None]:
        return fields.integer("n"), fields.text("t"), fields.maybe_text("none")

    kind: RecordKind[tuple[int, str, str | None]] = RecordKind(
        "value", members=lambda each: dict(zip(("n", "t", "none"), each, strict=True)), made=read
    )

    assert kind.from_bytes(KEY, kind.to_bytes(value)) == value


def test_a_server_started_at_a_time_that_can_be_shown() -> None:
    last = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        milliseconds=member_records.TIME_LIMIT_MS - 1
    )
    assert last.year == 9999

    stored = json.dumps(
        {"format": 1, **SERVER, "started_ms": member_records.TIME_LIMIT_MS}
    ).encode()
    with pytest.raises(
        DamagedEntryError, match="started_ms is 253402300800000, which is not a time"
    ):
        member_records.SERVER.from_bytes(KEY, stored)


def variants(value: object) -> Iterator[object]:
    """The value with each of its parts replaced by each of the wrong ones, or left out."""
    yield from WRONG if not isinstance(value, dict) else []
    if isinstance(value, dict):
        for name, member in value.items():
            yield {each: value[each] for each in value if each != name}
            yield from ({**value, name: other} for other in (*WRONG, *variants(member)))
    if isinstance(value, list):
        for index, member in enumerate(value):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in variants(member))
