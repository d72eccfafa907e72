"""Attributes of messages, as a publisher may give them."""

from hypothesis import strategies as st

from tuff.protocol.attributes import Attributes

TAGS = st.text(
    "ABCXYZabcxyz0129._-",
    min_size=1,
    max_size=64,
)
NAMES = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters=","),
    min_size=1,
    max_size=128,
) | st.sampled_from(["n", "traceparent"])
ATTRIBUTES = st.builds(
    Attributes,
    st.none() | st.binary(max_size=300),
    st.lists(TAGS, max_size=16, unique=True).map(tuple),
    st.lists(st.tuples(NAMES, st.binary(max_size=100)), max_size=64).map(tuple),
)
