"""The transaction value: what it sees, and its TTransaction bytes (protocol §5.1, §6)."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from tuff.protocol.errors import InvalidTransactionError
from tuff.protocol.pointer_list import POINTER_MAX, PointerList
from tuff.protocol.transaction import (
    NO_SHORT_IN_PROGRESS,
    Transaction,
    TransactionType,
    VisibilityLevel,
)

# Written by the generated code of Thrift itself, in two languages: the bytes are a fact.
WITH_EXCLUDES = (
    Transaction(
        transaction_id=1000,
        read_pointer=998,
        write_pointer=1000,
        invalids=(990, 991),
        in_progress=(995,),
        first_short_in_progress=995,
    ),
    "0a000100000000000003e80a000200000000000003e60f00030a0000000200000000000003de0000000000"
    "0003df0f00040a0000000100000000000003e30a000500000000000003e3080006000000010a0007000000"
    "00000003e80f00080a000000000800090000000100",
)
CHECKPOINTED = (
    Transaction(
        transaction_id=1000,
        read_pointer=998,
        write_pointer=1002,
        checkpoint_write_pointers=(1001, 1002),
        visibility_level=VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT,
    ),
    "0a000100000000000003e80a000200000000000003e60f00030a000000000f00040a000000000a00057fff"
    "ffffffffffff080006000000010a000700000000000003ea0f00080a0000000200000000000003e9000000"
    "00000003ea0800090000000200",
)
SMALL = (
    Transaction(
        transaction_id=3,
        read_pointer=3,
        write_pointer=3,
        in_progress=(2,),
        first_short_in_progress=2,
    ),
    "0a000100000000000000030a000200000000000000030f00030a000000000f00040a000000010000000000"
    "0000020a00050000000000000002080006000000010a000700000000000000030f00080a00000000080009"
    "0000000100",
)
GOLDEN = pytest.mark.parametrize(("transaction", "digits"), [WITH_EXCLUDES, CHECKPOINTED, SMALL])

POINTERS = st.integers(0, POINTER_MAX)
ASCENDING = st.lists(POINTERS, max_size=40, unique=True).map(lambda found: tuple(sorted(found)))
TRANSACTIONS = st.builds(
    Transaction,
    transaction_id=POINTERS,
    read_pointer=POINTERS,
    write_pointer=POINTERS,
    invalids=ASCENDING,
    in_progress=ASCENDING,
    first_short_in_progress=POINTERS,
    type=st.sampled_from(TransactionType),
    checkpoint_write_pointers=ASCENDING,
    visibility_level=st.sampled_from(VisibilityLevel),
)


def thrift_fields(data: bytes) -> dict[int, object]:
    """Every field by its id, as Thrift's own library reads it, which has read all the bytes."""
    buffer = TMemoryBuffer(data)
    reader = TBinaryProtocol(buffer)
    fields: dict[int, object] = {}
    while True:
        _, kind, field_id = reader.readFieldBegin()
        if kind == TType.STOP:
            assert buffer.read(1) == b""
            return fields
        if kind == TType.LIST:
            _, count = reader.readListBegin()
            fields[field_id] = tuple(reader.readI64() for _ in range(count))
        else:
            fields[field_id] = reader.readI64() if kind == TType.I64 else reader.readI32()


def thrift_bytes(fields: dict[int, object]) -> bytes:
    """The struct as Thrift's own library writes it, in the order of the dict."""
    buffer = TMemoryBuffer()
    writer = TBinaryProtocol(buffer)
    for field_id, value in fields.items():
        if isinstance(value, tuple):
            writer.writeFieldBegin("", TType.LIST, field_id)
            writer.writeListBegin(TType.I64, len(value))
            for pointer in value:
                writer.writeI64(pointer)
        elif field_id in {6, 9}:
            writer.writeFieldBegin("", TType.I32, field_id)
            writer.writeI32(value)
        else:
            writer.writeFieldBegin("", TType.I64, field_id)
            writer.writeI64(value)
    writer.writeFieldStop()
    return bytes(buffer.getvalue())


def fields_of(transaction: Transaction) -> dict[int, object]:
    return {
        1: transaction.transaction_id,
        2: transaction.read_pointer,
        3: transaction.invalids,
        4: transaction.in_progress,
        5: transaction.first_short_in_progress,
        6: {TransactionType.SHORT: 1, TransactionType.LONG: 2}[transaction.type],
        7: transaction.write_pointer,
        8: transaction.checkpoint_write_pointers,
        9: transaction.visibility_level.value,
    }


@GOLDEN
def test_a_transaction_is_written_and_read_as_tephra_does(
    transaction: Transaction, digits: str
) -> None:
    assert transaction.to_bytes().hex() == digits
    assert Transaction.from_bytes(bytes.fromhex(digits)) == transaction


@given(TRANSACTIONS)
def test_thrift_itself_reads_and_writes_the_same_bytes(transaction: Transaction) -> None:
    data = transaction.to_bytes()

    assert thrift_fields(data) == fields_of(transaction)
    assert thrift_bytes(fields_of(transaction)) == data
    assert Transaction.from_bytes(data) == transaction


