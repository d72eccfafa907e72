"""The CRC-32C of LevelDB's files, by a library with the processor's own instructions."""

from mmap import mmap

from tuff.optional_packages import Extra

with Extra("a checksum of LevelDB", "tables"):
    import google_crc32c

_PART_BYTES = 1 << 20  # bytes of a memory map that are copied at a time


def crc32c(data: bytes | mmap) -> int:
    """The checksum of all bytes; the library itself takes no memory map."""
    found: int
    if isinstance(data, bytes):
        found = google_crc32c.value(data)
        return found
    found = 0
    for at in range(0, len(data), _PART_BYTES):
        found = google_crc32c.extend(found, data[at : at + _PART_BYTES])
    return found


def is_fast() -> bool:
    """Whether the library was built with its C code. The Python code in its place takes hundreds of
    times as long."""
    return bool(google_crc32c.implementation == "c")
