"""The CRC-32 of all stored data: that of zlib, by a library that is two to three times as fast.

The checksum of a long message was the most expensive step of its write and of its read.
"""

from tuff.optional_packages import Extra

with Extra("a checksum of stored data", "tables"):
    from zlib_ng.zlib_ng import crc32

__all__ = ["crc32"]
