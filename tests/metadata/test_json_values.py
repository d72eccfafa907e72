"""Stored values that are damaged: whatever is stored, it is read or reported."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata import layout, members, subscriptions, topic_ownership, topic_persistence
from metadata.json_values import Fields, decoded, encoded
from metadata.store import DamagedEntryError, Key

KEY: Key = ("a", "b/c")
NAMES = [
    "address", "cell_ms", "cluster_id", "epoch", "generation", "incarnation", "is_draining",
    "managers", "message_id", "messages", "offset_ms", "offset_seq", "options", "preferences",
    "ranges", "server_id", "start_ms", "start_seq", "started_ms", "state", "topics",
]  # fmt: skip
DECODERS: list[Callable[[Key, bytes], object]] = [
    layout._decoded,
    members._fenced,
    members._incarnation,
    members._server,
    subscriptions._decoded,
    topic_ownership._decoded,
    topic_persistence._decoded,
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 1 << 31, 1 << 64, 10**400])
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["0" * 32, "0" * 40])
)
objects = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=8)
    ),
    max_leaves=20,
)
values = st.dictionaries(st.sampled_from(NAMES), objects, max_size=len(NAMES))


@pytest.mark.parametrize("decode", DECODERS)
@given(value=values)
def test_a_stored_object_is_read_or_reported(
    decode: Callable[[Key, bytes], object], value: dict[str, object]
) -> None:
    with suppress(DamagedEntryError):
        decode(KEY, json.dumps(value | {"format": 1}).encode())


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=40))
def test_other_stored_bytes_are_reported(
    decode: Callable[[Key, bytes], object], data: bytes
) -> None:
    with pytest.raises(DamagedEntryError, match="under the key a/b%2Fc can't be read: "):
        decode(KEY, data)


def test_a_value_is_read_as_it_was_written() -> None:
    data = encoded({"n": 1 << 70, "t": "é\ud800\x00", "none": None}, format_number=3)

    def read(fields: Fields) -> tuple[int, str, str | None]:
        return fields.integer("n"), fields.text("t"), fields.maybe_text("none")

    assert decoded(KEY, data, read, format_number=3, what="value") == (
        1 << 70,
        "é\ud800\x00",
        None,
    )


def test_a_server_started_at_a_time_that_can_be_shown() -> None:
    last = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=members.TIME_LIMIT_MS - 1)
    assert last.year == 9999
    stored = {
        "address": "http://s1:7411", "incarnation": 1, "is_draining": False, "server_id": "s1",
        "started_ms": members.TIME_LIMIT_MS, "topics": 0,
    }  # fmt: skip

    with pytest.raises(DamagedEntryError, match="started_ms is 253402300800000, which is no time"):
        members._server(KEY, encoded(stored, format_number=1))
