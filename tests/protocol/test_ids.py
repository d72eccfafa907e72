"""Names, and message ids: 20 bytes whose order is that of messages (protocol §1, design §5)."""

import pickle
import string
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuff.protocol.errors import InvalidMessageIdError, InvalidNameError
from tuff.protocol.ids import (
    FIRST_ID,
    LAST_ID,
    SEQ_ID_LIMIT,
    TIMESTAMP_LIMIT,
    DelayedId,
    MessageId,
    Offset,
    PartitionId,
    TopicId,
    check_name,
    past_group,
    topic_id,
    topic_of,
)

TIMESTAMPS = st.integers(0, TIMESTAMP_LIMIT - 1)
SEQ_IDS = st.integers(0, SEQ_ID_LIMIT - 1)
IDS = st.builds(MessageId, TIMESTAMPS, SEQ_IDS, TIMESTAMPS, SEQ_IDS)


def test_an_inline_message_has_the_id_of_the_worked_example() -> None:
    message_id = MessageId(1_480_000_000_000, 5)

    assert message_id.hex() == "0000015896dfd000000500000000000000000000"
    assert message_id.offset == Offset(1_480_000_000_000, 5)


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
def test_no_id_of_a_group_is_after_past_group(one: MessageId, other: MessageId) -> None:
    end = past_group(one.offset)

    assert one <= end
    assert (other > end) == (other.offset > one.offset)


@given(IDS)
def test_every_id_lies_between_the_first_and_the_last(message_id: MessageId) -> None:
    assert FIRST_ID <= message_id <= LAST_ID
    assert (FIRST_ID.hex(), LAST_ID.hex()) == ("00" * 20, "ff" * 20)


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


LEGAL = string.ascii_letters + string.digits + "._-"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a" * 129, "a b", "a/b", "a:b", "a\n", "é", "\u0663", "a\x00", "a%20b", "a*"],
)  # fmt: skip
def test_any_other_name_is_refused_and_shown(name: str) -> None:
    with pytest.raises(InvalidNameError) as refused:
        check_name(name, what="topic")

    assert refused.value.code == "invalid_name"
    assert "is not a legal name" in refused.value.detail
    assert len(refused.value.detail) < 400


@given(st.text(LEGAL, max_size=130) | st.text())
def test_a_name_is_legal_exactly_by_its_characters_and_length(name: str) -> None:
    legal = 1 <= len(name) <= 128 and set(name) <= set(LEGAL) and name not in {".", ".."}

    with nullcontext() if legal else pytest.raises(InvalidNameError):
        assert check_name(name, what="namespace") == name


def test_a_topic_of_an_illegal_name_cannot_be_made() -> None:
    with pytest.raises(InvalidNameError, match="namespace"):
        TopicId("a/b", "t")
    with pytest.raises(InvalidNameError, match="topic"):
        TopicId("a", "t:u")


def test_a_topic_is_written_with_a_colon_that_no_name_can_hold() -> None:
    assert str(TopicId("shop", "orders")) == "shop:orders"


@pytest.mark.parametrize("name", ["t:g:share", "t:12:g:share", "t:group"])
def test_a_log_that_belongs_to_a_topic_has_a_name_that_no_request_may_use(name: str) -> None:
    assert str(TopicId("n", name)) == f"n:{name}"
    with pytest.raises(InvalidNameError):
        topic_id("n", name)


@pytest.mark.parametrize(
    "name",
    ["t:", "t:0:g:share", "t:01", "t:10000", "t:x", "t:1:2", "t:g:share:1", "t:group:1", ":1",
     "t:1:", "t:\u0661", "t:1\n", "t:delayed"],
)  # fmt: skip
def test_other_parts_of_a_name_are_refused(name: str) -> None:
    with pytest.raises(InvalidNameError):
        TopicId("n", name)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("orders", "orders"), ("orders:0", "orders"), ("orders:12", "orders"),
        ("orders:g:share", "orders"), ("orders:12:g:share", "orders"),
        ("orders:group", "orders:group"),
    ],
)  # fmt: skip
def test_a_topic_is_owned_with_its_partitions_and_logs(name: str, unit: str) -> None:
    assert TopicId("shop", name).unit == TopicId("shop", unit)


