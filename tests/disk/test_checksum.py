"""The fast CRC-32 is the CRC-32."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from tuff.checksum import crc32


@given(data=st.binary(max_size=5_000), before=st.integers(0, 2**32 - 1), cut=st.integers(0, 5_000))
def test_it_is_the_one_of_zlib(data: bytes, before: int, cut: int) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(data, before) == zlib.crc32(data, before)
    assert crc32(memoryview(data)[cut:]) == zlib.crc32(data[cut:])
    assert crc32(data[cut:], crc32(data[:cut])) == crc32(data)
