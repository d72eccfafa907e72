"""An archive is whole, or is refused: cut at every byte, every byte flipped (promise 8)."""

from io import BytesIO

import pytest

from tuff_storage.disk.backup_archive import (
    ArchiveError,
    NewerArchiveError,
    pack_end,
    pack_failure,
    pack_head,
    pack_part,
    read_parts,
)

PARTS = [(1, b"snapshot"), (2, b""), (2, b"rows"), (254, bytes(40))]
WHOLE = pack_head() + b"".join(pack_part(*part) for part in PARTS) + pack_end(len(PARTS))


def read(archive: bytes) -> list[tuple[int, bytes]]:
    return list(read_parts(BytesIO(archive)))


def test_an_archive_has_the_bytes_of_its_grammar() -> None:
    archive = pack_head() + pack_part(2, b"a") + pack_end(1)

    assert archive.hex() == (
        "54554646424b55500001"  # TUFFBKUP, version 1
        "00000002bac546810261"  # two bytes: kind 2, and the content
        "0000000984665dde000000000000000001"  # nine bytes: the end, after one part
    )


def test_parts_are_read_back() -> None:
    assert read(WHOLE) == PARTS


def test_an_archive_that_was_cut_off_anywhere_is_refused() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(ArchiveError):
            read(WHOLE[:length])


def test_an_archive_in_which_any_bit_is_flipped_is_refused() -> None:
    for at in range(8 * len(WHOLE)):
        flipped = bytearray(WHOLE)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(ArchiveError):
            read(bytes(flipped))


def test_an_archive_that_lost_or_gained_a_part_is_refused() -> None:
    less = pack_head() + pack_part(*PARTS[0]) + pack_end(2)
    more = pack_head() + 2 * pack_part(*PARTS[0]) + pack_end(1)

    for archive in (less, more, WHOLE + b"\x00"):
        with pytest.raises(ArchiveError):
            read(archive)


def test_the_reason_why_a_server_gave_up_is_passed_on() -> None:
    with pytest.raises(ArchiveError, match="gave up: the disk failed"):
        read(pack_head() + pack_part(*PARTS[0]) + pack_failure("the disk failed"))


def test_a_newer_version_is_not_reported_as_corruption() -> None:
    with pytest.raises(NewerArchiveError, match="version 2"):
        read(WHOLE[:8] + b"\x00\x02" + WHOLE[10:])


def test_a_length_that_no_part_has_reserves_no_memory() -> None:
    with pytest.raises(ArchiveError, match="no part has 4294967295 bytes"):
        read(pack_head() + b"\xff\xff\xff\xff" + bytes(20))