@pytest.mark.parametrize("number", [0, 1, 12, 9999])
def test_a_partition_is_named_by_its_number(number: int) -> None:
    partition = topic_id("n", f"t:{number}")

    assert partition == TopicId("n", f"t:{number}")
    assert partition is topic_id("n", "t").partition(number) is partition.partition(number)
    assert (partition.number, partition.base) == (number, TopicId("n", "t"))
    assert partition.log == (partition if number else TopicId("n", "t"))


def test_a_topic_has_no_number() -> None:
    for name in ("t", "t:g:share", "t:12:g:share"):
        topic = TopicId("n", name)
        assert (topic.number, topic.base, topic.log) == (None, TopicId("n", "t"), topic)


@pytest.mark.parametrize("number", [-1, 10_000])
def test_there_is_no_partition_of_another_number(number: int) -> None:
    with pytest.raises(InvalidNameError):
        TopicId("n", "t").partition(number)


def test_an_id_is_shown_as_the_hex_that_every_other_place_shows() -> None:
    message = MessageId(1, 2, 3, 4)
    delayed = DelayedId(1, Offset(2, 3))

    assert repr(message) == f"MessageId.from_hex({message.hex()!r})"
    assert str(message) == message.hex()
    assert repr(delayed) == f"DelayedId.from_hex({delayed.hex()!r})"


@pytest.mark.parametrize("text", ["shop:orders/3", "shop:orders:3"])
def test_a_text_names_a_partition_as_programs_and_as_http_write_it(text: str) -> None:
    found = topic_of(text)

    assert found == topic_of("shop:orders").partition(3) == PartitionId("shop", "orders:3")
    assert isinstance(found, PartitionId)
    assert found.number == 3
    assert found.base == TopicId("shop", "orders") == topic_of("shop:orders")


def test_a_topic_with_a_slash_in_its_text_is_never_a_topic() -> None:
    assert topic_of("shop:orders/0") != topic_of("shop:orders")
    assert topic_of("shop:orders/0").log == topic_of("shop:orders")


def test_a_value_that_names_a_topic_is_taken_as_it_is() -> None:
    for topic in (TopicId("shop", "orders"), PartitionId("shop", "orders:3")):
        assert topic_of(topic) is topic
        assert topic_of(str(topic)) == topic


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        ":orders",
        "shop:",
        "shop/orders",
        "shop:/3",
        "shop:orders/",
        "shop:orders/x",
        "shop:orders/-1",
        "shop:orders/03",
        "shop:orders/10000",
        "shop:orders/3/4",
        "shop:orders:3/4",
        "shop:orders:billing:share",
        "shop:billing:group",
        "shop:orders:x",
    ],
)
def test_a_text_that_names_no_topic_is_refused_with_the_forms_that_do(text: str) -> None:
    with pytest.raises(InvalidNameError, match=r"'shop:orders'.*'shop:orders/3'"):
        topic_of(text)


@pytest.mark.parametrize("text", ["orders", "orders/3"])
def test_a_name_without_a_namespace_is_refused_with_that_of_the_namespace_default(
    text: str,
) -> None:
    with pytest.raises(InvalidNameError, match=f"'default:{text}'$"):
        topic_of(text)


@pytest.mark.parametrize("value", [None, 3, b"shop:orders", ("shop", "orders")])
def test_another_type_names_no_topic(value: object) -> None:
    with pytest.raises(TypeError, match=r"is no topic.*'shop:orders'"):
        topic_of(value)


def test_a_log_is_one_key_as_a_topic_and_as_a_partition() -> None:
    ids = [TopicId("n", "t:1"), PartitionId("n", "t:1"), TopicId("n", "t"), TopicId("m", "t:2")]

    assert len({*ids}) == 3
    assert sorted(ids) == [ids[3], ids[2], ids[0], ids[1]]
    assert pickle.loads(pickle.dumps(ids)) == ids


@pytest.mark.parametrize("name", ["t", "t:x", "t:g:share", "g:group"])
def test_a_name_without_a_number_is_no_partition(name: str) -> None:
    with pytest.raises(InvalidNameError):
        PartitionId("n", name)
