"""Equal offsets have equal texts, in whatever order the topics were given."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tuff.checkpoint_offsets import (
    BEGINNING,
    Position,
    before,
    before_time,
    from_json,
    to_json,
)
from pyspark_tuff.errors import OffsetError
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId

NAMES = st.text("abcXYZ019._-", min_size=1, max_size=8).filter(lambda name: name not in {".", ".."})
IDS = st.builds(MessageId, *[st.integers(0, limit - 1) for limit in (1 << 64, 1 << 16) * 2])
POSITIONS = st.builds(
    Position,
    generation=st.integers(1, 1 << 31),
    id=st.one_of(st.just(BEGINNING), IDS.map(MessageId.hex)),
)
TOPICS = st.builds(TopicId, NAMES, NAMES)
PARTITIONS = st.builds(TopicId.partition, TOPICS, st.integers(0, 9_999))
OFFSETS = st.dictionaries(PARTITIONS, POSITIONS, max_size=5)


def test_an_offset_has_the_text_that_spark_may_compare() -> None:
    offset = {
        TopicId("shop", "b"): Position(generation=2, id=BEGINNING),
        TopicId("shop", "a"): Position(generation=1, id=MessageId(1, 2).hex()),
    }

    assert json.dumps(to_json(offset)) == (
        '{"topics": {"shop:a": {"gen": "1", "id": "0000000000000001000200000000000000000000"}, '
        '"shop:b": {"gen": "2", "id": ""}}, "v": "1"}'
    )


@given(OFFSETS, st.randoms())
def test_equal_positions_have_equal_texts_and_are_read_back(offset, random) -> None:
    shuffled = list(offset.items())
    random.shuffle(shuffled)

    text = json.dumps(to_json(offset))

    assert json.dumps(to_json(dict(shuffled))) == text
    assert from_json(json.loads(text)) == offset
    assert json.dumps(to_json(from_json(json.loads(text)))) == text


def test_the_name_of_a_topic_in_a_checkpoint_is_its_partition_0() -> None:
    """A checkpoint stays valid when its topic gets further partitions."""
    position = {"gen": "1", "id": ""}
    of_topic, of_partition = (
        from_json({"topics": {name: position}, "v": "1"}) for name in ("shop:a", "shop:a:0")
    )

    assert of_topic == of_partition == {TopicId("shop", "a:0"): Position(generation=1, id="")}
    assert to_json(of_topic)["topics"] == {"shop:a": position}


@given(st.lists(IDS, min_size=2, max_size=2))
def test_digits_sort_as_ids_do(ids: list[MessageId]) -> None:
    assert sorted(ids) == [MessageId.from_hex(d) for d in sorted(each.hex() for each in ids)]
    assert all(each.hex() > BEGINNING for each in ids)


def test_the_id_before_another_is_the_largest_below_it() -> None:
    assert before(FIRST_ID) == BEGINNING
    assert before(MessageId(5, 0)) == before_time(5)
    assert MessageId.from_hex(before_time(5)) < MessageId(5, 0)
    assert MessageId.from_hex(before_time(5)) > MessageId(4, 65_535)


@pytest.mark.parametrize(
    "offset",
    [
        None,
        {"v": "2", "topics": {}},
        {"topics": {}},
        {"v": "1", "topics": {"a": {"gen": "1", "id": ""}}},
        {"v": "1", "topics": {"a:b": {"gen": 1, "id": ""}}},
        {"v": "1", "topics": {"a:b": {"gen": "1", "id": "00"}}},
    ],
)
def test_an_offset_of_another_format_is_refused(offset: object) -> None:
    with pytest.raises(OffsetError):
        from_json(offset)
