"""Message ids: 20 bytes whose order is the order of messages (design §5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuff.protocol.errors import InvalidMessageIdError
from tuff.protocol.ids import (
    FIRST_ID,
    LAST_ID,
    SEQ_ID_LIMIT,
    TIMESTAMP_LIMIT,
    MessageId,
    Place,
    past_group,
)

TIMESTAMPS = st.integers(0, TIMESTAMP_LIMIT - 1)
SEQ_IDS = st.integers(0, SEQ_ID_LIMIT - 1)
IDS = st.builds(MessageId, TIMESTAMPS, SEQ_IDS, TIMESTAMPS, SEQ_IDS)


def test_an_inline_message_has_the_id_of_the_worked_example() -> None:
    message_id = MessageId(1_480_000_000_000, 5)

    assert message_id.hex() == "0000015896dfd000000500000000000000000000"
    assert message_id.place == Place(1_480_000_000_000, 5)


@given(IDS)
def test_an_id_survives_bytes_hex_and_number(message_id: MessageId) -> None:
    assert MessageId.from_bytes(message_id.to_bytes()) == message_id
    assert MessageId.from_hex(message_id.hex()) == message_id
    assert MessageId.from_hex(message_id.hex().upper()) == message_id
    assert MessageId.from_int(message_id.to_int()) == message_id


@given(IDS, IDS)
def test_values_bytes_hex_and_numbers_have_one_order(one: MessageId, other: MessageId) -> None:
    assert (one < other) == (one.to_bytes() < other.to_bytes())
    assert (one < other) == (one.hex() < other.hex())
    assert (one < other) == (one.to_int() < other.to_int())


@given(IDS, IDS)
def test_nothing_the_row_could_bring_lies_past_its_group(one: MessageId, other: MessageId) -> None:
    end = past_group(one.place)

    assert one <= end
    assert (other > end) == (other.place > one.place)


@given(IDS)
def test_every_id_lies_between_the_first_and_the_last(message_id: MessageId) -> None:
    assert FIRST_ID <= message_id <= LAST_ID


def test_the_first_and_the_last_id_are_all_zeros_and_all_ones() -> None:
    assert FIRST_ID.hex() == "00" * 20
    assert LAST_ID.hex() == "ff" * 20


@pytest.mark.parametrize("size", [0, 19, 21])
def test_an_id_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(InvalidMessageIdError, match=f"this one has {size}"):
        MessageId.from_bytes(bytes(size))


@pytest.mark.parametrize(
    "digits",
    [
        "",
        "00" * 19,
        "00" * 21,
        "zz" * 20,
        " " + "0" * 39,
        "0x" + "0" * 38,
        "\u0660" * 40,
        "0" * 39 + "\n",
    ],
)
def test_anything_but_40_hex_digits_is_refused(digits: str) -> None:
    with pytest.raises(InvalidMessageIdError):
        MessageId.from_hex(digits)
