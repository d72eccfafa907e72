"""The partition of a message by its key, as in Kafka's Java client (protocol §3.1). Pure.

Keys keep their partitions when a producer moves from Kafka to a topic with as many partitions.
"""

import struct

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash MurmurHash2 of the data, with Kafka's seed, as an unsigned number."""
    value = _SEED ^ len(data)
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_index(key: bytes, count: int) -> int:
    """Which of `count` partitions, in the order of their numbers, has the messages of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % count
