"""Framed records: torn at every byte, and with every bit flipped (design §2, promise 8); and their
checksum."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuff_storage.checksum import crc32
from tuff_storage.disk.records import (
    FRAME_BYTES_MAX,
    Damage,
    Frame,
    pack_frame,
    read_frame,
    read_frames,
)

BODIES = [b"first", b"", b"the third one", bytes(40)]
FILE = b"".join(pack_frame(body) for body in BODIES)
STARTS = [0, 13, 21, 42]
STOPS = [13, 21, 42, 90]


def whole_before(offset: int) -> list[bytes]:
    """The bodies of the records that end at or before an offset."""
    return [body for body, stop in zip(BODIES, STOPS, strict=True) if stop <= offset]


def start_of_the_record_at(offset: int) -> int:
    return max(start for start in STARTS if start <= offset)


def test_a_record_has_the_bytes_of_its_grammar() -> None:
    assert pack_frame(b"tuff").hex() == "00000004b1b3ec9574756666"


def test_records_are_read_back_with_their_offsets() -> None:
    assert list(read_frames(FILE)) == [
        Frame(start, stop, body) for start, stop, body in zip(STARTS, STOPS, BODIES, strict=True)
    ]
    assert len(FILE) == STOPS[-1]


def test_reading_can_begin_at_any_record() -> None:
    assert [found.body for found in read_frames(FILE, 21) if isinstance(found, Frame)] == BODIES[2:]
    assert list(read_frames(FILE, len(FILE))) == []


@given(st.lists(st.binary(max_size=300)))
def test_any_bodies_survive(bodies: list[bytes]) -> None:
    data = b"".join(map(pack_frame, bodies))

    found = list(read_frames(data))

    assert [frame.body for frame in found if isinstance(frame, Frame)] == bodies
    assert len(found) == len(bodies)


def test_a_file_torn_at_any_byte_gives_the_records_before_and_the_offset() -> None:
    for size in range(len(FILE)):
        found = list(read_frames(FILE[:size]))

        assert [frame.body for frame in found if isinstance(frame, Frame)] == whole_before(size)
        damage = [one.offset for one in found if isinstance(one, Damage)]
        assert damage == ([] if size in {0, *STOPS} else [start_of_the_record_at(size)])


def test_any_flipped_bit_is_found_at_its_record_and_nothing_behind_it_is_read() -> None:
    for bit in range(8 * len(FILE)):
        data = bytearray(FILE)
        data[bit // 8] ^= 1 << bit % 8
        start = start_of_the_record_at(bit // 8)

        *frames, damage = read_frames(bytes(data))

        assert [frame.body for frame in frames if isinstance(frame, Frame)] == whole_before(start)
        assert isinstance(damage, Damage)
        assert damage.offset == start


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4096])
def test_a_range_of_zeros_is_no_record(size: int) -> None:
    """What a file system leaves where a length grew and the data never arrived."""
    assert isinstance(read_frame(bytes(size), 0), Damage)


def test_an_absurd_length_is_damage_and_reserves_no_memory() -> None:
    head = (FRAME_BYTES_MAX + 1).to_bytes(4, "big") + bytes(4)

    found = read_frame(head + bytes(100), 0)

    assert found == Damage(0, "the record is cut off, or its length is damaged")


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_damage(data: bytes) -> None:
    for found in read_frames(data):
        assert isinstance(found, Frame | Damage)


@given(data=st.binary(max_size=5_000), before=st.integers(0, 2**32 - 1), cut=st.integers(0, 5_000))
def test_the_checksum_is_the_crc_32_of_zlib(data: bytes, before: int, cut: int) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(data, before) == zlib.crc32(data, before)
    assert crc32(memoryview(data)[cut:]) == zlib.crc32(data[cut:])
    assert crc32(data[cut:], crc32(data[:cut])) == crc32(data)
