"""Keys round-trip, and the keys below a prefix are one range of encoded keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.keys import decode_key, encode_key, is_at_or_below, range_below

# Many of the characters that the encoding and the range treat in a special way.
COMPONENT = st.one_of(
    st.sampled_from(
        [".", "..", "...", "%2F", "/", "//", "a", "ab", "a/b", "a-b", "a.b", "a0", "0"]
    ),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
)
KEY = st.lists(COMPONENT, min_size=1, max_size=4).map(tuple)


@given(KEY)
def test_a_key_round_trips(key: tuple[str, ...]) -> None:
    assert decode_key(encode_key(key)) == key


@given(KEY)
def test_an_encoded_key_is_printable_ascii_without_the_components_that_zookeeper_refuses(
    key: tuple[str, ...],
) -> None:
    encoded = encode_key(key)

    assert encoded.isascii()
    assert encoded.isprintable()
    assert not {"", ".", ".."} & set(encoded.split("/"))


@given(KEY, KEY)
def test_different_keys_have_different_encodings(
    one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    assert (encode_key(one) == encode_key(other)) == (one == other)


@given(KEY, KEY, st.booleans())
def test_the_range_below_a_prefix_has_its_keys_and_no_others(
    prefix: tuple[str, ...], key: tuple[str, ...], is_below: bool
) -> None:
    key = prefix + key if is_below else key

    start, stop = range_below(prefix)

    is_in_range = start.encode() <= encode_key(key).encode() < stop.encode()
    assert is_in_range == (is_at_or_below(key, prefix) and key != prefix)


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        (("topics", "sales"), "topics/sales"),
        (("a b", "é", "100%"), "a%20b/%C3%A9/100%25"),
        ((".", "..", "..."), "%2E/%2E%2E/..."),
        (("a/b", "%2F"), "a%2Fb/%252F"),
        (("\x00\n\x7f",), "%00%0A%7F"),
    ],
)
def test_a_key_is_percent_encoded(key: tuple[str, ...], encoded: str) -> None:
    assert encode_key(key) == encoded


@pytest.mark.parametrize("key", [(), ("",), ("a", "", "b"), ("a", "\ud800"), ("a" * 1_025,)])
def test_a_key_out_of_range_is_refused(key: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="key"):
        encode_key(key)


def test_a_key_of_the_greatest_size_is_allowed() -> None:
    assert encode_key(("é" * 170, "abc")) == "%C3%A9" * 170 + "/abc"


@pytest.mark.parametrize(
    "encoded", ["", "a//b", "/a", "a/", ".", "a/..", "%2f", "a b", "%", "%FF", "é", "%41", "\ud800"]
)
def test_text_that_is_no_encoded_key_is_refused(encoded: str) -> None:
    with pytest.raises(ValueError, match="not an encoded key"):
        decode_key(encoded)
