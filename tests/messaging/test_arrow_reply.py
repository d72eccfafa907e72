"""Replies in Arrow contain the same messages as those in the other formats (protocol §3.4)."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernel.requests_and_replies import Request
from messaging.log.read_result import Messages, arrow_encoder
from messaging.log.scan import ReadResult
from messaging.model.visibility import Undecided
from messaging.read.poll import Poll, routes
from messaging.service import MessagingService
from tests.messaging.scan_model import (
    COMMITTED_POINTER,
    ModelRow,
    build,
    query,
    read,
    snapshots,
    topics,
)
from tests.messaging.world import AUDIT, World, publish
from tuff.protocol.errors import DamagedRecordError, NotAcceptableError
from tuff.protocol.ids import MessageId, Offset
from tuff.protocol.media_types import Encoding, MediaType
from tuff.protocol.operations import POLL
from tuff.protocol.transaction import Transaction

GROUP = ModelRow(950_000, COMMITTED_POINTER, ((b"a", None), (b"b", None)), is_reference=True)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXPECTED_SCHEMA = pa.schema(
    [
        ("id", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("generation", pa.int32()),
        ("write_pointer", pa.int64()),
    ]
)


def batch_of(body: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(body) as stream:
        (batch,) = list(stream)
    batch.validate(full=True)
    assert batch.schema == EXPECTED_SCHEMA
    return batch


def rows_of(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    return list(zip(*(batch[name].to_pylist() for name in batch.schema.names), strict=True))


def expected_of(messages: list[tuple[bytes, bytes, int | None]]) -> list[tuple[object, ...]]:
    return [
        (
            message_id,
            payload,
            EPOCH + timedelta(milliseconds=int.from_bytes(message_id[:8], "big")),
            7,
            pointer,
        )
        for message_id, payload, pointer in messages
    ]


def pointers_of(
    rows: list[ModelRow], places: list[tuple[Offset, list[Offset]]]
) -> dict[Offset, int]:
    return {
        place: abs(row.pointer)
        for row, (place, _) in zip(rows, places, strict=True)
        if row.pointer is not None
    }


@given(
    rows=topics,
    reader=snapshots,
    limit=st.integers(1, 5),
    bytes_max=st.integers(1, 12),
    lost=st.none() | st.integers(0, 20),
)
@example(rows=[GROUP], reader=(None, Undecided.HOLD), limit=5, bytes_max=12, lost=None)
def test_a_reply_in_arrow_has_the_messages_of_the_one_in_avro(
    rows: list[ModelRow],
    reader: tuple[Transaction | None, Undecided],
    limit: int,
    bytes_max: int,
    lost: int | None,
) -> None:
    table, _, places = build(rows)
    if lost is not None and lost < len(table.rows):
        # A payload group that is not whole, a row that is not there, or one that is damaged.
        key = sorted(table.rows)[lost]
        table.write([(key, None if lost % 2 else table.rows[key][:-1] + b"!")])
    snapshot, undecided = reader
    asked = query(limit=limit, bytes_max=bytes_max, snapshot=snapshot, undecided=undecided)

    for reading in _pages(table, asked):
        pointers = pointers_of(rows, places)
        expected = expected_of(
            [
                (message_id, payload, pointers.get(MessageId.from_bytes(message_id).offset))
                for message_id, payload in reading.messages.items()
            ]
        )
        body = reading.messages.encoded(Encoding(MediaType.ARROW), generation=7)
        assert rows_of(batch_of(body)) == expected


def _pages(table: object, asked: object) -> Iterator[ReadResult]:
    for _ in range(20):
        try:
            reading = read(table, asked)  # type: ignore[arg-type] # as the strategies made them
        except DamagedRecordError as error:
            place = MessageId.from_hex(str(error.members["next"]))
            asked = query(start=place.to_int() + 1)
            continue
        yield reading
        if reading.caught_up or reading.blocking_pointer is not None:
            return
        asked = query(start=int.from_bytes(reading.next_id, "big") + 1)


sizes = st.sampled_from([0, 1, 63, 64, 8_191, 8_192, 1_048_575, 1_048_576])


@given(payload_sizes=st.lists(sizes, max_size=3))
def test_payloads_of_every_length_are_encoded_whole(payload_sizes: list[int]) -> None:
    ids = [number.to_bytes(20, "big") for number in range(len(payload_sizes))]
    payloads = [bytes([number]) * size for number, size in enumerate(payload_sizes)]

    messages = Messages(limit=len(ids), bytes_max=None)
    messages.extend(ids, payloads)

    batch = batch_of(messages.encoded(Encoding(MediaType.ARROW), generation=7))

    assert batch["id"].to_pylist() == ids
    assert batch["value"].to_pylist() == payloads


async def test_a_reply_from_memory_names_the_pointers_too(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(55)
    await publish(service, b"a")
    await publish(service, b"b", b"c", pointer=pointer)
    await publish(service, b"d", ttl_s=5)
    rolled_back = world.transactions.start(66)
    await publish(service, b"e", pointer=rolled_back)
    await service.rows.roll_back([rolled_back])

    result = await service.polls.poll(AUDIT, Poll())

    batch = batch_of(
        result.messages.encoded(Encoding(MediaType.ARROW), generation=result.generation)
    )
    assert batch["value"].to_pylist() == [b"a", b"b", b"c", b"d", b"e"]
    assert batch["write_pointer"].to_pylist() == [None, 55, 55, None, 66]
    assert batch["generation"].to_pylist() == [1, 1, 1, 1, 1]


async def test_without_the_library_a_poll_is_refused_before_it_waits(
    service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "messaging.log.arrow_reply", raising=False)
    arrow_encoder.cache_clear()
    found = routes(service.polls)
    (poll,) = [each for each in found if each.operation is POLL]
    names = {"ns": "default", "t": "audit"}
    asked = Request(names, (("wait", "60"),), None, MediaType.ARROW.value, b"")

    with pytest.raises(NotAcceptableError, match=r"tuff-messaging\[arrow\]"):
        await poll.handler(asked)