@given(TRANSACTIONS)
def test_a_shared_pointer_list_is_written_as_a_plain_one(transaction: Transaction) -> None:
    shared = replace(
        transaction,
        invalids=PointerList(transaction.invalids),
        in_progress=PointerList(transaction.in_progress),
    )

    assert shared.to_bytes() == transaction.to_bytes()
    assert shared == transaction


@given(TRANSACTIONS, st.randoms(use_true_random=False))
def test_fields_are_read_in_any_order_and_lists_in_any_order_too(
    transaction: Transaction, random: object
) -> None:
    fields = list(fields_of(transaction).items())
    random.shuffle(fields)  # type: ignore[attr-defined]  # hypothesis has no public type for it
    shuffled = {
        field_id: tuple(reversed(value)) if isinstance(value, tuple) else value
        for field_id, value in fields
    }

    assert Transaction.from_bytes(thrift_bytes(shuffled)) == transaction


def test_a_field_that_is_left_out_has_the_value_that_tephra_gives_it() -> None:
    assert Transaction.from_bytes(b"\x00") == Transaction(
        transaction_id=0,
        read_pointer=0,
        write_pointer=0,
        first_short_in_progress=0,
        type=TransactionType.LONG,
    )


@given(TRANSACTIONS)
def test_bytes_that_are_cut_off_anywhere_are_refused(transaction: Transaction) -> None:
    data = transaction.to_bytes()

    for size in range(len(data)):
        with pytest.raises(InvalidTransactionError):
            Transaction.from_bytes(data[:size])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_transaction_or_refused_as_none(data: bytes) -> None:
    with suppress(InvalidTransactionError):
        assert Transaction.from_bytes(data).to_bytes().endswith(b"\x00")


@pytest.mark.parametrize(
    ("digits", "reason"),
    [
        ("0000", "1 bytes follow the end"),
        ("0f00030a7fffffff00", "says it lists 2147483647 elements"),
        ("0f00030affffffff00", "says it lists -1 elements"),
        ("0f0003080000000000", "of Thrift type 8"),
        ("0a000a000000000000000100", "has no field 10 of Thrift type 10"),
        ("0800010000000100", "has no field 1 of Thrift type 8"),
        ("0800090000000400", "4 is no visibility level"),
    ],
)
def test_a_malformed_transaction_is_refused_with_a_reason(digits: str, reason: str) -> None:
    with pytest.raises(InvalidTransactionError, match=reason):
        Transaction.from_bytes(bytes.fromhex(digits))


@pytest.mark.parametrize(
    ("version", "visible"),
    [(989, True), (990, False), (992, True), (995, False), (998, True), (999, False), (1000, True)],
)
def test_a_version_is_visible_at_or_below_the_read_pointer_unless_excluded_or_ones_own(
    *, version: int, visible: bool
) -> None:
    assert WITH_EXCLUDES[0].is_visible(version) is visible


@pytest.mark.parametrize(
    ("level", "visible"),
    [
        (VisibilityLevel.SNAPSHOT, [1000, 1001, 1002]),
        (VisibilityLevel.SNAPSHOT_ALL, [1000, 1001, 1002]),
        (VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT, [1000, 1001]),
    ],
)
def test_only_the_newest_of_its_own_pointers_can_be_hidden(
    level: VisibilityLevel, visible: list[int]
) -> None:
    transaction = Transaction(
        transaction_id=1000,
        read_pointer=998,
        write_pointer=1002,
        checkpoint_write_pointers=(1001, 1002),
        visibility_level=level,
    )

    assert [version for version in range(999, 1004) if transaction.is_visible(version)] == visible


def test_a_checkpoint_keeps_the_snapshot_and_remembers_every_pointer_but_the_first() -> None:
    once = WITH_EXCLUDES[0].checkpointed(1001)
    twice = once.checkpointed(1002)

    assert (once.write_pointer, once.checkpoint_write_pointers) == (1001, (1001,))
    assert (twice.write_pointer, twice.checkpoint_write_pointers) == (1002, (1001, 1002))
    assert (twice.transaction_id, twice.read_pointer, twice.in_progress) == (1000, 998, (995,))
    assert [version for version in range(996, 1004) if twice.is_visible(version)] == [
        996, 997, 998, 1000, 1001, 1002,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("in_progress", "bound"), [((), 998), ((995,), 994), ((995, 997), 994), ((999,), 998)]
)
def test_the_upper_bound_is_below_every_transaction_in_progress_and_not_above_the_read_pointer(
    in_progress: tuple[int, ...], bound: int
) -> None:
    transaction = Transaction(
        transaction_id=1000, write_pointer=1000, read_pointer=998, in_progress=in_progress
    )

    assert transaction.visibility_upper_bound == bound


def test_no_short_transaction_in_progress_is_the_highest_pointer_there_is() -> None:
    assert NO_SHORT_IN_PROGRESS == 9223372036854775807
