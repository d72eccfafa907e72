"""Names of namespaces and topics (protocol §1)."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuff.protocol.errors import InvalidNameError
from tuff.protocol.names import TopicId, check_name

LEGAL = string.ascii_letters + string.digits + "._-"


@given(st.text(LEGAL, min_size=1, max_size=128).filter(lambda name: name not in {".", ".."}))
def test_a_legal_name_is_given_back(name: str) -> None:
    assert check_name(name, what="topic") == name


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


@given(st.text())
def test_a_name_is_legal_exactly_by_its_characters_and_length(name: str) -> None:
    legal = 1 <= len(name) <= 128 and set(name) <= set(LEGAL) and name not in {".", ".."}

    try:
        check_name(name, what="namespace")
    except InvalidNameError:
        assert not legal
    else:
        assert legal


def test_a_topic_of_an_illegal_name_cannot_be_made() -> None:
    with pytest.raises(InvalidNameError, match="namespace"):
        TopicId("a/b", "t")
    with pytest.raises(InvalidNameError, match="topic"):
        TopicId("a", "t:u")


def test_a_topic_is_written_with_a_colon_that_no_name_can_hold() -> None:
    assert str(TopicId("shop", "orders")) == "shop:orders"
