"""The checksum in LevelDB's own files: CRC-32C, rotated and shifted as LevelDB stores it.

The standard library has none. Two bytes a step make some 10 MB a second, enough to check a store
once in a while; traffic never comes here.
"""

from array import array
from sys import byteorder

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_MASK_DELTA = 0xA282EAD8


def _step(value: int, bits: int) -> int:
    for _ in range(bits):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_BYTES = [_step(value, 8) for value in range(256)]
_PAIRS = [_BYTES[_BYTES[value & 0xFF] & 0xFF ^ value >> 8] ^ _BYTES[value & 0xFF] >> 8
          for value in range(65536)]  # fmt: skip


def crc32c(data: bytes) -> int:
    """CRC-32C of the bytes, as RFC 3720 defines it."""
    even = len(data) & ~1
    pairs = array("H", data[:even])
    if byteorder == "big":
        pairs.byteswap()
    crc, table = 0xFFFFFFFF, _PAIRS
    for pair in pairs:
        crc = table[(crc ^ pair) & 0xFFFF] ^ crc >> 16
    if even < len(data):
        crc = _BYTES[(crc ^ data[-1]) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The checksum as LevelDB stores it beside the data."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
